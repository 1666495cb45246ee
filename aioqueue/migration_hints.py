"""What is said to uses of a class of ours that it is not made for.

Names that something has in other libraries, for those who try them here; ``in``, where to look is
to take; and overrides of which not all would know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

__all__ = ("no_attribute", "not_searched", "refuse_overrides")

_PROTOCOLS: Final = frozenset(
    ("__aiter__", "__anext__", "__bool__", "__contains__", "__iter__", "__len__", "__next__")
)
"""What Python calls of a queue."""


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


def not_searched(thing: object) -> NoReturn:
    """What ``__contains__`` is to raise. Python would else iterate over it.

    Args:
        thing: which uses up what it is asked for.

    Raises:
        TypeError: always.
    """
    raise TypeError(
        f"{thing!r} cannot be searched by `in`: to look at what comes from it would use that up"
    )


def refuse_overrides(cls: type) -> None:
    """See to it that a user's subclass of a queue does what each other face of that queue does.

    Raises:
        TypeError: it overrides a method. A queue has two faces, and workers use whichever fits
            them, in batches or one by one: they would pass the method by.
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
            f"{cls.__name__} overrides {', '.join(overridden)}, of which the queue's other face and"
            " the workers that use it would know nothing: write a class that has a queue, and calls"
            " it"
        )
