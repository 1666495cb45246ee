"""Lines about many things: a few are shown, and those that are alike are counted."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from heapq import nlargest
from typing import Final, TypeVar

PartT = TypeVar("PartT")

_MOST_ALIKE: Final = 3
_MOST_KINDS: Final = 20


def folded(
    parts: Sequence[PartT],
    alike: Callable[[PartT], Hashable],
    lines: Callable[[PartT], Iterable[str]],
    seconds: Callable[[PartT], float] = lambda part: 0.0,
) -> Iterator[str]:
    """Yield the lines of a few parts, in their order, and count the others.

    Of those that are alike, the three of the most seconds are shown. Of more than twenty kinds, the
    twenty are shown that have the most seconds. So the number of lines has a bound.

    Args:
        parts: what there is to show.
        alike: returns the kind of a part.
        lines: returns the lines that describe a part.
        seconds: returns how long a part has waited or worked. Of equals, the first are shown.
    """
    kinds: dict[Hashable, list[int]] = {}
    for index, part in enumerate(parts):
        kinds.setdefault(alike(part), []).append(index)
    lengths = [seconds(part) for part in parts]
    shown: Iterable[list[int]] = kinds.values()
    if len(kinds) > _MOST_KINDS:
        shown = nlargest(_MOST_KINDS, shown, lambda kind: max(lengths[index] for index in kind))
    others: dict[int, int] = {}  # behind each part that is shown, how many are counted
    for kind in shown:
        longest = sorted(nlargest(_MOST_ALIKE, kind, lengths.__getitem__))
        others.update(dict.fromkeys(longest, 0))
        others[longest[-1]] = len(kind) - len(longest)
    for index in sorted(others):
        yield from lines(parts[index])
        if others[index]:
            yield f"and {others[index]:,} other{'' if others[index] == 1 else 's'}"
    hidden = len(parts) - len(others) - sum(others.values())
    if hidden:
        yield f"and {hidden:,} more"
