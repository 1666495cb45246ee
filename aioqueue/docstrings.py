"""One docstring for a method in both faces.

The two faces of a queue and of a coordinator do the same in two ways of waiting. What a method does
is written once, in a class that both faces derive from, with what holds in one of them only:

* an entry of ``Args:`` or ``Raises:`` that begins with "in threads," is left out of the async face;
* the section ``Cancellation:`` is left out of the thread face.

`describe` gives the methods of a face their own text, for `help` and the reference. Editors do not
run this: they show the inherited docstring as it is written, which is right for both.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

__all__ = ("World", "describe", "text_for", "with_sections")

World = Literal["aio", "sync"]

_LABEL: Final = "in threads, "
_ASYNC_ONLY: Final = "Cancellation:"


def describe(face: type, world: World) -> None:
    """Give the methods of a face that have no docstring the inherited one, as it is for them.

    Args:
        face: the class whose own methods are meant.
        world: which face it is.
    """
    for name, method in vars(face).items():
        if inspect.isfunction(method) and not method.__doc__:
            text = _inherited(face, name)
            if text:  # else Python was told to leave docstrings out
                method.__doc__ = text_for(text, world)


def text_for(text: str, world: World) -> str:
    """A docstring as it is for one face.

    Args:
        text: the docstring for both, in Google's style.
        world: whose face it is to be.
    """
    kept: list[str] = []
    for header, lines in _sections(inspect.cleandoc(text).splitlines()):
        if world == "sync" and header == _ASYNC_ONLY:
            continue
        body = list(_entries(lines, world)) if header else lines
        if not header or any(body):
            kept += [header, *body] if header else body
    return "\n".join(kept).strip()


def with_sections(text: str | None, described: str | None) -> str | None:
    """A class's own prose, and the sections that begin with ``Args:`` of what it derives from.

    Args:
        text: the docstring that ends with prose; ``None`` where Python leaves docstrings out.
        described: what has the sections.
    """
    if text is None or described is None:
        return None
    sections = inspect.cleandoc(described)
    return f"{inspect.cleandoc(text)}\n\n{sections[sections.index('Args:') :]}"


def _inherited(face: type, name: str) -> str | None:
    for base in face.__mro__[1:]:
        text: Any = vars(base)[name].__doc__ if name in vars(base) else None
        if text:
            return str(text)
    return None


def _sections(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """The sections of a docstring: their headers, "" for what comes before, and their lines."""
    header, section = "", list[str]()
    for line in lines:
        if line.endswith(":") and line[:-1].isalpha() and line[0].isupper():
            yield header, section
            header, section = line, []
        else:
            section.append(line)
    yield header, section


def _entries(lines: Iterable[str], world: World) -> Iterator[str]:
    """The lines of a section, without the entries that are not for this world."""
    is_kept = True
    for line in lines:
        if not line.startswith(" " * 5):  # else it goes on with the entry above
            is_kept = world == "sync" or _LABEL not in line
        if is_kept:
            yield line.replace(_LABEL, "", 1)
