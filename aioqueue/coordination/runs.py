"""One run of a queue runner: its workers, and how their ends close the queue.

A worker calls its enqueue op in a loop, in a task or on its own thread. How it ends decides what
happens. The rules are the same for tasks and threads:

* A queue-closed exception, or a group of nothing else, ends it without a report: its input has
  ended. When the last worker has ended, the queue is closed. If a failure closed the input, that
  failure is passed on as the cause.
* A failure is reported to the coordinator and closes the queue at once. Without a coordinator the
  runner collects it, and the queue is closed when no worker is left.
* A stop ends all workers; `Run.cancel` closes the queue. If other code cancels the task of a
  worker, that ends only this worker, and is not a failure.

`classify` decides what an exception means, `shutdown` which run closes a queue that several fill.
"""

from __future__ import annotations

import contextvars
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from aioqueue.base.arguments import (
    EnqueueOp,
    function_name,
    is_coroutine_function,
    name_of_work,
)
from aioqueue.base.display_text import on_one_line
from aioqueue.base.hints import Hinted, hint_attributes
from aioqueue.coordination.cancellations import Call, is_cancellation
from aioqueue.coordination.classify import Classification, cause_of, classify
from aioqueue.coordination.coordinator_core import CoordinatorCore
from aioqueue.coordination.misuse import (
    checked_ops,
    name_failed_worker,
    refuse_result,
    refuse_returned_coroutine,
)
from aioqueue.coordination.no_queue import NoQueue
from aioqueue.coordination.restarts import Restart, RestartPolicy, checked_restart
from aioqueue.coordination.runner_metrics import op_stages
from aioqueue.coordination.shutdown import (
    begin_to_fill,
    close_unless_filled,
    end_to_fill,
    note_closed,
    stop_at_exit,
)
from aioqueue.coordination.tasks import CooperativeYield
from aioqueue.coordination.workers import AddedWorkers, WorkerPlan, failure_of_worker, format_end
from aioqueue.core.meters import Meter, current_meter
from aioqueue.errors import OutOfRangeError, counted
from aioqueue.queues.queue_core import QueueCore, QueueFace
from aioqueue.system.locks import synchronized
from aioqueue.telemetry.metrics.watch import StagePart, Watch
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate
from aioqueue.worlds.waker import Owner, allows_ctrl_c, current_worker, defers_ctrl_c

if TYPE_CHECKING:
    from aioqueue.telemetry.explain.explanation import ExplainedStage, ExplainedWorker

_CLOSING: Final = "that closes the queue"  # after "worker", in reports


