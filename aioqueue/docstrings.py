"""Write a method's docstring once and render it for each face.

A queue and a coordinator each have two faces, which do the same thing and wait in different ways.
A base class of both faces documents each method once. Two markers label what holds for one face:

* an entry of ``Args:`` or ``Raises:`` that begins with "in threads," is for the thread face only;
* the section ``Cancellation:`` applies to the async face only.

`describe` gives the methods of a face their rendered text, for `help` and the reference. Editors do
not run `describe`. They show the inherited docstring with its markers, which reads well for both.
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
    """Give each method of a face that has no docstring the inherited one, rendered for that face.

    Args:
        face: the class whose own methods get a docstring.
        world: which face it is.
    """
    for name, method in vars(face).items():
        if inspect.isfunction(method) and not method.__doc__:
            text = _inherited(face, name)
            if text:  # None under `python -OO`, which strips docstrings
                method.__doc__ = text_for(text, world)


def text_for(text: str, world: World) -> str:
    """Render a docstring for one face.

    Args:
        text: the docstring of both faces, in Google's style.
        world: the face to render it for.
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
    """Join a class's own prose with the sections, from ``Args:`` on, of the class it derives from.

    Args:
        text: a docstring that is prose only; ``None`` where Python strips docstrings.
        described: the docstring that has the sections.
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
