"""What the machine looks things up in, at a cost that does not grow with what was done."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")

_SLACK = 16
"""Keys of removed values that a heap may keep beside as many as it has values."""


class SortedIndex(Generic[ValueT]):
    """Values in the order of their keys, which are distinct integers.

    Adding, removing and taking the first cost a logarithm. A removed value's key stays in the heap
    until it comes up; if such keys outnumber the others, the heap is made anew.
    """

    __slots__ = ("_heap", "values")

    def __init__(self) -> None:
        self._heap: list[int] = []
        self.values: dict[int, ValueT] = {}
        """The values by their keys, in no order. Ask it for their number; do not change it."""

    def __contains__(self, key: int) -> bool:
        return key in self.values

    def get(self, key: int) -> ValueT:
        """Return the value with a key that is there."""
        return self.values[key]

    def add(self, key: int, value: ValueT) -> None:
        self.values[key] = value
        heappush(self._heap, key)
        if len(self._heap) > 2 * len(self.values) + _SLACK:
            self._heap = list(self.values)
            heapify(self._heap)

    def discard(self, key: int) -> None:
        self.values.pop(key, None)

    def first_key(self) -> int | None:
        heap, values = self._heap, self.values
        while heap:
            if heap[0] in values:
                return heap[0]
            heappop(heap)
        return None

    def first(self) -> ValueT:
        """Return the value with the lowest key. There must be one."""
        key = self.first_key()
        assert key is not None
        return self.values[key]

    def pop(self) -> ValueT:
        """Remove the value with the lowest key. There must be one."""
        key = self.first_key()
        assert key is not None
        heappop(self._heap)
        return self.values.pop(key)


class OrdinalSet:
    """Ordinals from 0: all below ``lowest_open``, and ranges above it.

    The ranges are merged, so a prompt that takes long costs one range, however many end meanwhile.
    """

    __slots__ = ("_starts", "_stops", "lowest_open")

    def __init__(self, lowest_open: int = 0, ranges: list[list[int]] | None = None) -> None:
        self.lowest_open: int = lowest_open
        self._stops = {one[0]: one[1] for one in ranges or ()}
        self._starts = {stop: start for start, stop in self._stops.items()}

    def add(self, ordinal: int) -> None:
        """Add an ordinal that is not in the set."""
        stop = ordinal + 1
        if stop in self._stops:
            stop = self._stops.pop(stop)
            del self._starts[stop]
        if ordinal == self.lowest_open:
            self.lowest_open = stop
            return
        start = self._starts.pop(ordinal, ordinal)
        self._stops[start] = stop
        self._starts[stop] = start

    def first_open(self, ordinal: int) -> int:
        """Return the lowest ordinal outside of the set, not below one that is outside of it, or
        that begins a range."""
        if ordinal < self.lowest_open:
            return self.lowest_open
        return self._stops.get(ordinal, ordinal)

    def ranges(self) -> list[list[int]]:
        """Return the ranges above ``lowest_open`` in order, each as ``[start, stop]``."""
        return [list(one) for one in sorted(self._stops.items())]
