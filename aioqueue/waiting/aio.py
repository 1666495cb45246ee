"""Waiting in asyncio, on the stock event loop, uvloop or any other.

One waker per event loop. An attempt's waiter is a future; a wake sets the futures of the attempts
that it was notified of: directly when it comes from the loop's own thread, else through one
``call_soon_threadsafe`` for all of them.

asyncio can cancel a task between the moment its future is set and the moment the task runs, so
grant and commit are two steps here. Futures are set, and so tasks resume, in the order of the
notifications.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from aioqueue.attempts import Attempt
from aioqueue.locks import guarded
from aioqueue.waiting.caller import in_trio, running_loop
from aioqueue.waiting.waker import taken_out

__all__ = ("AsyncioWaker", "current_asyncio_waker")

_BUDGET: Final = 128
_WOKEN: Final = object()
_here = threading.local()


class AsyncioWaker:
    """Where the tasks of one event loop wait."""

    __slots__ = ("_is_scheduled", "_left", "_lock", "_loop", "_notified", "notify", "two_step")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.two_step = True
        self._left = _BUDGET  # elements until the next pause; used in the loop's thread only
        self._loop = loop
        self._notified: deque[Attempt] = deque()
        # Guards _is_scheduled; re-entrant, since a signal handler may call `wake` within it.
        self._lock = threading.RLock()
        self._is_scheduled = False
        self.notify: Callable[[Attempt], None] = self._notified.append

    def wake(self, *, from_anywhere: bool = False) -> Iterable[Attempt]:
        if running_loop() is self._loop:
            self._resume()
            if not from_anywhere:
                return ()  # else the loop may be asleep, and must be told by what comes now
        try:
            if not self._set_scheduled(True):
                self._loop.call_soon_threadsafe(self._resume_scheduled)
        except BaseException as error:
            # First of all, and without the lock: a signal handler may have run before the call. If
            # a wake is on its way all the same, the next one is superfluous.
            self._is_scheduled = False
            if isinstance(error, RuntimeError) and self._loop.is_closed():
                return taken_out(self._notified)
            raise
        return ()

    def is_dead(self) -> bool:
        return self._loop.is_closed()

    def is_current(self) -> bool:
        # A trio run may be the guest of an asyncio loop.
        return running_loop() is self._loop and not ("trio" in sys.modules and in_trio())

    def runner(self) -> Any:
        return asyncio.current_task(self._loop) or threading.current_thread()

    def wait(self, attempt: Attempt) -> Awaitable[None]:
        if attempt.waiter is _WOKEN:
            # Granted while it began. Those who were granted before it must run before it.
            return asyncio.sleep(0)
        future: asyncio.Future[None] = self._loop.create_future()
        if attempt.waiter is _WOKEN:  # by a signal handler, which has come in that call
            return asyncio.sleep(0)
        attempt.waiter = future
        return future

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Callable[[], object]:
        return self._loop.call_later(seconds, callback).cancel

    def allowance(self) -> int:
        # Where trio might call next, which must pause each time, each call has to ask.
        return 0 if "trio" in sys.modules else _BUDGET

    async def pause(self, n: int) -> None:
        self._left -= n
        if self._left <= 0:
            self._left = _BUDGET
            await asyncio.sleep(0)

    def _resume_scheduled(self) -> None:
        # The flag falls first: whatever it is notified of from now on is scheduled anew.
        self._set_scheduled(False)
        self._resume()

    @guarded
    def _set_scheduled(self, scheduled: bool) -> bool:
        """Note whether a wake is on its way; tell whether one was before."""
        before, self._is_scheduled = self._is_scheduled, scheduled
        return before

    def _resume(self) -> None:
        notified = self._notified
        while notified:
            attempt = notified.popleft()
            future, attempt.waiter = attempt.waiter, _WOKEN
            # There is none yet if it was granted while it began.
            if future is not None and future is not _WOKEN:
                try:  # not asked first: the handler of a signal may cancel it in between
                    future.set_result(None)
                except asyncio.InvalidStateError:
                    pass  # it was cancelled


def current_asyncio_waker() -> AsyncioWaker:
    """The waker of the running event loop.

    Raises:
        RuntimeError: no event loop is running in this thread.
    """
    loop = asyncio.get_running_loop()
    wakers: dict[asyncio.AbstractEventLoop, AsyncioWaker] = getattr(_here, "wakers", {})
    waker = wakers.get(loop)
    if waker is None:
        # One per loop, also where several take turns in a thread: queues keep the wakers they meet.
        wakers = {other: kept for other, kept in wakers.items() if not other.is_closed()}
        waker = wakers[loop] = AsyncioWaker(loop)
        _here.wakers = wakers
    return waker
