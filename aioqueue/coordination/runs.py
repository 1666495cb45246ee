"""One run of a queue runner: its workers, and what becomes of the queue when they end.

A worker calls its enqueue op again and again, as a task or on a thread of its own that loops there.
How it ended decides what happens, and that is said here once, for tasks and threads:

* by a queue-closed exception, or a group of nothing else (its input has ended): quietly; when the
  last worker has ended, the queue is closed, and a failure that had closed the input is passed on
  as the cause;
* by a failure: with a coordinator it is reported and the queue closed with it at once; without one
  it is collected, and closes the queue when no worker is left;
* because of a stop, whose consequences are `Run.cancel`'s; or because its task was cancelled by
  somebody else, which ends that worker and is not a failure.

What an exception means is decided by `outcomes`; and where several runs fill one queue, who closes
it by `filling`.
"""

from __future__ import annotations

import contextvars
import inspect
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from types import FrameType
from typing import Final

from aioqueue.arguments import EnqueueOp, function_name, is_coroutine_function
from aioqueue.coordination.classify import (
    Classification,
    add_note,
    cause_of,
    classify,
    describe_exception,
    is_cancellation,
    running_task,
)
from aioqueue.coordination.core import CoordinatorCore
from aioqueue.coordination.misuse import Unawaited, add_advice, call_watched, refuse_result
from aioqueue.coordination.producers import (
    Latecomers,
    begin_to_fill,
    close_unless_filled,
    end_to_fill,
    is_closed_now,
)
from aioqueue.coordination.runner_metrics import op_stages
from aioqueue.coordination.shutdown import stop_at_exit
from aioqueue.coordination.tasks import CooperativeYield
from aioqueue.coordination.workers import WorkerPlan, no_ops, stray_of, told_publicly
from aioqueue.elements import is_iterable
from aioqueue.errors import InvalidArgumentError, OutOfRangeError, counted
from aioqueue.locks import guarded
from aioqueue.meters import Meter, current_meter
from aioqueue.queues import QueueFace
from aioqueue.queues.core import QueueCore
from aioqueue.telemetry.explanation import ExplainedStage, ExplainedWorker
from aioqueue.telemetry.registry import StagePart, Watch
from aioqueue.waiting import Gate, Owner, current_waker, defers_ctrl_c, lets_ctrl_c_in

__all__ = (
    "RUNNER_ARGUMENTS",
    "Run",
    "RunnerFace",
)

_CLOSING: Final = "that closes the queue"  # the name of a worker, in reports


