"""A bound on bytes beside the capacity: what waits for it, what does not, and what is seen."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from aioqueue import sync
from aioqueue.core.attempts import QueueState
from aioqueue.core.storage.blocks import BlockStorage
from aioqueue.core.storage.shuffle import ShuffleStorage
from aioqueue.core.storage.sized import WeighedStorage
from aioqueue.errors import InvalidArgumentError, QueueClosedError, QueueFull
from tests.kit.worlds import TaskOperation, World, core_of

KIB = bytes(1024)


class TestElementsOfAnySize:
    async def test_an_enqueue_waits_until_its_element_fits(self, world: World) -> None:
        queue = world.fifo(None, max_bytes=10)
        await queue.enqueue(b"12345")
        await queue.enqueue(b"12345")
        waiting = await world.begin(queue.enqueue, b"1")
        assert not waiting.done
        assert await queue.dequeue() == b"12345"
        await waiting.result()
        assert (queue.size(), queue.statistics().bytes) == (2, 6)

    async def test_one_element_always_goes_in_when_it_is_empty(self, world: World) -> None:
        queue = world.fifo(3, max_bytes=10)
        await queue.enqueue(KIB)
        waiting = await world.begin(queue.enqueue, b"")
        assert not waiting.done
        assert await queue.dequeue() == KIB
        await waiting.result()
        assert await queue.dequeue() == b""

    async def test_the_capacity_still_holds(self, world: World) -> None:
        queue = world.fifo(2, max_bytes=100)
        await queue.enqueue(b"1")
        await queue.enqueue(b"1")
        with pytest.raises(QueueFull):
            queue.enqueue_nowait(b"1")

    async def test_no_call_overtakes_one_that_waits_for_bytes(self, world: World) -> None:
        queue = world.fifo(None, max_bytes=10)
        await queue.enqueue(b"12345678")
        large = await world.begin(queue.enqueue, b"12345")
        small = await world.begin(queue.enqueue, b"1")
        with pytest.raises(QueueFull):
            queue.enqueue_nowait(b"1")
        assert not small.done
        assert [await queue.dequeue() for _ in range(3)] == [b"12345678", b"12345", b"1"]
        await large.result()
        await small.result()

    async def test_the_rows_of_a_batch_go_in_while_they_fit(self, world: World) -> None:
        queue = world.fifo(None, max_bytes=10)
        batch = [b"123", b"123", b"12345", b"1"]
        waiting = await world.begin(queue.enqueue_many, batch)
        assert (queue.size(), queue.statistics().bytes) == (2, 6)
        assert await queue.dequeue() == b"123"
        await world.until(lambda: waiting.done)
        assert (queue.size(), queue.statistics().bytes) == (3, 9)
        assert await queue.dequeue_many(3) == batch[1:]

    async def test_what_a_waiting_batch_lacks_goes_in_however_large(self, world: World) -> None:
        fifo: tuple[Any, Any] = world.fifo(None, max_bytes=10), KIB
        priority: tuple[Any, Any] = world.priority(None, max_bytes=10), (1, KIB)
        for queue, element in (fifo, priority):
            batch = await world.begin(queue.dequeue_many, 3)
            for _ in range(3):
                await queue.enqueue(element)
            assert await batch.result() == [element] * 3

    async def test_a_batch_that_begins_to_wait_lets_enqueues_in(self, world: World) -> None:
        queue = world.priority(None, max_bytes=10)
        await queue.enqueue((1, KIB))
        waiting = await world.begin(queue.enqueue, (0, KIB))
        assert not waiting.done
        assert await queue.dequeue_many(2) == [(0, KIB), (1, KIB)]
        await waiting.result()

    async def test_what_must_stay_inside_goes_in_however_large(self, world: World) -> None:
        queue = world.shuffle(None, 2, max_bytes=10, seed=1)
        for _ in range(3):
            await queue.enqueue(KIB)
        with pytest.raises(QueueFull):
            queue.enqueue_nowait(b"")
        assert await queue.dequeue() == KIB
        await queue.enqueue(b"")

    async def test_closing(self, world: World) -> None:
        queue = world.fifo(None, max_bytes=2)
        await queue.enqueue(b"12")
        served = await world.begin(queue.enqueue, b"1")
        queue.close()
        assert queue.state is QueueState.CLOSING
        assert await queue.dequeue() == b"12"
        await served.result()
        refused = world.fifo(None, max_bytes=2)
        await refused.enqueue(b"12")
        waiting = await world.begin(refused.enqueue_many, [b"3", b"4"])
        refused.close(cancel_pending_enqueues=True)
        with pytest.raises(QueueClosedError, match="0 of its 2 rows are in"):
            await waiting.result()
        assert refused.statistics().bytes == 2

    async def test_an_element_without_a_size_is_refused(self, world: World) -> None:
        class Mute:
            @property
            def nbytes(self) -> int:
                raise RuntimeError("no size")

        queue = world.fifo(None, max_bytes=2)
        for call, argument in ((queue.enqueue, Mute()), (queue.enqueue_many, [b"1", Mute()])):
            with pytest.raises(RuntimeError, match="no size"):
                await call(argument)
        assert (queue.size(), queue.statistics().bytes) == (0, 0)

    async def test_an_element_counts_as_when_it_went_in(self, world: World) -> None:
        queue = world.fifo(None, max_bytes=100)
        element = [b"12"]
        await queue.enqueue(element)
        element.append(KIB)
        assert queue.statistics().bytes == 2
        await queue.dequeue()
        assert queue.statistics().bytes == 0

    async def test_strings(self, world: World) -> None:
        queue = world.fifo(None, [str, "int64"], [(), (2,)], ["text", "ids"], max_bytes=40)
        ids = np.arange(2)
        await queue.enqueue({"text": "abcd", "ids": ids})
        ids[:] = 9  # what is inside is the queue's own
        await queue.enqueue_many({"text": ["efgh"], "ids": np.array([[2, 3]], "int32")})
        assert queue.statistics().bytes == 40
        with pytest.raises(QueueFull):
            queue.enqueue_nowait({"text": "", "ids": ids})
        out = {"text": np.empty(2, object), "ids": np.empty((2, 2), "int64")}
        batch = await queue.dequeue_many(2, out=out)
        assert batch["text"] is out["text"]
        assert batch["text"].tolist() == ["abcd", "efgh"]
        assert batch["ids"].tolist() == [[0, 1], [2, 3]]
        await queue.enqueue({"text": "abcd", "ids": ids})
        element = await queue.dequeue()
        assert (element["text"], element["ids"].dtype) == ("abcd", np.dtype("int64"))

    async def test_a_batch_of_strings_is_as_without_a_bound(self, world: World) -> None:
        rows = (["a", "bcd"], np.array([1.5, 2.5], "float32"))
        batches = []
        for options in ({}, {"max_bytes": 1000}):
            queue = world.fifo(9, [str, "float64"], [(), ()], **options)
            await queue.enqueue_many(rows)
            batches.append(await queue.dequeue_many(2))
            await queue.enqueue(("x", 1))
            single = await queue.dequeue()
            assert (type(single[0]), type(single[1])) == (str, np.float64)
        for ours, theirs in zip(*batches, strict=True):
            assert ours.dtype == theirs.dtype
            assert ours.tolist() == theirs.tolist()

    async def test_padded_rows(self, world: World) -> None:
        queue = world.padding(None, "int64", [(None,)], max_bytes=40)
        await queue.enqueue([1, 2, 3])
        await queue.enqueue([4])
        assert queue.statistics().bytes == 32
        waiting = await world.begin(queue.enqueue, [5, 6])
        assert (await queue.dequeue_many(2)).tolist() == [[1, 2, 3], [4, 0, 0]]
        await waiting.result()
        assert (await queue.dequeue()).tolist() == [5, 6]

    async def test_priorities(self, world: World) -> None:
        queue = world.priority(None, str, (), max_bytes=24)
        await queue.enqueue_many(([3, 1], ["abcd", "efgh"]))
        assert queue.statistics().bytes == 24
        waiting = await world.begin(queue.enqueue, (2, "ij"))
        assert await queue.dequeue() == (1, "efgh")
        await waiting.result()
        priorities, texts = await queue.dequeue_many(2)
        assert (priorities.tolist(), texts.tolist()) == ([2, 3], ["ij", "abcd"])

    @pytest.mark.parametrize("options", [{}, {"dtypes": str, "shapes": ()}], ids=repr)
    async def test_the_order_of_a_shuffle_queue_is_as_without(
        self, world: World, options: dict[str, Any]
    ) -> None:
        orders = []
        for max_bytes in (None, 10**6):
            queue = world.shuffle(100, 5, seed=7, max_bytes=max_bytes, **options)
            await queue.enqueue_many([f"{number}" for number in range(30)])
            orders.append([await queue.dequeue() for _ in range(20)])
        assert orders[0] == orders[1]

    async def test_what_comes_back_counts_again(self, world: World) -> None:
        queue = world.fifo(None, max_bytes=4)
        batch = await world.begin(queue.dequeue_many, 3)
        if isinstance(batch, TaskOperation):
            await queue.enqueue_many([b"12", b"34"])
            batch.cancel()
            assert await batch.was_cancelled()
            assert (queue.size(), queue.statistics().bytes) == (2, 4)
            with pytest.raises(QueueFull):
                queue.enqueue_nowait(b"5")


class TestElementsOfOneSize:
    async def test_bytes_bound_the_number(self, world: World) -> None:
        queue = world.fifo(None, ["float32", "int32"], [(4,), ()], max_bytes=50)
        element = (np.zeros(4, "float32"), 1)
        await queue.enqueue(element)
        await queue.enqueue(element)
        waiting = await world.begin(queue.enqueue, element)
        assert not waiting.done
        statistics = queue.statistics()
        assert (statistics.size, statistics.bytes, statistics.max_bytes) == (2, 40, 50)
        assert statistics.capacity is None
        await queue.dequeue()
        await waiting.result()

    async def test_one_element_always_fits(self, world: World) -> None:
        queue = world.fifo(10, "int64", (), max_bytes=1)
        await queue.enqueue(1)
        with pytest.raises(QueueFull):
            queue.enqueue_nowait(2)

    async def test_the_smaller_bound_counts(self, world: World) -> None:
        queue = world.fifo(1, "int64", (), max_bytes=80)
        await queue.enqueue(1)
        with pytest.raises(QueueFull):
            queue.enqueue_nowait(2)

    async def test_elements_of_no_bytes(self, world: World) -> None:
        queue = world.fifo(2, "int64", (0,), max_bytes=1)
        await queue.enqueue_many(np.empty((2, 0), "int64"))
        assert (queue.size(), queue.statistics().bytes) == (2, 0)

    async def test_a_batch_of_priorities_has_to_fit(self, world: World) -> None:
        queue = world.priority(None, "int64", (), max_bytes=50)
        with pytest.raises(
            InvalidArgumentError, match="n: got 4; expected at most 3, which is all that max_bytes"
        ):
            await queue.dequeue_many(4)

    async def test_storages_are_those_of_queues_without(self, world: World) -> None:
        fifo = world.fifo(None, "int64", (), max_bytes=80)
        assert type(core_of(fifo).storage) is BlockStorage
        shuffle = world.shuffle(None, 0, "int64", (), max_bytes=80)
        assert type(core_of(shuffle).storage) is ShuffleStorage
        assert type(core_of(world.fifo(1, str, (), max_bytes=80)).storage) is WeighedStorage
        assert type(core_of(world.fifo(1, str, ())).storage) is BlockStorage


class TestWhatIsSeen:
    async def test_repr(self, world: World) -> None:
        queue = world.fifo(3, max_bytes=10)
        await queue.enqueue(b"1234")
        assert queue.max_bytes == 10
        assert repr(queue).endswith("[objects] 1/3, 4/10 bytes>")
        unbounded = world.fifo(None, "int64", (), max_bytes=24)
        await unbounded.enqueue(1)
        assert repr(unbounded).endswith("[int64[]] 1 element, 8/24 bytes>")

    async def test_without_a_bound(self, world: World) -> None:
        queue = world.fifo(3)
        await queue.enqueue(1)
        assert (queue.max_bytes, queue.statistics().bytes) == (None, None)
        typed = world.fifo(3, "int64", ())
        await typed.enqueue(1)
        statistics = typed.statistics()
        assert (statistics.bytes, statistics.max_bytes) == (8, None)

    async def test_bytes_that_a_waiting_batch_has_taken(self, world: World) -> None:
        queue = world.fifo(None, max_bytes=10)
        await queue.enqueue(b"1234")
        batch = await world.begin(queue.dequeue_many, 2)
        statistics = queue.statistics()
        assert (statistics.size, statistics.bytes) == (0, 4)
        await queue.enqueue(b"5")
        assert await batch.result() == [b"1234", b"5"]
        assert queue.statistics().bytes == 0


class TestWrongValues:
    @pytest.mark.parametrize("max_bytes", [0, -1, 1.5, "1", True, np.timedelta64(5, "s")], ids=repr)
    @pytest.mark.parametrize("kind", ["FIFOQueue", "PriorityQueue"])
    def test_are_refused(self, kind: str, max_bytes: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=r"^max_bytes: got .* an int >= 1, or None"):
            getattr(sync, kind)(1, max_bytes=max_bytes)
        with pytest.raises(InvalidArgumentError, match=r"^max_bytes"):
            sync.PaddingFIFOQueue(1, "int64", [(None,)], max_bytes=max_bytes)
        with pytest.raises(InvalidArgumentError, match=r"^max_bytes"):
            sync.RandomShuffleQueue(1, 0, max_bytes=max_bytes)

    def test_ints_of_numpy_and_huge_ones(self) -> None:
        five: Any = np.int64(5)
        assert sync.FIFOQueue(1, max_bytes=five).max_bytes == 5
        queue = sync.FIFOQueue(None, "int64", (), max_bytes=10**400)
        queue.enqueue(1)
        assert queue.dequeue() == 1

    def test_less_than_a_shuffle_queue_keeps(self) -> None:
        with pytest.raises(
            InvalidArgumentError,
            match=r"^max_bytes: got 87; expected room for more than the 10 elements of 8 bytes",
        ):
            sync.RandomShuffleQueue(None, 10, "int64", (), max_bytes=87)
        assert sync.RandomShuffleQueue(None, 10, "int64", (), max_bytes=88).max_bytes == 88
        assert sync.RandomShuffleQueue(None, 0, "int64", (), max_bytes=1).max_bytes == 1


def test_threads_and_tasks_share_the_bound() -> None:
    queue = sync.FIFOQueue(None, max_bytes=3 * len(KIB))
    total = 200

    async def consume() -> int:
        count = largest = 0
        async for element in queue.aio:
            largest = max(largest, queue.statistics().bytes or 0)
            count += len(element)
        assert largest <= 3 * len(KIB)
        return count

    async def main() -> int:
        def produce() -> None:
            for _ in range(total):
                queue.enqueue(KIB)

        async with asyncio.TaskGroup() as tasks:
            consumer = tasks.create_task(consume())
            async with asyncio.TaskGroup() as producers:
                for _ in range(4):
                    producers.create_task(asyncio.to_thread(produce))
            queue.close()
        return consumer.result()

    assert asyncio.run(main()) == 4 * total * len(KIB)
