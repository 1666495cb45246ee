"""The async face of coordinating: `Coordinator`, `QueueRunner`, `LooperTask`; asyncio and trio."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Protocol

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from aioqueue.checks import checked_grace, checked_seconds
from aioqueue.coordination import blocking
from aioqueue.coordination.core import (
    DEFAULT_GRACE,
    THE_BLOCK,
    CoordinatorFace,
    failure_group,
    is_cancellation,
)
from aioqueue.coordination.runs import RUNNER_ARGUMENTS, RunnerFace, is_async, refuse_awaitable
from aioqueue.coordination.workers import OwnTask, current_task
from aioqueue.errors import InvalidArgumentError
from aioqueue.waiting import Gate, current_lane

__all__ = ("Coordinator", "LooperTask", "QueueRunner", "Startable")


class Startable(Protocol):
    """What `Coordinator.start` takes: a `QueueRunner` or a `LooperTask`."""

    def _start(self, coordinator: Coordinator) -> None:
        """Start the workers, and let the coordinator know them."""


class Coordinator(CoordinatorFace):
    """Makes all workers stop together, joins them, and reports what failed.

    Leaving ``async with Coordinator()`` requests a stop and joins every worker; what failed arrives
    as one `ExceptionGroup`, in which an exception from the block is one more member. A clean stop
    (`OutOfRangeError`) that leaves the block ends it normally.

    Args:
        clean_stop_exception_types: failures that end a run normally and are not reported; ``None``
            for ``(OutOfRangeError,)``.
        stop_grace_period: seconds that workers have to end after a stop, when the block is left
            (120 by default).

    Raises:
        InvalidArgumentError: any argument is not as described.
    """

    _group: TaskGroup | None = None
    _soft_scopes: dict[anyio.CancelScope, None]
    _hard_stop: Gate
    _watches_stop: bool

    @property
    def aio(self) -> Coordinator:
        """The async face of the same coordinator, for coroutines.

        That is this face itself, so code can be given either face and ask for the one it needs.
        """
        return self

    @property
    def sync(self) -> blocking.Coordinator:
        """The blocking face of the same coordinator, for threads."""
        return self._as(blocking.Coordinator)

    def start(self, worker: Startable) -> None:
        """Start the workers of a `QueueRunner`, or a `LooperTask`, within the coordinator's block.

        At a stop, the tasks of a `QueueRunner` are cancelled; its threads, and a `LooperTask`, end
        after the call that they are in.

        Args:
            worker: what to start.

        Raises:
            RuntimeError: outside of ``async with``, or the runner is running already.
            InvalidArgumentError: it is neither.
        """
        if self._group is None:
            raise RuntimeError(
                "start: workers run within the coordinator's block: use"
                " `async with aioqueue.Coordinator() as coord: coord.start(...)`"
            )
        if not hasattr(worker, "_start"):
            raise InvalidArgumentError(
                f"worker: got {worker!r}; expected an aioqueue.QueueRunner or LooperTask"
            )
        worker._start(self)

    async def wait_for_stop(self) -> bool:
        """Wait until a stop is requested; returns true.

        Cancellation:
            A cancelled call has changed nothing.
        """
        await self._core.stopped.wait(current_lane())
        return True

    async def join(
        self,
        workers: Iterable[Any] | None = None,
        *,
        stop_grace_period: float = DEFAULT_GRACE,
        ignore_live: bool = False,
    ) -> None:
        """Wait until all workers have ended, and report what failed. It does not request a stop.

        Args:
            workers: threads, tasks or other futures, besides those that are registered or started.
            stop_grace_period: seconds that they have to end, counted from the stop (120 by
                default). Then tasks are cancelled, and threads that still run are a failure.
            ignore_live: such threads are not a failure.

        Raises:
            ExceptionGroup: all failures recorded, in the order reported, each with a note that
                names its worker; among them a `StillRunningError` that names the workers still
                running. (A `BaseExceptionGroup`, if a worker raised `SystemExit` or the like.)
            InvalidArgumentError: any argument is not as described.

        Cancellation:
            A cancelled call has changed nothing; workers that it would have waited for go on.
        """
        grace = checked_grace(stop_grace_period, "stop_grace_period")
        for gate, seconds in self._core.joining(workers, grace, ignore_live):
            with anyio.move_on_after(seconds):
                await gate.wait(current_lane())

    async def __aenter__(self) -> Coordinator:
        if self._group is not None:
            raise RuntimeError("this coordinator's block has been entered already")
        self._enter()
        self._soft_scopes = {}
        self._watches_stop = False
        self._hard_stop = Gate()
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._cancel_at_hard_stop, name="aioqueue-coordinator")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        assert self._group is not None
        is_failure = isinstance(error, Exception)
        self._core.stop(error if is_failure else None, THE_BLOCK)
        failure: BaseException | None = None
        try:
            with anyio.CancelScope(shield=True):
                await self.join(stop_grace_period=self._grace)
        except BaseException as raised:
            failure = raised
        ended_by = await self._end_group()
        if ended_by is not None and (failure is None or not is_cancellation(ended_by)):
            failure = ended_by
        # As in asyncio.TaskGroup: failures win over a cancellation, but nothing over Ctrl-C.
        goes_on = error is not None and (failure is None or not is_cancellation(error))
        if goes_on and not is_failure:
            assert error is not None
            if failure is not None:
                error.__context__ = failure
            return False
        if failure is not None:
            raise failure from None
        return is_failure  # then it was a clean stop, or it would be in the group

    async def _end_group(self) -> BaseException | None:
        """End the task that waits for the stop, and with it the task group."""
        assert self._group is not None
        group, self._group = self._group, None
        group.cancel_scope.cancel()
        try:
            await group.__aexit__(None, None, None)
        except BaseException as error:
            return error
        return None

    def _spawn(
        self, name: str, body: Callable[[], Awaitable[object]], *, cancel_at_stop: bool
    ) -> None:
        """Run a worker as a task; `body` reports its own failures."""
        assert self._group is not None
        task = OwnTask(name, self._hard_stop.open)
        scope = anyio.CancelScope()
        if cancel_at_stop:
            if not self._watches_stop:
                self._watches_stop = True
                self._group.start_soon(self._cancel_at_stop, name="aioqueue-coordinator-stop")
            self._soft_scopes[scope] = None

        async def run() -> None:
            task.task = current_task()
            try:
                with scope:
                    await body()
            finally:
                self._soft_scopes.pop(scope, None)
                task.ended()

        self._core.register(task)
        self._group.start_soon(run, name=name)

    async def _cancel_at_stop(self) -> None:
        await self._core.stopped.wait(current_lane())
        # Workers that wait for their queue have been woken and end in this round of the loop, which
        # costs less than being cancelled; the others are cancelled in the next.
        await anyio.lowlevel.checkpoint()
        self._watches_stop = False  # whoever is started from now on needs a new task
        scopes, self._soft_scopes = self._soft_scopes, {}
        for scope in scopes:
            scope.cancel()

    async def _cancel_at_hard_stop(self) -> None:
        await self._hard_stop.wait(current_lane())
        assert self._group is not None
        self._group.cancel_scope.cancel()


class QueueRunner(RunnerFace):
    """Keeps several workers filling one queue, within a `Coordinator` or by itself.

    Each worker calls its enqueue op again and again: a coroutine function as a task, a plain
    function on a thread of its own that loops there, so that nothing crosses into the event loop
    per example.

    A worker that meets a queue-closed exception ends quietly; when the last one has ended so, the
    queue is closed. Any other failure is reported to the coordinator, and the queue is closed with
    it as the cause. At a stop the queue is closed with its pending enqueues cancelled. Without a
    coordinator (`run`) failures collect in ``exceptions_raised``, and the queue is closed with the
    first as the cause once no worker is left.
    """

    __doc__ = f"{inspect.cleandoc(__doc__)}\n\n{RUNNER_ARGUMENTS}"

    async def run(self) -> None:
        """Run all workers until they have ended, without a coordinator.

        Raises:
            ExceptionGroup: the failures in ``exceptions_raised``, each with a note naming its
                worker. (A `BaseExceptionGroup`, if one raised `SystemExit` or the like.)
            RuntimeError: it is running already.

        Cancellation:
            Closes the queue with its pending enqueues cancelled, cancels the tasks, and waits for
            the threads to end the calls that they are in, but for no more than two minutes.
        """
        run = self._begin(None)
        async with anyio.create_task_group() as group:
            for plan in run.plans:
                with run.starting([plan]):
                    if plan.is_task:
                        group.start_soon(run.loop_async, plan, name=plan.name)
                    else:
                        run.thread(plan, daemon=True).start()
            try:
                await run.ended.wait(current_lane())
            except BaseException:
                run.cancel()
                group.cancel_scope.cancel()
                with anyio.move_on_after(DEFAULT_GRACE, shield=True):
                    await run.ended.wait(current_lane())
                raise
        if self.exceptions_raised:
            raise failure_group(list(self.exceptions_raised))

    def _start(self, coordinator: Coordinator) -> None:
        run = self._begin(coordinator._core)
        for plan in run.plans:
            with run.starting([plan]):
                if plan.is_task:
                    body = partial(run.loop_async, plan)
                    coordinator._spawn(plan.name, body, cancel_at_stop=True)
                else:
                    thread = run.thread(plan, daemon=True)
                    thread.start()
                    coordinator.register(thread)


class LooperTask:
    """Calls a function again and again until the coordinator stops; the task twin of
    `LooperThread`.

    Calls follow a fixed grid of times that begins with the first call, which is made at once; those
    that were missed are made up for without a pause.

    Args:
        interval: seconds between two calls; ``None`` calls without a pause.
        target: a function or coroutine function. A failure of it is reported and stops all workers.
        args: what to call it with.
        kwargs: the same, by name.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """

    def __init__(
        self,
        interval: float | None,
        target: Callable[..., Any],
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        if not callable(target):
            raise InvalidArgumentError(f"target: got {target!r}; expected a callable")
        self._interval = None if interval is None else checked_seconds(interval, "interval")
        self._target = target
        self._call = partial(target, *args, **(kwargs or {}))
        self.name = f"LooperTask-{getattr(target, '__name__', type(target).__name__)}"

    def _start(self, coordinator: Coordinator) -> None:
        coordinator._spawn(self.name, partial(self._loop, coordinator), cancel_at_stop=False)

    async def _loop(self, coordinator: Coordinator) -> None:
        try:
            next_call = monotonic()
            while not coordinator.should_stop():
                if is_async(self._target):
                    await self._call()
                else:
                    refuse_awaitable(self.name, self._call())
                next_call += self._interval or 0.0
                with anyio.move_on_after(max(0.0, next_call - monotonic())):
                    await coordinator.wait_for_stop()
        except Exception as error:
            coordinator._core.report(error, self.name)
