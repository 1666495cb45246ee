"""Cancelled means it did not happen: at every await, in every world, and while the hand-over runs.

Each `Scenario` is an operation that has to wait, and what lets it go on. Whatever the moment of its
cancellation, every element is counted afterwards: those that were taken on the way, those that the
operation returned, and those that are left make up, in order, exactly those that were put in.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from itertools import chain, combinations, count, permutations
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
import trio

import aioqueue
from aioqueue import sync
from aioqueue.errors import DeadlineExceededError, OutOfRangeError, QueueClosedError, QueueFull
from aioqueue.testing import wait_until_waiting
from aioqueue.worlds.waker import ThreadWaker
from tests.kit.loops import NewLoop, nearly_used_up, new_loop
from tests.kit.worlds import KINDS, PATIENCE, AsyncioWorld, CancelledError, Kind, TaskWorld, waiting

__all__ = ("new_loop",)  # a fixture

FIFO = KINDS[0]


@dataclass(frozen=True)
class Scenario:
    """An operation that has to wait in a queue of three places, and what lets it go on."""

    name: str
    method: str
    inside: int
    """The elements 0, 1, ... that are inside when it begins."""
    n: int | None = None
    """Its argument: how many to take."""
    puts: int = 0
    """How many elements it puts in, which follow those inside."""
    options: dict[str, Any] = field(default_factory=dict)

    def arguments(self, kind: Kind) -> tuple[Any, ...]:
        numbers = range(self.inside, self.inside + self.puts)
        if self.method == "enqueue":
            return (kind.element(self.inside),)
        if self.method == "enqueue_many":
            return (kind.batch(numbers),)
        return () if self.n is None else (self.n,)


SCENARIOS = (
    Scenario("dequeue", "dequeue", 0),
    Scenario("dequeue_many", "dequeue_many", 2, n=3),
    Scenario("dequeue_up_to", "dequeue_up_to", 2, n=3),
    Scenario("dequeue_up_to-max_wait", "dequeue_up_to", 1, n=2, options={"max_wait": 3600}),
    Scenario("enqueue", "enqueue", 3, puts=1),
    Scenario("enqueue_many", "enqueue_many", 1, puts=5),
    Scenario("wait_closed", "wait_closed", 2),
    Scenario("join", "join", 2),
)
ONLY_WAITS = ("wait_closed", "join")
"""Methods that move nothing."""


@pytest.fixture(params=SCENARIOS, ids=lambda scenario: scenario.name)
def scenario(request: pytest.FixtureRequest) -> Scenario:
    made: Scenario = request.param
    return made


class Ledger:
    """One run of a scenario: its queue, and the place of every element."""

    capacity = 3

    def __init__(self, scenario: Scenario, kind: Kind, world: TaskWorld) -> None:
        self.scenario = scenario
        self.kind = kind
        self.queue = kind.make(world, self.capacity)
        self.put = scenario.inside
        self.taken: list[int] = []
        self.error: BaseException | None = None
        for number in range(scenario.inside):
            self.queue.enqueue_nowait(kind.element(number))

    async def call(self) -> Any:
        """The operation; what ends it is remembered, for its notes."""
        method = getattr(self.queue, self.scenario.method)
        try:
            return await method(*self.scenario.arguments(self.kind), **self.scenario.options)
        except BaseException as error:
            self.error = error
            raise

    def allow_to_continue(self) -> None:
        """Do, from beside, what the operation waits for."""
        if self.scenario.method == "wait_closed":
            self.queue.close()
        elif self.scenario.method == "join":
            self.queue.task_done(2)
        elif self.scenario.puts:
            for _ in range(min(self.scenario.puts, len(self.queue))):
                self.taken.append(self.kind.number(self.queue.dequeue_nowait()))
        else:
            self.queue.enqueue_nowait(self.kind.element(self.put))
            self.put += 1

    def completed(self, result: Any) -> None:
        """The operation has returned."""
        self.put += self.scenario.puts
        if self.scenario.method == "dequeue":
            self.taken.append(self.kind.number(result))
        elif self.scenario.n is not None:
            self.taken += self.kind.numbers(result)

    def cancelled(self, enqueued: int | None = None) -> None:
        """The operation was cancelled; a batch reports how many of its rows are inside."""
        if self.scenario.method == "enqueue_many":
            noted = noted_rows(self.error, self.scenario.puts)
            self.put += noted if enqueued is None else enqueued

    def check(self) -> None:
        """Count every element, and see that no place is lost."""
        assert waiting(self.queue) == 0
        if self.scenario.method != "wait_closed":
            with pytest.raises(QueueFull):
                while True:
                    self.queue.enqueue_nowait(self.kind.element(self.put))
                    self.put += 1
            assert len(self.queue) >= self.capacity
        left = self._drain()
        statistics = self.queue.statistics()
        assert self.kind.in_order(self.taken + left) == list(range(self.put))
        assert (statistics.enqueued, statistics.dequeued) == (self.put, self.put)

    def _drain(self) -> list[int]:
        self.queue.close()
        return [self.kind.number(self.queue.dequeue_nowait()) for _ in range(len(self.queue))]


def noted_rows(error: BaseException | None, n: int) -> int:
    """How many rows of a cancelled batch are in, by the note on the exception."""
    notes = [] if error is None else getattr(error, "__notes__", [])
    if not notes:
        return 0  # it was cancelled before it began
    (reported,) = re.findall(rf"enqueue_many: (\d+) of {n} rows are in the queue", "\n".join(notes))
    assert getattr(error, "enqueued", None) == int(reported)
    return int(reported)


class TestEveryMoment:
    @pytest.mark.slow(every=34)
    async def test_of_tasks(self, task_world: TaskWorld, kind: Kind, scenario: Scenario) -> None:
        """Cancelled before it began, while it waits, in the tick of the grant, and after."""
        outcomes = set()
        for continues_at in (0, 1, 2, 3, 99):
            for cancelled_at in range(6):
                # Which comes first matters only where both come in the same tick.
                for cancelled_first in {False, continues_at == cancelled_at}:
                    ledger = Ledger(scenario, kind, task_world)
                    operation = task_world.spawn(ledger.call)
                    moves = [(continues_at, 1, ledger.allow_to_continue)]
                    moves += [(cancelled_at, 0 if cancelled_first else 2, operation.cancel)]
                    await make_moves(task_world, moves)
                    outcomes.add(await settle(ledger, operation))
                    ledger.check()
        assert outcomes == {True, False}

    @pytest.mark.slow(every=5)
    def test_of_a_coroutine(self, new_loop: NewLoop, kind: Kind, scenario: Scenario) -> None:
        """The test steps it, and ends it at its first await, then at its second, and so on."""
        # It waits for its turn. For a single row it stands by before. It need not let others run
        # besides, though it is time for that; `TestInThePause` has the calls that do.
        stands_by = scenario.method in ("enqueue", "dequeue")
        most = 1 + stands_by

        async def main() -> None:
            for how in ("cancelled", "interrupted", "closed", "collected"):
                for granted in ("", "early", "late") if stands_by else ("", "late"):
                    awaits = most - (granted == "early")  # then it does not wait
                    ended = []
                    for step in range(awaits + 1):
                        ledger = Ledger(scenario, kind, AsyncioWorld())
                        await nearly_used_up()
                        ended.append(await end_at(ledger, step, how, granted=granted))
                        ledger.check()
                    assert ended == [True] * awaits + [False]

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())

    async def test_cancelling_a_caller_in_the_middle_of_the_line(
        self, task_world: TaskWorld, kind: Kind
    ) -> None:
        """Whichever call is cancelled, the others get what they would have got without it."""
        for cancelled in range(3):
            queue = kind.make(task_world)
            taking = [await task_world.begin(queue.dequeue_many, 2) for _ in range(3)]
            queue.enqueue_nowait(kind.element(0))
            taking[cancelled].cancel()
            assert await taking[cancelled].was_cancelled()
            await queue.enqueue_many(kind.batch(range(1, 4)))
            got = []
            for operation in taking:
                if operation is not taking[cancelled]:
                    got += kind.numbers(await operation.result())
            assert kind.in_order(got) == [0, 1, 2, 3]
            assert len(queue) == 0

    async def test_of_a_batch_in_front_of_a_smaller_one(self, task_world: TaskWorld) -> None:
        queue = task_world.fifo(2)
        large = await task_world.begin(queue.dequeue_many, 9)
        small = await task_world.begin(queue.dequeue_many, 2)
        for number in range(5):
            await queue.enqueue(number)  # more than fit: some are in its hands
        large.cancel()
        assert await large.was_cancelled()
        assert await small.result() == [0, 1]
        assert queue.size() == 3
        assert await queue.dequeue_many(3) == [2, 3, 4]

    async def test_of_a_batch_into_the_arrays_of_its_caller(self, task_world: TaskWorld) -> None:
        queue = task_world.fifo(2, "int64", (1,))
        out = np.zeros((9, 1), "int64")
        taking = await task_world.begin(queue.dequeue_many, 9, out=out)
        for number in range(5):
            await queue.enqueue([number])
        taking.cancel()
        assert await taking.was_cancelled()
        out[:] = -1
        assert (await queue.dequeue_many(5)).ravel().tolist() == list(range(5))

    async def test_a_queue_over_its_capacity_takes_nothing_in(self, task_world: TaskWorld) -> None:
        queue = task_world.fifo(2)
        taking = await task_world.begin(queue.dequeue_many, 9)
        for number in range(5):
            await queue.enqueue(number)
        taking.cancel()
        assert await taking.was_cancelled()
        for left in (5, 4, 3, 2):
            assert queue.size() == left
            with pytest.raises(QueueFull):
                queue.enqueue_nowait(9)
            await queue.dequeue()
        queue.enqueue_nowait(9)
        assert await queue.dequeue_many(2) == [4, 9]


async def make_moves(world: TaskWorld, moves: list[tuple[int, int, Callable[[], None]]]) -> None:
    """Make each move in its tick; within one tick, by the second number."""
    for tick in range(8):
        for at, _, move in sorted(moves, key=lambda move: move[:2]):
            if at == tick:
                move()
        await world.tick()


async def settle(ledger: Ledger, operation: Any) -> bool:
    """Record the outcome in the ledger; return whether the operation was cancelled."""
    try:
        ledger.completed(await operation.result())
    except CancelledError:
        ledger.cancelled()
        return True
    return False


async def end_at(ledger: Ledger, awaits: int, how: str, *, granted: str) -> bool:
    """Step an operation by hand and end it at one of its awaits; false if it has fewer.

    What it waits for comes before the last of them: while it stands by, if that is to be early.
    """
    operation = ledger.call()
    for step in count():
        try:
            future = operation.send(None)
        except StopIteration as end:
            ledger.completed(end.value)
            return False
        waits = future is not None
        if waits:
            future._asyncio_future_blocking = False  # which `Task` would have done
        if waits and (granted or step < awaits):
            ledger.allow_to_continue()
            assert future.done()
        elif granted == "early" and waiting(ledger.queue):
            ledger.allow_to_continue()
        if step == awaits:
            break
    if how == "closed":
        operation.close()
    elif how == "collected":
        del operation
    else:
        error = {"cancelled": asyncio.CancelledError, "interrupted": KeyboardInterrupt}[how]
        with pytest.raises(error):
            operation.throw(error())
    if how in ("closed", "collected"):
        ledger.cancelled(ledger.queue.statistics().enqueued - ledger.put)  # a note would be lost
    else:
        ledger.cancelled()
    await asyncio.sleep(0)
    return True


class TestSameTick:
    """Several were granted, and are cancelled before any of them has run."""

    @pytest.mark.slow(every=6)
    @pytest.mark.parametrize("size", [1, 2, 3])
    async def test_dequeues(self, task_world: TaskWorld, kind: Kind, size: int) -> None:
        for cancelled in every_order(3):
            queue = kind.make(task_world)
            taking = [await task_world.begin(queue.dequeue_many, size) for _ in range(3)]
            for number in range(3 * size):
                queue.enqueue_nowait(kind.element(number))
            for index in cancelled:
                taking[index].cancel()
            got: dict[int, list[int]] = {}
            for index, operation in enumerate(taking):
                try:
                    got[index] = kind.numbers(await operation.result())
                except CancelledError:
                    assert index in cancelled
            if kind.ordered:
                # What one was granted is its own; what went back is in order.
                assert got == {i: [*range(i * size, i * size + size)] for i in got}
            left = await kind.drain(queue)
            if kind.ordered:
                assert left == sorted(left)
            assert sorted([*left, *chain(*got.values())]) == list(range(3 * size))

    async def test_enqueues(self, task_world: TaskWorld, kind: Kind) -> None:
        for cancelled in every_order(3):
            queue = kind.make(task_world, 3)
            await queue.enqueue_many(kind.batch(range(3)))
            putting = [await task_world.begin(queue.enqueue, kind.element(n)) for n in (3, 4, 5)]
            taken = [kind.number(queue.dequeue_nowait()) for _ in range(3)]
            for index in cancelled:
                putting[index].cancel()
            put = [
                n
                for n, operation in zip((3, 4, 5), putting, strict=True)
                if not await operation.was_cancelled()
            ]
            assert set(put) >= {n + 3 for n in range(3) if n not in cancelled}
            left = await kind.drain(queue)
            assert kind.in_order(taken + left) == [0, 1, 2, *put]

    async def test_the_next_in_line_is_served(self, task_world: TaskWorld, kind: Kind) -> None:
        for cancelled in every_order(2):
            queue = kind.make(task_world)
            taking = [await task_world.begin(queue.dequeue) for _ in range(4)]
            queue.enqueue_nowait(kind.element(0))
            queue.enqueue_nowait(kind.element(1))
            for index in cancelled:
                taking[index].cancel()
            ended = [await taking[index].was_cancelled() for index in range(2)]
            for number in range(2, 2 + ended.count(False)):
                queue.enqueue_nowait(kind.element(number))
            got = [
                kind.number(await operation.result())
                for index, operation in enumerate(taking)
                if index > 1 or not ended[index]
            ]
            assert sorted(got) == list(range(len(got)))
            if all(ended):
                assert kind.in_order(got) == sorted(got)

    async def test_the_place_goes_to_the_next_caller(
        self, task_world: TaskWorld, kind: Kind
    ) -> None:
        queue = kind.make(task_world, 1)
        await queue.enqueue(kind.element(0))
        first = await task_world.begin(queue.enqueue, kind.element(1))
        second = await task_world.begin(queue.enqueue, kind.element(2))
        taken = [kind.number(queue.dequeue_nowait())]
        first.cancel()
        put = [] if await first.was_cancelled() else [1]
        if put:
            taken.append(kind.number(queue.dequeue_nowait()))
        await second.result()
        assert kind.in_order(taken + await kind.drain(queue)) == [0, *put, 2]

    async def test_a_place_counts_until_it_is_taken(self, task_world: TaskWorld) -> None:
        queue = task_world.fifo(1)
        await queue.enqueue(0)
        putting = await task_world.begin(queue.enqueue, 1)
        assert queue.dequeue_nowait() == 0
        with pytest.raises(QueueFull):
            queue.enqueue_nowait(9)
        await putting.result()
        assert await queue.dequeue() == 1

    async def test_the_end_is_not_reported_too_early(
        self, task_world: TaskWorld, kind: Kind
    ) -> None:
        """A task that holds the last element is cancelled: another caller gets it."""
        queue = kind.make(task_world)
        first = await task_world.begin(queue.dequeue)
        others = [await task_world.begin(queue.dequeue) for _ in range(2)]
        queue.enqueue_nowait(kind.element(0))
        queue.close()
        first.cancel()
        got = []
        for operation in (first, *others):
            try:
                got.append(kind.number(await operation.result()))
            except (CancelledError, OutOfRangeError):
                pass
        assert got == [0]
        assert queue.size() == 0

    async def test_closed_before_it_runs(self, task_world: TaskWorld) -> None:
        """Granted, closed with pending enqueues cancelled, and cancelled itself: not in."""
        queue = task_world.fifo(1)
        await queue.enqueue(0)
        putting = await task_world.begin(queue.enqueue, 1)
        taken = [queue.dequeue_nowait()]
        queue.close(cancel_pending_enqueues=True)
        putting.cancel()
        put = [1]
        try:
            if await putting.was_cancelled():
                put = []
        except QueueClosedError:
            put = []
        assert taken + await FIFO.drain(queue) == [0, *put]


def every_order(n: int) -> Iterator[tuple[int, ...]]:
    """Every subset of n, in every order."""
    for size in range(n + 1):
        for subset in combinations(range(n), size):
            yield from permutations(subset)


class TestForeignWake:
    """A thread lets the operation go on while the loop may not run; then it is cancelled."""

    async def test_then_cancelled(
        self, task_world: TaskWorld, kind: Kind, scenario: Scenario
    ) -> None:
        for cancelled_first in (False, True):
            ledger = Ledger(scenario, kind, task_world)
            operation = task_world.spawn(ledger.call)
            for _ in range(5):
                await task_world.tick()
            if cancelled_first:
                operation.cancel()
            in_a_thread(ledger.allow_to_continue)
            operation.cancel()
            await settle(ledger, operation)
            ledger.check()

    async def test_of_many(self, task_world: TaskWorld) -> None:
        queue = task_world.fifo(100)
        taking = [await task_world.begin(queue.dequeue) for _ in range(20)]
        in_a_thread(lambda: queue.sync.enqueue_many(range(20)))
        for operation in taking[::3]:
            operation.cancel()
        got = []
        for operation in taking:
            try:
                got.append(await operation.result())
            except CancelledError:
                pass
        assert len(got) >= 13
        assert sorted(got + await FIFO.drain(queue)) == list(range(20))


def in_a_thread(call: Callable[[], object]) -> None:
    """Call in another thread, and keep this one, with its event loop, waiting."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()


