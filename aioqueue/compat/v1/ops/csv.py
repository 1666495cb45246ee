"""`decode_csv`: the fields of comma-separated records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import as_bytes, convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import OpBuilder, Pure, array, invalid
from aioqueue.compat.v1.ops.numbers import NUMERIC, c_name, parse_column, parse_number

__all__ = ("CsvKernel", "decode_csv")

ALLOWED = NUMERIC | {"string"}
"""The dtypes that columns may have."""


def decode_csv(
    records: Any,
    record_defaults: Sequence[Any],
    field_delim: str = ",",
    use_quote_delim: bool = True,
    name: str | None = None,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
) -> list[Tensor]:
    """The fields of comma-separated records (RFC 4180), one tensor per column.

    Args:
        records: strings, each a record.
        record_defaults: per column a dtype's example: a vector with the value of empty fields,
            or an empty one (or a dtype) if the field must be there.
        field_delim: one character.
        use_quote_delim: whether fields may stand between quotes.
        name: name of the op.
        na_value: another text that means an empty field.
        select_cols: the columns to read, ascending; all if left out.

    Returns:
        Tensors of the shape of `records`.

    Raises:
        ValueError: an argument has a value that is not allowed.
        TypeError: the defaults are not a list, or a dtype is not supported.
        InvalidArgumentError: when it runs: a record has another number of fields, a field is
            missing, or means no number.
    """
    columns = _checked_columns(record_defaults, select_cols)
    with OpBuilder("DecodeCSV", name) as op:
        texts = op.tensor(records, "records", dtypes.string)
        kinds = []
        for place, given in enumerate(record_defaults):
            tensor = op.tensor(_default(given), f"record_defaults_{place}")
            if tensor.dtype.name not in ALLOWED:
                raise TypeError(
                    "Value passed to parameter 'record_defaults' has DataType"
                    f" {tensor.dtype.name} not in list of allowed values:"
                    f" {', '.join(sorted(ALLOWED))}"
                )
            if (tensor.shape.ndims or 0) > 1:
                rank = tensor.shape.ndims
                raise op.refuse(f"Shape must be at most rank 1 but is rank {rank}")
            if (tensor.shape.num_elements() or 0) > 1:
                raise op.refuse(
                    "Shape of a default must be a length-0 or length-1 vector, or a scalar."
                )
            kinds.append(tensor.dtype)
        parser = CsvKernel(
            as_bytes(field_delim), use_quote_delim, as_bytes(na_value), columns, kinds
        )
        shape = texts.shape.as_tuple()
        return op.outputs([(kind, shape) for kind in kinds], Pure(parser))


def _checked_columns(defaults: Any, select_cols: Sequence[int] | None) -> list[int] | None:
    """The numbers of the columns to read; None for all.

    Raises:
        ValueError: they are not ascending, or not as many as defaults.
        TypeError: the defaults are no list.
    """
    if not isinstance(defaults, list | tuple | np.ndarray):
        raise TypeError(
            f"Expected list for 'record_defaults' argument to 'DecodeCSV' Op, not {defaults}."
        )
    columns = None if select_cols is None else [int(one) for one in select_cols]
    if columns is not None:
        if any(two <= one for one, two in pairwise(columns)):
            raise ValueError("select_cols is not strictly increasing.")
        if columns and columns[0] < 0:
            raise ValueError("select_cols contains negative values.")
        if len(columns) != len(defaults):
            raise ValueError("Length of select_cols and record_defaults do not match.")
    if not len(defaults):
        raise ValueError(
            "Attr 'OUT_TYPE' of 'DecodeCSV' Op passed list of length 0 less than minimum 1."
        )
    return columns


def _default(given: Any) -> Any:
    """A default as a tensor; a dtype, or an empty list, stands for a field that must be there."""
    if isinstance(given, DType):
        return convert_to_tensor(
            np.zeros(0, given.numpy) if given != dtypes.string else np.zeros(0, object), dtype=given
        )
    return given


class CsvKernel:
    """The kernel of `decode_csv`."""

    __slots__ = ("_columns", "_delimiter", "_empty", "_kinds", "_marks", "_quotes")

    def __init__(
        self,
        delimiter: bytes,
        quotes: bool,
        na_value: bytes,
        columns: list[int] | None,
        kinds: Sequence[DType],
    ) -> None:
        self._delimiter = delimiter
        self._quotes = quotes
        self._empty = (b"", na_value) if na_value else (b"",)
        numeric = any(kind is not dtypes.string for kind in kinds)
        # With one of these, records are read one after another. Python's numbers may have
        # underscores, and TensorFlow's not.
        self._marks = (b"\n", b"\r", *([b'"'] if quotes else []), *([b"_"] if numeric else []))
        self._columns = columns
        self._kinds = kinds

    def __call__(self, records: Any, *defaults: Any) -> Any:
        """The columns."""
        if len(self._delimiter) != 1:
            raise invalid("field_delim should be only 1 char")
        if isinstance(records, bytes):
            fields = self._fields(records, 0)
            found = [
                kind.numpy.type(value) if kind is not dtypes.string else value
                for kind, value in zip(self._kinds, self._values(fields, defaults, 0), strict=True)
            ]
            return tuple(found) if len(found) > 1 else found[0]
        texts = records.ravel().tolist()
        at_once = self._at_once(texts, defaults)
        if at_once is not None:
            found = [column.reshape(records.shape) for column in at_once]
            return tuple(found) if len(found) > 1 else found[0]
        # One record after another: slower, and it finds out which field is wrong.
        rows = [
            self._values(self._fields(text, row), defaults, row) for row, text in enumerate(texts)
        ]
        columns = []
        for place, kind in enumerate(self._kinds):
            column = np.empty(len(rows), kind.numpy)
            column[:] = [row[place] for row in rows]
            columns.append(column.reshape(records.shape))
        return tuple(columns) if len(columns) > 1 else columns[0]

    def _at_once(self, texts: list[bytes], defaults: Sequence[Any]) -> list[NDArray[Any]] | None:
        """The columns of plain records, each read by one call; None if a record is not plain."""
        whole = b"".join(texts)
        if not texts or not all(texts) or any(mark in whole for mark in self._marks):
            return None
        rows = [text.split(self._delimiter) for text in texts]
        width = len(rows[0])
        if any(len(row) != width for row in rows):
            return None
        fields = list(zip(*rows, strict=True))
        if self._columns is not None:
            if self._columns[-1] >= width:
                return None
            fields = [fields[one] for one in self._columns]
        if len(fields) != len(self._kinds):
            return None
        columns = []
        for texts_of, kind, default in zip(fields, self._kinds, defaults, strict=True):
            column = self._column(texts_of, kind, default)
            if column is None:
                return None
            columns.append(column)
        return columns

    def _column(self, texts: tuple[bytes, ...], kind: DType, default: Any) -> NDArray[Any] | None:
        if any(empty in texts for empty in self._empty):
            if np.size(default) == 0:
                return None
            filler = array(default).item()
            places = [place for place, text in enumerate(texts) if text in self._empty]
            there = tuple(text for text in texts if text not in self._empty)
            found = self._column(there, kind, default) if there else np.empty(0, kind.numpy)
            if found is None:
                return None
            mask = np.ones(len(texts), np.bool_)
            mask[places] = False
            column = np.empty(len(texts), kind.numpy)
            column[:] = filler
            column[mask] = found
            return column
        if kind is not dtypes.string:
            return parse_column(texts, kind)
        column = np.empty(len(texts), object)
        column[:] = texts
        return column

    def _values(self, fields: list[bytes], defaults: Sequence[Any], row: int) -> list[Any]:
        """What the fields of a record mean."""
        values: list[Any] = []
        for column, (field, kind) in enumerate(zip(fields, self._kinds, strict=True)):
            if field in self._empty:
                if np.size(defaults[column]) == 0:
                    raise invalid(f"Field {column} is required but missing in record {row}!")
                values.append(array(defaults[column]).item())
            elif kind is dtypes.string:
                values.append(field)
            else:
                try:
                    values.append(parse_number(field, kind))
                except ValueError:
                    shown = field.decode(errors="replace")
                    raise invalid(
                        f"Field {column} in record {row} is not a valid {c_name(kind)}: {shown}"
                    ) from None
        return values

    def _fields(self, record: bytes, row: int) -> list[bytes]:
        plain = b"\n" not in record and b"\r" not in record
        if plain and not (self._quotes and b'"' in record):
            fields = record.split(self._delimiter) if record else []
        else:
            fields = self._scanned(record)
        if self._columns is not None:
            fields = [fields[one] for one in self._columns if one < len(fields)]
        if len(fields) != len(self._kinds):
            raise invalid(
                f"Expect {len(self._kinds)} fields but have {len(fields)} in record {row}"
            )
        return fields

    def _scanned(self, record: bytes) -> list[bytes]:
        """The fields of a record with quotes or line ends in it, up to the last one wanted."""
        fields: list[bytes] = []
        place = 0
        most = len(record) if self._columns is None else self._columns[-1] + 1
        while place < len(record):
            if len(fields) == most:
                return fields  # the rest of the record need not be well formed
            if record[place] in b"\r\n":  # before a field they mean nothing
                place += 1
            elif self._quotes and record[place] == ord('"'):
                field, place = self._quoted(record, place + 1)
                fields.append(field)
            else:
                end = record.find(self._delimiter, place)
                end = len(record) if end < 0 else end
                field = record[place:end]
                if (self._quotes and b'"' in field) or b"\n" in field or b"\r" in field:
                    raise invalid("Unquoted fields cannot have quotes/CRLFs inside")
                fields.append(field)
                place = end + 1
        if record.endswith(self._delimiter):
            fields.append(b"")
        return fields

    def _quoted(self, record: bytes, place: int) -> tuple[bytes, int]:
        """A field from behind its opening quote, and where the next one begins."""
        field = bytearray()
        while True:
            end = record.find(b'"', place)
            if end < 0:
                raise invalid("Quoted field has to end with quote followed by delim or end")
            field += record[place:end]
            after = record[end + 1 : end + 2]
            if after in (b"", self._delimiter):
                return bytes(field), end + 2
            if after != b'"':
                raise invalid("Quote inside a string has to be escaped by another quote")
            field += b'"'
            place = end + 2
