"""Calls that let other tasks run: in which order they proceed, and what a cancellation does then.

A call is in line from its first step on, and lets others run after its move. So however many calls
are made at once, none overtakes another. In asyncio a task can be cancelled in that pause: then
what it has taken goes back, and what it has put in is in; nothing is lost, neither the element nor
the cancellation.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest

import aioqueue
from aioqueue import OutOfRangeError, QueueClosedError
from aioqueue.coordination.cancellations import Call, is_being_cancelled
from aioqueue.worlds import asyncio as asyncio_waiting
from aioqueue.worlds.asyncio import BUDGET, current_asyncio_waker
from tests.kit.loops import NewLoop, nearly_used_up, new_loop
from tests.kit.worlds import (
    KINDS,
    AsyncioWorld,
    CancelledError,
    Kind,
    TaskWorld,
    UvloopWorld,
    core_of,
)

__all__ = ("new_loop",)  # a fixture

FIFO = KINDS[0]
PUTS = ("enqueue", "enqueue_many")
TAKES = ("dequeue", "next", "dequeue_many", "dequeue_up_to")
ASYNCIO = [
    pytest.param(AsyncioWorld, id="asyncio"),
    pytest.param(
        UvloopWorld,
        id="uvloop",
        marks=pytest.mark.skipif(bool(UvloopWorld.missing()), reason="uvloop is not installed"),
    ),
]


class Traffic:
    """Calls that are made at once, and what each has put in or got, in the order of first steps.

    Args:
        kind: the kind of queue.
        queue: the queue; where order can be seen, it is first in, first out: its numbers ascend.
        seed: of the choice of calls.
    """

    def __init__(self, kind: Kind, queue: Any, seed: int) -> None:
        self.kind, self.queue = kind, queue
        self.random = random.Random(seed)
        self.numbers = 0
        self.put: list[list[int]] = []
        self.got: list[list[int]] = []

    def plan(self, calls: int) -> list[tuple[str, int]]:
        """Methods, each with a number of rows. As many rows go in as come out."""
        most = self.queue.capacity or 9
        plan, balance = [], 0
        for _ in range(calls):
            method = self.random.choice(PUTS + TAKES)
            n = 1
            if method not in ("enqueue", "dequeue", "next"):
                n = self.random.randint(0, min(9, most))
            plan.append((method, n))
            balance += n if method in PUTS else -n
        rest = "dequeue" if balance > 0 else "enqueue"
        return plan + [(rest, 1)] * abs(balance)

    async def call(self, method: str, n: int) -> None:
        """One call; its place is noted in its first step."""
        kind, queue = self.kind, self.queue
        if method in PUTS:
            rows = list(range(self.numbers, self.numbers + n))
            self.numbers += n
            self.put.append(rows)
            if method == "enqueue":
                await queue.enqueue(kind.element(rows[0]))
            else:
                await queue.enqueue_many(kind.batch(rows))
            return
        place = len(self.got)
        self.got.append([])
        if method == "dequeue":
            self.got[place] = [kind.number(await queue.dequeue())]
        elif method == "next":
            self.got[place] = [kind.number(await anext(queue))]
        else:
            self.got[place] = kind.numbers(await getattr(queue, method)(n))

    def check(self) -> None:
        put = [row for rows in self.put for row in rows]
        got = [row for rows in self.got for row in rows]
        assert self.kind.in_order(got) == put
        assert len(self.queue) == 0


class TestOrder:
    @pytest.mark.slow(every=4)
    @pytest.mark.parametrize("capacity", [None, 1, 7, 200])
    async def test_of_many_calls_of_all_kinds(
        self, task_world: TaskWorld, kind: Kind, capacity: int | None
    ) -> None:
        """As many as the budget allows and more: none overtakes another, on either side."""
        for calls, seed in ((300, 1), (700, 2)) if kind is FIFO else ((300, 3),):
            queue = kind.make(task_world, capacity)
            traffic = Traffic(kind, queue, seed)
            running = [task_world.spawn(traffic.call, *one) for one in traffic.plan(calls)]
            for operation in running:
                await operation.result()
            traffic.check()

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(12))
    async def test_of_very_many(self, task_world: TaskWorld, kind: Kind, seed: int) -> None:
        capacity = random.Random(seed).choice([None, None, 2, 30, 1000])
        traffic = Traffic(kind, kind.make(task_world, capacity), seed)
        running = [task_world.spawn(traffic.call, *one) for one in traffic.plan(1000)]
        for operation in running:
            await operation.result()
        traffic.check()

    @pytest.mark.parametrize("world", ASYNCIO)
    @pytest.mark.parametrize("trio_may_come", [False, True])
    def test_calls_of_one_round_return_in_it(
        self, world: type[AsyncioWorld], trio_may_come: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A call that has to let others run: those behind it do not return before it."""
        if not trio_may_come:
            monkeypatch.delitem(sys.modules, "trio", raising=False)
        returned: list[int] = []
        queue = aioqueue.FIFOQueue(None)

        async def put(number: int) -> None:
            await queue.enqueue(number)
            returned.append(number)

        async def take() -> None:
            returned.append(await queue.dequeue())

        async def main() -> None:
            for _ in range(3):
                await asyncio.gather(*map(put, range(3 * BUDGET)))
                await asyncio.gather(*(take() for _ in range(3 * BUDGET)))

        with asyncio.Runner(loop_factory=world.new_loop) as runner:
            runner.run(main())
        assert returned == [*range(3 * BUDGET)] * 6

    def test_of_a_batch_and_of_single_calls_behind_it(self, asyncio_world: AsyncioWorld) -> None:
        """A batch uses up the budget by itself. In trio, tasks first run in any order."""
        queue = asyncio_world.fifo(None)

        async def main() -> None:
            for turn in range(200):
                begun = [
                    asyncio_world.spawn(
                        queue.enqueue_many, [(turn, row) for row in range(turn % 50)]
                    ),
                    asyncio_world.spawn(queue.enqueue, (turn, 50)),
                    asyncio_world.spawn(queue.enqueue_many, [(turn, 51)]),
                ]
                for operation in begun:
                    await operation.result()
                got = [queue.dequeue_nowait() for _ in range(len(queue))]
                assert got == [(turn, row) for row in (*range(turn % 50), 50, 51)]

        asyncio_world.run(main)

    @pytest.mark.parametrize("method", ["enqueue", "enqueue_many", "dequeue", "dequeue_many"])
    async def test_others_run(self, task_world: TaskWorld, method: str) -> None:
        """In a loop of calls that need not wait, whatever comes of them."""
        closed, full = task_world.fifo(None), task_world.fifo(None)
        closed.close()
        for number in range(2000):
            full.enqueue_nowait(number)
        arguments: dict[str, Any] = {"enqueue": 0, "enqueue_many": [0], "dequeue_many": 1}
        for queue in (full, closed):
            beside = [0]

            async def others(beside: list[int] = beside) -> None:
                while beside[-1] >= 0:
                    beside[0] += 1
                    await task_world.tick()

            other = task_world.spawn(others)
            for _ in range(1000):
                with suppress(OutOfRangeError, QueueClosedError):
                    await getattr(queue, method)(
                        *([arguments[method]] if method in arguments else [])
                    )
            assert beside[0] >= 1000 // (BUDGET + 1)
            beside.append(-1)
            await other.result()


