"""Executors: what each value of ``where`` stands for; the executors of threads and interpreters.

Those of tasks, processes and Ray are in files of their own.

**Threads.** An enqueue op is the whole life of one worker. It always ends with an exception:
`OutOfRangeError` if there is nothing more to do, for any reason, otherwise the failure that ends
the pipeline. `aioqueue.coordination.classify` decides what an exception of the function, the source
or the queue means: the end of the source is an end; a stop or a worker's cancellation is a stop;
anything else is a failure of an item or the source.

A thread cannot be ended from outside. So with an ``item_timeout``, a daemon thread does all of the
worker's work, its *deputy*; so items need not cross from one thread to the other. The worker waits
for the end of its deputy, or for the deadline of the current item. If the deadline comes first, the
worker abandons the deputy: its late result is dropped, the item has failed, and another deputy
takes over. One lock decides whether an item was in time. The deputy takes it when its function has
returned, and the worker when the deadline has come.

**Interpreters.** Subinterpreters have one GIL each, in one process, from Python 3.14 on. Each has a
thread here that passes it one item at a time. They cannot import NumPy, nor most other extension
modules. So use them for functions of plain Python: parsing, tokenizing.
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import inspect
import itertools
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from time import perf_counter, thread_time
from typing import Any, Final, NamedTuple, get_args

from aioqueue import InvalidArgumentError
from aioqueue.arguments import EnqueueOp, function_name, is_async
from aioqueue.display_text import LogLines, on_one_line
from aioqueue.errors import add_note, counted
from aioqueue.inputs.core.items import EpochEnd, Item, Prepared
from aioqueue.inputs.prepare.calls_and_retries import ItemCall, failure_of, takes_rng
from aioqueue.inputs.prepare.executor import Executor
from aioqueue.inputs.prepare.flow_control import Pending, Tally
from aioqueue.inputs.prepare.job import Job, NothingMore
from aioqueue.inputs.prepare.source_reader import combine_errors
from aioqueue.inputs.prepare.thread_common import (
    LineDelivery,
    ThreadDelivery,
    ThreadInbox,
    ThreadSource,
    WorkerThreads,
)
from aioqueue.inputs.prepare.worker_timing import InProgress, WorkerGauge
from aioqueue.inputs.prepare_options import Where
from aioqueue.telemetry.stacks import stack_of
from aioqueue.waiting.waker import is_free_threaded


class LeftBehind(BaseException):  # not a failure
    """Ends an abandoned thread, which was too slow with an item; see `TimedThreadExecutor`."""


class ThreadExecutor:
    """Calls the function in the workers themselves.

    Workers read the source one at a time. With a key limit, a separate thread reads it, so that a
    worker does not wait there while an item that was put aside gets its place.

    Args:
        job: the job.
        examples: returns the examples of an item, in a worker's thread; ``None`` calls the
            function there.
    """

    def __init__(self, job: Job, examples: Callable[[Item], Iterable[Any]] | None = None) -> None:
        self._job = job
        self._streams = job.streams
        self._is_here = examples is None  # otherwise its processor time cannot be measured
        self._examples = job.call.examples if examples is None else examples
        self._source = ThreadSource(job)
        line = job.open_line(self._source.pace)
        self._delivery = ThreadDelivery(job) if line is None else LineDelivery(job, line)
        self._inbox: ThreadInbox | None = None
        self._is_in_line = line is not None
        is_simple = line is None and not job.notes_made and job.feed.leases is None
        # Whether to count examples by a `Tally`: who waits for room could miss one without a GIL.
        self._is_plain = is_simple and not is_free_threaded()
        if line is None and job.key_limit is not None:
            self._inbox = ThreadInbox(job, self._source, self._delivery)
        dtypes = job.into.dtypes
        copies = dtypes is not None and not any(dtype.hasobject for dtype in dtypes)
        if copies and is_simple:
            job.call.make_no_copies()
        self._threads = WorkerThreads(job, self._source)

    def enqueue_ops(self) -> list[EnqueueOp]:
        ops = [*self._threads.enqueue_ops(self._life), *self._source.enqueue_ops()]
        return ops if self._inbox is None else [*ops, self.take_items]

    def _life(self, worker: WorkerGauge) -> None:
        """Work until it raises."""
        if self._is_in_line:
            self._work_in_line(worker)
        elif self._inbox is not None:
            self._work_by_key(worker)
        else:
            self._work(worker)

    def take_items(self) -> None:
        """Run the thread that takes items for the others."""
        assert self._inbox is not None
        self._threads.helper(self._inbox.take_items)

    def stop(self) -> None:
        self._source.stop()
        self._threads.stop()
        if self._inbox is not None:
            self._inbox.stop()

    def room_came(self) -> None:
        self._source.room_came()
        if self._inbox is not None:
            self._inbox.room_came()

    def resized(self) -> None:
        self._source.resized()
        if self._inbox is not None:
            self._inbox.resized()

    def end(self) -> BaseException | None:
        return self._source.close()

    def _work(self, worker: WorkerGauge) -> None:
        """Do the work of one worker, until no work is left."""
        with self._job.tally() as tally:
            self._take_turns(worker, tally)

    def _take_turns(self, worker: WorkerGauge, tally: Tally) -> None:
        take, turn = self._source.take, self._turn
        gauge, hand = self._job.gauge, worker.hand
        while True:
            while not gauge.is_on:
                turn(take(None), hand, tally)
            worker.begins()
            while gauge.is_on:
                passed_over = 0
                for passed_over in worker.passed_over():  # noqa: B007  # the last value is used
                    turn(take(None), hand, tally)
                self._work_measured(worker, hand, passed_over)

    def _turn(self, item: Item, hand: InProgress, tally: Tally) -> None:
        """Prepare an item, and deliver its examples."""
        made = self._prepare(item, hand, 0, self._is_plain)
        if type(made) is tuple and len(made) == 1:
            self._delivery.deliver_single(item, made[0], tally)
        else:
            self._delivery.deliver(made if type(made) is Prepared else Prepared(item, made))
            hand.item = None  # if a generator was still making it

    def _work_in_line(self, worker: WorkerGauge) -> None:
        """Do the same with an output buffer, which the worker may have to flush at its end."""
        errors: list[BaseException] = []
        try:
            self._work(worker)
        except BaseException as error:
            errors.append(error)
        try:
            if self._leaves_in_order(errors[0]):
                self._delivery.deliver_rest()
        except BaseException as error:
            errors.append(error)
        try:
            raise combine_errors(errors)
        finally:
            del errors  # their tracebacks contain this frame

    def _leaves_in_order(self, ended: BaseException) -> bool:
        """Return whether to flush the buffer before the worker reports its end.

        A failure must be reported at once; meanwhile the buffer would fill up again and again. With
        a kept order it cannot: only items before the failed one may follow.
        """
        is_failure = not isinstance(ended, NothingMore)
        return not is_failure or (self._job.is_ordered and isinstance(ended, Exception))

    def _work_measured(self, worker: WorkerGauge, hand: InProgress, passed_over: int) -> None:
        """Run one measured turn."""
        gauge = self._job.gauge
        worker.asks(passed_over, gauge.seconds_full)
        item = self._source.take(worker)
        worker.got(item, gauge.seconds_full)
        cpu = thread_time()
        prepared = self._prepare(item, hand)
        as_made = type(prepared.examples) is not tuple
        worker.made(thread_time() - cpu if self._is_here and not as_made else None)
        worker.item = None
        began, blocked = perf_counter(), worker.waits.enqueues
        self._delivery.deliver(prepared)
        hand.item = None
        worker.delivered(as_made=as_made, began=began, blocked=blocked)

    def _prepare(
        self, item: Item, hand: InProgress, failures: int = 0, is_plain: bool = False
    ) -> Any:
        """Prepare an item, with all its retries, after this many earlier failures.

        Returns:
            A `Prepared`; if ``is_plain``, only the examples of an item that has never failed.
        """
        make = self._examples
        while True:
            hand.failures, hand.began = failures, perf_counter()  # `hand.take`, inlined for speed
            hand.item = item
            try:
                examples = make(item)
                if type(examples) is tuple:
                    hand.item = None
                elif not self._streams:
                    examples = tuple(examples)
                    hand.item = None
                return examples if is_plain and not failures else Prepared(item, examples, failures)
            except BaseException as raised:
                hand.let_go()
                failures += 1
                # Give the exception's result no name here: its traceback refers to this frame.
                delay = self._job.item_failed(item, raised, failures)
            if delay is None:
                return Prepared(item, failures=failures - 1, is_skipped=True)
            self._threads.pause(delay)

    def _work_by_key(self, worker: WorkerGauge) -> None:
        """Do the same with a key limit: each attempt takes a place, and retries come back later."""
        assert self._inbox is not None
        worker.measures_all = True
        while True:
            worker.asks()
            for pending in self._inbox.take():
                worker.got(pending.item)
                began, blocked = perf_counter(), worker.waits.enqueues
                as_made = self._try(pending, self._inbox, worker)
                worker.delivered(as_made=as_made, began=began, blocked=blocked)

    def _try(self, pending: Pending, inbox: ThreadInbox, worker: WorkerGauge) -> bool:
        """Prepare an item that has a place, and keep the place meanwhile.

        Returns:
            Whether a generator ran while the examples were delivered.
        """
        hand = worker.hand
        hand.take(pending.item, pending.failures)
        cpu = thread_time()
        try:
            examples = self._examples(pending.item)
            if not self._streams:
                examples = tuple(examples)
        except LeftBehind:
            raise  # the worker has taken the item back
        except BaseException as raised:
            worker.made()
            worker.item = None
            hand.let_go()
            inbox.give_back(pending)
            inbox.failed(pending, self._job.failure_of_item(raised))
            return False
        is_made = type(examples) is tuple
        worker.made(thread_time() - cpu if self._is_here and is_made else None)
        worker.item = None
        if is_made:
            hand.let_go()
            inbox.give_back(pending)
        self._delivery.deliver(Prepared(pending.item, examples, failures=pending.failures))
        hand.let_go()  # if a generator was still making it
        inbox.give_back(pending)
        return not is_made


_log: Final = logging.getLogger("aioqueue")


class _Again(NamedTuple):
    """An item that the next deputy must retry first."""

    item: Item
    failures: int
    delay: float


class TimedThreadExecutor(ThreadExecutor):
    """Calls the function in deputies of the workers, which can be abandoned.

    Args:
        job: the job, which has an ``item_timeout``.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job, partial(_in_time, job.call.examples))
        assert job.item_timeout is not None
        self._timeout = job.item_timeout
        self._left_behind: list[_Deputy] = []  # guarded by the job's lock

    def end(self) -> BaseException | None:
        """See `Executor.end`. Logs which threads are abandoned and still run."""
        still = self._still_left_behind()
        if still:
            places = "".join(f"\n  {on_one_line(f'{one.name}, {one.told()}')}" for one in still)
            _log.warning(
                "prepare into '%s' has ended; %s left behind by item_timeout and still running:%s",
                self._job.into.name,
                "a thread was" if len(still) == 1 else f"{len(still)} threads were",
                LogLines(places),
            )
        return super().end()

    def _life(self, gauge: WorkerGauge) -> None:
        """Do the work of a worker, with one deputy after another."""
        again: _Again | None = None
        worker = threading.current_thread()
        for number in itertools.count():
            name = f"{worker.name}-deputy-{number}"
            deputy = _Deputy(name, self._timeout, self._as_deputy(gauge, again))
            gauge.hand = deputy.hand
            self._job.hands.give(worker, deputy.hand)
            deputy.start()
            if deputy.has_ended_in_time():
                error, deputy.error = deputy.error, None
                assert error is not None
                try:
                    raise error
                finally:
                    del error  # its traceback contains this frame
            again = self._leave_behind(deputy)

    def _as_deputy(self, gauge: WorkerGauge, again: _Again | None) -> Callable[[InProgress], None]:
        """Return the function of a deputy, which runs in its worker's contexts."""
        context = contextvars.copy_context()
        work: Callable[[InProgress], None] = partial(self._work_as_deputy, gauge, again)
        return partial(context.run, work)  # type: ignore[call-arg]  # mypy forgets that it is called with one

    # A method, because the frame of a function within another would keep what that one had: a
    # failure that passes through it would hold this executor.
    def _work_as_deputy(self, gauge: WorkerGauge, again: _Again | None, hand: InProgress) -> None:
        with self._threads.scope:
            if again is not None:
                self._threads.pause(again.delay)
                self._delivery.deliver(self._prepare(again.item, hand, again.failures))
            super()._life(gauge)

    def _try(self, pending: Pending, inbox: Any, worker: WorkerGauge) -> bool:
        worker.hand.pending = pending
        return super()._try(pending, inbox, worker)

    def _leave_behind(self, deputy: _Deputy) -> _Again | None:
        """Abandon a deputy that was too slow: its item has failed.

        Returns:
            What the next deputy must begin with.

        Raises:
            BaseException: the failure, if it ends everything; or that no more is wanted.
        """
        job, item = self._job, deputy.item
        assert item is not None
        with job.lock:
            self._left_behind.append(deputy)
        still = self._still_left_behind()
        job.progress.timed_out(len(still))
        error = job.overdue(item, stack_of(deputy))
        _log.warning("%s; its thread %s is left behind", error, deputy.name)
        if job.is_stopping:
            raise job.nothing_more()
        if len(still) > job.count:
            failure = failure_of(item, error, self._job.progress.name)
            threads = counted(len(still), "thread")
            add_note(failure, f"{threads} left behind still run: no more are replaced")
            try:
                raise failure
            finally:
                del failure, error  # their tracebacks contain this frame
        if self._inbox is not None:
            pending = deputy.hand.pending
            assert pending is not None
            self._inbox.give_back(pending)
            self._inbox.failed(pending, error)
            return None
        failures = deputy.failures + 1
        delay = job.progress.failed(item, error, failures)
        if delay is not None:
            return _Again(item, failures, delay)
        self._delivery.deliver(Prepared(item, failures=failures - 1, is_skipped=True))
        return None

    def _still_left_behind(self) -> list[_Deputy]:
        with self._job.lock:
            self._left_behind = [one for one in self._left_behind if one.is_alive()]
            return list(self._left_behind)


