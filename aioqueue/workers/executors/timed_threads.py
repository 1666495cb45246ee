"""Workers on threads whose calls have a time limit.

A thread cannot be ended, only abandoned. So each worker has a second thread (`TimedWorker`) that
does all of its work, while the worker itself only waits and watches the time. If an item takes too
long, the worker abandons that thread, fails the item, and continues with a new one.
"""

from __future__ import annotations

import contextvars
import itertools
import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import Any, ClassVar, Final, NamedTuple

from aioqueue.base.display_text import LogLines, on_one_line
from aioqueue.errors import add_note, counted
from aioqueue.items.item import EpochEnd, Item, Prepared
from aioqueue.telemetry.explain.stacks import stack_of
from aioqueue.workers.calls import failure_of
from aioqueue.workers.executors.threads import Abandoned, ThreadExecutor
from aioqueue.workers.flow_control import Pending
from aioqueue.workers.job import Job
from aioqueue.workers.timing import InProgress, WorkerGauge

_log: Final = logging.getLogger("aioqueue")


class _Retry(NamedTuple):
    """An item that the next thread of a worker must retry first."""

    item: Item
    failures: int
    delay: float


class TimedThreadExecutor(ThreadExecutor):
    """Calls the function in threads of the workers, which can be abandoned.

    Args:
        job: the job, which has an ``item_timeout``.
    """

    is_timed: ClassVar[bool | None] = True

    def __init__(self, job: Job) -> None:
        super().__init__(job, partial(_in_time, job.call.examples))
        assert job.item_timeout is not None
        self._timeout = job.item_timeout
        self._abandoned: list[TimedWorker] = []  # guarded by the job's lock

    def end(self) -> BaseException | None:
        """See `Executor.end`. Logs which threads are abandoned and still run."""
        still = self._running_abandoned()
        if still:
            places = "".join(f"\n  {on_one_line(f'{one.name}, {one.describe()}')}" for one in still)
            _log.warning(
                "prepare into '%s' has ended; %s left behind by item_timeout and still running:%s",
                self._job.into.name,
                "a thread was" if len(still) == 1 else f"{len(still)} threads were",
                LogLines(places),
            )
        return super().end()

    def _run_worker(self, gauge: WorkerGauge) -> None:
        """Do the work of a worker, in one thread after another."""
        retry: _Retry | None = None
        worker = threading.current_thread()
        for number in itertools.count():
            name = f"{worker.name}-deputy-{number}"
            timed = TimedWorker(name, self._timeout, self._in_context(gauge, retry))
            # The abandoned thread may still write to its own `InProgress`. So each has a new one,
            # and monitors see only the latest.
            gauge.in_progress = timed.in_progress
            self._job.in_progress.add(worker, timed.in_progress)
            timed.start()
            if timed.has_ended_in_time():
                error, timed.error = timed.error, None
                assert error is not None
                try:
                    raise error
                finally:
                    del error  # its traceback contains this frame
            retry = self._abandon(timed)

    def _in_context(self, gauge: WorkerGauge, retry: _Retry | None) -> Callable[[InProgress], None]:
        """Return the work of a `TimedWorker`, which runs in a copy of its worker's context."""
        context = contextvars.copy_context()
        work: Callable[[InProgress], None] = partial(self._work_in_time, gauge, retry)
        return partial(context.run, work)  # type: ignore[call-arg]  # mypy forgets that it is called with one

    # A method, because the frame of a function within another would keep what that one had: a
    # failure that passes through it would hold this executor.
    def _work_in_time(
        self, gauge: WorkerGauge, retry: _Retry | None, in_progress: InProgress
    ) -> None:
        # The stop ends the waits of the threads that have entered the scope. That its worker has
        # does not count for this thread.
        with self._threads.scope:
            if retry is not None:
                # Not in the worker, which has to watch that the retry is in time, too.
                self._threads.pause(retry.delay)
                prepared, _ = self._prepare(retry.item, in_progress, retry.failures)
                self._delivery.deliver(prepared)
                del prepared
            super()._run_worker(gauge)

    def _attempt(self, pending: Pending, inbox: Any, worker: WorkerGauge) -> bool:
        # If this thread is abandoned within the item, its worker frees the place of the item.
        worker.in_progress.pending = pending
        return super()._attempt(pending, inbox, worker)

    def _abandon(self, timed: TimedWorker) -> _Retry | None:
        """Abandon a thread that was too slow: its item has failed.

        Returns:
            What the next thread must begin with.

        Raises:
            BaseException: the failure, if it ends everything; or that no more is wanted.
        """
        job, item = self._job, timed.item
        assert item is not None
        with job.lock:
            self._abandoned.append(timed)
        still = self._running_abandoned()
        job.progress.timed_out(len(still))
        error = job.timeout_error(item, stack_of(timed))
        _log.warning("%s; its thread %s is left behind", error, timed.name)
        # After the stop, nobody wants the outcome of the item: no retry, no failure of the run.
        if job.is_stopping:
            raise job.nothing_more()
        # An abandoned thread may hold memory, files and a processor for ever, and a function that
        # hangs on every item would leave one for each. So the run fails when more of them are
        # running than there are workers, whatever ``on_error`` says.
        if len(still) > job.count:
            failure = failure_of(item, error, self._job.progress.name)
            threads = counted(len(still), "thread")
            add_note(failure, f"{threads} left behind still run: no more are replaced")
            try:
                raise failure
            finally:
                del failure, error  # their tracebacks contain this frame
        if self._inbox is not None:
            # With a key limit, the inbox has the item retried, by any worker, once its place is
            # free.
            pending = timed.in_progress.pending
            assert pending is not None
            self._inbox.failed(pending, error)
            return None
        failures = timed.failures + 1
        delay = job.progress.failed(item, error, failures)
        if delay is not None:
            return _Retry(item, failures, delay)
        self._delivery.deliver(Prepared(item, failures=failures - 1, is_skipped=True))
        return None

    def _running_abandoned(self) -> list[TimedWorker]:
        with self._job.lock:
            self._abandoned = [one for one in self._abandoned if one.is_alive()]
            return list(self._abandoned)


