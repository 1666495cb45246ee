"""Large rows that clients read where the owner keeps them."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.core.elements.component import Component
from aioqueue.sharing import owner, queues, row_blocks
from aioqueue.sharing.row_blocks import MappedRows, RowBlocks
from tests.kit.sharing import Child
from tests.kit.worlds import spin_until

Start = Callable[..., Child]

SHAPE = (1 << 14,)
"""128 KiB of float64."""
COMPONENTS = (Component("image", "float64", SHAPE), Component("label", "int32", ()))


def image(number: int) -> Any:
    return np.full(SHAPE, float(number))


def number_of(image: Any) -> int:
    """Which image this is; checks that it is whole, and the caller's own."""
    number = int(image[0])
    assert (image == number).all()
    image[...] = -1.0
    return number


def places_of(queue: Any) -> list[bool]:
    """Of each segment that is inside, whether clients can read it."""
    return [segment.block.place is not None for segment in queue._core.storage._segments]


def take_in_all_ways(queue: Any, pipe: Any) -> list[int]:
    """Each time the queue has five rows, of which one was there before this process."""
    numbers = []

    async def take() -> None:
        picture, label = await queue.aio.dequeue()
        assert type(label) is np.int32
        numbers.append((number_of(picture), int(label)))

    def note(batch: Any) -> None:
        for picture, label in zip(batch[0].copy(), batch[1], strict=True):
            numbers.append((number_of(picture.copy()), int(label)))

    out = np.empty((3, *SHAPE)), np.empty(3, "int32")
    for _ in range(2):
        picture, label = queue.dequeue()
        numbers.append((number_of(picture), int(label)))
        asyncio.run(take())
        note(queue.dequeue_many(3))
        pipe.send("again")
        pipe.recv()
        assert queue.dequeue_many(3, out=out)[0] is out[0]
        note(out)
        note(queue.dequeue_up_to(9, 0.0))
        pipe.send("again")
        pipe.recv()
    assert all(number == label for number, label in numbers)
    return [number for number, _ in numbers]


def test_rows_that_are_read_in_place(child: Start) -> None:
    queue = sync.FIFOQueue(5, ["float64", "int32"], [SHAPE, ()]).share()
    for number in range(5):
        queue.enqueue((image(number), number))
    taking = child(take_in_all_ways, queue, talks=True)
    for start in range(5, 25, 5):
        assert taking.reported() == "again"
        for number in range(start, start + 3):
            queue.enqueue((image(number), number))
        queue.enqueue_many((np.stack([image(start + 3), image(start + 4)]), [start + 3, start + 4]))
        assert all(places_of(queue))
        taking.pipe.send("go on")
    # What is left belongs to nobody there.
    assert taking.result() == list(range(20))
    assert [number_of(queue.dequeue()[0]) for _ in range(5)] == list(range(20, 25))


def put_rows(queue: Any) -> None:
    queue.dequeue()
    for number in range(1, 4):
        queue.enqueue(image(number))
    asyncio.run(queue.aio.enqueue(image(4)))
    queue.enqueue_many(np.stack([image(5), image(6)]))


def test_rows_of_a_client_are_kept_there_too(child: Start) -> None:
    queue = sync.FIFOQueue(10, "float64", SHAPE).share()
    queue.enqueue(image(0))
    child(put_rows, queue).result()
    assert all(places_of(queue))
    assert [number_of(queue.dequeue()) for _ in range(3)] == [1, 2, 3]
    batch = queue.dequeue_many(3)
    assert [int(row[0]) for row in batch] == [4, 5, 6]
    assert batch.base is None, "memory that others map is no caller's"