# Cancelled in the pause.


class Pausing:
    """A call that need not wait, in the pause that it makes after its move.

    Args:
        name: what it does.
    """

    def __init__(self, name: str, kind: Kind, world: TaskWorld) -> None:
        self.name, self.kind = name, kind
        self.queue = queue = kind.make(world)
        self.is_put = name.startswith(("enqueue", "refused"))
        for number in range(5):
            queue.enqueue_nowait(kind.element(number))
        self.n = {"dequeue": 1, "next": 1, "enqueue": 1, "enqueue_many": 3, "the rest": 5}.get(
            name, 0 if name.startswith("refused") else 3
        )
        if name in ("the rest", "refused"):
            queue.close()
        self.result: Any = None

    async def call(self) -> None:
        kind, queue = self.kind, self.queue
        if self.name == "enqueue":
            await queue.enqueue(kind.element(5))
        elif self.name == "enqueue_many":
            await queue.enqueue_many(kind.batch([5, 6, 7]))
        elif self.name == "refused":
            with pytest.raises(QueueClosedError):
                await queue.enqueue(kind.element(5))
        elif self.name == "dequeue":
            self.result = [kind.number(await queue.dequeue())]
        elif self.name == "next":
            self.result = [kind.number(await anext(queue))]
        elif self.name == "dequeue_many":
            self.result = kind.numbers(await queue.dequeue_many(3))
        elif self.name == "batches":
            self.result = kind.numbers(await anext(queue.batches(3)))
        else:
            n = 9 if self.name == "the rest" else 3
            self.result = kind.numbers(await queue.dequeue_up_to(n))

    def check_meanwhile(self) -> None:
        """What other callers see while it lets them run."""
        counts = self.queue.statistics()
        moved = self.n if self.is_put else -self.n
        assert counts.size == len(self.queue) == 5 + moved
        held = counts.enqueued - counts.size - counts.dequeued
        assert held == (0 if self.is_put else self.n)

    def check(self, happened: bool) -> None:
        """Everything is where it should be, whether or not the call happened."""
        counts = self.queue.statistics()
        entered = 5 + (self.n if self.is_put and happened else 0)
        taken = self.result or []
        assert len(taken) == (self.n if happened and not self.is_put else 0)
        assert counts.enqueued == entered
        assert counts.dequeued == len(taken)
        assert counts.size == entered - len(taken)
        self.queue.close()
        left = [self.kind.number(self.queue.dequeue_nowait()) for _ in range(len(self.queue))]
        assert self.kind.in_order([*taken, *left]) == [*range(entered)]


