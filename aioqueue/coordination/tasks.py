"""The tasks that a block runs beside its body, and how its end waits for them.

The cancellation of one of them, by whoever it is, is its own affair: neither the others nor the
block feel it. And there is no task of our own among them that anybody could cancel.
"""

from __future__ import annotations

import asyncio
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import anyio

from aioqueue.coordination.loops import soon
from aioqueue.coordination.outcomes import is_cancellation, running_task
from aioqueue.coordination.workers import OwnTask
from aioqueue.waiting import Gate, current_waker

__all__ = ("Tasks", "ask_again", "cancellations", "new_tasks", "outlast")

Body = Callable[[], Awaitable[object]]
Report = Callable[[BaseException], object]


def ask_again() -> None:
    """Ask the running task to end once more, if it was asked and something else is raised instead.

    As `asyncio.TaskGroup` does: a failure goes first, and the cancellation comes at the next await.
    Before Python 3.13 that would outlive its `asyncio.timeout`, and it is left at being asked. The
    same if a scope around the task was cancelled: that asks again by itself, for as long as it
    lasts, and would not know what we ask for as its own.
    """
    task = running_task()
    if sys.version_info >= (3, 13) and isinstance(task, asyncio.Task) and task.cancelling():
        if anyio.current_effective_deadline() == -math.inf:
            return
        task.uncancel()
        task.cancel()


def cancellations() -> int:
    """How often the running task has been asked to end by `asyncio.Task.cancel`; 0 in trio."""
    task = running_task()
    return task.cancelling() if isinstance(task, asyncio.Task) else 0


async def outlast(
    gate: Gate, seconds: float | None = None, cancelled: Callable[[], object] = lambda: None
) -> None:
    """Wait until a gate is open, whoever is cancelled meanwhile.

    A scope of anyio or trio is kept out by a shield. `asyncio.Task.cancel` is not, and each call of
    it interrupts one wait, which then begins anew. Whether there was one is told by `cancellations`
    before and after; to raise it again is up to the caller.

    Args:
        gate: what to wait for.
        seconds: the most to wait; ``None`` for no limit.
        cancelled: called back when a wait was interrupted.
    """
    deadline = None if seconds is None else monotonic() + seconds
    while not gate.is_open:
        left = None if deadline is None else deadline - monotonic()
        if left is not None and left <= 0:
            return
        try:
            with anyio.move_on_after(left, shield=True):
                await gate.wait(current_waker())
        except asyncio.CancelledError:
            cancelled()


class Tasks(ABC):
    """Tasks beside the one that has made this, of one event loop. Made by `new_tasks`."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._soon = soon()
        self._scopes: dict[anyio.CancelScope, None] = {}

    @abstractmethod
    async def begin(self) -> None:
        """Get ready to start some. Waits for nothing."""

    @abstractmethod
    def start(
        self, name: str, body: Body, lost: Callable[[], object]
    ) -> tuple[OwnTask, anyio.CancelScope]:
        """Start a task.

        Args:
            name: of the task.
            body: what it runs, which reports its failures by itself.
            lost: called instead of the body if the task is cancelled before it has begun.

        Returns:
            The task, and the scope that it runs in.
        """

    def cancel(self) -> None:
        """Cancel all that are there, in their own thread."""
        for scope in list(self._scopes):
            scope.cancel()

    def soon(self, call: Callable[[], object]) -> None:
        """Have a call made in their thread; from any other."""
        self._soon(call)

    @abstractmethod
    async def end(self) -> BaseException | None:
        """Cancel those that are left, and wait until all have ended, whoever is cancelled.

        Returns:
            The cancellation that goes on from here, if a scope around the caller was cancelled.
        """

    def _own(self, name: str) -> tuple[OwnTask, anyio.CancelScope]:
        scope = anyio.CancelScope()
        self._scopes[scope] = None
        return OwnTask(name, lambda: self._soon(scope.cancel)), scope

    async def _run(self, task: OwnTask, scope: anyio.CancelScope, body: Body) -> None:
        task.task = running_task()
        try:
            with scope:
                await body()
        except BaseException as error:
            if is_cancellation(error) or isinstance(error, GeneratorExit):
                raise
            self._report(error)
        finally:
            self._ended(task, scope)

    def _ended(self, task: OwnTask, scope: anyio.CancelScope) -> None:
        self._scopes.pop(scope, None)
        task.ended()


class _AsyncioTasks(Tasks):
    """Tasks of asyncio. They are in no task group, which would take the end of one for its own."""

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self._tasks: set[asyncio.Task[None]] = set()
        self._all_ended: Gate | None = None

    async def begin(self) -> None:
        """There is nothing to be done."""

    def start(
        self, name: str, body: Body, lost: Callable[[], object]
    ) -> tuple[OwnTask, anyio.CancelScope]:
        own, scope = self._own(name)
        task = asyncio.get_running_loop().create_task(self._run(own, scope, body), name=name)
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if own.task is None:  # cancelled before its first step: nothing of it has run
                lost()
                self._ended(own, scope)
            if not self._tasks and self._all_ended is not None:
                self._all_ended.open()

        task.add_done_callback(done)
        return own, scope

    async def end(self) -> BaseException | None:
        self.cancel()
        self._all_ended = Gate()
        if self._tasks:
            await outlast(self._all_ended)
        return None


class _TrioTasks(Tasks):
    """Tasks of trio, where no task can be cancelled but by a scope."""

    _group: Any

    async def begin(self) -> None:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()

    def start(
        self, name: str, body: Body, lost: Callable[[], object]
    ) -> tuple[OwnTask, anyio.CancelScope]:
        own, scope = self._own(name)
        self._group.start_soon(self._run, own, scope, body, name=name)
        return own, scope

    async def end(self) -> BaseException | None:
        self.cancel()
        try:
            await self._group.__aexit__(None, None, None)
        except BaseException as error:
            return error
        return None


def new_tasks(report: Report) -> Tasks:
    """Tasks of the event loop that is running.

    Args:
        report: told of what a body has raised that was no cancellation.
    """
    if asyncio._get_running_loop() is not None:
        return _AsyncioTasks(report)
    return _TrioTasks(report)
