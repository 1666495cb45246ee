"""Corners of the waiting code that mutation testing found no test for; see `docs/mutation.md`."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from time import perf_counter
from types import ModuleType
from typing import Any, cast

import anyio
import pytest

import aioqueue
from aioqueue import CancelledError, DeadlineExceededError, OutOfRangeError, QueueClosedError, sync
from aioqueue.core.attempts import Attempt, Put, Take
from aioqueue.core.machine import Machine
from aioqueue.worlds import waker as base
from aioqueue.worlds.asyncio import AsyncioWaker
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate, current_scopes, seconds_left
from aioqueue.worlds.waker import AsyncWaker, ThreadWaker, in_event_loop, loaded_trio
from tests.kit.worlds import PATIENCE, ThreadWorld, World, core_of, spin_until, waiting, waiting_at
from tests.telemetry.growing import Growing
from tests.worlds.test_scopes import Caller, blocked

# Worlds that have ended.


def ended_wakers() -> list[Any]:
    """A waker of a loop that is closed, and one of a trio run that is over."""
    trio = pytest.importorskip("trio")

    async def waker() -> Any:
        return current_waker()

    return [asyncio.run(waker()), trio.run(waker)]


def test_a_waker_of_an_ended_world_returns_its_notified_attempts() -> None:
    for waker in ended_wakers():
        first, second = Take(1), Put(1)
        waker.notify(first)
        waker.notify(second)
        assert list(waker.wake()) == [first, second]
        assert list(waker.wake()) == []
        waker.notify(first)
        assert list(waker.wake()) == [first]
        assert waker.is_dead()


@pytest.mark.parametrize("module", ["asyncio", "trio"])
def test_what_is_posted_meanwhile_is_not_given_up(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads go on to post where nobody is any more."""
    pytest.importorskip("trio")
    monkeypatch.setattr(f"aioqueue.worlds.{module}.deque", Growing)
    for waker in ended_wakers():
        posted = [Take(1), Put(1)]
        for attempt in posted:
            waker.notify(attempt)
        assert list(waker.wake()) == posted
        assert list(waker.wake()) == []


@pytest.mark.parametrize("from_anywhere", [False, True])
def test_what_such_a_waker_was_granted_serves_the_next_in_line(from_anywhere: bool) -> None:
    (waker, *_), queue = ended_wakers(), sync.FIFOQueue(1)
    lost, next_one = Take(1, single=True), Take(1, single=True)
    waits_on = ThreadWaker()
    machine = core_of(queue).machine
    machine.begin(lost, waker)
    machine.begin(next_one, waits_on)
    base.deliver(machine.begin(Put("element"), None), from_anywhere=from_anywhere)
    assert lost.is_withdrawn
    assert waits_on.wait(PATIENCE)
    base.deliver(machine.commit(next_one, 0.0))
    assert next_one.held.single == "element"


def test_a_world_has_one_waker() -> None:
    trio = pytest.importorskip("trio")

    async def wakers() -> tuple[Any, Any]:
        first = current_waker()
        assert not first.is_dead()
        return first, current_waker()

    for first, second in (asyncio.run(wakers()), trio.run(wakers)):
        assert first is second
    assert asyncio.run(wakers())[0] is not asyncio.run(wakers())[0]


def test_an_asyncio_waker_survives_a_kick_without_a_post() -> None:
    async def main() -> None:
        waker = current_waker()
        assert isinstance(waker, AsyncioWaker)
        assert list(waker.wake()) == []
        attempt = Take(1)
        waiting = asyncio.ensure_future(waker.wait(attempt))
        waker.notify(attempt)
        assert list(waker.wake()) == []
        await waiting

    asyncio.run(main())


def is_over(steps: Any) -> bool:
    """Whether something awaitable ends without giving way to others."""
    steps = steps.__await__()
    try:
        assert next(steps) is None, "it waits for something, not for a turn"
    except StopIteration:
        return True
    with pytest.raises(StopIteration):
        next(steps)
    return False


