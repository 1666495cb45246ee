"""Strings, which are `bytes`: joining, splitting, measuring, replacing.

Regular expressions are Python's. They agree with those of TensorFlow (RE2) where both have the
same syntax, which is nearly all that RE2 has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import as_bytes
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.ops.building import (
    INDICES,
    OpBuilder,
    Pure,
    invalid,
    merge,
    shape_text,
)
from aioqueue.compat.v1.ops.sparse import SparseTensor

__all__ = (
    "as_string",
    "map_strings",
    "regex_full_match",
    "regex_replace",
    "string_join",
    "string_length",
    "string_lower",
    "string_split",
    "string_split_v2",
    "string_strip",
    "string_upper",
    "substr",
)

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
) -> Tensor:
    """An op that makes something of each string by itself."""
    with OpBuilder(op_type, name) as op:
        texts = op.tensor(value, "input", dtypes.string)
        kernel = Pure(lambda texts: _each(function, texts, result.as_numpy_dtype))
        return op.output(result, texts.shape.as_tuple(), kernel)


def string_lower(input: Any, encoding: str = "", name: str | None = None) -> Tensor:
    """Letters in lower case: those of ASCII, or all of them if `encoding` is ``"utf-8"``."""
    return map_strings("StringLower", _cased(bytes.lower, str.lower, encoding), input, name)


def string_upper(input: Any, encoding: str = "", name: str | None = None) -> Tensor:
    """Letters in upper case: those of ASCII, or all of them if `encoding` is ``"utf-8"``."""
    return map_strings("StringUpper", _cased(bytes.upper, str.upper, encoding), input, name)


def _cased(
    ascii_only: Callable[[bytes], bytes], unicode: Callable[[str], str], encoding: str
) -> Callable[[bytes], bytes]:
    if encoding not in ("", "utf-8"):
        raise ValueError(f"encoding: got {encoding!r}; expected '' or 'utf-8'")
    if not encoding:
        return ascii_only
    return lambda text: unicode(text.decode()).encode()


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
    """Matches of a regular expression replaced.

    Args:
        input: strings.
        pattern: the regular expression.
        rewrite: the replacement; ``\\1`` is what group 1 matched and ``\\0`` everything.
        replace_global: whether all matches are replaced, or just the first.
        name: name of the op.

    Raises:
        InvalidArgumentError: when it runs: the pattern is no regular expression.
    """

    def replaced(texts: Any, pattern: Any, rewrite: Any) -> Any:
        expression = _compiled(pattern)
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


def regex_full_match(input: Any, pattern: Any, name: str | None = None) -> Tensor:
    """Whether a regular expression matches the whole of each string."""

    def matches(texts: Any, pattern: Any) -> Any:
        expression = _compiled(pattern)
        return _each(lambda text: expression.fullmatch(text) is not None, texts, np.bool_)

    is_static = isinstance(pattern, str | bytes)
    with OpBuilder("StaticRegexFullMatch" if is_static else "RegexFullMatch", name) as op:
        texts = op.tensor(input, "input", dtypes.string)
        op.tensor(pattern, "pattern", dtypes.string)
        return op.output(dtypes.bool, texts.shape.as_tuple(), Pure(matches))


def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise invalid(f"Invalid pattern: {pattern!r}, error: {error}") from None


def substr(input: Any, pos: Any, len: Any, name: str | None = None, unit: str = "BYTE") -> Tensor:
    """Pieces of strings.

    Args:
        input: strings.
        pos: where each piece begins; negative from the end.
        len: how long it is; it ends with its string, if that is shorter.
        name: name of the op.
        unit: what both count: ``"BYTE"`` or ``"UTF8_CHAR"``.

    Raises:
        InvalidArgumentError: when it runs: a piece would begin outside of its string.
    """
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
    """Strings of several tensors joined, element by element; scalars go with every element.

    Raises:
        ValueError: there are no tensors, or their static shapes differ.
        InvalidArgumentError: when it runs: their shapes turn out to differ.
    """
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
    """The pieces of each string of a vector.

    Args:
        source: a vector of strings.
        sep: the delimiters, each byte one of them; empty for single bytes; a blank if left out.
        skip_empty: whether empty pieces are left out.
        delimiter: the old name of `sep`.
        result_type: ``"SparseTensor"``; there are no ragged tensors here.
        name: name of the op.

    Returns:
        A sparse tensor: row ``i`` has the pieces of string ``i``.
    """
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
    """The pieces of each string, as `str.split` makes them; ``tf.strings.split``.

    Args:
        input: a vector of strings, or one.
        sep: the delimiter, as a whole; runs of white space if empty or left out.
        maxsplit: how often to split at most; -1 for no limit.
        result_type: ``"SparseTensor"``; there are no ragged tensors here.
        source: the old name of `input`.
        name: name of the op.

    Returns:
        A sparse tensor: row ``i`` has the pieces of string ``i``.
    """

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
    """Numbers written as text.

    Args:
        input: numbers or booleans.
        precision: digits after the point, of floats; 6 if negative.
        scientific: whether floats have an exponent.
        shortest: whether floats have it only where that is shorter.
        width: the least number of characters.
        fill: what fills them up: ``"0"`` or ``" "``, or ``"-"`` to fill up with blanks behind.
        name: name of the op.

    Raises:
        ValueError: the options contradict each other.
    """
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
