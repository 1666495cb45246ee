"""Which rows and columns of Parquet and Arrow files are read, and as which types.

A `Selection` holds what the user asked for: columns, a schema for all files, a filter of rows, and
columns that the folders of a path add (``year=2024``). For each file it makes a `FileSelection`,
which says what to read, and brings it into the common form.

A file consists of row groups or record batches. `Portion` is a part of one of them, or what a
filter has left of it: rows that pyarrow has read together, cut and regrouped, each with its place
in the file.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import numpy as np

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.base.display_text import on_one_line
from aioqueue.base.extras import required
from aioqueue.pipeline.batches.arrow import cast_kept
from aioqueue.readers.files import path_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_WHOLE_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")
_ROW: Final = "aioqueue row number"
"""The name of a column that no file has: it tells which rows a filter has kept."""


class Selection:
    """What to read of all files. Thread-safe.

    Args:
        pa: the module pyarrow.
        columns: the names of the columns; ``None`` for all.
        schema: ``None``, ``"union"`` or a ``pyarrow.Schema``.
        filters: ``None``, an expression, or a list as pyarrow's readers take it.
        partitioning: ``None`` or ``"hive"``.

    Raises:
        InvalidArgumentError: an argument is not as described.
        ModuleNotFoundError: this pyarrow lacks its datasets, which filters need.
    """

    def __init__(
        self, pa: Any, columns: list[str] | None, schema: Any, filters: Any, partitioning: Any
    ) -> None:
        if not (schema is None or schema == "union" or isinstance(schema, pa.Schema)):
            raise InvalidArgumentError(
                f"schema: got {schema!r}; expected 'union', a pyarrow.Schema, or None"
            )
        if partitioning not in (None, "hive"):
            raise InvalidArgumentError(
                f"partitioning: got {partitioning!r}; expected 'hive' or None"
            )
        self._pa = pa
        self._columns = columns
        self._given = schema
        self.filter: Any = None if filters is None else _expression(filters)
        self._is_hive = partitioning == "hive"
        self._lock = threading.Lock()
        self._paths: Callable[[], Iterable[Any]] = list
        self._schema_of: Callable[[str], Any] = str
        self._common: Any = None if schema == "union" else schema
        self._partitions: dict[str, Any] | None = None
        self._last: tuple[Any, list[str]] | None = None

    def options(self) -> dict[str, Any]:
        """The arguments other than the filter, in the form in which positions compare them."""
        given = self._given
        is_schema = given is not None and not isinstance(given, str)
        return {
            "columns": self._columns,
            "schema": given.to_string(show_schema_metadata=False) if is_schema else given,
            "partitioning": "hive" if self._is_hive else None,
        }

    def bind(self, paths: Callable[[], Iterable[Any]], schema_of: Callable[[str], Any]) -> None:
        """Say which files there are, as far as it is known, and how to read a file's schema."""
        self._paths, self._schema_of = paths, schema_of

    def of(self, path: str, schema: Any) -> FileSelection:
        """Return what to read of a file.

        Args:
            path: its path.
            schema: its schema.

        Raises:
            InvalidArgumentError: it lacks a column, or does not fit the schema or the filter.
        """
        # Several threads may read files of one reader. What is the same for all files is found by
        # the first of them, and kept. The rest concerns this file alone, and needs no lock.
        with self._lock:
            values = _values_in(path) if self._is_hive else {}
            added = self._added(values) if self._is_hive else {}
            common = self._common_schema() if self._given is not None else None
            logical = self._with(added, schema.remove_metadata() if common is None else common)
            names = list(logical.names)
            columns = names if self._columns is None else self._columns
            for name in columns:
                if names.count(name) != 1:
                    raise InvalidArgumentError(
                        f"columns: got {name!r}, which {path} has {names.count(name)} times;"
                        f" expected some of {names}{self._hint(name, path)}"
                    )
            filtered = self._filtered_columns(logical, path)
        read = list(dict.fromkeys([*columns, *filtered]))
        scalars = {
            name: self._scalar(values.get(name), name, logical.field(name).type, path)
            for name in read
            if name in added
        }
        stored = [name for name in read if name not in added and name in schema.names]
        for name in stored:
            if schema.names.count(name) != 1:
                raise InvalidArgumentError(
                    f"columns: got {name!r}, which {path} has {schema.names.count(name)} times;"
                    f" expected columns of different names"
                )
        fields = {name: logical.field(name).type for name in read}
        return FileSelection(
            self._pa, path, list(columns), names, stored, fields, scalars, self.filter, filtered
        )

    def _hint(self, name: str, path: str) -> str:
        if self._given is None and not self._is_hive and f"{name}=" in path:
            return " (partitioning='hive' reads columns from the path)"
        if self._given is None:
            return " (schema='union' fills columns that a file lacks with nulls)"
        return ""

    def _with(self, added: Mapping[str, Any], schema: Any) -> Any:
        """Return a schema with the columns of the path, which hide stored ones."""
        for name, type in added.items():
            at = schema.get_field_index(name)
            if at < 0:
                schema = schema.append(self._pa.field(name, type))
            # A type that the user has asked for counts more than one that the folders suggest.
            elif not isinstance(self._given, self._pa.Schema):
                schema = schema.set(at, self._pa.field(name, type))
        return schema

    def _scalar(self, value: str | None, name: str, type: Any, path: str) -> Any:
        try:
            return self._pa.scalar(value, self._pa.string()).cast(type)
        except (self._pa.ArrowException, ValueError) as error:
            raise InvalidArgumentError(
                f"schema: got {type} for column {name!r}, which is {value!r} in {path}; expected a"
                " type that can hold it"
            ) from error

    def _added(self, values: Iterable[str]) -> dict[str, Any]:
        """Return the types of the columns of all paths: ints if all known values are, else
        strings. If paths come from a queue, only the columns of this one are known."""
        # Rows of all files must have the same types, whichever file is read first. So one folder
        # such as ``year=unknown`` makes the column one of strings everywhere.
        if self._partitions is None:
            found: dict[str, bool] = {}
            for path in self._paths():
                for key, value in _values_in(path_name(path)).items():
                    is_number = value is None or _WHOLE_NUMBER.fullmatch(value) is not None
                    found[key] = found.get(key, True) and is_number
            types = self._pa.int64(), self._pa.string()
            self._partitions = {key: types[not are] for key, are in found.items()}
        return {**dict.fromkeys(values, self._pa.string()), **self._partitions}

    def _common_schema(self) -> Any:
        """Return the schema of all files.

        Raises:
            InvalidArgumentError: the files are not known, or their schemas differ too much.
        """
        if self._common is None:
            paths = [path_name(path) for path in self._paths()]
            if not paths:
                raise InvalidArgumentError(
                    "schema: got 'union' for paths that are not known beforehand; expected a"
                    " pyarrow.Schema, or a list of paths"
                )
            schemas = []
            for path in dict.fromkeys(paths):
                try:
                    schemas.append(self._without_dictionaries(self._schema_of(path)))
                except DataLossError:
                    continue  # reading the file raises it again
            try:
                self._common = self._pa.unify_schemas(schemas, promote_options="permissive")
            except (self._pa.ArrowException, TypeError, ValueError) as error:
                raise InvalidArgumentError(
                    f"schema: got 'union' for files that differ too much: {error}; expected a"
                    " pyarrow.Schema that says the types"
                ) from error
        return self._common

    def _without_dictionaries(self, schema: Any) -> Any:
        """Return a schema in which dictionaries have the type of their values, as rows do: another
        file may have stored the same values without one."""
        fields = [
            field.with_type(field.type.value_type)
            if self._pa.types.is_dictionary(field.type)
            else field
            for field in schema
        ]
        return self._pa.schema(fields)

    def _filtered_columns(self, schema: Any, path: str) -> list[str]:
        """Return the columns that the filter needs: without them it cannot be evaluated.

        Raises:
            InvalidArgumentError: the filter does not fit the schema.
        """
        if self.filter is None:
            return []
        # pyarrow does not say which columns an expression needs. So it is tried on an empty table,
        # without each column in turn. Most files have the schema of the file before.
        if self._last is None or not self._last[0].equals(schema):
            empty = self._pa.Table.from_batches([], schema)
            error = self._failure(empty)
            if error is not None:
                shown = on_one_line(str(error).replace("\n", ", "))
                raise InvalidArgumentError(
                    f"filters: got {self.filter}, which does not fit {path}: {shown};"
                    f" expected a filter of some of {schema.names}"
                ) from error
            needed = [
                name
                for at, name in enumerate(schema.names)
                if self._failure(empty.remove_column(at)) is not None
            ]
            self._last = (schema, needed)
        return self._last[1]

    def _failure(self, table: Any) -> Exception | None:
        try:
            table.filter(self.filter)
        except (self._pa.ArrowException, ValueError, TypeError, LookupError) as error:
            return error
        return None