def _in_time(examples: Callable[[Item], Iterable[Any]], item: Item) -> Iterable[Any]:
    """Return all examples of an item. A `TimedWorker` calls it.

    Raises:
        Abandoned: too late.
        BaseException: what the function raised.
    """
    if isinstance(item.value, EpochEnd):
        return examples(item)
    timed = threading.current_thread()
    assert isinstance(timed, TimedWorker)
    timed.begin_item(item)
    try:
        # A generator runs to its end here: the time must not include waits for a full queue.
        made = tuple(examples(item))
    except BaseException:
        timed.end_item()  # its `Abandoned` replaces a failure that comes too late
        raise
    timed.end_item()
    return made


class TimedWorker(threading.Thread):
    """Does the work of a worker until that is done, or until it is abandoned.

    Whether an item was in time is decided once, under the condition ``_changed``: either
    `end_item` clears the deadline first, or `has_ended_in_time` finds it passed and sets
    ``_is_abandoned``, whichever thread comes first. So an item is either delivered by this thread
    or failed by its worker, never both.

    Args:
        name: the thread's name.
        timeout: the seconds that an item may take.
        work: the work, which always ends by raising.
    """

    def __init__(self, name: str, timeout: float, work: Callable[[InProgress], None]) -> None:
        super().__init__(name=name, daemon=True)
        self.in_progress: InProgress = InProgress()
        self.in_progress.thread = self
        self.item: Item | None = None  # the latest item
        self.failures: int = 0
        self.error: BaseException | None = None
        self._timeout = timeout
        self._work = work
        self._changed = threading.Condition()  # guards all below
        self._due: float | None = None
        self._is_unlimited = False  # its worker waits without a deadline
        self._has_ended = False
        self._is_abandoned = False

    def run(self) -> None:
        try:
            self._work(self.in_progress)
        except Abandoned:
            return
        except BaseException as error:
            self.error = error
        finally:
            # Break two reference cycles: that of `in_progress`, and that of a failure whose
            # traceback has the frames of this thread.
            self.in_progress.thread = None
            del self._work
        with self._changed:
            self._has_ended = True
            self._changed.notify()

    def begin_item(self, item: Item) -> None:
        """Begin an item: from now on the time counts."""
        # The worker reads these only after it has abandoned this thread, so within an item.
        self.item, self.failures = item, self.in_progress.failures
        with self._changed:
            self._due = perf_counter() + self._timeout
            # A worker that waits with the deadline of an earlier item wakes before this one, and
            # then reads the new deadline. So only the first item after a pause has to wake it.
            if self._is_unlimited:
                self._changed.notify()

    def end_item(self) -> None:
        """End an item: the function has returned or raised.

        Raises:
            Abandoned: too late; the result is not wanted.
        """
        with self._changed:
            self._due = None
            if self._is_abandoned:
                raise Abandoned

    def has_ended_in_time(self) -> bool:
        """Wait until it has ended; if it is too slow, abandon it and return ``False``."""
        with self._changed:
            while not self._has_ended:
                left = None if self._due is None else self._due - perf_counter()
                if left is not None and left <= 0:
                    self._is_abandoned = True
                    return False
                self._is_unlimited = left is None
                self._changed.wait(left)
            return True

    def describe(self) -> str:
        """Return its item and its place in the code, in words."""
        item = "" if self.item is None else f"at {self.item.describe()}"
        stack = stack_of(self)
        return f"{item}, in {stack[0]}" if stack else item
