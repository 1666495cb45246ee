"""Kinds of sources, file formats and sinks: each is one class, which registers itself.

What the rest of the house has to know of a kind stands in its class, as class attributes. A class
of this package that lacks one cannot be created: a default could be wrong for it, and nobody would
notice. Classes of users have safe defaults, and are not listed.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

_PACKAGE: Final = "aioqueue"


class KindRegistry:
    """The kinds of one family.

    Args:
        family: what one of them is, for messages.
        declared: the class attributes that each has to declare, or inherit from another kind.
        modules: the packages whose modules define the kinds.
    """

    def __init__(self, family: str, declared: Sequence[str], modules: Sequence[str]) -> None:
        self._family = family
        self._declared = declared
        self._modules = modules
        self._kinds: list[type] = []

    def add(self, cls: type, root: type) -> None:
        """Register a class; called by the ``__init_subclass__`` of the family's root.

        Args:
            cls: the new class. One of a user's is left out.
            root: the root, whose defaults do not count.

        Raises:
            TypeError: the class does not declare what it has to.
        """
        if cls.__module__.partition(".")[0] != _PACKAGE:
            return
        below = cls.__mro__[: cls.__mro__.index(root)]
        missing = [name for name in self._declared if not any(name in vars(base) for base in below)]
        if missing:
            raise TypeError(
                f"class {cls.__qualname__}: got no class attributes {', '.join(missing)}; expected"
                f" them of every {self._family} of this package"
            )
        self._kinds.append(cls)

    def kinds(self) -> tuple[Any, ...]:
        """Import all modules of the family, and return its kinds by name."""
        for name in self._modules:
            for module in pkgutil.iter_modules(import_module(name).__path__, f"{name}."):
                import_module(module.name)
        return tuple(sorted(self._kinds, key=lambda kind: (kind.__module__, kind.__qualname__)))
