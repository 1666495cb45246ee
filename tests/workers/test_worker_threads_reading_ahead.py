"""Items that are read together: whatever is read ahead, nothing else is different.

How many are read together goes by the clock, so here the tests say it.
"""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from itertools import islice
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import OutOfRangeError, sync
from aioqueue.inputs import Retry, items, numbers
from aioqueue.items.item import Entry, Item
from aioqueue.items.reordering import Reordering
from aioqueue.sources.kinds.source import Source
from aioqueue.sources.source_reader import SourceReader
from aioqueue.workers.flow_control import InFlightWindow, ReadPace, Tally
from aioqueue.workers.runner import prepare
from tests.kit.preparing import Gate, Runner, drained, failures_of, prepared
from tests.kit.worlds import PATIENCE, ThreadWorld, World, spin_until


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], int]], None]:
    """Say how many items are wanted together."""

    def expect(wanted: Callable[[], int]) -> None:
        monkeypatch.setattr(ReadPace, "next", lambda self, seconds: wanted())
        monkeypatch.setattr(ReadPace, "is_quick", True)

    return expect


@pytest.fixture
def eight(pace: Callable[[Callable[[], int]], None]) -> None:
    """Eight together."""
    pace(lambda: 8)


@asynccontextmanager
async def running(world: World, gate: Gate, queue: Any, **options: Any) -> AsyncIterator[Runner]:
    """A run that prepares twelve numbers. However the block ends, nothing is kept behind it."""
    into = queue.face if isinstance(world, ThreadWorld) else queue
    runner: Any = prepare(numbers(12, 1), gate, into=into, **options)
    with ExitStack() as opening:
        if isinstance(world, ThreadWorld):
            opening.enter_context(sync.Coordinator()).start(runner)
            opening.callback(gate.opened.set)
            yield runner
            return
        async with aioqueue.Coordinator() as coord:
            coord.start(runner)
            try:
                yield runner
            finally:
                gate.opened.set()


class InMemory(Source[int]):
    """Items in memory, and then a failure."""

    def __init__(self, count: int, failure: Exception) -> None:
        super().__init__("in memory")
        self.count, self.failure, self.asked = count, failure, 0

    @property
    def _is_in_memory(self) -> bool:
        return True

    def entries(self) -> Iterator[Entry[int]]:
        for number in range(self.count):
            self.asked += 1
            yield Entry(number, 0, number)
        self.asked += 1
        raise self.failure


@pytest.mark.usefixtures("eight")
class TestNothingIsHeldBack:
    @pytest.mark.parametrize("ordered", [False, True])
    async def test_what_is_ready_while_the_next_item_blocks(
        self, world: World, ordered: bool
    ) -> None:
        """By the only worker, which has made it."""
        gate, queue = Gate(5), world.fifo(64)
        async with running(world, gate, queue, workers=1, ordered=ordered) as runner:
            assert [await queue.dequeue() for _ in range(5)] == [0, 1, 2, 3, 4]
            await world.until(lambda: runner.statistics().prepared == 5 and len(gate.came) == 6)
            assert runner.statistics().in_flight == 1
            gate.opened.set()
            assert [await queue.dequeue() for _ in range(7)] == [*range(5, 12)]

    async def test_what_was_read_with_an_item_that_blocks(self, world: World) -> None:
        """Another worker prepares it meanwhile."""
        gate, queue = Gate(0), world.fifo(64)
        async with running(world, gate, queue, workers=2):
            assert [await queue.dequeue() for _ in range(11)] == [*range(1, 12)]
            gate.opened.set()
            assert await queue.dequeue() == 0