class Run:
    """One run of a runner.

    Args:
        runner: the runner.
        core: the coordinator that gets the failures; ``None`` to collect them in the runner.
    """

    def __init__(self, runner: RunnerFace, core: CoordinatorCore | None) -> None:
        self.ended: Gate = Gate()
        self.stopped: Gate = Gate()
        self.began_in_time = True  # False if the queue was closed before the run began
        # Many workers often share one op: ask all about it once.
        ops = {id(op): op for op in runner.enqueue_ops}
        kinds = {key: (runner._work_of(op), is_coroutine_function(op)) for key, op in ops.items()}
        self.plans: list[WorkerPlan] = [
            WorkerPlan(op, number, *kinds[id(op)]) for number, op in enumerate(runner.enqueue_ops)
        ]
        self._numbers = itertools.count(len(self.plans))  # of workers that join later
        self._runner = runner
        queue = runner.queue
        self.filled: QueueFace | NoQueue = NoQueue(runner.name) if queue is None else queue
        self._core = core
        self._lock = threading.RLock()  # guards everything below; reentrant for signal handlers
        self._unfinished = dict.fromkeys(self.plans)
        self._left = len(self.plans)
        self._unstarted = set(self.plans)  # used only by the thread that starts the workers
        self._has_closed = False
        self._is_drained = False
        self._failure: BaseException | None = None  # the first one, ours or that of the input
        self._end_reason = "its workers were stopped"  # how the last worker ended
        self.added_workers: AddedWorkers[WorkerPlan] = AddedWorkers(
            self.should_stop, self._was_not_started
        )
        self._on_stop: list[Callable[[], object]] = []
        self._forget_calls: list[Callable[[], None]] = []  # these cancel `call_when_closed`
        self._threads: list[threading.Thread] = []
        # Ended runs whose own `close_op` is still to be called.
        self._inherited_runs: list[Run] = []
        self._inherited_failure: BaseException | None = None  # the first failure of all ended runs
        restart = runner.restart
        self.restarts: RestartPolicy | None = None if restart is None else RestartPolicy(restart)
        self.stages: list[StagePart] = []  # for monitors
        self.watch: Watch = Watch() if core is None else core.watch
        self.meters: dict[WorkerPlan, Meter] = {plan: Meter(plan.name) for plan in self.plans}

    def should_stop(self) -> bool:
        return self.stopped.is_open

    def cancel(self) -> None:
        """Stop: close the queue and cancel its pending enqueues, so that blocked workers wake."""
        # First of all: a worker that the closing wakes must see that this is a stop, or it would
        # take its closed queue for a failure.
        self.stopped.open()
        try:
            self._close(cancel=True)
        finally:  # even if the user's `cancel_op` raises
            for callback in self._take_stop_callbacks():
                callback()

    def drain(self) -> None:
        """Accept nothing new, finish what has begun, and end. Does not wait; any thread may call.

        Workers that take from a source queue continue until it ends. Others make no further calls.
        """
        if self._runner._drain_source is None:
            self._is_drained = True
            if self.restarts is not None:
                self.restarts.over.open()
        else:
            self._runner._drain_source()

    def in_flight(self) -> int:
        return self._runner._in_flight()

    @synchronized
    def unfinished_workers(self) -> tuple[str, ...]:
        return tuple(plan.name for plan in self._unfinished)

    def _may_continue(self) -> bool:
        return not (self.stopped.is_open or self._is_drained)

    def _was_closed(self) -> bool:
        """Return whether the queue was closed, and not because the run is to end."""
        return self._may_continue() and self.filled.is_closed()

    def add_thread(self, thread: threading.Thread) -> None:
        """Register a thread that will run workers. The exit of the program will ask it to stop."""
        self._threads.append(thread)
        if self._core is None:  # else the coordinator does it
            stop_at_exit(self)

    def worker_threads(self) -> list[threading.Thread]:
        return list(self._threads)

    def stop_at_exit(self) -> None:
        self.cancel()

    def call_on_stop(self, callback: Callable[[], object]) -> None:
        """Call back at the stop, in the thread that requests it; now, if it was requested."""
        # Added before the gate is read: a stop in between calls it, or it is called here. The list
        # is taken as a whole, under the lock, so nobody calls it twice.
        self._on_stop.append(callback)
        if self.stopped.is_open:
            for call in self._take_stop_callbacks():
                call()

    def call_when_over(self, callback: Callable[[], object]) -> None:
        """Call back when the run's output is no longer wanted: at its stop, or as its queue closes.

        A waiting worker needs only this call to learn of all such events: a stop of the
        coordinator, a consumer that leaves, or a failure of another run that fills the queue. A
        worker calls it when it begins. The queue keeps the callback until the run has ended.

        Args:
            callback: called in the thread where the event occurs, or now if it has occurred; maybe
                more than once. It must neither wait nor raise.
        """
        self._forget_calls.append(self.filled._core.call_when_closed(callback))
        self.call_on_stop(callback)

    def thread(self, plan: WorkerPlan, *, daemon: bool) -> threading.Thread:
        """Make the thread of a worker that is a plain function. It is not started."""
        context = contextvars.copy_context()
        return threading.Thread(
            target=context.run, args=(self.loop, plan), name=plan.name, daemon=daemon
        )

    def add_worker(self, op: EnqueueOp) -> None:
        """Start one more worker, as the others were started; none if the run is about to end.

        Raises:
            RuntimeError: the worker cannot be started, for want of threads say.
        """
        plan = self._add_plan(op)
        if plan is not None:
            self.added_workers.add(plan)

    def _was_not_started(self, plan: WorkerPlan) -> None:
        self.worker_ended(plan, None)

    @synchronized
    def _add_plan(self, op: EnqueueOp) -> WorkerPlan | None:
        """Add the plan of another worker; return ``None`` if all workers have ended."""
        # Under the lock of the count: once the last worker has ended, the queue is being closed,
        # and another worker would find it closed.
        if not self._left:
            return None
        self._left += 1
        work = self._runner._work_of(op)
        plan = WorkerPlan(op, next(self._numbers), work, is_coroutine_function(op))
        self._unfinished[plan] = None
        self.meters[plan] = Meter(plan.name)
        return plan

    def start_each(self, start: Callable[[WorkerPlan], object]) -> None:
        """Start the workers one by one. If that fails, the run ends, as in `starting`."""
        plan = None
        try:
            for plan in self.plans:
                self._unstarted.discard(plan)
                start(plan)
        except BaseException as error:
            self._could_not_start([] if plan is None else [plan], error)
            raise

    @contextmanager
    def starting(self, plans: Iterable[WorkerPlan]) -> Iterator[None]:
        """Start workers in this context. If that fails, for want of threads say, the run ends."""
        self._unstarted.difference_update(plans)
        try:
            yield
        except BaseException as error:
            self._could_not_start(plans, error)
            raise

    def _could_not_start(self, plans: Iterable[WorkerPlan], error: BaseException) -> None:
        # Those that run end by the stop. Those that were not started never report an end, and
        # the count would keep the queue open: they are counted here.
        self._record_failure(error)
        self.cancel()
        for plan in [*plans, *self._unstarted, *self.added_workers.take_waiting()]:
            self.worker_ended(plan, None)

    def explained(self, frames: Mapping[int, FrameType]) -> ExplainedStage:
        workers = tuple(plan.explained(frames) for plan in list(self.meters))
        return self._runner._explained(workers, frames)

    def worker_keys(self) -> set[int]:
        return {plan.owner.key for plan in list(self.meters) if plan.owner is not None}

    def belongs_to(self, core: CoordinatorCore) -> bool:
        return self._core is core

    def queues(self) -> list[QueueCore]:
        return self._runner._queues()

    def loop(self, plan: WorkerPlan) -> None:
        """Run a worker on a thread: the thread's main function."""
        current_worker.set(None)  # a worker may have started it, but its stop is not this one's
        plan.owner = Owner(threading.current_thread())
        try:
            ident = threading.get_ident()
            meter = self._metered(plan, lambda: ident)
            while (pause := self._calls(plan, meter)) is not None and self.restarts is not None:
                self.restarts.wait_blocking(plan, meter, pause)
                self.restarts.end_pause(plan, is_closed=self._was_closed())
        except BaseException as error:
            self.worker_ended(plan, error)
        else:
            self.worker_ended(plan, None)
        finally:
            # Break a cycle: coordinator and queue -> failure -> traceback -> this frame -> run.
            del self, plan

    @defers_ctrl_c
    async def loop_async(self, plan: WorkerPlan) -> None:
        """Run a worker that is a task: the task's coroutine."""
        call = Call()
        queue, waker = self.filled._core, current_waker()
        plan.owner = Owner(call.task)
        # In the cell of a notebook, a blocking dequeue of this loop's thread would wait for this
        # task in vain. The queue refuses it as long as the task is counted.
        queue.count_filler(waker, +1)
        try:
            meter = self._metered(plan, plan.owner.reference)
            pauses = self.restarts
            while (pause := await self._awaits(plan, meter, call)) is not None and pauses:
                # The failed call may have left a request behind, as an `asyncio.timeout` of 3.11
                # does: that must not end the pause as a cancellation.
                call.renew()
                await pauses.wait(plan, meter, pause)
                pauses.end_pause(plan, is_closed=self._was_closed())
        except BaseException as error:
            # What was reported here must not be reported by `Tasks`, too. A cancellation belongs
            # to the scope that has sent it, and has to reach that.
            if self.worker_ended(plan, error, call) is not Classification.STOP:
                return
            if is_cancellation(error) or isinstance(error, GeneratorExit):
                raise
        else:
            self.worker_ended(plan, None)
        finally:
            queue.count_filler(waker, -1)
            del self, plan, queue, call  # breaks the same cycle as in `loop`

    def _calls(self, plan: WorkerPlan, meter: Meter) -> float | None:
        """Call an op again and again, until no more calls are wanted.

        Returns:
            ``None``; or, if the op has failed, the seconds after which to start again. If its
            worker is not started again, the failure is raised.
        """
        what = f"enqueue op {function_name(plan.op)!r}"
        try:
            while self._may_continue():
                refuse_result(what, plan.op())
                meter.calls += 1
        except BaseException as error:
            if (pause := self._pause_after(plan, meter, error)) is None:
                raise
            return pause
        finally:
            del self, plan  # breaks the same cycle as in `loop`
        return None

    @allows_ctrl_c
    async def _awaits(self, plan: WorkerPlan, meter: Meter, call: Call) -> float | None:
        """Do the same as `_calls` for a coroutine function, in the task that ``call`` belongs to.

        Each call of the op renews it: what an earlier one has left behind counts for no one.
        """
        # Bound once, because the loop below runs for each element.
        op, may_continue, cooperative = plan.op, self._may_continue, CooperativeYield()
        requests = call.requests
        try:
            call.renew()
            if may_continue() and not meter.calls:
                # An op that returns coroutines returns one each time: later calls need no check.
                result = await op()
                if result is not None:
                    refuse_returned_coroutine(f"enqueue op {function_name(op)!r}", result)
                meter.calls += 1
            while may_continue():
                for _ in range(cooperative.calls):
                    # A request that the last call swallowed, or left behind, does not count for
                    # the next one. Compared first, since this runs for each element.
                    if requests() != call.known:
                        call.renew()
                    await op()
                    meter.calls += 1
                    if not may_continue():
                        return None
                if requests() != call.known:
                    call.renew()
                await cooperative.yield_if_due()
        except BaseException as error:
            if (pause := self._pause_after(plan, meter, error, call)) is None:
                raise
            return pause
        finally:
            del self, plan, op, may_continue, call, requests  # breaks the same cycle as in `loop`
        return None

    def _pause_after(
        self, plan: WorkerPlan, meter: Meter, error: BaseException, owner: Call | None = None
    ) -> float | None:
        """Return the seconds after which to start a failed worker again; ``None`` to end it."""
        # In a closed queue nothing can be enqueued any more: a restarted op would fail again, and
        # what it takes elsewhere would be lost.
        if self.restarts is None or self.restarts.over.is_open or self.filled.is_closed():
            return None
        ends = self._runner.queue_closed_exception_types
        meaning = classify(error, ends, stopping=self.stopped.is_open, owner=owner)
        if meaning is not Classification.FAILURE:
            return None
        failure = failure_of_worker(plan, error, owner)
        if self._core is not None and self._core.is_clean(failure):
            return None
        return self.restarts.pause_after(plan, meter, failure)

    def _metered(self, plan: WorkerPlan, owner: Callable[[], Any]) -> Meter:
        meter = self.meters[plan]
        meter.began = perf_counter()
        meter.owner = owner
        current_meter.set(meter)
        return meter

    def worker_ended(
        self, plan: WorkerPlan, error: BaseException | None, owner: Call | None = None
    ) -> Classification:
        """Note that a worker has ended, by an exception or because of a stop.

        Args:
            plan: the worker.
            error: the exception that its op has raised.
            owner: the call of its op, if the worker is a task.

        Returns:
            The meaning of the exception.
        """
        meaning = Classification.STOP
        plan.has_ended, self.meters[plan].ended = True, perf_counter()
        try:
            if error is not None:
                ends = self._runner.queue_closed_exception_types
                meaning = classify(error, ends, stopping=self.stopped.is_open, owner=owner)
                # The input has ended because of a failure upstream, if there is a cause. It
                # becomes the cause of this queue's end, too, so that consumers see it.
                if meaning is Classification.END and (cause := cause_of(error)) is not None:
                    self._record_failure(cause)
                if meaning is not Classification.STOP:
                    self._end_reason = format_end(error)
                if meaning is Classification.FAILURE:
                    failure = failure_of_worker(plan, error, owner)
                    if self.restarts is not None:
                        self.restarts.explain_on(failure, plan)
                    self._record_failure(failure)
                    self.failed(plan.name, failure)
        except Exception as broken:  # raised by code of the exception's own class, say
            self._record_failure(broken)
            self.failed(plan.name, broken)
            meaning = Classification.FAILURE
        finally:
            if self._is_last_to_end(plan):
                self._end()
        return meaning

    def worker_never_ran(self, plan: WorkerPlan) -> None:
        """Note that a task was cancelled before its first step."""
        self._runner._worker_never_ran()
        self.worker_ended(plan, None)

    @synchronized
    def _is_last_to_end(self, plan: WorkerPlan) -> bool:
        self._unfinished.pop(plan, None)
        self._left -= 1
        return self._left == 0

    @synchronized
    def _take_stop_callbacks(self) -> list[Callable[[], object]]:
        callbacks, self._on_stop = self._on_stop, []
        return callbacks

    def failed(self, name: str, error: BaseException) -> None:
        if self._core is not None:
            # First the report: the stop that it causes reaches all runs together.
            self._core.report(error, name)
            self.cancel()  # usually done by now, but a late failure requests no further stop
        else:
            name_failed_worker(error, f"worker {name}")
            self._runner.exceptions_raised.append(error)

    @synchronized
    def _record_failure(self, failure: BaseException | None) -> None:
        if self._failure is None:
            self._failure = failure

    def _end(self) -> None:
        if self._core is not None:
            self._core.forget_on_stop(self.cancel)
            self._core.draining.remove_run(self)
        if not self.stopped.is_open:  # after a stop, output is missing anyway
            self._record_failure(self._runner._truncation_cause())
        # The close below is not news to the workers: drop their callbacks first.
        for forget in self._forget_calls:
            forget()
        self._take_stop_callbacks()
        self.filled._core.last_end = self._end_reason
        # In one step under one lock: of several runs that end at the same time, exactly the last
        # one gets `None`, and closes the queue.
        successor = end_to_fill(self.filled, self)
        try:
            if successor is None:
                self._close(cancel=False)
            elif successor._has_closed:
                # It reads what it has inherited after it has set this. So it has seen this run, or
                # is seen here; if both, `_claim_close` lets one of them close.
                self._close(cancel=True)
        except BaseException as error:
            self.failed(_CLOSING, error)  # only this report shows a failure of the `close_op`
        finally:
            if successor is None:
                note_closed(self.filled)
            self._runner._ended(self)
            self._break_cycles(is_kept=successor is not None)
            # Last: code that waits for the end must find the queue closed and the runner idle.
            self.ended.open()

    def _break_cycles(self, *, is_kept: bool) -> None:
        """Break the run's reference cycles, so that its last reference frees it.

        One cycle: coordinator -> failure -> traceback -> frames of the run -> coordinator.
        """
        self.added_workers.close()
        if not is_kept:  # else its `close_op` runs later, and may fail: that must be reported
            self._core = None

    @synchronized
    def _claim_close(self) -> bool:
        """Return whether the caller is the first to close the queue for this run."""
        is_first, self._has_closed = not self._has_closed, True
        return is_first

    def _close(self, *, cancel: bool) -> None:
        """Close the queue, once, as the user has chosen; and for the ended runs before this one."""
        # A stop and the end of the last worker may come at the same time, from two threads. The
        # first one closes, with its own kind of closing.
        if not self._claim_close():
            return
        for run in [*self._inherited_runs, self]:
            if run is not self and not run._claim_close():
                continue
            # If one of the runs has failed, that failure is the cause of the queue's end for all.
            run._close_itself(cancel=cancel, cause=self._first_failure())

    def _first_failure(self) -> BaseException | None:
        return self._failure if self._inherited_failure is None else self._inherited_failure

    def inherit(self, other: Run) -> None:
        """Take over the closing of an ended run that filled the same queue.

        Only the ended run's failure is kept, and the run itself if it has a `close_op` or
        `cancel_op`. So short runs leave no memory behind while a long one fills the queue.
        """
        # Called under the lock of `end_to_fill`: `other` has ended, so nobody else changes it.
        if self._inherited_failure is None:
            self._inherited_failure = other._first_failure()
        inherited, other._inherited_runs = other._inherited_runs, []
        runner = other._runner
        if runner.close_op is not None or runner.cancel_op is not None:
            inherited.append(other)
        self._inherited_runs += inherited

    def _close_itself(self, *, cancel: bool, cause: BaseException | None) -> None:
        op = self._runner.cancel_op if cancel else self._runner.close_op
        if cause is None and cancel and self._core is not None:
            cause = self._core.stop_cause()
        if op is not None:
            try:
                op()
                return
            except Exception as error:
                cause = error
                self.failed(_CLOSING, error)
            except BaseException:
                # Ctrl-C or `SystemExit`: who waits for the queue must not wait for ever.
                self.filled.close(cancel_pending_enqueues=cancel, cause=cause)
                raise
        self.filled.close(cancel_pending_enqueues=cancel, cause=cause)


