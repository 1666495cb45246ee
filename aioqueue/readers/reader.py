"""`Reader`: a source of the records in files, with keys that locate each record.

Iterate over a `Reader` with ``for``, or with ``async for``, which reads ahead in a thread. A
*format* cuts one file into runs of records: each run comes from one block of the file. The format
can also begin at the mark of such a run. `Reader` does everything else. `read_records` and
`read_whole_files` are the simplest formats.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, count, islice
from os import SEEK_END
from sys import maxsize
from typing import IO, Any, ClassVar, Final, Generic, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.base.arguments import checked_count, is_int
from aioqueue.base.display_text import on_one_line
from aioqueue.base.hints import hint_methods
from aioqueue.base.public_names import public
from aioqueue.fingerprints.values import described_option
from aioqueue.items.declared_kinds import KindRegistry
from aioqueue.items.item import Entry, PlacedEntry
from aioqueue.items.positions import Place, checked_numbers, misplaced, refusing_wrong_values
from aioqueue.items.quarantine import DamagedFiles, OnDamage, QuarantinePath
from aioqueue.items.quarantined import Quarantined
from aioqueue.readers.braces import names_of
from aioqueue.readers.compression import checked_compression
from aioqueue.readers.files import (
    MAX_RECORD_BYTES,
    FilePath,
    Files,
    StorageOptions,
    checked_limit,
    exceeds,
    forward,
    is_path,
    listing_of,
    open_for_reading,
    path_name,
    paths_of,
    read_up_to,
    times_of,
)
from aioqueue.sources.base import ENTRIES, PLACED, VALUES, Determined, Form, Scan
from aioqueue.sources.kinds.mixture import Interleaved
from aioqueue.sources.kinds.sequences import Sequential
from aioqueue.sources.kinds.source import BuiltinSource, Source
from aioqueue.system.forks import PROCESS, inherited_error

T = TypeVar("T")

Paths: TypeAlias = FilePath | Source[Any] | Iterable[Any]

_BLOCK: Final = 2**16
_RECORD_BITS: Final = 40
_SEQUENCES: Final[Any] = (Sequence, np.ndarray)


Mark: TypeAlias = Place
"""A point within a file where a format can begin; ``None`` is the start of the file."""


class Records(NamedTuple, Generic[T]):
    """Consecutive records of one file."""

    positions: Sequence[int | str] | None
    """Each record's position, such as its line number. ``None`` if a file is one record."""
    values: list[T]
    """The records."""
    mark: Mark = None
    """The mark of the first record. ``None`` for the start of the file, or if the format cannot
    begin anywhere else."""
    end: Mark = None
    """The mark after the last record, if the format knows it without reading these again."""


Format: TypeAlias = Callable[[IO[bytes], str, Mark], Iterator[Records[T]]]
"""Cuts an open file with a path into records, from a mark on."""

FORMATS: Final = KindRegistry(
    "file format",
    ("function", "extra", "suffix", "key", "page"),
    ("aioqueue.readers",),
)
"""The formats that the package reads. `FORMATS.kinds()` lists them."""


