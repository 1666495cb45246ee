"""Workers on threads whose calls have a time limit."""

from __future__ import annotations

import contextvars
import itertools
import threading
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

from aioqueue.base.display_text import LogLines, on_one_line
from aioqueue.errors import add_note, counted
from aioqueue.items.item import EpochEnd, Item, Prepared
from aioqueue.telemetry.stacks import stack_of
from aioqueue.workers.calls import failure_of
from aioqueue.workers.executors.threads import LeftBehind, ThreadExecutor, _log
from aioqueue.workers.flow_control import Pending
from aioqueue.workers.job import Job
from aioqueue.workers.timing import InProgress, WorkerGauge


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

    is_timed = True

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
