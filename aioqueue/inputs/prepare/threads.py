"""Preparing in threads: the workers take items, have them prepared, and enqueue the examples.

An enqueue op here is the whole life of one worker, and it always ends by an exception: by
`OutOfRangeError` when there is nothing more to do, whatever the reason, and else by the failure
that ends the pipeline. What an exception means that has come out of the function, the source or
the queue is decided in `aioqueue.coordination.outcomes`: the end of the source is an end, a stop
and the cancellation of a worker are a stop, and all else is the failure of an item or the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter, thread_time
from typing import Any

from aioqueue.functions import EnqueueOp
from aioqueue.inputs.prepare.blocking import (
    LineDelivery,
    ThreadDelivery,
    ThreadInbox,
    ThreadSource,
    WorkerThreads,
)
from aioqueue.inputs.prepare.feed import worst_of
from aioqueue.inputs.prepare.gauge import WorkerGauge
from aioqueue.inputs.prepare.hands import Hand
from aioqueue.inputs.prepare.job import Job, NothingMore
from aioqueue.inputs.prepare.limits import Pending
from aioqueue.inputs.prepare.prepared import Prepared
from aioqueue.inputs.sources.item import Item

__all__ = ("LeftBehind", "ThreadExecutor")


class LeftBehind(BaseException):  # it is no failure
    """The thread was too slow with an item, and nobody waits for it any more; see `overtime`."""


class ThreadExecutor:
    """Has the function called by the workers themselves.

    They take items from the source by turns; where keys are limited, a thread of its own takes
    them, so that a worker need not wait there while an item that was put aside gets its place.

    Args:
        job: what is to be done.
        examples: gives the examples of an item, in the thread of a worker; ``None`` calls the
            function there.
    """

    def __init__(self, job: Job, examples: Callable[[Item], Iterable[Any]] | None = None) -> None:
        self._job = job
        self._streams = job.streams
        self._is_here = examples is None  # and not where its processor time is not seen
        self._examples = job.call.examples if examples is None else examples
        self._source = ThreadSource(job)
        line = job.open_line(self._source.pace)
        self._delivery = ThreadDelivery(job) if line is None else LineDelivery(job, line)
        self._inbox: ThreadInbox | None = None
        self._is_in_line = line is not None
        if line is None and job.key_limit is not None:
            self._inbox = ThreadInbox(job, self._source, self._delivery)
        self._threads = WorkerThreads(job, self._source)

    def enqueue_ops(self) -> list[EnqueueOp]:
        ops = [*self._threads.enqueue_ops(self._life), *self._source.enqueue_ops()]
        return ops if self._inbox is None else [*ops, self.take_items]

    def _life(self, worker: WorkerGauge) -> None:
        """What a worker does, until it raises."""
        if self._is_in_line:
            self._work_in_line(worker)
        elif self._inbox is not None:
            self._work_by_key(worker)
        else:
            self._work(worker)

    def take_items(self) -> None:
        """The whole life of the thread that takes items for the others."""
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
        """The work of one worker, until there is none."""
        take, prepare, deliver = self._source.take, self._prepare, self._delivery.deliver
        gauge, hand = self._job.gauge, worker.hand
        while True:
            while not gauge.is_on:
                deliver(prepare(take(None), hand))
                hand.item = None  # if it was being made until now
            worker.begins()
            while gauge.is_on:
                passed_over = 0
                for passed_over in worker.passed_over():  # noqa: B007  # the last one is wanted
                    deliver(prepare(take(None), hand))
                    hand.item = None
                self._work_measured(worker, hand, passed_over)

    def _work_in_line(self, worker: WorkerGauge) -> None:
        """The same where it may be on a worker that ends to enqueue what lies there."""
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
            raise worst_of(errors)
        finally:
            del errors  # which have this frame in their tracebacks

    def _leaves_in_order(self, ended: BaseException) -> bool:
        """Whether a worker enqueues what lies there before it says by what it has ended.

        Of a failure everybody is to hear now, and while it waits for room there would be more and
        more. Where the order is kept there cannot be: only what comes before the item that failed.
        """
        is_failure = not isinstance(ended, NothingMore)
        return not is_failure or (self._job.is_ordered and isinstance(ended, Exception))

    def _work_measured(self, worker: WorkerGauge, hand: Hand, passed_over: int) -> None:
        """One turn of it."""
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

    def _prepare(self, item: Item, hand: Hand, failures: int = 0) -> Prepared:
        """Prepare an item, as often as it may be tried; so many times it has failed before."""
        make = self._examples
        while True:
            hand.failures, hand.began = failures, perf_counter()  # as `hand.take`, for each item
            hand.item = item
            try:
                examples = make(item)
                if type(examples) is not tuple and not self._streams:
                    examples = tuple(examples)
                if type(examples) is tuple:
                    hand.item = None
                return Prepared(item, examples, failures)
            except BaseException as raised:
                hand.let_go()
                failures += 1
                # Nothing is named here that it becomes: its traceback leads to this frame.
                delay = self._job.item_failed(item, raised, failures)
            if delay is None:
                return Prepared(item, failures=failures - 1, is_skipped=True)
            self._threads.pause(delay)

    def _work_by_key(self, worker: WorkerGauge) -> None:
        """The same where keys are limited: an item is tried once, and what failed comes again."""
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
        """Prepare an item that has its place, which it keeps for as long as that takes.

        Returns:
            Whether examples were made when they were delivered.
        """
        hand = worker.hand
        hand.take(pending.item, pending.failures)
        cpu = thread_time()
        try:
            examples = self._examples(pending.item)
            if not self._streams:
                examples = tuple(examples)
        except LeftBehind:
            raise  # the item is somebody else's by now
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
        hand.let_go()  # if it was being made until now
        inbox.give_back(pending)
        return not is_made