class FileFormat(ABC, Generic[T]):
    """A format of files, with the arguments of the user that belong to it.

    Each format of the package is one subclass. Its class attributes have no defaults.
    """

    function: ClassVar[str]
    """The public function that makes its readers."""

    extra: ClassVar[str | None]
    """The extra that it needs; ``None`` if it needs none."""

    suffix: ClassVar[str | None]
    """The usual ending of its files, with the dot; ``None`` without one."""

    key: ClassVar[str | None]
    """What a key has behind the path and a colon; ``None`` if it is the path alone."""

    page: ClassVar[str]
    """The page of the docs that describes it."""

    def __init_subclass__(cls, *, is_kind: bool = True, **options: Any) -> None:
        super().__init_subclass__(**options)
        if is_kind:
            FORMATS.add(cls, FileFormat)

    @property
    @abstractmethod
    def ahead(self) -> int:
        """The number of records that async iteration may read ahead."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Return the options that affect which records there are, or what they are. A reader
        rejects positions of a reader with other options."""

    @abstractmethod
    def limits(self) -> dict[str, Any]:
        """Return those that only decide what counts as damage, such as the longest line."""

    @abstractmethod
    def cut(self, stream: IO[bytes], path: str, mark: Mark) -> Iterator[Records[T]]:
        """Yield the records of an open file, from a mark on.

        Raises:
            DataLossError: the file is damaged; after the records before the damage.
        """

    def offset_of(self, number: int) -> int | None:
        """Return the offset of a record in its file, if its number alone decides it."""
        return None

    def reader(
        self,
        paths: Paths,
        *,
        compression: str | None,
        storage_options: StorageOptions,
        seed: int | None,
        on_error: OnDamage,
        quarantine: QuarantinePath,
    ) -> Reader[T]:
        """Return a reader of files of this format. The arguments are those of `Reader`."""
        return Reader(
            self.function,
            paths,
            self.cut,
            ahead=self.ahead,
            compression=compression,
            storage_options=storage_options,
            seed=seed,
            options=self.options(),
            limits=self.limits(),
            offset_of=self.offset_of,
            on_error=on_error,
            quarantine=quarantine,
        )


class _Block(NamedTuple):
    """Consecutive records of one file, with their indices and places."""

    records: list[Any]
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    """The index of the first record."""
    before: Place
    """The place in the paths just before the file's path."""
    number: int
    """The number of the first record within its file."""
    marked: int
    """The number of the record at the mark, which may be an earlier record."""
    mark: Mark
    end: Mark

    def values(self) -> list[Any]:
        return self.records

    def entries(self) -> list[Entry[Any]]:
        return [Entry(value, self.epoch, at) for at, value in enumerate(self.records, self.index)]

    def placed(self) -> list[PlacedEntry[Any]]:
        """Return the records with places: the place in the paths, the number of the record at the
        mark, the mark, and the number of records taken since."""
        _, _, _, before, number, marked, mark, end = self
        behind = zip(self.entries(), count(number - marked + 1))
        found = [PlacedEntry(entry, (before, marked, mark, taken)) for entry, taken in behind]
        if end is not None:
            # Behind the last record, a resumed run need not read this block again.
            found[-1] = found[-1]._replace(place=(before, number + len(found), end, 0))
        return found