class FileSelection(NamedTuple):
    """What to read of one file."""

    pa: Any
    path: str
    columns: list[str]
    """The columns of a row, in order."""
    names: list[str]
    """All columns that there are."""
    stored: list[str]
    """The columns to read from the file."""
    types: dict[str, Any]
    """The types of the columns of a row, and of those that the filter needs."""
    added: dict[str, Any]
    """The values of the columns that the path has, as ``pyarrow.Scalar``."""
    filter: Any
    filtered: list[str]
    """The columns that the filter needs."""

    def of_filter(self) -> FileSelection | None:
        """Return what the filter alone needs; ``None`` if that is all there is to read."""
        stored = [name for name in self.stored if name in self.filtered]
        if self.filter is None or len(stored) == len(self.stored):
            return None
        types = {name: self.types[name] for name in self.filtered}
        return self._replace(columns=[], stored=stored, types=types)

    def conformed(self, batch: Any) -> Any:
        """Return stored columns with the types that they have in all files, and the others.

        Raises:
            InvalidArgumentError: a value does not fit the type.
        """
        if not self.types:
            return batch
        arrays = [self._column(batch, name, type) for name, type in self.types.items()]
        return self.pa.RecordBatch.from_arrays(arrays, list(self.types))

    def _column(self, batch: Any, name: str, type: Any) -> Any:
        if name in self.added:
            return self.pa.repeat(self.added[name], batch.num_rows)
        if name not in self.stored:
            return self.pa.nulls(batch.num_rows, type)
        column = batch.column(name)
        if column.type.equals(type):
            return column
        try:
            return cast_kept(self.pa, column, type)
        except (self.pa.ArrowInvalid, self.pa.ArrowNotImplementedError, ValueError) as error:
            raise InvalidArgumentError(
                f"schema: got {type} for column {name!r}, which is {column.type} in {self.path};"
                f" expected a type that can hold its values ({error})"
            ) from error

    def kept(self, batch: Any) -> tuple[Any, NDArray[Any] | None]:
        """Return the rows that the filter keeps, and their numbers; ``None`` for all."""
        if self.filter is None:
            return batch, None
        # A filter says nothing about which rows it has kept. Keys and marks count the rows of the
        # file, so their numbers go through the filter as a column.
        numbered = batch.append_column(_ROW, self.pa.array(np.arange(batch.num_rows)))
        table = self.pa.Table.from_batches([numbered]).filter(self.filter).combine_chunks()
        found = table.to_batches()
        rows = found[0] if found else numbered.slice(0, 0)
        numbers = rows.column(_ROW).to_numpy()
        return rows, None if len(numbers) == batch.num_rows else numbers


