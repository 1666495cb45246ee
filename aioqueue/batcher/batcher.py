"""`Batcher`, async and blocking, in asyncio, trio and threads.

The base class of both faces has everything that never waits. `AsyncBatcher` and `ThreadBatcher`
implement the two ways of waiting. `Batcher` and `BlockingBatcher` are the public classes; they
share this file so that type checkers see that each leads to the other.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import Any, Concatenate, Generic, Self, TypeVar, overload

import anyio

from aioqueue.base.arguments import checked_seconds
from aioqueue.base.display_text import on_one_line
from aioqueue.base.hints import hint_attributes, refuse_block, refuse_overrides
from aioqueue.base.public_names import DeferredModule, name_methods, public, with_sections
from aioqueue.base.tracebacks import SHORTENED, shorten
from aioqueue.batcher.function_calls import OnFailure, Where
from aioqueue.batcher.rules import BatcherCore, OnFull, Request
from aioqueue.batcher.statistics import BatcherState, BatcherStatistics
from aioqueue.batcher.workers import all_ended, end_lost_workers, start_tasks, start_threads
from aioqueue.coordination.cancellations import Call, is_cancellation, repeat_cancellation
from aioqueue.coordination.shutdown import DEFAULT_GRACE, MIN_CLEAN_UP, SLOW_STOP, warn_of_slow_stop
from aioqueue.coordination.tasks import Tasks, new_loop_runner, new_tasks, wait_shielded
from aioqueue.coordination.workers import format_with_places
from aioqueue.core.attempts import PENDING
from aioqueue.errors import CancelledError, DeadlineExceededError, QueueClosedError, QueueFull
from aioqueue.queues.base import AsyncQueue, BlockingQueue
from aioqueue.system.forks import inherited_object, is_inherited, note_for_forks
from aioqueue.system.locks import call_with_lock
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import (
    CancelScope,
    active_stops,
    cancelled_by,
    current_scopes,
    register_wait,
    sleep_while_pending,
    stop_scopes,
    unregister_wait,
    unwatch,
    watch,
)
from aioqueue.worlds.waker import (
    AsyncWaker,
    ThreadWaker,
    apply_deferred,
    in_event_loop,
    in_trio,
    running_loop,
)

FaceT = TypeVar("FaceT", bound="BatcherFace[Any, Any]")
ValueT = TypeVar("ValueT")
ResultT = TypeVar("ResultT")

_log = logging.getLogger("aioqueue")

_sharing: Any = DeferredModule("aioqueue.sharing.batchers")  # above this room; used by `share`

BATCHER_ARGUMENTS = """\
Args:
    function: gets a list of 1 to ``max_batch`` values, one per caller, and returns a list or an
        array with one result per value, in the same order. Arrays that it uses for the next batch,
        too, are copied. A result that is an exception is raised in its caller. An exception that
        the function raises is raised in every caller of the batch, and the batcher continues. A
        coroutine function runs in a task, a plain function on a thread of its own or, if you say
        so, in a process. If it has a parameter ``contexts``, it also gets a list with a copy of
        each caller's `contextvars.Context`, in the order of the values.
    max_batch: how many requests a batch has at most, >= 1.
    max_wait: how many seconds a batch waits for more requests after its first one, once a worker is
        free for it. A full batch does not wait. With 0, no batch waits.
    queue: holds the waiting requests: a new `FIFOQueue` or `PriorityQueue` of plain objects, as
        either of its faces, for this batcher alone. Its capacity, >= ``max_batch``, bounds the
        number of waiting requests, and its ``max_bytes`` the size of their values: those of a batch
        that is not full count, too. ``None`` makes a `FIFOQueue` for 1024 requests, or for
        ``max_batch`` if that is more.
    workers: how many batches may be processed at the same time.
    where: ``"task"`` (for a coroutine function), ``"thread"`` (for a plain function), ``"process"``
        (for a plain function that can be pickled), or ``"auto"``: a task or a thread, whichever
        fits the function. There are as many of them as ``workers``. If a process dies, the callers
        of the batch that it had begun get a `WorkerDiedError`, and a new process replaces it.
    on_full: what a call does when the queue is full: ``"wait"`` for room, or ``"refuse"``, which
        raises `QueueFull` at once.
    on_failure: how a batch ends for which the function raises, or returns no results:
        ``"fail"`` raises the failure in every caller. ``"one_by_one"`` calls the function again
        with each request by itself, so that only those fail that fail by themselves. A batch in
        which a process died is not tried again.
    weight: gets one value and returns its weight, a number >= 0: rows or tokens, say. It is called
        in the caller, like ``check``. ``None``: values have no weight.
    max_batch_weight: how much the requests of a batch may weigh together, > 0. The request that
        would exceed it is the first of the next batch; none overtakes it. A batch as heavy as that
        is full, and does not wait. A call whose value weighs more by itself raises
        `InvalidArgumentError`. It needs ``weight``, and ``weight`` needs it.
    check: gets one value in each call, before it becomes a request, and raises if the value is not
        valid; that is raised in this caller alone. If it returns false, the call raises
        `InvalidArgumentError`. ``None`` checks nothing.
    ageing: with a `PriorityQueue`, the seconds of waiting that are worth one step of priority: so
        no flow of urgent requests makes the others wait for ever. ``None``: priorities do not
        change.
    name: the name in error messages and worker names; ``None`` derives one from the function's.
    watchdog: seconds after which to log a warning with an explanation (see `aioqueue.explain`) if
        a call is in a batch and none has been answered for that long, in the log ``aioqueue``.
        ``None`` for never.

