"""The thread face of batching: `aioqueue.sync.Batcher`."""

from __future__ import annotations

import contextvars
import threading
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Self

from aioqueue.batching.core import BatcherCore, Request
from aioqueue.batching.face import (
    BatcherFace,
    ResultT,
    ValueT,
    leave_stragglers,
    warn_of_slow_end,
)
from aioqueue.batching.workers import all_gone, start_tasks, start_threads
from aioqueue.checks import checked_seconds
from aioqueue.coordination.core import DEFAULT_GRACE
from aioqueue.coordination.joins import SLOW_STOP
from aioqueue.coordination.loops import loop_of_its_own
from aioqueue.coordination.mixups import refusal
from aioqueue.coordination.tasks import new_tasks, outlast
from aioqueue.errors import CancelledError, DeadlineExceededError, QueueClosedError, QueueFull
from aioqueue.forks import is_refusing
from aioqueue.waiting import (
    ThreadWaker,
    apply_deferred,
    cancelled_by,
    current_scopes,
    in_event_loop,
    sleep_while_pending,
    unwatch,
    watch,
)

__all__ = ("ThreadBatcher",)


class ThreadBatcher(BatcherFace[ValueT, ResultT]):
    """The methods of the thread face."""

    def __call__(
        self, value: ValueT, *, priority: int | None = None, timeout: float | None = None
    ) -> ResultT:
        """Ask for the result of one value, waiting for it.

        Args:
            value: what the function gets in its list.
            priority: where the queue is a `PriorityQueue`: the smallest goes first, and ``None``
                stands for 0.
            timeout: seconds to wait at most, for room and for the answer; ``None`` waits for ever.

        Returns:
            What the function has returned for it.

        Raises:
            Exception: what the function has raised, or returned for it.
            QueueFull: there is no room, and the batcher refuses such calls.
            DeadlineExceededError: (a `TimeoutError`) the timeout has run out, or the time of a
                `CancelScope` around the call. The request is left out of later batches.
            CancelledError: such a scope was cancelled; the same.
            QueueClosedError: the block has been left; or it was left by Ctrl-C or a cancellation
                before a batch began with this request.
            WorkerDiedError: the process that had this request has died; or a worker has, and with
                it the batcher.
            InvalidArgumentError: a wrong priority, or one where there are none.
            RuntimeError: the block has not been entered; or the batcher's own function calls, which
                would wait for itself; or the call was made on a thread whose event loop is running.
        """
        if in_event_loop():
            raise RuntimeError(
                "a batcher's call waits, and this thread's event loop is running:"
                " use `await batcher.aio(...)` here"
            )
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout")
        core, waker = self._core, ThreadWaker()
        request = Request(value, core, waker)
        element = core.element(request, priority)
        try:
            if core.refuses:
                core.sync.enqueue_nowait(element)
            else:
                core.sync.enqueue(element, timeout=timeout)
            request.is_accepted = True
            self._wait(request, waker, timeout)
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

    def _wait(self, request: Request, waker: ThreadWaker, timeout: float | None) -> None:
        """Wait until a request is answered."""
        deadline = None if timeout is None else request.began + timeout
        scopes = current_scopes()
        try:
            watch(scopes, request, request.began)
            sleep_while_pending(request, waker, scopes, deadline)
        finally:
            apply_deferred(self._core.withdraw, request)
            unwatch(scopes, request)
        if request.is_withdrawn:
            raise self._why_withdrawn(timeout, deadline)

    def _why_withdrawn(self, timeout: float | None, deadline: float | None) -> Exception:
        scopes = current_scopes()
        if any(scope.cancelled for scope in scopes):
            return CancelledError(f"a call of {self._core} was {cancelled_by(scopes)}")
        if deadline is not None and perf_counter() >= deadline:
            limit = f"waited its timeout of {timeout:.4g} s"
        else:
            limit = "reached the deadline of its CancelScope"
        return DeadlineExceededError(f"a call of {self._core} has {limit}")

    if not TYPE_CHECKING:  # a type checker is to see that they are not there
        __aenter__ = __aexit__ = refusal(
            "this batcher is for threads: write `with aioqueue.sync.Batcher(...) as batcher:`, or"
            " in a coroutine `async with aioqueue.Batcher(...) as batcher:`"
        )

    def __enter__(self) -> Self:
        if in_event_loop():
            raise RuntimeError(
                "leaving the block of a batcher waits, and this thread's event loop is running:"
                " use `async with batcher.aio` here, or an aioqueue.Batcher"
            )
        core = self._core
        core.enter()
        if core.where != "task":
            self._threads = start_threads(core)
        else:
            self._threads = [_start_loop(core)]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        core = self._core
        if is_refusing(core) and error is not None:
            return  # a fork is left, as by `SystemExit`: nothing runs in it
        core.close()
        if error is not None and not isinstance(error, Exception):
            core.stop()
        gone = all_gone(core, self._threads)
        try:
            if not gone.wait_blocking(SLOW_STOP):
                warn_of_slow_end(core)
                gone.wait_blocking(DEFAULT_GRACE - SLOW_STOP if core.is_stopped else None)
        except BaseException:
            core.stop()  # Ctrl-C, or a CancelScope
            raise
        leave_stragglers(core, self._threads)
        if core.failure is not None and error is None:
            raise core.failure


def _start_loop(core: BatcherCore) -> threading.Thread:
    """Start the thread whose event loop runs the workers that are tasks."""
    run = loop_of_its_own(_run_tasks, core)
    thread = threading.Thread(
        target=contextvars.copy_context().run,
        args=(run,),
        name=f"BatcherThread-{core.name}-event-loop",
        daemon=True,
    )
    try:
        thread.start()
    except BaseException:
        core.stop()
        raise
    return thread


async def _run_tasks(core: BatcherCore) -> None:
    tasks = new_tasks(lambda error: None)  # workers tell the core themselves
    await tasks.begin()
    start_tasks(core, tasks)
    core.call_on_stop(partial(tasks.soon, tasks.cancel))
    await outlast(core.ended)  # the function may cancel all tasks of its loop
    await tasks.end()
