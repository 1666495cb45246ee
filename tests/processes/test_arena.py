"""The memory that processes share: blocks never overlap, and arrays arrive unchanged."""

from __future__ import annotations

import errno
import mmap
import os
import random
import sys
import threading
from multiprocessing import reduction
from typing import Any

import numpy as np
import pytest

from aioqueue.processes.arena import SMALL, Allocator, Arena, pack, unpack

SIZE = 2**22


def large(dtype: str = "float32") -> Any:
    return np.arange(6 * SMALL).astype(dtype).reshape(-1, 8)


def dated() -> Any:
    """Structured arrays with a time: NumPy gives no buffer for them."""
    return large("int64").view([("time", "M8[s]"), ("value", "int64")])


EXAMPLES: dict[str, Any] = {
    "an array": large(),
    "in Fortran's order": np.asfortranarray(large()),
    "with gaps": large()[::2],
    "with gaps, backwards": large()[::-3, ::2],
    "in a tuple": (large(), 3, large()[::2]),
    "in a dict": {"x": large()[::2], "y": "label"},
    "deeper": [{"x": (large()[::2],)}],
    "of structures": large("int32").view("int32,int32"),
    "of dates with gaps": (large("M8[s]")[::2], large("int64")[1::2].copy()),
    "of structures with dates": (dated()[::2], large("int64")),
    "of objects": np.array([{"a": 1}, None] * SMALL, dtype=object)[::2],
    "small": np.arange(3),
    "empty": np.zeros((0, 3)),
    "no array": "text",
    "a bytearray": bytearray(10 * SMALL),
}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("copy", [None, bytearray], ids=["views", "copies"])
def test_unpacked_examples_equal_the_packed_ones(name: str, copy: Any) -> None:
    arena, allocator = Arena(SIZE), Allocator(SIZE)
    message, blocks = pack((EXAMPLES[name],), arena, allocator)
    (again,) = unpack(message, blocks, arena, copy)
    assert same(EXAMPLES[name], again)
    arena.close_descriptor()


@pytest.mark.parametrize("name", ["an array", "in Fortran's order", "with gaps", "in a tuple"])
def test_large_arrays_are_not_in_the_message(name: str) -> None:
    arena, allocator = Arena(SIZE), Allocator(SIZE)
    message, blocks = pack((EXAMPLES[name],), arena, allocator)
    assert len(message) < 500
    assert len(blocks) == (2 if name == "in a tuple" else 1)
    arena.close_descriptor()


@pytest.mark.parametrize("name", ["an array", "with gaps"])
def test_large_arrays_are_in_the_message_if_the_arena_is_full(name: str) -> None:
    arena, allocator = Arena(SIZE), Allocator(SIZE)
    assert allocator.allocate(SIZE - 64) is not None
    message, blocks = pack((EXAMPLES[name],), arena, allocator)
    assert blocks == []
    assert same(EXAMPLES[name], unpack(message, blocks, arena)[0])
    arena.close_descriptor()


def test_copies_are_private_and_views_are_not() -> None:
    arena, allocator = Arena(SIZE), Allocator(SIZE)
    message, blocks = pack((large(),), arena, allocator)
    (view,), (copy,) = unpack(message, blocks, arena), unpack(message, blocks, arena, bytearray)
    view[0, 0] = 99
    assert unpack(message, blocks, arena)[0][0, 0] == 99
    assert copy[0, 0] == 0
    assert copy.flags.writeable
    arena.close_descriptor()


def test_the_last_report_can_be_read_after_closing() -> None:
    """Other threads read it at any time, even when its thread has just closed the arena."""
    arena = Arena(SIZE)
    arena.begin()
    arena.begin_item(3)
    before = arena.seconds
    arena.close()
    assert arena.memory.closed
    assert (arena.item, arena.has_begun) == (3, True)
    assert arena.seconds >= before


def test_a_reader_may_read_while_it_is_closed() -> None:
    arenas = []
    for _ in range(200):
        arenas.append(Arena(4096))
        arenas[-1].close_descriptor()  # a system may allow few open files
    begun, errors = threading.Event(), []

    def sample() -> None:
        begun.set()
        try:
            while not arenas[-1].memory.closed:
                for arena in arenas:
                    assert (arena.item, arena.has_begun) == (-1, False)
        except ValueError as error:
            errors.append(error)

    sampler = threading.Thread(target=sample)
    sampler.start()
    begun.wait()
    for arena in arenas:
        arena.close()
    sampler.join()
    assert errors == []


def test_a_failed_pack_takes_no_block() -> None:
    arena, allocator = Arena(SIZE), Allocator(SIZE)
    with pytest.raises(Exception, match=r"pickle|local object"):
        pack((large(), lambda: 1), arena, allocator)
    assert allocator.allocate(SIZE - 64) is not None
    arena.close_descriptor()


def test_the_memory_lives_as_long_as_a_view() -> None:
    arena, allocator = Arena(SIZE), Allocator(SIZE)
    (view,) = unpack(*pack((large(),), arena, allocator), arena)
    arena.close()
    assert same(view, large())
    arena.close_descriptor()


@pytest.mark.parametrize("seed", range(5))
def test_blocks_never_overlap(seed: int) -> None:
    """The free space is one range again when all are freed."""
    chance = random.Random(seed)
    allocator = Allocator(10_000)
    taken: dict[int, int] = {}
    for _ in range(2000):
        if taken and chance.random() < 0.5:
            some = chance.sample(list(taken), chance.randint(1, min(3, len(taken))))
            allocator.free(some)
            for start in some:
                del taken[start]
            continue
        size = chance.randint(1, 2000)
        place = allocator.allocate(size)
        if place is not None:
            assert 64 <= place <= 10_000 - size
            assert place % 64 == 0
            assert all(place + size <= s or s + n <= place for s, n in taken.items())
            taken[place] = size
    allocator.free(list(taken))
    assert allocator.allocate(9_920) == 64


@pytest.mark.skipif(sys.platform == "win32", reason="there it is handed over by name")
def test_both_processes_see_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assigned: list[int] = []

    class Handle:
        """As the other process receives it."""

        def __init__(self, fd: int) -> None:
            assigned.append(os.dup(fd))

        def detach(self) -> int:
            return assigned[0]

    monkeypatch.setattr(reduction, "DupFd", Handle)
    ours = Arena(4096)
    attached, arguments = ours.__reduce__()
    theirs = attached(*arguments)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(assigned[0])
    assert (theirs.size, len(theirs.memory)) == (4096, 4096)
    assert theirs.item == -1
    before = ours.has_begun
    theirs.begin()
    theirs.item = 5
    assert (before, ours.has_begun) == (False, True)
    assert (ours.item, theirs.item) == (5, 5)
    theirs.memory[100:104] = b"here"
    assert [bytes(view) for view in ours.views([(100, 4), (101, 2)])] == [b"here", b"er"]
    theirs.close()
    ours.close()
    assert ours.memory.closed


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
@pytest.mark.parametrize("what", [(os, "ftruncate"), (mmap, "mmap")], ids=["file", "memory"])
def test_a_failed_allocation_leaves_no_descriptor(
    what: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(*what, refuse)
        with pytest.raises(OSError, match="no memory"):
            Arena(SIZE)
    assert set(os.listdir("/proc/self/fd")) <= before