def _expression(filters: Any) -> Any:
    """Return the filter as an expression.

    Raises:
        InvalidArgumentError: it is neither an expression nor a list of conditions.
    """
    compute = required("pyarrow.compute", "parquet", "filters")
    parquet = required("pyarrow.parquet", "parquet", "filters")
    required("pyarrow.dataset", "parquet", "filters")
    if isinstance(filters, compute.Expression):
        return filters
    try:
        if not isinstance(filters, list | tuple) or not filters:
            raise TypeError("it is neither a list nor an expression")
        return parquet.filters_to_expression(_listed(filters))
    except (TypeError, ValueError, IndexError) as error:
        raise InvalidArgumentError(
            f"filters: got {filters!r} ({error}); expected a list of conditions, such as"
            ' [("year", ">=", 2024)], or an expression of pyarrow.dataset'
        ) from error


def _listed(filters: Sequence[Any]) -> list[Any]:
    """Return a list of conditions, or of lists of them; a single condition becomes a list."""
    is_single = len(filters) == 3 and isinstance(filters[0], str)
    return [tuple(filters)] if is_single else list(filters)


def _values_in(path: str) -> dict[str, str | None]:
    """Return the values that the folders of a path name, by column."""
    found: dict[str, str | None] = {}
    for folder in path.replace("\\", "/").split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if equals and name:
            found[_text_of(name, path)] = None if value == _NULL else _text_of(value, path)
    return found