@pytest.mark.usefixtures("eight")
class TestTheSource:
    def test_its_failure_comes_behind_what_came_before(self) -> None:
        source = InMemory(11, OSError("gone"))
        queue = sync.FIFOQueue(64)
        got = []
        with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
            coord.start(prepare(source, abs, into=queue, workers=1))
            try:
                while True:
                    got.append(queue.dequeue())
            except OutOfRangeError as error:
                assert isinstance(error.__cause__, OSError)
        assert got == [*range(11)]
        (failure,) = failures_of(caught.value)
        assert failure.startswith("OSError('gone') | in the source of a prepare | in worker")
        assert source.asked == 12

    def test_its_failure_at_once(self) -> None:
        queue, source = sync.FIFOQueue(64), InMemory(0, OSError("gone"))
        runner = prepare(source, abs, into=queue, workers=2)
        with pytest.raises(ExceptionGroup) as caught:
            drained(queue, runner)
        (failure,) = failures_of(caught.value)
        assert failure.startswith("OSError('gone') | in the source of a prepare | in worker")
        assert runner.statistics().in_flight == 0

    def test_one_by_one_where_it_may_have_to_be_waited_for(self) -> None:
        asked: list[int] = []

        def source() -> Iterator[int]:
            for number in range(20):
                asked.append(number)
                yield number

        ahead: list[int] = []
        queue = sync.FIFOQueue(64)
        drained(
            queue,
            prepare(
                source(),
                lambda n: ahead.append(len(asked) - n),
                into=queue,
                workers=1,
                drop_none=True,
            ),
        )
        assert ahead == [1] * 20

    def test_one_by_one_where_bytes_are_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ReadPace, "next", None)
        queue = sync.FIFOQueue(64)
        runner = prepare(numbers(20, 1), abs, into=queue, workers=1, limit_bytes=1000)
        assert drained(queue, runner) == [*range(20)]

    def test_a_list_may_grow_while_it_is_iterated(self) -> None:
        todo = [3]

        def more(depth: int) -> int:
            if depth:
                todo.extend([depth - 1] * 2)
            return depth

        queue = sync.FIFOQueue(64)
        got = drained(queue, prepare(todo, more, into=queue, workers=1))
        assert got == [3, *[2] * 2, *[1] * 4, *[0] * 8]

    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("shard", [None, (1, 3)])
    @pytest.mark.parametrize("make", [tuple, list, np.asarray, range], ids=lambda m: m.__name__)
    def test_the_same_items_as_of_any_other(
        self, make: Callable[..., Any], shard: Any, shuffle: bool
    ) -> None:
        class Others:
            def __len__(self) -> int:
                return 50

            def __getitem__(self, index: int) -> int:
                return range(50)[index]

        options: Any = {"epochs": 3, "shuffle": shuffle, "seed": 7, "shard": shard}
        sequence = range(50) if make is range else make(range(50))
        own, others = items(sequence, **options), items(Others(), **options)
        assert own._is_in_memory
        assert not others._is_in_memory
        found = list(SourceReader(own).items())
        assert found == list(SourceReader(others).items())
        assert {type(item) for item in found} == {Item}


@pytest.mark.usefixtures("eight")
class TestTheEnd:
    def test_a_drain_delivers_what_was_read(self) -> None:
        gate, queue = Gate(0), sync.FIFOQueue(64)
        runner = prepare(numbers(1000, 1), gate, into=queue, workers=1)
        with sync.Coordinator() as coord:
            coord.start(runner)
            spin_until(lambda: gate.came == [0])
            coord.drain()
            gate.opened.set()
            assert list(queue) == [*range(8)]
        assert runner.statistics().in_flight == 0

    def test_what_waits_for_an_earlier_one_is_explained(self) -> None:
        gate = Gate(0)
        pipeline = numbers(100, 1).prepare(gate, workers=2)
        with pipeline.epochs(1) as epochs:
            epoch = next(epochs)
            found: list[int] = []
            consumer = threading.Thread(target=lambda: found.extend(epoch))
            consumer.start()
            spin_until(lambda: "31 items prepared, waiting for one" in str(epochs.explain()))
            gate.opened.set()
            consumer.join()
        assert found == list(range(100))

    def test_a_stop_drops_it(self) -> None:
        class Value:
            pass

        values = tuple(Value() for _ in range(8))
        left = weakref.WeakSet(values)
        source: Any = items(values, 1)
        begun, opened = threading.Event(), threading.Event()

        def function(value: Any) -> Any:
            begun.set()
            assert opened.wait(PATIENCE)
            return 1

        queue = sync.FIFOQueue(64)
        runner = prepare(source, function, into=queue, workers=1)
        with sync.Coordinator() as coord:
            coord.start(runner)
            assert begun.wait(PATIENCE)
            coord.request_stop()
            opened.set()
        assert runner.statistics().in_flight == 1  # by the worker that had it
        assert len(runner._job.window.ahead) == 7
        del values, source
        runner._job.feed.source = None
        gc.collect()
        assert not left


def test_never_more_in_flight_than_the_limit(pace: Callable[[Callable[[], int]], None]) -> None:
    pace(lambda: 64)
    queue = sync.FIFOQueue(4)
    most: list[int] = []

    def sample(item: int) -> int:
        most.append(runner._job.window.items)
        return item

    runner: Any = prepare(numbers(500, 1), sample, into=queue, workers=3, max_in_flight=5)
    assert sorted(drained(queue, runner)) == [*range(500)]
    assert max(most) == 5
    assert runner._job.window.items == 0


def test_workers_that_are_too_many_leave_it_to_the_others(eight: None) -> None:
    gate, queue = Gate(0), sync.FIFOQueue(400)
    runner = prepare(numbers(300, 1), gate, into=queue, workers=4)
    with sync.Coordinator() as coord:
        coord.start(runner)
        spin_until(lambda: gate.came)
        runner.resize(2)
        runner.resize(3)
        gate.opened.set()
        assert sorted(queue) == [*range(300)]
    assert runner.statistics().in_flight == 0