def test_a_call_that_was_granted_while_it_began_lets_earlier_ones_run() -> None:
    async def main() -> None:
        waker, attempt = current_waker(), Take(1)
        waker.notify(attempt)
        waker.wake()
        assert not is_over(waker.wait(attempt))

    asyncio.run(main())


def test_tasks_give_way_once_in_a_while() -> None:
    waker = ended_wakers()[0]
    assert not is_over(waker.pause(128))
    assert is_over(waker.pause(127))
    assert not is_over(waker.pause(1))


@pytest.mark.parametrize("trio_may_come", [False, True])
def test_first_calls_begin_in_the_order_in_which_they_are_made(
    monkeypatch: pytest.MonkeyPatch, trio_may_come: bool
) -> None:
    monkeypatch.delitem(sys.modules, "trio", raising=False)
    if trio_may_come:
        monkeypatch.setitem(sys.modules, "trio", ModuleType("trio"))
    queue = aioqueue.FIFOQueue(2)

    async def main() -> list[int]:
        async with asyncio.TaskGroup() as group:
            for element in (1, 2):
                group.create_task(queue.enqueue(element))
            await asyncio.sleep(0)
            return [queue.dequeue_nowait(), queue.dequeue_nowait()]

    assert asyncio.run(main()) == [1, 2]


async def calls_in_rounds(rng: random.Random, queue: aioqueue.FIFOQueue[int]) -> list[int]:
    """Tasks that begin at random rounds of the loop, and make one to three calls one after another;
    what the dequeues got, in the order in which they were called."""
    puts, calls = count(), count()
    got: dict[int, int] = {}

    async def put(n: int) -> None:
        for _ in range(n):
            await queue.enqueue(next(puts))

    async def take(n: int) -> None:
        for _ in range(n):
            call = next(calls)
            got[call] = await queue.dequeue()

    sizes = [rng.randint(1, 3) for _ in range(12)]
    workers = [(kind, n) for n in sizes for kind in (put, take)]
    rng.shuffle(workers)
    async with asyncio.TaskGroup() as group:
        for kind, n in workers:
            group.create_task(kind(n))
            for _ in range(rng.choice((0, 0, 0, 1, 2))):
                await asyncio.sleep(0)
    return [got[call] for call in range(len(got))]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_no_call_overtakes_an_earlier_one_within_a_round_of_the_loop(loop: str) -> None:
    """The first dequeue to be called gets the first element that was put, and so on, although many
    are called in one round. (There are fewer calls than a task may make without a pause.)"""
    factory = asyncio.new_event_loop
    if loop == "uvloop":
        factory = pytest.importorskip("uvloop").new_event_loop
    for seed in range(15):
        rng = random.Random(seed)
        queue: aioqueue.FIFOQueue[int] = aioqueue.FIFOQueue(rng.choice((1, 2, 4, None)))
        with asyncio.Runner(loop_factory=factory) as runner:
            got = runner.run(calls_in_rounds(rng, queue))
        assert got == list(range(len(got))), seed


class NotedMoves:
    """A machine that notes which attempts begin, after they have stood by or not, or try again."""

    def __init__(self, queue: Any) -> None:
        self._machine: Machine = queue._machine
        self.begun: list[Attempt] = []
        self.retried: list[Attempt] = []
        queue._machine = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)

    def begin(self, attempt: Attempt, waker: Any) -> Any:
        self.begun.append(attempt)
        return self._machine.begin(attempt, waker)

    def retry(self, attempt: Attempt, waited: float) -> bool:
        self.retried.append(attempt)
        return self._machine.retry(attempt, waited)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("capacity", [1, 3, 50])
