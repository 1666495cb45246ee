"""Where programs are played: a real queue, callers in loops and threads, time that stands still.

Nothing here is left to chance. The event loops run only on request, one turn after
another, until nobody has anything to do. A thread that waits sleeps in a `SleepingWaker`, so the
stage knows when all of them are asleep. Seconds pass only in `Clock.advance`. So a caller that
sleeps although it was its turn is seen at once, and no test has to wait for a timeout to find that
out.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

from aioqueue.errors import DeadlineExceededError, OutOfRangeError, QueueClosedError
from aioqueue.queues import blocking
from aioqueue.worlds.asyncio import AsyncioWaker
from proofs.model import Call, Outcome
from tests.kit.worlds import PATIENCE, UvloopWorld

__all__ = ("LANES", "Clock", "SleepingWaker", "Stage", "outcome_of")

T = TypeVar("T")
SILENT_TURNS = 5
"""Turns of every loop in which nothing happens, after which nothing will: a wake takes at most
three (the loop is told, it sets the future, the task runs)."""

_HAS_UVLOOP = not UvloopWorld.missing()
LANES = {
    "asyncio": ("loop",),
    "uvloop": ("loop",),
    "threads": ("thread",),
    "mixed": ("loop A", "loop B", "thread"),
}
"""The wakers of callers, by the name of the stage."""


class Clock:
    """Time that passes on request, and the threads that sleep by it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._changed = threading.Condition()
        self._awake = 0
        self._sleepers: list[SleepingWaker] = []
        self._timers: list[tuple[float, Callable[[], object]]] = []

    def __call__(self) -> float:
        return self.now

    def thread_starts(self) -> None:
        with self._changed:
            self._awake += 1

    def thread_ends(self) -> None:
        with self._changed:
            self._awake -= 1
            self._changed.notify_all()

    def all_sleep(self) -> None:
        """Wait until no thread is awake."""
        with self._changed:
            quiet = self._changed.wait_for(lambda: self._awake == 0, PATIENCE)
        assert quiet, "a thread neither waits nor ends"

    def advance(self, seconds: float) -> None:
        """Let time pass: wake the threads whose limit is reached, make the calls that are due."""
        with self._changed:
            self.now += seconds
            for waker in list(self._sleepers):
                if waker.deadline <= self.now:
                    self._wake(waker)
        due = [timer for timer in self._timers if timer[0] <= self.now]
        self._timers = [timer for timer in self._timers if timer[0] > self.now]
        for _, callback in due:
            callback()

    def call_at(self, when: float, callback: Callable[[], object]) -> Callable[[], object]:
        timer = (when, callback)
        self._timers.append(timer)

        def cancel() -> None:
            if timer in self._timers:
                self._timers.remove(timer)

        return cancel

    def wake(self, waker: SleepingWaker) -> None:
        with self._changed:
            waker.is_woken = True
            self._wake(waker)

    def sleep(self, waker: SleepingWaker, seconds: float | None) -> bool:
        """Sleep until woken, or until time has passed; tell whether it was a wake."""
        with self._changed:
            waker.deadline = float("inf") if seconds is None else self.now + seconds
            if not waker.is_woken and waker.deadline > self.now:
                self._sleepers.append(waker)
                self._awake -= 1
                self._changed.notify_all()
                while waker in self._sleepers:
                    self._changed.wait()
            woken, waker.is_woken = waker.is_woken, False
            return woken

    def _wake(self, waker: SleepingWaker) -> None:
        if waker in self._sleepers:
            self._sleepers.remove(waker)
            self._awake += 1
            self._changed.notify_all()


class SleepingWaker:
    """Where one thread waits, by the stage's clock. Stands in for `ThreadWaker`."""

    two_step = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.is_woken = False
        self.deadline = float("inf")

    def notify(self, attempt: Any, /) -> None:
        """There is only one."""

    def wake(self, *, from_anywhere: bool = False) -> tuple[()]:
        self._clock.wake(self)
        return ()

    def is_dead(self) -> bool:
        return False

    def wait(self, seconds: float | None) -> bool:
        return self._clock.sleep(self, seconds)


class _Loop:
    """An event loop that runs on request: in this thread, or in one of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, own_thread: bool) -> None:
        self.loop = loop
        self.tasks: dict[int, asyncio.Task[Any]] = {}
        self._own = ThreadPoolExecutor(1) if own_thread else None

    def here(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call something in the loop's thread, as if by a callback, without letting tasks run."""
        if self._own is not None:
            return self._own.submit(self._inside, function, *arguments).result(PATIENCE)
        return self._inside(function, *arguments)

    def spawn(self, call: Call, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.tasks[call.number] = self.here(self._spawn, coroutine)
        return task

    def cancel(self, call: Call) -> None:
        self.here(self.tasks[call.number].cancel)

    def turn(self) -> None:
        """Let every task run that can run now."""
        if self._own is not None:
            self._own.submit(self._turn).result(PATIENCE)
        else:
            self._turn()

    def close(self) -> None:
        if self._own is not None:
            self._own.shutdown()
        self.loop.close()

    def _turn(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))

    def _inside(self, function: Callable[..., T], *arguments: Any) -> T:
        asyncio._set_running_loop(self.loop)
        try:
            return function(*arguments)
        finally:
            asyncio._set_running_loop(None)

    def _spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.loop.create_task(coroutine)


