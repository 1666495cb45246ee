"""What tells the items of a source from others, so that no run goes on among other items.

A list that comes from `os.listdir` has another order on another machine, and the same length. To
compare all items would take long, and a position is small: it has a digest of some of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain, islice, takewhile, zip_longest
from pathlib import PurePath
from typing import Any, Final

import numpy as np

from aioqueue.checks import is_int
from aioqueue.inputs.sources.positions import digest_of

__all__ = ("digest_of_items", "relative")

_MOST_ITEMS: Final = 64
_MOST_PARTS: Final = 12
"""Of one item: of a list of numbers, say."""
_LONGEST: Final = 512
"""Of longer text the ends are looked at, and how long it is."""


class _OfAnotherKind(Exception):  # noqa: N818  # nobody else sees it
    """An item is of a kind that may be another one in each process."""


def digest_of_items(sequence: Any) -> str | None:
    """A digest of some items of a sequence: of the first, the last, and 62 in between.

    Paths count from the folder that all have in common, which may be moved.

    Args:
        sequence: of items.

    Returns:
        16 hexadecimal digits. ``None`` if there are no items, if to take one may be more than to
        look it up, or if they are not made of text, bytes, numbers and paths.
    """
    is_vector = type(sequence) is np.ndarray and sequence.ndim == 1
    if not (is_vector or type(sequence) in (list, tuple)) or not len(sequence):
        return None
    last = len(sequence) - 1
    places = {last * at // (_MOST_ITEMS - 1): None for at in range(_MOST_ITEMS)}
    try:
        items = [list(islice(_parts(sequence[place]), _MOST_PARTS)) for place in places]
    except _OfAnotherKind:
        return None
    return digest_of([_from_shared_folder(column) for column in zip_longest(*items)])


def relative(names: Sequence[str]) -> list[str]:
    """The same names of files, counted from the folder that they have in common."""
    names = [name.replace(os.sep, "/") for name in names]
    first, last = (min(names), max(names)) if names else ("", "")
    # What these two share at their start, all share.
    same = (one == other for one, other in zip(first, last, strict=False))
    shared = first.rfind("/", 0, sum(takewhile(bool, same))) + 1
    return [name[shared:] for name in names]


def _from_shared_folder(column: Sequence[Any]) -> list[Any]:
    """One part of all items: of (path, label), the paths alone have a folder in common."""
    names = iter(relative([one for one in column if isinstance(one, str)]))
    return [next(names) if isinstance(one, str) else one for one in column]


def _parts(item: Any) -> Iterator[Any]:
    """What an item is made of, in plain JSON types.

    Raises:
        _OfAnotherKind: it is made of something else.
    """
    if item is None or isinstance(item, bool):
        yield item
    elif isinstance(item, str | PurePath):  # others that have a path may have to fetch a file
        yield _shortened(str(item))
    elif isinstance(item, bytes):
        yield _shortened(item).decode("latin-1")
    elif is_int(item):
        yield int(item)
    elif isinstance(item, float | np.floating | np.bool_):
        yield float(item)
    elif isinstance(item, list | tuple):
        yield len(item)
        yield from chain.from_iterable(map(_parts, item))
    elif isinstance(item, dict) and all(isinstance(key, str) for key in item):
        yield len(item)
        for key in sorted(item):
            yield key
            yield from _parts(item[key])
    else:
        raise _OfAnotherKind


def _shortened(text: Any) -> Any:
    """Text or bytes, of which not all can be looked at if that is a document or an image."""
    if len(text) <= _LONGEST:
        return text
    length = str(len(text))
    half = _LONGEST // 2
    middle = length if isinstance(text, str) else length.encode()
    return text[:half] + middle + text[-half:]
