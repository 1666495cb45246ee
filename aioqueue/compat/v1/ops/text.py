"""Strings, which are `bytes`. Regular expressions are Python's, nearly all that RE2 has."""

from __future__ import annotations

import base64
import re
import string
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from operator import methodcaller
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import as_bytes, convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor, named
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.ops.building import (
    INDICES,
    OpBuilder,
    Pure,
    array,
    invalid,
    merge,
    shape_text,
)
from aioqueue.compat.v1.ops.effects import c_name
from aioqueue.compat.v1.ops.sparse import SparseTensor

__all__ = (
    "as_string", "decode_base64", "decode_csv", "decode_raw", "encode_base64", "regex_replace",
    "string_join", "string_split", "string_strip", "string_to_number", "substr",
)  # fmt: skip

NUMERIC = frozenset(("float32", "float64", "int32", "int64"))

_LIMITS = {one.name: (one.min, one.max) for one in (dtypes.int32, dtypes.int64)}
_NAN = re.compile(rb"\s*[-+]?nan\(\w*\)\s*", re.IGNORECASE)
_HEXADECIMAL = re.compile(rb"\s*[-+]?0x[0-9a-f.]+(p[-+]?\d+)?\s*", re.IGNORECASE)
_BELOW_FLOAT32 = 0x1FFFFFFF
_HALF = 0x10000000


def parse_number(text: bytes, dtype: DType) -> Any:
    if b"_" in text:
        raise ValueError(text)  # Python's own way of writing numbers
    limits = _LIMITS.get(dtype.name)
    if limits is None:
        return _float(text, dtype)
    number = int(text)
    if not limits[0] <= number <= limits[1]:
        raise ValueError(text)
    return number


def _float(text: bytes, dtype: DType) -> float:
    try:
        number = float(text)
    except ValueError:
        if _HEXADECIMAL.fullmatch(text):
            return float.fromhex(text.decode())
        if _NAN.fullmatch(text):
            return float("nan")
        raise
    if dtype == dtypes.float32 and _is_between(np.array([number])).any():
        return _rounded_once(text, number)
    return number


def _is_between(numbers: NDArray[np.float64]) -> Any:
    """Which numbers are as far from one float32 as from the next: rounding twice may err there."""
    return (numbers.view(np.int64) & _BELOW_FLOAT32) == _HALF


def _rounded_once(text: bytes, number: float) -> float:
    """The float32 nearest to a text, whose nearest float64 is between two of them."""
    exact, half = Fraction(text.decode().strip()), Fraction(number)
    if exact == half:
        return number
    towards = np.inf if exact > half else -np.inf
    return float(np.nextafter(number, towards))


def parse_column(texts: tuple[bytes, ...], dtype: DType) -> NDArray[Any] | None:
    """The numbers that many texts mean, all at once; None if one must be read by itself."""
    reader: Any = float if dtype.is_floating else int
    try:
        numbers = np.fromiter(
            map(reader, texts), np.float64 if dtype.is_floating else dtype.numpy, len(texts)
        )
    except (ValueError, OverflowError):
        return None
    if dtype != dtypes.float32:
        return numbers
    if _is_between(numbers).any():
        return None
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


_WHITESPACE = b" \t\n\v\f\r"


def _each(function: Callable[[bytes], Any], texts: Any, dtype: Any = object) -> Any:
    """`function` of every string of an array, or of the one that there is, as an array."""
    if isinstance(texts, bytes):
        return np.array(function(texts), dtype) if dtype is not object else function(texts)
    result = np.empty(texts.shape, dtype)
    result.ravel()[:] = [function(text) for text in texts.ravel().tolist()]
    return result


def map_strings(
    op_type: str,
    function: Callable[[bytes], Any],
    value: Any,
    name: str | None,
    result: Any = dtypes.string,
    argument: str = "input",
) -> Tensor:
    """An op that makes something of each string by itself."""
    with OpBuilder(op_type, name) as op:
        texts = op.tensor(value, argument, dtypes.string)
        kernel = Pure(lambda texts: _each(function, texts, result.as_numpy_dtype))
        return op.output(result, texts.shape.as_tuple(), kernel)