class _Timer(NamedTuple):
    """What a loop gives for a call to come, as far as it is used."""

    cancel: Callable[[], object]


class Stage:
    """Wakers of callers.

    Args:
        name: a key of `LANES`.
        in_turn: whether each call of a task lets others run, as otherwise each 128th does.
    """

    def __init__(self, name: str, *, in_turn: bool = False) -> None:
        self.name = name
        self.clock = Clock()
        self.outcomes: dict[int, Outcome] = {}
        self._exits = ExitStack()
        self._loops: dict[str, _Loop] = {}
        self._threads: list[threading.Thread] = []
        self._exits.enter_context(patch.object(blocking, "perf_counter", self.clock))
        self._exits.enter_context(
            patch.object(blocking, "ThreadWaker", lambda: SleepingWaker(self.clock))
        )
        for method, reported in (
            {"spend": True, "allowance": 0, "renew_budget": 0}.items() if in_turn else ()
        ):
            always = patch.object(AsyncioWaker, method, lambda *_, reported=reported: reported)
            self._exits.enter_context(always)
        for waker in LANES[name]:
            if waker.startswith("loop"):
                use_uvloop = _HAS_UVLOOP and (name == "uvloop" or waker.endswith("B"))
                new = UvloopWorld.new_loop if use_uvloop else asyncio.new_event_loop
                loop: Any = new()
                loop.call_later = self._call_later(loop)
                self._loops[waker] = _Loop(loop, own_thread=name == "mixed")

    def begin(self, call: Call, make: Callable[[], Any]) -> None:
        """Start a call; ``make`` makes the coroutine, or in a thread the whole call."""
        if call.waker in self._loops:
            loop = self._loops[call.waker]
            task = loop.spawn(call, self._observed(call, make))
            # One that is cancelled before it has begun never comes to note that itself.
            loop.here(
                task.add_done_callback,
                lambda _: self.outcomes.setdefault(call.number, ("cancelled", 0)),
            )
            return

        def run() -> None:
            try:
                self.outcomes[call.number] = outcome_of(make, call)
            finally:
                self.clock.thread_ends()

        self.clock.thread_starts()
        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def cancel(self, call: Call) -> None:
        """Cancel a call that is a task, without letting it run yet."""
        self._loops[call.waker].cancel(call)

    def schedule_cancel(self, call: Call) -> None:
        """Cancel a call that is a task, and has just been started, right after its first step."""
        loop = self._loops[call.waker]
        loop.here(loop.loop.call_soon, loop.tasks[call.number].cancel)

    def here(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call something that does not wait: in the loop if there is just one, else beside them."""
        if len(self._loops) == 1:
            (loop,) = self._loops.values()
            return loop.here(function, *arguments)
        return function(*arguments)

    def settle(self, activity: Callable[[], Any]) -> None:
        """Let everybody run until nobody has anything to do."""
        silent, before = 0, None
        while silent < SILENT_TURNS:
            self.clock.all_sleep()
            for loop in self._loops.values():
                loop.turn()
                self.clock.all_sleep()
            now = (len(self.outcomes), activity())
            silent = silent + 1 if now == before else 0
            before = now
            if not self._loops:
                break

    def end(self) -> None:
        """Put everything away; all calls should have ended."""
        for loop in self._loops.values():
            for task in loop.tasks.values():
                if not task.done():
                    loop.here(task.cancel)
            loop.turn()
            loop.turn()
            loop.close()
        self._exits.close()
        for thread in self._threads:
            thread.join(0.1)

    async def _observed(self, call: Call, make: Callable[[], Any]) -> None:
        try:
            result = await make()
        except BaseException as error:
            self.outcomes[call.number] = _failure(call, error)
        else:
            self.outcomes[call.number] = ("returned", result)

    def _call_later(self, loop: asyncio.AbstractEventLoop) -> Any:
        """The loop's own, by our clock."""
        clock = self.clock

        def call_later(seconds: float, callback: Callable[[], object]) -> _Timer:
            at = clock.now + seconds
            return _Timer(clock.call_at(at, lambda: loop.call_soon_threadsafe(callback)))

        return call_later


def outcome_of(make: Callable[[], Any], call: Call | None = None) -> Outcome:
    """What a call that blocks, or cannot wait, comes to."""
    try:
        return ("returned", make())
    except Exception as error:
        return _failure(call, error)


def _failure(call: Call | None, error: BaseException) -> Outcome:
    cause = None if error.__cause__ is None else str(error.__cause__)
    if isinstance(error, StopIteration | StopAsyncIteration):
        return ("stopped",)
    if isinstance(error, OutOfRangeError):
        return ("out of range", error.requested, error.remaining, cause)
    if isinstance(error, QueueClosedError):
        return ("closed", error.enqueued, cause)
    if isinstance(error, DeadlineExceededError):
        return ("timed out", error.enqueued)
    if isinstance(error, asyncio.CancelledError):
        return ("cancelled", getattr(error, "enqueued", 0))
    return ("raised", repr(error))