CALLS = (
    "enqueue",
    "enqueue_many",
    "refused",
    "dequeue",
    "next",
    "dequeue_many",
    "dequeue_up_to",
    "batches",
    "the rest",
)


@pytest.fixture(params=CALLS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=ASYNCIO)
def asyncio_world(request: pytest.FixtureRequest) -> AsyncioWorld:
    world: AsyncioWorld = request.param()
    return world


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


class TestInThePause:
    """In asyncio. Each test cancels in another way; nothing may be lost, nor come unasked."""

    @pytest.mark.slow(every=3)
    def test_by_the_task(self, asyncio_world: AsyncioWorld, kind: Kind, name: str) -> None:
        """What was put in is in, and the next await is cancelled; what was taken goes back."""

        async def main() -> None:
            pausing = Pausing(name, kind, asyncio_world)
            has_returned = False

            async def body() -> None:
                nonlocal has_returned
                await pausing.call()
                has_returned = True
                begun = Call()
                try:
                    await forever()
                finally:  # a call that begins now is the one that is cancelled
                    assert is_being_cancelled(begun)

            task = await in_pause(body())
            pausing.check_meanwhile()
            task.cancel("why")
            with pytest.raises(asyncio.CancelledError, match="why"):
                await task
            assert task.cancelled()
            assert task.cancelling() == 1
            assert has_returned is pausing.is_put
            pausing.check(happened=pausing.is_put)

        asyncio_world.run(main)

    def test_as_the_last_thing_that_a_task_does(
        self, asyncio_world: AsyncioWorld, name: str
    ) -> None:
        async def main() -> None:
            pausing = Pausing(name, FIFO, asyncio_world)
            task = await in_pause(pausing.call())
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() is not pausing.is_put
            pausing.check(happened=pausing.is_put)

        asyncio_world.run(main)

    @pytest.mark.parametrize("awaits", ["inside", "outside", "never"])
    @pytest.mark.parametrize("way", ["timeout", "move_on_after", "task group", "anyio's"])
    def test_by_a_scope(
        self, asyncio_world: AsyncioWorld, name: str, way: str, awaits: str
    ) -> None:
        """A scope that is left without an await takes its request back: none comes afterwards."""

        async def main() -> None:
            pausing = Pausing(name, FIFO, asyncio_world)
            outcome: list[str] = []

            async def body() -> None:
                try:
                    async with ScopeOf(way):
                        await pausing.call()
                        outcome.append("returned")
                        if awaits == "inside":
                            await forever()
                except TimeoutError:
                    outcome.append("timed out")
                except ExceptionGroup:
                    outcome.append("failed")
                left_by_itself = "returned" in outcome and awaits != "inside"
                assert requests_kept() == (await kept_by_a_scope(way) if left_by_itself else 0)
                if awaits == "outside":
                    for _ in range(5):
                        await asyncio.sleep(0)
                outcome.append("over")

            await asyncio.wait_for(await in_pause(body()), 20)
            ends = {"timeout": "timed out", "task group": "failed"}.get(way)
            expected = ["returned"] if pausing.is_put else []
            if ends == "failed" or (ends and (not pausing.is_put or awaits == "inside")):
                expected.append(ends)
            assert outcome == [*expected, "over"]
            pausing.check(happened=pausing.is_put)

        asyncio_world.run(main)

    def test_by_a_scope_and_then_shielded(self, asyncio_world: AsyncioWorld, name: str) -> None:
        """The request of an anyio scope does not reach into a shield inside."""

        async def main() -> None:
            pausing = Pausing(name, FIFO, asyncio_world)
            cleaned_up = False

            async def body() -> None:
                nonlocal cleaned_up
                try:
                    await pausing.call()
                finally:
                    with anyio.CancelScope(shield=True):
                        for _ in range(5):
                            await asyncio.sleep(0)
                        cleaned_up = True
                await forever()

            async with anyio.create_task_group() as group:  # its tasks are not its host
                await nearly_used_up()
                group.start_soon(body)
                await asyncio.sleep(0)
                pausing.check_meanwhile()
                group.cancel_scope.cancel()
            assert cleaned_up
            pausing.check(happened=pausing.is_put)

        asyncio_world.run(main)

    @pytest.mark.parametrize("first", ["task", "scope"])
    def test_by_the_task_and_by_a_scope(
        self, asyncio_world: AsyncioWorld, name: str, first: str
    ) -> None:
        """Two requests in one pause: the scope's ends with it, the other one reaches the task."""

        async def main() -> None:
            pausing = Pausing(name, FIFO, asyncio_world)
            scopes: list[anyio.CancelScope] = []

            async def body() -> None:
                with anyio.CancelScope() as scope:
                    scopes.append(scope)
                    await pausing.call()
                await forever()

            task = await in_pause(body())
            if first == "task":
                task.cancel()
            scopes[0].cancel()
            if first == "scope":
                task.cancel()
            await asyncio.wait_for(asyncio.wait([task]), 20)
            assert task.cancelled()
            pausing.check(happened=pausing.is_put)

        asyncio_world.run(main)

    def test_by_a_scope_and_by_the_task_in_a_timeout(
        self, asyncio_world: AsyncioWorld, name: str
    ) -> None:
        async def main() -> None:
            pausing = Pausing(name, FIFO, asyncio_world)

            async def body() -> None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(0):
                        await pausing.call()
                await forever()

            task = await in_pause(body())
            task.cancel()
            await asyncio.wait_for(asyncio.wait([task]), 20)
            assert task.cancelled()
            pausing.check(happened=pausing.is_put)

        asyncio_world.run(main)

    def test_a_swallowed_cancellation_is_not_delivered_again(
        self, asyncio_world: AsyncioWorld, name: str
    ) -> None:
        """A task that once swallowed a cancellation is not cancelled for it; a new one counts."""

        async def main() -> None:
            pausing, again = (Pausing(name, FIFO, asyncio_world) for _ in range(2))

            async def body() -> None:
                with suppress(asyncio.CancelledError):
                    await forever()
                await nearly_used_up()
                await pausing.call()
                for _ in range(5):
                    await asyncio.sleep(0)
                await nearly_used_up()
                calling.append(True)
                await again.call()
                await forever()

            calling: list[bool] = []
            task = asyncio.create_task(body())
            await asyncio.sleep(0)
            task.cancel()
            while not calling:
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait_for(asyncio.wait([task]), 20)
            assert (task.cancelled(), task.cancelling()) == (True, 2)
            pausing.check(happened=True)
            again.check(happened=again.is_put)

        asyncio_world.run(main)

    def test_requested_by_the_task_itself_before(
        self, asyncio_world: AsyncioWorld, name: str
    ) -> None:
        async def main() -> None:
            pausing = Pausing(name, FIFO, asyncio_world)

            async def body() -> None:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await pausing.call()
                await forever()

            task = await in_pause(body())
            await asyncio.wait_for(asyncio.wait([task]), 20)
            assert (task.cancelled(), task.cancelling()) == (True, 1)
            pausing.check(happened=pausing.is_put)

        asyncio_world.run(main)

    @pytest.mark.slow(every=4)
    @pytest.mark.parametrize("how", ["closed", "collected", "interrupted"])
    def test_ended_by_the_runner_of_the_coroutine(
        self, new_loop: NewLoop, kind: Kind, name: str, how: str
    ) -> None:
        async def main() -> None:
            pausing = Pausing(name, kind, AsyncioWorld())
            await nearly_used_up()
            call = pausing.call()
            assert call.send(None) is None
            if how == "closed":
                call.close()
            elif how == "collected":
                del call
                gc.collect()
            else:
                with pytest.raises(KeyboardInterrupt):
                    call.throw(KeyboardInterrupt())
            await asyncio.sleep(0)
            pausing.check(happened=pausing.is_put)

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())

    def test_its_loop_is_closed(self, name: str) -> None:
        """(uvloop does not stop in between.)"""
        pausing, loop = Pausing(name, FIFO, AsyncioWorld()), asyncio.new_event_loop()

        async def begin() -> None:
            await nearly_used_up()
            await pausing.call()

        task = loop.create_task(begin())
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # that is the point
        for _ in range(2):
            loop.call_soon(loop.stop)
            loop.run_forever()
        pausing.check_meanwhile()
        loop.close()
        pausing.queue.close()
        assert core_of(pausing.queue).machine.waiting() == []
        pausing.check(happened=pausing.is_put)
        # From the outside in. The garbage collector may begin with the innermost coroutine, whose
        # clean-up drops the task; then the outer one cannot be closed, and Python reports that.
        task.get_coro().close()

    def test_the_end_is_not_reported_while_the_last_element_may_come_back(
        self, asyncio_world: AsyncioWorld
    ) -> None:
        """A task that pauses holds the last element, and is cancelled."""
        for cancelled in (False, True):

            async def main(cancelled: bool = cancelled) -> None:
                queue = asyncio_world.fifo(9)
                queue.enqueue_nowait(0)
                await nearly_used_up()
                first = asyncio.create_task(queue.dequeue())
                second = asyncio.create_task(queue.dequeue())
                closing = asyncio.create_task(asyncio.sleep(0))
                closing.add_done_callback(lambda _: queue.close())
                queue.close()
                await asyncio.sleep(0)
                if cancelled:
                    first.cancel()
                got: Any = await asyncio.gather(first, second, return_exceptions=True)
                if cancelled:
                    assert isinstance(got[0], asyncio.CancelledError)
                    assert got[1] == 0
                else:
                    assert got[0] == 0
                    assert isinstance(got[1], OutOfRangeError)

            asyncio_world.run(main)

    def test_returned_elements_go_to_waiting_callers(
        self, asyncio_world: AsyncioWorld, kind: Kind
    ) -> None:
        async def main() -> None:
            queue = kind.make(asyncio_world, 4)
            for number in range(2):
                queue.enqueue_nowait(kind.element(number))
            first = await in_pause(queue.dequeue_many(2))
            second = asyncio.create_task(queue.dequeue_many(2))
            for _ in range(2):
                first.cancel()
            assert kind.in_order(kind.numbers(await second)) == [0, 1]
            with pytest.raises(asyncio.CancelledError):
                await first

        asyncio_world.run(main)

    def test_arrays_of_the_caller_are_not_written_to(self, asyncio_world: AsyncioWorld) -> None:
        async def main() -> None:
            queue = asyncio_world.fifo(9, "int64", ())
            queue.enqueue_nowait(1)
            queue.enqueue_nowait(2)
            out = FIFO.batch([7, 7])
            task = await in_pause(queue.dequeue_many(2, out=out))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert out.tolist() == [7, 7]
            assert (await queue.dequeue_many(2, out=out)).tolist() == [1, 2]

        asyncio_world.run(main)

    @pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="no eager tasks")
    def test_of_an_eager_task(self, asyncio_world: AsyncioWorld, name: str) -> None:
        async def main() -> None:
            def eager(loop: Any, call: Any, **options: Any) -> asyncio.Task[Any]:
                return asyncio.Task(call, loop=loop, **{**options, "eager_start": True})

            asyncio.get_running_loop().set_task_factory(eager)
            pausing = Pausing(name, FIFO, asyncio_world)

            async def body() -> None:
                await pausing.call()
                await forever()

            await nearly_used_up()
            task = asyncio.create_task(body())
            pausing.check_meanwhile()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            pausing.check(happened=pausing.is_put)

        asyncio_world.run(main)


