"""An asyncio event loop that makes one step on request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, cast

from proofs.scheduling import Scheduler

__all__ = ("SteppedLoop",)


class SteppedLoop:
    """Runs one callback at a time, in the order in which they were scheduled, as every loop does.

    It can do what tasks, futures and the waiting code ask of a loop, and nothing else.

    Args:
        scheduler: of the thread that `run` is called in; without one, only `step` is of use.
    """

    def __init__(self, scheduler: Scheduler | None = None) -> None:
        self._scheduler = scheduler
        if scheduler is not None:
            scheduler.at_end.append(self.put_away)
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[asyncio.TimerHandle] = []
        self._is_closed = False
        self._tasks: list[asyncio.Task[Any]] = []
        self.complaints: list[str] = []
        self._itself = cast(asyncio.AbstractEventLoop, self)

    @property
    def has_work(self) -> bool:
        return bool(self._ready) and not self._is_closed

    @property
    def has_timers(self) -> bool:
        return not self._is_closed and any(not timer.cancelled() for timer in self._timers)

    def step(self) -> None:
        """Run what is first in line."""
        handle = self._ready.popleft()
        if not handle.cancelled():
            with self.entered():
                handle._run()

    def let_time_pass(self) -> None:
        """Make all that is due, at whatever time, ready."""
        timers, self._timers = self._timers, []
        self._ready.extend(timer for timer in timers if not timer.cancelled())

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Be what runs in this loop, for a moment."""
        asyncio._set_running_loop(self._itself)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in a thread of the scheduler; what else is begun may not have ended."""
        assert self._scheduler is not None
        task = self.create_task(main)
        while not task.done():
            self._scheduler.wait(lambda: bool(self._ready))
            self.step()
            self._scheduler.point()
        return task.result()

    def close(self) -> None:
        self._is_closed = True

    def put_away(self) -> None:
        """End what its tasks were doing here and now, and not when they are collected.

        It is closed, too: a thread keeps the wakers of all its loops that are not.
        """
        self.close()
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine = task.get_coro()
                assert coroutine is not None
                coroutine.close()

    # What asyncio and the waiting code ask of a loop.

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        handle = asyncio.Handle(callback, args, self._itself, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Any:
        if self._scheduler is not None:
            self._scheduler.point()
        if self._is_closed:
            raise RuntimeError("Event loop is closed")
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(delay, callback, args, self._itself, context)
        self._timers.append(timer)
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._itself)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self._itself, **options)
        self._tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.complaints.append(str(context.get("message")))

    def time(self) -> float:
        return 0.0

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return self._is_closed

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self._itself

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Part of what `asyncio.TimerHandle.cancel` calls."""