Raises:
    InvalidArgumentError: any argument is not as described.
"""


@hint_attributes("a Batcher")
class BatcherFace(Generic[ValueT, ResultT]):
    """The base class of both faces. See `aioqueue.Batcher`."""

    _core: BatcherCore
    _peer: BatcherFace[ValueT, ResultT] | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        refuse_overrides(cls, "a batcher")

    @overload
    def __init__(  # checkers infer the type of a lambda only by this one
        self,
        function: Callable[
            [list[ValueT]],
            Iterable[ResultT | Exception] | Awaitable[Iterable[ResultT | Exception]],
        ],
        max_batch: int = 32,
        max_wait: float = 0.005,
        *,
        queue: AsyncQueue | BlockingQueue | None = None,
        workers: int = 1,
        where: Where = "auto",
        on_full: OnFull = "wait",
        on_failure: OnFailure = "fail",
        weight: Callable[[ValueT], float] | None = None,
        max_batch_weight: float | None = None,
        check: Callable[[ValueT], bool | None] | None = None,
        ageing: float | None = None,
        name: str | None = None,
        watchdog: float | None = None,
    ) -> None: ...
    @overload
    def __init__(  # type: ignore[overload-cannot-match]
        self,
        function: Callable[
            Concatenate[list[ValueT], ...],  # and perhaps the contexts
            Iterable[ResultT | Exception] | Awaitable[Iterable[ResultT | Exception]],
        ],
        max_batch: int = 32,
        max_wait: float = 0.005,
        *,
        queue: AsyncQueue | BlockingQueue | None = None,
        workers: int = 1,
        where: Where = "auto",
        on_full: OnFull = "wait",
        on_failure: OnFailure = "fail",
        weight: Callable[[ValueT], float] | None = None,
        max_batch_weight: float | None = None,
        check: Callable[[ValueT], bool | None] | None = None,
        ageing: float | None = None,
        name: str | None = None,
        watchdog: float | None = None,
    ) -> None: ...
    def __init__(
        self,
        function: Callable[
            Concatenate[list[ValueT], ...],
            Iterable[ResultT | Exception] | Awaitable[Iterable[ResultT | Exception]],
        ],
        max_batch: int = 32,
        max_wait: float = 0.005,
        *,
        queue: AsyncQueue | BlockingQueue | None = None,
        workers: int = 1,
        where: Where = "auto",
        on_full: OnFull = "wait",
        on_failure: OnFailure = "fail",
        weight: Callable[[ValueT], float] | None = None,
        max_batch_weight: float | None = None,
        check: Callable[[ValueT], bool | None] | None = None,
        ageing: float | None = None,
        name: str | None = None,
        watchdog: float | None = None,
    ) -> None:
        self._core = BatcherCore(
            function,
            max_batch=max_batch,
            max_wait=max_wait,
            queue=queue,
            workers=workers,
            where=where,
            on_full=on_full,
            on_failure=on_failure,
            weight=weight,
            max_batch_weight=max_batch_weight,
            check=check,
            ageing=ageing,
            name=name,
            watchdog=watchdog,
        )
        note_for_forks(self)

    def _was_forked(self) -> None:
        core = self._core
        if is_inherited(core) or core.shared is not None:
            return  # a shared one becomes a handle: see `aioqueue.sharing`
        if core.state is BatcherState.NEW:
            core.renew()
        else:
            self._core = inherited_object(str(core), core)

    def __repr__(self) -> str:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        if is_inherited(self._core):
            return f"<{kind} of another process>"
        return on_one_line(f"<{kind} '{self.name}' {self._core.describe()}>")

    @property
    def name(self) -> str:
        """The name in error messages and worker names."""
        return self._core.name

    def statistics(self) -> BatcherStatistics:
        """Return counts, sizes and times: first the calls', then the queue's a moment later."""
        return self._core.statistics()

    def share(self, *, name: str | None = None) -> Self:
        """Share the batcher with the other processes of this machine.

        From now on the batcher can be pickled: pass it to a process as an argument, or inside of
        anything that is. In the other process it is a *handle* of the same batcher: both faces,
        the same errors and guarantees. Requests of all processes join the same batches, and
        ``statistics()`` has the counts of all of them. Only this process enters the block.

        Values and results are pickled. The worker that begins a batch unpickles its values. If a
        value cannot be unpickled, or a result cannot be pickled, only its own caller gets the
        error. If a process dies, its requests leave the line, and results for it are dropped. If
        this process dies, callers get `WorkerDiedError`; if it ends in order, `QueueClosedError`.

        A function with a parameter ``contexts`` gets a context for the call of another process,
        too: an empty one, with the trace and the baggage of the caller, if both processes use
        OpenTelemetry. Other context variables do not come along: put what you need of them into
        the value.

        The batcher lives until this process ends, even if nothing here refers to it any more:
        nobody can know where a pickled handle still is.

        Args:
            name: a name by which other processes of this user find the batcher (`connect`):
                letters, digits, ``-``, ``_`` and ``.``; ``None`` for none.

        Returns:
            The batcher itself.

        Raises:
            InvalidArgumentError: the name is not as described, or a living process shares something
                by that name.
            OSError: this system has no Unix sockets, or the socket cannot be made.
        """
        _sharing.share_batcher(self, name)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a batcher that is shared; see `share`.

        Raises:
            TypeError: it is not shared.
        """
        if self._core.shared is None:
            raise TypeError(
                f"{self._core} cannot be pickled or copied: a batcher lives in one process. Share"
                " it (`batcher.share()`), and send that to other processes of this machine"
            )
        world = "aio" if isinstance(self, AsyncBatcher) else "sync"
        pickled: tuple[Any, ...] = self._core.shared.pickled(world)
        return pickled

    def _as(self, face_class: type[FaceT]) -> FaceT:
        """Return the other face of this batcher; the first call makes it."""
        return call_with_lock(self._core._lock, self._peer_of, face_class)

    def _peer_of(self, face_class: type[FaceT]) -> FaceT:
        peer: Any = self._peer
        if peer is None:
            self._peer = peer = face_class.__new__(face_class)
            peer._core, peer._peer = self._core, self
            note_for_forks(peer)
        assert isinstance(peer, face_class)
        return peer


