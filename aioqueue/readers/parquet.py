"""`read_parquet` and `read_arrow`: rows of Parquet and Arrow files, or batches of them.

pyarrow decodes the files. Both formats consist of portions (row groups; record batches), which are
read one after another, so that memory is bounded by one portion. A mark has three numbers: the
portion, the row within it, and the row within the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import isinf
from os import SEEK_END
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Self

import numpy as np

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.base.arguments import checked_count, is_int
from aioqueue.base.extras import required
from aioqueue.items.positions import misplaced
from aioqueue.items.quarantine import OnDamage, QuarantinePath
from aioqueue.pipeline.batches.arrow import array_of, time_scalar, values_of
from aioqueue.readers.arrow_selection import (
    FileSelection,
    Portion,
    Selection,
    beginning_at,
    of_size,
)
from aioqueue.readers.files import StorageOptions, open_for_reading, paths_of
from aioqueue.readers.reader import FileFormat, Mark, Paths, Reader, Records

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROWS: Final = 1024
"""The number of rows to convert at a time."""
_FILTERED_ROWS: Final = 2**16
"""The number of rows to filter at a time, by few columns, where most row groups have none."""
_AHEAD_ROWS: Final = 2048
_AHEAD_BATCHES: Final = 4
_END_MARK: Final = b"\xff\xff\xff\xff\0\0\0\0"
_OLD_END_MARK: Final = bytes(4)
"""The first bytes of streams before Arrow 0.15, which some programs still write."""


def read_parquet(
    paths: Paths,
    columns: Sequence[str] | None = None,
    *,
    batch_size: int | None = None,
    fill_null: Mapping[str, Any] | None = None,
    schema: Any = None,
    filters: Any = None,
    partitioning: Literal["hive"] | None = None,
    storage_options: StorageOptions = None,
    seed: int | None = None,
    on_error: OnDamage = "stop",
    quarantine: QuarantinePath = None,
) -> Reader[dict[str, Any]]:
    """Read the rows of Parquet files, as dicts by column name. Needs the extra ``parquet``.

    Keys are ``path:number``, with the row's number from 0; for a batch, that of its first row.

    | column | in a row | in a batch of n rows |
    |---|---|---|
    | ints, floats, bools | NumPy scalar | array, shape (n,) |
    | timestamps (with a zone: in UTC), dates | `numpy.datetime64` | array, shape (n,) |
    | times of day, durations | `numpy.timedelta64` | array, shape (n,) |
    | lists of a fixed size k of these | array, shape (k,) | array, shape (n, k) |
    | lists of varying length of these | array, shape (length,) | array of arrays |
    | strings, binary | str, bytes | array of objects |
    | structs | dict | array of dicts |
    | other lists | list | array of lists |
    | decimals, maps and others | what pyarrow makes of it | array of objects |

    Timestamps of 96 bits, as Spark and Impala write them, are in nanoseconds. In a file where some
    are before 1678 or after 2261, all of them are in microseconds, and fractions of these are
    refused.

    Columns stored as a dictionary, and extension types, yield the values that they represent.
    Tensors of a fixed shape keep their shape. A null is ``None``, or NaT in a batch of times. If an
    array of numbers would hold a null, `InvalidArgumentError` asks for ``fill_null``. (To fill a
    null among lists of a fixed size, you need pyarrow 26.) All arrays are private and writable.

    Row groups are read one after another. Memory holds one of them, compressed, and a batch.

    Args:
        paths: one path or URL, a source of paths such as `files`, or any iterable of paths.
        columns: the names of the columns to read, in this order; ``None`` for all.
        batch_size: the number of rows to yield at a time, as a dict of arrays, >= 1. The last batch
            of each file may be smaller. ``None`` yields single rows.
        fill_null: the values that replace nulls, by column. The column must be able to hold the
            value unchanged. For times use NumPy's, as in rows, or those of `datetime`.
        schema: the schema of all files. ``None``: each file has its own, and must have all
            ``columns``. A ``pyarrow.Schema``: its columns, converted to its types; a column that a
            file lacks is null. ``"union"``: the columns of all files, with types that can hold
            them all, such as int64 for int32 and int64; before the first row, the footers of all
            files are read. A value that a type cannot hold is an error: a time for a date, say, or
            a fraction of a second for seconds. Only floats are rounded, to smaller floats.
        filters: which rows to read: a list of conditions that all must hold, such as
            ``[("year", ">=", 2024), ("label", "in", [1, 2])]``; a list of such lists, and one of
            them must hold; or an expression of ``pyarrow.dataset``. No comparison with a null
            holds. Of each row group, the columns that the filter needs are read first, and the
            others only if a row fits. (Its statistics are not used: in a damaged footer, they may
            end the process.) Keys keep the numbers of the rows in the file.
        partitioning: ``"hive"`` adds a column for each folder of the path that is named
            ``column=value``: ints if all values are, else strings. It hides a column of that name
            in the file.
        storage_options: the options of fsspec for a URL's file system, such as credentials.
        seed: the seed of the records' generators, and of the order of paths that have no seed;
            ``None`` takes the seed of a source of paths, or fresh entropy.
        on_error: as for `read_lines`.
        quarantine: as for `read_lines`.

    Returns:
        A reader of dicts. Iterating over it raises `DataLossError` if a file is damaged, as far as
        checksums or the decoder show it; the offset is that of the row group. It raises
        `InvalidArgumentError` if a file lacks a column, does not fit the schema or the filter, or
        has structs with two fields of one name, and `OSError` if a file cannot be read.

    Raises:
        InvalidArgumentError: any argument is not as described.
        ModuleNotFoundError: pyarrow is not installed.
    """
    pa = required("pyarrow", "parquet", "reading Parquet files")
    required("pyarrow.compute", "parquet", "reading Parquet files")
    parquet = required("pyarrow.parquet", "parquet", "reading Parquet files")
    table = ParquetFormat.checked(
        pa, parquet, columns, batch_size, fill_null, schema, filters, partitioning
    )
    return table.bound_reader(paths, storage_options, seed, on_error, quarantine)


def read_arrow(
    paths: Paths,
    columns: Sequence[str] | None = None,
    *,
    batch_size: int | None = None,
    fill_null: Mapping[str, Any] | None = None,
    schema: Any = None,
    filters: Any = None,
    partitioning: Literal["hive"] | None = None,
    storage_options: StorageOptions = None,
    seed: int | None = None,
    on_error: OnDamage = "stop",
    quarantine: QuarantinePath = None,
) -> Reader[dict[str, Any]]:
    """Read the rows of Arrow files (IPC files and streams, Feather). Needs the extra ``parquet``.

    It works like `read_parquet`, with record batches instead of row groups. These files have no
    checksums: the reader checks that they are complete and well-formed, but cannot check the
    values. Data after the end of a stream, such as another stream, counts as damage, because it
    would not be read.

    Args:
        paths: as for `read_parquet`; so are the rest.
        columns: the names of the columns to read, in this order; ``None`` for all.
        batch_size: the number of rows to yield at a time, as a dict of arrays; ``None`` yields
            single rows.
        fill_null: the values that replace nulls, by column.
        schema: the schema of all files.
        filters: which rows to read.
        partitioning: ``"hive"`` adds columns from the path.
        storage_options: the options of fsspec.
        seed: as for `read_parquet`.
        on_error: as for `read_lines`.
        quarantine: as for `read_lines`.

    Returns:
        A reader of dicts.

    Raises:
        InvalidArgumentError: any argument is not as described.
        ModuleNotFoundError: pyarrow is not installed.
    """
    pa = required("pyarrow", "parquet", "reading Arrow files")
    required("pyarrow.compute", "parquet", "reading Arrow files")
    ipc = required("pyarrow.ipc", "parquet", "reading Arrow files")
    table = ArrowFormat.checked(
        pa, ipc, columns, batch_size, fill_null, schema, filters, partitioning
    )
    return table.bound_reader(paths, storage_options, seed, on_error, quarantine)


class _Bounded:
    """A file that never reads more than its size, because a damaged file may ask for any size."""

    closed = False
    first_read: int | None = None
    """The lowest offset read since a row group was begun."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.size = stream.seek(0, SEEK_END)
        self._stream = stream
        self.tell = stream.tell
        self.seek(0)

    def seek(self, offset: int, whence: int = 0) -> int:
        if offset < 0 and not whence:
            raise OSError(f"no offset: {offset}")  # without an errno: the system has not failed
        return self._stream.seek(offset, whence)

    def read(self, size: int | None = None) -> bytes:
        offset = self.tell()
        if self.first_read is None or offset < self.first_read:
            self.first_read = offset
        left = max(0, self.size - offset)
        return self._stream.read(left if size is None or size < 0 else min(size, left))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