def _in_time(examples: Callable[[Item], Iterable[Any]], item: Item) -> Iterable[Any]:
    """Return all examples of an item. A deputy calls it.

    Raises:
        LeftBehind: too late.
        BaseException: what the function raised.
    """
    if isinstance(item.value, EpochEnd):
        return examples(item)
    deputy = threading.current_thread()
    assert isinstance(deputy, _Deputy)
    deputy.begins(item)
    try:
        made = tuple(examples(item))
    except BaseException:
        deputy.ends_item()
        raise
    deputy.ends_item()
    return made


class _Deputy(threading.Thread):
    """Does the work of a worker until that is done, or until it is abandoned.

    Args:
        name: the thread's name.
        timeout: the seconds that an item may take.
        work: the work, which always ends by raising.
    """

    def __init__(self, name: str, timeout: float, work: Callable[[InProgress], None]) -> None:
        super().__init__(name=name, daemon=True)
        self.hand = InProgress()
        self.hand.thread = self
        self.item: Item | None = None  # the latest item
        self.failures = 0
        self.error: BaseException | None = None
        self._timeout = timeout
        self._work = work
        self._changed = threading.Condition()  # guards all below
        self._due: float | None = None
        self._is_unlimited = False  # its worker waits without a deadline
        self._has_ended = False
        self._is_left_behind = False

    def run(self) -> None:
        """Run the thread."""
        try:
            self._work(self.hand)
        except LeftBehind:
            return
        except BaseException as error:
            self.error = error
        finally:
            # Break circles: of the hand, and of a failure in which the frames of this thread are.
            self.hand.thread = None
            del self._work
        with self._changed:
            self._has_ended = True
            self._changed.notify()

    def begins(self, item: Item) -> None:
        """Begin an item: from now on the time counts."""
        self.item, self.failures = item, self.hand.failures
        with self._changed:
            self._due = perf_counter() + self._timeout
            if self._is_unlimited:
                self._changed.notify()

    def ends_item(self) -> None:
        """End an item: the function has returned or raised.

        Raises:
            LeftBehind: too late; the result is not wanted.
        """
        with self._changed:
            self._due = None
            if self._is_left_behind:
                raise LeftBehind

    def has_ended_in_time(self) -> bool:
        """Wait until it has ended; if it is too slow, abandon it and return ``False``."""
        with self._changed:
            while not self._has_ended:
                left = None if self._due is None else self._due - perf_counter()
                if left is not None and left <= 0:
                    self._is_left_behind = True
                    return False
                self._is_unlimited = left is None
                self._changed.wait(left)
            return True

    def told(self) -> str:
        """Return its item and its place in the code, in words."""
        item = "" if self.item is None else f"at {self.item.describe()}"
        stack = stack_of(self)
        return f"{item}, in {stack[0]}" if stack else item


