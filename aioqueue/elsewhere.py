"""Names that something has in other libraries, for whoever comes from there and tries them here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

__all__ = ("no_attribute",)


def no_attribute(thing: Any, name: str, *, kind: str, known: Mapping[str, str]) -> NoReturn:
    """What ``__getattr__`` is to raise.

    Args:
        thing: whose attribute is missing.
        name: of the attribute.
        kind: what the thing is, in words: ``"a queue"``.
        known: what is written here instead of some names.

    Raises:
        AttributeError: always.
    """
    if hasattr(type(thing), name):  # a property that has failed, whose own error says more
        object.__getattribute__(thing, name)
    here = f"; here that is .{known[name]}" if name in known else ""
    raise AttributeError(f"{kind} has no {name!r}{here}", name=name, obj=thing)