@public("aioqueue.inputs")
class Reader(BuiltinSource[T]):
    """The records in files. Functions such as `read_whole_files` make readers.

    Args:
        name: the name in messages and in the names of workers.
        paths: one path or URL, a source of them, or any iterable of them.
        format: cuts an open file with this path into runs of records, from a mark on.
        ahead: the number of records that async iteration may read ahead.
        compression: ``"infer"`` (from the suffix), ``None``, or the kind of compression.
        storage_options: the options of fsspec.
        seed: the seed of the records' generators, and of the order of paths that have no seed.
        options: the format's options that affect which records there are, or what they are. The
            reader rejects positions of a reader with other options.
        limits: those that only decide what counts as damage, such as the longest line.
        offset_of: returns a record's offset in its file from its number, if the format knows it.
        on_error: what happens at a damaged file: ``"stop"`` raises, ``"skip"`` leaves out the rest.
        quarantine: a file that lists the damaged files that were left out.

    Raises:
        InvalidArgumentError: ``paths`` cannot be iterated, or another argument is wrong.
    """

    _functions = ("Reader.with_keys",)  # the formats say which functions make it
    _extra = None
    _page = "howto/records.md"
    _resumes = "exactly"
    _no_ranks = None

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
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        offset_of: Callable[[int], int | None] | None = None,
        on_error: OnDamage = "stop",
        quarantine: QuarantinePath = None,
    ) -> None:
        checked_compression(compression, "")
        self._damaged = DamagedFiles(on_error, quarantine, name)
        given: Any = [paths] if is_path(paths) else paths
        if not isinstance(given, Iterable):
            raise InvalidArgumentError(
                f"paths: got {paths!r}; expected a path, a source of paths or an iterable of paths"
                " (for an async queue, pass its thread face: queue.sync)"
            )
        if isinstance(given, _SEQUENCES):
            given = [name for path in given for name in names_of(path, "paths")]
            self._paths: Any = Files(given, name)
        else:
            self._paths = given
        super().__init__(name, seed)
        if isinstance(self._paths, Source):
            if seed is None:
                self._seed = self._paths.seed
                self._seed_was_drawn = self._paths._seed_was_drawn
            else:
                self._paths = self._paths._seeded_by(self.seed)
        self._is_repeatable = isinstance(self._paths, Source) and self._paths._is_repeatable
        self._is_consumed = not isinstance(self._paths, Source)
        self._is_endless = isinstance(self._paths, Source) and self._paths._is_endless
        self._given = given
        self._format = format
        self._ahead = ahead
        self._compression = compression
        self._storage_options = storage_options
        self._keyed = False
        self._options = dict(options or {})
        self._limits = dict(limits or {})
        self._gives_batches = self._options.get("batch_size") is not None
        self._offset_of = offset_of
        self._listing: dict[str, Any] | None = None

    def _details(self) -> str:
        paths = self._given
        if isinstance(paths, list | tuple):
            paths = f"{paths[0]!r}" if len(paths) == 1 else f"{len(paths)} paths"
        elif isinstance(paths, Source):
            paths = paths._described()
        return f" from {paths}, seed={self.seed}"

    def __repr__(self) -> str:
        details = self._details()
        if isinstance(self._given, Source):
            details = f" from {self._given!r}, seed={self.seed}"
        return on_one_line(f"<aioqueue.inputs.{self.name}{details}>")

    @property
    def _is_shuffled(self) -> bool:
        return isinstance(self._paths, Source) and self._paths._is_shuffled

    @property
    def _has_own_order(self) -> bool:
        return isinstance(self._paths, Source) and self._paths._has_own_order

    @property
    def _has_drawn_seed(self) -> bool:
        return self._seed_was_drawn or any(part._has_drawn_seed for part in self._inner_sources)

    @property
    def _inner_sources(self) -> list[Source[Any]]:
        return [self._paths] if isinstance(self._paths, Source) else []

    @property
    def quarantine(self) -> list[Quarantined]:
        """The damaged files that were left out so far, each once: ``item`` is the path, ``offset``
        where the damage is. They are those of all runs through this reader. If a quarantine file
        lists them, they are read from it, and memory does not keep them.

        Raises:
            OSError: the quarantine file cannot be read.
            DataLossError: it does not have all of them any more.
        """
        return self._damaged.records()

    def _damaged_files(self) -> list[Quarantined]:
        return [*super()._damaged_files(), *self.quarantine]

    def with_keys(self) -> Reader[tuple[str, T]]:
        """Return a reader of the same records as pairs (key, record), where the key locates it.

        Returns:
            A reader of pairs.
        """
        reader: Any = copy.copy(self)
        reader._keyed = True
        return reader  # type: ignore[no-any-return]

    def interleave(self, files: int, *, block: int = 1) -> Source[T]:
        """Read several files at a time, and take a record from each in turn.

        So the records of files that differ, such as a class or a day each, are mixed before a
        `shuffle`, whose buffer can be small. When a file ends, the next path takes its turn. The
        order depends on the order of the paths alone.

        Args:
            files: how many files are open at a time, >= 1.
            block: how many records are taken from a file in its turn, >= 1.

        Returns:
            A source of the same records, with the same indices and generators.

        Raises:
            InvalidArgumentError: an argument is wrong, or you can iterate over the paths only once.
        """
        self._check_repeatable()
        return Interleaved(
            self, checked_count(files, "files", least=1), checked_count(block, "block", least=1)
        )

    def _scan(self, epoch: int | None, after: Place) -> Scan[T]:
        return _FileScan(self, epoch, after)

    def _check_place(self, place: Place) -> None:
        before, number, mark, taken = place  # only the format knows other marks than offsets
        checked_numbers(number, taken, *([mark] if is_int(mark) else []))
        if before is not None and isinstance(self._paths, Source):
            self._paths._check_place(before)

    def locate(self, index: int) -> str:
        """Return the path of an entry's file, and the record's number in it, from 0."""
        at, number = divmod(index, 1 << _RECORD_BITS)
        path = f"path {at}"
        if isinstance(self._paths, Source):
            paths: Any = self._paths
            is_plain = isinstance(paths, Sequential) and at < len(paths._sequence)
            path = path_name(paths._sequence[at]) if is_plain else paths.locate(at)
        offset = None if self._offset_of is None else self._offset_of(number)
        where = "" if offset is None else f", at byte {offset}"
        return f"{path}, record {number}{where}"

    def fingerprint(self) -> dict[str, Any]:
        """Return what a position must have in common with this reader.

        Raises:
            InvalidArgumentError: the paths are not repeatable.
            OSError: the size of a file cannot be determined.
        """
        self._check_repeatable()
        found = self._paths.fingerprint()  # first, because paths without one may come only once
        if self._listing is None:
            self._listing = listing_of(paths_of(self._paths), self._storage_options)
        own = {} if self.seed == self._paths.seed else {"seed": self.seed}
        options = {name: described_option(value) for name, value in self._options.items()}
        if self._compression != "infer":
            options["compression"] = self._compression
        if self._keyed:
            options["keys"] = True
        return {
            "kind": self.name,
            "options": options,
            "paths": found,
            "files": self._listing,
            **own,
        }

    def _determined(self) -> Determined:
        are_skipped = self._damaged.are_skipped
        options = {"on_error": "skip" if are_skipped else "stop"}
        is_own = (getattr(self._format, "__module__", None) or "").startswith("aioqueue.")
        is_listed = isinstance(self._paths, Sequential)
        return Determined(
            options=options | self._limits if are_skipped else options,
            values={} if is_own else {"format": self._format},
            times=lambda: times_of(paths_of(self._paths), self._storage_options),
            inner=() if is_listed else self._inner_sources,
        )

    def _with_seeds_of(self, fingerprint: Any) -> Self:
        if not isinstance(fingerprint, Mapping) or not isinstance(self._paths, Source):
            return self
        paths = self._paths._with_seeds_of(fingerprint.get("paths"))
        reader = self._with_seed(paths.seed) if self._seed_was_drawn else copy.copy(self)
        reader._paths = paths
        return reader

    def _seeded_by(self, seed: int) -> Self:
        reader = copy.copy(super()._seeded_by(seed))
        if isinstance(self._paths, Source):
            reader._paths = self._paths._seeded_by(reader.seed)
        return reader

    def _ending(self, place: Place) -> Reader[T]:
        if not self._is_endless:
            return self
        reader = copy.copy(self)
        # End with the epoch of the path that is being read, the next path after the place.
        at = self._paths._beginning if place is None or place[0] is None else place[0]
        path = next(self._paths.placed_after(at), None)
        reader._paths = self._paths._ending(at if path is None else path.place)
        reader._is_endless = False
        return reader

    def _entries_by_file(self, rank: Any, rests: Any, parts: Any) -> Any:
        from aioqueue.readers.file_entries import FileEntries

        self._check_repeatable()
        if self._paths.items_per_epoch() is None:
            raise InvalidArgumentError(
                f"by: got 'file' for {self!r}, whose number of files is not known; expected a list"
                " of paths, or files(pattern)"
            )
        return FileEntries(self, rank, rests, parts)

    def _blocks(self, place: Place, paths: Iterable[tuple[Entry[Any], Place]]) -> Iterator[_Block]:
        """Yield the blocks of some files.

        Args:
            place: where to begin in the first one; ``None`` for its beginning.
            paths: their paths, each with the place behind it.
        """
        before, number, mark, taken = (None, 0, None, 0) if place is None else place
        for path, behind in paths:
            yield from self._blocks_of_file(path, before, number, mark, taken)
            # Only the first file is begun within. A place in the next one names the path before.
            before, number, mark, taken = behind, 0, None, 0

    def _blocks_of_file(
        self, path: Entry[Any], before: Place, number: int, mark: Mark, taken: int
    ) -> Iterator[_Block]:
        """Yield the blocks of one file, from a mark on.

        Args:
            path: its path.
            before: the place in the paths just before it.
            number: the number of the record at the mark.
            mark: the mark.
            taken: the number of records to leave out from there.
        """
        name = path_name(path.value)
        process = PROCESS.number
        marked, index = number, path.index << _RECORD_BITS
        try:
            with open_for_reading(name, self._compression, self._storage_options) as stream:
                for positions, values, begin, end in self._cut(stream, name, mark):
                    if begin is not None:
                        marked, mark = number, begin
                    left_out = min(taken, len(values))
                    if left_out:
                        taken -= left_out
                        number += left_out
                        values = values[left_out:]
                        positions = None if positions is None else positions[left_out:]
                    if values:
                        given = _keyed(name, positions, values) if self._keyed else values
                        at = index + number
                        yield _Block(given, path.epoch, at, before, number, marked, mark, end)
                        number += len(values)
                    if PROCESS.number != process:  # the parent shares the offset in the file
                        raise inherited_error(self)
        except DataLossError as error:
            if not self._damaged.are_skipped:
                raise
            self._damaged.add(error, path.epoch, index + number, self.seed)
        if taken:
            raise misplaced(f"{taken} records more than there are in {name}", "none")

    def _cut(self, stream: IO[bytes], name: str, mark: Mark) -> Iterator[Records[Any]]:
        if mark is None:
            return self._format(stream, name, mark)
        with refusing_wrong_values():  # it may come from a stranger's position
            found = self._format(stream, name, mark)
            return chain(tuple(islice(found, 1)), found)

    def _paths_of(
        self, epoch: int | None, place: Place, *, with_places: bool
    ) -> Iterator[tuple[Entry[Any], Place]]:
        """Yield the paths of an epoch, or of a run, behind a place among them."""
        paths = self._paths
        if not isinstance(paths, Source):
            return ((Entry(path, epoch or 0, number), None) for number, path in enumerate(paths))
        if epoch is None:
            return paths.placed_after(paths._beginning if place is None else place)
        if place is None and not with_places:
            # A source of paths may have no places, and may save its state for each.
            return ((entry, None) for entry in paths.epoch_entries(epoch))
        return paths._scan(epoch, place).placed()

    def _check_repeatable(self) -> None:
        if not isinstance(self._paths, Source):
            raise InvalidArgumentError(
                f"paths: got {self._paths!r}, which have no positions; expected a path, a list of"
                " paths or a source of paths"
            )


