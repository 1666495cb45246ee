"""Broadcast: who gets what, which consumers wait for which, and notice that one has left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import InvalidArgumentError, OutOfRangeError, sync
from aioqueue.pipeline.streams.batch import batch
from aioqueue.pipeline.streams.broadcast import broadcast
from aioqueue.workers.statistics import ConsumerStatistics
from tests.kit.pipelines import (
    StreamEndedError,
    coordinated,
    failures_of,
    joined,
    rest,
    rest_until_failure,
    take,
)
from tests.kit.worlds import World


class Counted:
    """Numbers, and how many of them have been asked for."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.taken = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.n):
            self.taken += 1
            yield number


class TestSlowest:
    @pytest.mark.slow(every=3)
    async def test_everybody_gets_everything_in_order(self, world: World) -> None:
        async with coordinated(world) as coord:
            consumers = broadcast(range(200), 3, coord=coord)
            others = [world.spawn(rest, consumer) for consumer in consumers[1:]]
            assert await rest(consumers[0]) == list(range(200))
            for other in others:
                assert await other.result() == list(range(200))
            assert consumers[2].statistics() == ConsumerStatistics(taken=200, dropped=0, waiting=0)

    async def test_the_slowest_sets_the_pace(self, world: World) -> None:
        source = Counted(100)
        async with coordinated(world) as coord:
            fast, slow = broadcast(source, 2, coord=coord, capacity=3)
            # The slow one has 3 and the worker waits with the 4th, which the fast one has already.
            assert [await take(fast) for _ in range(4)] == [0, 1, 2, 3]
            await world.until(lambda: slow.queue.statistics().waiting_enqueues == 1)
            assert source.taken == 4
            assert (slow.queue.size(), fast.queue.size()) == (3, 0)
            assert await take(slow) == 0
            assert await take(fast) == 4

    async def test_one_that_leaves_blocks_no_other(self, world: World) -> None:
        async with coordinated(world) as coord:
            staying, leaving = broadcast(range(50), 2, coord=coord, capacity=1)
            assert await take(staying) == 0
            assert await take(staying) == 1
            # The worker waits for the other one now: leaving must wake it.
            await world.until(lambda: leaving.queue.statistics().waiting_enqueues == 1)
            leaving.close()
            assert await rest(staying) == list(range(2, 50))
            assert await rest(leaving) == [0]  # what it had got

    async def test_when_all_have_left_the_worker_ends(self, world: World) -> None:
        async with coordinated(world) as coord:
            consumers = broadcast(iter(int, 1), 2, coord=coord)
            for consumer in consumers:
                await take(consumer)
                consumer.close()
            await joined(coord)  # without a stop


