"""Text and bytes to numbers: `string_to_number`, `decode_raw`, `decode_csv`, base64."""

from __future__ import annotations

import base64
import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import as_bytes, convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import OpBuilder, Pure, array, invalid
from aioqueue.compat.v1.ops.text import map_strings

__all__ = (
    "decode_base64",
    "decode_csv",
    "decode_raw",
    "encode_base64",
    "string_to_number",
)

_WEB_SAFE = frozenset((string.ascii_letters + string.digits + "-_").encode())
_NUMBERS = frozenset(("float32", "float64", "int32", "int64"))
_LIMITS = {one.name: (one.min, one.max) for one in (dtypes.int32, dtypes.int64)}


def _number(text: bytes, dtype: DType) -> Any:
    """The number that a text means.

    Raises:
        ValueError: it means none, or one that `dtype` cannot hold.
    """
    if b"_" in text:
        raise ValueError(text)  # Python's own way of writing numbers
    limits = _LIMITS.get(dtype.name)
    if limits is None:
        return float(text)
    number = int(text)
    if not limits[0] <= number <= limits[1]:
        raise ValueError(text)
    return number


def string_to_number(
    string_tensor: Any = None,
    out_type: Any = dtypes.float32,
    name: str | None = None,
    input: Any = None,
) -> Tensor:
    """The numbers that strings mean.

    Args:
        string_tensor: strings.
        out_type: float32, float64, int32 or int64.
        name: name of the op.
        input: another name of `string_tensor`.

    Raises:
        InvalidArgumentError: when it runs: a string means no number of that type.
    """
    wanted = dtypes.as_dtype(out_type)
    if wanted.name not in _NUMBERS:
        raise TypeError(f"out_type: got {wanted!r}; expected one of {', '.join(sorted(_NUMBERS))}")

    def number(text: bytes) -> Any:
        try:
            return _number(text, wanted)
        except ValueError:
            shown = text.decode(errors="replace")
            raise invalid(f"StringToNumberOp could not correctly convert string: {shown}") from None

    def numbers(texts: Any) -> Any:
        if isinstance(texts, bytes):
            return wanted.numpy.type(number(texts))
        found = [number(text) for text in texts.ravel().tolist()]
        return np.array(found, wanted.numpy).reshape(texts.shape)

    with OpBuilder("StringToNumber", name) as op:
        texts = op.tensor(
            input if string_tensor is None else string_tensor, "string_tensor", dtypes.string
        )
        return op.output(wanted, texts.shape.as_tuple(), Pure(numbers))