_MOST: Final = 256
"""The largest number of interpreters; they are made on demand."""


class InterpreterExecutor:
    """Calls the function in subinterpreters, with threads that wait for the results.

    Args:
        job: the job.

    Raises:
        InvalidArgumentError: this Python has no subinterpreters, or they cannot run the function.
    """

    def __init__(self, job: Job) -> None:
        function = job.call.function
        pool_class = getattr(concurrent.futures, "InterpreterPoolExecutor", None)
        if pool_class is None:
            raise InvalidArgumentError(
                "where: got 'interpreter', which needs Python 3.14 or later, and this is"
                f" {sys.version_info.major}.{sys.version_info.minor}; expected 'process' for"
                " functions that hold the GIL"
            )
        if inspect.isgeneratorfunction(function) or takes_rng(function):
            raise InvalidArgumentError(
                f"function: got {function_name(function)!r}, which is a generator function or"
                " takes `rng`; expected a function that returns one example, because generators"
                " and NumPy do not work in a subinterpreter; or use where='process'"
            )
        if job.item_timeout is not None:
            raise InvalidArgumentError(
                f"item_timeout: got {job.item_timeout!r} with where='interpreter'; expected None,"
                " because nothing can cut a subinterpreter short; or use where='process'"
            )
        self._pool: concurrent.futures.Executor = pool_class(max_workers=_MOST)
        self._threads = ThreadExecutor(job, partial(_examples, self._pool, job.call))

    def enqueue_ops(self) -> list[EnqueueOp]:
        return self._threads.enqueue_ops()

    def stop(self) -> None:
        self._threads.stop()

    def room_came(self) -> None:
        self._threads.room_came()

    def resized(self) -> None:
        self._threads.resized()

    def end(self) -> BaseException | None:
        self._pool.shutdown(wait=False)
        return self._threads.end()


