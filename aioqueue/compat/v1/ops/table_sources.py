"""What lookup tables are filled with: tensors, and the lines of text files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core import default_graph, dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.core.scopes import GraphKeys, add_to_collection, name_scope
from aioqueue.compat.v1.ops.building import array
from aioqueue.compat.v1.ops.files import read_bytes

__all__ = (
    "Fillable",
    "KeyValueTensorInitializer",
    "NameInitializer",
    "NumberInitializer",
    "TextFileIdTableInitializer",
    "TextFileIndex",
    "TextFileInitializer",
    "TextFileStringTableInitializer",
)


class Fillable(Protocol):
    """A table, as what fills it sees it."""

    def fill(self, step: Any, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Put keys and values into the table of a session."""


class TextFileIndex:
    """What a column of a text file is, other than a number."""

    WHOLE_LINE = -2
    LINE_NUMBER = -1


class KeyValueTensorInitializer:
    """Fills a table from two tensors.

    Args:
        keys: a vector.
        values: one of the same length.
        key_dtype: the keys' dtype, if they are no tensor.
        value_dtype: the values' dtype, if they are no tensor.
        name: of the op.
    """

    def __init__(
        self,
        keys: Any,
        values: Any,
        key_dtype: Any = None,
        value_dtype: Any = None,
        name: str | None = None,
    ) -> None:
        self._name = name or "key_value_init"
        with name_scope(self._name, None, [keys, values]) as self._name:
            self.keys: Tensor = convert_to_tensor(keys, key_dtype, name="keys")
            self.values: Tensor = convert_to_tensor(values, value_dtype, name="values")
        if self.keys.dtype.is_floating:
            raise TypeError(f"keys: got {self.keys.dtype.name}; expected strings or integers")
        self.key_dtype, self.value_dtype = self.keys.dtype, self.values.dtype

    def initialize(self, table: Fillable) -> Operation:
        """An op that fills a table, in each session for itself."""

        def kernel(step: Any, keys: Any, values: Any) -> None:
            table.fill(step, zip(_listed(keys), _listed(values), strict=True))

        with name_scope(self._name, None, [self.keys, self.values]):
            return default_graph.op(
                "LookupTableImportV2",
                [self.keys, self.values],
                (),
                kernel,
                name="LookupTableImportV2",
            )


class TextFileInitializer:
    """Fills a table from the lines of a text file.

    Args:
        filename: of the file.
        key_dtype: the keys' dtype.
        key_index: the column that the keys are in, or one of `TextFileIndex`.
        value_dtype: the values' dtype.
        value_index: the same for the values.
        vocab_size: how many lines there are; None for all.
        delimiter: what is between columns.
        name: of the op.
        value_index_offset: what is added to the number of a line.

    Raises:
        ValueError: a whole line is to be a number, or the number of a line a string.
    """

    def __init__(
        self,
        filename: Any,
        key_dtype: Any,
        key_index: int,
        value_dtype: Any,
        value_index: int,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str | None = None,
        value_index_offset: int = 0,
    ) -> None:
        self.key_dtype, self.value_dtype = dtypes.as_dtype(key_dtype), dtypes.as_dtype(value_dtype)
        for what, index, dtype in (
            ("key", key_index, self.key_dtype),
            ("value", value_index, self.value_dtype),
        ):
            if index == TextFileIndex.LINE_NUMBER and dtype != dtypes.int64:
                raise ValueError(f"{what}: the number of a line is int64, got {dtype.name}")
            if index == TextFileIndex.WHOLE_LINE and dtype != dtypes.string:
                raise ValueError(f"{what}: a whole line is a string, got {dtype.name}")
        self._filename = filename
        self._columns = key_index, value_index
        self._size = vocab_size
        self._delimiter = delimiter.encode()
        self._name = name or "text_file_init"
        self._offset = value_index_offset

    def initialize(self, table: Fillable) -> Operation:
        """An op that fills a table, in each session for itself."""
        with name_scope(self._name, None, []):
            path = convert_to_tensor(self._filename, dtypes.string, name="asset_filepath")
            add_to_collection(GraphKeys.ASSET_FILEPATHS, path)

            def kernel(step: Any, name: bytes) -> None:
                table.fill(step, self._pairs(name))

            return default_graph.op(
                "InitializeTableFromTextFileV2",
                [path],
                (),
                kernel,
                name="InitializeTableFromTextFileV2",
            )

    def _pairs(self, name: bytes) -> list[tuple[Any, Any]]:
        lines = read_bytes(name).split(b"\n")
        if lines and not lines[-1]:
            lines.pop()
        if self._size is not None:
            if len(lines) < self._size:
                raise errors.InvalidArgumentError(
                    None,
                    None,
                    f"Invalid vocab_size in {name.decode()}: expected {self._size} but got"
                    f" {len(lines)}",
                )
            lines = lines[: self._size]
        key, value = self._columns
        return [
            (
                self._field(name, number, line, key, self.key_dtype, 0),
                self._field(name, number, line, value, self.value_dtype, self._offset),
            )
            for number, line in enumerate(lines)
        ]

    def _field(
        self, name: bytes, number: int, line: bytes, index: int, dtype: DType, offset: int
    ) -> Any:
        if index == TextFileIndex.LINE_NUMBER:
            return number + offset
        line = line.removesuffix(b"\r")
        if index == TextFileIndex.WHOLE_LINE:
            return line
        parts = line.split(self._delimiter)
        if index >= len(parts):
            raise errors.InvalidArgumentError(
                None,
                None,
                f"Invalid number of columns in {name.decode()} line {number}"
                f" ({line.decode(errors='replace')}) : expected at least {index + 1} got"
                f" {len(parts)}",
            )
        return parts[index] if dtype == dtypes.string else dtype.numpy.type(parts[index]).item()