def test_two_alternating_tasks_wake_no_other(capacity: int, loop: str) -> None:
    """A task that finds no room, or no row, lets the other one run and tries again."""
    factory = asyncio.new_event_loop
    if loop == "uvloop":
        factory = pytest.importorskip("uvloop").new_event_loop
    queue: aioqueue.FIFOQueue[int] = aioqueue.FIFOQueue(capacity)
    moves = NotedMoves(queue)

    async def main() -> list[int]:
        async def put() -> None:
            for element in range(100):
                await queue.enqueue(element)

        async with asyncio.TaskGroup() as group:
            group.create_task(put())
            return [await queue.dequeue() for _ in range(100)]

    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(main()) == list(range(100))
    assert moves.retried
    assert not moves.begun
    statistics = queue.statistics()
    assert statistics.enqueue_wait > 0
    assert statistics.dequeue_wait > 0
    assert waiting(queue) == 0


def test_a_task_whose_standby_failed_waits_at_once_for_a_while() -> None:
    """Then what it waits for takes longer than a round, and trying again would be of no use."""
    queue: aioqueue.FIFOQueue[int] = aioqueue.FIFOQueue(2)
    moves = NotedMoves(queue)

    async def main() -> None:
        for element in range(20):
            dequeue = asyncio.create_task(queue.dequeue())
            while not any(attempt.waits for attempt in core_of(queue).machine.waiting()):
                await asyncio.sleep(0)
            queue.sync.enqueue_nowait(element)
            assert await dequeue == element

    asyncio.run(main())
    assert len(moves.begun) == 20
    assert len(moves.retried) == 4  # the 1st, 3rd, 7th and 15th


def test_a_standby_task_of_a_closed_loop_blocks_no_caller() -> None:
    queue: aioqueue.FIFOQueue[int] = aioqueue.FIFOQueue(2)
    loop = asyncio.new_event_loop()
    task = loop.create_task(queue.dequeue())
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert waiting(queue) == 1
    assert not any(attempt.waits for attempt in core_of(queue).machine.waiting())
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it will never run again
    loop.close()
    queue.sync.enqueue(1)
    queue.sync.enqueue(2)
    assert [queue.sync.dequeue(timeout=PATIENCE), queue.sync.dequeue(timeout=PATIENCE)] == [1, 2]
    assert waiting(queue) == 0
    del task


@pytest.mark.parametrize("cancel", [False, True])
def test_a_close_finds_standby_tasks(cancel: bool) -> None:
    """It began before the close: it completes as room appears, or is cancelled with the others."""

    async def main() -> None:
        queue: aioqueue.FIFOQueue[int] = aioqueue.FIFOQueue(1)
        queue.enqueue_nowait(1)
        enqueue = asyncio.create_task(queue.enqueue(2))
        while not waiting(queue):
            await asyncio.sleep(0)
        assert not any(attempt.waits for attempt in core_of(queue).machine.waiting())
        queue.close(cancel_pending_enqueues=cancel)
        assert await queue.dequeue() == 1
        if cancel:
            with pytest.raises(QueueClosedError):
                await enqueue
        else:
            assert await queue.dequeue() == 2
            await enqueue
        with pytest.raises(OutOfRangeError):
            await queue.dequeue()

    asyncio.run(main())


@pytest.mark.parametrize("trio_may_come", [False, True])
def test_a_call_that_never_waits_lets_others_run_all_the_same(
    monkeypatch: pytest.MonkeyPatch, trio_may_come: bool
) -> None:
    monkeypatch.delitem(sys.modules, "trio", raising=False)
    if trio_may_come:
        monkeypatch.setitem(sys.modules, "trio", ModuleType("trio"))
    queue = aioqueue.FIFOQueue(None)

    async def main() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                while True:
                    await queue.enqueue(1)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                while True:
                    await queue.enqueue_many([1] * 50)
                    await queue.dequeue_up_to(25)

    asyncio.run(main())


def test_there_is_an_allowance_unless_trio_may_come(monkeypatch: pytest.MonkeyPatch) -> None:
    waker = ended_wakers()[0]
    assert waker.allowance() == 0
    monkeypatch.delitem(sys.modules, "trio")
    assert waker.allowance() == 128


