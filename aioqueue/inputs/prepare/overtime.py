"""Preparing in threads when items have a time limit: a thread that takes too long is left behind.

A thread cannot be ended from outside. So where there is an ``item_timeout``, the function is not
called by the worker but by a *deputy*, a daemon thread of its own that does all of the worker's
work; items cost no crossing from one to the other. The worker waits for its deputy to end, or for
the deadline of the item that it is at. If that comes first, the deputy is left behind: whatever it
comes back with is dropped, the item has failed, and another deputy takes its place.

Whether an item was done in time or not is decided once, under a lock that the deputy takes when its
function has returned, and the worker when the deadline has come.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import Any, Final, NamedTuple

from aioqueue.checks import counted
from aioqueue.coordination.outcomes import add_note
from aioqueue.inputs.prepare.call import failure_of
from aioqueue.inputs.prepare.gauge import WorkerGauge
from aioqueue.inputs.prepare.hands import Hand
from aioqueue.inputs.prepare.job import Job
from aioqueue.inputs.prepare.limits import Pending
from aioqueue.inputs.prepare.prepared import Prepared
from aioqueue.inputs.prepare.threads import LeftBehind, ThreadExecutor
from aioqueue.inputs.sources.item import EpochEnd, Item
from aioqueue.telemetry.stacks import stack_of

__all__ = ("TimedThreadExecutor",)

_log: Final = logging.getLogger("aioqueue")


class _Again(NamedTuple):
    """An item that is to be tried again, and first of all."""

    item: Item
    failures: int
    delay: float


class TimedThreadExecutor(ThreadExecutor):
    """Has the function called by deputies of the workers, which may be left behind.

    Args:
        job: what is to be done; it has an ``item_timeout``.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job, partial(_in_time, job.call.examples))
        assert job.item_timeout is not None
        self._timeout = job.item_timeout
        self._left_behind: list[_Deputy] = []  # guarded by the lock of the job

    def end(self) -> BaseException | None:
        """See `Executor.end`; says who is left behind."""
        still = self._still_left_behind()
        if still:
            places = "".join(f"\n  {one.name}, {one.told()}" for one in still)
            _log.warning(
                "prepare into '%s' has ended; %s left behind by item_timeout and still running:%s",
                self._job.into.name,
                "a thread was" if len(still) == 1 else f"{len(still)} threads were",
                places,
            )
        return super().end()

    def _life(self, gauge: WorkerGauge) -> None:
        """The work of a worker: to have it done by one deputy after another."""
        again: _Again | None = None
        worker = threading.current_thread()
        number = 0
        while True:
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
                    del error  # which has this frame in its traceback
            again = self._leave_behind(deputy)
            number += 1

    def _as_deputy(self, gauge: WorkerGauge, again: _Again | None) -> Callable[[Hand], None]:
        """What a deputy does, in the contexts of its worker."""

        def work(hand: Hand) -> None:
            with self._threads.scope:
                if again is not None:
                    self._threads.pause(again.delay)
                    self._delivery.deliver(self._prepare(again.item, hand, again.failures))
                super(TimedThreadExecutor, self)._life(gauge)

        context = contextvars.copy_context()
        return lambda hand: context.run(work, hand)

    def _try(self, pending: Pending, inbox: Any, worker: WorkerGauge) -> bool:
        worker.hand.pending = pending
        return super()._try(pending, inbox, worker)

    def _leave_behind(self, deputy: _Deputy) -> _Again | None:
        """A deputy was too slow: its item has failed.

        Returns:
            What the next one is to begin with.

        Raises:
            BaseException: the failure, if it ends all; or that nobody wants more.
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
            failure = failure_of(item, error)
            threads = counted(len(still), "thread")
            add_note(failure, f"{threads} left behind still run: no more are replaced")
            raise failure
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
    """The examples of an item, all of them; called by a deputy.

    Raises:
        LeftBehind: too late.
        BaseException: what the function has raised.
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
    """Does the work of a worker until that is done, or it is left behind.

    Args:
        name: of the thread.
        timeout: seconds that it has for an item.
        work: what it does, which always ends by raising.
    """

    def __init__(self, name: str, timeout: float, work: Callable[[Hand], None]) -> None:
        super().__init__(name=name, daemon=True)
        self.hand = Hand()
        self.hand.thread = self
        self.item: Item | None = None  # that it was at last
        self.failures = 0
        self.error: BaseException | None = None
        self._timeout = timeout
        self._work = work
        self._changed = threading.Condition()  # guards all below
        self._due: float | None = None
        self._is_unlimited = False  # its worker waits without a limit
        self._has_ended = False
        self._is_left_behind = False

    def run(self) -> None:
        """The life of the thread."""
        try:
            self._work(self.hand)
        except LeftBehind:
            return
        except BaseException as error:
            self.error = error
        finally:
            self.hand.thread = None  # they have each other
        with self._changed:
            self._has_ended = True
            self._changed.notify()

    def begins(self, item: Item) -> None:
        """It begins with an item: from now on time counts."""
        self.item, self.failures = item, self.hand.failures
        with self._changed:
            self._due = perf_counter() + self._timeout
            if self._is_unlimited:
                self._changed.notify()

    def ends_item(self) -> None:
        """The function has returned or raised.

        Raises:
            LeftBehind: too late; nobody wants to know.
        """
        with self._changed:
            self._due = None
            if self._is_left_behind:
                raise LeftBehind

    def has_ended_in_time(self) -> bool:
        """Wait until it has ended; or until it is too slow, and then it is left behind."""
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
        """What it is at, and where."""
        item = "" if self.item is None else f"at {self.item.describe()}"
        stack = stack_of(self)
        return f"{item}, in {stack[0]}" if stack else item
