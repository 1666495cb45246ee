"""Values that are the same only if all of them is: what tests of resuming compare.

``tolist()`` hides what may go wrong: a dtype, the shape of what is empty, the sign of a zero, the
names of fields, a list where a tuple was. `plain_form` has all of it in plain JSON types.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from tests.kit.going import plain

__all__ = ("Exact", "plain_form")


class Exact:
    """A value as it is now: later writes to it change nothing.

    It is equal to another one of these if nothing at all is different, and to any other value if
    that is what its arrays and numbers say, `plain`.

    Args:
        value: of any kind.
    """

    __slots__ = ("form", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.form = plain_form(value)

    @property
    def plain(self) -> Any:
        """Lists and numbers, for tests that look into it."""
        return plain(self.value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.plain)

    def __eq__(self, other: object) -> bool:
        return self.form == other.form if isinstance(other, Exact) else bool(self.plain == other)

    def __hash__(self) -> int:
        return hash(json.dumps(self.form))

    def __repr__(self) -> str:
        return f"<{self.plain!r}, which is {json.dumps(self.form)}>"


def plain_form(value: Any) -> Any:
    """A value in full: strings, ints, ``None``, and lists of them."""
    if isinstance(value, np.ndarray):
        return _array_form(value)
    if isinstance(value, np.generic):
        return ["scalar", type(value).__name__, repr(value.dtype), _bytes_form(value)]
    kind = type(value).__name__
    if is_dataclass(value):
        return [kind, [[one.name, plain_form(getattr(value, one.name))] for one in fields(value)]]
    if isinstance(value, Mapping):
        return [kind, [[plain_form(key), plain_form(one)] for key, one in value.items()]]
    if isinstance(value, list | tuple):
        return [kind, [plain_form(one) for one in value]]
    if isinstance(value, float):
        return [kind, struct.pack(">d", value).hex()]
    return [kind, repr(value)]


def _array_form(array: np.ndarray[Any, Any]) -> Any:
    form = ["array", repr(array.dtype), list(array.shape)]
    if array.dtype.kind in "OT":  # whose bytes are places in memory
        return [*form, [plain_form(one) for one in array.ravel().tolist()]]
    return [*form, _bytes_form(array)]


def _bytes_form(value: np.ndarray[Any, Any] | np.generic) -> str:
    return "objects: " + repr(value.tolist()) if value.dtype.hasobject else value.tobytes().hex()
