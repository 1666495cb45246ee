"""The blocking face of coordination: `Coordinator`, `QueueRunner` and `LooperThread`."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # event loops use it; too late once main has ended
import contextvars
import threading
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import closing
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Protocol, Self

from aioqueue.base.arguments import (
    checked_grace,
    checked_seconds,
    function_name,
    is_coroutine_function,
)
from aioqueue.base.hints import refuse_block
from aioqueue.base.public_names import public, with_sections
from aioqueue.base.tracebacks import reraise, shorten
from aioqueue.coordination.coordinator_core import BLOCK_NAME
from aioqueue.coordination.methods import CoordinatorFace
from aioqueue.coordination.misuse import (
    cannot_start,
    describe_argument,
    refuse_generators,
    refuse_result,
)
from aioqueue.coordination.runs import Run, RunnerFace
from aioqueue.coordination.shutdown import DEFAULT_GRACE, failure_group
from aioqueue.coordination.tasks import new_loop_runner, new_tasks, wait_shielded
from aioqueue.coordination.workers import RUNNER_ARGUMENTS, LoopThread, WorkerPlan
from aioqueue.errors import CancelledError, InvalidArgumentError, interrupt_of
from aioqueue.worlds.scopes import CancelScope, Gate, current_scopes
from aioqueue.worlds.waker import in_event_loop


class ThreadStartable(Protocol):
    """What `ThreadCoordinator.start` takes besides a `QueueRunner`."""

    def _start_on_thread(self, coordinator: ThreadCoordinator) -> list[threading.Thread]:
        """Start threads, and register them with the coordinator."""


@refuse_block(
    "async with",
    "this coordinator is for threads: write `with aioqueue.sync.Coordinator() as coord:`,"
    " or in a coroutine `async with aioqueue.Coordinator() as coord:`",
)
class ThreadCoordinator(CoordinatorFace):
    """The methods of the blocking face."""

    _world = "sync"

    def start(self, runner: QueueRunner | ThreadStartable) -> list[threading.Thread]:
        """Start the workers of a `QueueRunner` as daemon threads, or the generation of rollouts.

        Args:
            runner: the runner whose workers to start; or what `RolloutQueue.generate` has returned.

        Returns:
            The threads. `join` waits for them without being given them.

        Raises:
            RuntimeError: the runner is running already.
            InvalidArgumentError: it is not an `aioqueue.sync.QueueRunner`.
        """
        if not isinstance(runner, QueueRunner):
            if isinstance(runner, type) or not hasattr(runner, "_start_on_thread"):
                raise cannot_start(runner, "runner", in_threads=True)
            return runner._start_on_thread(self)
        return runner.create_threads(coord=self, daemon=True, start=True)

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout")
        return _wait(self._core.stopped, timeout, "wait_for_stop", current_scopes())

    def join(
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
                self._wait_for_all(self._core.joining(workers, grace, ignore_live, blocking=True))
            except KeyboardInterrupt:
                self._core.warn_of_interrupt()
                raise
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

    def _wait_for_all(self, joining: Generator[tuple[Gate, float | None], None, None]) -> None:
        with closing(joining) as waits:
            for gate, seconds in waits:
                _wait(gate, seconds, "join")

    def __enter__(self) -> Self:
        if in_event_loop():
            raise RuntimeError(
                "leaving a coordinator's block would have to wait, and this thread's event loop is"
                " running: use `async with coord.aio` here, or an aioqueue.Coordinator"
            )
        self._enter()
        self._end_joins_at_stop(threading.current_thread())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:  # not `bool`: type checkers would think that the block swallows exceptions
        if self._leaves_inherited_block(error):
            return None  # a fork leaves the block, by `SystemExit` say: it has no workers
        # `SystemExit`, Ctrl-C and the like stop the workers, and leave the block as they are.
        is_failure = isinstance(error, Exception)
        first_interrupt = self._core.stop_despite_interrupts(
            error if is_failure else None, BLOCK_NAME
        )
        failure: BaseException | None = None
        while True:
            # A generator is used up by the exception that ends it: each attempt needs a new one.
            joining = self._core.joining(None, self._grace, False, blocking=True, leaving=True)
            try:
                self._wait_for_all(joining)
            except KeyboardInterrupt as interrupt:
                if first_interrupt is None and not isinstance(error, KeyboardInterrupt):
                    # Only the second Ctrl-C gives up the join. The first is raised at its end.
                    first_interrupt = interrupt
                    self._core.enter_block()  # the interrupted join has already left it
                    continue
                self._core.warn_of_interrupt()
                failure = self._with_failures(interrupt)
            except BaseException as ended_by:
                failure = self._with_failures(ended_by)
            break
        if failure is not None:
            failure = self._unwrap_if_asked(failure, error)
        if error is not None:
            shorten(error)
        try:
            return self._leave(error, failure, first_interrupt)
        except BaseException as raised:
            shorten(raised)
            raise
        finally:
            # Their tracebacks refer to this frame: break the cycle.
            del error, failure, first_interrupt

    def _leave(
        self,
        error: BaseException | None,
        failure: BaseException | None,
        first_interrupt: BaseException | None,
    ) -> bool:
        """Leave the block: raise what has to be raised, or return whether to swallow the error.

        Args:
            error: the exception that the block raised.
            failure: the exception that the join raised.
            first_interrupt: the interruption, such as Ctrl-C, that struck while the block was left.
        """
        try:
            is_failure = isinstance(error, Exception)
            if error is not None and not is_failure:
                if failure is not None or first_interrupt is not None:
                    # The traceback shows what failed, too.
                    error.__context__ = failure or first_interrupt
                interrupt = interrupt_of(error)
                if interrupt is not error:
                    raise interrupt
                return False
            if first_interrupt is not None:
                raise first_interrupt from failure
            if failure is error is not None:
                return False  # with ``raise_single``: Python goes on raising it, as if untouched
            # The group has the block's exception among its members: as a context it would be
            # shown twice.
            if isinstance(failure, BaseExceptionGroup):
                raise failure from None
            if failure is not None:
                reraise(failure)
            return is_failure  # the group lacks it, so it was a clean stop: swallow it
        finally:
            del error, failure, first_interrupt  # breaks reference cycles, as in `__exit__`

    def _with_failures(self, ended_by: BaseException) -> BaseException:
        """Combine the exception that ended a join with the failures, so that none is lost.

        Failures take precedence over a cancellation or an expired `CancelScope`, Ctrl-C over both.
        """
        failures = self._core.failures()
        # A group is the report of the join itself, and has all failures.
        if isinstance(ended_by, BaseExceptionGroup) or not failures:
            return ended_by
        group = failure_group(failures)
        first, then = (group, ended_by) if isinstance(ended_by, Exception) else (ended_by, group)
        first.__context__ = then
        return first


@public("aioqueue.sync", hints="coordinators")
class QueueRunner(RunnerFace):
    """Keeps several workers filling one queue, on threads.

    Each worker calls its enqueue op in a loop: a plain function on its own thread, all coroutine
    functions on one event loop in one more thread (uvloop, if it is installed).

    A queue-closed exception ends a worker without a report; when the last worker has ended so, the
    runner closes the queue. Any other failure goes to the coordinator, and closes the queue with
    that failure as the cause. A stop closes the queue and cancels its pending enqueues. Without a
    coordinator, ``exceptions_raised`` collects the failures. When the last worker has ended, the
    queue is closed with the first failure as the cause.

    With ``None`` in place of the queue, the ops fill none, and there is nothing to close: a learner
    that only takes, say. All other rules are the same.
    """

    __doc__ = with_sections(__doc__, RUNNER_ARGUMENTS)

    def create_threads(
        self,
        sess: object = None,
        coord: CoordinatorFace | None = None,
        daemon: bool = False,
        start: bool = False,
    ) -> list[threading.Thread]:
        """Make the threads that run the enqueue ops.

        Args:
            sess: not used; scripts written for TensorFlow 1 pass it.
            coord: the coordinator that gets the failures and requests the stop. Its join waits for
                the threads.
            daemon: whether the interpreter may end while the threads run. Threads that are not
                daemons do not keep it alive while they only wait: once the main thread has ended,
                they are asked to stop.
            start: whether to start the threads. If not, start each of them yourself: until all have
                run, the runner counts as running and makes no others.

        Returns:
            One thread per plain function among the enqueue ops, and one for all the coroutine
            functions.

        Raises:
            RuntimeError: earlier threads of this runner have not ended.
            InvalidArgumentError: ``coord`` is not a coordinator.
        """
        if coord is not None and not isinstance(coord, CoordinatorFace):
            raise InvalidArgumentError(f"coord: got {coord!r}; expected a Coordinator or None")
        # First of all, because Ctrl-C may interrupt its imports: nothing has to be undone yet.
        has_tasks = any(map(is_coroutine_function, self.enqueue_ops))
        run_tasks = new_loop_runner(_run_tasks) if has_tasks else None
        run = self._begin(None if coord is None else coord._core)
        threads: dict[threading.Thread, list[WorkerPlan]] = {
            run.thread(plan, daemon=daemon): [plan] for plan in run.plans if not plan.is_task
        }
        tasks = [plan for plan in run.plans if plan.is_task]
        if run_tasks is not None:
            context = contextvars.copy_context()
            with_loop = LoopThread(
                partial(context.run, partial(run_tasks, run, tasks)),
                f"aioqueue-{self.name}-event-loop",
                daemon=daemon,
            )
            threads[with_loop] = tasks
        run.added_workers.set_starter(partial(self._start_late, run, coord, daemon), tasks=False)
        # Registered before they start: a stop in between must find them in their first wait.
        for thread, plans in threads.items():
            run.add_thread(thread)
            if coord is not None:
                coord.register(thread)
            if start:
                with run.starting(plans):
                    thread.start()
        return list(threads)

    def _start_late(
        self, run: Run, coord: CoordinatorFace | None, daemon: bool, plan: WorkerPlan
    ) -> None:
        thread = run.thread(plan, daemon=daemon)
        thread.start()
        run.add_thread(thread)
        if coord is not None:
            coord.register(thread)


async def _run_tasks(run: Run, plans: list[WorkerPlan]) -> None:
    """Run the workers that are tasks: the main function of the thread with the event loop."""
    tasks = new_tasks(lambda error: run.failed("of the runner", error))
    await tasks.begin()
    all_ended = Gate()
    left = len(plans)
    thread = threading.current_thread()
    if isinstance(thread, LoopThread):
        thread.cancel_tasks_again = partial(tasks.call_soon, tasks.cancel_again)

    def ended() -> None:
        nonlocal left
        left -= 1
        if not left:
            all_ended.open()

    def start(plan: WorkerPlan) -> None:
        never_ran = partial(run.worker_never_ran, plan)
        task, _ = tasks.start(plan.name, partial(run.loop_async, plan), never_ran)
        if isinstance(thread, LoopThread):
            thread.tasks.append(task)
        task.when_ended(ended)

    def start_late(plan: WorkerPlan) -> None:
        nonlocal left
        # In the loop's thread, as `ended`: nothing comes between the question and the count.
        if all_ended.is_open:
            run.worker_ended(plan, None)
            return
        left += 1
        start(plan)

    for plan in plans:
        start(plan)
    run.added_workers.set_starter(
        lambda plan: tasks.start_from_any_thread(partial(start_late, plan)), tasks=True
    )
    run.call_on_stop(partial(tasks.call_soon, tasks.cancel))
    await wait_shielded(all_ended)  # an op may cancel every task of its loop, even this one
    await tasks.end()
    if isinstance(thread, LoopThread):
        thread.cancel_tasks_again = None
        thread.tasks.clear()


@public("aioqueue.sync", hints="coordinators")
class LooperThread(threading.Thread):
    """Calls a function at a fixed interval until the coordinator stops.

    The first call is made at once and starts a fixed grid of times. Late calls are made up for
    without a pause. Instead of passing a target you may override `start_loop`, `run_loop` and
    `stop_loop`. The thread is a daemon, and registers itself with the coordinator.

    Args:
        coord: the coordinator whose stop ends the loop, and that gets the failures.
        timer_interval_secs: seconds between two calls; ``None`` calls without a pause.
        target: the function that `run_loop` calls.
        args: positional arguments of the calls.
        kwargs: keyword arguments of the calls.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """

    def __init__(
        self,
        coord: CoordinatorFace,
        timer_interval_secs: float | None,
        target: Callable[..., object] | None = None,
        args: Iterable[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        if not isinstance(coord, CoordinatorFace):
            raise InvalidArgumentError(f"coord: got {coord!r}; expected a Coordinator")
        if target is None and (args or kwargs):
            raise InvalidArgumentError(
                f"args, kwargs: got {args!r}, {kwargs!r} without a target; expected a target to"
                " call with them"
            )
        if target is not None and (not callable(target) or is_coroutine_function(target)):
            raise InvalidArgumentError(
                f"target: got {describe_argument(target)}; expected a plain function or None:"
                " use an aioqueue.LooperTask for a coroutine function"
            )
        refuse_generators(target)
        name = "loop" if target is None else function_name(target)
        super().__init__(name=f"aioqueue-{name}", daemon=True)
        self._coord = coord
        self._interval = timer_interval_secs
        if timer_interval_secs is not None:
            self._interval = checked_seconds(timer_interval_secs, "timer_interval_secs")
        self._function = target
        self._positional = tuple(args or ())
        self._named = dict(kwargs or {})
        coord.register(self)

    @staticmethod
    def loop(
        coord: CoordinatorFace,
        timer_interval_secs: float | None,
        target: Callable[..., object],
        args: Iterable[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> LooperThread:
        """Make a looper thread and start it.

        Args:
            coord: as for the class.
            timer_interval_secs: seconds between two calls; ``None`` calls without a pause.
            target: the function to call.
            args: positional arguments of the calls.
            kwargs: keyword arguments of the calls.

        Raises:
            InvalidArgumentError: any argument is not as described.
        """
        looper = LooperThread(coord, timer_interval_secs, target, args, kwargs)
        looper.start()
        return looper

    def run(self) -> None:
        """Run the loop; `threading.Thread.start` calls this in the new thread."""
        core = self._coord._core
        try:
            self.start_loop()
            try:
                self._call_repeatedly()
            except CancelledError:
                # The stop ends a wait in `run_loop` by this exception; otherwise it is a failure.
                if not core.should_stop():
                    raise
            # The stop would end the waits of the clean-up, too.
            core.exempt_from_stop(self)
            self.stop_loop()
        except BaseException as error:
            core.report(error, self.name)
        finally:
            # Break a cycle: coordinator -> failure -> traceback -> these frames -> coordinator.
            del self._coord, self._function, self._positional, self._named
            del core, self

    def _call_repeatedly(self) -> None:
        core = self._coord._core
        next_call = monotonic()
        try:
            while not core.should_stop():
                # Checked here, too: an overridden `run_loop` may be a coroutine function.
                run_loop: Callable[[], object] = self.run_loop
                refuse_result(self.name, run_loop())
                next_call = self._pause(next_call)
        finally:
            del core, self  # breaks the same reference cycle

    def _pause(self, last_call: float) -> float:
        """Wait until the next call is due; return the time that it is due at."""
        next_call = last_call + (self._interval or 0.0)
        self._coord._core.stopped.wait_blocking(max(0.0, next_call - monotonic()))
        return next_call

    def start_loop(self) -> None:
        """Runs once, before the first call. Override it to prepare."""

    def run_loop(self) -> None:
        """Runs repeatedly. It calls the target, if there is one."""
        function, name = self._function, self.name
        arguments, named = self._positional, self._named
        del self  # breaks the same reference cycle
        if function is not None:
            refuse_result(name, function(*arguments, **named))

    def stop_loop(self) -> None:
        """Runs once, after the last call, unless a call failed. Override it to clean up.

        It may wait, for room in a queue for example. The stop interrupts calls of `run_loop` but
        not this one, which has the grace period of the join to end.
        """


def _wait(
    gate: Gate, seconds: float | None, method: str, scopes: Collection[CancelScope] | None = None
) -> bool:
    if gate.is_open:
        return True
    if in_event_loop():
        raise RuntimeError(
            f"{method} would have to wait, and this thread's event loop is running:"
            f" use `await coord.aio.{method}(...)` here"
        )
    return gate.wait_blocking(seconds, scopes)