class TestUnawaitedConsumers:
    async def test_drop_oldest_leaves_the_newest(self, world: World) -> None:
        async with coordinated(world) as coord:
            (consumer,) = broadcast(range(10), 1, coord=coord, policy="drop_oldest", capacity=3)
            await joined(coord)
            assert await rest(consumer) == [7, 8, 9]
            assert consumer.statistics() == ConsumerStatistics(taken=3, dropped=7, waiting=0)

    async def test_sample_leaves_what_came_when_there_was_room(self, world: World) -> None:
        async with coordinated(world) as coord:
            (consumer,) = broadcast(range(10), 1, coord=coord, policy="sample", capacity=3)
            await joined(coord)
            assert consumer.statistics() == ConsumerStatistics(taken=0, dropped=7, waiting=3)
            assert await rest(consumer) == [0, 1, 2]

    @pytest.mark.slow(every=3)
    async def test_beside_one_that_gets_all(self, world: World) -> None:
        async with coordinated(world) as coord:
            trainer, newest, some = broadcast(
                range(300), 3, coord=coord, policy=["slowest", "drop_oldest", "sample"]
            )
            readers = [world.spawn(rest, consumer) for consumer in (newest, some)]
            assert await rest(trainer) == list(range(300))
            for consumer, reader in zip((newest, some), readers, strict=True):
                seen = await reader.result()
                assert seen == sorted(set(seen))
                counts = consumer.statistics()
                assert (counts.taken, counts.waiting) == (len(seen), 0)
                assert counts.taken + counts.dropped == 300
        assert "(drop_oldest)" in repr(newest)

    async def test_with_room_nothing_is_dropped(self, world: World) -> None:
        async with coordinated(world) as coord:
            consumers = broadcast(
                range(5), 2, coord=coord, policy=["drop_oldest", "sample"], capacity=5
            )
            for consumer in consumers:
                assert await rest(consumer) == [0, 1, 2, 3, 4]

    def test_one_that_leaves_at_the_worst_moment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It empties and closes its queue while the worker is about to make room there."""
        with sync.Coordinator() as coord:
            leaving, staying = broadcast(
                range(50), 2, coord=coord, policy=["drop_oldest", "slowest"], capacity=1
            )
            queue = leaving._pipe.queue
            make_room = queue.dequeue_nowait

            def leave_before() -> Any:
                leaving.queue.dequeue()
                leaving.close()
                return make_room()

            monkeypatch.setattr(queue, "dequeue_nowait", leave_before)
            assert list(staying) == list(range(50))


class TestArrays:
    async def test_are_shared_and_read_only(self, world: World) -> None:
        made: dict[str, Any] = {"x": np.zeros(3), "y": [np.ones(2)]}
        async with coordinated(world) as coord:
            first, second = broadcast([made], 2, coord=coord)
            mine, theirs = await take(first), await take(second)
        assert mine["x"].base is theirs["x"].base
        for array in (mine["x"], theirs["y"][0]):
            with pytest.raises(ValueError, match="read-only"):
                array += 1
        mine["x"] = mine["y"] = None  # containers are everybody's own
        assert theirs["x"] is not None
        made["x"] += 1  # the array of its maker is not theirs
        assert theirs["x"].tolist() == [0, 0, 0]

    async def test_or_copied_and_ones_own(self, world: World) -> None:
        async with coordinated(world) as coord:
            first, second = broadcast([(np.zeros(3), "a")], 2, coord=coord, copy=True)
            mine, theirs = await take(first), await take(second)
        mine[0][:] = 7
        assert theirs[0].tolist() == [0, 0, 0]
        assert theirs[1] == "a"

    async def test_for_one_consumer_nothing_is_protected(self, world: World) -> None:
        async with coordinated(world) as coord:
            (only,) = broadcast([np.zeros(3)], 1, coord=coord)
            taken = await take(only)
        taken += 1


class TestEnding:
    async def test_of_batches_from_a_stream(self, world: World) -> None:
        async with coordinated(world) as coord:
            consumers = broadcast(batch(range(10), 4, coord=coord), 2, coord=coord, capacity=4)
            for consumer in consumers:
                assert [made.tolist() for made in await rest(consumer)] == [
                    [0, 1, 2, 3],
                    [4, 5, 6, 7],
                    [8, 9],
                ]

    async def test_a_failing_source_is_reported_and_everybodys_cause(self, world: World) -> None:
        def broken() -> Iterator[int]:
            yield 1
            raise ValueError("the source has failed")

        ends = []
        with pytest.raises(ExceptionGroup) as raised:
            async with coordinated(world) as coord:
                for consumer in broadcast(broken(), 2, coord=coord):
                    assert await rest_until_failure(consumer) == [1]
                    with pytest.raises(OutOfRangeError) as end:
                        consumer.queue.dequeue_nowait()
                    ends.append(end.value.__cause__)
        assert failures_of(raised.value) == ["ValueError: the source has failed"]
        assert ends == [raised.value.exceptions[0]] * 2

    async def test_the_failure_that_closed_a_queue_is_passed_on(self, world: World) -> None:
        failure = ValueError("the producer gave up")
        queue = aioqueue.FIFOQueue(10)
        queue.enqueue_nowait(1)
        queue.close(cause=failure)
        async with coordinated(world) as coord:
            stream = batch(queue, 2, coord=coord)
            for consumer in broadcast(stream, 2, coord=coord):
                assert [made.tolist() for made in await rest_until_failure(consumer)] == [[1]]
                with pytest.raises(OutOfRangeError) as end:
                    consumer.queue.dequeue_nowait()
                assert end.value.__cause__ is failure

    async def test_a_stop_ends_all_and_leaves_what_is_inside(self, world: World) -> None:
        async with coordinated(world, stop_grace_period=5) as coord:
            first, second = broadcast(iter(int, 1), 2, coord=coord, capacity=2)
            await world.until(
                lambda: (
                    second.queue.statistics().waiting_enqueues == 1
                    or first.queue.statistics().waiting_enqueues == 1
                )
            )
            coord.request_stop()
            assert await rest(first) == await rest(second) == [0, 0]
            with pytest.raises(StreamEndedError):
                await take(first)

    async def test_a_stop_waits_for_no_batch_that_never_comes(self, world: World) -> None:
        async with coordinated(world, stop_grace_period=5) as coord:
            broadcast(aioqueue.FIFOQueue(5), 2, coord=coord)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n: got 0; expected an int >= 1"),
        ({"policy": "fastest"}, "policy: got 'fastest'; expected one of slowest, drop_oldest"),
        ({"policy": ["sample"]}, "policy: got ['sample']"),
        ({"policy": None}, "policy: got None"),
        ({"capacity": 0}, "capacity: got 0"),
        ({"copy": 1}, "copy: got 1"),
        ({"coord": None}, "coord: got None"),
        ({"source": 7}, "source: got 7"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with sync.Coordinator() as coord:
        given = {"source": [], "n": 2, "coord": coord, **options}
        with pytest.raises(InvalidArgumentError) as raised:
            broadcast(**given)
    assert message in str(raised.value)
