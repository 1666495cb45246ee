"""Values that are the same only if all of them is: what tests of resuming compare.

``tolist()`` hides what may go wrong: a dtype, the shape of what is empty, the sign of a zero, the
names of fields, a list where a tuple was. `told` says all of it in plain JSON types.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from tests.kit.going import plain

__all__ = ("Exact", "told")


class Exact:
    """A value as it is now: whoever writes to it later changes nothing.

    It is equal to another one of these if nothing at all is different, and to any other value if
    that is what its arrays and numbers say, `plain`.

    Args:
        value: of any kind.
    """

    __slots__ = ("told", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.told = told(value)

    @property
    def plain(self) -> Any:
        """Lists and numbers, for tests that look into it."""
        return plain(self.value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.plain)

    def __eq__(self, other: object) -> bool:
        return self.told == other.told if isinstance(other, Exact) else bool(self.plain == other)

    def __hash__(self) -> int:
        return hash(json.dumps(self.told))

    def __repr__(self) -> str:
        return f"<{self.plain!r}, which is {json.dumps(self.told)}>"


def told(value: Any) -> Any:
    """All that there is to be said of a value: strings, ints, ``None``, and lists of them."""
    if isinstance(value, np.ndarray):
        return _told_array(value)
    if isinstance(value, np.generic):
        return ["scalar", type(value).__name__, repr(value.dtype), _told_bytes(value)]
    kind = type(value).__name__
    if is_dataclass(value):
        return [kind, [[one.name, told(getattr(value, one.name))] for one in fields(value)]]
    if isinstance(value, Mapping):
        return [kind, [[told(key), told(one)] for key, one in value.items()]]
    if isinstance(value, list | tuple):
        return [kind, [told(one) for one in value]]
    if isinstance(value, float):
        return [kind, struct.pack(">d", value).hex()]
    return [kind, repr(value)]


def _told_array(array: np.ndarray[Any, Any]) -> Any:
    said = ["array", repr(array.dtype), list(array.shape)]
    if array.dtype.kind in "OT":  # whose bytes are places in memory
        return [*said, [told(one) for one in array.ravel().tolist()]]
    return [*said, _told_bytes(array)]


def _told_bytes(value: np.ndarray[Any, Any] | np.generic) -> str:
    return "objects: " + repr(value.tolist()) if value.dtype.hasobject else value.tobytes().hex()
