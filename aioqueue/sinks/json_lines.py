"""`to_json_lines`: the rows of a pipeline as JSON, a row a line."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.pipeline.sink import RowWriter, Sink
from aioqueue.readers.compression import checked_kind, suffix_of
from aioqueue.readers.files import create

_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


def to_json_lines(
    path: str | os.PathLike[str],
    *,
    rows_per_file: int = 100_000,
    compression: str | None = None,
    batches: bool | None = None,
) -> Sink:
    """Write rows as JSON, a row a line, in UTF-8. Pass it to `Pipeline.write`.

    A row is a dict, or anything else that JSON has: lists and tuples, strings, ints, finite floats,
    bools and ``None``. NumPy's scalars become numbers, and tuples and its arrays lists; numbers
    keep their value. Anything else is refused, with the number of the row: keys that are not
    strings, NaN, bytes, times, decimals and masked arrays.

    Args:
        path: a local folder, which is made; the files in it are ``part-00000.jsonl`` and so on.
        rows_per_file: how many rows a file has, >= 1. The last one may have fewer.
        compression: ``None``, or ``"gzip"``, ``"bz2"``, ``"xz"``, ``"zstd"``, whose suffix the
            files get.
        batches: whether the pipeline makes batches, whose rows are written; ``None`` to go by its
            stages, such as `batch`.

    Raises:
        InvalidArgumentError: an argument is not as described.
        ModuleNotFoundError: the compression needs an extra that is not installed.
    """
    return _JsonLines(path, rows_per_file, batches, compression)


class _JsonLines(Sink):
    _function = "to_json_lines"
    _format = "JSON lines"
    _extra = None
    _page = "howto/writing.md"
    _read_by = "read_json_lines"

    def __init__(self, path: Any, rows_per_file: Any, batches: Any, compression: Any) -> None:
        super().__init__(path, rows_per_file, batches)
        self._compression = checked_kind(compression)

    @property
    def _suffix(self) -> str:
        return f".jsonl{suffix_of(self._compression)}"

    def _writer(self, carried: dict[str, Any]) -> RowWriter:
        return _Lines(self._compression)


class _Lines(RowWriter):
    """Writes lines.

    Args:
        compression: of the files; ``None`` for none.
    """

    def __init__(self, compression: str | None) -> None:
        self._compression = compression
        self._encoded = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain).encode
        self._closing = ExitStack()

    def open(self, path: Path) -> None:
        self._stream: IO[bytes]
        self._stream, self._closing = create(str(path), self._compression)

    def write(self, rows: Sequence[Any], first: int) -> None:
        lines = []
        for number, row in enumerate(rows, first):
            try:
                lines.append(self._encoded(row).encode("utf-8"))
                check_keys(row)
            except (TypeError, ValueError, RecursionError) as error:
                raise InvalidArgumentError(
                    f"row {number}: got {type(row).__name__} that JSON cannot hold ({error});"
                    " expected dicts, lists, strings, finite numbers, bools and None: encode others"
                    " in a prepare before"
                ) from error
        self._stream.write(b"\n".join((*lines, b"")))

    def finish(self) -> None:
        self._closing.close()

    def abandon(self) -> None:
        with suppress(Exception):
            self._closing.close()


def check_keys(value: Any) -> None:
    """Check that all keys of dicts are strings: JSON would make strings of others.

    Args:
        value: what JSON holds, so that it does not contain itself.

    Raises:
        ValueError: one is not.
    """
    if isinstance(value, dict):
        if not {str}.issuperset(map(type, value)):
            other = next((key for key in value if not isinstance(key, str)), None)
            if other is not None or None in value:
                raise ValueError(f"the key {other!r}, which would become a string")
        value = value.values()
    elif isinstance(value, np.ndarray):
        if value.dtype != object:
            return
        value = value.ravel().tolist()
    elif not isinstance(value, list | tuple):
        return
    if not _PLAIN.issuperset(map(type, value)):
        for one in value:
            check_keys(one)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("it has a masked array; fill it, as with value.filled(0)")
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufUO":
        return value.tolist()
    raise TypeError(f"it has a {type(value).__name__}")