def test_kicks_from_elsewhere_cost_one_crossing(monkeypatch: pytest.MonkeyPatch) -> None:
    crossings: list[Callable[[], object]] = []
    loop = asyncio.new_event_loop()
    monkeypatch.setattr(loop, "call_soon_threadsafe", crossings.append)
    waker = AsyncioWaker(loop)
    for _ in range(2):
        waker.wake()
        waker.wake()
        assert len(crossings) == 1
        crossings.pop()()
    loop.close()


def test_wakes_from_the_loops_own_thread_are_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    trio = pytest.importorskip("trio")

    async def main() -> None:
        waker: Any = current_waker()
        attempt = Take(1)
        waker.notify(attempt)
        waker.wake()
        with anyio.fail_after(PATIENCE):
            await waker.wait(attempt)  # which was told then and there

    async def in_trio() -> int:
        await main()
        size: int = trio.lowlevel.current_statistics().run_sync_soon_queue_size
        return size

    async def transfer() -> None:
        queue = aioqueue.FIFOQueue(1)
        taker = asyncio.create_task(queue.dequeue())
        while not queue.statistics().waiting_dequeues:
            await asyncio.sleep(0)
        await queue.enqueue(7)
        assert await taker == 7

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it crossed over to its own loop")

    loop = asyncio.new_event_loop()
    monkeypatch.setattr(loop, "call_soon_threadsafe", never)
    loop.run_until_complete(main())
    loop.run_until_complete(transfer())
    loop.close()
    assert trio.run(in_trio) == 0


def test_kicks_of_a_trio_run_from_elsewhere_cost_one_crossing() -> None:
    trio = pytest.importorskip("trio")

    async def main() -> int:
        waker = current_waker()
        for _ in range(3):
            waker.wake(from_anywhere=True)
        size: int = trio.lowlevel.current_statistics().run_sync_soon_queue_size
        return size

    assert trio.run(main) == 1


def test_trio_that_no_one_has_imported_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "trio", raising=False)
    assert loaded_trio() is None
    assert not in_event_loop()


@pytest.mark.parametrize("there", ["", "lowlevel", "Cancelled"])
def test_trio_that_is_half_imported_does_not_run(
    monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    trio = ModuleType("trio")
    if there:
        setattr(trio, there, object())
    monkeypatch.setitem(sys.modules, "trio", trio)
    assert loaded_trio() is None
    assert not in_event_loop()


# Giving way.


class HeldLock:
    """A lock that another thread holds until someone waits for it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_held, self._is_awaited = threading.Event(), threading.Event()
        threading.Thread(target=self._hold, daemon=True).start()
        assert self._is_held.wait(PATIENCE)

    def _hold(self) -> None:
        with self._lock:
            self._is_held.set()
            self._is_awaited.wait(PATIENCE)

    def acquire(self, blocking: bool = True, /) -> bool:
        if blocking:
            self._is_awaited.set()
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()

    def _is_owned(self) -> bool:
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return]

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@pytest.mark.parametrize("is_free_threaded", [False, True])
def test_nothing_waits_by_sleeping_on_an_event_loop(
    world: World, monkeypatch: pytest.MonkeyPatch, is_free_threaded: bool
) -> None:
    """Nor without a global lock; other threads yield to the lock holder."""
    slept: list[float] = []
    monkeypatch.setattr(base, "sleep", slept.append)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: not is_free_threaded, raising=False)

    async def body() -> None:
        queue = world.fifo(3)
        core_of(queue).machine.guard_with(HeldLock())
        queue.enqueue_nowait(1)
        core_of(queue).machine.guard_with(HeldLock())
        assert queue.dequeue_nowait() == 1

    world.run(body)
    assert bool(slept) == (isinstance(world, ThreadWorld) and not is_free_threaded)


def test_an_interrupted_wake_is_made_up_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the note that a wake is on its way and the wake, say."""
    loop = asyncio.new_event_loop()
    waker, wakes = AsyncioWaker(loop), []

    def call_soon_threadsafe(callback: Callable[[], object]) -> None:
        wakes.append(callback)
        if len(wakes) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "call_soon_threadsafe", call_soon_threadsafe)
    with pytest.raises(KeyboardInterrupt):
        waker.wake()
    assert not waker.wake()
    assert not waker.wake()
    assert len(wakes) == 2
    loop.close()


