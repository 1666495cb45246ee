"""What is laid down by workers, and put into the queue of a pipeline together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from aioqueue import sync
from aioqueue.inputs import numbers
from aioqueue.items.item import Item, Prepared
from aioqueue.system.locks import is_held_here
from aioqueue.workers.flow_control import InFlightWindow, OutputBuffer
from aioqueue.workers.retries import FailurePolicy, PrepareProgress, QuarantineList
from tests.kit.worlds import ThreadWorld, World


class Pace:
    is_quick = True


class Lines:
    """A line, and all that is around it."""

    def __init__(
        self, *, capacity: int | None = None, max_in_flight: int = 100, ordered: bool = True
    ) -> None:
        self.queue = sync.FIFOQueue(capacity)
        self.window = InFlightWindow(max_in_flight, None, 1)
        policy = FailurePolicy("stop", None, has_quarantine=False)
        self.progress = PrepareProgress(policy, QuarantineList(), 0, self.window)
        self.pace = Pace()
        self.rooms: list[int] = []
        self.line = OutputBuffer(
            self.queue,
            self.window,
            self.progress,
            self.pace,  # type: ignore[arg-type]
            ordered=ordered,
        )
        self.line.left = lambda: self.rooms.append(self.window.items)

    def bring(self, *numbers: int) -> list[int]:
        """Bring items; returns the numbers of those that the last one says to enqueue."""
        run: Sequence[Prepared] = ()
        for number in numbers:
            assert not run, "there was something to do before the last one"
            self.window.enter()
            prepared = Prepared(Item(number, number, 0, number), (number,))
            prepared.count = 1
            run = self.line.bring(prepared)
        self.run = run
        return self.numbers_in(run)

    def enqueue(self) -> list[int]:
        """Do what was said; returns what is to follow."""
        for prepared in self.run:
            self.queue.enqueue(*prepared.examples)
        self.run = self.line.entered(self.run)
        return self.numbers_in(self.run)

    def numbers_in(self, run: Sequence[Prepared]) -> list[int]:
        assert not is_held_here(self.progress.lock)
        return [prepared.item.number for prepared in run]

    def out(self, n: int) -> list[int]:
        """Take so many out of the queue."""
        self.line.took(n)
        return [self.queue.dequeue_nowait() for _ in range(n)]


class TestWhatIsTogether:
    def test_as_many_as_pay(self) -> None:
        lines = Lines()
        assert lines.bring(*range(31)) == []
        assert not lines.queue.size()
        assert lines.window.items == 31
        assert lines.bring(31) == [*range(32)]
        assert lines.enqueue() == []
        assert lines.window.items == 0
        assert lines.rooms == [0]
        assert lines.progress.statistics().prepared == 32

    @pytest.mark.parametrize(("limit", "together"), [(1, 1), (2, 1), (3, 2), (10, 5), (1_000, 32)])
    def test_less_than_half_of_what_may_be_in_flight(self, limit: int, together: int) -> None:
        lines = Lines(max_in_flight=limit)
        assert lines.bring(*range(together)) == [*range(together)]

    @pytest.mark.parametrize(("capacity", "together"), [(1, 1), (2, 1), (9, 4), (100, 32)])
    def test_no_more_than_half_of_the_queue(self, capacity: int, together: int) -> None:
        lines = Lines(capacity=capacity)
        assert lines.bring(*range(together)) == [*range(together)]

    def test_each_by_itself_while_they_are_slow(self) -> None:
        lines = Lines()
        assert lines.bring(0, 1) == []
        lines.pace.is_quick = False
        assert lines.bring(2) == [0, 1, 2]
        assert lines.enqueue() == []
        assert lines.bring(3) == [3]

    def test_in_the_order_of_the_source(self) -> None:
        lines = Lines(max_in_flight=6)
        assert lines.bring(2, 1, 4) == []
        assert lines.line.early == 3
        assert lines.bring(0) == [0, 1, 2]
        assert lines.line.early == 1
        assert lines.enqueue() == []
        assert lines.bring(3, 5) == [3, 4, 5]

    def test_or_as_they_come(self) -> None:
        lines = Lines(max_in_flight=6, ordered=False)
        assert lines.bring(2, 1, 4) == [2, 1, 4]
        assert lines.line.early == 0

    def test_one_worker_enqueues_at_a_time(self) -> None:
        lines = Lines(max_in_flight=4)
        assert lines.bring(0, 1) == [0, 1]
        first = lines.run
        assert lines.bring(2) == []
        assert lines.bring(3) == []
        lines.line.want(4)  # it is told when it has come back
        assert not lines.queue.size()
        lines.run = first
        assert lines.enqueue() == [2, 3]
        assert lines.enqueue() == []
        assert lines.out(4) == [0, 1, 2, 3]


class TestSleepers:
    def test_is_given_what_is_there(self) -> None:
        lines = Lines()
        lines.bring(*range(5))
        lines.line.want(1)
        assert lines.out(5) == [*range(5)]
        assert lines.window.items == 0
        assert lines.progress.statistics().prepared == 5

    def test_is_given_the_next_one_when_nothing_is_there(self) -> None:
        lines = Lines()
        lines.line.want(1)
        assert lines.bring(0) == [0]
        lines.enqueue()
        assert lines.bring(1) == []  # nobody waits any more

    def test_is_given_as_many_as_he_wants(self) -> None:
        lines = Lines()
        lines.bring(0, 1)
        lines.line.want(4)
        assert not lines.queue.size()  # it would not be enough
        assert lines.bring(2, 3) == [0, 1, 2, 3]
        lines.enqueue()
        assert lines.out(3) == [0, 1, 2]
        lines.line.want(3)
        assert lines.bring(4, 5) == [4, 5]  # one is there

    def test_what_is_early_is_not_there(self) -> None:
        lines = Lines()
        lines.bring(1)
        lines.line.want(1)
        assert not lines.queue.size()
        assert lines.bring(0) == [0, 1]

    def test_is_given_no_more_than_there_is_room_for(self) -> None:
        lines = Lines(capacity=20, max_in_flight=18)
        for at in (0, 9):
            lines.bring(*range(at, at + 9))
            lines.enqueue()
        lines.out(3)
        assert lines.bring(*range(18, 26)) == []
        lines.line.want(16)
        assert lines.queue.size() == 20
        assert lines.window.items == 3
        assert lines.out(20) == [*range(3, 23)]
        lines.line.want(3)
        assert lines.out(3) == [23, 24, 25]

    def test_is_told_elsewhere_that_it_is_over(self) -> None:
        lines = Lines()
        lines.bring(0, 1)
        lines.queue.close()
        lines.line.want(1)
        assert not lines.queue.size()
        assert lines.window.items == 2

    def test_who_has_enough_changes_nothing(self) -> None:
        lines = Lines(max_in_flight=4)
        lines.bring(0, 1)
        lines.enqueue()
        lines.bring(2)
        lines.line.want(2)
        assert lines.queue.size() == 2


class TestAWorkerThatEnds:
    def test_has_all_enqueued(self) -> None:
        lines = Lines()
        lines.bring(0, 1, 3)
        lines.run = lines.line.rest()
        assert lines.numbers_in(lines.run) == [0, 1]
        lines.enqueue()
        assert not lines.line.rest()

    def test_but_for_what_another_one_will(self) -> None:
        lines = Lines(max_in_flight=4)
        lines.bring(0, 1)
        first = lines.run
        lines.bring(2)
        assert not lines.line.rest()
        lines.run = first
        lines.enqueue()
        assert lines.numbers_in(lines.line.rest()) == [2]


QUICK = 2_000  # items, after which they are read ahead, and go in together


async def go_through(world: World, pipeline: Any, look: Callable[[Any], object]) -> None:
    """Look at each batch when it comes."""
    if isinstance(world, ThreadWorld):
        for batch in pipeline:
            look(batch)
    else:
        async for batch in pipeline:
            look(batch)


class TestPipelines:
    """A function that goes quickly, and then waits for what only the user of the batches can do."""

    @pytest.mark.slow(but="trio")
    @pytest.mark.parametrize("ordered", [True, False])
    @pytest.mark.parametrize(("size", "at"), [(1, QUICK), (7, QUICK + 5), (64, QUICK + 31)])
    async def test_gives_what_came_before(
        self, world: World, size: int, at: int, ordered: bool
    ) -> None:
        """No worker could enqueue what lies there: the only one is in the function."""
        may_go_on = threading.Event()

        def function(number: int) -> int:
            if number == at:
                assert may_go_on.wait(60)
            return number

        def look(batch: Any) -> None:
            found.extend(batch.tolist())
            if len(found) > at - size:  # all whole batches before it are here
                may_go_on.set()

        found: list[int] = []
        pipeline = numbers(QUICK + 100).prepare(function, workers=1, ordered=ordered).batch(size)
        await go_through(world, pipeline, look)
        assert found == [*range(QUICK + 100)]

    @pytest.mark.slow(every=3)
    async def test_gives_it_to_the_workers_of_another_stage(self, world: World) -> None:
        may_go_on = threading.Event()

        def first(number: int) -> int:
            if number == QUICK:
                assert may_go_on.wait(60)
            return number

        def second(number: int) -> int:
            if number == QUICK - 1:
                may_go_on.set()
            return number

        found: list[int] = []
        pipeline = numbers(QUICK + 100).prepare(first, workers=1).prepare(second, workers=2)
        await go_through(world, pipeline.batch(50), lambda batch: found.extend(batch.tolist()))
        assert found == [*range(QUICK + 100)]
