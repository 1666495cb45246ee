"""The async face of coordination: `Coordinator`, `QueueRunner`, `LooperTask`; asyncio and trio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import closing
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Protocol, Self

import anyio

from aioqueue.base.arguments import (
    checked_grace,
    checked_seconds,
    function_name,
    is_coroutine_function,
)
from aioqueue.base.hints import refuse_block
from aioqueue.base.public_names import public, with_sections
from aioqueue.base.tracebacks import SHORTENED, reraise, shorten
from aioqueue.coordination.cancellations import (
    AtStop,
    Call,
    WorkerScope,
    cancellation_to_raise,
    is_cancellation,
    repeat_cancellation,
)
from aioqueue.coordination.classify import (
    Classification,
    as_failure,
    classify,
    is_fatal,
    without_stops,
)
from aioqueue.coordination.coordinator_core import BLOCK_NAME
from aioqueue.coordination.methods import CoordinatorFace
from aioqueue.coordination.misuse import (
    cannot_start,
    describe_argument,
    refuse_generators,
    refuse_result,
)
from aioqueue.coordination.runs import Run, RunnerFace
from aioqueue.coordination.shutdown import (
    DEFAULT_GRACE,
    MIN_CLEAN_UP,
    SLOW_STOP,
    failure_group,
    still_running,
    warn_of_slow_stop,
    warn_of_stragglers,
)
from aioqueue.coordination.tasks import Tasks, new_tasks, wait_shielded
from aioqueue.coordination.workers import RUNNER_ARGUMENTS, Worker, WorkerPlan, as_worker
from aioqueue.errors import InvalidArgumentError, interrupt_of
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.waker import allows_ctrl_c, defers_ctrl_c


class Startable(Protocol):
    """What `Coordinator.start` takes: a `QueueRunner` or a `LooperTask`."""

    def _start(self, coordinator: AsyncCoordinator) -> None:
        """Start the workers and register them with the coordinator."""


@refuse_block(
    "with",
    "this coordinator is for coroutines: write `async with aioqueue.Coordinator() as"
    " coord:`, or in a thread `with aioqueue.sync.Coordinator() as coord:`",
)
class AsyncCoordinator(CoordinatorFace):
    """The methods of the async face."""

    _world = "aio"
    _tasks: Tasks | None = None
    _watches_stop: bool
    _block: Call

    def start(self, worker: Startable) -> None:
        """Start the workers of a `QueueRunner`, or a `LooperTask`. Call it inside the block.

        A stop cancels the tasks of a `QueueRunner`: in asyncio once, so that their clean-up may
        await, and once more when the grace period ends; in trio at each await. Its threads, and a
        `LooperTask`, end after their current call; the latter is cancelled when the grace period
        ends.

        Args:
            worker: the `QueueRunner` or `LooperTask` to start.

        Raises:
            RuntimeError: you are outside of the ``async with`` block or in another event loop, or
                the runner is running already.
            InvalidArgumentError: the worker is neither.
        """
        if self._tasks is None:
            raise RuntimeError(
                "start: the coordinator's block has not been entered: use"
                " `async with aioqueue.Coordinator() as coord: coord.start(...)`"
            )
        if isinstance(worker, type) or not hasattr(worker, "_start"):
            raise cannot_start(worker, "worker", in_threads=False)
        worker._start(self)

    async def wait_for_stop(self) -> bool:
        await self._core.stopped.wait(current_waker(), until_stop=True)
        return True

    async def join(
        self,
        workers: Iterable[Any] | None = None,
        *,
        stop_grace_period: float = DEFAULT_GRACE,
        ignore_live: bool = False,
    ) -> None:
        grace = checked_grace(stop_grace_period, "stop_grace_period")
        failure: BaseException | None = None
        try:
            try:
                with closing(self._core.joining(workers, grace, ignore_live)) as waits:
                    for gate, seconds in waits:
                        with anyio.move_on_after(seconds):
                            await gate.wait(current_waker(), until_stop=True)
            except BaseExceptionGroup as group:
                failure = self._unwrap_if_asked(group)
                if failure is group:
                    raise
            if failure is not None:
                reraise(failure)
        except BaseException as error:
            shorten(error)
            raise
        finally:
            del failure  # which has this frame in its traceback

    # Plain functions that return coroutines. Ctrl-C may strike before a coroutine's first step, and
    # its caller would drop the coroutine unrun. A function defers a Ctrl-C that strikes before it.

    @defers_ctrl_c
    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        current_waker()  # in trio, this defers Ctrl-C until the block has been entered
        return self._enter_block()

    @defers_ctrl_c
    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Coroutine[Any, Any, bool | None]:  # `bool` would mean to type checkers that the block may
        return self._leave_block(error)  # swallow exceptions

    @defers_ctrl_c
    async def _enter_block(self) -> Self:
        if self._tasks is not None:
            raise RuntimeError("this coordinator's block has been entered already")
        self._enter()
        self._watches_stop = False
        self._block = Call()
        tasks = new_tasks(lambda error: self._core.report(error, "of the coordinator"))
        await tasks.begin()
        self._tasks = tasks
        self._end_joins_at_stop(current_waker().runner())
        return self

    @defers_ctrl_c
    async def _leave_block(self, error: BaseException | None) -> bool | None:
        """Stop, join, and report: the body of `__aexit__`."""
        assert self._tasks is not None
        if self._leaves_inherited_block(error):
            return None  # a fork leaves the block, by `SystemExit` say: it has no workers
        leaving = Call()  # a cancellation from here on is raised when all have been joined
        failed, reraised = self._split_block_error(error)
        reraised = None if reraised is None else interrupt_of(reraised)
        self._block.task = None  # the call must not keep the task alive any longer
        stop_interrupt = self._core.stop_despite_interrupts(failed, BLOCK_NAME)
        if reraised is None or not _takes_precedence(reraised):
            reraised = reraised if stop_interrupt is None else stop_interrupt
        # After the stop: in a wrong loop nothing can be joined, but the workers end nevertheless.
        self._tasks.check_leaving()
        # A cancelled block cancels its tasks at once. Else they have their grace.
        if reraised is not None and not _takes_precedence(reraised):
            self._tasks.cancel()
        failure, interrupt = await self._join_all()
        # From here on `start` refuses: `end` cancels what still runs, and waits for it.
        tasks, self._tasks = self._tasks, None
        warn_of_stragglers(failure, tasks.running())
        ended_by = await tasks.end()
        if isinstance(ended_by, KeyboardInterrupt):
            interrupt = interrupt or ended_by
        elif ended_by is not None and not is_cancellation(ended_by):
            failure = ended_by
        if interrupt is not None and (reraised is None or not _takes_precedence(reraised)):
            reraised = interrupt
        if reraised is None:
            reraised = ended_by
            if leaving.is_cancel_delivered():
                reraised = await cancellation_to_raise()
        if failure is not None:
            failure = self._unwrap_if_asked(failure, error)
        if error is not None:
            shorten(error)
        try:
            return self._leave(error, failed, failure, reraised)
        except BaseException as raised:
            shorten(raised)
            raise
        finally:
            # Their tracebacks refer to this frame: break the reference cycle.
            del error, failed, failure, reraised, stop_interrupt, interrupt, ended_by

    def _split_block_error(
        self, error: BaseException | None
    ) -> tuple[BaseException | None, BaseException | None]:
        """Split an exception that leaves the block into the failure to report and what to re-raise.

        Mostly one of the two is ``None``. A group may hold failures beside the cancellation.
        """
        # What a join inside has raised is recorded. As a failure it adds nothing, and the report
        # raises it once more.
        if error is None or self._core.was_raised_by_join(error):
            return error, None
        if _takes_precedence(error):
            return None, error
        failed = without_stops(error, self._block)
        reraised = None if failed is error else error
        # A stray cancellation must not leave the block as one: code outside would take it for its
        # own, or ignore it.
        if failed is not None and not isinstance(failed, Exception):
            what = f"the block raised {type(failed).__name__}, but was not cancelled"
            failed = as_failure(failed, f"{what}: something that it awaited was")
        return failed, reraised

    async def _join_all(self) -> tuple[BaseException | None, KeyboardInterrupt | None]:
        """Join all workers, even if this task is cancelled meanwhile.

        Returns:
            The failure to report, and the Ctrl-C that struck during the join, if any.
        """
        assert self._tasks is not None
        interrupt: KeyboardInterrupt | None = None
        try:
            with closing(self._core.joining(None, self._grace, False, leaving=True)) as waits:
                for gate, seconds in waits:
                    try:
                        await wait_shielded(gate, seconds, self._tasks.cancel)
                    except KeyboardInterrupt as error:
                        interrupt = interrupt or error
        except GeneratorExit:
            raise  # the event loop is gone and will not resume this coroutine
        # Returned, not raised: the tasks must end before anything leaves the block.
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
        reraised: BaseException | None,
    ) -> bool:
        """Leave the block. Failures take precedence over a cancellation, Ctrl-C over everything."""
        try:
            if reraised is not None and _takes_precedence(reraised):
                if reraised is not error:
                    # Both are shown: as the cause, or behind the cause that it has already.
                    if reraised.__cause__ is None:
                        raise reraised from failure
                    if failure is not None:
                        reraised.__cause__.__context__ = failure
                    raise reraised
                if failure is not None:
                    reraised.__context__ = failure
                return False
            if failure is not None:
                # The failure hides the cancellation of this task, which must not be lost.
                repeat_cancellation(self._block)
            if failure is error is not None:
                return False
            if isinstance(failure, BaseExceptionGroup):
                raise failure from None
            if failure is not None:
                reraise(failure)
            if reraised is None:
                return failed is not None  # the group lacks it, so it was a clean stop: swallow it
            if reraised is error:
                return False
            raise reraised
        finally:
            del error, failed, failure, reraised  # breaks reference cycles, as in `_leave_block`

    def _spawn(
        self,
        name: str,
        body: Callable[[], Awaitable[object]],
        *,
        cancel_at_stop: bool,
        never_ran: Callable[[], object] = lambda: None,
    ) -> WorkerScope:
        """Run a worker as a task; return the scope around it.

        `body` reports its failures; `never_ran` runs if it never began.
        """
        assert self._tasks is not None
        self._tasks.check_loop("start")
        task, scope = self._tasks.start(name, body, never_ran)
        # Before the callback is registered, which may call at once, if the stop has come already.
        scope.at_stop = AtStop.CANCEL if cancel_at_stop else AtStop.END_WAITS
        self._core.register(task)
        if not self._watches_stop:
            self._watches_stop = True
            self._core.call_on_stop(self._schedule_stop)
        return scope

    def _schedule_stop(self) -> None:
        """Handle a stop, in any thread: end the tasks, or their waits, that it does not end itself.

        The stop wakes the workers that wait for their queue. They end in the loop's next round,
        which costs less than cancelling them. So the rest are cancelled one round later.
        """
        tasks = self._tasks
        if tasks is not None:
            tasks.call_soon(lambda: tasks.call_soon(partial(self._end_at_stop, tasks)))

    def _end_at_stop(self, tasks: Tasks) -> None:
        # In this order: a task that starts after this registers the callback again, and one that
        # has started before is among the scopes.
        self._watches_stop = False
        scopes = tasks.scopes()
        cancelled = [scope for scope in scopes if scope.at_stop is AtStop.CANCEL]
        ended = [scope for scope in scopes if scope.at_stop is AtStop.END_WAITS]
        for scope in scopes:
            scope.at_stop = AtStop.NOTHING  # another stop is for those that start after this one
        tasks.stop(cancelled)
        tasks.stop(ended, WorkerScope.end_waits)


def _takes_precedence(error: BaseException) -> bool:
    """Return whether nothing may hide it: Ctrl-C and the like, or the close of a generator."""
    return is_fatal(error) or isinstance(error, GeneratorExit)


@public("aioqueue", hints="coordinators")
class QueueRunner(RunnerFace):
    """Keeps several workers filling one queue, in a `Coordinator` or on its own.

    Each worker calls its enqueue op in a loop: a coroutine function in a task, a plain function on
    its own thread, so that no element costs a switch to the event loop. A task whose op never waits
    still lets other tasks run, every five milliseconds.

    A queue-closed exception ends a worker without a report; when the last worker has ended so, the
    runner closes the queue. Any other failure goes to the coordinator, and closes the queue with
    that failure as the cause. A stop closes the queue and cancels its pending enqueues. Without a
    coordinator (`run`), ``exceptions_raised`` collects the failures. When the last worker has
    ended, the queue is closed with the first failure as the cause.

    With ``None`` in place of the queue, the ops fill none, and there is nothing to close: a learner
    that only takes, say. All other rules are the same.
    """

    __doc__ = with_sections(__doc__, RUNNER_ARGUMENTS)

    @defers_ctrl_c
    async def run(self) -> None:
        """Run all workers until they have ended, without a coordinator.

        Raises:
            ExceptionGroup: the failures in ``exceptions_raised``, each with a note that names its
                worker; and a `StillRunningError` if the runner gave up waiting for threads. (A
                `BaseExceptionGroup` if a worker raised `SystemExit` or the like.)
            RuntimeError: the runner is running already.

        Cancellation:
            Closes the queue, cancels its pending enqueues and the tasks, and waits up to two
            minutes for the clean-up of the tasks, and for the threads to end their current calls.
            Tasks that still run are cancelled once more. The call then raises the cancellation; if
            workers have failed, it raises the failures instead.
        """
        with SHORTENED:
            await self._run_to_the_end()

    @defers_ctrl_c
    async def _run_to_the_end(self) -> None:
        call = Call()
        run = self._begin(None)
        tasks = new_tasks(lambda error: run.failed("of the runner", error))
        await tasks.begin()
        cancelled: BaseException | None = None
        workers: list[Worker] = []

        def start(plan: WorkerPlan) -> None:
            workers.append(self._start_worker(run, plan, tasks))

        run.added_workers.set_starter(start, tasks=False)
        run.added_workers.set_starter(
            lambda plan: tasks.start_from_any_thread(partial(start, plan)), tasks=True
        )
        try:
            run.start_each(start)
            await run.ended.wait(current_waker())
        except BaseException as error:
            # The queue first: a worker that waits for it should see it closed.
            run.cancel()
            tasks.cancel()
            if isinstance(error, GeneratorExit):
                raise  # the event loop is gone and will not resume this coroutine
            await self._wait_for_cancelled_run(run, workers, tasks)
            cancelled = error
        ended_by = await tasks.end()
        if cancelled is not None and not is_cancellation(cancelled):
            raise cancelled
        if self.exceptions_raised:
            repeat_cancellation(call)
            failure = interrupt_of(failure_group(list(self.exceptions_raised)))
            try:
                raise failure from failure.__cause__
            finally:
                del failure  # its traceback has this frame: that would be a cycle
        cancelled = cancelled or ended_by
        if cancelled is None and call.is_cancel_delivered():
            cancelled = asyncio.CancelledError()
        if cancelled is not None:
            raise cancelled

    def _start_worker(self, run: Run, plan: WorkerPlan, tasks: Tasks) -> Worker:
        if plan.is_task:
            never_ran = partial(run.worker_never_ran, plan)
            task, scope = tasks.start(plan.name, partial(run.loop_async, plan), never_ran)
            scope.filled_queue, scope.should_stop = run.filled._core, run.should_stop
            return task
        thread = run.thread(plan, daemon=True)
        run.add_thread(thread)
        thread.start()
        return as_worker(thread)

    async def _wait_for_cancelled_run(self, run: Run, workers: list[Worker], tasks: Tasks) -> None:
        """Wait for the end of a cancelled run, up to a limit; then cancel its tasks again."""
        await wait_shielded(run.ended, SLOW_STOP)
        if not run.ended.is_open:
            warn_of_slow_stop([one for one in workers if one.is_alive()], DEFAULT_GRACE)
            await wait_shielded(run.ended, DEFAULT_GRACE - SLOW_STOP)
        if not run.ended.is_open and any(plan.is_task for plan in run.plans):
            tasks.cancel_again()
            await wait_shielded(run.ended, max(DEFAULT_GRACE, MIN_CLEAN_UP))
        if not run.ended.is_open:
            stragglers = [one for one in workers if one.is_alive()]
            error = still_running(stragglers)
            self.exceptions_raised.append(error)
            warn_of_stragglers(error, tasks.running())

    def _start(self, coordinator: AsyncCoordinator) -> None:
        run = self._begin(coordinator._core)
        tasks = coordinator._tasks
        assert tasks is not None
        start = partial(self._start_in, coordinator, run)
        run.added_workers.set_starter(start, tasks=False)
        run.added_workers.set_starter(
            lambda plan: tasks.start_from_any_thread(partial(self._start_late, start, run, plan)),
            tasks=True,
        )
        run.start_each(start)

    def _start_in(self, coordinator: AsyncCoordinator, run: Run, plan: WorkerPlan) -> None:
        if plan.is_task:
            body = partial(run.loop_async, plan)
            never_ran = partial(run.worker_never_ran, plan)
            scope = coordinator._spawn(plan.name, body, cancel_at_stop=True, never_ran=never_ran)
            scope.filled_queue, scope.should_stop = run.filled._core, run.should_stop
        else:
            thread = run.thread(plan, daemon=True)
            coordinator.register(thread)  # before it starts: a stop must find it in its first wait
            thread.start()

    def _start_late(self, start: Callable[[WorkerPlan], None], run: Run, plan: WorkerPlan) -> None:
        """Start a task that was added during the run. Runs in the loop of the other tasks."""
        if run.stopped.is_open:
            run.worker_ended(plan, None)
        else:
            start(plan)


@public("aioqueue", hints="coordinators")
class LooperTask:
    """Calls a function at a fixed interval until the coordinator stops; `LooperThread` as a task.

    The first call is made at once and starts a fixed grid of times. Late calls are made up for
    without a pause.

    Args:
        interval: seconds between two calls; ``None`` calls without a pause.
        target: a function or coroutine function. Its failure is reported and stops all workers.
        args: positional arguments of the calls.
        kwargs: keyword arguments of the calls.

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
            raise InvalidArgumentError(
                f"target: got {describe_argument(target)}; expected a callable"
            )
        refuse_generators(target)
        self._interval = None if interval is None else checked_seconds(interval, "interval")
        self._target = target
        self._call = partial(target, *args, **(kwargs or {}))
        self.name: str = f"aioqueue-{function_name(target)}"

    def _start(self, coordinator: AsyncCoordinator) -> None:
        coordinator._spawn(self.name, partial(self._loop, coordinator), cancel_at_stop=False)

    @defers_ctrl_c
    async def _loop(self, coordinator: AsyncCoordinator) -> None:
        call = Call()
        try:
            await self._call_repeatedly(coordinator, call)
        except BaseException as error:
            if classify(error, owner=call) is Classification.STOP:
                raise
            coordinator._core.report(_failure_of_looper(self.name, error), self.name)
        finally:
            del coordinator  # it refers to the failure, which refers to this frame

    @allows_ctrl_c
    async def _call_repeatedly(self, coordinator: AsyncCoordinator, call: Call) -> None:
        try:
            next_call = monotonic()
            while not coordinator.should_stop():
                call.renew()
                if is_coroutine_function(self._target):
                    await self._call()
                else:
                    refuse_result(self.name, self._call())
                next_call += self._interval or 0.0
                call.renew()
                with anyio.move_on_after(max(0.0, next_call - monotonic())):
                    await coordinator.wait_for_stop()
        finally:
            del coordinator  # breaks the same reference cycle


def _failure_of_looper(name: str, error: BaseException) -> BaseException:
    """Return the failure of a looper. A cancellation not requested of it is wrapped."""
    if isinstance(error, Exception):
        return error
    return as_failure(error, f"{name} raised {type(error).__name__}, but was not cancelled")