hint_methods(Reader, "inputs", ("interleave",))


class _FileScan(Scan[T]):
    """A scan of files: it reads block by block, from the last mark before its place.

    In a compressed file, the data before that mark is decompressed and skipped.
    """

    __slots__ = ("_after", "_epoch", "_reader")

    def __init__(self, reader: Reader[T], epoch: int | None, after: Place) -> None:
        self._reader = reader
        self._epoch = epoch
        self._after = after

    def values(self) -> Iterator[T]:
        for block in self._blocks(VALUES):
            yield from block.records

    def entries(self) -> Iterator[Entry[T]]:
        for block in self._blocks(ENTRIES):
            yield from block.entries()

    def placed(self) -> Iterator[PlacedEntry[T]]:
        for block in self._blocks(PLACED):
            yield from block.placed()

    def bursts(self, form: Form) -> Generator[list[Any], None, None]:
        for block in self._blocks(form):
            yield form(block)  # type: ignore[misc]  # those of a block are lists

    def _blocks(self, form: Form) -> Iterator[_Block]:
        with_places = form is PLACED
        if with_places:
            # Refuse before a path is taken: a queue would not get it back.
            self._reader._check_repeatable()
        before = None if self._after is None else self._after[0]
        paths = self._reader._paths_of(self._epoch, before, with_places=with_places)
        yield from self._reader._blocks(self._after, paths)