def _examples(pool: concurrent.futures.Executor, call: ItemCall, item: Item) -> Iterable[Any]:
    """Return the examples of an item, prepared in the pool."""
    made = pool.submit(call.function, item.value).result()
    return call.examples_of(made)


@dataclass(frozen=True)
class ExecutorChoice:
    """One kind of worker that functions can run in."""

    executor: Callable[..., Executor]
    """Makes the executor for the job, and for the options ``ray`` if it takes them."""
    name: str
    """The name of one worker."""
    plural: str
    per_worker: int = 16
    """The default of ``max_in_flight``, per worker."""
    limit_bytes: int | None = None
    """The default of ``limit_bytes``."""
    most: int | None = 64
    """The most workers that tuning starts; ``None``: the number of cores."""
    is_async: bool = False
    """Whether it runs coroutine functions, rather than plain ones."""
    is_ray: bool = False
    """Whether it takes the option ``ray``."""

    def counted(self, count: int) -> str:
        """Return a number of workers, in words."""
        return f"{count} {self.plural}" if count > 1 else f"{count} {self.name}"


# Each executor is imported when a job needs it: those of processes and Ray bring much along.
def _of_tasks(job: Job) -> Executor:
    from aioqueue.inputs.prepare.task_executor import TaskExecutor

    return TaskExecutor(job)


