"""Public names: where each one is defined, and the package that users see it in.

A package imports a public name at its first use, so that a program pays for what it uses. Type
checkers read the same names from the imports below ``if TYPE_CHECKING``; a test compares the two.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any, Final, TypeVar

__all__ = ("DeferredModule", "PublicNames", "public")

ClassT = TypeVar("ClassT", bound=type)


def public(
    package: str, *, name: str | None = None, hints: str | None = None
) -> Callable[[ClassT], ClassT]:
    """Decorate a class that users import from a package: tracebacks, reprs and pickles say so.

    Args:
        package: where users import it from.
        name: what they call it, if the class has another name in its own file.
        hints: a topic of `hint_tables.KEYWORDS`, for the arguments of its constructor.
    """

    def decorate(cls: ClassT) -> ClassT:
        cls.__module__ = package
        if name is not None:
            cls.__name__ = cls.__qualname__ = name
        if hints is not None:
            from aioqueue.unknown_names import hint_keywords

            hint_keywords((cls,), hints)
        return cls

    return decorate


class PublicNames:
    """The names of a package that are imported at their first use.

    Args:
        package: its name.
        homes: the names that each module defines, by the module. ``"Batcher=BlockingBatcher"`` has
            the name of users first. A module without names is a public name itself.
        hints: a topic of `hint_tables.KEYWORDS`, for the arguments of functions.
        options: what ``**options`` stands for, by the names of functions; when it is needed.
    """

    def __init__(
        self,
        package: str,
        homes: Mapping[str, str],
        *,
        hints: str | None = None,
        options: Callable[[], Mapping[str, Iterable[str]]] = dict,
    ) -> None:
        self._package: Final = package
        self._homes: Final = dict(_homes_by_name(homes))
        self._hints: Final = hints
        self._options: Final = options

    def get(self, name: str) -> Any:
        """Import one of the names, and let the package keep it: the package's ``__getattr__``.

        Several threads may do so at once. They all get the same object.

        Raises:
            AttributeError: there is no such name. The message says what is written here instead.
        """
        if name not in self._homes:
            from aioqueue.unknown_names import no_name

            no_name(self._package, name)
        module, attribute = self._homes[name]
        found: Any = importlib.import_module(module)
        if attribute:
            found = getattr(found, attribute)
        if self._hints is not None and isinstance(found, FunctionType):
            from aioqueue.unknown_names import hint_keywords

            found = hint_keywords((found,), self._hints, self._options())[found.__name__]
        return vars(sys.modules[self._package]).setdefault(name, found)


class DeferredModule:
    """A module that is imported when you first use one of its names.

    For a file whose functions need many names of a module, and which is imported long before.

    Args:
        name: its full name.
    """

    def __init__(self, name: str) -> None:
        self.__name = name

    def __getattr__(self, attribute: str) -> Any:
        module = importlib.import_module(self.__name)
        vars(self).update(vars(module))  # later look-ups find them here
        return getattr(module, attribute)


def _homes_by_name(homes: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    for module, names in homes.items():
        for name in names.split():
            shown, _, attribute = name.partition("=")
            yield shown, (module, attribute or shown)
        if not names:
            yield module.rpartition(".")[2], (module, "")