async def in_pause(call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a task whose first call of a queue lets others run, and return while it does so."""
    await nearly_used_up()
    task = asyncio.create_task(call)
    await asyncio.sleep(0)
    assert not task.done()
    return task


class ScopeOf:
    """A scope that cancels the task inside while a call of it lets others run."""

    def __init__(self, way: str) -> None:
        self.way = way

    async def __aenter__(self) -> None:
        call_soon = asyncio.get_running_loop().call_soon
        if self.way == "timeout":
            self.scope: Any = asyncio.timeout(0)
        elif self.way == "task group":
            self.scope = asyncio.TaskGroup()
        elif self.way == "anyio's":
            self.scope = anyio.create_task_group()
        else:
            self.scope = anyio.CancelScope()
        if self.way == "move_on_after":
            self.scope.__enter__()
            call_soon(self.scope.cancel)
            return
        group = await self.scope.__aenter__()
        if self.way == "task group":
            self.task = group.create_task(fail())
            await asyncio.sleep(0)  # the group learns of it in the next round, and cancels its task
        elif self.way == "anyio's":
            call_soon(group.cancel_scope.cancel)

    async def __aexit__(self, *error: Any) -> Any:
        if self.way == "move_on_after":
            return self.scope.__exit__(*error)
        return await self.scope.__aexit__(*error)


def requests_kept() -> int:
    """How often this task has been asked to end, without that being taken back."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def kept_by_a_scope(way: str) -> int:
    """The requests that a scope alone keeps, if its task swallows them: 0, but in early anyio."""

    async def swallow() -> int:
        with suppress(TimeoutError, ExceptionGroup):
            async with ScopeOf(way):
                with suppress(asyncio.CancelledError):
                    await forever()
        return requests_kept()

    return await asyncio.create_task(swallow())


async def fail() -> None:
    raise ArithmeticError


WAYS: dict[str, Callable[[Awaitable[Any]], Awaitable[Any]]] = {}


def way(function: Any) -> Any:
    WAYS[function.__name__] = function
    return function


@way
async def a_timeout(call: Awaitable[Any]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.001):
            await call


@way
async def an_anyio_scope(call: Awaitable[Any]) -> None:
    with anyio.move_on_after(0.001):
        await call


@way
async def the_task(call: Any) -> None:
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0.001)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@way
async def a_task_group(call: Any) -> None:
    async def fail_later() -> None:
        await asyncio.sleep(0.001)
        raise ArithmeticError

    with suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(fail_later())
            group.create_task(call)


