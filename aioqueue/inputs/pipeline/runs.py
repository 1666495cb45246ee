"""A pipeline that is being gone through: its coordinator, and whoever takes what it makes.

In threads that is a coordinator of threads. For tasks it is an async coordinator in a task of its
own, in the same event loop: so leaving an ``async for``, which tells nobody, leaves no scope behind
that was entered in the user's task.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final

import anyio

import aioqueue
from aioqueue import OutOfRangeError, sync
from aioqueue.inputs.pipeline.building import Builder
from aioqueue.inputs.pipeline.flow import Node, Span, Taken, drive, drive_async
from aioqueue.inputs.pipeline.resuming import Standing
from aioqueue.inputs.sources.item import EpochEnd
from aioqueue.inputs.sources.pipeline import Pipeline
from aioqueue.locks import holding
from aioqueue.waiting.running import in_trio, loaded_trio

__all__ = ("AsyncRun", "ThreadRun")

_log: Final = logging.getLogger("aioqueue")

_GRACE: Final = 5.0
"""Seconds that workers have to end when a loop was left, before the log names those that do not."""


class _Run:
    """What runs of both worlds know of where they stand.

    Args:
        standing: where they begin.
    """

    def __init__(self, standing: Standing) -> None:
        self._begin = standing
        self._skip = standing.skip
        self._node: Node | None = None
        self._lock = threading.RLock()  # held while nodes move, and not while they wait
        self._is_moving = False

    def standing(self) -> Standing:
        """Where it stands behind the last batch that was delivered. For any thread.

        Raises:
            RuntimeError: a signal handler asks that has interrupted the making of a batch; or the
                pipeline has no positions.
        """
        return holding(self._lock, self._standing)

    def _standing(self) -> Standing:
        if self._is_moving:
            raise RuntimeError(
                "a signal handler asked for the state in the middle of a step; let the handler set"
                " a flag, and ask for the state between two batches"
            )
        if self._node is None:
            return self._begin
        state = self._node.state()
        return Standing(state["epoch"], state["given"], self._skip, state)

    def _step(self, move: Callable[[Any], Any], argument: Any) -> Any:
        return holding(self._lock, self._move, move, argument)

    def _move(self, move: Callable[[Any], Any], argument: Any) -> Any:
        self._is_moving = True
        try:
            return move(argument)
        finally:
            self._is_moving = False

    def _is_wanted(self, taken: Taken) -> bool:
        if isinstance(taken, EpochEnd) or not self._skip:
            return True
        self._skip -= 1
        return False


class ThreadRun(_Run):
    """A run for threads.

    Args:
        pipeline: what is run.
        stop: the first epoch that is not gone through; ``None`` goes on for ever.
        standing: where to begin.
    """

    def __init__(self, pipeline: Pipeline[Any], stop: int | None, standing: Standing) -> None:
        super().__init__(standing)
        self._coord = sync.Coordinator()
        self._has_ended = False
        try:
            span = Span(standing.epoch, stop)
            builder = Builder(pipeline, span, self._coord.start, is_async=False)
            self._node = builder.run(standing.node)
        except BaseException:
            self._coord.request_stop()
            self._coord.join()
            raise

    def take(self) -> Taken:
        """The next row, in a list; or the end of the epoch.

        Raises:
            ExceptionGroup: what has failed, as the coordinator reports it.
        """
        assert self._node is not None
        try:
            while not self._is_wanted(taken := drive(self._node.take(1), self._step)):
                pass
            return taken
        except Exception as error:
            raise self._failure(error) from None

    def skip_to(self, epoch: int) -> None:
        """Nobody wants the epochs before this one any more."""
        assert self._node is not None
        self._step(self._node.skip_to, epoch)

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


class AsyncRun(_Run):
    """A run for the tasks of one event loop.

    Args:
        pipeline: what is run.
        stop: the first epoch that is not gone through; ``None`` goes on for ever.
        standing: where to begin.
    """

    def __init__(self, pipeline: Pipeline[Any], stop: int | None, standing: Standing) -> None:
        super().__init__(standing)
        self._pipeline = pipeline
        self._span = Span(standing.epoch, stop)
        self._coord = aioqueue.Coordinator()
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
            while not self._is_wanted(taken := await drive_async(self._node.take(1), self._step)):
                pass
            return taken
        except Exception as error:
            raise await self._reported(error) from None

    def skip_to(self, epoch: int) -> None:
        """Nobody wants the epochs before this one any more."""
        if self._node is not None:
            self._step(self._node.skip_to, epoch)

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
                self._node = builder.run(self._begin.node)
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
