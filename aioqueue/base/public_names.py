"""Public names: where each is defined, and where users see it; and the docstrings of their faces.

A package imports a public name at its first use, so that a program pays for what it uses. Type
checkers read the same names from the imports below ``if TYPE_CHECKING``; a test compares the two.

Also here: docstrings that hold for several faces. A queue and a coordinator each have two faces,
which do the same thing and wait in different ways. A base class of both faces documents each method
once. Two markers label what holds for one face:

* an entry of ``Args:`` or ``Raises:`` that begins with "in threads," is for the thread face only;
* the section ``Cancellation:`` applies to the async face only.

`describe` gives the methods of a face their rendered text, for `help` and the reference. Editors do
not run `describe`. They show the inherited docstring with its markers, which reads well for both.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any, Final, Literal, TypeVar

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
            from aioqueue.base.hints import hint_keywords

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
            from aioqueue.base.hints import raise_unknown_name

            raise_unknown_name(self._package, name)
        module, attribute = self._homes[name]
        found: Any = importlib.import_module(module)
        if attribute:
            found = getattr(found, attribute)
        if self._hints is not None and isinstance(found, FunctionType):
            from aioqueue.base.hints import hint_keywords

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


World = Literal["aio", "sync"]

_LABEL: Final = "in threads, "
_ASYNC_ONLY: Final = "Cancellation:"


def describe(face: type, world: World) -> None:
    """Give each method of a face that has no docstring the inherited one, rendered for that face.

    Args:
        face: the class whose own methods get a docstring.
        world: which face it is.
    """
    for name, method in vars(face).items():
        if isinstance(method, FunctionType) and not method.__doc__:
            text = _inherited(face, name)
            if text:  # None under `python -OO`, which strips docstrings
                method.__doc__ = text_for(text, world)


def name_methods(face: type, public_name: str) -> None:
    """Name the methods of a face after the public class that inherits them.

    Python's warning of a coroutine that was never awaited shows this name.
    """
    for name, method in vars(face).items():
        if isinstance(method, FunctionType):
            method.__qualname__ = f"{public_name}.{name}"


def text_for(text: str, world: World) -> str:
    """Render a docstring for one face.

    Args:
        text: the docstring of both faces, in Google's style.
        world: the face to render it for.
    """
    from inspect import cleandoc  # when it is needed: `import aioqueue` should be quick

    kept: list[str] = []
    for header, lines in _sections(cleandoc(text).splitlines()):
        if world == "sync" and header == _ASYNC_ONLY:
            continue
        body = list(_entries(lines, world)) if header else lines
        if not header or any(body):
            kept += [header, *body] if header else body
    return "\n".join(kept).strip()


def with_sections(text: str | None, described: str | None) -> str | None:
    """Join a class's own prose with the sections, from ``Args:`` on, of the class it derives from.

    Args:
        text: a docstring that is prose only; ``None`` where Python strips docstrings.
        described: the docstring that has the sections.
    """
    if text is None or described is None:
        return None
    from inspect import cleandoc

    sections = cleandoc(described)
    return f"{cleandoc(text)}\n\n{sections[sections.index('Args:') :]}"


def _inherited(face: type, name: str) -> str | None:
    for base in face.__mro__[1:]:
        text: Any = vars(base)[name].__doc__ if name in vars(base) else None
        if text:
            return str(text)
    return None


def _sections(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the sections of a docstring: the header ("" for the text above all) and the lines."""
    header, section = "", list[str]()
    for line in lines:
        if line.endswith(":") and line[:-1].isalpha() and line[0].isupper():
            yield header, section
            header, section = line, []
        else:
            section.append(line)
    yield header, section


def _entries(lines: Iterable[str], world: World) -> Iterator[str]:
    """Yield the lines of a section without the entries that the face must not show."""
    is_kept = True
    for line in lines:
        if not line.startswith(" " * 5):  # deeper lines continue the entry above
            is_kept = world == "sync" or _LABEL not in line
        if is_kept:
            yield line.replace(_LABEL, "", 1)
