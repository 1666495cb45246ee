"""`OutputBuffer`: workers hand in items, and one of them enqueues several together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from aioqueue import sync
from aioqueue.inputs import numbers
from aioqueue.items.item import Delivered, Item, Prepared
from aioqueue.system.locks import is_held_here
from aioqueue.workers.flow_control import InFlightWindow, OutputBuffer
from aioqueue.workers.retries import FailurePolicy, PrepareProgress, QuarantineList
from tests.kit.worlds import ThreadWorld, World


class Pace:
    is_quick = True


class BufferSetup:
    """A buffer with a queue, a window and a pace.

    Attributes:
        as_prepared: whether workers add items in the form that suits all of them.
    """

    as_prepared = False

    def __init__(
        self, *, capacity: int | None = None, max_in_flight: int = 100, ordered: bool = True
    ) -> None:
        self.queue = sync.FIFOQueue(capacity)
        self.window = InFlightWindow(max_in_flight, None, 1)
        policy = FailurePolicy("stop", None, has_quarantine=False)
        self.progress = PrepareProgress(policy, QuarantineList(), 0, self.window)
        self.pace = Pace()
        self.rooms: list[int] = []
        self.buffer = OutputBuffer(
            self.queue,
            self.window,
            self.progress,
            self.pace,  # type: ignore[arg-type]
            ordered=ordered,
        )
        self.buffer.on_room = lambda: self.rooms.append(self.window.items)

    def add(self, *numbers: int) -> list[int]:
        """Add items. Returns the numbers of those that the last call says to enqueue."""
        run: Sequence[Delivered] = ()
        for number in numbers:
            assert not run, "there was something to do before the last one"
            self.window.enter()
            if self.as_prepared:
                prepared = Prepared(Item(number, number, 0, number), (number,))
                prepared.pack()
                run = self.buffer.add(prepared)
                continue
            self.buffer.arrivals.append((0, number, number, (number,), None))
            if len(self.buffer.arrivals) >= self.buffer.enough:
                run = self.buffer.collect()
        self.run = run
        return self.numbers_in(run)

    def enqueue(self) -> list[int]:
        """Do what was said; returns what is to follow."""
        for item in self.run:
            self.queue.enqueue(item)
        self.run = self.buffer.enqueued(self.run)
        return self.numbers_in(self.run)

    def numbers_in(self, run: Sequence[Delivered]) -> list[int]:
        assert not is_held_here(self.progress.lock)
        return [number for _, number, _, _, _ in run]

    def out(self, n: int) -> list[int]:
        """Take so many out of the queue."""
        self.buffer.took(n)
        return [self.queue.dequeue_nowait()[1] for _ in range(n)]


@pytest.fixture(params=[False, True], ids=["plain", "prepared"])
def as_prepared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BufferSetup, "as_prepared", request.param)


@pytest.mark.usefixtures("as_prepared")
class TestWhatIsTogether:
    def test_as_many_as_pay(self) -> None:
        setup = BufferSetup()
        assert setup.add(*range(31)) == []
        assert not setup.queue.size()
        assert setup.window.items == 31
        assert setup.add(31) == [*range(32)]
        assert setup.enqueue() == []
        assert setup.window.items == 0
        assert setup.rooms == [0]
        assert setup.progress.statistics().prepared == 32

    @pytest.mark.parametrize(("limit", "together"), [(1, 1), (2, 1), (3, 2), (10, 5), (1_000, 32)])
    def test_less_than_half_of_what_may_be_in_flight(self, limit: int, together: int) -> None:
        setup = BufferSetup(max_in_flight=limit)
        assert setup.add(*range(together)) == [*range(together)]

    @pytest.mark.parametrize(("capacity", "together"), [(1, 1), (2, 1), (9, 4), (100, 32)])
    def test_no_more_than_half_of_the_queue(self, capacity: int, together: int) -> None:
        setup = BufferSetup(capacity=capacity)
        assert setup.add(*range(together)) == [*range(together)]

    def test_each_by_itself_while_they_are_slow(self) -> None:
        setup = BufferSetup()
        assert setup.add(0, 1) == []
        setup.pace.is_quick = False
        setup.buffer.slow_down()
        assert setup.add(2) == [0, 1, 2]
        assert setup.enqueue() == []
        assert setup.add(3) == [3]

    def test_in_the_order_of_the_source(self) -> None:
        setup = BufferSetup(max_in_flight=6)
        assert setup.add(2, 1, 4) == []
        assert setup.buffer.early == 3
        assert setup.add(0) == [0, 1, 2]
        assert setup.buffer.early == 1
        assert setup.enqueue() == []
        assert setup.add(3, 5) == [3, 4, 5]

    def test_or_as_they_come(self) -> None:
        setup = BufferSetup(max_in_flight=6, ordered=False)
        assert setup.add(2, 1, 4) == [2, 1, 4]
        assert setup.buffer.early == 0

    def test_one_worker_enqueues_at_a_time(self) -> None:
        setup = BufferSetup(max_in_flight=4)
        assert setup.add(0, 1) == [0, 1]
        first = setup.run
        assert setup.add(2) == []
        assert setup.add(3) == []
        setup.buffer.want(4)  # the busy worker enqueues the rest when it returns
        assert not setup.queue.size()
        setup.run = first
        assert setup.enqueue() == [2, 3]
        assert setup.enqueue() == []
        assert setup.out(4) == [0, 1, 2, 3]


@pytest.mark.usefixtures("as_prepared")
class TestSleepers:
    def test_is_given_what_is_there(self) -> None:
        setup = BufferSetup()
        setup.add(*range(5))
        setup.buffer.want(1)
        assert setup.out(5) == [*range(5)]
        assert setup.window.items == 0
        assert setup.progress.statistics().prepared == 5

    def test_is_given_the_next_one_when_nothing_is_there(self) -> None:
        setup = BufferSetup()
        setup.buffer.want(1)
        assert setup.add(0) == [0]
        setup.enqueue()
        assert setup.add(1) == []  # no consumer waits any more

    def test_is_given_as_many_as_he_wants(self) -> None:
        setup = BufferSetup()
        setup.add(0, 1)
        setup.buffer.want(4)
        assert not setup.queue.size()  # it would not be enough
        assert setup.add(2, 3) == [0, 1, 2, 3]
        setup.enqueue()
        assert setup.out(3) == [0, 1, 2]
        setup.buffer.want(3)
        assert setup.add(4, 5) == [4, 5]  # one is there

    def test_what_is_early_is_not_there(self) -> None:
        setup = BufferSetup()
        setup.add(1)
        setup.buffer.want(1)
        assert not setup.queue.size()
        assert setup.add(0) == [0, 1]

    def test_is_given_no_more_than_there_is_room_for(self) -> None:
        setup = BufferSetup(capacity=20, max_in_flight=18)
        for at in (0, 9):
            setup.add(*range(at, at + 9))
            setup.enqueue()
        setup.out(3)
        assert setup.add(*range(18, 26)) == []
        setup.buffer.want(16)
        assert setup.queue.size() == 20
        assert setup.window.items == 3
        assert setup.out(20) == [*range(3, 23)]
        setup.buffer.want(3)
        assert setup.out(3) == [23, 24, 25]

    def test_is_given_what_arrives_while_the_number_is_decided(self) -> None:
        """A worker appends without the lock, and compares with the number of before."""
        setup = BufferSetup()
        setup.add(0)
        buffer, late = setup.buffer, [(0, 1, 1, (1,), None)]
        decide = buffer._lacking

        def lacking() -> int:
            setup.window.enter()
            buffer.arrivals.extend(late)
            late.clear()
            return decide()

        buffer._lacking = lacking  # type: ignore[method-assign]
        buffer.want(2)
        assert setup.out(2) == [0, 1]

    def test_is_ended_from_elsewhere(self) -> None:
        setup = BufferSetup()
        setup.add(0, 1)
        setup.queue.close()
        setup.buffer.want(1)
        assert not setup.queue.size()
        assert setup.window.items == 2

    def test_a_worker_that_has_enough_changes_nothing(self) -> None:
        setup = BufferSetup(max_in_flight=4)
        setup.add(0, 1)
        setup.enqueue()
        setup.add(2)
        setup.buffer.want(2)
        assert setup.queue.size() == 2


@pytest.mark.usefixtures("as_prepared")
class TestAWorkerThatEnds:
    def test_has_all_enqueued(self) -> None:
        setup = BufferSetup()
        setup.add(0, 1, 3)
        setup.run = setup.buffer.take_rest()
        assert setup.numbers_in(setup.run) == [0, 1]
        setup.enqueue()
        assert not setup.buffer.take_rest()

    def test_but_for_what_another_one_will(self) -> None:
        setup = BufferSetup(max_in_flight=4)
        setup.add(0, 1)
        first = setup.run
        setup.add(2)
        assert not setup.buffer.take_rest()
        setup.run = first
        setup.enqueue()
        assert setup.numbers_in(setup.buffer.take_rest()) == [2]


QUICK = 2_000  # items, after which they are read ahead, and go in together


async def go_through(world: World, pipeline: Any, sample: Callable[[Any], object]) -> None:
    """Look at each batch when it comes."""
    if isinstance(world, ThreadWorld):
        for batch in pipeline:
            sample(batch)
    else:
        async for batch in pipeline:
            sample(batch)


class TestPipelines:
    """A function that goes quickly, and then waits for what only the user of the batches can do."""

    @pytest.mark.slow(but="trio")
    @pytest.mark.parametrize("ordered", [True, False])
    @pytest.mark.parametrize(("size", "at"), [(1, QUICK), (7, QUICK + 5), (64, QUICK + 31)])
    async def test_gives_what_came_before(
        self, world: World, size: int, at: int, ordered: bool
    ) -> None:
        """No worker could enqueue what lies there: the only one is in the function."""
        may_continue = threading.Event()

        def function(number: int) -> int:
            if number == at:
                assert may_continue.wait(60)
            return number

        def sample(batch: Any) -> None:
            found.extend(batch.tolist())
            if len(found) > at - size:  # all whole batches before it are here
                may_continue.set()

        found: list[int] = []
        pipeline = numbers(QUICK + 100).prepare(function, workers=1, ordered=ordered).batch(size)
        await go_through(world, pipeline, sample)
        assert found == [*range(QUICK + 100)]

    @pytest.mark.slow(every=3)
    async def test_gives_it_to_the_workers_of_another_stage(self, world: World) -> None:
        may_continue = threading.Event()

        def first(number: int) -> int:
            if number == QUICK:
                assert may_continue.wait(60)
            return number

        def second(number: int) -> int:
            if number == QUICK - 1:
                may_continue.set()
            return number

        found: list[int] = []
        pipeline = numbers(QUICK + 100).prepare(first, workers=1).prepare(second, workers=2)
        await go_through(world, pipeline.batch(50), lambda batch: found.extend(batch.tolist()))
        assert found == [*range(QUICK + 100)]