# Threads.


def test_the_thread_that_forks_is_the_main_one_in_the_child() -> None:
    base._note_main_thread()  # what the child of a fork does
    assert ThreadWaker().two_step
    others: list[bool] = []
    thread = threading.Thread(target=lambda: others.append(ThreadWaker().two_step))
    thread.start()
    thread.join()
    assert others == [False]
    assert not ThreadWaker().is_dead()


# Scopes.


def test_the_least_of_some_limits() -> None:
    assert seconds_left((), None) is None
    assert seconds_left((), 0.5) == 0.5
    assert seconds_left((), -1.0) == 0.0
    assert seconds_left((sync.CancelScope(), sync.CancelScope(0)), 0.5) == 0.0


def test_a_deadline_lies_ahead() -> None:
    before = perf_counter()
    deadline = sync.CancelScope(5).deadline
    assert deadline is not None
    assert before + 5 <= deadline <= perf_counter() + 5


def test_a_scopes_repr_counts_its_waiting_calls() -> None:
    scope = sync.CancelScope()
    name = "<aioqueue.sync.CancelScope, "
    assert repr(scope) == name + "0 calls waiting>"
    queue = sync.FIFOQueue(1)
    callers = [Caller(queue.dequeue, scope), Caller(queue.dequeue, scope)]
    spin_until(lambda: blocked(queue) == 2)
    spin_until(lambda: repr(scope) == name + "2 calls waiting>")
    queue.enqueue(1)
    spin_until(lambda: repr(scope) == name + "1 call waiting>")
    scope.cancel()
    assert repr(scope) == name + "cancelled>"
    outcomes = [caller.error() for caller in callers]
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["CancelledError", "NoneType"]


def test_scopes_can_be_left_in_any_order() -> None:
    first, second, third = (sync.CancelScope() for _ in range(3))
    for scope in (first, second, third):
        scope.__enter__()
    second.__exit__(None, None, None)
    assert current_scopes() == (first, third)
    first.__exit__(None, None, None)
    assert current_scopes() == (third,)
    third.__exit__(None, None, None)
    assert current_scopes() == ()


def test_a_scope_that_was_not_entered_here_can_be_left() -> None:
    """As a generator does that another thread closes."""
    scope = sync.CancelScope()
    scope.__exit__(None, None, None)
    with sync.CancelScope() as other:
        scope.__exit__(None, None, None)
        assert current_scopes() == (other,)


def test_a_cancelled_wait_counts_as_long_as_it_was() -> None:
    scope, queue = sync.CancelScope(), sync.FIFOQueue(1)
    began = perf_counter()
    caller = Caller(queue.dequeue, scope)
    spin_until(lambda: blocked(queue))
    scope.cancel()
    assert isinstance(caller.error(), CancelledError)
    assert 0 < queue.statistics().dequeue_wait <= perf_counter() - began


def test_a_scope_that_is_cancelled_in_the_middle_of_a_move_waits_for_its_end() -> None:
    scope, queue = sync.CancelScope(), sync.FIFOQueue(1)
    caller = Caller(queue.dequeue, scope)
    spin_until(lambda: "1 call waiting" in repr(scope))  # a little later than in the queue
    lock = threading.RLock()
    core_of(queue).machine.guard_with(lock)
    with lock:
        scope.cancel()
        assert blocked(queue) == 1
        deferred = [one for one in threading.enumerate() if one.name == "aioqueue-deferred-move"]
        assert deferred
        assert all(one.daemon for one in deferred)  # it holds up no interpreter that exits
    assert isinstance(caller.error(), CancelledError)