@hint_attributes("a QueueRunner")
class RunnerFace(Hinted):
    """One face of a queue runner: here, everything that does not wait."""

    def __init__(
        self,
        queue: QueueFace | None,
        enqueue_ops: Iterable[EnqueueOp] | EnqueueOp,
        *,
        queue_closed_exception_types: tuple[type[BaseException], ...] = (OutOfRangeError,),
        close_op: Callable[[], object] | None = None,
        cancel_op: Callable[[], object] | None = None,
        source: QueueFace | None = None,
        restart: Restart | None = None,
    ) -> None:
        self.queue_closed_exception_types = types = queue_closed_exception_types
        self.enqueue_ops: list[EnqueueOp] = checked_ops(
            enqueue_ops, queue, source, types, close_op, cancel_op
        )
        self.queue: QueueFace | None = queue
        self.close_op = close_op
        self.cancel_op = cancel_op
        self.source = source
        self.restart: Restart | None = None if restart is None else checked_restart(restart)
        # Ends the queue that the ops take from; ``None`` if the ops make their elements.
        self._drain_source: Callable[[], object] | None = None
        if source is not None:
            self._drain_source = partial(close_unless_filled, source)
        self.exceptions_raised: list[BaseException] = []
        self._lock = threading.RLock()  # guards _run
        self._run: Run | None = None
        self._restarts: RestartPolicy | None = None  # of the latest run

    def __repr__(self) -> str:
        state = "running" if self._run is not None else "idle"
        kind = f"{type(self).__module__}.{type(self).__name__}"
        workers = counted(len(self.enqueue_ops), "worker")
        return on_one_line(f"<{kind} of '{self.name}', {workers}, {state}>")

    @property
    def name(self) -> str:
        """The name of the runner's queue; without a queue, the names of its ops."""
        if self.queue is not None:
            return self.queue.name
        return "+".join(dict.fromkeys(name_of_work(op, "worker") for op in self.enqueue_ops))

    @property
    def times_restarted(self) -> int:
        """How many times workers of the latest run have been started again."""
        return 0 if self._restarts is None else self._restarts.count

    def _work_of(self, op: EnqueueOp) -> str:
        """Return what the names of workers say that they do: the name of the function, or that of
        the queue if the function has none."""
        return name_of_work(op, self.name)

    def _begin(self, core: CoordinatorCore | None) -> Run:
        """Begin a run.

        Raises:
            RuntimeError: the previous run has not ended.
        """
        run = self._new_run(core)
        run.stages = self._stages(run)
        run.watch.add(*run.stages)
        run.began_in_time = begin_to_fill(run.filled, run)
        # From here on the queue stays open until this run ends, or is stopped. A stop or a drain
        # that has come already reaches the run in the lines below.
        if run.restarts is not None:
            run.call_when_over(run.restarts.over.open)
        if core is not None:
            core.call_on_stop(run.cancel)  # calls it now if the coordinator has stopped already
            core.draining.add_run(run)
        return run

    @synchronized
    def _new_run(self, core: CoordinatorCore | None) -> Run:
        if self._run is not None:
            raise RuntimeError(
                f"the QueueRunner of '{self.name}' is running already: it can run again once all"
                " its workers have ended"
            )
        self.exceptions_raised = []
        self._run = Run(self, core)
        self._restarts = self._run.restarts
        return self._run

    def _explained(
        self, workers: tuple[ExplainedWorker, ...], frames: Mapping[int, FrameType]
    ) -> ExplainedStage:
        from aioqueue.telemetry.explain.explanation import ExplainedStage

        ops = dict.fromkeys(map(function_name, self.enqueue_ops))
        return ExplainedStage(
            f"the QueueRunner of {', '.join(ops)} ({counted(len(workers), 'worker')})",
            None if self.queue is None else self.queue.name,
            workers,
            key=id(self),
            into_key=0 if self.queue is None else id(self.queue._core),
        )

    def _queues(self) -> list[QueueCore]:
        """Return the queues that the runner fills or empties, as far as they are known."""
        return [] if self.queue is None else [self.queue._core]

    def _stages(self, run: Run) -> list[StagePart]:
        return list(op_stages(run.meters.items(), self.queue))

    def _worker_never_ran(self) -> None:
        """Note that a worker was cancelled before it had begun and will never run."""

    def _in_flight(self) -> int:
        return 0

    def _truncation_cause(self) -> BaseException | None:
        """Return why output is missing although no worker has failed and no stop was requested.

        Called when all workers have ended. ``None`` if the output is complete.
        """
        return None

    @synchronized
    def _ended(self, run: Run) -> None:
        if self._run is run:
            self._run = None


# Python's messages about arguments show this name: it must be the class that you call.
RunnerFace.__init__.__qualname__ = "QueueRunner.__init__"