def warn_of_slow_end(core: BatcherCore) -> None:
    """Log which workers the batcher's block has waited for, after a while."""
    until = "" if core.is_stopped else "all calls to be answered"
    alive = [worker for worker in core.started if worker.is_alive()]
    warn_of_slow_stop(alive, DEFAULT_GRACE, whose=str(core), until=until)


def report_stragglers(core: BatcherCore, threads: Iterable[threading.Thread]) -> None:
    """Log which workers still call the function as their block is left; kill those in processes."""
    has_threads = any(thread.is_alive() for thread in threads)
    alive = [worker for worker in core.started if worker.is_alive()]
    if alive:
        places = format_with_places(alive)
        names = " ".join(worker.name for worker in alive)
        _log.warning("%s stopped with workers still running: %s%s", core, names, places)
    if has_threads:
        core.give_up()


@refuse_block(
    "with",
    "this batcher is for coroutines: write `async with aioqueue.Batcher(...) as batcher:`,"
    " or in a thread `with aioqueue.sync.Batcher(...) as batcher:`",
)
class AsyncBatcher(BatcherFace[ValueT, ResultT]):
    """The methods of the async face."""

    _tasks: Tasks
    _answering: Tasks | None = None  # the tasks that run the function, if it runs in tasks

    async def __call__(self, value: ValueT, *, priority: int | None = None) -> ResultT:
        """Request the result for one value, and wait for it.

        Args:
            value: an item of the list that the function gets.
            priority: with a `PriorityQueue`, the smallest goes first; ``None`` means 0.

        Returns:
            The function's result for this value.

        Raises:
            Exception: the function has raised it, or returned it for this value; or ``check`` or
                ``weight`` has raised it.
            QueueFull: the queue is full, and ``on_full`` is ``"refuse"``.
            QueueClosedError: the block has been left; or a cancellation left it before a batch with
                this request began.
            WorkerDiedError: the process that worked on this request has died; or the batcher has
                failed, because a worker has died.
            InvalidArgumentError: the priority is wrong, or the queue has no priorities; or
                ``check`` has returned false for the value; or it is heavier than a batch may be.
            RuntimeError: the block has not been entered; or the batcher's own function makes the
                call, which would deadlock; or the function's event loop does not run while another
                one does.

        Cancellation:
            A batch that begins after the cancellation leaves the request out. A batch that has
            begun continues, and the result for this request is dropped.
        """
        core = self._core
        waker = current_waker()
        request = core.new_request(value, core, waker)
        element = core.element(request, priority)
        if self._answering is not None:
            self._answering.check_running(core)
        try:
            if core.refuses:
                core.aio.enqueue_nowait(element)
            else:
                await core.aio.enqueue(element)
            core.note_accepted(request)
            # A worker may have answered it already, while the enqueue waited for room.
            if request.state is PENDING:
                await _answered(request, waker, core)
        except QueueFull:
            raise core.full() from None
        except QueueClosedError as closed:
            refusal = core.refusal()
            raise refusal from refusal.__cause__ or closed.__cause__
        except BaseException as error:
            heard = core.leave(request)
            if heard is not None and not isinstance(error, GeneratorExit):
                await wait_shielded(heard)
            shorten(error)
            raise
        try:
            result: ResultT = request.outcome()
        except BaseException as error:
            shorten(error)
            raise
        return result

    async def __aenter__(self) -> Self:
        core = self._core
        core.enter()
        self._threads: list[threading.Thread] = []
        self._tasks = new_tasks(lambda error: None)  # workers report failures to the core
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
        if is_inherited(core) and error is not None:
            return  # a fork leaves the block, by `SystemExit` say: it has no workers
        leaving = Call()
        core.close()
        # A failure of the block, like its normal end, waits until all calls are answered. A
        # cancellation or Ctrl-C refuses those whose batch has not begun.
        if error is not None and not isinstance(error, Exception):
            self._stop()
            if not _has_event_loop():
                return  # the coroutine is being closed: it cannot wait
            interruption = None
        else:
            interruption = await self._wait_for_answers()
        ended = all_ended(core, self._threads)
        slow = min(SLOW_STOP, DEFAULT_GRACE)
        await wait_shielded(ended, slow)
        if not ended.is_open and slow < DEFAULT_GRACE:
            warn_of_slow_end(core)
            await wait_shielded(ended, DEFAULT_GRACE - slow)
        # The function may have swallowed the first cancellation.
        if not ended.is_open and core.where == "task":
            self._tasks.cancel_again()
            await wait_shielded(ended, max(DEFAULT_GRACE, MIN_CLEAN_UP))
        report_stragglers(core, self._threads)
        ended_by = await self._tasks.end()
        interruption = interruption or ended_by
        # A cancellation that arrived during the shielded waits above has not been raised yet.
        if interruption is None and leaving.is_cancel_delivered():
            interruption = asyncio.CancelledError()
        if interruption is not None and not is_cancellation(interruption):
            raise interruption
        if interruption is not None and (isinstance(error, Exception) or core.failure is not None):
            # The failure is raised first, the cancellation at the next await.
            repeat_cancellation(leaving)
        if error is not None:
            return  # the exception of the block propagates, be it a cancellation or not
        if core.failure is not None:
            raise core.failure
        if interruption is not None:
            raise interruption

    def _stop(self) -> None:
        self._core.stop()
        if _has_event_loop():
            self._tasks.cancel()
        elif self._core.where == "task":
            end_lost_workers(self._core)

    async def _wait_for_answers(self) -> BaseException | None:
        """Wait until all workers have ended; return what has cancelled the wait, if anything."""
        ended = all_ended(self._core, self._threads)
        try:
            with anyio.move_on_after(SLOW_STOP):
                await ended.wait(current_waker())
            if not ended.is_open:
                warn_of_slow_end(self._core)
                await ended.wait(current_waker())
        except GeneratorExit:
            self._stop()
            raise  # the event loop is gone and will not resume this coroutine
        except BaseException as error:
            self._stop()
            return error
        return None


