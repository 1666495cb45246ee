"""The ring of memory that batches are made in: what is used again, when, and for what."""

from __future__ import annotations

import numpy as np
import pytest

from aioqueue.pipeline.batches.devices import BufferRing, HostMemory, Slot


def memory(nbytes: int) -> HostMemory:
    return HostMemory(np.empty(nbytes, np.uint8))


F4, I8 = np.dtype("f4"), np.dtype("i8")


def test_places_are_used_by_turns() -> None:
    ring = BufferRing(2, memory)
    arrays = [ring.next().empty((3, 4), F4) for _ in range(4)]
    assert [array.shape for array in arrays] == [(3, 4)] * 4
    assert np.shares_memory(arrays[0], arrays[2])
    assert np.shares_memory(arrays[1], arrays[3])
    assert not np.shares_memory(arrays[0], arrays[1])


def test_each_array_of_a_batch_has_memory_of_its_own() -> None:
    slot = Slot(memory)
    images, labels = slot.empty((3, 4), F4), slot.empty((3,), I8)
    assert not np.shares_memory(images, labels)


@pytest.mark.parametrize("shape", [(2, 4), (0, 4), (), (1, 3, 4)])
def test_what_is_smaller_lies_in_the_same_memory(shape: tuple[int, ...]) -> None:
    slot = Slot(memory)
    large = slot.empty((3, 4), F4)
    slot.begin()
    small = slot.empty(shape, F4)
    assert small.shape == shape
    small[...] = 7
    assert large.ravel()[: small.size].tolist() == [7] * small.size


def test_memory_grows_in_steps() -> None:
    asked: list[int] = []

    def counted(nbytes: int) -> HostMemory:
        asked.append(nbytes)
        return memory(nbytes)

    slot = Slot(counted)
    for rows in range(10, 101):
        slot.begin()
        assert slot.empty((rows,), F4).nbytes == 4 * rows
    assert asked[0] == 40
    assert len(asked) < 9


@pytest.mark.parametrize("dtype", ["O", "U3", "S3", "M8[s]", [("x", "f4")]])
def test_what_is_not_copied_is_made_elsewhere(dtype: object) -> None:
    slot = Slot(memory)
    array = slot.empty((2,), np.dtype(dtype))  # type: ignore[call-overload]
    assert array.flags.owndata
    assert slot.memory_of(array) is None


def test_an_array_is_known_by_itself_and_not_by_what_is_in_it() -> None:
    pieces = [memory(64), memory(64)]
    given = iter(pieces)
    slot = Slot(lambda nbytes: next(given))
    first, second = slot.empty((2,), F4), slot.empty((2,), F4)
    first[:] = second[:] = 1
    assert slot.memory_of(first) is pieces[0]
    assert slot.memory_of(second) is pieces[1]
    assert slot.memory_of(first.copy()) is None
    slot.begin()
    assert slot.memory_of(first) is None


def test_a_place_waits_once_until_it_may_be_written() -> None:
    waited: list[str] = []
    ring = BufferRing(2, memory)
    ring.next().keep_until(lambda: waited.append("first"))
    ring.next().keep_until(None)
    assert not waited
    ring.next()
    assert waited == ["first"]
    ring.next()
    ring.next()
    assert waited == ["first"]