class Run:
    """One run of a runner.

    Args:
        runner: whose run it is.
        core: the coordinator that it reports to; ``None`` to collect failures in the runner.
    """

    def __init__(self, runner: RunnerFace, core: CoordinatorCore | None) -> None:
        self.ended = Gate()
        self.stopped = Gate()
        self.comes_in_time = True  # else the queue was closed before
        self.plans = [
            WorkerPlan(op, runner.name, number) for number, op in enumerate(runner.enqueue_ops)
        ]
        self._numbers = itertools.count(len(self.plans))  # of workers that come later
        self._runner = runner
        self._core = core
        self._lock = threading.RLock()  # guards all below; a signal handler may stop in a move
        self._going = dict.fromkeys(self.plans)
        self._left = len(self.plans)
        self._unstarted = set(self.plans)  # of use to who starts them only
        self._has_closed = False
        self._is_drained = False
        self._failure: BaseException | None = None  # the first one, or the one that came down to us
        self._how = "its workers were stopped"  # the last of them has ended
        self.latecomers = Latecomers[WorkerPlan](self.should_stop, self._never_began)
        self._on_stop: list[Callable[[], object]] = []
        self._forget_calls: list[Callable[[], None]] = []  # what undoes `call_when_over`
        self._threads: list[threading.Thread] = []
        self._legacy: list[Run] = []  # that have ended, and have their own ways of closing
        self._legacy_failure: BaseException | None = None  # the first one of those before us
        self.stages: list[StagePart] = []  # for monitors
        self.watch = Watch() if core is None else core.watch
        self.meters = {plan: Meter(plan.name) for plan in self.plans}

    def should_stop(self) -> bool:
        """Whether workers are to end before their next call."""
        return self.stopped.is_open

    def cancel(self) -> None:
        """A stop: close the queue and cancel its pending enqueues, so that blocked workers wake."""
        self.stopped.open()
        try:
            self._close(cancel=True)
        finally:  # whatever the user's own way of closing raises
            for callback in self._taken_on_stop():
                callback()

    @property
    def filled(self) -> QueueFace:
        """The queue."""
        return self._runner.queue

    def drain(self) -> None:
        """Take on nothing new, finish what was begun, and end. Does not wait; any thread.

        Workers that take from somewhere go on until that has ended; others make no further calls.
        """
        if self._runner._drain_source is None:
            self._is_drained = True
        else:
            self._runner._drain_source()

    def in_flight(self) -> int:
        """How many items were taken from a source and are not in the queue, where it is known."""
        return self._runner._in_flight()

    @guarded
    def going(self) -> tuple[str, ...]:
        """The names of the workers that have not ended."""
        return tuple(plan.name for plan in self._going)

    def _goes_on(self) -> bool:
        """Whether workers are to make one more call."""
        return not (self.stopped.is_open or self._is_drained)

    def knows(self, thread: threading.Thread) -> None:
        """A thread is going to run workers: it is asked to stop when the program ends."""
        self._threads.append(thread)
        if self._core is None:  # else the coordinator asks
            stop_at_exit(self)

    def worker_threads(self) -> list[threading.Thread]:
        """The threads that run workers."""
        return list(self._threads)

    def stop_at_exit(self) -> None:
        """The program ends without having stopped."""
        self.cancel()

    def call_on_stop(self, callback: Callable[[], object]) -> None:
        """Call back at the stop, in the thread that it comes from; now, if it has come."""
        self._on_stop.append(callback)
        if self.stopped.is_open:
            for call in self._taken_on_stop():
                call()

    def call_when_over(self, callback: Callable[[], object]) -> None:
        """Call back when nobody wants more of what is run here: it is stopped, or its queue closed.

        So workers hear of either in one way, whatever they wait for: a stop of the coordinator, a
        consumer that leaves, a failure of others who fill the queue. For a worker to call when it
        begins: from then until the run has ended, the queue keeps the callback.

        Args:
            callback: called in the thread that it comes from, or now, if it has come; more than
                once, perhaps. It may neither wait nor raise.
        """
        self._forget_calls.append(self._runner.queue._core.call_when_closed(callback))
        self.call_on_stop(callback)

    def thread(self, plan: WorkerPlan, *, daemon: bool) -> threading.Thread:
        """A thread for a worker that is a plain function, not started."""
        context = contextvars.copy_context()
        return threading.Thread(
            target=context.run, args=(self.loop, plan), name=plan.name, daemon=daemon
        )

    def grow(self, op: EnqueueOp) -> None:
        """Start one more worker, in the world of the others; none if the run is about to end.

        Raises:
            RuntimeError: it cannot be started: there are no more threads, say.
        """
        plan = self._added(op)
        if plan is not None:
            self.latecomers.come(plan)

    def _never_began(self, plan: WorkerPlan) -> None:
        self.worker_ended(plan, None)

    @guarded
    def _added(self, op: EnqueueOp) -> WorkerPlan | None:
        """Another worker, if there are any left."""
        if not self._left:
            return None
        self._left += 1
        plan = WorkerPlan(op, self._runner.name, next(self._numbers))
        self._going[plan] = None
        self.meters[plan] = Meter(plan.name)
        return plan

    @contextmanager
    def starting(self, plans: Iterable[WorkerPlan]) -> Iterator[None]:
        """Workers are started; if they cannot be (no thread is left, say), the whole run ends."""
        self._unstarted.difference_update(plans)
        try:
            yield
        except BaseException as error:
            self._remember(error)
            self.cancel()
            for plan in [*plans, *self._unstarted, *self.latecomers.given_up()]:
                self.worker_ended(plan, None)
            raise

    def explained(self, frames: Mapping[int, FrameType]) -> ExplainedStage:
        """What its workers do now."""
        return self._runner._explained(tuple(plan.explained(frames) for plan in list(self.meters)))

    def worker_keys(self) -> set[int]:
        """The keys of the threads and tasks that are its workers."""
        return {plan.owner.key for plan in list(self.meters) if plan.owner is not None}

    def belongs_to(self, core: CoordinatorCore) -> bool:
        """Whether it reports to a coordinator."""
        return self._core is core

    def queues(self) -> list[QueueCore]:
        """The queues that it fills or empties."""
        return self._runner._queues()

    def loop(self, plan: WorkerPlan) -> None:
        """The life of a worker on a thread."""
        plan.owner = Owner(threading.current_thread())
        try:
            self._calls(plan)
        except BaseException as error:
            self.worker_ended(plan, error)
        else:
            self.worker_ended(plan, None)
        finally:
            # A failure has the frames of the worker, and is had by the queue and the coordinator.
            del self, plan

    @defers_ctrl_c
    async def loop_async(self, plan: WorkerPlan) -> None:
        """The life of a worker that is a task."""
        owner = running_task()
        queue, waker = self._runner.queue._core, current_waker()
        plan.owner = Owner(waker.runner())
        queue.note_filler(waker, +1)
        try:
            await self._awaits(plan)
        except BaseException as error:
            if self.worker_ended(plan, error, owner) is not Classification.STOP:
                return
            if is_cancellation(error) or isinstance(error, GeneratorExit):
                raise
        else:
            self.worker_ended(plan, None)
        finally:
            queue.note_filler(waker, -1)
            del self, plan, queue, owner  # as in a thread

    def _calls(self, plan: WorkerPlan) -> None:
        meter = self._metered(plan)
        what = f"enqueue op {function_name(plan.op)!r}"
        try:
            if self._goes_on() and self._runner._watches_ops:
                call_watched(what, plan.op, partial(self._has_forgotten, plan))
                meter.calls = 1
            while self._goes_on():
                refuse_result(what, plan.op())
                meter.calls += 1
        finally:
            del self, plan  # as above

    @lets_ctrl_c_in
    async def _awaits(self, plan: WorkerPlan) -> None:
        meter = self._metered(plan)
        op, goes_on, turns = (
            plan.op,
            self._goes_on,
            CooperativeYield(),
        )  # bound once: they are called again
        try:
            if goes_on() and self._runner._watches_ops:
                what = f"enqueue op {function_name(plan.op)!r}"
                with Unawaited(what, can_await=True, at_once=partial(self._has_forgotten, plan)):
                    await op()
                meter.calls = 1
            while goes_on():
                for _ in range(turns.calls):
                    await op()
                    meter.calls += 1
                    if not goes_on():
                        return
                await turns.give()
        finally:
            del self, plan, op, goes_on  # as above

    def _has_forgotten(self, plan: WorkerPlan, error: TypeError) -> None:
        """The first call of an op has dropped a coroutine: a failure, and a stop, at once.

        For an op that loops by itself would go on for ever, and nothing would come of it.
        """
        self._remember(error)
        self._how = describe_exception(error)
        self.failed(plan.name, error)
        self.cancel()

    def _metered(self, plan: WorkerPlan) -> Meter:
        """The meter of a worker, which begins."""
        meter = self.meters[plan]
        meter.began = perf_counter()
        current_meter.set(meter)
        return meter

    def worker_ended(
        self, plan: WorkerPlan, error: BaseException | None, owner: object = None
    ) -> Classification:
        """A worker has ended, by an exception or because it was told to stop.

        Args:
            plan: which one.
            error: what its op has raised.
            owner: the task that it is, if it is one.

        Returns:
            What that means.
        """
        meaning = Classification.STOP
        plan.has_ended = True
        self.meters[plan].ended = perf_counter()
        try:
            if error is not None:
                ends = self._runner.queue_closed_exception_types
                meaning = classify(error, ends, stopping=self.stopped.is_open, owner=owner)
                if meaning is Classification.END:
                    self._remember(cause_of(error))
                if meaning is not Classification.STOP:
                    self._how = told_publicly(error)
                if meaning is Classification.FAILURE:
                    failure = stray_of(plan, error)
                    self._remember(failure)
                    self.failed(plan.name, failure)
        finally:
            if self._took_the_last(plan):
                self._end()
        return meaning

    def worker_lost(self, plan: WorkerPlan) -> None:
        """A worker that is a task was cancelled before its first step."""
        self._runner._lost_worker()
        self.worker_ended(plan, None)

    @guarded
    def _took_the_last(self, plan: WorkerPlan) -> bool:
        self._going.pop(plan, None)
        self._left -= 1
        return self._left == 0

    @guarded
    def _taken_on_stop(self) -> list[Callable[[], object]]:
        callbacks, self._on_stop = self._on_stop, []
        return callbacks

    def failed(self, name: str, error: BaseException) -> None:
        """A worker, or what closes the queue, has failed."""
        if self._core is not None:
            self._core.report(error, name)
            self.cancel()  # has been called already, unless that came too late to stop anything
        else:
            add_note(error, f"in worker {name}")
            add_advice(error)
            self._runner.exceptions_raised.append(error)

    @guarded
    def _remember(self, failure: BaseException | None) -> None:
        if self._failure is None:
            self._failure = failure

    def _end(self) -> None:
        if self._core is not None:
            self._core.forget_on_stop(self.cancel)
            self._core.draining.ended(self)
        if not self.stopped.is_open:
            self._remember(self._runner._what_cut_it_short())
        for forget in self._forget_calls:
            forget()
        self._taken_on_stop()
        self._runner.queue._core.last_end = self._how
        heir = end_to_fill(self._runner.queue, self)
        try:
            if heir is None:
                self._close(cancel=False)
            elif heir._has_closed:
                self._close(cancel=True)  # it was stopped, and has taken on nothing any more
        except BaseException as error:
            self.failed(_CLOSING, error)  # of the user's own way of closing nobody else would hear
        finally:
            if heir is None:
                is_closed_now(self._runner.queue)
            self._runner._ended(self)
            self._let_go(is_kept=heir is not None)
            self.ended.open()

    def _let_go(self, *, is_kept: bool) -> None:
        """The run is over: untie it from what has it, so that both go with their last reference.

        Its failures have its frames in their tracebacks, and the coordinator has its failures.
        """
        self.latecomers.are_over()
        if not is_kept:  # else its own way of closing may fail, which has to be reported
            self._core = None

    @guarded
    def _begins_to_close(self) -> bool:
        """Whether the queue has not been closed by this run yet; it is going to be now."""
        is_first, self._has_closed = not self._has_closed, True
        return is_first

    def _close(self, *, cancel: bool) -> None:
        """Close the queue, once, the way that the user may have chosen; and for those before us."""
        if not self._begins_to_close():
            return
        for run in [*self._legacy, self]:
            if run is not self and not run._begins_to_close():
                continue
            # A failure of one is why it ends for all.
            run._close_itself(cancel=cancel, cause=self._first_failure())

    def _first_failure(self) -> BaseException | None:
        return self._failure if self._legacy_failure is None else self._legacy_failure

    def inherit(self, other: Run) -> None:
        """Take on the part of the closing of a run that has filled the same queue, and ended.

        What is left of it is why it has failed, and its own ways of closing, if it has any: runs
        that come and go while this one fills the queue occupy nothing.
        """
        if self._legacy_failure is None:
            self._legacy_failure = other._first_failure()
        legacy, other._legacy = other._legacy, []
        runner = other._runner
        if runner.close_op is not None or runner.cancel_op is not None:
            legacy.append(other)
        self._legacy += legacy

    def _close_itself(self, *, cancel: bool, cause: BaseException | None) -> None:
        op = self._runner.cancel_op if cancel else self._runner.close_op
        if cause is None and cancel and self._core is not None:
            cause = next(iter(self._core.failures()), None)  # why everybody stops
        if op is not None:
            try:
                op()
                return
            except Exception as error:
                cause = error
                self.failed(_CLOSING, error)
            except BaseException:
                self._runner.queue.close(cancel_pending_enqueues=cancel, cause=cause)
                raise
        self._runner.queue.close(cancel_pending_enqueues=cancel, cause=cause)