class Chance:
    """A function that makes none, one or several examples of an item, or fails; by its number."""

    def __init__(self, seed: int, kinds: str) -> None:
        chance = random.Random(seed)
        self.kinds = [chance.choice(kinds) for _ in range(200)]
        self.failed: set[int] = set()

    def __call__(self, item: int) -> Any:
        kind = self.kinds[item]
        if kind == "f" or (kind == "r" and item not in self.failed):
            self.failed.add(item)
            raise ValueError(item)
        if kind == "n":
            return None
        if kind == "g":
            return (item * 10 + n for n in range(item % 3))
        return item * 10

    def expected(self) -> list[int]:
        """What comes out, with failures skipped."""
        made: list[int] = []
        for item, kind in enumerate(self.kinds):
            if kind == "g":
                made += [item * 10 + n for n in range(item % 3)]
            elif kind not in "fn":
                made.append(item * 10)
        return made


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_functions_do(
    world: World, seed: int, pace: Callable[[Callable[[], int]], None]
) -> None:
    chance = random.Random(seed)
    pace(lambda: chance.choice([1, 2, 7, 64]))
    function = Chance(seed, "oooofrng")
    ordered = seed % 2 == 0
    runners: list[Runner] = []
    found = await prepared(
        world,
        numbers(200, 1),
        function,
        world.fifo(chance.choice([1, 8, 1000])),
        runners,
        workers=chance.choice([1, 2, 4]),
        ordered=ordered,
        max_in_flight=chance.choice([None, 1, 3, 100]),
        on_error=Retry(1, then="skip"),
        drop_none=True,
        item_timeout=chance.choice([None, None, 2 * PATIENCE]),
    )
    assert (found if ordered else sorted(found)) == function.expected()
    counts = runners[0].statistics()
    assert (counts.in_flight, counts.examples) == (0, len(found))
    assert counts.prepared + counts.left_out + counts.skipped == 200
    assert counts.skipped == function.kinds.count("f")


@pytest.mark.usefixtures("eight")
async def test_the_first_failure_stops_it_behind_what_came_before(world: World) -> None:
    def fail_late(item: int) -> int:
        if item == 20:
            raise ValueError(item)
        return item

    queue = world.fifo(64)
    with pytest.raises(ExceptionGroup) as caught:
        await prepared(world, numbers(200, 1), fail_late, queue, workers=1)
    assert [type(error) for error in caught.value.exceptions] == [ValueError]
    assert queue.statistics().enqueued == 20


def test_a_pipeline_continues_behind_what_was_delivered(
    pace: Callable[[Callable[[], int]], None],
) -> None:
    sizes: list[int] = []

    def eight() -> int:
        sizes.append(8)
        return 8

    pace(eight)
    pipeline = numbers(100, shuffle=True, seed=3).prepare(abs, workers=2).batch(7)
    whole = [batch.tolist() for batch in pipeline]
    assert sizes
    with pipeline.epochs(1) as epochs:
        epoch = next(iter(epochs))
        begun = [batch.tolist() for batch in islice(epoch, 5)]
        state = epoch.state_dict()
    assert begun + [batch.tolist() for batch in pipeline.resume(state)] == whole


def test_a_window_lets_in_as_many_as_there_is_room_for() -> None:
    window = InFlightWindow(10, None, at_once=2)
    assert window.enter_some(4) == 4
    assert window.enter_some(64) == 6
    window.ahead = range(3)
    assert (window.items, window.taken) == (10, 7)
    window.abort(3)
    assert window.items == 7


def test_what_a_thread_has_counted_without_the_lock_has_left() -> None:
    window = InFlightWindow(10, None, at_once=2)
    window.enter_some(8)
    with Tally(threading.RLock(), window) as first:
        with Tally(threading.RLock(), window) as second:
            first.count, second.count = 2, 1
            window.leave(1)
            assert (window.items, window.singles) == (4, 3)
        for _ in range(2):  # closed a second time, it counts once
            assert (window.items, window.singles) == (4, 3)
            window.close_tally(second)
        first.count += 2
        assert (window.items, window.singles) == (2, 5)
    assert (window.items, window.singles) == (2, 5)


def test_room_that_comes_after_the_check_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker delivers, without the lock, after another one has looked, and before it waits."""
    gate, queue = Gate(0), sync.FIFOQueue(9, np.int64, ())
    samples: list[bool] = []
    sample = InFlightWindow.has_room

    def has_room(window: InFlightWindow) -> bool:
        has = sample(window)
        if not has:
            samples.append(has)
        if len(samples) == 2 and not gate.opened.is_set():  # the first look is before it says so
            gate.opened.set()
            spin_until(lambda: window.singles == 1)
        return has

    monkeypatch.setattr(InFlightWindow, "has_room", has_room)
    got = drained(
        queue, prepare(numbers(3, epochs=1), gate, into=queue, workers=2, max_in_flight=1)
    )
    assert [int(one) for one in got] == [0, 1, 2]
    assert len(samples) >= 2


def test_what_came_in_any_order_is_put_in_order() -> None:
    order: Reordering[str] = Reordering()
    for number, thing in ((1, "b"), (2, "c"), (4, "e")):
        assert order.add(number, thing) is None
    assert order.add(0, "a") == "a"
    assert [order.following() for _ in range(3)] == ["b", "c", None]
    assert len(order) == 1
    assert order.add(3, "d") == "d"
    assert order.add(5, "f") is None, "another caller is passing results on already"
    assert [order.following() for _ in range(3)] == ["e", "f", None]
    assert order.add(6, "g") == "g"