def _keyed(
    path: str, positions: Sequence[int | str] | None, values: list[T]
) -> list[tuple[str, T]]:
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
    seed: int | None = None,
    on_error: OnDamage = "stop",
    quarantine: QuarantinePath = None,
) -> Reader[bytes]:
    """Read records of a fixed length from binary files.

    Keys are ``path:number``, from 0.

    Args:
        paths: one path or URL, a source of paths such as `files`, or any iterable of paths.
        record_bytes: the length of a record, >= 1.
        header_bytes: the number of bytes to skip at the start of each file.
        footer_bytes: the number of bytes to skip at its end.
        hop_bytes: the distance between the starts of two records, >= 1; ``None`` for
            ``record_bytes``. With a smaller value records overlap, with a larger value there are
            gaps.
        compression: ``"infer"`` (from the suffix: .gz, .bz2, .xz, .zst), ``None``, or ``"gzip"``,
            ``"bz2"``, ``"xz"``, ``"zstd"`` or ``"zlib"``.
        storage_options: what fsspec needs to know about a URL's file system: credentials, say.
        seed: for the generators of the records, and for the order of paths that have no seed;
            ``None`` takes that of a source of paths, or fresh entropy.
        on_error: as for `read_lines`.
        quarantine: as for `read_lines`.

    Returns:
        A reader of bytes (`numpy.frombuffer` makes arrays of them). Iterating over it raises
        `DataLossError` if the last record is incomplete, or if a file is too short for its header
        and footer; and `OSError` if a file cannot be read.

    Raises:
        InvalidArgumentError: an argument is wrong.
    """
    layout = RecordFormat(
        record=checked_count(record_bytes, "record_bytes", least=1),
        header=checked_count(header_bytes, "header_bytes", least=0),
        footer=checked_count(footer_bytes, "footer_bytes", least=0),
        hop=checked_count(record_bytes if hop_bytes is None else hop_bytes, "hop_bytes", least=1),
    )
    return layout.reader(
        paths,
        compression=compression,
        storage_options=storage_options,
        seed=seed,
        on_error=on_error,
        quarantine=quarantine,
    )