@way
async def an_anyio_group(call: Awaitable[Any]) -> None:
    async def run() -> None:
        await call

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await asyncio.sleep(0.001)
        group.cancel_scope.cancel()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", [*PUTS, "dequeue", "dequeue_many", "n is 0"])
def test_a_loop_that_never_waits_is_cancelled(
    asyncio_world: AsyncioWorld, way: str, method: str
) -> None:
    """However it is cancelled, and though each of its calls has happened."""

    async def main() -> None:
        queue = asyncio_world.fifo(None)
        for number in range(200_000 if method.startswith("dequeue") else 0):
            queue.enqueue_nowait(number)

        async def loop() -> None:
            while True:
                if method == "enqueue":
                    await queue.enqueue(1)
                elif method == "enqueue_many":
                    await queue.enqueue_many([1, 2, 3])
                elif method == "dequeue":
                    await queue.dequeue()
                elif method == "dequeue_many":
                    await queue.dequeue_many(1)
                else:
                    await queue.dequeue_many(0)

        await asyncio.wait_for(WAYS[way](loop()), 20)

    asyncio_world.run(main)


class Storm:
    """Workers that call one queue again and again, and are cancelled at any moment in any way.

    Args:
        world: where they run.
        kind: the kind of queue.
        seed: of everything.
    """

    def __init__(self, world: TaskWorld, kind: Kind, seed: int) -> None:
        self.world, self.kind = world, kind
        self.random = random.Random(seed)
        capacity = self.random.choice([None, None, 3, 40])
        self.most = min(capacity or 5, 5)
        self.queue = kind.make(world, capacity)
        self.numbers = 0
        self.put: list[int] = []
        self.got: list[int] = []

    async def work(self) -> None:
        for _ in range(self.random.randint(1, 12)):
            await self.call(self.random.choice(PUTS + TAKES))

    async def call(self, method: str) -> None:
        kind, queue, n = self.kind, self.queue, self.random.randint(0, self.most)
        if method in PUTS:
            rows = list(range(self.numbers, self.numbers + (1 if method == "enqueue" else n)))
            self.numbers += len(rows)
            done = 0
            try:
                if method == "enqueue":
                    await queue.enqueue(kind.element(rows[0]))
                else:
                    await queue.enqueue_many(kind.batch(rows))
                done = len(rows)
            except BaseException as error:
                done = getattr(error, "enqueued", 0) or 0
                raise
            finally:
                self.put += rows[:done]
        elif method in ("dequeue", "next"):
            got = await (queue.dequeue() if method == "dequeue" else anext(queue))
            self.got.append(kind.number(got))
        else:
            self.got += kind.numbers(await getattr(queue, method)(n))

    async def blow(self, workers: int) -> int:
        """Start the workers, cancel some of them, and end the rest; return how many were."""
        running = [self.world.spawn(self.work) for _ in range(workers)]
        left = list(running)
        while left:
            for _ in range(self.random.choice([0, 0, 1, 1, 2])):
                await self.world.tick()
            one = left.pop(self.random.randrange(len(left)))
            one.cancel()
            if self.random.random() < 0.3:
                one.cancel()
        for _ in range(8):
            await self.world.tick()
        assert all(one.done for one in running), "a cancellation was lost"
        cancelled = 0
        for one in running:
            try:
                await one.result()
            except CancelledError:
                cancelled += 1
        return cancelled

    def check(self) -> None:
        counts = self.queue.statistics()
        assert (counts.waiting_enqueues, counts.waiting_dequeues) == (0, 0)
        assert counts.enqueued == counts.dequeued + counts.size
        self.queue.close()
        left = [self.kind.number(self.queue.dequeue_nowait()) for _ in range(len(self.queue))]
        assert Counter(self.got + left) == Counter(self.put)
        if self.kind.ordered:
            assert left == sorted(left)


