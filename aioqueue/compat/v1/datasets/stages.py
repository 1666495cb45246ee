"""What a dataset does when it is iterated: plain iterators over rows, tuples of leaves' values.

None ends when the one before it raises: the next attempt goes on after the row that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, TypeAlias

import numpy as np

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core.convert import plain_value
from aioqueue.compat.v1.ops.building import array, invalid, shape_text
from aioqueue.compat.v1.ops.sparse import SparseRow, joined_rows
from aioqueue.core.elements.philox import philox_blocks

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = Iterator[Row]

BLOCKS = 64


def slices(values: Row) -> Rows:
    """Rows along the first axis of some arrays."""
    lengths = {len(value) for value in values}
    if len(lengths) > 1:
        raise invalid(f"The components differ in size along axis 0: {sorted(lengths)}")
    return zip(*values, strict=True)


class Taken(Iterator[Row]):
    """The first rows."""

    def __init__(self, rows: Rows, count: int) -> None:
        self._rows = rows
        self._left = count

    def __next__(self) -> Row:
        if not self._left:
            raise StopIteration
        row = next(self._rows)
        self._left -= 1
        return row


class Cache:
    """Begins with rows as often as asked: once they have all been seen, with those that were."""

    def __init__(self, start: Callable[[], Rows]) -> None:
        self._start = start
        self._kept: list[Row] | None = None

    def __call__(self) -> Rows:
        return _Kept(self._start(), self._keep) if self._kept is None else iter(self._kept)

    def _keep(self, rows: list[Row]) -> None:
        self._kept = rows


class _Kept(Iterator[Row]):
    def __init__(self, rows: Rows, keep: Callable[[list[Row]], None]) -> None:
        self._rows = rows
        self._keep = keep
        self._seen: list[Row] = []

    def __next__(self) -> Row:
        try:
            row = next(self._rows)
        except StopIteration:
            self._keep(self._seen)
            raise
        self._seen.append(row)
        return row


class Sharded(Iterator[Row]):
    """Every so many-th row, behind some that are left out."""

    def __init__(self, rows: Rows, count: int, skipped: int) -> None:
        self._rows = rows
        self._others = count - 1
        self._left = skipped

    def __next__(self) -> Row:
        while self._left:
            next(self._rows)
            self._left -= 1
        self._left = self._others
        return next(self._rows)


class Chain(Iterator[Row]):
    """The rows of one iterator, then those of another."""

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
    """The rows of an iterator again and again; one without rows ends it."""

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


class Zipped(Iterator[Row]):
    """Rows of several iterators side by side; where one fails, the others go on as well."""

    def __init__(self, inputs: Sequence[Rows]) -> None:
        self._inputs: Sequence[Rows] | None = inputs

    def __next__(self) -> Row:
        row: list[Any] = []
        failure: errors.OpError | None = None
        for rows in self._inputs or ():
            try:
                row += next(rows)
            except StopIteration:
                self._inputs = None
                break
            except errors.OpError as error:
                failure = failure or error
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback contains this frame, and that the iterators
        if self._inputs is None:
            raise StopIteration
        return tuple(row)


class Batches(Iterator[Row]):
    """Rows stacked along a new first axis."""

    def __init__(self, rows: Rows, size: int, drop_remainder: bool, stack: Any = None) -> None:
        self._rows, self._size, self._drops = rows, size, drop_remainder
        self._stack: Callable[[int, tuple[Any, ...]], Any] = stack or _stacked
        self._part: list[Row] = []

    def __next__(self) -> Row:
        # The part survives a failure of an earlier stage, so that no row is lost.
        while len(self._part) < self._size:
            row = next(self._rows, None)
            if row is None:
                break
            self._part.append(row)
        part, self._part = self._part, []
        if not part or (self._drops and len(part) < self._size):
            raise StopIteration
        return tuple(
            self._stack(place, column) for place, column in enumerate(zip(*part, strict=True))
        )


class Shuffled(Iterator[Row]):
    """Rows drawn from a buffer that is kept full; the draws are TensorFlow's."""

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
        # As in TensorFlow, the oldest row moves to the free place: later draws find it there.
        self._ring[place] = self._ring[first]
        del self._ring[first]
        self._first += 1
        return drawn