def test_a_thread_sleeps_until_its_time_is_over() -> None:
    """And does not look again and again whether it is."""
    waker = ThreadWaker()
    began = perf_counter()
    assert not waker.wait(0.02)
    assert perf_counter() - began >= 0.02
    waker.wake()
    waker.wake()
    assert waker.wait(3600)
    assert not waker.wait(-1.0)


# Gates.


def test_an_open_gate_does_not_block() -> None:
    gate = Gate()
    gate.open()
    assert gate.wait_blocking()
    gate.shut()
    assert not gate.is_open
    assert not gate.wait_blocking(0)


def test_passing_an_open_gate_counts_as_one_element() -> None:
    paused: list[int] = []

    class Waker:
        async def pause(self, n: int) -> None:
            paused.append(n)

    gate, waker = Gate(), Waker()
    gate.open()
    asyncio.run(gate.wait(cast(AsyncWaker, waker)))
    assert paused == [1]


def test_a_gate_s_timeout_counts_within_a_scope() -> None:
    gate = Gate()
    with sync.CancelScope():
        assert not gate.wait_blocking(0.001)
    with sync.CancelScope(PATIENCE):
        assert not gate.wait_blocking(0.001)


def at_gate(*scopes: sync.CancelScope) -> tuple[Gate, Caller]:
    """A gate and a caller that waits at it."""
    gate = Gate()
    caller = Caller(gate.wait_blocking, *scopes)
    spin_until(lambda: waiting_at(gate) == 1)
    return gate, caller


def test_a_gates_repr_counts_its_waiting_calls() -> None:
    gate, _ = at_gate()
    assert repr(gate) == "<aioqueue.worlds.scopes.Gate, 1 call waiting>"
    gate.open()
    assert repr(gate) == "<aioqueue.worlds.scopes.Gate, open>"
    gate.shut()
    assert repr(gate) == "<aioqueue.worlds.scopes.Gate, 0 calls waiting>"


def passages(gate: Gate) -> list[Attempt]:
    """The registered waits of a gate that were not removed."""
    return [one for one in gc.get_objects() if isinstance(one, Attempt) and one.host is gate]


def test_a_spuriously_woken_caller_keeps_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    wakers: list[ThreadWaker] = []
    sleeps: list[ThreadWaker] = []

    class Waker(ThreadWaker):
        def __init__(self) -> None:
            super().__init__()
            wakers.append(self)

        def wait(self, seconds: float | None) -> bool:
            sleeps.append(self)
            return super().wait(seconds)

    monkeypatch.setattr("aioqueue.worlds.scopes.ThreadWaker", Waker)
    gate, caller = at_gate()
    (waker,) = wakers
    for n in range(1, 21):
        spin_until(lambda n=n: len(sleeps) == n)  # type: ignore[misc]  # the last wake is used up
        waker.wake()
    spin_until(lambda: len(sleeps) == 21)
    gate.open()
    assert caller.outcome.result(PATIENCE) is True


@pytest.mark.parametrize(
    ("end", "error", "text"),
    [
        (sync.CancelScope.cancel, CancelledError, "the wait was cancelled by its CancelScope"),
        (None, DeadlineExceededError, "the deadline of the CancelScope has passed"),
    ],
)
def test_a_scope_ends_a_wait_at_a_gate(
    end: Callable[[sync.CancelScope], None] | None, error: type[Exception], text: str
) -> None:
    if end is None:
        scope = sync.CancelScope(0.001)
        gate = Gate()
        caller = Caller(gate.wait_blocking, scope)
    else:
        scope = sync.CancelScope()
        gate, caller = at_gate(scope)
        assert len(passages(gate)) == 1
        end(scope)
    outcome = caller.error()
    assert type(outcome) is error
    assert str(outcome) == text
    assert waiting_at(gate) == 0
    del outcome, caller
    gc.collect()
    assert not passages(gate), "the scope keeps what has waited in it"