class _ParquetFile:
    """An open Parquet file.

    Of the metadata, only the numbers of rows and row groups are asked for, and the schema of Arrow.
    Others (`column(i)`, its statistics and its compression, and what a fragment of a dataset finds
    by them) end the process on some damage, because pyarrow expects no exceptions of C++ there.
    `proofs.parquet_footers` lists which accessors do. What else is needed, the data say.
    """

    _old_times: _OldTimes | None = None

    def __init__(self, pa: Any, parquet: Any, stream: IO[bytes], path: str) -> None:
        self._pa = pa
        self._path = path
        bounded = _Bounded(stream)
        self._size = bounded.size
        with _reporting_damage(pa, path, self._size, "no Parquet file"):
            options: dict[str, Any] = {"page_checksum_verification": True}
            self._file = parquet.ParquetFile(bounded, **options)
            old_times = _old_times_in(pa, parquet, bounded, self._file)
            if old_times:
                self._old_times = _OldTimes.of(pa, parquet, bounded, old_times)
                options["coerce_int96_timestamp_unit"] = self._old_times.unit
                self._file = parquet.ParquetFile(bounded, **options)
            self._groups = self._file.metadata
            self.schema: Any = self._file.schema_arrow
        self._bounded = bounded
        self._check_rows()

    def _check_rows(self) -> None:
        """Compare the numbers of rows: a damaged footer, which has no checksum, could hide rows."""
        groups = range(self.count)
        rows = sum(self._groups.row_group(group).num_rows for group in groups)
        if rows != self._groups.num_rows:
            fault = (
                f"damaged footer: {self._groups.num_rows} rows in the file, {rows} in its row"
                " groups"
            )
            raise DataLossError(path=self._path, offset=self._size, fault=fault)

    @property
    def count(self) -> int:
        """The number of row groups."""
        return int(self._groups.num_row_groups)

    def portions(
        self, number: int, first: int, chosen: FileSelection, size: int
    ) -> Iterator[Portion]:
        """Yield the rows from a row group on, ``size`` at a time; ``first`` is its first row."""
        if self._old_times is not None:
            self._old_times.check(chosen.stored, self._path)
        of_filter = chosen.of_filter()
        for group in range(number, self.count):
            if of_filter is not None and not self._may_have_rows(group, of_filter):
                # The rows that are not read count, too: keys and marks are numbers in the file.
                first += int(self._groups.row_group(group).num_rows)
                continue
            row = 0
            for rows in self._batches(group, chosen.stored, size):
                yield Portion(group, row, first, rows, self._offset())
                row += rows.num_rows
                first += rows.num_rows

    def _may_have_rows(self, group: int, of_filter: FileSelection) -> bool:
        """Return whether a row of a row group may fit a filter, by the columns that it needs.

        The statistics in the footer may end the process: see above.
        """
        try:
            return any(
                of_filter.kept(of_filter.conformed(rows))[0].num_rows
                for rows in self._batches(group, of_filter.stored, _FILTERED_ROWS)
            )
        except (DataLossError, InvalidArgumentError, self._pa.ArrowException):
            return True  # reading all columns shows what is wrong, and the rows before that

    def _offset(self) -> int:
        """Return the offset of the row group that is being read; else, of the end of the file.

        The footer has it, too, but what tells it there may end the process.
        """
        first_read = self._bounded.first_read
        return self._size if first_read is None else first_read

    def _batches(self, group: int, columns: list[str], size: int) -> Iterator[Any]:
        # Some damage makes pyarrow end early, without an error. So count the rows.
        left = self._groups.row_group(group).num_rows
        fault = f"damaged row group {group}"
        self._bounded.first_read = None
        with _reporting_damage(self._pa, self._path, self._offset, fault):
            batches = self._file.iter_batches(size, row_groups=[group], columns=columns)
        while True:
            with _reporting_damage(self._pa, self._path, self._offset, fault):
                rows = next(batches, None)
                if rows is None:
                    break
            left -= rows.num_rows
            yield rows
        if left:
            fault = f"{fault}: {left} rows are missing"
            raise DataLossError(path=self._path, offset=self._offset(), fault=fault)