def read_whole_files(
    paths: Paths,
    *,
    compression: str | None = "infer",
    max_record_bytes: int | None = MAX_RECORD_BYTES,
    storage_options: StorageOptions = None,
    seed: int | None = None,
    on_error: OnDamage = "stop",
    quarantine: QuarantinePath = None,
) -> Reader[bytes]:
    """Read whole files: each file is one record, and its path is the key.

    Args:
        paths: one path or URL, a source of paths such as `files`, or any iterable of paths.
        compression: ``"infer"`` (from the suffix: .gz, .bz2, .xz, .zst), ``None``, or ``"gzip"``,
            ``"bz2"``, ``"xz"``, ``"zstd"`` or ``"zlib"``.
        max_record_bytes: the largest file, in bytes (decompressed): 256 MiB by default. ``None``
            for no limit.
        storage_options: what fsspec needs to know about a URL's file system: credentials, say.
        seed: for the generators of the records, and for the order of paths that have no seed;
            ``None`` takes that of a source of paths, or fresh entropy.
        on_error: as for `read_lines`.
        quarantine: as for `read_lines`.

    Returns:
        A reader of bytes. Iterating over it raises `DataLossError` if compressed data is damaged or
        a file is too large, and `OSError` if a file cannot be read.

    Raises:
        InvalidArgumentError: an argument is wrong.
    """
    return WholeFileFormat(checked_limit(max_record_bytes, "max_record_bytes")).reader(
        paths,
        compression=compression,
        storage_options=storage_options,
        seed=seed,
        on_error=on_error,
        quarantine=quarantine,
    )


