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
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from aioqueue.attempts import Attempt
from aioqueue.locks import guarded

__all__ = ("AsyncioLane", "current_asyncio_lane")

_BUDGET: Final = 128
_WOKEN: Final = object()
_here = threading.local()


class AsyncioLane:
    """Where the tasks of one event loop wait."""

    __slots__ = ("_is_scheduled", "_left", "_lock", "_loop", "_posted", "post", "two_step")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.two_step = True
        self._left = _BUDGET  # elements until the next pause; used in the loop's thread only
        self._loop = loop
        self._posted: deque[Attempt] = deque()
        # Guards _is_scheduled; re-entrant, since a signal handler may kick in the middle of a kick.
        self._lock = threading.RLock()
        self._is_scheduled = False
        self.post: Callable[[Attempt], None] = self._posted.append

    def kick(self, *, from_anywhere: bool = False) -> Iterable[Attempt]:
        if asyncio._get_running_loop() is self._loop:
            self._wake()
            if not from_anywhere:
                return ()  # else the loop may be asleep, and must be told by what comes now
        try:
            if not self._set_scheduled(True):
                self._loop.call_soon_threadsafe(self._wake_scheduled)
        except BaseException as error:
            # First of all, and without the lock: a handler may have struck before the call. Should
            # a wake be on its way all the same, the next one comes for nothing.
            self._is_scheduled = False
            if isinstance(error, RuntimeError) and self._loop.is_closed():
                return self._abandon()
            raise
        return ()

    def is_dead(self) -> bool:
        return self._loop.is_closed()

    def is_current(self) -> bool:
        return asyncio._get_running_loop() is self._loop

    def wait(self, attempt: Attempt) -> Awaitable[None]:
        if attempt.waiter is _WOKEN:
            # Granted while it began. Those who were granted before it must run before it.
            return asyncio.sleep(0)
        future: asyncio.Future[None] = self._loop.create_future()
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

    def _wake_scheduled(self) -> None:
        # The flag falls first: whatever is posted from now on is scheduled anew.
        self._set_scheduled(False)
        self._wake()

    @guarded
    def _set_scheduled(self, scheduled: bool) -> bool:
        """Note whether a wake is on its way; tell whether one was before."""
        before, self._is_scheduled = self._is_scheduled, scheduled
        return before

    def _wake(self) -> None:
        posted = self._posted
        while posted:
            attempt = posted.popleft()
            future, attempt.waiter = attempt.waiter, _WOKEN
            # There is none yet if it was granted while it began; it is done if it was cancelled.
            if future is not None and future is not _WOKEN and not future.done():
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
    lanes: dict[asyncio.AbstractEventLoop, AsyncioLane] = getattr(_here, "lanes", {})
    lane = lanes.get(loop)
    if lane is None:
        # One per loop, also where several take turns in a thread: queues keep every lane they meet.
        lanes = {other: kept for other, kept in lanes.items() if not other.is_closed()}
        lane = lanes[loop] = AsyncioLane(loop)
        _here.lanes = lanes
    return lane