def _cased(name: str, case: str) -> Callable[..., Tensor]:
    change = methodcaller(case)

    def cased(input: Any, encoding: str = "", name: str | None = None) -> Tensor:
        if encoding not in ("", "utf-8"):
            raise ValueError(f"encoding: got {encoding!r}; expected '' or 'utf-8'")
        function = (lambda text: change(text.decode()).encode()) if encoding else change
        return map_strings(f"String{case.capitalize()}", function, input, name)

    return named(cased, name, f"Letters in {case} case: those of ASCII, or all in ``utf-8``.")


string_lower: Callable[..., Tensor] = _cased("string_lower", "lower")
string_upper: Callable[..., Tensor] = _cased("string_upper", "upper")


def string_strip(input: Any, name: str | None = None) -> Tensor:
    """White space at both ends removed."""
    return map_strings("StringStrip", lambda text: text.strip(_WHITESPACE), input, name)


def string_length(input: Any, name: str | None = None, unit: str = "BYTE") -> Tensor:
    """How many bytes, or characters if `unit` is ``"UTF8_CHAR"``."""
    function = _counted(unit)
    return map_strings("StringLength", function, input, name, dtypes.int32)


def _counted(unit: str) -> Callable[[bytes], int]:
    if unit not in ("BYTE", "UTF8_CHAR"):
        raise ValueError(f"unit: got {unit!r}; expected 'BYTE' or 'UTF8_CHAR'")
    return len if unit == "BYTE" else lambda text: len(text.decode(errors="replace"))


def regex_replace(
    input: Any, pattern: Any, rewrite: Any, replace_global: bool = True, name: str | None = None
) -> Tensor:
    """Matches of a regular expression replaced."""

    def replaced(texts: Any, pattern: Any, rewrite: Any) -> Any:
        try:
            expression = re.compile(pattern)
        except re.error as error:
            raise invalid(f"Invalid pattern: {pattern!r}, error: {error}") from None
        parts = re.split(rb"\\([0-9\\])", rewrite)

        def rewritten(match: re.Match[bytes]) -> bytes:
            # Odd parts are what a backslash stood before.
            return b"".join(
                (match[int(part)] or b"" if part != b"\\" else part) if place % 2 else part
                for place, part in enumerate(parts)
            )

        return _each(lambda text: expression.sub(rewritten, text, not replace_global), texts)

    is_static = isinstance(pattern, str | bytes) and isinstance(rewrite, str | bytes)
    with OpBuilder("StaticRegexReplace" if is_static else "RegexReplace", name) as op:
        texts = op.tensor(input, "input", dtypes.string)
        op.tensor(pattern, "pattern", dtypes.string)
        op.tensor(rewrite, "rewrite", dtypes.string)
        return op.output(dtypes.string, texts.shape.as_tuple(), Pure(replaced))


def substr(input: Any, pos: Any, len: Any, name: str | None = None, unit: str = "BYTE") -> Tensor:
    """Pieces of strings."""
    _counted(unit)

    def pieces(texts: Any, starts: Any, lengths: Any) -> Any:
        texts, starts, lengths = np.broadcast_arrays(np.asarray(texts, object), starts, lengths)
        result = np.empty(texts.shape, object)
        rows = zip(
            texts.ravel().tolist(), starts.ravel().tolist(), lengths.ravel().tolist(), strict=True
        )
        result.ravel()[:] = [_piece(*row, unit, place) for place, row in enumerate(rows)]
        return result

    with OpBuilder("Substr", name) as op:
        texts = op.tensor(input, "input", dtypes.string)
        starts, lengths = op.alike(INDICES, pos=pos, len=len)
        return op.output(dtypes.string, op.broadcast(texts, starts, lengths), Pure(pieces))


