"""`to_parquet`: the rows of a pipeline as Parquet files of one schema."""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from aioqueue import InvalidArgumentError
from aioqueue.base.extras import required
from aioqueue.base.json_files import DocumentError, Schema
from aioqueue.core.elements.trees import is_array_like
from aioqueue.errors import with_article
from aioqueue.pipeline.batches.arrow import (
    array_of_column,
    array_of_values,
    check_unmasked,
    is_storable,
    typed,
)
from aioqueue.pipeline.batches.arrow_exact import check_stays, is_plain
from aioqueue.pipeline.sink import RowWriter, Sink

_PURPOSE: Final = "writing Parquet files"
_CODECS: Final = ("snappy", "gzip", "brotli", "zstd", "lz4")
_FIRST_ROWS: Final = 64
_MOST_ROWS: Final = 4096
_MOST_BYTES: Final = 2**26
"""Of rows that are converted at once, and of a row group."""


def to_parquet(
    path: str | os.PathLike[str],
    *,
    rows_per_file: int = 100_000,
    schema: Any = None,
    columns: Sequence[str] | None = None,
    compression: str | None = "snappy",
    batches: bool | None = None,
) -> Sink:
    """Write rows as Parquet files of one schema. Pass it to `Pipeline.write`.

    It needs the extra ``parquet``. A row is a dict by column name, or a tuple whose components you
    name with ``columns``. In batches (``batches``), each component is an array of rows; they are
    written without going through Python's objects. Batches may also be tables or record batches of
    pyarrow, such as your function may make on workers.

    The first rows decide the schema, and it stays for all files. `read_parquet` gives the same rows
    again: it has the table of types. An array of one axis becomes a list: of any length from a
    single row, of a fixed length from a batch. One of more axes becomes a tensor of a fixed shape.

    A value comes back as it was given, or is refused, with its row and column. Numbers are the same
    if they are equal, so ints may be among floats as far as these hold them. NumPy's times in units
    that Parquet lacks become finer ones (seconds and hours milliseconds; durations in minutes,
    hours and days seconds), and times in several units the finest of them. Times with a zone keep
    their instant, and not their zone: a column has that of its first value. What Arrow would change
    is refused: text among bytes, bools among numbers, naive times among those with a zone, dates
    among times, a float that a smaller float would round, a dict that lacks a name which others in
    its column have.

    Args:
        path: a local folder, which is made; the files in it are ``part-00000.parquet`` and so on.
        rows_per_file: how many rows a file has, >= 1. The last one may have fewer.
        schema: a ``pyarrow.Schema``, where the first rows would not decide it: if they have only
            nulls in a column, say. As you ask for its types, numbers are rounded to its floats and
            decimals, text and bytes become each other in UTF-8, and dates become times.
        columns: the names of the components of tuples; of dicts, the columns to write.
        compression: ``"snappy"``, ``"zstd"``, ``"gzip"``, ``"brotli"``, ``"lz4"`` or ``None``.
        batches: whether the pipeline makes batches; ``None`` to go by its stages, such as `batch`.

    Raises:
        InvalidArgumentError: an argument is not as described.
        ModuleNotFoundError: pyarrow is not installed.
    """
    return _Parquet(path, rows_per_file, batches, schema, columns, compression)


class _Parquet(Sink):
    _function = "to_parquet"
    _format = "Parquet"
    _extra = "parquet"
    _page = "howto/writing.md"
    _read_by = "read_parquet"
    _suffix = ".parquet"
    _carried = Schema({}, {"schema": str})

    def __init__(
        self,
        path: Any,
        rows_per_file: Any,
        batches: Any,
        schema: Any,
        columns: Any,
        compression: Any,
    ) -> None:
        super().__init__(path, rows_per_file, batches)
        self._pa = required("pyarrow", "parquet", _PURPOSE)
        required("pyarrow.parquet", "parquet", _PURPOSE)
        if schema is not None and not isinstance(schema, self._pa.Schema):
            raise InvalidArgumentError(
                f"schema: got {schema!r}; expected a pyarrow.Schema, or None"
            )
        if compression is not None and compression not in _CODECS:
            known = ", ".join(map(repr, _CODECS))
            raise InvalidArgumentError(
                f"compression: got {compression!r}; expected None, or one of {known}"
            )
        self._schema = schema
        self._columns = None if columns is None else _checked_columns(columns)
        self._compression = compression

    def _writer(self, carried: dict[str, Any]) -> RowWriter:
        pa, schema = self._pa, self._schema
        is_asked = schema is not None
        if schema is None and carried:
            try:
                schema = pa.ipc.read_schema(pa.py_buffer(b64decode(carried["schema"])))
            except (pa.ArrowException, OSError, ValueError) as error:
                raise DocumentError(f"no schema of Arrow ({error})") from error
        return _Tables(pa, schema, self._columns, self._compression, is_asked=is_asked)