class TestStorms:
    """Nothing is lost or repeated, and no cancellation either."""

    @pytest.mark.slow(every=3)
    @pytest.mark.parametrize("budget", [0, 3, BUDGET])
    async def test_of_workers(
        self, task_world: TaskWorld, kind: Kind, budget: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(asyncio_waiting, "BUDGET", budget)  # nothing, where it is compiled
        cancelled = 0
        for seed in range(6):
            storm = Storm(task_world, kind, seed)
            cancelled += await storm.blow(12)
            storm.check()
        assert cancelled > 10

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(20))
    async def test_of_many_workers(
        self, task_world: TaskWorld, kind: Kind, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(asyncio_waiting, "BUDGET", seed % 5)
        for turn in range(10):
            storm = Storm(task_world, kind, 1000 * seed + turn)
            await storm.blow(30)
            storm.check()


def test_only_the_task_that_was_cancelled_is_asked_first() -> None:
    """And only until it has begun to wait."""

    async def main() -> None:
        queue = aioqueue.FIFOQueue(None)
        waker = current_asyncio_waker()

        def asks_first() -> bool:
            first: Any = waker.await_first()
            if first is not None:
                first.close()
            return first is not None

        async def is_asked_first() -> bool:
            return asks_first()

        async def body() -> None:
            await queue.enqueue(1)
            assert asks_first()
            others.append(asyncio.create_task(is_asked_first()))
            await forever()

        others: list[asyncio.Task[bool]] = []
        task = await in_pause(body())
        task.cancel()
        await asyncio.wait([task])
        assert not await others[0]
        assert not asks_first()

    asyncio.run(main())


def has_made(calls: int, count: list[int]) -> bool:
    return count[0] >= calls


@pytest.mark.parametrize("method", ["enqueue", "enqueue_many", "dequeue"])
async def test_a_stop_ends_a_worker_whose_calls_never_wait(
    task_world: TaskWorld, method: str
) -> None:
    """The stop of a coordinator is delivered once, perhaps in the pause of an enqueue."""
    for calls in range(1, BUDGET + 4, 9):
        other, filled = task_world.fifo(None), task_world.fifo(1)
        other.enqueue_nowait(0)
        ended: list[str] = []
        reached = [0]

        async def work(
            other: Any = other, ended: list[str] = ended, reached: list[int] = reached
        ) -> None:
            try:
                while True:
                    if method == "dequeue":
                        other.enqueue_nowait(await other.dequeue())
                    else:
                        await getattr(other, method)(0 if method == "enqueue" else [0])
                    reached[0] += 1
            finally:
                await asyncio.sleep(0) if task_world.name != "trio" else None
                ended.append("clean")

        async with aioqueue.Coordinator(stop_grace_period=30) as coord:
            coord.start(aioqueue.QueueRunner(filled, [work]))
            await task_world.until(partial(has_made, calls, reached))
            coord.request_stop()
        assert ended == ["clean"]
        counts = other.statistics()
        assert counts.enqueued == counts.size + counts.dequeued


class TestScopesOfAnyio:
    """They cancel no task whose wait has just ended, so a task in turn with others must pause."""

    @pytest.mark.parametrize("feeders", [1, 2, 3])
    @pytest.mark.parametrize("capacity", [1, 2, 3])
    @pytest.mark.slow(every=3)
    def test_reach_a_consumer_that_always_waits(
        self, new_loop: NewLoop, capacity: int, feeders: int
    ) -> None:
        async def feed(into: Any, depth: int) -> None:
            if not depth:
                while True:
                    await into.enqueue(1)
            inner = aioqueue.FIFOQueue(1)
            async with asyncio.TaskGroup() as group:
                group.create_task(feed(inner, depth - 1))
                while True:
                    await into.enqueue(await inner.dequeue())

        async def cancel(scope: anyio.CancelScope, rounds: int) -> None:
            for _ in range(rounds):
                await asyncio.sleep(0)
            scope.cancel()

        async def main(rounds: int) -> int:
            queue, taken = aioqueue.FIFOQueue(capacity), 0
            tasks = [asyncio.create_task(feed(queue, number == 0)) for number in range(feeders)]
            with anyio.CancelScope() as scope:
                tasks.append(asyncio.create_task(cancel(scope, rounds)))
                async for _ in queue:
                    taken += scope.cancel_called
                    if taken > 5000:
                        break
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return taken

        with asyncio.Runner(loop_factory=new_loop) as runner:
            for rounds in range(3, 11):
                assert runner.run(main(rounds)) < 5000