class TestDeadlines:
    """The ways in which users cancel."""

    @pytest.mark.parametrize("seconds", [0, 0.001])
    async def test_of_the_world(
        self, task_world: TaskWorld, kind: Kind, scenario: Scenario, seconds: float
    ) -> None:
        ledger = Ledger(scenario, kind, task_world)
        with pytest.raises(CancelledError):
            await task_world.within(seconds, ledger.call)
        ledger.cancelled()
        ledger.check()

    def test_every_operation_of_trio_is_a_checkpoint(self, kind: Kind) -> None:
        """Also where tasks of asyncio use the same face, and let others run less often."""
        queue = kind.make(AsyncioWorld())
        asyncio.run(queue.enqueue(kind.element(0)))

        async def main() -> None:
            for number in (1, 2):
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await queue.enqueue(kind.element(number))
                assert scope.cancelled_caught

        trio.run(main)
        assert queue.size() == 1

    @pytest.mark.slow(every=3)
    @pytest.mark.parametrize("seconds", [0, 0.001])
    async def test_of_anyio(
        self, task_world: TaskWorld, kind: Kind, scenario: Scenario, seconds: float
    ) -> None:
        ledger = Ledger(scenario, kind, task_world)
        with anyio.move_on_after(seconds) as scope:
            await ledger.call()
        assert scope.cancelled_caught
        ledger.cancelled()
        ledger.check()

    @pytest.mark.slow(every=4)
    async def test_that_race(self, task_world: TaskWorld, kind: Kind, scenario: Scenario) -> None:
        """The deadline passes about when a thread lets the operation go on."""
        for turn in range(0, 20, 2):
            ledger = Ledger(scenario, kind, task_world)
            thread = threading.Thread(target=ledger.allow_to_continue)

            async def call(ledger: Ledger = ledger, thread: threading.Thread = thread) -> Any:
                thread.start()
                return await ledger.call()

            try:
                ledger.completed(await task_world.within(turn * 2e-5, call))
            except CancelledError:
                ledger.cancelled()
            thread.join()
            if scenario.method not in ONLY_WAITS and not scenario.puts:
                assert ledger.put == ledger.queue.statistics().enqueued
            ledger.check()

    async def test_a_shuffle_keeps_its_seed(self, task_world: TaskWorld) -> None:
        """A cancelled batch leaves all inside, and nothing is drawn twice."""
        queue = task_world.shuffle(9, 2, "int64", (), seed=7)
        taking = await task_world.begin(queue.dequeue_many, 5)
        await queue.enqueue_many(range(6))
        taking.cancel()
        assert await taking.was_cancelled()
        assert queue.size() == 6
        got = (await queue.dequeue_many(4)).tolist()
        queue.close()
        assert sorted(got + (await queue.dequeue_many(2)).tolist()) == list(range(6))

    async def test_smaller_priorities_still_leave_first(self, task_world: TaskWorld) -> None:
        queue = task_world.priority(9)
        taking = await task_world.begin(queue.dequeue_many, 2)
        queue.enqueue_nowait((5, "a"))
        queue.enqueue_nowait((5, "b"))
        taking.cancel()
        if await taking.was_cancelled():
            queue.enqueue_nowait((1, "c"))
            queue.enqueue_nowait((5, "d"))
            got = await queue.dequeue_many(4)
            assert got == [(1, "c"), (5, "a"), (5, "b"), (5, "d")]