class _Tables(RowWriter):
    """Writes row groups.

    Rows are converted to record batches, which are small and take little memory. Some of them make
    a row group.

    Args:
        pa: the module pyarrow.
        schema: of all files; ``None`` if the first rows decide.
        columns: the names of the components; ``None`` for those that the first row has.
        compression: of the pages.
        is_asked: whether the user has asked for that schema.
    """

    takes_batches = True
    rows_at_once = _FIRST_ROWS

    def __init__(
        self,
        pa: Any,
        schema: Any,
        columns: list[str] | None,
        compression: str | None,
        *,
        is_asked: bool,
    ) -> None:
        self._pa = pa
        self._schema = schema
        self._is_asked = is_asked
        self._is_checked = False
        self._columns = columns
        self._compression = compression or "none"
        self._file: Any = None
        self._path: Path | None = None
        self._held: list[Any] = []  # record batches of the next row group
        self._held_bytes = 0

    def open(self, path: Path) -> None:
        self._path = path
        path.touch()  # the file itself is begun when the schema is known

    def write(self, rows: Sequence[Any], first: int) -> None:
        names = self._names_of(rows[0], first)
        columns = _columns_of(rows, names, first)
        are_plain = all(map(is_plain, columns))
        if not are_plain:
            for number, row in enumerate(rows, first):
                try:
                    check_unmasked(row)
                except ValueError as error:
                    raise InvalidArgumentError(f"row {number}: got {error}") from None
        structs = self._structs(rows, names) if are_plain else None
        if structs is not None:
            found = self._record_batch(names, structs, typed, first)
        else:
            found = self._record_batch(names, columns, array_of_values, first)
        # The next rows are about as large: then a few million bytes are converted at once.
        each = max(1, found.nbytes // len(rows))
        self.rows_at_once = max(1, min(_MOST_ROWS, _MOST_BYTES // each, 2 * self.rows_at_once))
        self._hold(found)

    def write_batch(self, batch: Any, begin: int, end: int) -> None:
        pa = self._pa
        if isinstance(batch, pa.Table):
            for part in batch.slice(begin, end - begin).to_batches():
                self._hold(self._fitted(part))
            return
        if isinstance(batch, pa.RecordBatch):
            self._hold(self._fitted(batch.slice(begin, end - begin)))
            return
        names = self._names_of(batch, None)
        given = [batch[name] for name in names] if isinstance(batch, Mapping) else _parts(batch)
        try:
            check_unmasked(given)
        except ValueError as error:
            raise InvalidArgumentError(f"batch: got {error}") from None
        columns = [_cut(column, begin, end) for column in given]
        self._hold(self._record_batch(names, columns, array_of_column, None))

    def length_of(self, batch: Any) -> int:
        if isinstance(batch, self._pa.Table | self._pa.RecordBatch):
            return int(batch.num_rows)
        names = self._names_of(batch, None)
        given = [batch[name] for name in names] if isinstance(batch, Mapping) else _parts(batch)
        try:
            pairs = zip(names, given, strict=True)
            lengths = {label: n for name, column in pairs for label, n in _lengths(name, column)}
        except TypeError as error:
            raise InvalidArgumentError(
                f"batch: got a component without rows ({error}); expected an array or a list in"
                " each; if the elements are no batches, pass batches=False"
            ) from error
        if len(set(lengths.values())) > 1:
            raise InvalidArgumentError(
                f"batch: got components of different lengths, {lengths}; expected as many rows in"
                " each; if the elements are no batches, pass batches=False"
            )
        return next(iter(lengths.values()))

    def finish(self) -> None:
        self._flush()
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def abandon(self) -> None:
        file, self._file = self._file, None
        self._held, self._held_bytes = [], 0
        if file is not None:
            with suppress(Exception):
                file.close()

    def carried(self) -> dict[str, Any]:
        if self._schema is None:
            return {}
        return {"schema": b64encode(self._schema.serialize().to_pybytes()).decode("ascii")}

    def _hold(self, batch: Any) -> None:
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= _MOST_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Write what is held as a row group."""
        if not self._held:
            return
        held, self._held, self._held_bytes = self._held, [], 0
        table = self._pa.Table.from_batches(held, self._schema)
        if self._file is None:
            self._file = self._pa.parquet.ParquetWriter(
                self._path, self._schema, compression=self._compression
            )
        try:
            self._file.write_table(table, row_group_size=max(1, table.num_rows))
        except (self._pa.ArrowInvalid, NotImplementedError) as error:  # no failure of the disk
            raise InvalidArgumentError(
                f"rows: got some that Parquet cannot hold ({error}); expected values that fit"
                f" {self._schema}"
            ) from error

    def _structs(self, rows: Sequence[Any], names: list[str]) -> list[Any] | None:
        """The columns of rows that are all plain dicts of plain values, which Arrow converts
        faster than column by column; ``None`` for others."""
        if set(map(type, rows)) != {dict} or any(map(is_array_like, rows[0].values())):
            return None
        try:
            found = self._pa.array(rows)
        except (self._pa.ArrowException, TypeError, ValueError, OverflowError):
            return None
        if found.type.num_fields != len(names):
            return None
        try:
            return [found.field(name) for name in names]
        except KeyError:
            return None

    def _names_of(self, row: Any, number: int | None) -> list[str]:
        """The names of the components of a row or batch; the first one decides them for all."""
        if self._columns is None:
            fields = getattr(type(row), "_fields", None)
            if self._schema is not None:
                self._columns = list(self._schema.names)
            elif isinstance(row, Mapping) and row:
                where = "batch" if number is None else f"row {number}"
                self._columns = _checked_columns(list(row), f"{where}: ")
            elif isinstance(row, tuple) and fields:
                self._columns = list(fields)
            else:
                where = "batch" if number is None else f"row {number}"
                raise InvalidArgumentError(
                    f"{where}: got {with_article(type(row).__name__)}; expected a dict"
                    " by column name (a prepare before can make it), or columns=[...] for the"
                    " components of tuples"
                )
        return self._columns

    def _record_batch(
        self, names: list[str], columns: Sequence[Any], convert: Any, first: int | None
    ) -> Any:
        pa, schema = self._pa, self._schema
        arrays = []
        for at, (name, column) in enumerate(zip(names, columns, strict=True)):
            field = None if schema is None else schema.field(at)
            type = None if field is None else field.type
            to_arrow = partial(convert, pa, type=type, rounds=self._is_asked)
            try:
                array = to_arrow(column)
                if field is not None and not field.nullable and array.null_count:
                    raise _NullError("None, for a column that is declared not to be null")
                arrays.append(array)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                expected = (
                    "values that Arrow has a type for"
                    if type is None
                    else f"{type}, as the schema says"
                    + ("" if self._is_asked else ", which the first rows have decided")
                )
                unfit, why = _first_unfit(pa, column, to_arrow, error)
                raise InvalidArgumentError(
                    f"{_rows_text(first, unfit)}: got for the column {name!r} what cannot be"
                    f" written ({why}); expected {expected}"
                ) from error
        if schema is None:
            schema = self._schema = pa.schema(
                [(name, array.type) for name, array in zip(names, arrays, strict=True)]
            )
        self._check_schema(first)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _check_schema(self, first: int | None) -> None:
        """Check, once, that Parquet has all types.

        Raises:
            InvalidArgumentError: it does not.
        """
        if self._is_checked:
            return
        pa = self._pa
        for field in self._schema:
            try:
                schema = pa.schema([field])
                with pa.parquet.ParquetWriter(pa.BufferOutputStream(), schema) as file:
                    file.write_table(pa.Table.from_batches([], schema))
            except (pa.ArrowException, NotImplementedError) as error:
                raise InvalidArgumentError(
                    f"{_rows_text(first)}: got for the column {field.name!r} what cannot be written"
                    f" ({error}); expected values that Parquet has a type for"
                ) from error
        self._is_checked = True

    def _fitted(self, batch: Any) -> Any:
        """Return a record batch of the user in the schema of the files."""
        pa = self._pa
        if self._columns is not None:
            batch = batch.select(self._columns)
        if self._schema is None:
            self._schema = batch.schema.remove_metadata()
        self._check_schema(None)
        try:
            # Like that of a record batch, but it keeps the values.
            if batch.schema.names != self._schema.names:
                return batch.cast(self._schema)  # raises
            pairs = zip(batch.columns, self._schema, strict=True)
            columns = [self._fitted_column(column, field) for column, field in pairs]
            return pa.RecordBatch.from_arrays(columns, schema=self._schema)
        except (pa.ArrowException, ValueError) as error:
            raise InvalidArgumentError(
                f"batch: got one that does not fit ({error}); expected the columns of the first"
                " one, or of the schema"
            ) from error

    def _fitted_column(self, column: Any, field: Any) -> Any:
        check_stays(self._pa, column)
        try:
            found = typed(self._pa, column, field.type, rounds=self._is_asked)
        except (self._pa.ArrowException, ValueError) as error:
            raise ValueError(f"column {field.name!r}: {error}") from error
        if not field.nullable and found.null_count:
            raise ValueError(f"column {field.name!r}: nulls, where the schema has none")
        return found


class _NullError(ValueError):
    """There is no value where the schema wants one."""


def _first_unfit(
    pa: Any, column: Any, to_arrow: Callable[[Any], Any], error: Exception
) -> tuple[int | None, Exception]:
    """Which value of a column cannot be converted, and why; ``None`` if only several together
    cannot."""
    for at in () if isinstance(column, Mapping) else range(len(column)):
        try:
            found = to_arrow(column[at : at + 1])
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as alone:
            return at, alone
        if found.null_count and isinstance(error, _NullError):
            return at, error
    return getattr(error, "at", None), error


def _cut(column: Any, begin: int, end: int) -> Any:
    """Rows of a component of a batch; it may be a dict of components."""
    if isinstance(column, Mapping):
        return {key: _cut(part, begin, end) for key, part in column.items()}
    return [None] * (end - begin) if column is None else column[begin:end]


def _lengths(name: str, column: Any) -> Iterator[tuple[str, int]]:
    """The number of rows of each component in a component."""
    if isinstance(column, Mapping):
        for key, part in column.items():
            yield from _lengths(f"{name}.{key}", part)
    elif column is not None:
        yield name, len(column)


def _columns_of(rows: Sequence[Any], names: list[str], first: int) -> list[Any]:
    """The values of rows, column by column.

    Raises:
        InvalidArgumentError: a row has other components.
    """
    count = len(names)
    if isinstance(rows[0], Mapping):
        get = itemgetter(*names) if count > 1 else lambda row: (row[names[0]],)
        try:
            if all(len(row) == count for row in rows):
                return list(zip(*map(get, rows), strict=True))
        except (KeyError, TypeError):
            pass
    elif isinstance(rows[0], tuple):
        if all(isinstance(row, tuple) and len(row) == count for row in rows):
            return list(zip(*rows, strict=True))
    elif count == 1 and not any(isinstance(row, Mapping | tuple) for row in rows):
        return [list(rows)]
    number, row = next(
        (number, row) for number, row in enumerate(rows, first) if not _fits(row, names)
    )
    has = list(row) if isinstance(row, Mapping) else f"a {type(row).__name__}"
    raise InvalidArgumentError(
        f"row {number}: got {has}; expected the columns {names}, as the rows before or the schema"
        " have them (None for what a row lacks)"
    )


def _fits(row: Any, names: list[str]) -> bool:
    if isinstance(row, Mapping):
        return len(row) == len(names) and all(name in row for name in names)
    return isinstance(row, tuple) and len(row) == len(names)


def _parts(batch: Any) -> list[Any]:
    return list(batch) if isinstance(batch, tuple) else [batch]


def _rows_text(first: int | None, at: int | None = None) -> str:
    """Return where something is: in a batch, a row of it, a row, or at or after a row."""
    if first is None:
        return "batch" if at is None else f"batch, row {at} of it"
    return f"row {first} or later" if at is None else f"row {first + at}"


def _checked_columns(columns: Any, where: str = "") -> list[str]:
    names = list(columns) if isinstance(columns, list | tuple) else []
    is_named = bool(names) and all(isinstance(name, str) for name in names)
    if not is_named or len(set(names)) < len(names):
        raise InvalidArgumentError(
            f"{where}columns: got {columns!r}; expected a list of different names"
        )
    if not all(map(is_storable, names)):
        raise InvalidArgumentError(
            f"{where}columns: got {columns!r}; expected names without lone surrogates, which UTF-8"
            " does not have"
        )
    return names
