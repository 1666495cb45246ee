"""Readers: the records in files, one after another, with the keys that say where each was.

A `Reader` is a `Source`: go through it with ``for``, or with ``async for``, which reads ahead on a
thread. What a *format* knows is how to cut one file into records, a run of them at a time: those
that one block of the file has given. All else is here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import IO, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.checks import checked_count
from aioqueue.inputs.readers.compression import checked_compression
from aioqueue.inputs.readers.files import (
    FilePath,
    StorageOptions,
    is_path,
    open_for_reading,
    path_name,
    read_up_to,
)
from aioqueue.inputs.sources.base import Entry, Source

__all__ = (
    "Paths",
    "Reader",
    "Records",
    "read_records",
    "read_whole_files",
)

T = TypeVar("T")

Paths: TypeAlias = FilePath | Source[Any] | Iterable[Any]

_BLOCK: Final = 2**16
_RECORD_BITS: Final = 40


class Records(NamedTuple, Generic[T]):
    """Records of one file that follow each other."""

    positions: Sequence[int] | None
    """Where each was: the number of its line, say. ``None`` for a file that is one record."""
    values: list[T]
    """The records."""


Format: TypeAlias = Callable[[IO[bytes], str], Iterator[Records[T]]]


class Reader(Source[T]):
    """The records in files. Functions like `read_whole_files` make them.

    Args:
        name: what messages and worker names call it.
        paths: one path or URL, a source of them, or any iterable of them.
        format: cuts an open file, whose path it is told, into runs of records.
        ahead: how many records async iteration may read ahead.
        compression: ``"infer"`` (from the suffix), ``None``, or what files are compressed with.
        storage_options: for fsspec.

    Raises:
        InvalidArgumentError: ``paths`` cannot be iterated, or the compression is unknown.
    """

    blocking = True

    def __init__(
        self,
        name: str,
        paths: Paths,
        format: Format[T],
        *,
        ahead: int,
        compression: str | None,
        storage_options: StorageOptions,
    ) -> None:
        super().__init__(name, paths.seed if isinstance(paths, Source) else None)
        checked_compression(compression, "")
        self._paths: Any = [paths] if is_path(paths) else paths
        if not isinstance(self._paths, Iterable):
            raise InvalidArgumentError(
                f"paths: got {paths!r}; expected a path, a source of paths or an iterable of them"
                " (of an async queue, its thread face: queue.sync)"
            )
        self._format = format
        self._ahead = ahead
        self._compression = compression
        self._storage_options = storage_options
        self._keyed = False

    def __repr__(self) -> str:
        paths = self._paths
        if isinstance(paths, list | tuple):
            paths = f"{paths[0]!r}" if len(paths) == 1 else f"{len(paths)} paths"
        return f"<aioqueue.inputs.{self.name} from {paths}, seed={self.seed}>"

    def with_keys(self) -> Reader[tuple[str, T]]:
        """The same records, each as (key, record), where the key says which record it is.

        Returns:
            A reader of pairs.
        """
        reader: Any = copy.copy(self)
        reader._keyed = True
        return reader  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[T]:
        for _, _, values in self._runs(self._path_entries()):
            yield from values

    def entries(self) -> Iterator[Entry[T]]:
        """One run through the files: records, with the epoch of their path.

        The index of a record is that of its path times 2**40, plus its number within the file.
        """
        for burst in self._entry_bursts():
            yield from burst

    def _bursts(self) -> Generator[list[T], None, None]:
        for _, _, values in self._runs(self._path_entries()):
            yield values

    def _entry_bursts(self) -> Generator[list[Entry[T]], None, None]:
        for epoch, first, values in self._runs(self._path_entries()):
            yield [Entry(value, epoch, index) for index, value in enumerate(values, first)]

    def epoch_entries(self, epoch: int) -> Iterator[Entry[T]]:
        """The records of one epoch of the paths, as `entries`."""
        paths = self._paths
        if isinstance(paths, Source):
            found = paths.epoch_entries(epoch)
        else:
            found = (Entry(path, epoch, number) for number, path in enumerate(paths))
        for _, first, values in self._runs(found):
            for index, value in enumerate(values, first):
                yield Entry(value, epoch, index)

    def _runs(self, paths: Iterator[Entry[Any]]) -> Iterator[tuple[int, int, list[Any]]]:
        """All runs of files: epoch, index of the first record, and the records."""
        for path, epoch, number in paths:
            name = path_name(path)
            index = number << _RECORD_BITS
            with open_for_reading(name, self._compression, self._storage_options) as stream:
                for positions, values in self._format(stream, name):
                    yield epoch, index, _keyed(name, positions, values) if self._keyed else values
                    index += len(values)

    def _path_entries(self) -> Iterator[Entry[Any]]:
        if isinstance(self._paths, Source):
            return self._paths.entries()
        return (Entry(path, 0, number) for number, path in enumerate(self._paths))


def _keyed(path: str, positions: Sequence[int] | None, values: list[T]) -> list[tuple[str, T]]:
    if positions is None:
        return [(path, value) for value in values]
    pairs = zip(positions, values, strict=True)
    return [(f"{path}:{position}", value) for position, value in pairs]


def read_records(
    paths: Paths,
    record_bytes: int,
    *,
    header_bytes: int = 0,
    footer_bytes: int = 0,
    hop_bytes: int | None = None,
    compression: str | None = "infer",
    storage_options: StorageOptions = None,
) -> Reader[bytes]:
    """Records of a fixed length, from binary files.

    Keys are ``path:number``, from 0.

    Args:
        paths: one path or URL, a source of them such as `files`, or any iterable of them.
        record_bytes: how long a record is, >= 1.
        header_bytes: how much to leave out at the start of each file.
        footer_bytes: how much to leave out at its end.
        hop_bytes: from the start of one record to that of the next, >= 1; ``None`` for
            ``record_bytes``. Less makes records overlap, more leaves gaps.
        compression: ``"infer"`` (from the suffix: .gz, .bz2, .xz, .zst), ``None``, or ``"gzip"``,
            ``"bz2"``, ``"xz"``, ``"zstd"`` or ``"zlib"``.
        storage_options: what fsspec needs to know about a URL's file system: credentials, say.

    Returns:
        A reader of bytes (`numpy.frombuffer` makes arrays of them). Going through it raises
        `DataLossError` at a last record that is not complete, and where a file is too short for its
        header and footer; and `OSError` for a file that cannot be read.

    Raises:
        InvalidArgumentError: an argument is wrong.
    """
    layout = _Layout(
        record=checked_count(record_bytes, "record_bytes", least=1),
        header=checked_count(header_bytes, "header_bytes", least=0),
        footer=checked_count(footer_bytes, "footer_bytes", least=0),
        hop=checked_count(record_bytes if hop_bytes is None else hop_bytes, "hop_bytes", least=1),
    )
    return Reader(
        "read_records",
        paths,
        layout.runs,
        ahead=max(8, min(4096, 2**22 // layout.record)),
        compression=compression,
        storage_options=storage_options,
    )


def read_whole_files(
    paths: Paths, *, compression: str | None = "infer", storage_options: StorageOptions = None
) -> Reader[bytes]:
    """The contents of files, each as one record, whose key is the path.

    Args:
        paths: one path or URL, a source of them such as `files`, or any iterable of them.
        compression: ``"infer"`` (from the suffix: .gz, .bz2, .xz, .zst), ``None``, or ``"gzip"``,
            ``"bz2"``, ``"xz"``, ``"zstd"`` or ``"zlib"``.
        storage_options: what fsspec needs to know about a URL's file system: credentials, say.

    Returns:
        A reader of bytes. Going through it raises `DataLossError` where compressed data is damaged,
        and `OSError` for a file that cannot be read.

    Raises:
        InvalidArgumentError: an argument is wrong.
    """

    def cut(stream: IO[bytes], path: str) -> Iterator[Records[bytes]]:
        yield Records(None, [stream.read()])

    return Reader(
        "read_whole_files",
        paths,
        cut,
        ahead=8,
        compression=compression,
        storage_options=storage_options,
    )


class _Layout(NamedTuple):
    """Where records of a fixed length are in a file, in bytes."""

    record: int
    header: int
    footer: int
    hop: int

    def runs(self, stream: IO[bytes], path: str) -> Iterator[Records[bytes]]:
        """The records of an open file."""
        record, header, footer, hop = self
        if len(read_up_to(stream, header)) < header:
            raise DataLossError(path=path, offset=0, fault="truncated header")
        # Offsets are counted from the end of the header: `data` is what stands from `base` on.
        number, base, data = 0, 0, b""
        while more := read_up_to(stream, max(_BLOCK, record)):
            data += more
            start = number * hop - base  # beyond the data, if there is a wide gap
            # The footer is known by nothing but the end of the file: so many bytes stay back.
            count = max(0, (len(data) - footer - record - start) // hop + 1)
            if count:
                starts = range(start, start + count * hop, hop)
                values = [data[begin : begin + record] for begin in starts]
                yield Records(range(number, number + count), values)
                number += count
            done = min(number * hop - base, len(data))
            base, data = base + done, data[done:]
        end = base + len(data) - footer
        # What the last record covers, and the gap after it, need not be followed by another one.
        covered = max((number - 1) * hop + record, number * hop) if number else 0
        if end < 0:
            raise DataLossError(path=path, offset=header, fault="truncated footer")
        if end > covered:
            raise DataLossError(path=path, offset=header + number * hop, fault="truncated record")
