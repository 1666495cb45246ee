"""Waiting in asyncio, on the stock event loop, uvloop or any other.

One lane per event loop. An attempt's waiter is a future; a kick sets the futures of the attempts
that were posted: directly when it comes from the loop's own thread, else through one
``call_soon_threadsafe`` for all of them.

asyncio can cancel a task between the moment its future is set and the moment the task runs, so
grant and commit are two steps here. Futures are set, and so tasks resume, in the order of the
posts.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable

from aioqueue.attempts import Attempt

__all__ = ("AsyncioLane", "current_asyncio_lane")

_BUDGET = 128
_here = threading.local()


class AsyncioLane:
    """Where the tasks of one event loop wait."""

    __slots__ = ("_is_scheduled", "_lock", "_loop", "_posted", "budget", "post", "two_step")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.two_step = True
        self.budget = _BUDGET
        self._loop = loop
        self._posted: deque[Attempt] = deque()
        self._lock = threading.Lock()  # guards _is_scheduled
        self._is_scheduled = False
        self.post: Callable[[Attempt], None] = self._posted.append

    def kick(self) -> Iterable[Attempt]:
        if asyncio._get_running_loop() is self._loop:
            self._wake()
            return ()
        with self._lock:
            if self._is_scheduled:
                return ()
            self._is_scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._wake_scheduled)
        except RuntimeError:  # the loop is closed
            with self._lock:
                self._is_scheduled = False
            return self._abandon()
        return ()

    def is_dead(self) -> bool:
        return self._loop.is_closed()

    def is_current(self) -> bool:
        return asyncio._get_running_loop() is self._loop

    def arm(self, attempt: Attempt) -> None:
        attempt.waiter = self._loop.create_future()

    async def wait(self, attempt: Attempt) -> None:
        future: asyncio.Future[None] = attempt.waiter
        if future.done():
            # Granted while it began. Those who were granted before it must run before it.
            await asyncio.sleep(0)
        else:
            await future

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Callable[[], object]:
        return self._loop.call_later(seconds, callback).cancel

    async def checkpoint(self) -> None:
        await asyncio.sleep(0)

    def _wake_scheduled(self) -> None:
        # The flag falls first: whatever is posted from now on is scheduled anew.
        with self._lock:
            self._is_scheduled = False
        self._wake()

    def _wake(self) -> None:
        posted = self._posted
        while posted:
            future: asyncio.Future[None] = posted.popleft().waiter
            if not future.done():  # it is when its task was cancelled
                future.set_result(None)

    def _abandon(self) -> Iterable[Attempt]:
        abandoned = list(self._posted)
        self._posted.clear()
        return abandoned


def current_asyncio_lane() -> AsyncioLane:
    """The lane of the running event loop.

    Raises:
        RuntimeError: no event loop is running in this thread.
    """
    loop = asyncio.get_running_loop()
    lane: AsyncioLane | None = getattr(_here, "lane", None)
    if lane is None or lane._loop is not loop:
        lane = _here.lane = AsyncioLane(loop)
    return lane
