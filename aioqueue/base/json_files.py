"""The JSON files that aioqueue writes, read again: positions, quarantines and journals.

Such a file may be damaged, or made by someone else. `read_document` therefore parses with bounds,
and checks the fields against a *schema*: which ones there must be and may be, and their types. What
is written keeps to the same bounds (`is_too_deep`, `MAX_BYTES`), so that it can be read again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from math import isfinite
from types import MappingProxyType
from typing import IO, Any, Final, NamedTuple, TypeAlias

from aioqueue.base.arguments import is_int

MANIFEST: Final = ".aioqueue.json"
"""The end of the name of the list of files that `Pipeline.write` or a cache has made."""

MAX_BYTES: Final = 2**28
"""The largest document. A position takes a kilobyte, or 8 bytes for each row of a shuffle; a line
of a quarantine takes as much as its item."""

_PORTION: Final = 2**18

MAX_DEPTH: Final = 100
"""The deepest nesting of lists and dicts. Below it, no function here comes near the limit of
recursion."""

_MOST_BITS: Final = 10_000
"""Longer ints are not written in decimals: Python refuses those of more than 4,300 digits."""

COUNT: Final = "an int of at least 0"
"""The kind of a field that counts."""

Kind: TypeAlias = type | str | None
"""What a field must be: a type, `COUNT`, or ``None`` for anything. A bool is no int."""


class DocumentError(ValueError):
    """A document is damaged, or is another file.

    The readers of files raise `DataLossError` instead.
    """


class Schema(NamedTuple):
    """The fields of a document."""

    required: Mapping[str, Kind]
    optional: Mapping[str, Kind] = MappingProxyType({})
    is_open: bool = False
    """Whether there may be other fields."""


def read_document(text: bytes | str, schema: Schema) -> dict[str, Any]:
    """Parse a document, and check it.

    Args:
        text: JSON.
        schema: the fields to expect.

    Returns:
        The fields.

    Raises:
        DocumentError: it is too large, is not JSON, is nested too deeply, or does not fit the
            schema.
    """
    fields = parsed(text)
    check_fields(fields, schema)
    checked: dict[str, Any] = fields
    return checked


def content_of(file: IO[bytes]) -> bytes:
    """Read a file that should be a document, and take memory only for what there is.

    Raises:
        DocumentError: it is too large.
        OSError: it cannot be read.
    """
    content = bytearray()
    # `read(MAX_BYTES)` would take so much at once, also for a file of a kilobyte.
    while data := file.read(_PORTION):
        content += data
        size = max(len(content), os.fstat(file.fileno()).st_size)  # a pipe has the size 0
        if size > MAX_BYTES:
            raise DocumentError(f"{size} bytes; expected at most {MAX_BYTES}")
    return bytes(content)


def parsed(text: bytes | str) -> Any:
    """Parse JSON with bounds, without a schema.

    Raises:
        DocumentError: it is too large, is not JSON, or is nested too deeply.
    """
    if len(text) > MAX_BYTES:
        raise DocumentError(f"{len(text)} bytes; expected at most {MAX_BYTES}")
    try:
        value = json.loads(text)
    except RecursionError:
        raise DocumentError(f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise DocumentError(str(error)) from error
    if is_too_deep(value):
        raise DocumentError(f"nested deeper than {MAX_DEPTH} levels")
    return value


def check_fields(fields: Any, schema: Schema) -> None:
    """Check a document against its schema.

    Raises:
        DocumentError: it is not a dict, lacks a field, has another one, or one of another type.
    """
    if not isinstance(fields, Mapping):
        raise DocumentError(f"got {_short_repr(fields)}; expected an object with fields")
    for name, kind in schema.required.items():
        if name not in fields:
            raise DocumentError(f"the field {name!r} is missing")
        _check_kind(name, fields[name], kind)
    for name, value in fields.items():
        if name in schema.optional:
            _check_kind(name, value, schema.optional[name])
        elif name not in schema.required and not schema.is_open:
            raise DocumentError(f"there is a field {_short_repr(name)}, which is not known")


def _check_kind(name: str, value: Any, kind: Kind) -> None:
    if kind is None:
        return
    if isinstance(kind, type):
        fits = is_int(value) if kind is int else isinstance(value, kind)
        expected = f"a value of type {kind.__name__}"
    else:
        fits = is_int(value) and value >= 0
        expected = kind
    if not fits:
        raise DocumentError(f"{name}: got {_short_repr(value)}; expected {expected}")


def is_json(value: Any, depth: int = MAX_DEPTH, *, is_finite: bool = True) -> bool:
    """Return whether JSON gives back just this value: of Python's own types, without tuples.

    Args:
        value: the value.
        depth: how deep lists and dicts may be nested.
        is_finite: whether to refuse infinities and NaN, which only Python's `json` knows.
    """
    if value is None or type(value) in (bool, str):
        return True
    if type(value) is int:
        return value.bit_length() < _MOST_BITS
    if type(value) is float:
        return not is_finite or isfinite(value)
    if not depth:
        return False
    if type(value) is list:
        return all(is_json(one, depth - 1, is_finite=is_finite) for one in value)
    if type(value) is dict:
        return all(type(key) is str for key in value) and all(
            is_json(one, depth - 1, is_finite=is_finite) for one in value.values()
        )
    return False


def is_too_deep(value: Any) -> bool:
    """Return whether lists and dicts are nested deeper than `MAX_DEPTH`, without recursion."""
    layer = [value]
    for _ in range(MAX_DEPTH + 1):
        layer = [
            one
            for each in layer
            if isinstance(each, Mapping | list | tuple)
            for one in (each.values() if isinstance(each, Mapping) else each)
            if isinstance(one, Mapping | list | tuple)
        ]
        if not layer:
            return False
    return True


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