RUNNER_ARGUMENTS = """\
Args:
    queue: the queue that is filled and closed, by either of its faces. If several runners fill it,
        it is closed when the last one that has been started has ended.
    enqueue_ops: one callable per worker, each of which makes an element and enqueues it, and is
        called without arguments again and again. A coroutine function runs as a task; a plain
        function runs on a thread of its own.
    queue_closed_exception_types: exceptions that end a worker quietly: its input has ended. Add
        ``StopIteration`` for plain functions that call `next`; out of a coroutine function
        Python lets it come as a `RuntimeError`, so raise `OutOfRangeError` there.
    close_op: closes the queue when the input has ended; ``queue.close()`` if ``None``.
    cancel_op: closes the queue at a stop; ``queue.close(cancel_pending_enqueues=True)``
        if ``None``.
    source: the queue that the ops take from, if they do: a `Coordinator.drain` lets them go on
        until it has ended. ``None`` has them end after the call that they are in.

Raises:
    InvalidArgumentError: any argument is not as described.
"""


class RunnerFace:
    """A queue runner as one world sees it: here, what it is made of."""

    _watches_ops = True
    """Whether ops are functions of the user's, whose first call tells what was forgotten there."""

    def __init__(
        self,
        queue: QueueFace,
        enqueue_ops: Iterable[EnqueueOp] | EnqueueOp,
        *,
        queue_closed_exception_types: tuple[type[BaseException], ...] = (OutOfRangeError,),
        close_op: Callable[[], object] | None = None,
        cancel_op: Callable[[], object] | None = None,
        source: QueueFace | None = None,
    ) -> None:
        if not isinstance(queue, QueueFace):
            raise InvalidArgumentError(f"queue: got {queue!r}; expected a queue of aioqueue")
        if source is not None and not isinstance(source, QueueFace):
            raise InvalidArgumentError(
                f"source: got {source!r}; expected a queue of aioqueue, or None"
            )
        ops: list[EnqueueOp] = []
        if callable(enqueue_ops):
            ops = [enqueue_ops]
        elif is_iterable(enqueue_ops):
            ops = list(enqueue_ops)
        if not ops or not all(map(callable, ops)):
            raise InvalidArgumentError(f"enqueue_ops: {no_ops(ops or enqueue_ops)}")
        types = queue_closed_exception_types
        if not isinstance(types, tuple) or not all(
            isinstance(kind, type) and issubclass(kind, BaseException) for kind in types
        ):
            raise InvalidArgumentError(
                f"queue_closed_exception_types: got {types!r};"
                " expected a tuple of exception classes"
            )
        for enqueue_op in ops:
            if inspect.isgeneratorfunction(enqueue_op) or inspect.isasyncgenfunction(enqueue_op):
                raise InvalidArgumentError(
                    f"enqueue_ops: got the generator function {function_name(enqueue_op)!r};"
                    " expected a function that makes and enqueues one element per call"
                )
        for what, op in (("close_op", close_op), ("cancel_op", cancel_op)):
            if op is not None and (not callable(op) or is_coroutine_function(op)):
                raise InvalidArgumentError(
                    f"{what}: got {op!r}; expected a plain function without arguments, or None"
                )
        self.queue = queue
        self.enqueue_ops = ops
        self.queue_closed_exception_types = types
        self.close_op = close_op
        self.cancel_op = cancel_op
        self.source = source
        # Lets end what the ops take from, so that they end by it; ``None`` if they make elements.
        self._drain_source: Callable[[], object] | None = None
        if source is not None:
            self._drain_source = partial(close_unless_filled, source)
        self.exceptions_raised: list[BaseException] = []
        self._lock = threading.RLock()  # guards _run
        self._run: Run | None = None

    def __repr__(self) -> str:
        state = "running" if self._run is not None else "idle"
        kind = f"{type(self).__module__}.{type(self).__name__}"
        workers = counted(len(self.enqueue_ops), "worker")
        return f"<{kind} of '{self.name}', {workers}, {state}>"

    @property
    def name(self) -> str:
        """The name of its queue."""
        return self.queue.name

    def _begin(self, core: CoordinatorCore | None) -> Run:
        """Begin a run.

        Raises:
            RuntimeError: the last one has not ended yet.
        """
        run = self._new_run(core)
        run.stages = self._stages(run)
        run.watch.add(*run.stages)
        run.comes_in_time = begin_to_fill(self.queue, run)
        if core is not None:
            core.call_on_stop(run.cancel)  # which happens now, if it was stopped already
            core.draining.begins(run)
        return run

    @guarded
    def _new_run(self, core: CoordinatorCore | None) -> Run:
        if self._run is not None:
            raise RuntimeError(
                f"the QueueRunner of '{self.name}' is running already; it may run again when"
                " all its workers have ended"
            )
        self.exceptions_raised = []
        self._run = Run(self, core)
        return self._run

    def _explained(self, workers: tuple[ExplainedWorker, ...]) -> ExplainedStage:
        """What it is, and what its workers do now."""
        ops = dict.fromkeys(map(function_name, self.enqueue_ops))
        return ExplainedStage(
            f"the QueueRunner of {', '.join(ops)} ({counted(len(workers), 'worker')})",
            self.name,
            workers,
            key=id(self),
            into_key=id(self.queue._core),
        )

    def _queues(self) -> list[QueueCore]:
        """The queues that it fills or empties, as far as that is known."""
        return [self.queue._core]

    def _stages(self, run: Run) -> list[StagePart]:
        """What a monitor sees of a run."""
        return list(op_stages(run.meters.items(), self.queue))

    def _lost_worker(self) -> None:
        """A worker was cancelled before it had begun, so that it will never run."""

    def _in_flight(self) -> int:
        """How many items were taken from a source and are not in the queue, where it is known."""
        return 0

    def _what_cut_it_short(self) -> BaseException | None:
        """All workers have ended, and no stop was requested: why not all is in the queue that they
        were to make, if that is so and none of them has said why."""
        return None

    @guarded
    def _ended(self, run: Run) -> None:
        if self._run is run:
            self._run = None


# Python's messages about arguments name the class that the user has called.
RunnerFace.__init__.__qualname__ = "QueueRunner.__init__"
