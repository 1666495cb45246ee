"""`to_tar`: the rows of a pipeline as samples in tar archives, in the layout of WebDataset."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import is_int
from aioqueue.errors import with_article
from aioqueue.pipeline.sink import RowWriter, Sink
from aioqueue.readers.compression import checked_kind, suffix_of
from aioqueue.readers.files import create
from aioqueue.readers.tar import sample_and_extension
from aioqueue.sinks.json_lines import check_keys


def to_tar(
    path: str | os.PathLike[str],
    *,
    rows_per_file: int = 10_000,
    compression: str | None = None,
    batches: bool | None = None,
) -> Sink:
    """Write rows as samples in tar archives, as `read_tar` reads them. Pass it to `Pipeline.write`.

    A row is a dict: ``{"__key__": "cats/7", "jpg": bytes, "cls": 3}`` becomes the files
    ``cats/7.jpg`` and ``cats/7.cls``. Without ``__key__`` a sample is named by its number. Other
    names with two underscores at both ends are left out. Values are bytes; text, which is written
    in UTF-8; ints, in decimal; anything that JSON has, under ``json`` or ``*.json``; and arrays of
    NumPy, under ``npy`` or ``*.npy``. All files have the same date and owner, so the same rows make
    the same archives.

    Args:
        path: a local folder, which is made; the files in it are ``part-00000.tar`` and so on.
        rows_per_file: how many samples an archive has, >= 1. The last one may have fewer.
        compression: ``None``, or ``"gzip"``, ``"bz2"``, ``"xz"``, ``"zstd"``, whose suffix the
            archives get.
        batches: whether the pipeline makes batches, whose rows are written; ``None`` to go by its
            stages, such as `batch`.

    Raises:
        InvalidArgumentError: an argument is not as described.
        ModuleNotFoundError: the compression needs an extra that is not installed.
    """
    return _Tar(path, rows_per_file, batches, compression)


class _Tar(Sink):
    _function = "to_tar"
    _format = "tar"
    _extra = None
    _page = "howto/writing.md"
    _read_by = "read_tar"

    def __init__(self, path: Any, rows_per_file: Any, batches: Any, compression: Any) -> None:
        super().__init__(path, rows_per_file, batches)
        self._compression = checked_kind(compression)

    @property
    def _suffix(self) -> str:
        return f".tar{suffix_of(self._compression)}"

    def _writer(self, carried: dict[str, Any]) -> RowWriter:
        return _Samples(self._compression)


class _Samples(RowWriter):
    """Writes samples.

    Args:
        compression: of the archives; ``None`` for none.
    """

    rows_at_once = 16

    def __init__(self, compression: str | None) -> None:
        self._compression = compression
        self._closing = ExitStack()

    def open(self, path: Path) -> None:
        stream, closing = create(str(path), self._compression)
        with closing:
            self._archive = closing.enter_context(
                tarfile.TarFile(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT)
            )
            self._closing = closing.pop_all()
        self._last = ""

    def write(self, rows: Sequence[Any], first: int) -> None:
        for number, row in enumerate(rows, first):
            key, files = _files_of(row, number)
            if key == self._last:
                raise InvalidArgumentError(
                    f"row {number}: got the key {key!r}, which the row before has, too; expected"
                    " another one, because readers would make one sample of both"
                )
            self._last = key
            for name, data in files:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                self._archive.addfile(member, io.BytesIO(data))

    def finish(self) -> None:
        self._closing.close()

    def abandon(self) -> None:
        with suppress(Exception):
            self._closing.close()


def _files_of(row: Any, number: int) -> tuple[str, list[tuple[str, bytes]]]:
    """The key of a sample, and its files.

    Raises:
        InvalidArgumentError: it is no sample.
    """
    if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
        raise InvalidArgumentError(
            f"row {number}: got {with_article(type(row).__name__)}; expected a dict of the"
            " contents of files, by their extensions"
        )
    key = row.get("__key__", f"{number:09}")
    # What `read_tar` and WebDataset take for the key ends at the first dot behind the last slash.
    last = key.rpartition("/")[2] if isinstance(key, str) else ""
    if not last or "." in last or key.startswith("/"):
        raise InvalidArgumentError(
            f"row {number}: got the key {key!r}; expected a name without a dot, such as 'cats/7'"
        )
    if ".." in key.split("/"):
        raise InvalidArgumentError(
            f"row {number}: got the key {key!r}, which leads out of the folder where the archive"
            " is unpacked; expected one without '..'"
        )
    files = [
        (f"{key}.{name}", _bytes_of(value, name, number))
        for name, value in row.items()
        if not (name.startswith("__") and name.endswith("__"))
    ]
    for name, _ in files:
        if ".." in name.rpartition("/")[2] or not _is_encodable(name):
            raise InvalidArgumentError(
                f"row {number}: got a file that would be called {name!r}; expected a key and"
                " extensions without lone surrogates, which UTF-8 does not have, and without '..'"
            )
        # A name that ends at a NUL, or that is left out, would lose the file.
        if "\0" in name or sample_and_extension(name) != (key, name[len(key) + 1 :]):
            raise InvalidArgumentError(
                f"row {number}: got a file that would be called {name!r}, which `read_tar` would"
                f" not read as {name[len(key) + 1 :]!r} of {key!r}; expected names without '/' and"
                " NUL for extensions, and a key that is not hidden or left out"
            )
    if not files:
        raise InvalidArgumentError(
            f"row {number}: got a sample without files; expected an extension at least"
        )
    return key, files


def _is_encodable(name: str) -> bool:
    """Return whether a name comes back as it is. Bytes that are not UTF-8, as `read_tar` has found
    them in a name, do."""
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _bytes_of(value: Any, name: str, number: int) -> bytes:
    kind = name.rpartition(".")[2]
    try:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if kind == "json":
            text = json.dumps(value, allow_nan=False)
            check_keys(value)
            return text.encode("utf-8")
        if isinstance(value, str):
            return value.encode("utf-8")
        if is_int(value):
            return str(int(value)).encode("ascii")
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError("a masked array, whose mask would be lost")
        if kind == "npy" and isinstance(value, np.ndarray):
            stream = io.BytesIO()
            np.save(stream, value, allow_pickle=False)
            return stream.getvalue()
        raise TypeError(f"a {type(value).__name__}")
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"row {number}: got for {name!r} what cannot be written ({error}); expected bytes,"
            " text, an int, JSON for 'json', or an array of NumPy for 'npy'"
        ) from error