@dataclass(frozen=True)
class WholeFileFormat(FileFormat[bytes]):
    """Files that are one record each."""

    function = "read_whole_files"
    extra: ClassVar[str | None] = None
    suffix: ClassVar[str | None] = None
    key: ClassVar[str | None] = None
    page = "howto/records.md"

    most: int | None
    """The largest file, in bytes; ``None`` for no limit."""

    ahead = 8

    def options(self) -> dict[str, Any]:
        return {}

    def limits(self) -> dict[str, Any]:
        return {"max_record_bytes": self.most}

    def cut(self, stream: IO[bytes], path: str, mark: Mark) -> Iterator[Records[bytes]]:
        if mark is None:
            yield Records(None, [_whole(stream, path, self.most)], end="end")


def _whole(stream: IO[bytes], path: str, most: int | None) -> bytes:
    """Read a file to its end.

    Raises:
        DataLossError: it has more than ``most`` bytes.
    """
    if stream.seekable():
        size = stream.seek(0, SEEK_END)
        stream.seek(0)
        data = stream.read() if most is None or size <= most else b""
    else:  # compressed, or a pipe: nothing says how long it is
        data = read_up_to(stream, maxsize if most is None else most + 1)
        size = len(data)
    if most is not None and size > most:
        raise DataLossError(
            path=path, offset=0, fault=exceeds("the file", "max_record_bytes", most)
        )
    return data


@dataclass(frozen=True)
class RecordFormat(FileFormat[bytes]):
    """Files of records of a fixed length. All fields are in bytes."""

    function = "read_records"
    extra: ClassVar[str | None] = None
    suffix: ClassVar[str | None] = None
    key: ClassVar[str | None] = "number"
    page = "howto/records.md"

    record: int
    header: int
    footer: int
    hop: int
    """The distance between the starts of two records."""

    @property
    def ahead(self) -> int:
        return max(8, min(4096, 2**22 // self.record))

    def options(self) -> dict[str, Any]:
        return asdict(self)

    def limits(self) -> dict[str, Any]:
        return {}

    def offset_of(self, number: int) -> int:
        return self.header + number * self.hop

    def cut(self, stream: IO[bytes], path: str, mark: Mark) -> Iterator[Records[bytes]]:
        """Yield the records from the one whose number is the mark."""
        record, header, footer, hop = self.record, self.header, self.footer, self.hop
        if len(read_up_to(stream, header)) < header:
            raise DataLossError(path=path, offset=0, fault="truncated header")
        # Count offsets from the end of the header: `data` begins at `base`.
        number = mark or 0
        base, data = number * hop, b""
        if number:
            forward(stream, header + base, path)
        while more := read_up_to(stream, max(_BLOCK, record)):
            data += more
            start = number * hop - base  # after the data, if there is a wide gap
            # Only the end of the file shows where the footer is, so hold back as many bytes.
            count = max(0, (len(data) - footer - record - start) // hop + 1)
            if count:
                starts = range(start, start + count * hop, hop)
                values = [data[begin : begin + record] for begin in starts]
                yield Records(range(number, number + count), values, number)
                number += count
            done = min(number * hop - base, len(data))
            base, data = base + done, data[done:]
        end = base + len(data) - footer
        # Nothing need follow the bytes of the last record, nor the gap after it.
        covered = max((number - 1) * hop + record, number * hop) if number else 0
        if end < 0:
            raise DataLossError(path=path, offset=header, fault="truncated footer")
        if end > covered:
            raise DataLossError(path=path, offset=header + number * hop, fault="truncated record")
