"""Waiting in asyncio, on the standard event loop, uvloop or any other.

There is one waker per event loop. An attempt's waiter is a future. A wake sets the futures of the
notified attempts: directly if it comes from the loop's own thread, otherwise through one
``call_soon_threadsafe`` for all of them.

asyncio can cancel a task after its future was set and before the task runs, so grant and commit are
two steps here. Futures are set in the order of the notifications, and tasks resume in that order.

**The pause.** A call whose turn it is to let other tasks run does so *after* its move; otherwise
later calls would overtake it. Meanwhile the task may be cancelled. What a dequeue holds goes back.
But an enqueue has happened, and another task may have taken the element already. So the
cancellation is *deferred* to the task's next await (`AsyncioWaker.yield_shielded`). A callback
repeats the request in the next round of the loop. That is before the task can run on from its next
await, and after it has left the scopes that it leaves without one: an `asyncio.timeout` whose block
ends just then has taken its request back, and nothing is repeated. If the next await is another
call of ours, that call lets the loop run first, and so is cancelled before it moves anything
(`AsyncioWaker.await_first`).
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from asyncio import current_task
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, Final

import anyio

from aioqueue.core.attempts import PENDING, Attempt
from aioqueue.system.locks import synchronized
from aioqueue.worlds.waker import drain_notified, in_trio, running_loop

BUDGET: Final = 128
"""How many elements the tasks of a loop may move without waiting before one must let others run."""

_WOKEN: Final = object()
_thread_local = threading.local()


class _NextRound:
    """What `asyncio.sleep` of no time awaits, without its coroutines."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


_NEXT_ROUND: Final = _NextRound()