def _old_times_in(pa: Any, parquet: Any, stream: Any, file: Any) -> list[str]:
    """Return the columns that have timestamps of 96 bits, as Spark and Impala write them.

    What the metadata says of a column's physical type may end the process. Asking for another unit
    changes the types of just these columns.
    """
    found = file.schema_arrow
    if not any(_has_nanoseconds(pa, type) for type in found.types):
        return []
    option = {"metadata": file.metadata, "coerce_int96_timestamp_unit": "us"}
    other = parquet.ParquetFile(stream, **option).schema_arrow
    return [one.name for one, another in zip(found, other, strict=True) if one.type != another.type]


def _has_nanoseconds(pa: Any, type: Any) -> bool:
    """Return whether timestamps of 96 bits may be in a column of this type."""
    if pa.types.is_timestamp(type):
        return bool(type.unit == "ns")
    return any(_has_nanoseconds(pa, type.field(at).type) for at in range(type.num_fields))


class _OldTimes(NamedTuple):
    """In which unit the timestamps of 96 bits in a file have a place in 64."""

    unit: str
    refused: Mapping[str, int]
    """The columns that have fractions of the unit, and a row at which or behind which one is."""

    @classmethod
    def of(cls, pa: Any, parquet: Any, stream: Any, names: list[str]) -> _OldTimes:
        """Look at all of them, in the columns of these paths.

        In nanoseconds they reach from 1677 to 2262, and pyarrow would wrap others. In microseconds
        it would cut fractions off. Only reading them in both units shows which of them fit.
        """
        readers = [
            parquet.ParquetFile(stream, coerce_int96_timestamp_unit=unit).iter_batches(
                _ROWS, columns=names
            )
            for unit in ("ns", "us")
        ]
        are_far, fine, row = False, dict[str, int](), 0
        with suppress(pa.ArrowException, OSError):  # reading the rows says what is damaged
            for batches in zip(*readers, strict=True):
                for name, *pair in zip(batches[0].schema.names, *batches, strict=True):
                    for exact, rough in _instants(pa, *pair):
                        # What a number has lost by wrapping, the difference has lost, too.
                        rest = exact - rough * 1000
                        are_far |= bool(np.any(rough != (exact - rest) // 1000))
                        if rest.any():
                            fine.setdefault(name, row)
                row += batches[0].num_rows
        return cls("us", fine) if are_far else cls("ns", {})

    def check(self, columns: Sequence[str], path: str) -> None:
        """Check that no fractions are lost.

        Raises:
            InvalidArgumentError: some would be.
        """
        for name in columns:
            if name in self.refused:
                raise InvalidArgumentError(
                    f"columns: got {name!r} of {path}, which has fractions of microseconds in row"
                    f" {self.refused[name]} or later, while the file also has timestamps before"
                    " 1678 or after 2261, which are read in microseconds; expected other columns"
                )


def _instants(
    pa: Any, exact: Any, rough: Any
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the timestamps of a column in two units, also those in lists and structs.

    Timestamps of 64 bits, which may be beside them in a struct, have one type in both.
    """
    pending = [(exact, rough)]
    while pending:
        pair = pending.pop()
        if pair[0].type.equals(pair[1].type):
            continue
        if pa.types.is_struct(pair[0].type):
            pending += zip(*(one.flatten() for one in pair), strict=True)
        elif pa.types.is_timestamp(pair[0].type):
            found = [one.drop_null().cast(pa.int64()).to_numpy() for one in pair]
            yield found[0], found[1]
        elif pa.types.is_map(pair[0].type):
            pending += [(pair[0].items, pair[1].items), (pair[0].keys, pair[1].keys)]
        else:
            pending.append((pair[0].flatten(), pair[1].flatten()))


class _ArrowFile:
    """An open Arrow file, of either format."""

    def __init__(self, pa: Any, ipc: Any, stream: IO[bytes], path: str) -> None:
        self._pa = pa
        self._path = path
        self._stream = stream
        is_file = stream.read(6) == b"ARROW1"
        bounded = _Bounded(stream)
        self._size = bounded.size
        with _reporting_damage(pa, path, self._size if is_file else 0, "no Arrow file"):
            self._file = ipc.open_file(bounded) if is_file else None
            self._reader = self._file or ipc.open_stream(bounded)
            self.schema: Any = self._reader.schema

    @property
    def count(self) -> int | None:
        """The number of record batches; ``None`` if only the end will show it."""
        return None if self._file is None else int(self._file.num_record_batches)

    def portions(
        self, number: int, first: int, chosen: FileSelection, size: int
    ) -> Iterator[Portion]:
        """Yield the rows from a record batch on, ``size`` at a time; ``first`` is its first row."""
        # Only the file format has an index of the batches; the stream format has none.
        batches = islice(self._batches(0), number, None) if self._file is None else None
        for at, (offset, batch) in enumerate(batches or self._batches(number), number):
            stored = batch.select(chosen.stored)
            for row in range(0, batch.num_rows, size):
                yield Portion(at, row, first + row, stored.slice(row, size), offset)
            first += batch.num_rows

    def _batches(self, at: int) -> Iterator[tuple[int, Any]]:
        """Yield record batches, each with its offset."""
        offset = self._stream.tell()
        while self.count is None or at < self.count:
            with _reporting_damage(self._pa, self._path, offset, f"damaged record batch {at}"):
                try:
                    batch = (
                        self._reader.read_next_batch()
                        if self._file is None
                        else self._file.get_batch(at)
                    )
                except StopIteration:
                    break
                batch.validate(full=True)  # pyarrow would follow invalid offsets
            yield offset, batch
            at += 1
            offset = self._stream.tell()
        if self._file is None:
            self._check_end(offset)

    def _check_end(self, offset: int) -> None:
        """Check the end mark of a stream, which pyarrow does not need, and that nothing follows.

        Args:
            offset: the offset after the last record batch.
        """
        end = self._stream.tell()
        begin = max(offset, end - len(_END_MARK))
        self._stream.seek(begin)
        if self._stream.read(end - begin) not in (_END_MARK, _OLD_END_MARK):
            fault = "truncated stream: no end mark"
            raise DataLossError(path=self._path, offset=end, fault=fault)
        if end < self._size:
            # It may be another stream, appended with `cat`, and have other columns.
            fault = f"{self._size - end} bytes of data behind the end mark of the stream"
            raise DataLossError(path=self._path, offset=end, fault=fault)


@dataclass(frozen=True)
class _TableFormat(FileFormat[dict[str, Any]], is_kind=False):
    """Files of tables, which pyarrow decodes. A mark is that of a `Portion`."""

    extra: ClassVar[str | None] = "parquet"
    key: ClassVar[str | None] = "row"
    page = "howto/records.md"

    open_file: ClassVar[type[_ParquetFile | _ArrowFile]]
    """Reads what an open file says of itself."""

    pa: Any
    library: Any
    """The module of pyarrow for this format."""
    selection: Selection
    size: int | None
    """The number of rows of a batch; ``None`` for single rows."""
    fill: dict[str, Any]
    """What replaces nulls, by column."""

    @classmethod
    def checked(
        cls,
        pa: Any,
        library: Any,
        columns: Any,
        batch_size: Any,
        fill_null: Any,
        schema: Any,
        filters: Any,
        partitioning: Any,
    ) -> Self:
        """Check the arguments of the user.

        Raises:
            InvalidArgumentError: any argument is not as described.
        """
        chosen = None if columns is None else _checked_names(columns)
        size = None if batch_size is None else checked_count(batch_size, "batch_size", least=1)
        fill = {} if fill_null is None else fill_null
        if not isinstance(fill, Mapping) or not all(
            isinstance(name, str) and value is not None for name, value in fill.items()
        ):
            raise InvalidArgumentError(
                f"fill_null: got {fill_null!r}; expected a dict of values by column, or None"
            )
        selection = Selection(pa, chosen, schema, filters, partitioning)
        return cls(pa, library, selection, size, dict(fill))

    @property
    def ahead(self) -> int:
        return _AHEAD_ROWS if self.size is None else _AHEAD_BATCHES

    def options(self) -> dict[str, Any]:
        filters = self.selection.filter
        return {
            "batch_size": self.size,
            "filters": None if filters is None else str(filters),
            **self.selection.options(),
            "fill_null": self.fill,
        }

    def limits(self) -> dict[str, Any]:
        return {}

    def bound_reader(
        self,
        paths: Paths,
        storage_options: StorageOptions,
        seed: int | None,
        on_error: OnDamage,
        quarantine: QuarantinePath,
    ) -> Reader[dict[str, Any]]:
        """Return a reader, and tell the selection which files it reads: their schemas decide which
        columns there are."""

        # The selection keeps this function, so that must not keep the format, which has the
        # selection, or the reader, which has the format: they would be a circle.
        open_file = partial(self.open_file, self.pa, self.library)

        def schema_of(path: str) -> Any:
            with open_for_reading(path, None, storage_options) as stream:
                return open_file(stream, path).schema

        found = self.reader(
            paths,
            compression=None,
            storage_options=storage_options,
            seed=seed,
            on_error=on_error,
            quarantine=quarantine,
        )
        known = found._paths
        self.selection.bind(lambda: paths_of(known), schema_of)
        return found

    def cut(self, stream: IO[bytes], path: str, mark: Mark) -> Iterator[Records[Any]]:
        return self._runs(self.open_file(self.pa, self.library, stream, path), path, mark)

    def _runs(
        self, file: _ParquetFile | _ArrowFile, path: str, mark: Mark
    ) -> Iterator[Records[Any]]:
        """Yield the records of an open file, from a portion and a row within it on."""
        number, row, first = mark or (0, 0, 0)
        if file.count is not None and number > file.count:
            raise misplaced(f"portion {number} of {path}", f"at most {file.count}")
        chosen = self.selection.of(path, file.schema)
        self._check_fill(chosen.names, path)
        stored = beginning_at(row, file.portions(number, first - row, chosen, self.size or _ROWS))
        portions = self._selected(stored, chosen, path)
        columns = chosen.columns
        if self.size is None:
            for portion in portions:
                with self._reporting_damage(portion, path):
                    rows = self._rows(portion.rows, columns)
                yield Records(portion.numbers, rows, portion.mark)
        else:
            for portion in of_size(self.pa, portions, self.size):
                with self._reporting_damage(portion, path):
                    batch = self._batch(portion.rows, columns)
                yield Records([portion.numbers[0]], [batch], portion.mark)

    def _selected(
        self, portions: Iterator[Portion], chosen: FileSelection, path: str
    ) -> Iterator[Portion]:
        """Yield the rows in the form that all files have, without those that are filtered out."""
        for portion in portions:
            with self._reporting_damage(portion, path):
                rows, kept = chosen.kept(chosen.conformed(portion.rows))
            if rows.num_rows:
                yield portion._replace(rows=rows, kept=kept)

    def _reporting_damage(self, portion: Portion, path: str) -> AbstractContextManager[None]:
        """Report decoded data that Python cannot represent, such as invalid text, as damage."""
        last = portion.first + portion.rows.num_rows - 1
        fault = f"damaged rows {portion.first} to {last}"
        return _reporting_damage(self.pa, path, portion.offset, fault)

    def _rows(self, batch: Any, columns: list[str]) -> list[dict[str, Any]]:
        if not columns:
            return [{} for _ in range(batch.num_rows)]
        values = [values_of(self.pa, self._filled(batch, name)) for name in columns]
        return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]

    def _batch(self, batch: Any, columns: list[str]) -> dict[str, Any]:
        return {name: array_of(self.pa, self._filled(batch, name), name) for name in columns}

    def _filled(self, batch: Any, name: str) -> Any:
        column = batch.column(name)
        if name not in self.fill or not column.null_count:
            return column
        if self.pa.types.is_null(column.type):  # nothing says which values it would have
            return self.pa.repeat(self.fill[name], len(column))
        if self.pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        scalar = self._scalar(name, column.type)
        try:
            return column.fill_null(scalar)
        except NotImplementedError as error:
            raise InvalidArgumentError(
                f"fill_null: got a value for column {name!r}; expected none, because this pyarrow"
                f" cannot fill nulls of type {column.type}"
            ) from error

    def _check_fill(self, names: list[str], path: str) -> None:
        for name in self.fill:
            if name not in names:
                raise InvalidArgumentError(
                    f"fill_null: got {name!r}, which is not a column of {path}; expected some of"
                    f" {names}"
                )

    def _scalar(self, name: str, type: Any) -> Any:
        """Return the scalar that replaces a column's nulls, with exactly the user's value."""
        given = self.fill[name]
        try:
            given = given.as_py() if isinstance(given, self.pa.Scalar) else given
            if self.pa.types.is_temporal(type) and not is_int(given):
                return time_scalar(self.pa, given, type)
            scalar = self.pa.scalar(given, type)
        except (
            self.pa.ArrowException,
            ValueError,
            TypeError,
            ArithmeticError,
            NotImplementedError,
        ) as error:
            raise self._no_fill(name, type) from error
        types = self.pa.types
        is_number = types.is_integer(type) or types.is_floating(type)
        if is_number and not _is_same(given, scalar.as_py()):
            raise self._no_fill(name, type)
        return scalar

    def _no_fill(self, name: str, type: Any) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"fill_null: got {self.fill[name]!r} for column {name!r}; expected a value of type"
            f" {type}"
        )


class ParquetFormat(_TableFormat):
    """Parquet files."""

    function = "read_parquet"
    suffix: ClassVar[str | None] = ".parquet"
    open_file: ClassVar[type[_ParquetFile | _ArrowFile]] = _ParquetFile


class ArrowFormat(_TableFormat):
    """Arrow files, or streams."""

    function = "read_arrow"
    suffix: ClassVar[str | None] = ".arrow"
    open_file: ClassVar[type[_ParquetFile | _ArrowFile]] = _ArrowFile


def _is_same(given: Any, found: int | float) -> bool:
    """Return whether Arrow kept the number: it truncates fractions and overflows to infinity."""
    if isinstance(found, float):
        return isinf(found) == isinf(given)  # rounding is allowed
    return bool(found == given)


def _checked_names(columns: Any) -> list[str]:
    names = list(columns) if isinstance(columns, list | tuple) else []
    if (
        not names
        or not all(isinstance(name, str) for name in names)
        or len(set(names)) < len(names)
    ):
        raise InvalidArgumentError(
            f"columns: got {columns!r}; expected a list of different names, or None"
        )
    return names


@contextmanager
def _reporting_damage(
    pa: Any, path: str, offset: int | Callable[[], int], fault: str
) -> Iterator[None]:
    """Convert pyarrow's errors about damage to `DataLossError`; keep failures of the system.

    Its errors take many forms: a flipped bit may ask for an unknown type, or for more memory than
    there is.
    """
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, MemoryError, OSError) as error:
        if isinstance(error, pa.ArrowCancelled) or _is_of_the_system(error):
            raise
        if isinstance(error, NotImplementedError):
            fault = f"{fault}, or it has something that this pyarrow does not know"
        elif isinstance(error, MemoryError):
            fault = f"{fault}, or it needs more memory than there is"
        at = offset if isinstance(offset, int) else offset()
        raise DataLossError(path=path, offset=at, fault=f"{fault} ({error})") from error


def _is_of_the_system(error: Exception) -> bool:
    """Return whether a failure concerns files or a network rather than the contents."""
    return isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None)