def take_and_stop(queue: Any, pipe: Any) -> None:
    """Be stopped with rows that no caller has taken yet."""

    def copy_rows(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    queue.dequeue()
    queues.RemoteMachine._copy_rows = copy_rows  # type: ignore[assignment,method-assign]
    pipe.send("takes")
    queue.dequeue_many(2)


def test_no_caller_writes_over_what_a_stopped_client_holds(child: Start) -> None:
    """Others go on meanwhile; when it dies, its rows are in front again, and whole."""
    queue = sync.FIFOQueue(3, "float64", SHAPE).share()
    queue.enqueue(image(0))
    stopped = child(take_and_stop, queue, talks=True)
    stopped.reported()
    queue.enqueue_many(np.stack([image(1), image(2)]))
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
    for number in range(3, 23):
        queue.enqueue(image(number))
        assert number_of(queue.dequeue()) == number
    queue.enqueue(image(23))
    stopped.kill()
    spin_until(lambda: not queue.statistics().granted)
    assert [number_of(queue.dequeue()) for _ in range(3)] == [1, 2, 23]


def take_with_cancellations(queue: Any) -> list[int]:
    numbers = []

    async def take() -> None:
        while True:
            picture = await queue.aio.dequeue()
            numbers.append(number_of(picture))

    async def main() -> None:
        while True:
            tasks = [asyncio.ensure_future(take()) for _ in range(3)]
            await asyncio.sleep(0.001)
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            if any(isinstance(end, aioqueue.OutOfRangeError) for end in ends):
                return

    asyncio.run(main())
    return numbers


def test_cancelled_calls_give_them_back(child: Start) -> None:
    queue = sync.FIFOQueue(4, "float64", SHAPE).share()
    taking = child(take_with_cancellations, queue)
    for number in range(300):
        queue.enqueue(image(number))
    queue.close()
    assert sorted(taking.result()) == list(range(300))


def fail_to_copy(queue: Any, pipe: Any) -> int:
    """Get a row that cannot be copied, and then can."""

    def no_memory(*arguments: Any) -> None:
        raise MemoryError("no room for a copy")

    queue.dequeue()
    copy_rows = queues.RemoteMachine._copy_rows
    queues.RemoteMachine._copy_rows = no_memory  # type: ignore[assignment,method-assign]
    pipe.send("takes")
    try:
        queue.dequeue()
    except MemoryError as error:
        assert "what a dequeue of" in str(error.__notes__)
    queues.RemoteMachine._copy_rows = copy_rows  # type: ignore[method-assign]
    return number_of(queue.dequeue())


def test_a_copy_that_fails_gives_the_row_back(child: Start) -> None:
    queue = sync.FIFOQueue(4, "float64", SHAPE).share()
    queue.enqueue(image(0))
    failing = child(fail_to_copy, queue, talks=True)
    failing.reported()
    queue.enqueue_many(np.stack([image(1), image(2)]))
    assert failing.result() == 1
    assert number_of(queue.dequeue()) == 2


def take_one(queue: Any, pipe: Any) -> None:
    queue.dequeue()
    pipe.send("has taken one")
    pipe.recv()


def has_waiting(queue: Any, n: int) -> bool:
    return bool(queue.statistics().waiting_enqueues == n)


def test_what_waits_to_go_in_is_not_copied_without_a_bound(child: Start) -> None:
    queue = sync.FIFOQueue(1, "float64", SHAPE).share()
    queue.enqueue(image(0))
    taking = child(take_one, queue, talks=True)
    taking.reported()
    queue.enqueue(image(1))
    threads = [threading.Thread(target=queue.enqueue, args=(image(2),)) for _ in range(8)]
    for count, thread in enumerate(threads):
        thread.start()
        spin_until(partial(has_waiting, queue, count + 1))
    waiting: Any = queue._machine.waiting()
    copied = [one for one in waiting if type(one.row) is not tuple]
    assert len(copied) == queues._MOST_COPIED
    assert [number_of(queue.dequeue()) for _ in range(9)] == [1] + [2] * 8
    for thread in threads:
        thread.join()
    taking.pipe.send("end")


# The memory.


def blocks() -> RowBlocks:
    return RowBlocks(lambda call: call())


def test_a_block_that_is_dropped_is_free_again() -> None:
    made = blocks()
    try:
        block = made.block(COMPONENTS, 4)
        assert block is not None
        columns, place = block
        assert [column.shape for column in columns] == [(4, *SHAPE), (4,)]
        columns[0][...] = 1.0
        other = made.block(COMPONENTS, 1)
        assert other is not None
        assert other[1].start > place.start
        start = place.start
        del columns, place, block
        gc.collect()
        again = made.block(COMPONENTS, 4)
        assert again is not None
        assert again[1].start == start
        assert not again[0][0].any(), "its pages went back to the system"
    finally:
        made.close()


def test_memory_that_is_full(monkeypatch: pytest.MonkeyPatch, child: Start) -> None:
    """Then rows are kept in private memory, and go as others do."""
    monkeypatch.setattr(row_blocks, "SIZE", 1 << 18)  # two rows
    queue = sync.FIFOQueue(6, "float64", SHAPE).share()
    queue.enqueue(image(0))
    taking = child(take_all, queue, talks=True)
    taking.reported()
    for number in range(1, 7):
        queue.enqueue(image(number))
    assert True in places_of(queue)
    assert False in places_of(queue)
    taking.pipe.send("go on")
    assert taking.result() == list(range(7))


def take_all(queue: Any, pipe: Any) -> list[int]:
    numbers = [number_of(queue.dequeue())]
    pipe.send("has taken one")
    pipe.recv()
    numbers += [number_of(queue.dequeue()) for _ in range(2)]
    numbers += [int(row[0]) for row in queue.dequeue_many(4)]
    return numbers


def test_a_fork_of_the_owner_frees_nothing(child: Start) -> None:
    """It has copies of the blocks, which it drops; the owner has them still."""
    made = blocks()
    try:
        block = made.block(COMPONENTS, 1)
        assert block is not None
        columns, place = block
        columns[0][...] = 7.0
        pid = os.fork()
        if not pid:
            del block, place
            os._exit(len(made._unused))
        assert os.waitpid(pid, 0)[1] == 0
        assert (columns[0] == 7.0).all()
        del place
    finally:
        made.close()


def test_a_client_that_cannot_map_the_memory() -> None:
    made = blocks()
    try:
        block = made.block(COMPONENTS, 1)
        assert block is not None
        mapped = MappedRows(os.dup(made.descriptor))
        body = memoryview(row_blocks.answer_of([(block[1], 1, 0, 1)]))
        mapped.close()
        with pytest.raises(MemoryError, match="cannot be mapped"):
            mapped.parts(1, COMPONENTS, body)
    finally:
        made.close()


def test_columns_that_a_client_reads() -> None:
    made = blocks()
    mapped = MappedRows(os.dup(made.descriptor))
    try:
        for _ in range(row_blocks._MOST_KNOWN + 2):
            block = made.block(COMPONENTS[1:], 3)
            assert block is not None
            (labels,), place = block
            labels[...] = [1, 2, 3]
            body = memoryview(row_blocks.answer_of([(place, 3, 1, 2), (place, 3, 2, 3)]))
            first, second = mapped.parts(1, COMPONENTS[1:], body)
            assert first[1:] == (1, 2)
            assert second[1:] == (2, 3)
            assert first[0][0].tolist() == [1, 2, 3]
            assert not first[0][0].flags.writeable
            assert second[0] is first[0]
    finally:
        mapped.close()
        made.close()


def test_queues_whose_dequeues_are_small_keep_their_memory(child: Start) -> None:
    queue = sync.FIFOQueue(10, "int64", ()).share()
    queue.enqueue(1)
    child(take_small, queue).result()
    queue.enqueue(2)
    assert places_of(queue) == [False]
    assert owner.server().row_blocks._memory is None


def take_small(queue: Any) -> None:
    assert queue.dequeue() == 1