class AsyncioWaker:
    """The waker of one event loop's tasks."""

    __slots__ = (
        "_budget_left",
        "_deferred",
        "_is_scheduled",
        "_lock",
        "_loop",
        "_notified",
        "next_round",
        "notify",
        "two_step",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.two_step: bool = True
        self.next_round: Awaitable[None] | None = _NEXT_ROUND
        # Elements until the next pause, or no more than 0 while a task pauses. Only the loop's
        # thread uses it.
        self._budget_left = BUDGET
        # The task whose cancellation was deferred in this round of the loop. One is enough: another
        # task runs only after this one has begun to wait, and so need not be asked again.
        self._deferred: asyncio.Task[Any] | None = None
        self._loop = loop
        self._notified: deque[Attempt] = deque()
        # Guards _is_scheduled. Re-entrant, because a signal handler may call `wake` inside it.
        self._lock = threading.RLock()
        self._is_scheduled = False
        self.notify: Callable[[Attempt], None] = self._notified.append

    def wake(self, from_anywhere: bool = False) -> Iterable[Attempt]:
        if running_loop() is self._loop:
            self._resume()
            if not from_anywhere:
                return ()  # else the loop may be asleep, and only the call below wakes it
        try:
            if not self._set_scheduled(True):
                self._loop.call_soon_threadsafe(self._resume_scheduled)
        except BaseException as error:
            # Clear the flag first of all, without the lock. A signal handler may have raised before
            # the call was made; with the flag set, no wake would ever be scheduled again. If the
            # call was made, the next one is merely superfluous.
            self._is_scheduled = False
            if isinstance(error, RuntimeError) and self._loop.is_closed():
                return drain_notified(self._notified)
            raise
        return ()

    def is_dead(self) -> bool:
        return self._loop.is_closed()

    def is_current(self) -> bool:
        # A trio run may be a guest of an asyncio loop.
        return running_loop() is self._loop and not ("trio" in sys.modules and in_trio())

    def runner(self) -> Any:
        return current_task(self._loop) or threading.current_thread()

    def wait(self, attempt: Attempt) -> Awaitable[None]:
        if attempt.waiter is _WOKEN:
            # Granted while it began. Tasks that were granted before must run before it.
            return asyncio.sleep(0)
        future: asyncio.Future[None] = self._loop.create_future()
        if attempt.waiter is _WOKEN:  # a signal handler in that call has woken it
            return asyncio.sleep(0)
        attempt.waiter = future
        return future

    async def wait_shielded(self, attempt: Attempt) -> None:
        late: asyncio.CancelledError | None = None
        with anyio.CancelScope(shield=True):  # else a cancelled scope would ask in every round
            while attempt.state is PENDING:
                try:
                    await self.wait(attempt)
                except asyncio.CancelledError as error:
                    late = error
        if late is not None:
            raise late

    def cancellations(self) -> int:
        task = current_task(self._loop)
        return 0 if task is None else task.cancelling() - getattr(task, "_must_cancel", False)

    def defer(self, error: BaseException, asked: int) -> bool:
        task = current_task(self._loop)
        if not isinstance(error, asyncio.CancelledError):
            return False
        if task is None or task.cancelling() <= asked:
            return False  # the runner of the coroutine has thrown it in: nobody could repeat it
        self._defer(task, asked, error)
        return True

    def has_woken(self, attempt: Attempt) -> bool:
        return attempt.waiter is _WOKEN

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Callable[[], object]:
        return self._loop.call_later(seconds, callback).cancel

    def allowance(self) -> int:
        # If trio may use the same face next, where each call must pause, every call has to ask. So
        # it has while a task pauses: the calls behind it pause, too, and return in their order.
        return 0 if self._budget_left <= 0 or "trio" in sys.modules else BUDGET

    def renew_budget(self) -> int:
        self._budget_left = BUDGET
        return 0 if "trio" in sys.modules else BUDGET

    def spend(self, n: int) -> bool:
        self._budget_left -= n
        return self._budget_left <= 0 or self._deferred is not None

    def await_first(self) -> Awaitable[None] | None:
        deferred = self._deferred
        if deferred is None or deferred is not current_task(self._loop):
            return None
        return self.yield_cancellable()

    async def pause(self, n: int) -> None:
        if self.spend(n):
            try:
                await _NEXT_ROUND
            finally:
                self._budget_left = BUDGET

    async def yield_cancellable(self) -> None:
        await _NEXT_ROUND

    async def yield_shielded(self) -> None:
        task = current_task(self._loop)
        # An earlier cancellation does not count for this call, unless it is still to be delivered.
        asked = 0 if task is None else task.cancelling() - getattr(task, "_must_cancel", False)
        try:
            await _NEXT_ROUND
        except asyncio.CancelledError as error:
            if task is None or task.cancelling() <= asked:
                raise  # the runner of the coroutine has thrown it in: nobody could repeat it
            self._defer(task, asked, error)

    def _defer(self, task: asyncio.Task[Any], asked: int, error: asyncio.CancelledError) -> None:
        """Have a cancellation delivered at the next await of the running task.

        Args:
            task: the running task.
            asked: how often it had been cancelled when the pause began.
            error: what was delivered in the pause.
        """
        self._deferred = task
        # A cancelled anyio scope repeats its request by itself, unless the task has entered a
        # shield. Such a request always has a message; a second one beside it is the program's own.
        is_by_scope = (
            anyio.current_effective_deadline() == -math.inf
            and bool(error.args)
            and task.cancelling() <= asked + 1
        )
        self._loop.call_soon(self._repeat, task, None if is_by_scope else asked, error.args)

    def _repeat(self, task: asyncio.Task[Any], asked: int | None, args: tuple[Any, ...]) -> None:
        if self._deferred is task:
            self._deferred = None
        # Fewer requests are left than were made if the scope that made one has taken it back.
        if asked is not None and not task.done() and task.cancelling() > asked:
            task.uncancel()  # it was counted already
            task.cancel(*args)

    def _resume_scheduled(self) -> None:
        # Clear the flag first: whatever the waker is notified of from now on needs a new wake.
        self._set_scheduled(False)
        self._resume()

    @synchronized
    def _set_scheduled(self, scheduled: bool) -> bool:
        """Set whether a wake is scheduled; return whether one was before."""
        before, self._is_scheduled = self._is_scheduled, scheduled
        return before

    def _resume(self) -> None:
        notified = self._notified
        while notified:
            attempt = notified.popleft()
            future, attempt.waiter = attempt.waiter, _WOKEN
            # There is no future yet if the attempt was granted while it began.
            if future is not None and future is not _WOKEN:
                try:  # a check first would not do: a signal handler may cancel it in between
                    future.set_result(None)
                except asyncio.InvalidStateError:
                    pass  # it was cancelled


def is_deferred(task: asyncio.Task[Any]) -> bool:
    """Return whether a cancellation of the running task was deferred to its next await.

    It came in the pause of a call that had already taken effect (`AsyncioWaker.yield_shielded`).
    """
    wakers: dict[Any, AsyncioWaker] = getattr(_thread_local, "wakers", {})
    waker = wakers.get(running_loop())
    return waker is not None and waker._deferred is task


def current_asyncio_waker() -> AsyncioWaker:
    """Return the waker of the running event loop.

    Raises:
        RuntimeError: no event loop is running in this thread.
    """
    loop = asyncio.get_running_loop()
    wakers: dict[asyncio.AbstractEventLoop, AsyncioWaker] = getattr(_thread_local, "wakers", {})
    waker = wakers.get(loop)
    if waker is None:
        # One per loop, even if several loops alternate in a thread: queues keep their wakers.
        wakers = {other: kept for other, kept in wakers.items() if not other.is_closed()}
        waker = wakers[loop] = AsyncioWaker(loop)
        _thread_local.wakers = wakers
    return waker
