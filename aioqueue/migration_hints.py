"""Errors for misuses of our classes that say what to write instead.

They cover names from other libraries, ``in`` on an object that iteration would use up, and
overrides in subclasses that other parts of the library would bypass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

__all__ = ("no_attribute", "not_searched", "refuse_overrides")

_PROTOCOLS: Final = frozenset(
    ("__aiter__", "__anext__", "__bool__", "__contains__", "__iter__", "__len__", "__next__")
)
"""Methods that Python itself calls on a queue."""


def no_attribute(thing: Any, name: str, *, kind: str, known: Mapping[str, str]) -> NoReturn:
    """Raise the error of a missing attribute, for ``__getattr__``.

    Args:
        thing: the object without the attribute.
        name: the name of the attribute.
        kind: what the object is, in words: ``"a queue"``.
        known: other libraries' names, and what to write here instead.

    Raises:
        AttributeError: always.
    """
    if hasattr(type(thing), name):  # a property that has failed: its own error says more
        object.__getattribute__(thing, name)
    here = f"; here that is .{known[name]}" if name in known else ""
    raise AttributeError(f"{kind} has no {name!r}{here}", name=name, obj=thing)


def not_searched(thing: object) -> NoReturn:
    """Raise the error of ``in``, for ``__contains__``. Python would iterate over the object.

    Args:
        thing: the object, which iteration would use up.

    Raises:
        TypeError: always.
    """
    raise TypeError(
        f"{thing!r} cannot be searched by `in`: the search would use up what it looks at"
    )


def refuse_overrides(cls: type) -> None:
    """Refuse a user's subclass of a queue that overrides one of its methods.

    A queue has two faces, and workers use the one that fits them, with single elements or batches.
    They would bypass the override.

    Raises:
        TypeError: the subclass overrides a method.
    """
    ours = [base for base in cls.__mro__ if base.__module__.split(".")[0] == "aioqueue"]
    names = {name for base in ours for name in vars(base)}
    overridden = sorted(
        name
        for name in names
        if (name in _PROTOCOLS or not name.startswith("__"))
        and next(base for base in cls.__mro__ if name in vars(base)) not in ours
    )
    if overridden:
        raise TypeError(
            f"{cls.__name__} overrides {', '.join(overridden)}: the queue's other face, and workers"
            " that use it, would bypass the override. Write a class that has a queue as an"
            " attribute, and calls it"
        )