def _has_event_loop() -> bool:
    return running_loop() is not None or in_trio()


async def _answered(request: Request, waker: AsyncWaker, core: BatcherCore) -> None:
    """Wait until a request is answered, or the stop of the caller's coordinator ends the wait."""
    runner = waker.runner()
    scopes: Collection[CancelScope] = ()
    try:
        register_wait(request, runner)
        # After it: a worker that is registered now is found.
        scopes = stop_scopes(runner) if active_stops else ()
        if scopes:
            watch(scopes, request, request.began)
        await waker.wait(request)
    finally:
        unregister_wait(request)
        if scopes:
            unwatch(scopes, request)
    if request.is_withdrawn:
        raise CancelledError(f"a call of {core} was {cancelled_by(stop_scopes(runner))}")


@refuse_block(
    "async with",
    "this batcher is for threads: write `with aioqueue.sync.Batcher(...) as batcher:`, or"
    " in a coroutine `async with aioqueue.Batcher(...) as batcher:`",
)
class ThreadBatcher(BatcherFace[ValueT, ResultT]):
    """The methods of the blocking face."""

    def __call__(
        self, value: ValueT, *, priority: int | None = None, timeout: float | None = None
    ) -> ResultT:
        """Request the result for one value, and wait for it.

        Args:
            value: an item of the list that the function gets.
            priority: with a `PriorityQueue`, the smallest goes first; ``None`` means 0.
            timeout: seconds to wait at most, for room and for the result; ``None`` waits for ever.

        Returns:
            The function's result for this value.

        Raises:
            Exception: the function has raised it, or returned it for this value; or ``check`` or
                ``weight`` has raised it.
            QueueFull: the queue is full, and ``on_full`` is ``"refuse"``.
            DeadlineExceededError: the timeout has expired, or the time of a `CancelScope` around
                the call. Later batches leave the request out. It is a `TimeoutError`.
            CancelledError: a `CancelScope` around the call was cancelled. Later batches leave the
                request out.
            QueueClosedError: the block has been left; or Ctrl-C or a cancellation left it before a
                batch with this request began.
            WorkerDiedError: the process that worked on this request has died; or the batcher has
                failed, because a worker has died.
            InvalidArgumentError: the priority is wrong, or the queue has no priorities; or
                ``check`` has returned false for the value; or it is heavier than a batch may be.
            RuntimeError: the block has not been entered; or the batcher's own function makes the
                call, which would deadlock; or the call would block a thread whose event loop is
                running.
        """
        if in_event_loop():
            raise RuntimeError(
                "a call of a batcher would have to wait, and this thread's event loop is running:"
                " use `await batcher.aio(...)` here"
            )
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout")
        core = self._core
        waker = core.new_thread_waker()
        request = core.new_request(value, core, waker)
        element = core.element(request, priority)
        try:
            if core.refuses:
                core.sync.enqueue_nowait(element)
            else:
                core.sync.enqueue(element, timeout=timeout)
            core.note_accepted(request)
            self._wait(request, waker, timeout)
        except QueueFull:
            raise core.full() from None
        except QueueClosedError as closed:
            refusal = core.refusal()
            raise refusal from refusal.__cause__ or closed.__cause__
        except BaseException as error:
            heard = core.leave(request)
            if heard is not None:
                heard.wait_blocking()
            shorten(error)
            raise
        with SHORTENED:
            result: ResultT = request.outcome()
        return result

    def _wait(self, request: Request, waker: ThreadWaker, timeout: float | None) -> None:
        deadline = None if timeout is None else request.began + timeout
        scopes: Collection[CancelScope] = ()
        try:
            register_wait(request, threading.current_thread())
            scopes = current_scopes()
            watch(scopes, request, request.began)
            sleep_while_pending(request, waker, scopes, deadline)
        finally:
            apply_deferred(self._core.withdraw, request)
            unregister_wait(request)
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

    def __enter__(self) -> Self:
        if in_event_loop():
            raise RuntimeError(
                "leaving a batcher's block would have to wait, and this thread's event loop is"
                " running: use `async with batcher.aio` here, or an aioqueue.Batcher"
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
        if is_inherited(core) and error is not None:
            return  # a fork leaves the block, by `SystemExit` say: it has no workers
        core.close()
        if error is not None and not isinstance(error, Exception):
            core.stop()
        ended = all_ended(core, self._threads)
        try:
            if not ended.wait_blocking(SLOW_STOP):
                warn_of_slow_end(core)
                ended.wait_blocking(DEFAULT_GRACE - SLOW_STOP if core.is_stopped else None)
            if not ended.is_open and core.cancel_again is not None:
                core.cancel_again()
                ended.wait_blocking(max(DEFAULT_GRACE, MIN_CLEAN_UP))
        except BaseException:
            core.stop()  # Ctrl-C, or a CancelScope
            raise
        report_stragglers(core, self._threads)
        if core.failure is not None and error is None:
            raise core.failure


def _start_loop(core: BatcherCore) -> threading.Thread:
    """Start the thread with the event loop that runs the workers that are tasks."""
    run = new_loop_runner(_run_tasks, core)
    thread = threading.Thread(
        target=contextvars.copy_context().run,
        args=(run,),
        name=f"aioqueue-{core.name}-event-loop",
        daemon=True,
    )
    try:
        thread.start()
    except BaseException:
        core.stop()
        raise
    return thread


async def _run_tasks(core: BatcherCore) -> None:
    tasks = new_tasks(lambda error: None)  # workers report failures to the core
    await tasks.begin()
    start_tasks(core, tasks)
    core.call_on_stop(partial(tasks.call_soon, tasks.cancel))
    core.cancel_again = partial(tasks.call_soon, tasks.cancel_again)
    await wait_shielded(core.ended)  # the function may cancel every task of its loop, even this one
    core.cancel_again = None  # it refers to the loop
    await tasks.end()


@public("aioqueue", hints="batchers")
class Batcher(AsyncBatcher[ValueT, ResultT]):
    """Answers single calls by calling a function with batches of them.

    In ``async with Batcher(function) as batcher:``, any number of tasks await ``batcher(value)``.
    Each gets the result for its value. Leaving the block answers all calls that have begun, then
    ends the workers. Later calls raise `QueueClosedError`.

    If a cancellation leaves the block, or arrives while it is being left, the batcher refuses the
    calls whose batch has not begun. It cancels tasks that run the function, and waits for their
    clean-up, and for threads and processes that run it. A task that does not end within two minutes
    is cancelled once more.

    If a worker itself dies, the batcher fails: the function has raised `SystemExit`, or other code
    has cancelled the worker's task. All waiting and later calls then raise `WorkerDiedError`, as
    does leaving the block. The death of a process fails only the calls of its batch, as long as a
    new process can be started.

    Tasks of other event loops may call the batcher, too. Threads call its other face,
    ``batcher.sync``.
    """

    __doc__ = with_sections(__doc__, BATCHER_ARGUMENTS)

    @property
    def aio(self) -> Self:
        """The async face of the same batcher, for coroutines.

        That is this face itself. Code that is given either face can ask for the one it needs.
        """
        return self

    @property
    def sync(self) -> BlockingBatcher[ValueT, ResultT]:
        """The blocking face of the same batcher, for threads."""
        face: BlockingBatcher[ValueT, ResultT] = self._as(BlockingBatcher)
        return face


@public("aioqueue.sync", name="Batcher", hints="batchers")
class BlockingBatcher(ThreadBatcher[ValueT, ResultT]):
    """Answers single calls by calling a function with batches of them.

    In ``with Batcher(function) as batcher:``, any number of threads call ``batcher(value)``. Each
    gets the result for its value. Leaving the block answers all calls that have begun, then ends
    the workers. Later calls raise `QueueClosedError`. If Ctrl-C leaves the block, or anything else
    that is no `Exception`, the batcher refuses the calls whose batch has not begun.

    If a worker itself dies, the batcher fails: the function has raised `SystemExit`, for example.
    All waiting and later calls then raise `WorkerDiedError`, and so does leaving the block. The
    death of a process fails only the calls of its batch, as long as a new process can be started.

    A coroutine function runs in tasks of one event loop, on one more thread.
    """

    __doc__ = with_sections(__doc__, BATCHER_ARGUMENTS)

    @property
    def sync(self) -> Self:
        """The blocking face of the same batcher, for threads.

        That is this face itself. Code that is given either face can ask for the one it needs.
        """
        return self

    @property
    def aio(self) -> Batcher[ValueT, ResultT]:
        """The async face of the same batcher, for coroutines."""
        face: Batcher[ValueT, ResultT] = self._as(Batcher)
        return face


for _cls in (BatcherFace, AsyncBatcher, ThreadBatcher):
    name_methods(_cls, "Batcher")
del _cls
