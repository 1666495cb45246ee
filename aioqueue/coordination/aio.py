"""The async face of coordinating: `Coordinator`, `QueueRunner`, `LooperTask`; asyncio and trio."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import closing
from functools import partial
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import anyio

from aioqueue.arguments import checked_grace, checked_seconds, function_name, is_coroutine_function
from aioqueue.coordination.classify import (
    Call,
    Classification,
    as_failure,
    classify,
    is_cancellation,
    is_fatal,
    running_task,
    without_stops,
)
from aioqueue.coordination.core import DEFAULT_GRACE, THE_BLOCK, CoordinatorCore
from aioqueue.coordination.face import CoordinatorFace
from aioqueue.coordination.misuse import (
    call_watched,
    cannot_start,
    described,
    refusal,
    refuse_generators,
    refuse_result,
)
from aioqueue.coordination.runs import RUNNER_ARGUMENTS, Run, RunnerFace
from aioqueue.coordination.shutdown import (
    SLOW_STOP,
    failure_group,
    still_running,
    warn_of_slow_stop,
)
from aioqueue.coordination.tasks import (
    Tasks,
    ask_again,
    cancellation,
    cancellations,
    new_tasks,
    outlast,
)
from aioqueue.coordination.workers import Worker, WorkerPlan, as_worker
from aioqueue.docstrings import with_sections
from aioqueue.errors import InvalidArgumentError
from aioqueue.forks import is_refusing
from aioqueue.waiting import current_waker, defers_ctrl_c, lets_ctrl_c_in

__all__ = ("AsyncCoordinator", "LooperTask", "QueueRunner", "Startable")


class Startable(Protocol):
    """What `Coordinator.start` takes: a `QueueRunner` or a `LooperTask`."""

    def _start(self, coordinator: AsyncCoordinator) -> None:
        """Start the workers, and let the coordinator know them."""


class AsyncCoordinator(CoordinatorFace):
    """The methods of the async face."""

    _world = "aio"
    _tasks: Tasks | None = None
    _soft_scopes: dict[anyio.CancelScope, None]
    _watches_stop: bool
    _block: Call

    def start(self, worker: Startable) -> None:
        """Start the workers of a `QueueRunner`, or a `LooperTask`, within the coordinator's block.

        At a stop, the tasks of a `QueueRunner` are cancelled; its threads, and a `LooperTask`, end
        after the call that they are in.

        Args:
            worker: what to start.

        Raises:
            RuntimeError: outside of ``async with``, in another event loop than that of the block,
                or the runner is running already.
            InvalidArgumentError: it is neither.
        """
        if self._tasks is None:
            raise RuntimeError(
                "start: workers run within the coordinator's block: use"
                " `async with aioqueue.Coordinator() as coord: coord.start(...)`"
            )
        if isinstance(worker, type) or not hasattr(worker, "_start"):
            raise cannot_start(worker, "worker", in_threads=False)
        worker._start(self)

    async def wait_for_stop(self) -> bool:
        await self._core.stopped.wait(current_waker())
        return True

    async def join(
        self,
        workers: Iterable[Any] | None = None,
        *,
        stop_grace_period: float = DEFAULT_GRACE,
        ignore_live: bool = False,
    ) -> None:
        grace = checked_grace(stop_grace_period, "stop_grace_period")
        with closing(self._core.joining(workers, grace, ignore_live)) as waits:
            for gate, seconds in waits:
                with anyio.move_on_after(seconds):
                    await gate.wait(current_waker())

    if not TYPE_CHECKING:  # a type checker is to see that they are not there
        __enter__ = __exit__ = refusal(
            "this coordinator is for coroutines: write `async with aioqueue.Coordinator() as"
            " coord:`, or in a thread `with aioqueue.sync.Coordinator() as coord:`"
        )

    # No coroutine functions: the first step of a function sees Ctrl-C that came before, and defers
    # it; that of a coroutine comes later, and in between its caller would drop the coroutine.

    @defers_ctrl_c
    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        current_waker()  # from here on, Ctrl-C waits in trio until the block has been entered
        return self._entered()

    @defers_ctrl_c
    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Coroutine[Any, Any, bool | None]:  # and no bool: checkers would take what follows for
        return self._left(error)  # reachable

    @defers_ctrl_c
    async def _entered(self) -> Self:
        if self._tasks is not None:
            raise RuntimeError("this coordinator's block has been entered already")
        self._enter()
        self._soft_scopes = {}
        self._watches_stop = False
        self._block = Call()
        tasks = new_tasks(lambda error: self._core.report(error, "of the coordinator"))
        await tasks.begin()
        self._tasks = tasks
        return self

    @defers_ctrl_c
    async def _left(self, error: BaseException | None) -> bool | None:
        """Stop, join, and report; see `__aexit__`."""
        assert self._tasks is not None
        if is_refusing(self._core) and error is not None:
            return None  # a fork is left, as by `SystemExit`: nothing runs in it
        asked = cancellations()
        failed, going_on = self._what_left_the_block(error)
        self._block.task = None  # which may be kept by nobody but this
        struck = self._core.stop_by_all_means(failed, THE_BLOCK)
        if going_on is None or not _is_above_all(going_on):
            going_on = going_on if struck is None else struck
        self._tasks.check_leaving()
        if going_on is not None and not _is_above_all(going_on):
            self._tasks.cancel()
        failure, interrupt = await self._join_all()
        tasks, self._tasks = self._tasks, None
        ended_by = await tasks.end()
        if isinstance(ended_by, KeyboardInterrupt):
            interrupt = interrupt or ended_by
        elif ended_by is not None and not is_cancellation(ended_by):
            failure = ended_by
        if interrupt is not None and (going_on is None or not _is_above_all(going_on)):
            going_on = interrupt
        if going_on is None:
            going_on = ended_by
            if cancellations() > asked:
                going_on = await cancellation()
        try:
            return self._leave(error, failed, failure, going_on)
        finally:
            # They have this frame in their tracebacks.
            del error, failed, failure, going_on, struck, interrupt, ended_by

    def _what_left_the_block(
        self, error: BaseException | None
    ) -> tuple[BaseException | None, BaseException | None]:
        """What there is to report of an exception that leaves the block, and what goes on from it.

        Mostly it is one of the two; but a group may hold failures beside the cancellation.
        """
        if error is None or self._core.has_raised(error):
            return error, None
        if _is_above_all(error):
            return None, error
        failed = without_stops(error, self._block)
        going_on = None if failed is error else error
        if failed is not None and not isinstance(failed, Exception):
            what = f"the block raised {type(failed).__name__}, but was not cancelled"
            failed = as_failure(failed, f"{what}: something that it awaited was")
        return failed, going_on

    async def _join_all(self) -> tuple[BaseException | None, KeyboardInterrupt | None]:
        """Join all workers, even if this task is cancelled.

        Returns:
            What there is to report, and the Ctrl-C that has struck meanwhile, if one has.
        """
        assert self._tasks is not None
        interrupt: KeyboardInterrupt | None = None
        try:
            with closing(self._core.joining(None, self._grace, False, leaving=True)) as waits:
                for gate, seconds in waits:
                    try:
                        await outlast(gate, seconds, self._tasks.cancel)
                    except KeyboardInterrupt as error:
                        interrupt = interrupt or error
        except GeneratorExit:
            raise  # nobody runs us any more
        except BaseExceptionGroup as group:
            return group, interrupt
        except Exception as error:
            return failure_group([error]), interrupt
        except BaseException as error:
            failures = self._core.failures()
            error.__context__ = failure_group(failures) if failures else None
            return error, interrupt
        return None, interrupt

    def _leave(
        self,
        error: BaseException | None,
        failed: BaseException | None,
        failure: BaseException | None,
        going_on: BaseException | None,
    ) -> bool:
        """How the block is left. Failures win over a cancellation, but nothing over Ctrl-C."""
        try:
            if going_on is not None and _is_above_all(going_on):
                if going_on is not error:
                    raise going_on from failure
                if failure is not None:
                    going_on.__context__ = failure
                return False
            if failure is not None:
                ask_again(self._block.cancellations)
                raise failure from None
            if going_on is None:
                return failed is not None  # then it was a clean stop, or it would be in the group
            if going_on is error:
                return False
            raise going_on
        finally:
            del error, failed, failure, going_on  # as above

    def _spawn(
        self,
        name: str,
        body: Callable[[], Awaitable[object]],
        *,
        cancel_at_stop: bool,
        lost: Callable[[], object] = lambda: None,
    ) -> None:
        """Run a worker as a task; `body` reports its own failures, or is lost before it begins."""
        assert self._tasks is not None
        self._tasks.check_loop("start")
        task, scope = self._tasks.start(name, body, lost)
        self._core.register(task)
        if cancel_at_stop:
            self._soft_scopes[scope] = None
            task.when_ended(partial(self._soft_scopes.pop, scope, None))
            if not self._watches_stop:
                self._watches_stop = True
                self._core.call_on_stop(self._stop_soon)

    def _stop_soon(self) -> None:
        """The stop, in any thread: cancel those tasks that it does not end by itself.

        Workers that wait for their queue are being woken and end in this round of the loop, which
        costs less than being cancelled; the others are cancelled in the next.
        """
        tasks = self._tasks
        if tasks is not None:
            tasks.soon(lambda: tasks.soon(self._cancel_at_stop))

    def _cancel_at_stop(self) -> None:
        self._watches_stop = False  # for tasks that are started from now on
        scopes, self._soft_scopes = self._soft_scopes, {}
        for scope in scopes:
            scope.cancel()


def _is_above_all(error: BaseException) -> bool:
    """Whether it is Ctrl-C or the like, or the end of an async generator around the block."""
    return is_fatal(error) or isinstance(error, GeneratorExit)


class QueueRunner(RunnerFace):
    """Keeps several workers filling one queue, within a `Coordinator` or by itself.

    Each worker calls its enqueue op again and again: a coroutine function as a task, a plain
    function on a thread of its own that loops there, so that nothing crosses into the event loop
    per example. A task whose op never waits lets others run all the same, every five milliseconds.

    A worker that meets a queue-closed exception ends quietly; when the last one has ended so, the
    queue is closed. Any other failure is reported to the coordinator, and the queue is closed with
    it as the cause. At a stop the queue is closed with its pending enqueues cancelled. Without a
    coordinator (`run`) failures collect in ``exceptions_raised``, and the queue is closed with the
    first as the cause once no worker is left.
    """

    __doc__ = with_sections(__doc__, RUNNER_ARGUMENTS)

    @defers_ctrl_c
    async def run(self) -> None:
        """Run all workers until they have ended, without a coordinator.

        Raises:
            ExceptionGroup: the failures in ``exceptions_raised``, each with a note naming its
                worker; and a `StillRunningError`, if threads had to be given up. (A
                `BaseExceptionGroup`, if one raised `SystemExit` or the like.)
            RuntimeError: it is running already.

        Cancellation:
            Closes the queue with its pending enqueues cancelled, cancels the tasks, and waits for
            the threads to end the calls that they are in, but for no more than two minutes. Then
            the cancellation goes on, unless there are failures, which win over it.
        """
        asked = cancellations()
        run = self._begin(None)
        tasks = new_tasks(lambda error: run.failed("of the runner", error))
        await tasks.begin()
        cancelled: BaseException | None = None
        workers: list[Worker] = []

        def start(plan: WorkerPlan) -> None:
            workers.append(self._start_worker(run, plan, tasks))

        run.latecomers.are_started_by(start, tasks=False)
        run.latecomers.are_started_by(
            lambda plan: tasks.from_outside(partial(start, plan)), tasks=True
        )
        try:
            for plan in run.plans:
                with run.starting([plan]):
                    start(plan)
            await run.ended.wait(current_waker())
        except BaseException as error:
            run.cancel()
            tasks.cancel()
            if isinstance(error, GeneratorExit):
                raise  # nobody runs us any more
            await self._outlast(run, workers)
            cancelled = error
        ended_by = await tasks.end()
        if cancelled is not None and not is_cancellation(cancelled):
            raise cancelled
        if self.exceptions_raised:
            ask_again(asked)
            raise failure_group(list(self.exceptions_raised)) from None
        cancelled = cancelled or ended_by
        if cancelled is None and cancellations() > asked:
            cancelled = asyncio.CancelledError()
        if cancelled is not None:
            raise cancelled

    def _start_worker(self, run: Run, plan: WorkerPlan, tasks: Tasks) -> Worker:
        if plan.is_task:
            lost = partial(run.worker_lost, plan)
            return tasks.start(plan.name, partial(run.loop_async, plan), lost)[0]
        thread = run.thread(plan, daemon=True)
        run.knows(thread)
        thread.start()
        return as_worker(thread)

    async def _outlast(self, run: Run, workers: list[Worker]) -> None:
        """Wait until a run that was cancelled has ended, but not without end."""
        await outlast(run.ended, SLOW_STOP)
        if not run.ended.is_open:
            warn_of_slow_stop([one for one in workers if one.is_alive()], DEFAULT_GRACE)
            await outlast(run.ended, DEFAULT_GRACE - SLOW_STOP)
        if not run.ended.is_open:
            stragglers = [one for one in workers if one.is_alive()]
            self.exceptions_raised.append(still_running(stragglers))

    def _start(self, coordinator: AsyncCoordinator) -> None:
        run = self._begin(coordinator._core)
        tasks = coordinator._tasks
        assert tasks is not None
        start = partial(self._start_in, coordinator, run)
        run.latecomers.are_started_by(start, tasks=False)
        run.latecomers.are_started_by(
            lambda plan: tasks.from_outside(partial(self._start_late, start, run, plan)), tasks=True
        )
        for plan in run.plans:
            with run.starting([plan]):
                start(plan)

    def _start_in(self, coordinator: AsyncCoordinator, run: Run, plan: WorkerPlan) -> None:
        if plan.is_task:
            body = partial(run.loop_async, plan)
            lost = partial(run.worker_lost, plan)
            coordinator._spawn(plan.name, body, cancel_at_stop=True, lost=lost)
        else:
            thread = run.thread(plan, daemon=True)
            coordinator.register(thread)  # before it waits for anything that a stop is to end
            thread.start()

    def _start_late(self, start: Callable[[WorkerPlan], None], run: Run, plan: WorkerPlan) -> None:
        """Start a task that was added while others run; called in their loop."""
        if run.stopped.is_open:
            run.worker_ended(plan, None)
        else:
            start(plan)


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
            raise InvalidArgumentError(f"target: got {described(target)}; expected a callable")
        refuse_generators(target)
        self._interval = None if interval is None else checked_seconds(interval, "interval")
        self._target = target
        self._call = partial(target, *args, **(kwargs or {}))
        self.name = f"LooperTask-{function_name(target)}"

    def _start(self, coordinator: AsyncCoordinator) -> None:
        coordinator._spawn(self.name, partial(self._loop, coordinator), cancel_at_stop=False)

    @defers_ctrl_c
    async def _loop(self, coordinator: AsyncCoordinator) -> None:
        owner = running_task()
        coordinator._core.wake_me_at_stop()
        try:
            await self._call_again_and_again(coordinator)
        except BaseException as error:
            if classify(error, owner=owner) is Classification.STOP:
                raise
            coordinator._core.report(_stray_of(self.name, error), self.name)
        finally:
            del coordinator  # which has the failure, which has this frame

    @lets_ctrl_c_in
    async def _call_again_and_again(self, coordinator: AsyncCoordinator) -> None:
        try:
            report = partial(_report_to, weakref.ref(coordinator._core), self.name)
            next_call = monotonic()
            is_first = True
            while not coordinator.should_stop():
                if is_coroutine_function(self._target):
                    await self._call()
                elif is_first:
                    call_watched(self.name, self._call, report)
                else:
                    refuse_result(self.name, self._call())
                is_first = False
                next_call += self._interval or 0.0
                with anyio.move_on_after(max(0.0, next_call - monotonic())):
                    await coordinator.wait_for_stop()
        finally:
            del coordinator  # as above


def _report_to(core: Callable[[], CoordinatorCore | None], name: str, error: BaseException) -> None:
    known = core()
    if known is not None:
        known.report(error, name)


def _stray_of(name: str, error: BaseException) -> BaseException:
    """What a looper has raised: a cancellation that nobody has asked of it is wrapped."""
    if isinstance(error, Exception):
        return error
    return as_failure(error, f"{name} raised {type(error).__name__}, but was not cancelled")