def padded(place: int, column: tuple[Any, ...], shape: tuple[int | None, ...], filler: Any) -> Any:
    """The values of a column stacked, each filled up at its ends."""
    arrays = [array(one) for one in column]
    for one in arrays:
        if one.ndim != len(shape):
            raise invalid(
                "All elements in a batch must have the same rank as the padded shape for"
                f" component{place}: expected rank {len(shape)} but got element with rank"
                f" {one.ndim}"
            )
    largest = np.max([one.shape for one in arrays], axis=0) if shape else ()
    sizes = [big if size is None else size for size, big in zip(shape, largest, strict=True)]
    if any(size < big for size, big in zip(sizes, largest, strict=True)):
        raise errors.DataLossError(
            None, None, "Attempted to pad to a smaller size than the input element."
        )
    out = np.full((len(arrays), *sizes), filler, arrays[0].dtype)
    for row, one in zip(out, arrays, strict=True) if shape else ():
        row[tuple(map(slice, one.shape))] = one
    if not shape:
        out[:] = [one[()] for one in arrays]
    return out


def random_words(seed: int, seed2: int) -> Iterator[int]:
    """The words of 32 bits that Philox makes of two seeds, one after another."""
    for block in count(step=BLOCKS):
        yield from philox_blocks(seed, seed2, block, BLOCKS).tolist()


class Interleaved(Iterator[Row]):
    """The rows of what a function makes of several rows, in turns."""

    def __init__(self, rows: Rows, make: Callable[[Row], Rows], cycle: int, block: int) -> None:
        self._outer: Rows | None = rows
        self._make = make
        self._places: list[Rows | None] = [None] * cycle
        self._block = block
        self._turn = 0
        self._given = 0

    def _pass_on(self) -> None:
        self._given = 0
        self._turn = (self._turn + 1) % len(self._places)

    def __next__(self) -> Row:
        while self._outer is not None or any(one is not None for one in self._places):
            inner = self._places[self._turn]
            if inner is not None:
                try:
                    row = next(inner)
                except StopIteration:
                    self._places[self._turn] = None
                    self._pass_on()
                    continue
                self._given += 1
                if self._given == self._block:
                    self._pass_on()
                return row
            if self._outer is None:
                self._pass_on()
                continue
            try:
                self._places[self._turn] = self._make(next(self._outer))
            except StopIteration:
                self._outer = None
        raise StopIteration


class Windows(Iterator[tuple[int, list[Row]]]):
    """Rows in groups of one key each; a group leaves when it is full, and at the end the rest."""

    def __init__(self, rows: Rows, key: Callable[[Row], int], size: Callable[[int], int]) -> None:
        self._rows: Rows | None = rows
        self._key = key
        self._size = size
        self._sizes: dict[int, int] = {}
        self._groups: dict[int, list[Row]] = {}

    def __next__(self) -> tuple[int, list[Row]]:
        while self._rows is not None:
            row = next(self._rows, None)
            if row is None:
                self._rows = None
                break
            key = self._key(row)
            if key not in self._sizes:
                size = self._sizes[key] = self._size(key)
                if size <= 0:
                    raise invalid(f"Window size must be greater than zero, but got {size}.")
            group = self._groups.setdefault(key, [])
            group.append(row)
            if len(group) == self._sizes[key]:
                return key, self._groups.pop(key)
        if not self._groups:
            raise StopIteration
        key = min(self._groups)
        return key, self._groups.pop(key)


def _stacked(place: int, column: tuple[Any, ...]) -> Any:
    if isinstance(column[0], SparseRow):
        return joined_rows(column)
    if isinstance(column[0], bytes):
        out = np.empty(len(column), object)
        out[:] = column
        return out
    first = np.shape(column[0])
    for number, value in enumerate(column):
        if np.shape(value) != first:
            raise invalid(
                f"Cannot batch tensors with different shapes in component {place}. First element"
                f" had shape {shape_text(first)} and element {number} had shape"
                f" {shape_text(np.shape(value))}."
            )
    return plain_value(np.stack(column))
