"""Tar archives as shards: files that belong together are one sample, as WebDataset has them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import IO, Any, Final, Literal, NamedTuple, overload

from aioqueue import DataLossError
from aioqueue.checks import checked_flag
from aioqueue.inputs.readers.archive import Member, members
from aioqueue.inputs.readers.base import Mark, Paths, Reader, Records
from aioqueue.inputs.readers.files import StorageOptions

__all__ = ("read_tar",)

_log: Final = logging.getLogger("aioqueue")

_BLOCK: Final = 2**16
_AHEAD: Final = 64
_NO_SAMPLES: Final = re.compile(
    r"(\./)*__[^/]*__(/|$)|(.*/)?(PaxHeaders(\.\d+)?|__MACOSX)/|(.*/)?(\.[^/]*|[^/.]*)$", re.DOTALL
)
"""Members that belong to no sample: ``__meta__`` and the like, as WebDataset has it; what programs
that know no pax make of its headers; what macOS puts beside files; hidden files; and those without
an extension."""


@overload
def read_tar(
    paths: Paths,
    *,
    grouped: Literal[True] = True,
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
) -> Reader[dict[str, Any]]: ...
@overload
def read_tar(
    paths: Paths,
    *,
    grouped: Literal[False],
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
) -> Reader[tuple[str, bytes]]: ...
def read_tar(
    paths: Paths,
    *,
    grouped: bool = True,
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
    seed: int | None = None,
) -> Reader[Any]:
    """The samples in tar archives, which are shards in the layout of WebDataset.

    Files that follow each other and have one name up to the first dot of its last part are one
    sample: ``cats/7.jpg`` and ``cats/7.seg.png`` make ``{"__key__": "cats/7", "__url__": path,
    "jpg": bytes, "seg.png": bytes}``. Letters stay as they are. Keys are ``path:cats/7``.

    Members that belong to no sample are left out, as in WebDataset, and cut none in two: those
    without a dot in their name or with one at its start (``LICENSE``, ``._7.jpg``), those below or
    called ``__meta__`` or alike, and what is below ``PaxHeaders`` or ``__MACOSX``. The log says so
    once for each reader. ``grouped=False`` gives them all.

    Long names, large and sparse files work, in archives of POSIX (ustar, pax) and GNU. Directories
    are left out. Archives may follow each other in one file, as ``cat`` makes it.

    Args:
        paths: one path or URL, a source of them such as `files`, or any iterable of them.
        grouped: whether files make samples. If not, each is a record: (name, data), whose key is
            ``path:name``.
        compression: ``"infer"`` (from the suffix: .gz, .bz2, .xz, .zst), ``None``, or ``"gzip"``,
            ``"bz2"``, ``"xz"``, ``"zstd"`` or ``"zlib"``. Of ``.tgz``, say it.
        storage_options: what fsspec needs to know about a URL's file system: credentials, say.
        seed: for the generators of the records, and for the order of paths that have no seed;
            ``None`` takes that of a source of paths, or fresh entropy.

    Returns:
        A reader of dicts, or of pairs. Going through it raises `DataLossError` where an archive is
        damaged or ends too early, where a sample has two files with one extension, and at links and
        devices, whose data is not in the archive; and `OSError` for a file that cannot be read. Tar
        has checksums for headers only: against damage within the files, compress the archive.

    Raises:
        InvalidArgumentError: an argument is wrong.
    """
    pieces = _Samples().of if checked_flag(grouped, "grouped") else _files

    def cut(stream: IO[bytes], path: str, mark: Mark) -> Iterator[Records[Any]]:
        return _runs(pieces(members(stream, path, mark or 0), path))

    return Reader(
        "read_tar",
        paths,
        cut,
        ahead=_AHEAD,
        compression=compression,
        storage_options=storage_options,
        seed=seed,
        options={"grouped": grouped},
    )


class _Piece(NamedTuple):
    """A record, and where it is."""

    key: str
    value: Any
    size: int
    offset: int


def _files(found: Iterator[Member | None], path: str) -> Iterator[_Piece]:
    for member in found:
        if member is not None:
            name, data, offset = member
            yield _Piece(name, (name, data), len(data), offset)


class _Samples:
    """What members make together."""

    def __init__(self) -> None:
        self._has_said = False

    def of(self, found: Iterator[Member | None], path: str) -> Iterator[_Piece]:
        """The samples of an archive. One that damage may have cut short is none."""
        piece: _Piece | None = None
        for member in found:
            if member is None:  # the archive ends, and so does its last sample
                if piece is not None:
                    yield piece
                piece = None
                continue
            name, data, offset = member
            if _NO_SAMPLES.match(name):
                self._leave_out(name, path)
                continue
            folder, slash, last = name.rpartition("/")
            stem, _, extension = last.partition(".")
            key = f"{folder}{slash}{stem}"
            if piece is None or piece.key != key:
                if piece is not None:
                    yield piece
                piece = _Piece(key, {"__key__": key, "__url__": path}, 0, offset)
            if extension in piece.value:
                raise DataLossError(
                    f"{path}: sample {key!r} has {extension!r} twice: the second one is {name!r},"
                    f" at {offset}",
                    path=path,
                    offset=offset,
                    fault="duplicate extension",
                )
            piece.value[extension] = data
            piece = piece._replace(size=piece.size + len(data))

    def _leave_out(self, name: str, path: str) -> None:
        if not self._has_said:
            self._has_said = True
            _log.warning(
                "read_tar leaves out members that belong to no sample, such as %r in %s;"
                " grouped=False gives them",
                name,
                path,
            )


def _runs(pieces: Iterator[_Piece]) -> Iterator[Records[Any]]:
    """About a block of records at a time; what was read before damage is sound."""
    run: list[_Piece] = []
    size = 0
    try:
        for piece in pieces:
            run.append(piece)
            size += piece.size
            if size >= _BLOCK:
                yield _records(run)
                run, size = [], 0
    except Exception:
        if run:
            yield _records(run)
        raise
    if run:
        yield _records(run)


def _records(run: list[_Piece]) -> Records[Any]:
    return Records([piece.key for piece in run], [piece.value for piece in run], run[0].offset)
