"""The async face of batching: `aioqueue.Batcher`, in asyncio and trio.

The thread face of batching: `aioqueue.sync.Batcher`.

The two faces of a batcher, each of which knows the other one.

That they stand in one file lets type checkers know it as well.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio

from aioqueue.arguments import checked_seconds
from aioqueue.attempts import PENDING
from aioqueue.batching.batch_workers import all_gone, start_tasks, start_threads
from aioqueue.batching.core import BatcherCore, Request
from aioqueue.batching.face import (
    BATCHER_ARGUMENTS,
    BatcherFace,
    ResultT,
    ValueT,
    leave_stragglers,
    warn_of_slow_end,
)
from aioqueue.coordination.classify import is_cancellation
from aioqueue.coordination.core import DEFAULT_GRACE
from aioqueue.coordination.misuse import refusal
from aioqueue.coordination.shutdown import SLOW_STOP
from aioqueue.coordination.tasks import (
    Tasks,
    ask_again,
    cancellations,
    loop_of_its_own,
    new_tasks,
    outlast,
)
from aioqueue.docstrings import with_sections
from aioqueue.errors import CancelledError, DeadlineExceededError, QueueClosedError, QueueFull
from aioqueue.forks import is_refusing
from aioqueue.waiting import (
    AsyncWaker,
    ThreadWaker,
    apply_deferred,
    cancelled_by,
    current_scopes,
    current_waker,
    in_event_loop,
    sleep_while_pending,
    stop_scopes,
    unwatch,
    watch,
)

__all__ = ("AsyncBatcher", "Batcher", "BlockingBatcher", "ThreadBatcher")


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


class Batcher(AsyncBatcher[ValueT, ResultT]):
    """Answers single calls by calling a function with batches of them.

    Within ``async with Batcher(function) as batcher:``, any number of tasks await
    ``batcher(value)``, and each gets the result for its value. Leaving the block answers all calls
    that have begun and then ends the workers; later calls raise `QueueClosedError`. Left by a
    cancellation, also one that comes while it waits for the answers, it refuses the calls whose
    batch has not begun, cancels tasks that run the function, and waits for threads and processes
    that do.

    If a worker itself dies, by `SystemExit` in the function or because somebody has cancelled its
    task, all callers that wait for a batch and all that come later get a `WorkerDiedError`, and
    leaving the block raises it. The death of a process is only that of its batch, unless none can
    be started.

    Tasks of other event loops may call it too, and threads may by its other face, ``batcher.sync``.
    """

    __doc__ = with_sections(__doc__, BATCHER_ARGUMENTS)

    @property
    def aio(self) -> Self:
        """The async face of the same batcher, for coroutines.

        That is this face itself, so code can be given either face and ask for the one it needs.
        """
        return self

    @property
    def sync(self) -> BlockingBatcher[ValueT, ResultT]:
        """The blocking face of the same batcher, for threads."""
        face: BlockingBatcher[ValueT, ResultT] = self._as(BlockingBatcher)
        return face


class BlockingBatcher(ThreadBatcher[ValueT, ResultT]):
    """Answers single calls by calling a function with batches of them.

    Within ``with Batcher(function) as batcher:``, any number of threads call ``batcher(value)``,
    and each gets the result for its value. Leaving the block answers all calls that have begun and
    then ends the workers; later calls raise `QueueClosedError`. Left by what is no `Exception`,
    such as Ctrl-C, it refuses the calls whose batch has not begun.

    If a worker itself dies, by `SystemExit` in the function say, all callers that wait for a batch
    and all that come later get a `WorkerDiedError`, and leaving the block raises it. The death of a
    process is only that of its batch, unless none can be started.

    A coroutine function runs in tasks of one event loop, in one more thread.
    """

    __doc__ = with_sections(__doc__, BATCHER_ARGUMENTS)

    @property
    def sync(self) -> Self:
        """The blocking face of the same batcher, for threads.

        That is this face itself, so code can be given either face and ask for the one it needs.
        """
        return self

    @property
    def aio(self) -> Batcher[ValueT, ResultT]:
        """The async face of the same batcher, for coroutines."""
        face: Batcher[ValueT, ResultT] = self._as(Batcher)
        return face