class TestThreads:
    """A timeout of the thread face, and Ctrl-C."""

    @pytest.mark.parametrize("timeout", [0, 0.002])
    def test_timeout(self, kind: Kind, scenario: Scenario, timeout: float) -> None:
        ledger = Ledger(scenario, kind, AsyncioWorld())
        method = getattr(ledger.queue.sync, scenario.method)
        with pytest.raises(DeadlineExceededError, match=f"^{scenario.method} on ") as caught:
            method(*scenario.arguments(kind), **scenario.options, timeout=timeout)
        expected = 2 if scenario.method == "enqueue_many" else 0
        assert caught.value.enqueued == expected
        ledger.cancelled(caught.value.enqueued)
        ledger.check()

    @pytest.mark.slow(every=3)
    @pytest.mark.parametrize("thread", ["main", "other"])
    def test_timeout_that_races(self, kind: Kind, scenario: Scenario, thread: str) -> None:
        def test() -> None:
            for turn in range(20):
                ledger = Ledger(scenario, kind, AsyncioWorld())
                method = getattr(ledger.queue.sync, scenario.method)
                beside = threading.Thread(target=ledger.allow_to_continue)
                beside.start()
                try:
                    result = method(
                        *scenario.arguments(kind), **scenario.options, timeout=turn * 1e-5
                    )
                except DeadlineExceededError as error:
                    beside.join()
                    ledger.cancelled(error.enqueued)
                else:
                    beside.join()
                    ledger.completed(result)
                ledger.check()

        if thread == "main":
            test()
        else:
            failures: list[BaseException] = []

            def catch() -> None:
                try:
                    test()
                except BaseException as failure:
                    failures.append(failure)

            in_a_thread(catch)
            assert failures == []

    def test_max_wait_and_timeout(self) -> None:
        queue = sync.FIFOQueue(9)
        with pytest.raises(DeadlineExceededError):
            queue.dequeue_up_to(3, max_wait=0, timeout=0.002)  # nothing is there
        queue.enqueue(0)
        assert queue.dequeue_up_to(3, max_wait=0.001, timeout=3600) == [0]
        queue.enqueue(1)
        with pytest.raises(DeadlineExceededError):
            queue.dequeue_up_to(3, max_wait=3600, timeout=0.001)
        assert queue.dequeue() == 1

    @pytest.mark.parametrize("granted", [False, True], ids=["waiting", "granted"])
    def test_interrupted(
        self, kind: Kind, scenario: Scenario, granted: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C in the main thread while it waits, or when it was chosen and has not run on."""
        ledger = Ledger(scenario, kind, AsyncioWorld())
        wait = ThreadWaker.wait

        def interrupted(waker: ThreadWaker, seconds: float | None) -> bool:
            if granted:
                in_a_thread(ledger.allow_to_continue)
                wait(waker, None)
            raise KeyboardInterrupt

        monkeypatch.setattr(ThreadWaker, "wait", interrupted)
        method = getattr(ledger.queue.sync, scenario.method)
        with pytest.raises(KeyboardInterrupt) as caught:
            method(*scenario.arguments(kind), **scenario.options)
        ledger.error = caught.value
        ledger.cancelled()
        ledger.check()

    @pytest.mark.slow
    def test_ctrl_c(self) -> None:
        """The signal itself, in a process of its own."""
        ended = subprocess.run(
            [sys.executable, "-c", CTRL_C],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout.split() == [scenario.name for scenario in SCENARIOS]


CTRL_C = """
import os, signal, threading
from tests.queues.test_queue_core_cancellation import FIFO, SCENARIOS, Ledger
from tests.kit.worlds import AsyncioWorld, spin_until, waiting

for scenario in SCENARIOS:
    ledger = Ledger(scenario, FIFO, AsyncioWorld())

    def interrupt():
        if scenario.method == "wait_closed":
            spin_until(lambda: ledger.queue._machine._wait_lists.until_closed)
        elif scenario.method == "join":
            spin_until(lambda: ledger.queue._machine._wait_lists.until_done)
        else:
            spin_until(lambda: waiting(ledger.queue))
        # A signal that comes just before the main thread falls asleep does not wake it: once more.
        while armed:
            os.kill(os.getpid(), signal.SIGINT)
            breath.wait(0.02)

    def handler(*_):
        if armed:
            armed.clear()
            raise KeyboardInterrupt

    armed, breath = [True], threading.Event()
    signal.signal(signal.SIGINT, handler)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        method = getattr(ledger.queue.sync, scenario.method)
        method(*scenario.arguments(FIFO), **scenario.options)
    except KeyboardInterrupt as error:
        ledger.error = error
        ledger.cancelled()
    else:
        raise SystemExit(f"{scenario.name} was not interrupted")
    thread.join()
    ledger.check()
    print(scenario.name)
"""


class TestBlockingOnARunningLoop:
    """A blocking call on the thread of a running loop never waits."""

    async def test_that_would_wait(
        self, task_world: TaskWorld, kind: Kind, scenario: Scenario
    ) -> None:
        ledger = Ledger(scenario, kind, task_world)
        before = ledger.queue.statistics()
        method = getattr(ledger.queue.sync, scenario.method)
        for timeout in (None, 60):
            with pytest.raises(RuntimeError, match=rf"await queue\.aio\.{scenario.method}\("):
                method(*scenario.arguments(kind), **scenario.options, timeout=timeout)
        assert ledger.queue.statistics() == before
        ledger.check()

    async def test_that_need_not_wait(self, task_world: TaskWorld, kind: Kind) -> None:
        queue = kind.make(task_world).sync
        queue.enqueue(kind.element(0))
        queue.enqueue_many(kind.batch(range(1, 6)))
        got = [kind.number(queue.dequeue()), *kind.numbers(queue.dequeue_many(3))]
        got += kind.numbers(queue.dequeue_up_to(1))
        queue.close()
        got += kind.numbers(queue.dequeue_up_to(9))
        queue.wait_closed()
        assert kind.in_order(got) == list(range(6))

    async def test_withdrawn_elements_go_to_waiting_callers(
        self, task_world: TaskWorld, kind: Kind
    ) -> None:
        queue = kind.make(task_world, 1)
        taking = await task_world.begin(queue.dequeue)
        queue.sync.enqueue(kind.element(0))
        assert kind.number(await taking.result()) == 0
        queue.sync.enqueue(kind.element(1))
        putting = await task_world.begin(queue.enqueue, kind.element(2))
        assert kind.number(queue.sync.dequeue()) == 1
        await putting.result()


class DeadLoop:
    """An event loop that ends while its tasks wait; they stay referenced, and never run again."""

    def __init__(self, new_loop: NewLoop) -> None:
        self._loop = new_loop()
        self._tasks: list[asyncio.Task[Any]] = []

    def begin(self, *calls: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start tasks and let them wait; returns the last one."""
        for call in calls:
            task = self._loop.create_task(call)
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # that is the point
            self._tasks.append(task)
        self.tick()
        return self._tasks[-1]

    def tick(self) -> None:
        async def ticks() -> None:
            for _ in range(3):
                await asyncio.sleep(0)

        self._loop.run_until_complete(ticks())

    def die(self) -> None:
        self._loop.close()

    def forget(self) -> None:
        """Release the tasks."""
        self._tasks.clear()
        gc.collect()


class TestDeadLoops:
    """A waiter whose event loop has been closed is skipped, and loses nothing."""

    @pytest.mark.slow(every=6)
    @pytest.mark.parametrize("granted", [False, True], ids=["pending", "granted"])
    @pytest.mark.parametrize("forgotten", [False, True], ids=["referenced", "collected"])
    def test_dequeue(self, new_loop: NewLoop, kind: Kind, granted: bool, forgotten: bool) -> None:
        queue = kind.make(AsyncioWorld(), 3)
        dead = DeadLoop(new_loop)
        dead.begin(queue.dequeue())
        if granted:
            queue.enqueue_nowait(kind.element(0))
        dead.die()
        if not granted:
            queue.enqueue_nowait(kind.element(0))
        if forgotten:
            dead.forget()
        assert kind.number(queue.sync.dequeue(timeout=PATIENCE)) == 0
        assert queue.statistics().dequeued == 1
        assert waiting(queue) == 0

    @pytest.mark.slow(every=6)
    @pytest.mark.parametrize("granted", [False, True], ids=["pending", "granted"])
    @pytest.mark.parametrize("forgotten", [False, True], ids=["referenced", "collected"])
    def test_enqueue(self, new_loop: NewLoop, kind: Kind, granted: bool, forgotten: bool) -> None:
        queue = kind.make(AsyncioWorld(), 1)
        queue.enqueue_nowait(kind.element(0))
        dead = DeadLoop(new_loop)
        dead.begin(queue.enqueue(kind.element(1)))
        taken: list[int] = []
        if granted:
            taken.append(kind.number(queue.dequeue_nowait()))
        dead.die()
        if forgotten:
            dead.forget()
        if not granted:
            taken.append(kind.number(queue.dequeue_nowait()))
        queue.sync.enqueue(kind.element(2), timeout=PATIENCE)  # the place passes on
        taken.append(kind.number(queue.dequeue_nowait()))
        assert taken == [0, 2]
        assert waiting(queue) == 0

    def test_batch(self, new_loop: NewLoop, kind: Kind) -> None:
        queue = kind.make(AsyncioWorld(), 5)
        dead = DeadLoop(new_loop)
        dead.begin(queue.dequeue_many(3))
        for number in range(3):
            queue.enqueue_nowait(kind.element(number))
        dead.die()
        batch = queue.sync.dequeue_many(3, timeout=PATIENCE)
        assert kind.in_order(kind.numbers(batch)) == [0, 1, 2]

    def test_the_next_one_waits_already(self, new_loop: NewLoop, kind: Kind) -> None:
        """The element goes to the one behind, though it began while the loop was alive."""
        queue = kind.make(AsyncioWorld())
        dead = DeadLoop(new_loop)
        dead.begin(queue.dequeue())
        got: list[int] = []
        thread = threading.Thread(
            target=lambda: got.append(kind.number(queue.sync.dequeue(timeout=PATIENCE)))
        )
        thread.start()
        wait_until_waiting(queue, dequeues=2)
        dead.die()
        queue.enqueue_nowait(kind.element(0))
        thread.join()
        assert got == [0]

    def test_thousands(self, new_loop: NewLoop) -> None:
        queue = aioqueue.FIFOQueue(None)
        dead = DeadLoop(new_loop)
        dead.begin(*(queue.dequeue() for _ in range(2000)))
        assert queue.statistics().waiting_dequeues == 2000
        dead.die()
        queue.enqueue_nowait(0)
        assert queue.sync.dequeue(timeout=PATIENCE) == 0
        assert waiting(queue) == 0

    @pytest.mark.slow(every=2)
    def test_thousands_that_were_granted(self, new_loop: NewLoop) -> None:
        queue = aioqueue.FIFOQueue(None)
        dead = DeadLoop(new_loop)
        dead.begin(*(queue.dequeue() for _ in range(2000)))
        queue.sync.enqueue_many(range(2000))
        dead.die()
        assert queue.sync.dequeue_many(2000, timeout=PATIENCE) == list(range(2000))

    def test_granted_behind_one_that_lives(self, new_loop: NewLoop) -> None:
        """The oldest grant is a task's that is about to run; the next one's never will."""
        queue = aioqueue.FIFOQueue(9)
        alive, dead = DeadLoop(new_loop), DeadLoop(new_loop)
        task = alive.begin(queue.dequeue())
        dead.begin(queue.dequeue())
        queue.enqueue_nowait(0)
        queue.enqueue_nowait(1)
        dead.die()
        assert queue.sync.dequeue(timeout=PATIENCE) == 1
        alive.tick()
        assert task.result() == 0
        alive.die()

    def test_pending_batch_at_the_head(self, new_loop: NewLoop) -> None:
        """Nobody will ever have use for what a batch has collected whose loop is closed."""
        queue = aioqueue.FIFOQueue(9)
        dead = DeadLoop(new_loop)
        dead.begin(queue.dequeue_many(3))
        queue.enqueue_nowait(0)
        dead.die()
        assert queue.sync.dequeue(timeout=PATIENCE) == 0

    def test_a_call_that_does_not_wait_gets_the_rows_of_dead_callers(
        self, new_loop: NewLoop
    ) -> None:
        queue = aioqueue.FIFOQueue(9)
        dead = DeadLoop(new_loop)
        dead.begin(queue.dequeue_many(5))
        dead.die()
        queue.enqueue_nowait(0)
        assert queue.dequeue_nowait() == 0

    def test_wait_closed(self, new_loop: NewLoop) -> None:
        queue = aioqueue.FIFOQueue(9)
        dead = DeadLoop(new_loop)
        dead.begin(queue.wait_closed())
        dead.die()
        queue.close()
        queue.sync.wait_closed(timeout=PATIENCE)
        assert queue.is_closed()

    def test_join(self, new_loop: NewLoop) -> None:
        queue = aioqueue.FIFOQueue(9)
        queue.enqueue_nowait(0)
        dead = DeadLoop(new_loop)
        dead.begin(queue.join())
        dead.die()
        queue.task_done()
        queue.sync.join(timeout=PATIENCE)
        assert queue.statistics().unfinished == 0