def _of_threads(job: Job) -> Executor:
    return ThreadExecutor(job) if job.item_timeout is None else TimedThreadExecutor(job)


def _of_processes(job: Job) -> Executor:
    from aioqueue.inputs.prepare.process_executor import ProcessExecutor

    return ProcessExecutor(job)


def _of_ray(job: Job, options: Any) -> Executor:
    from aioqueue.inputs.prepare.ray_executor import RayExecutor

    return RayExecutor(job, options)


PLACES: Final[dict[Where, ExecutorChoice]] = {
    "task": ExecutorChoice(_of_tasks, "task", "tasks", is_async=True),
    "thread": ExecutorChoice(_of_threads, "thread", "threads"),
    "process": ExecutorChoice(
        _of_processes,
        "process",
        "processes",
        per_worker=128,
        limit_bytes=64 * 2**20,
        most=None,
    ),
    "interpreter": ExecutorChoice(InterpreterExecutor, "interpreter", "interpreters", most=None),
    "ray": ExecutorChoice(
        _of_ray, "actor", "actors", per_worker=128, limit_bytes=256 * 2**20, is_ray=True
    ),
}
"""The values of ``where``, except for ``"auto"``, which is one of the first two."""


def checked_place(where: Any, function: Any) -> ExecutorChoice:
    """Look up the kind of worker that a function is to run in.

    Raises:
        InvalidArgumentError: there is no such kind, or it does not run such functions.
    """
    if not callable(function):
        raise InvalidArgumentError(f"function: got {function!r}; expected a callable")
    names = get_args(Where)
    if where not in names:
        *most, last = map(repr, names)
        raise InvalidArgumentError(f"where: got {where!r}; expected {', '.join(most)} or {last}")
    if where == "auto":
        where = "task" if is_async(function) else "thread"
    place = PLACES[where]
    if place.is_async is not is_async(function):
        what = "a coroutine function" if place.is_async else "a plain function"
        raise InvalidArgumentError(
            f"function: got {function_name(function)!r} with where={where!r}; expected {what}, or"
            " where='auto'"
        )
    return place
