"""A pipeline that is being gone through: its coordinator, and whoever takes what it makes.

In threads that is a coordinator of threads. For tasks it is an async coordinator in a task of its
own, in the same event loop: so leaving an ``async for``, which tells nobody, leaves no scope behind
that was entered in the user's task.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine
from typing import Any, Final

import anyio

import aioqueue
from aioqueue import OutOfRangeError, sync
from aioqueue.inputs.pipeline.building import Builder
from aioqueue.inputs.pipeline.flow import Node, Span, Taken, drive, drive_async
from aioqueue.inputs.sources.pipeline import Pipeline
from aioqueue.waiting.running import in_trio, loaded_trio

__all__ = ("AsyncRun", "ThreadRun")

_log: Final = logging.getLogger("aioqueue")

_GRACE: Final = 5.0
"""Seconds that workers have to end when a loop was left, before the log names those that do not."""


class ThreadRun:
    """A run for threads.

    Args:
        pipeline: what is run.
        span: the epochs.
    """

    def __init__(self, pipeline: Pipeline[Any], span: Span) -> None:
        self._coord = sync.Coordinator()
        self._has_ended = False
        try:
            builder = Builder(pipeline, span, self._coord.start, is_async=False)
            self._node: Node = builder.build()
        except BaseException:
            self._coord.request_stop()
            self._coord.join()
            raise

    def take(self) -> Taken:
        """The next row, in a list; or the end of the epoch.

        Raises:
            ExceptionGroup: what has failed, as the coordinator reports it.
        """
        try:
            return drive(self._node.take(1))
        except Exception as error:
            raise self._failure(error) from None

    def skip_to(self, epoch: int) -> None:
        """Nobody wants the epochs before this one any more."""
        self._node.skip_to(epoch)

    def close(self) -> None:
        """Stop and join all workers.

        Raises:
            ExceptionGroup: what has failed.
        """
        if not self._has_ended:
            self._has_ended = True
            self._coord.request_stop()
            self._coord.join()

    def abandon(self) -> None:
        """Stop and join all workers; the log tells what has failed."""
        if self._has_ended or sys.is_finalizing():
            return
        self._has_ended = True
        self._coord.request_stop()
        try:
            self._coord.join(stop_grace_period=_GRACE)
        except Exception as failure:
            _log.error("a pipeline that was left has failed", exc_info=failure)

    def _failure(self, error: Exception) -> BaseException:
        """What to raise instead of what a node has raised."""
        self._has_ended = True
        # That a queue was closed is no failure of its own: why it was, the coordinator knows.
        self._coord.request_stop(None if isinstance(error, OutOfRangeError) else error)
        try:
            self._coord.join()
        except Exception as failure:
            return failure
        return RuntimeError("the pipeline was stopped from outside before its end")


class AsyncRun:
    """A run for the tasks of one event loop.

    Args:
        pipeline: what is run.
        span: the epochs.
    """

    def __init__(self, pipeline: Pipeline[Any], span: Span) -> None:
        self._pipeline = pipeline
        self._span = span
        self._coord = aioqueue.Coordinator()
        self._node: Node | None = None
        self._failure: BaseException | None = None
        self._has_begun = anyio.Event()
        self._has_ended = anyio.Event()
        self._is_closed = False
        self._is_abandoned = False
        _spawn(self._host())

    async def take(self) -> Taken:
        """The next row, in a list; or the end of the epoch.

        Raises:
            ExceptionGroup: what has failed, as the coordinator reports it.

        Cancellation:
            A cancelled call has lost nothing.
        """
        await self._has_begun.wait()
        if self._node is None:
            raise await self._reported(None)
        try:
            return await drive_async(self._node.take(1))
        except Exception as error:
            raise await self._reported(error) from None

    def skip_to(self, epoch: int) -> None:
        """Nobody wants the epochs before this one any more."""
        if self._node is not None:
            self._node.skip_to(epoch)

    async def aclose(self) -> None:
        """Stop and join all workers.

        Raises:
            ExceptionGroup: what has failed.

        Cancellation:
            A cancelled call has asked for the stop; it is not waited for.
        """
        if not self._is_closed:
            self._is_closed = True
            self._coord.request_stop()
            await self._has_ended.wait()
            if self._failure is not None:
                raise self._failure

    def abandon(self) -> None:
        """Ask all workers to stop; the log tells what has failed."""
        if not self._is_closed and not sys.is_finalizing():
            self._is_closed = self._is_abandoned = True
            self._coord.request_stop()

    async def _host(self) -> None:
        """The life of the task that has the coordinator."""
        try:
            async with self._coord as coord:
                builder = Builder(self._pipeline, self._span, coord.start, is_async=True)
                self._node = builder.build()
                self._has_begun.set()
                await coord.wait_for_stop()
        except Exception as failure:
            self._failure = failure
            if self._is_abandoned:
                _log.error("a pipeline that was left has failed", exc_info=failure)
        finally:
            self._has_begun.set()
            self._has_ended.set()

    async def _reported(self, error: Exception | None) -> BaseException:
        is_own = error is not None and not isinstance(error, OutOfRangeError)
        self._coord.request_stop(error if is_own else None)
        await self._has_ended.wait()
        self._is_closed = True
        return self._failure or RuntimeError("the pipeline was stopped from outside before its end")


_hosts: Final[set[asyncio.Task[None]]] = set()
"""The tasks that have coordinators: event loops keep weak references to tasks only."""


def _spawn(host: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a task of its own, which outlives nothing but its event loop."""
    if in_trio():

        async def run() -> None:
            await host

        loaded_trio().lowlevel.spawn_system_task(run)
        return
    task = asyncio.get_running_loop().create_task(host)
    _hosts.add(task)
    task.add_done_callback(_hosts.discard)