def _piece(text: bytes, start: int, length: int, unit: str, place: int) -> bytes:
    whole: Any = text if unit == "BYTE" else text.decode(errors="replace")
    size = len(whole)
    if not -size <= start <= size:
        shown = text.decode(errors="replace")
        raise invalid(f"pos {start} out of range for string b'{shown}' at index {place}")
    start = start + size if start < 0 else start
    part: str | bytes = whole[start : start + length]
    return as_bytes(part)


def string_join(
    inputs: Sequence[Any], separator: str | bytes = "", name: str | None = None
) -> Tensor:
    """Strings of several tensors joined, element by element; scalars go with every element."""
    between = as_bytes(separator)

    def joined(*parts: Any) -> Any:
        shapes = [np.shape(part) for part in parts if np.ndim(part)]
        if any(shape != shapes[0] for shape in shapes):
            other = next(shape for shape in shapes if shape != shapes[0])
            raise invalid(
                f"Input shapes do not match: {shape_text(shapes[0])} vs. {shape_text(other)}"
            )
        rows = np.broadcast_arrays(*(np.asarray(part, object) for part in parts))
        result = np.empty(rows[0].shape, object)
        columns = zip(*(row.ravel().tolist() for row in rows), strict=True)
        result.ravel()[:] = [between.join(column) for column in columns]
        return result

    with OpBuilder("StringJoin", name) as op:
        tensors = op.alike_list(list(inputs), "inputs", dtypes.string)
        if not tensors:
            raise ValueError("string_join: inputs is empty; expected at least one tensor")
        shape: Any = ()
        for tensor in tensors:
            static = tensor.shape.as_tuple()
            if static == ():
                continue
            try:
                shape = static if shape == () else merge(shape, static)
            except ValueError as error:
                raise op.refuse(str(error)) from None
        return op.output(dtypes.string, shape, Pure(joined))


def string_split(
    source: Any,
    sep: Any = None,
    skip_empty: bool = True,
    delimiter: Any = None,
    result_type: str = "SparseTensor",
    name: str | None = None,
) -> SparseTensor:
    """The pieces of each string of a vector, sparse: there are no ragged tensors here."""
    given = sep if delimiter is None else delimiter

    def pieces(text: bytes, delimiters: bytes) -> list[bytes]:
        if not delimiters or not text:  # nothing has no pieces, not even an empty one
            parts = [text[place : place + 1] for place in range(len(text))]
        else:
            parts = re.split(b"[" + re.escape(delimiters) + b"]", text)
        return [part for part in parts if part] if skip_empty else parts

    return _split("StringSplit", source, " " if given is None else given, pieces, result_type, name)


def string_split_v2(
    input: Any = None,
    sep: Any = None,
    maxsplit: int = -1,
    result_type: str = "SparseTensor",
    source: Any = None,
    name: str | None = None,
) -> SparseTensor:
    """The pieces of each string, as `str.split` makes them; sparse, as of `string_split`."""

    def pieces(text: bytes, separator: bytes) -> list[bytes]:
        return text.split(separator or None, maxsplit)

    texts = input if source is None else source
    with name_scope(name, "StringSplit"):
        return _split("StringSplitV2", texts, sep or "", pieces, result_type, None)