def _text_of(quoted: str, path: str) -> str:
    try:
        return unquote(quoted, errors="strict")
    except UnicodeDecodeError as error:  # one replacement for all of them would mix folders
        raise InvalidArgumentError(
            f"partitioning: got 'hive' for {path}, where {quoted!r} is not UTF-8 behind its percent"
            " signs; expected None, or folders with other names"
        ) from error


class Portion(NamedTuple):
    """Rows that were read together."""

    number: int
    """The number of their row group or record batch."""
    row: int
    """The number of the first row in it."""
    first: int
    """The number of the first row in the file."""
    rows: Any
    """A ``pyarrow.RecordBatch``."""
    offset: int
    """The offset of the row group or record batch, in bytes."""
    kept: NDArray[Any] | None = None
    """The numbers of the rows, counted from ``first``; ``None`` if they are consecutive."""

    @property
    def mark(self) -> tuple[int, int, int]:
        """The mark of the first row."""
        return self.number, self.row, self.first

    @property
    def numbers(self) -> Any:
        """The numbers of the rows in the file."""
        if self.kept is not None:
            return (self.first + self.kept).tolist()
        return range(self.first, self.first + self.rows.num_rows)

    def behind(self, count: int) -> Portion:
        rows = self.rows.slice(count)
        if self.kept is None or not rows.num_rows:  # without rows, there is no first one
            return self._replace(row=self.row + count, first=self.first + count, rows=rows)
        # The mark moves to the next row that is kept: those between were filtered out.
        left_out = int(self.kept[count])
        kept = self.kept[count:] - left_out
        return self._replace(
            row=self.row + left_out, first=self.first + left_out, rows=rows, kept=kept
        )


def beginning_at(row: int, portions: Iterator[Portion]) -> Iterator[Portion]:
    """Skip this many rows of the first row group or record batch."""
    # The run that made the mark may have cut the row group at other rows. So the mark may be in the
    # middle of a portion, or behind several.
    number: int | None = None
    for portion in portions:
        if number is None:
            number = portion.number
        left_out = row - portion.row if portion.number == number else 0
        if left_out >= portion.rows.num_rows:
            continue
        yield portion.behind(left_out) if left_out > 0 else portion


def of_size(pa: Any, portions: Iterator[Portion], size: int) -> Iterator[Portion]:
    """Regroup rows to ``size`` at a time; fewer at the end, or before damage."""
    held: list[Any] = []
    begin: Portion | None = None
    count = 0
    try:
        for portion in portions:
            left = portion
            while left.rows.num_rows:
                # The first row may come behind rows that a filter has left out.
                begin = begin or left
                taken = min(size - count, left.rows.num_rows)
                held.append(left.rows.slice(0, taken))
                count += taken
                left = left.behind(taken)
                if count == size:
                    yield begin._replace(rows=_joined(pa, held))
                    held, begin, count = [], None, 0
    except DataLossError:
        if begin is not None:  # rows before the damage are sound, also if they fill no batch
            yield begin._replace(rows=_joined(pa, held))
        raise
    if begin is not None:
        yield begin._replace(rows=_joined(pa, held))


def _joined(pa: Any, batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
