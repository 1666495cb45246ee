"""Brace patterns in the names of files: ``shard-{000..127}.tar`` stands for 128 files.

The patterns are those of a shell, as WebDataset's users write them: ranges of numbers or letters
(``{0..9}``, ``{000..127}``, ``{0..100..10}``, ``{a..e}``), lists (``{train,valid}``), and any
nesting of these. Braces that hold neither stand for themselves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from aioqueue import InvalidArgumentError
from aioqueue.base.display_text import without_secrets
from aioqueue.items.positions import bounded

MOST_NAMES: Final = 1_000_000
"""The most names that one pattern may stand for: a larger range is probably a slip."""

MOST_BRACES: Final = 100
"""The most pairs of braces in one pattern: each takes a few levels of recursion."""

_NUMBERS: Final = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.(-?\d{1,18}))?")
_LETTERS: Final = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?\d{1,18}))?")


def names_of(path: Any, argument: str) -> list[Any]:
    """Return the names that a path stands for: itself alone, if it has no brace pattern.

    A local path with these very braces that exists is meant as it is.

    Args:
        path: a string, bytes or `os.PathLike`; anything else stands for itself.
        argument: the name of the argument, for errors.

    Raises:
        InvalidArgumentError: the pattern stands for more than `MOST_NAMES` names, or has more than
            `MOST_BRACES` pairs of braces.
    """
    if not isinstance(path, str | bytes | os.PathLike):
        return [path]
    name = os.fsdecode(path)
    if "{" not in name or (os.path.lexists(name) and "://" not in name):
        return [path]
    pairs = len(_pairs(name))
    if pairs > MOST_BRACES:
        raise InvalidArgumentError(
            f"{argument}: got {bounded(name)}, which has {pairs:,} pairs of braces; expected at"
            f" most {MOST_BRACES}"
        )
    found = list(islice(expanded(name), MOST_NAMES + 1))
    if len(found) > MOST_NAMES:
        raise InvalidArgumentError(
            f"{argument}: got {without_secrets(name)!r}, which stands for more than"
            f" {MOST_NAMES:,} names; expected a smaller range"
        )
    return [path] if found == [name] else found


def expanded(pattern: str) -> Iterator[str]:
    """Yield the names that a pattern stands for, in its order; itself, if it has no braces."""
    begin, end = _first_braces(pattern)
    if end < 0:
        yield pattern
        return
    before, behind = pattern[:begin], pattern[end + 1 :]
    choices = _choices(pattern[begin + 1 : end])
    if choices is None:  # these braces stand for themselves, but there may be others within
        for inner in expanded(pattern[begin + 1 : end]):
            for rest in expanded(behind):
                yield f"{before}{{{inner}}}{rest}"
        return
    for choice in choices():
        for rest in expanded(behind):
            yield f"{before}{choice}{rest}"


def _first_braces(pattern: str) -> tuple[int, int]:
    """Return where the first pair of braces begins and ends; (-1, -1) without one."""
    # A brace without a partner stands for itself, so a later pair may be the first.
    return min(_pairs(pattern).items(), default=(-1, -1))


def _pairs(pattern: str) -> dict[int, int]:
    """Return where pairs of braces end, by where they begin."""
    open_at: list[int] = []
    pairs: dict[int, int] = {}
    for at, character in enumerate(pattern):
        if character == "{":
            open_at.append(at)
        elif character == "}" and open_at:
            pairs[open_at.pop()] = at
    return pairs


def _choices(content: str) -> Callable[[], Iterable[str]] | None:
    """Return a function that yields what a pair of braces stands for; ``None`` for itself."""
    parts = _parts(content)
    if len(parts) > 1:
        return lambda: (name for part in parts for name in expanded(part))
    if found := _NUMBERS.fullmatch(content):
        first, last, step = found.groups()
        # As in a shell: leading zeros on either side pad all numbers to the longer one.
        is_padded = any(re.fullmatch(r"-?0\d+", one) for one in (first, last))
        width = max(len(first), len(last)) if is_padded else 0
        numbers = _range(int(first), int(last), step)
        return lambda: (f"{number:0{width}d}" for number in numbers)
    if found := _LETTERS.fullmatch(content):
        first, last, step = found.groups()
        return lambda: map(chr, _range(ord(first), ord(last), step))
    return None


def _parts(content: str) -> list[str]:
    parts, depth, begin = [], 0, 0
    for at, character in enumerate(content):
        depth += (character == "{") - (character == "}")
        if character == "," and not depth:
            parts.append(content[begin:at])
            begin = at + 1
    return [*parts, content[begin:]]


def _range(first: int, last: int, step: str | None) -> range:
    size = abs(int(step or 1)) or 1
    return range(first, last + 1, size) if first <= last else range(first, last - 1, -size)