def decode_raw(
    input_bytes: Any = None,
    out_type: Any = None,
    little_endian: bool = True,
    name: str | None = None,
    bytes: Any = None,
) -> Tensor:
    """Strings as the bytes of numbers.

    Args:
        input_bytes: strings, all of one length.
        out_type: the numbers' dtype.
        little_endian: whether their first byte is the lowest.
        name: name of the op.
        bytes: the old name of `input_bytes`.

    Returns:
        The shape of the strings, and a last axis for the numbers of each.

    Raises:
        InvalidArgumentError: when it runs: the length is no multiple of a number's size, or
            differs between strings.
    """
    given = bytes if input_bytes is None else input_bytes
    if given is None or out_type is None:
        raise ValueError("decode_raw: input_bytes and out_type must be given")
    wanted = dtypes.as_dtype(out_type)
    stored = wanted.numpy.newbyteorder("<" if little_endian else ">")

    def numbers(texts: Any) -> Any:
        rows = np.ravel(np.asarray(texts, object)).tolist()
        size = len(rows[0]) if rows else 0
        for place, row in enumerate(rows):
            if len(row) != size:
                raise invalid(
                    "DecodeRaw requires input strings to all be the same size, but element"
                    f" {place} has size {size} != {len(row)}"
                )
        if size % wanted.size:
            raise invalid(
                f"Input to DecodeRaw has length {size} that is not a multiple of {wanted.size},"
                f" the size of {_c_name(wanted)}"
            )
        whole = np.frombuffer(b"".join(rows), stored).astype(wanted.numpy)
        return whole.reshape((*np.shape(texts), size // wanted.size))

    with OpBuilder("DecodeRaw", name) as op:
        texts = op.tensor(given, "input_bytes", dtypes.string)
        static = texts.shape.as_tuple()
        return op.output(wanted, None if static is None else (*static, None), Pure(numbers))


def _c_name(dtype: DType) -> str:
    """A dtype as TensorFlow's messages call it."""
    return {"float16": "half", "float32": "float", "float64": "double"}.get(dtype.name, dtype.name)


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
        ValueError: an argument is none of what it may be.
        InvalidArgumentError: when it runs: a record has another number of fields, a field is
            missing, or means no number.
    """
    if len(as_bytes(field_delim)) != 1:
        raise ValueError(f"field_delim should be only 1 char, got {field_delim!r}")
    if not record_defaults:
        raise ValueError("record_defaults is empty; expected one entry per column")
    columns = None if select_cols is None else [int(one) for one in select_cols]
    if columns is not None and (
        sorted(set(columns)) != columns or min(columns, default=0) < 0
        or len(columns) != len(record_defaults)
    ):  # fmt: skip
        raise ValueError(
            f"select_cols: got {select_cols!r}; expected {len(record_defaults)} ascending columns"
        )

    with OpBuilder("DecodeCSV", name) as op:
        texts = op.tensor(records, "records", dtypes.string)
        kinds = []
        for place, given in enumerate(record_defaults):
            tensor = op.tensor(_default(given), f"record_defaults_{place}")
            if tensor.dtype.name not in _NUMBERS | {"string"}:
                raise TypeError(
                    f"record_defaults[{place}]: got {tensor.dtype.name}; expected float32, float64,"
                    " int32, int64 or string"
                )
            if (tensor.shape.num_elements() or 0) > 1 or (tensor.shape.ndims or 0) > 1:
                raise op.refuse(
                    "Shape of a default must be a length-0 or length-1 vector, or a scalar."
                )
            kinds.append(tensor.dtype)
        parser = _Csv(as_bytes(field_delim), use_quote_delim, as_bytes(na_value), columns, kinds)
        shape = texts.shape.as_tuple()
        return op.outputs([(kind, shape) for kind in kinds], Pure(parser))


def _default(given: Any) -> Any:
    """A default as a tensor; a dtype, or an empty list, stands for a field that must be there."""
    if isinstance(given, DType):
        return convert_to_tensor(
            np.zeros(0, given.numpy) if given != dtypes.string else np.zeros(0, object), dtype=given
        )
    return given


class _Csv:
    """The kernel of `decode_csv`."""

    __slots__ = ("_columns", "_delimiter", "_empty", "_kinds", "_quotes")

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
        self._empty = (b"", na_value)
        self._columns = columns
        self._kinds = kinds

    def __call__(self, records: Any, *defaults: Any) -> Any:
        """The columns."""
        if isinstance(records, bytes):
            fields = self._fields(records, 0)
            found = [
                kind.numpy.type(value) if kind is not dtypes.string else value
                for kind, value in zip(self._kinds, self._values(fields, defaults, 0), strict=True)
            ]
            return tuple(found) if len(found) > 1 else found[0]
        rows = [
            self._values(self._fields(text, row), defaults, row)
            for row, text in enumerate(records.ravel().tolist())
        ]
        columns = []
        for place, kind in enumerate(self._kinds):
            column = np.empty(len(rows), kind.numpy)
            column[:] = [row[place] for row in rows]
            columns.append(column.reshape(records.shape))
        return tuple(columns) if len(columns) > 1 else columns[0]

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
                    values.append(_number(field, kind))
                except ValueError:
                    shown = field.decode(errors="replace")
                    raise invalid(
                        f"Field {column} in record {row} is not a valid {_c_name(kind)}: {shown}"
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
        """The fields of a record with quotes or line ends in it."""
        fields = []
        place = 0
        while place < len(record):
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


def encode_base64(input: Any, pad: bool = False, name: str | None = None) -> Tensor:
    """Strings in web-safe base64, with ``=`` behind them if `pad`."""

    def encoded(text: bytes) -> bytes:
        made = base64.urlsafe_b64encode(text)
        return made if pad else made.rstrip(b"=")

    return map_strings("EncodeBase64", encoded, input, name)


def decode_base64(input: Any, name: str | None = None) -> Tensor:
    """What strings in web-safe base64 stand for.

    Raises:
        InvalidArgumentError: when it runs: a string is no base64.
    """

    def decoded(text: bytes) -> bytes:
        stripped = text.rstrip(b"=")
        if not _WEB_SAFE.issuperset(stripped):
            raise invalid("Invalid character found in base64.")
        if len(stripped) % 4 == 1:
            raise invalid("Base64 string length cannot be 1 modulo 4.")
        return base64.urlsafe_b64decode(stripped + b"=" * (-len(stripped) % 4))

    return map_strings("DecodeBase64", decoded, input, name)