def _split(
    op_type: str,
    source: Any,
    separator: Any,
    pieces: Callable[[bytes, bytes], list[bytes]],
    result_type: str,
    name: str | None,
) -> SparseTensor:
    if result_type != "SparseTensor":
        raise ValueError(f"result_type: got {result_type!r}; expected 'SparseTensor'")

    def split(texts: Any, separator: bytes) -> Any:
        texts = np.atleast_1d(np.asarray(texts, object))
        rows = [pieces(text, separator) for text in texts.tolist()]
        widest = max(map(len, rows), default=0)
        values = np.empty(sum(map(len, rows)), object)
        values[:] = [piece for row in rows for piece in row]
        places = [(place, column) for place, row in enumerate(rows) for column in range(len(row))]
        indices = np.array(places, np.int64).reshape(-1, 2)
        return indices, values, np.array([len(rows), widest], np.int64)

    with OpBuilder(op_type, name) as op:
        texts = op.tensor(source, "input", dtypes.string)
        op.tensor(separator, "delimiter", dtypes.string)
        if texts.shape.ndims not in (None, 0, 1):
            raise op.refuse(f"Shape must be rank 1 but is rank {texts.shape.ndims}")
        outputs = [(dtypes.int64, (None, 2)), (dtypes.string, (None,)), (dtypes.int64, (2,))]
        return SparseTensor(*op.outputs(outputs, Pure(split)))


def as_string(
    input: Any,
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
    name: str | None = None,
) -> Tensor:
    """Numbers written as text."""
    if scientific and shortest:
        raise ValueError("Cannot select both scientific and shortest notation")
    if fill not in ("", "0", " ", "-", "+"):
        raise ValueError(f"Fill string must be one of ' ', '+', '-' or '0', got {fill!r}")

    with OpBuilder("AsString", name) as op:
        tensor = op.tensor(input, "input")
        dtype = tensor.dtype
        if dtype == dtypes.string:
            return tensor
        if not dtype.is_floating and (scientific or shortest or precision >= 0):
            raise ValueError(f"scientific and precision are for floats; the input is {dtype.name}")
        pattern = f"%{fill}{width if width >= 0 else ''}"
        if dtype.is_floating:
            letter = "e" if scientific else "g" if shortest else "f"
            pattern += f"{f'.{precision}' if precision >= 0 else ''}{letter}"
        elif dtype.is_integer:
            pattern += "d"
        elif not dtype.is_bool:
            raise TypeError(f"as_string: got {dtype.name}; expected numbers or booleans")

        def written(number: Any) -> bytes:
            if dtype.is_bool:
                return b"true" if number else b"false"
            return str(pattern % number).encode()

        def texts(numbers: Any) -> Any:
            result = np.empty(np.shape(numbers), object)
            result.ravel()[:] = [written(one) for one in np.ravel(numbers).tolist()]
            return result

        return op.output(dtypes.string, tensor.shape.as_tuple(), Pure(texts))


_WEB_SAFE = frozenset((string.ascii_letters + string.digits + "-_").encode())


def string_to_number(
    string_tensor: Any = None,
    out_type: Any = dtypes.float32,
    name: str | None = None,
    input: Any = None,
) -> Tensor:
    """The numbers that strings mean."""
    wanted = dtypes.as_dtype(out_type)
    if wanted.name not in NUMERIC:
        raise TypeError(f"out_type: got {wanted!r}; expected one of {', '.join(sorted(NUMERIC))}")

    def number(text: bytes) -> Any:
        try:
            return parse_number(text, wanted)
        except ValueError:
            shown = text.decode(errors="replace")
            raise invalid(f"StringToNumberOp could not correctly convert string: {shown}") from None

    given = input if string_tensor is None else string_tensor
    return map_strings("StringToNumber", number, given, name, wanted, "string_tensor")


