"""``out=`` that would receive two values in one place is refused, and the queue is as before.

The generator makes arrays of random shapes and strides on one buffer. The addresses of all bytes
say what overlaps.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from aioqueue import InvalidArgumentError, sync
from aioqueue.core.elements.ownership import overlap, overlaps_itself

BYTES = 160


def strided(chance: random.Random, buffer: Any) -> Any:
    """An array of random strides, also negative ones, whose elements are all inside of a buffer."""
    while True:
        dtype = np.dtype(chance.choice(["i1", "i2", "i4", "f8", "3i2,f4"]))
        shape = [chance.choice([1, 2, 2, 3, 4]) for _ in range(chance.choice([1, 2, 3]))]
        if chance.random() < 0.05:
            shape[0] = 0
        unit = chance.choice([1, dtype.itemsize, dtype.itemsize])
        strides = [unit * chance.randrange(-5, 8) for _ in shape]
        reach = [step * (n - 1) for step, n in zip(strides, shape, strict=True) if n]
        low = sum(min(0, step) for step in reach)
        high = sum(max(0, step) for step in reach) + dtype.itemsize
        if high - low <= BYTES:
            offset = chance.randrange(-low, BYTES - high + 1)
            return np.ndarray(shape, dtype, buffer, offset, strides)


def addresses(array: Any) -> Iterator[int]:
    """The addresses of all bytes of all elements."""
    first = array.__array_interface__["data"][0]
    for index in product(*map(range, array.shape)):
        place = first + sum(i * step for i, step in zip(index, array.strides, strict=True))
        yield from range(place, place + array.itemsize)


@pytest.mark.slow("20000")
@pytest.mark.parametrize("rounds", [300, 20_000])
def test_overlaps_are_those_of_the_addresses(rounds: int) -> None:
    chance = random.Random(rounds)
    seen: Counter[tuple[bool, bool]] = Counter()
    for _ in range(rounds):
        buffer = np.zeros(BYTES, "u1")
        one, other = strided(chance, buffer), strided(chance, buffer)
        held = Counter(addresses(one))
        is_own, is_shared = (
            max(held.values(), default=0) > 1,
            any(map(held.__contains__, addresses(other))),
        )
        assert overlaps_itself(one) is is_own, (one.shape, one.strides, one.itemsize)
        assert overlap(one, other) is is_shared, (one.strides, other.strides)
        seen[is_own, is_shared] += 1
    assert len(seen) == 4


def test_equations_that_would_take_for_ever() -> None:
    """Whether two arrays share memory is a hard problem in general. It ends here, all the same."""
    chance = random.Random(5)
    buffer = np.zeros(3_000_000, "u1")
    for _ in range(3):
        steps = [chance.randrange(20_000, 30_000) for _ in range(14)]
        one = as_strided(buffer, (2,) * 14, [2 * step for step in steps])
        other = as_strided(buffer[1:], (2,) * 14, [2 * step for step in reversed(steps)])
        assert not overlap(one, other)  # even and odd addresses
        places = Counter(sum(chosen) for chosen in product(*((0, 2 * step) for step in steps)))
        assert overlaps_itself(one) is (max(places.values()) > 1)


ARRAYS: dict[str, Callable[[], Any]] = {
    "diagonals": lambda: as_strided(np.zeros(3, "f4"), (2, 2), (4, 4)),
    "windows": lambda: sliding_window_view(np.zeros(3, "f4"), 2, writeable=True),
    "one row": lambda: as_strided(np.zeros(2, "f4"), (2, 2), (0, 4)),
    "one column": lambda: as_strided(np.zeros(2, "f4"), (2, 2), (4, 0)),
    "bytes": lambda: as_strided(np.zeros(4, "f4"), (2, 2), (8, 2)),
    "backwards": lambda: as_strided(np.zeros(3, "f4")[1:], (2, 2), (4, -4)),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("kind", [sync.FIFOQueue, sync.RandomShuffleQueue])
def test_an_array_that_overlaps_itself(kind: Any, name: str) -> None:
    made = {sync.FIFOQueue: (8,), sync.RandomShuffleQueue: (8, 0)}[kind]
    for dtypes, shapes in ((["f4"], [(2,)]), (["f4", "i8"], [(2,), ()])):
        queue = kind(*made, dtypes, shapes)
        rows = np.arange(8, dtype="f4").reshape(4, 2)
        queue.enqueue_many(rows if len(dtypes) == 1 else (rows, np.arange(4)))
        before = queue.statistics()
        array = ARRAYS[name]()
        with pytest.raises(InvalidArgumentError, match=r"out: .* shares memory with itself"):
            queue.dequeue_many(2, out=array if len(dtypes) == 1 else (array, np.zeros(2, "i8")))
        assert queue.statistics() == before


def test_random_arrays_get_all_or_nothing() -> None:
    """Whatever the strides, a batch is right, or refused with the queue unchanged."""
    chance = random.Random(9)
    ends: Counter[bool] = Counter()
    for _ in range(150):
        buffer = np.zeros(BYTES, "u1")
        arrays = [strided(chance, buffer) for _ in range(chance.choice([1, 2]))]
        n = arrays[0].shape[0] if arrays[0].ndim else 0
        arrays = [array[:n] for array in arrays if len(array) >= n]
        if not n or len({len(array) for array in arrays}) > 1 or any(a.dtype.names for a in arrays):
            continue
        queue = sync.FIFOQueue(8, [a.dtype for a in arrays], [a.shape[1:] for a in arrays])
        given = [np.arange(a.size).reshape(a.shape).astype(a.dtype) + 1 for a in arrays]
        queue.enqueue_many(given[0] if len(given) == 1 else tuple(given))
        try:
            queue.dequeue_many(n, out=arrays[0] if len(arrays) == 1 else tuple(arrays))
        except InvalidArgumentError:
            assert queue.size() == n
            assert not buffer.any()
            places = Counter(place for array in arrays for place in addresses(array))
            assert max(places.values()) > 1
            ends[False] += 1
        else:
            for array, wanted in zip(arrays, given, strict=True):
                assert np.array_equal(array, wanted)
            ends[True] += 1
    assert len(ends) == 2
