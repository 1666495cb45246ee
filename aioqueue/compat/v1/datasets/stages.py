"""What a dataset does when it is iterated: plain iterators over rows of values.

A row is a tuple with the value of each leaf of an element. None of these iterators ends when the
one before it raises: the next attempt goes on after the element that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, TypeAlias

import numpy as np

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core.convert import plain_value
from aioqueue.philox import philox_blocks

__all__ = (
    "Batches",
    "Chain",
    "Repeated",
    "Row",
    "Rows",
    "Shuffled",
    "Skipped",
    "Taken",
    "random_words",
    "slices",
)

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = Iterator[Row]

BLOCKS = 64


def slices(values: Row) -> Rows:
    """Rows along the first axis of some arrays.

    Raises:
        InvalidArgumentError: the arrays differ in length.
    """
    lengths = {len(value) for value in values}
    if len(lengths) > 1:
        raise errors.InvalidArgumentError(
            None, None, f"The components differ in size along axis 0: {sorted(lengths)}"
        )
    return zip(*values, strict=True)


class Taken(Iterator[Row]):
    """The first rows.

    Args:
        rows: of which.
        count: how many.
    """

    def __init__(self, rows: Rows, count: int) -> None:
        self._rows = rows
        self._left = count

    def __next__(self) -> Row:
        if not self._left:
            raise StopIteration
        row = next(self._rows)
        self._left -= 1
        return row


class Skipped(Iterator[Row]):
    """All rows but the first.

    Args:
        rows: of which.
        count: how many are left out; -1 for all of them.
    """

    def __init__(self, rows: Rows, count: int) -> None:
        self._rows = rows
        self._left = count

    def __next__(self) -> Row:
        while self._left:
            next(self._rows)
            self._left -= 1
        return next(self._rows)


class Chain(Iterator[Row]):
    """The rows of one iterator, then those of another.

    Args:
        first: made at once.
        second: made when the first has ended.
    """

    def __init__(self, first: Rows, second: Callable[[], Rows]) -> None:
        self._rows = first
        self._second: Callable[[], Rows] | None = second

    def __next__(self) -> Row:
        try:
            return next(self._rows)
        except StopIteration:
            if self._second is None:
                raise
        self._rows, self._second = self._second(), None
        return next(self._rows)


class Repeated(Iterator[Row]):
    """The rows of an iterator again and again.

    One without rows ends it, also if it would go on for ever.

    Args:
        again: makes the iterator anew.
        count: how many times; -1 for ever.
    """

    def __init__(self, again: Callable[[], Rows], count: int) -> None:
        self._again = again
        self._left = count
        self._rows: Rows | None = None

    def __next__(self) -> Row:
        is_new = False
        while True:
            if self._rows is None:
                if not self._left:
                    raise StopIteration
                self._rows, is_new = self._again(), True
                self._left -= 1
            try:
                return next(self._rows)
            except StopIteration:
                self._rows = None
                if is_new and self._left < 0:
                    self._left = 0


class Batches(Iterator[Row]):
    """Rows stacked along a new first axis.

    Args:
        rows: of which.
        size: how many make a batch.
        drop_remainder: whether to leave out a last batch that is smaller.

    Raises:
        InvalidArgumentError: (when iterated) rows differ in shape.
    """

    def __init__(self, rows: Rows, size: int, drop_remainder: bool) -> None:
        self._rows = rows
        self._size = size
        self._drops = drop_remainder
        self._part: list[Row] = []

    def __next__(self) -> Row:
        # Kept across failures of what comes before, so that no row is lost.
        while len(self._part) < self._size:
            row = next(self._rows, None)
            if row is None:
                break
            self._part.append(row)
        part, self._part = self._part, []
        if not part or (self._drops and len(part) < self._size):
            raise StopIteration
        return tuple(
            _stacked(place, column) for place, column in enumerate(zip(*part, strict=True))
        )


class Shuffled(Iterator[Row]):
    """Rows in random order: each is drawn from a buffer that is kept full.

    The draws are TensorFlow's: the same seeds give the same order.

    Args:
        rows: of which.
        size: how many rows the buffer holds.
        words: random words of 32 bits.
    """

    def __init__(self, rows: Rows, size: int, words: Iterator[int]) -> None:
        self._rows: Rows | None = rows
        self._words = words
        self._size = size
        # A ring: what is in it begins at `first`, and its places are counted on and on.
        self._ring: dict[int, Row] = {}
        self._first = 0

    def __next__(self) -> Row:
        while self._rows is not None and len(self._ring) < self._size:
            try:
                row = next(self._rows)
            except StopIteration:
                self._rows = None
            else:
                self._ring[self._first + len(self._ring)] = row
        if not self._ring:
            raise StopIteration
        first = self._first
        place = first + next(self._words) % len(self._ring)
        drawn = self._ring[place]
        self._ring[place] = self._ring[first]
        del self._ring[first]
        self._first += 1
        return drawn


def random_words(seed: int, seed2: int) -> Iterator[int]:
    """The words of 32 bits that Philox makes of two seeds, one after another.

    Args:
        seed: the key.
        seed2: the upper half of the counter.
    """
    for block in count(step=BLOCKS):
        yield from philox_blocks(seed, seed2, block, BLOCKS).tolist()


def _stacked(place: int, column: tuple[Any, ...]) -> Any:
    if isinstance(column[0], bytes):
        out = np.empty(len(column), object)
        out[:] = column
        return out
    first = np.shape(column[0])
    for number, value in enumerate(column):
        if np.shape(value) != first:
            raise errors.InvalidArgumentError(
                None,
                None,
                f"Cannot batch tensors with different shapes in component {place}. First element"
                f" had shape {_text(first)} and element {number} had shape"
                f" {_text(np.shape(value))}.",
            )
    return plain_value(np.stack(column))


def _text(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"