class TextFileStringTableInitializer(TextFileInitializer):
    """Fills a table from numbers of lines to strings."""

    def __init__(
        self,
        filename: Any,
        key_column_index: int = TextFileIndex.LINE_NUMBER,
        value_column_index: int = TextFileIndex.WHOLE_LINE,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str = "text_file_string_table_init",
    ) -> None:
        super().__init__(
            filename,
            dtypes.int64,
            key_column_index,
            dtypes.string,
            value_column_index,
            vocab_size,
            delimiter,
            name,
        )


class TextFileIdTableInitializer(TextFileInitializer):
    """Fills a table from strings to numbers of lines."""

    def __init__(
        self,
        filename: Any,
        key_column_index: int = TextFileIndex.WHOLE_LINE,
        value_column_index: int = TextFileIndex.LINE_NUMBER,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str = "text_file_id_table_init",
        key_dtype: Any = dtypes.string,
    ) -> None:
        super().__init__(
            filename,
            key_dtype,
            key_column_index,
            dtypes.int64,
            value_column_index,
            vocab_size,
            delimiter,
            name,
        )


class NumberInitializer:
    """Fills a table from a vector to the numbers of its elements."""

    def __init__(self, keys: Tensor, key_dtype: DType) -> None:
        self.keys = keys
        self.key_dtype, self.value_dtype = key_dtype, dtypes.int64

    def initialize(self, table: Fillable) -> Operation:
        """An op that fills a table, in each session for itself."""

        def kernel(step: Any, keys: Any) -> None:
            table.fill(step, ((key, number) for number, key in enumerate(_listed(keys))))

        with name_scope("table_init", None, [self.keys]):
            return default_graph.op(
                "LookupTableImportV2",
                [self.keys],
                (),
                kernel,
                name="LookupTableImportV2",
            )


class NameInitializer:
    """Fills a table from the numbers of a vector's elements to them."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.key_dtype, self.value_dtype = dtypes.int64, values.dtype

    def initialize(self, table: Fillable) -> Operation:
        """An op that fills a table, in each session for itself."""

        def kernel(step: Any, values: Any) -> None:
            table.fill(step, enumerate(_listed(values)))

        with name_scope("table_init", None, [self.values]):
            return default_graph.op(
                "LookupTableImportV2",
                [self.values],
                (),
                kernel,
                name="LookupTableImportV2",
            )


def _listed(values: Any) -> list[Any]:
    found: list[Any] = array(values).ravel().tolist()
    return found
