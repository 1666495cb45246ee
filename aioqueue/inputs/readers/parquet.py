"""Parquet and Arrow files: their rows, or batches of them, by way of pyarrow.

Both are cut into portions (row groups; record batches), which are read one after another, so that
memory is bounded by one portion. A mark is the number of a portion, that of a row within it, and
that of the same row within the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from math import isinf
from os import SEEK_END
from typing import IO, Any, Final, NamedTuple

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.arguments import checked_count, is_int
from aioqueue.inputs.core.positions import misplaced
from aioqueue.inputs.readers.arrow_columns import array_of, time_scalar, values_of
from aioqueue.inputs.readers.compression import required
from aioqueue.inputs.readers.files import StorageOptions
from aioqueue.inputs.readers.reader import Mark, Paths, Reader, Records

__all__ = ("read_arrow", "read_parquet")

_ROWS: Final = 1024
"""How many rows are made at a time."""
_AHEAD_ROWS: Final = 2048
_AHEAD_BATCHES: Final = 4
_END_MARK: Final = b"\xff\xff\xff\xff\0\0\0\0"
_OLD_END_MARK: Final = bytes(4)
"""Of streams as Arrow wrote them before 0.15, which some programs still do."""


def read_parquet(
    paths: Paths,
    columns: Sequence[str] | None = None,
    *,
    batch_size: int | None = None,
    fill_null: Mapping[str, Any] | None = None,
    storage_options: StorageOptions = None,
    seed: int | None = None,
) -> Reader[dict[str, Any]]:
    """The rows of Parquet files, as dicts by the names of columns. Needs the extra ``parquet``.

    Keys are ``path:number`` of the row, from 0; of a batch, that of its first one.

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

    Columns that are stored as a dictionary, and extension types, are what they stand for; tensors
    of a fixed shape have it. A null is ``None``, in a batch of times NaT; where an array of numbers
    would have one, `InvalidArgumentError` asks for ``fill_null``. (One among lists of a fixed size
    takes pyarrow 26.) All arrays are private and can be written to.

    Row groups are read one after another: one of them, compressed, and a batch are in memory.

    Args:
        paths: one path or URL, a source of them such as `files`, or any iterable of them.
        columns: names of those to read, in which order; ``None`` for all.
        batch_size: how many rows to give at a time, as a dict of arrays, >= 1; the last batch of
            each file may be shorter. ``None`` gives them one by one.
        fill_null: what to put for nulls, by column: values that the columns can have as they are;
            of times those of NumPy, as rows have them, or of `datetime`.
        storage_options: what fsspec needs to know about a URL's file system: credentials, say.
        seed: for the generators of the records, and for the order of paths that have no seed;
            ``None`` takes that of a source of paths, or fresh entropy.

    Returns:
        A reader of dicts. Going through it raises `DataLossError` for a file that is damaged, as
        far as it has checksums or it cannot be decoded; its offset is that of the row group.
        `InvalidArgumentError` where a file has no such column, or structs with two fields of one
        name, and `OSError` for a file that cannot be read.

    Raises:
        InvalidArgumentError: an argument is wrong.
        ModuleNotFoundError: pyarrow is not installed.
    """
    pa = required("pyarrow", "parquet", "reading Parquet files")
    required("pyarrow.compute", "parquet", "reading Parquet files")
    parquet = required("pyarrow.parquet", "parquet", "reading Parquet files")
    shape = _Shape.checked(pa, columns, batch_size, fill_null)

    def cut(stream: IO[bytes], path: str, mark: Mark) -> Iterator[Records[Any]]:
        return shape.runs(_ParquetFile(pa, parquet, stream, path), path, mark)

    return shape.reader("read_parquet", paths, cut, storage_options, seed)


def read_arrow(
    paths: Paths,
    columns: Sequence[str] | None = None,
    *,
    batch_size: int | None = None,
    fill_null: Mapping[str, Any] | None = None,
    storage_options: StorageOptions = None,
    seed: int | None = None,
) -> Reader[dict[str, Any]]:
    """The rows of Arrow files (IPC files and streams, Feather). Needs the extra ``parquet``.

    As `read_parquet`, in all but the format: record batches are read one after another. The files
    have no checksums: that they are whole and well formed is checked, what the values are is not.
    Data behind the end of a stream, such as another stream, is damage: it would not be read.

    Args:
        paths: as for `read_parquet`; so are the rest.
        columns: names of those to read, in which order; ``None`` for all.
        batch_size: how many rows to give at a time, as a dict of arrays; ``None`` for one by one.
        fill_null: what to put for nulls, by column.
        storage_options: for fsspec.
        seed: as for `read_parquet`.

    Returns:
        A reader of dicts.

    Raises:
        InvalidArgumentError: an argument is wrong.
        ModuleNotFoundError: pyarrow is not installed.
    """
    pa = required("pyarrow", "parquet", "reading Arrow files")
    required("pyarrow.compute", "parquet", "reading Arrow files")
    ipc = required("pyarrow.ipc", "parquet", "reading Arrow files")
    shape = _Shape.checked(pa, columns, batch_size, fill_null)

    def cut(stream: IO[bytes], path: str, mark: Mark) -> Iterator[Records[Any]]:
        return shape.runs(_ArrowFile(pa, ipc, stream, path), path, mark)

    return shape.reader("read_arrow", paths, cut, storage_options, seed)


class _Portion(NamedTuple):
    """Rows that were read together."""

    number: int
    """Of the row group or record batch that they are in."""
    row: int
    """Of the first one, in there."""
    first: int
    """Of the first one, in the file."""
    rows: Any
    """A ``pyarrow.RecordBatch``."""
    offset: int
    """Of that row group or record batch, in bytes."""

    @property
    def mark(self) -> tuple[int, int, int]:
        """Where it begins."""
        return self.number, self.row, self.first


class _Bounded:
    """A file of which no more is read than there is: a damaged one may ask for any size."""

    closed = False

    def __init__(self, stream: IO[bytes]) -> None:
        self.size = stream.seek(0, SEEK_END)
        self._stream = stream
        self.tell = stream.tell
        self.seek(0)

    def seek(self, offset: int, whence: int = 0) -> int:
        if offset < 0 and not whence:
            raise OSError(
                f"no offset: {offset}"
            )  # without an errno: it is no failure of the system
        return self._stream.seek(offset, whence)

    def read(self, size: int | None = None) -> bytes:
        left = max(0, self.size - self.tell())
        return self._stream.read(left if size is None or size < 0 else min(size, left))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


class _ParquetFile:
    """An open Parquet file."""

    def __init__(self, pa: Any, parquet: Any, stream: IO[bytes], path: str) -> None:
        self._pa = pa
        self._path = path
        bounded = _Bounded(stream)
        self._size = bounded.size
        with _damage_told(pa, path, self._size, "no Parquet file"):
            self._file = parquet.ParquetFile(bounded, page_checksum_verification=True)
            self._groups = self._file.metadata
            self.names: list[str] = list(self._file.schema_arrow.names)
        self._check_rows()

    def _check_rows(self) -> None:
        """Footers have no checksum: a row group that says it is smaller would lose its rows."""
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
        """How many row groups it has."""
        return int(self._groups.num_row_groups)

    def portions(
        self, number: int, first: int, columns: list[str], size: int
    ) -> Iterator[_Portion]:
        """The rows from a row group on, whose first row has a number, as many at a time."""
        for group in range(number, self.count):
            row, offset = 0, self._offset_of(group)
            for rows in self._batches(group, columns, size, offset):
                yield _Portion(group, row, first, rows, offset)
                row += rows.num_rows
                first += rows.num_rows

    def _offset_of(self, group: int) -> int:
        """Where a row group begins, as far as the footer tells."""
        with _damage_told(self._pa, self._path, 0, "damaged footer"):
            metadata = self._groups.row_group(group)
            columns = map(metadata.column, range(metadata.num_columns))
            begin = min(
                (one.dictionary_page_offset or one.data_page_offset for one in columns), default=0
            )
        return max(0, min(int(begin), self._size))

    def _batches(self, group: int, columns: list[str], size: int, offset: int) -> Iterator[Any]:
        left = self._groups.row_group(group).num_rows
        with _damage_told(self._pa, self._path, offset, f"damaged row group {group}"):
            batches = self._file.iter_batches(size, row_groups=[group], columns=columns)
        while True:
            with _damage_told(self._pa, self._path, offset, f"damaged row group {group}"):
                rows = next(batches, None)
                if rows is None:
                    break
            left -= rows.num_rows
            yield rows
        if left:
            fault = f"damaged row group {group}: {left} rows are missing"
            raise DataLossError(path=self._path, offset=offset, fault=fault)


class _ArrowFile:
    """An open Arrow file, of either format."""

    def __init__(self, pa: Any, ipc: Any, stream: IO[bytes], path: str) -> None:
        self._pa = pa
        self._path = path
        self._stream = stream
        is_file = stream.read(6) == b"ARROW1"
        bounded = _Bounded(stream)
        self._size = bounded.size
        with _damage_told(pa, path, self._size if is_file else 0, "no Arrow file"):
            self._file = ipc.open_file(bounded) if is_file else None
            self._reader = self._file or ipc.open_stream(bounded)
            self.names: list[str] = list(self._reader.schema.names)

    @property
    def count(self) -> int | None:
        """How many record batches it has; ``None`` if only its end will tell."""
        return None if self._file is None else int(self._file.num_record_batches)

    def portions(
        self, number: int, first: int, columns: list[str], size: int
    ) -> Iterator[_Portion]:
        """The rows from a record batch on, whose first row has a number, as many at a time."""
        # Only a file knows where its batches are.
        batches = islice(self._batches(0), number, None) if self._file is None else None
        for at, (offset, batch) in enumerate(batches or self._batches(number), number):
            chosen = batch.select(columns)
            for row in range(0, batch.num_rows, size):
                yield _Portion(at, row, first + row, chosen.slice(row, size), offset)
            first += batch.num_rows

    def _batches(self, at: int) -> Iterator[tuple[int, Any]]:
        """Record batches, each with the offset from which it was read."""
        offset = self._stream.tell()
        while self.count is None or at < self.count:
            with _damage_told(self._pa, self._path, offset, f"damaged record batch {at}"):
                try:
                    batch = (
                        self._reader.read_next_batch()
                        if self._file is None
                        else self._file.get_batch(at)
                    )
                except StopIteration:
                    break
                batch.validate(full=True)  # offsets that point elsewhere would be followed
            yield offset, batch
            at += 1
            offset = self._stream.tell()
        if self._file is None:
            self._check_end(offset)

    def _check_end(self, offset: int) -> None:
        """A stream ends with a mark, which pyarrow does without; and what follows it is not read.

        Args:
            offset: behind the last record batch.
        """
        end = self._stream.tell()
        begin = max(offset, end - len(_END_MARK))
        self._stream.seek(begin)
        if self._stream.read(end - begin) not in (_END_MARK, _OLD_END_MARK):
            fault = "truncated stream: no end mark"
            raise DataLossError(path=self._path, offset=end, fault=fault)
        if end < self._size:
            # Perhaps another stream, as `cat` puts it there: it may have other columns.
            fault = f"{self._size - end} bytes of data behind the end mark of the stream"
            raise DataLossError(path=self._path, offset=end, fault=fault)


class _Shape(NamedTuple):
    """What to make of the rows of a file."""

    pa: Any
    columns: list[str] | None
    size: int | None
    fill: dict[str, Any]

    @classmethod
    def checked(cls, pa: Any, columns: Any, batch_size: Any, fill_null: Any) -> _Shape:
        """Check the arguments that readers of columns have in common.

        Raises:
            InvalidArgumentError: one of them is wrong.
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
        return cls(pa, chosen, size, dict(fill))

    def reader(
        self,
        name: str,
        paths: Paths,
        cut: Callable[[IO[bytes], str, Mark], Iterator[Records[Any]]],
        storage_options: StorageOptions,
        seed: int | None,
    ) -> Reader[dict[str, Any]]:
        return Reader(
            name,
            paths,
            cut,
            ahead=_AHEAD_ROWS if self.size is None else _AHEAD_BATCHES,
            compression=None,
            storage_options=storage_options,
            seed=seed,
            options={"batch_size": self.size},
        )

    def runs(
        self, file: _ParquetFile | _ArrowFile, path: str, mark: Mark
    ) -> Iterator[Records[Any]]:
        """The records of an open file, from a portion and a row within it on."""
        number, row, first = mark or (0, 0, 0)
        if file.count is not None and number > file.count:
            raise misplaced(f"portion {number} of {path}", f"{file.count} at most")
        columns = self._columns_of(file.names, path)
        self._check_fill(file.names, path)
        portions = _beginning_at(
            row, file.portions(number, first - row, columns, self.size or _ROWS)
        )
        if self.size is None:
            for portion in portions:
                with self._damage_told(portion, path):
                    rows = self._rows(portion.rows, columns)
                numbers = range(portion.first, portion.first + len(rows))
                yield Records(numbers, rows, portion.mark)
        else:
            for portion in _of_size(self.pa, portions, self.size):
                with self._damage_told(portion, path):
                    batch = self._batch(portion.rows, columns)
                yield Records([portion.first], [batch], portion.mark)

    def _damage_told(self, portion: _Portion, path: str) -> AbstractContextManager[None]:
        """What was decoded can still be nothing that there is in Python: text that is none."""
        last = portion.first + portion.rows.num_rows - 1
        fault = f"damaged rows {portion.first} to {last}"
        return _damage_told(self.pa, path, portion.offset, fault)

    def _columns_of(self, names: list[str], path: str) -> list[str]:
        columns = names if self.columns is None else self.columns
        for name in columns:
            if names.count(name) != 1:
                raise InvalidArgumentError(
                    f"columns: got {name!r}, which {path} has {names.count(name)} times; expected"
                    f" some of {names}"
                )
        return columns

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
        if self.pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        scalar = self._scalar(name, column.type)
        try:
            return column.fill_null(scalar)
        except NotImplementedError as error:
            raise InvalidArgumentError(
                f"fill_null: got a value for column {name!r}; expected none, since this pyarrow"
                f" fills no nulls of type {column.type}"
            ) from error

    def _check_fill(self, names: list[str], path: str) -> None:
        for name in self.fill:
            if name not in names:
                raise InvalidArgumentError(
                    f"fill_null: got {name!r}, which is no column of {path}; expected some of"
                    f" {names}"
                )

    def _scalar(self, name: str, type: Any) -> Any:
        """What to put for a null of a column: the value that was given, and no other one."""
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