def decode_raw(
    input_bytes: Any = None,
    out_type: Any = None,
    little_endian: bool = True,
    name: str | None = None,
    bytes: Any = None,
    fixed_length: int | None = None,
) -> Tensor:
    """Strings as the bytes of numbers."""
    given = bytes if input_bytes is None else input_bytes
    if given is None or out_type is None:
        raise ValueError("decode_raw: input_bytes and out_type must be given")
    wanted = dtypes.as_dtype(out_type)
    stored = wanted.numpy.newbyteorder("<" if little_endian else ">")
    if fixed_length is not None and (fixed_length <= 0 or fixed_length % wanted.size):
        raise ValueError(
            f"fixed_length must be a multiple of {wanted.size}, the size of {wanted.name}, and at"
            f" least that; got {fixed_length!r}"
        )

    def numbers(texts: Any) -> Any:
        rows = np.ravel(np.asarray(texts, object)).tolist()
        if fixed_length is not None:
            rows = [row[:fixed_length].ljust(fixed_length, b"\0") for row in rows]
        size = fixed_length if fixed_length is not None else len(rows[0]) if rows else 0
        for place, row in enumerate(rows):
            if len(row) != size:
                raise invalid(
                    "DecodeRaw requires input strings to all be the same size, but element"
                    f" {place} has size {size} != {len(row)}"
                )
        if size % wanted.size:
            raise invalid(
                f"Input to DecodeRaw has length {size} that is not a multiple of {wanted.size},"
                f" the size of {c_name(wanted)}"
            )
        whole = np.frombuffer(b"".join(rows), stored).astype(wanted.numpy)
        return whole.reshape((*np.shape(texts), size // wanted.size))

    with OpBuilder("DecodeRaw", name) as op:
        texts = op.tensor(given, "input_bytes", dtypes.string)
        static = texts.shape.as_tuple()
        return op.output(wanted, None if static is None else (*static, None), Pure(numbers))


def encode_base64(input: Any, pad: bool = False, name: str | None = None) -> Tensor:
    """Strings in web-safe base64, with ``=`` behind them if `pad`."""

    def encoded(text: bytes) -> bytes:
        made = base64.urlsafe_b64encode(text)
        return made if pad else made.rstrip(b"=")

    return map_strings("EncodeBase64", encoded, input, name)


def decode_base64(input: Any, name: str | None = None) -> Tensor:
    """What strings in web-safe base64 stand for."""

    def decoded(text: bytes) -> bytes:
        stripped = text.rstrip(b"=")
        if not _WEB_SAFE.issuperset(stripped):
            raise invalid("Invalid character found in base64.")
        if len(stripped) % 4 == 1:
            raise invalid("Base64 string length cannot be 1 modulo 4.")
        return base64.urlsafe_b64decode(stripped + b"=" * (-len(stripped) % 4))

    return map_strings("DecodeBase64", decoded, input, name)


ALLOWED = NUMERIC | {"string"}


def decode_csv(
    records: Any,
    record_defaults: Sequence[Any],
    field_delim: str = ",",
    use_quote_delim: bool = True,
    name: str | None = None,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
) -> list[Tensor]:
    """The fields of comma-separated records (RFC 4180), one tensor per column."""
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
    """The numbers of the columns to read; None for all."""
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
        columns = self._at_once(texts, defaults)
        if columns is None:
            # One record after another: slower, and it finds out which field is wrong.
            rows = [
                self._values(self._fields(text, at), defaults, at) for at, text in enumerate(texts)
            ]
            columns = [np.empty(len(rows), kind.numpy) for kind in self._kinds]
            for place, column in enumerate(columns):
                column[:] = [row[place] for row in rows]
        found = [column.reshape(records.shape) for column in columns]
        return tuple(found) if len(found) > 1 else found[0]

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
            if (column := self._column(texts_of, kind, default)) is None:
                return None
            columns.append(column)
        return columns

    def _column(self, texts: tuple[bytes, ...], kind: DType, default: Any) -> NDArray[Any] | None:
        empty: list[bool] = []
        if any(one in texts for one in self._empty):
            if np.size(default) == 0:
                return None
            empty = [text in self._empty for text in texts]
            texts = tuple(
                b"0" if is_empty else text for text, is_empty in zip(texts, empty, strict=True)
            )
        strings = np.empty(len(texts), object)
        strings[:] = texts
        column = strings if kind is dtypes.string else parse_column(texts, kind)
        if empty and column is not None:
            column[empty] = array(default).item()
        return column

    def _values(self, fields: list[bytes], defaults: Sequence[Any], row: int) -> list[Any]:
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
