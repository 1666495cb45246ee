"""The async face of batching: `aioqueue.Batcher`, in asyncio and trio."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio

from aioqueue.attempts import PENDING
from aioqueue.batching.core import BatcherCore, Request
from aioqueue.batching.face import (
    BatcherFace,
    ResultT,
    ValueT,
    leave_stragglers,
    warn_of_slow_end,
)
from aioqueue.batching.workers import all_gone, start_tasks, start_threads
from aioqueue.coordination.core import DEFAULT_GRACE
from aioqueue.coordination.joins import SLOW_STOP
from aioqueue.coordination.mixups import refusal
from aioqueue.coordination.outcomes import is_cancellation
from aioqueue.coordination.tasks import Tasks, ask_again, cancellations, new_tasks, outlast
from aioqueue.errors import CancelledError, QueueClosedError, QueueFull
from aioqueue.forks import is_refusing
from aioqueue.waiting import (
    AsyncWaker,
    cancelled_by,
    current_waker,
    stop_scopes,
    unwatch,
    watch,
)

__all__ = ("AsyncBatcher",)


class AsyncBatcher(BatcherFace[ValueT, ResultT]):
    """The methods of the async face."""

    _tasks: Tasks
    _answering: Tasks | None = None  # those that run the function, if tasks do

    async def __call__(self, value: ValueT, *, priority: int | None = None) -> ResultT:
        """Ask for the result of one value, waiting for it.

        Args:
            value: what the function gets in its list.
            priority: where the queue is a `PriorityQueue`: the smallest goes first, and ``None``
                stands for 0.

        Returns:
            What the function has returned for it.

        Raises:
            Exception: what the function has raised, or returned for it.
            QueueFull: there is no room, and the batcher refuses such calls.
            QueueClosedError: the block has been left; or it was left by a cancellation before a
                batch began with this request.
            WorkerDiedError: the process that had this request has died; or a worker has, and with
                it the batcher.
            InvalidArgumentError: a wrong priority, or one where there are none.
            RuntimeError: the block has not been entered; or the batcher's own function calls, which
                would wait for itself; or the event loop of the block, in which the function runs,
                does not run, but another one.

        Cancellation:
            The request of a cancelled call is left out of batches that have not begun. If one has,
            it goes on undisturbed, and the result for this request is dropped.
        """
        core = self._core
        waker = current_waker()
        request = Request(value, core, waker)
        element = core.element(request, priority)
        if self._answering is not None:
            self._answering.check_going_on(f"a call of {core}")
        try:
            if core.refuses:
                core.aio.enqueue_nowait(element)
            else:
                await core.aio.enqueue(element)
            request.is_accepted = True
            if request.state is PENDING:
                await _answered(request, waker, core)
        except QueueFull:
            raise core.full() from None
        except QueueClosedError as closed:
            refusal = core.refusal()
            raise refusal from refusal.__cause__ or closed.__cause__
        except BaseException:
            core.leave(request)
            raise
        result: ResultT = request.outcome()
        return result

    if not TYPE_CHECKING:  # a type checker is to see that they are not there
        __enter__ = __exit__ = refusal(
            "this batcher is for coroutines: write `async with aioqueue.Batcher(...) as batcher:`,"
            " or in a thread `with aioqueue.sync.Batcher(...) as batcher:`"
        )

    async def __aenter__(self) -> Self:
        core = self._core
        core.enter()
        self._threads: list[threading.Thread] = []
        self._tasks = new_tasks(lambda error: None)  # workers tell the core themselves
        await self._tasks.begin()
        try:
            if core.where != "task":
                self._threads = start_threads(core)
            else:
                start_tasks(core, self._tasks)
                self._answering = self._tasks
        except BaseException:
            await self._tasks.end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        core = self._core
        if is_refusing(core) and error is not None:
            return  # a fork is left, as by `SystemExit`: nothing runs in it
        asked = cancellations()
        core.close()
        if error is not None and not isinstance(error, Exception):
            self._stop()
            going_on = None
        else:
            going_on = await self._wait_for_answers()
        gone = all_gone(core, self._threads)
        slow = min(SLOW_STOP, DEFAULT_GRACE)
        await outlast(gone, slow)
        if not gone.is_open and slow < DEFAULT_GRACE:
            warn_of_slow_end(core)
            await outlast(gone, DEFAULT_GRACE - slow)
        leave_stragglers(core, self._threads)
        ended_by = await self._tasks.end()
        going_on = going_on or ended_by
        if going_on is None and cancellations() > asked:
            going_on = asyncio.CancelledError()
        if going_on is not None and not is_cancellation(going_on):
            raise going_on
        if going_on is not None and (isinstance(error, Exception) or core.failure is not None):
            ask_again()  # a failure goes first
        if error is not None:
            return  # it goes on, a cancellation or not
        if core.failure is not None:
            raise core.failure
        if going_on is not None:
            raise going_on

    def _stop(self) -> None:
        self._core.stop()
        self._tasks.cancel()

    async def _wait_for_answers(self) -> BaseException | None:
        """Wait until all workers have ended; returns what has cancelled that, if something has."""
        gone = all_gone(self._core, self._threads)
        try:
            with anyio.move_on_after(SLOW_STOP):
                await gone.wait(current_waker())
            if not gone.is_open:
                warn_of_slow_end(self._core)
                await gone.wait(current_waker())
        except GeneratorExit:
            self._stop()
            raise  # nobody runs us any more
        except BaseException as error:
            self._stop()
            return error
        return None


async def _answered(request: Request, waker: AsyncWaker, core: BatcherCore) -> None:
    """Wait until a request is answered, or the coordinator stops whose worker waits."""
    scopes = stop_scopes(waker.runner())
    if not scopes:
        await waker.wait(request)
        return
    watch(scopes, request, request.began)
    try:
        await waker.wait(request)
    finally:
        unwatch(scopes, request)
    if request.is_withdrawn:
        raise CancelledError(f"a call of {core} was {cancelled_by(scopes)}")