def _is_same(given: Any, found: int | float) -> bool:
    """Whether Arrow has made the same number: it cuts off fractions, and knows infinity."""
    if isinstance(found, float):
        return isinf(found) == isinf(given)  # rounded it may be
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


def _beginning_at(row: int, portions: Iterator[_Portion]) -> Iterator[_Portion]:
    """The same without so many rows of the first row group or record batch."""
    number: int | None = None
    for portion in portions:
        if number is None:
            number = portion.number
        left_out = row - portion.row if portion.number == number else 0
        if left_out >= portion.rows.num_rows:
            continue
        if left_out > 0:
            first = portion.first + left_out
            yield portion._replace(row=row, first=first, rows=portion.rows.slice(left_out))
        else:
            yield portion


def _of_size(pa: Any, portions: Iterator[_Portion], size: int) -> Iterator[_Portion]:
    """The same rows, so many at a time; fewer at the end, or before damage."""
    held: list[Any] = []
    begin: _Portion | None = None
    count = 0
    try:
        for portion in portions:
            left = portion
            while left.rows.num_rows:
                begin = begin or left
                taken = min(size - count, left.rows.num_rows)
                held.append(left.rows.slice(0, taken))
                count += taken
                left = left._replace(
                    row=left.row + taken, first=left.first + taken, rows=left.rows.slice(taken)
                )
                if count == size:
                    yield begin._replace(rows=_joined(pa, held))
                    held, begin, count = [], None, 0
    except DataLossError:
        if begin is not None:
            yield begin._replace(rows=_joined(pa, held))
        raise
    if begin is not None:
        yield begin._replace(rows=_joined(pa, held))


def _joined(pa: Any, batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


@contextmanager
def _damage_told(pa: Any, path: str, offset: int, fault: str) -> Iterator[None]:
    """What pyarrow says of damage becomes ours; failures of the system stay what they are.

    It says all kinds of things: a turned bit may ask for a type that there is not, or for more
    memory than there is.
    """
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, MemoryError, OSError) as error:
        if isinstance(error, pa.ArrowCancelled) or _is_of_the_system(error):
            raise
        if isinstance(error, NotImplementedError):
            fault = f"{fault}, or something in it that this pyarrow does not know"
        elif isinstance(error, MemoryError):
            fault = f"{fault}, or more than memory can hold"
        raise DataLossError(path=path, offset=offset, fault=f"{fault} ({error})") from error


def _is_of_the_system(error: Exception) -> bool:
    """Whether a failure has to do with files or a network, and not with what is in a file."""
    return isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None)
