"""Code objects: what they read, and what of them decides what they do.

Where a line stands, how a local variable is called and what a text documents does not count.
"""

from __future__ import annotations

import dis
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Final, NamedTuple

__all__ = ("Import", "Reading", "parts_of_code", "reading_of")


class Import(NamedTuple):
    """An import statement within code."""

    level: int
    module: str
    names: tuple[str, ...]


class Reading(NamedTuple):
    """What code reads by name."""

    globals: tuple[str, ...]
    attributes: frozenset[str]
    imports: tuple[Import, ...]
    words: frozenset[str]
    """The words in its texts: `getattr` and `format` take names from these."""


_WORD: Final = re.compile(r"[^\W\d]\w*")
_GLOBALS: Final = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_ATTRIBUTES: Final = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER", "IMPORT_FROM")
_LONGEST: Final = 10_000


@functools.lru_cache(maxsize=4096)
def reading_of(code: CodeType) -> Reading:
    """What code reads, with the functions and classes that it defines."""
    named: dict[str, None] = {}
    attributes: set[str] = set()
    words: set[str] = set()
    imports: list[Import] = []
    pending = [code]
    while pending:
        one = pending.pop()
        before: list[Any] = [None, None]
        for step in dis.get_instructions(one):
            if step.opname.startswith(_GLOBALS):
                named[step.argval] = None
            elif step.opname.startswith(_ATTRIBUTES):
                attributes.add(step.argval)
            elif step.opname == "IMPORT_NAME":
                level, names = before
                is_told = isinstance(level, int)
                imports.append(Import(level if is_told else 0, step.argval, tuple(names or ())))
            before = [before[1], step.argval]
        for constant in _flat(one.co_consts):
            if isinstance(constant, CodeType):
                pending.append(constant)
            elif isinstance(constant, str) and len(constant) <= _LONGEST:
                words.update(_WORD.findall(constant))
    return Reading(tuple(sorted(named)), frozenset(attributes), tuple(imports), frozenset(words))


def _flat(constants: Any) -> Iterator[Any]:
    for constant in constants:
        if isinstance(constant, tuple | frozenset):
            yield from _flat(constant)
        else:
            yield constant


def parts_of_code(
    code: CodeType, digest: Callable[[Any], bytes], *, keeps_texts: bool
) -> Iterator[bytes]:
    """What of some code decides what it does.

    Args:
        code: the code.
        digest: of a constant.
        keeps_texts: whether the text that documents a function counts, as something reads it.
    """
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    yield code.co_code
    yield getattr(code, "co_exceptiontable", b"")
    yield repr(
        (
            code.co_names,
            code.co_varnames[:count],
            code.co_freevars,
            code.co_cellvars,
            code.co_argcount,
            code.co_posonlyargcount,
            code.co_kwonlyargcount,
            code.co_flags,
        )
    ).encode()
    constants = code.co_consts
    if not keeps_texts and _is_documented(code):
        constants = (None, *constants[1:])
    for constant in constants:
        yield digest(constant)


def _is_documented(code: CodeType) -> bool:
    """Whether the first constant documents a function. Those without a name have data there."""
    if not code.co_consts or not isinstance(code.co_consts[0], str):
        return False
    if sys.version_info >= (3, 13):
        return bool(code.co_flags & 0x4000000)  # inspect.CO_HAS_DOCSTRING
    is_function = bool(code.co_flags & inspect.CO_NEWLOCALS)
    return is_function and not code.co_name.startswith("<")
