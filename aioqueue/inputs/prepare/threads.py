"""Preparing in threads: the workers take items, have them prepared, and enqueue the examples.

An enqueue op here is the whole life of one worker, and it always ends by an exception: by
`OutOfRangeError` when there is nothing more to do, whatever the reason, and else by the failure
that ends the pipeline. What an exception means that has come out of the function, the source or
the queue is decided in `aioqueue.coordination.outcomes`: the end of the source is an end, a stop
and the cancellation of a worker are a stop, and all else is the failure of an item or the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from aioqueue.functions import EnqueueOp
from aioqueue.inputs.prepare.blocking import (
    ThreadDelivery,
    ThreadInbox,
    ThreadSource,
    WorkerThreads,
)
from aioqueue.inputs.prepare.job import Job, Prepared
from aioqueue.inputs.prepare.limits import Pending
from aioqueue.inputs.sources.item import Item

__all__ = ("ThreadExecutor",)


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
        self._examples = job.call.examples if examples is None else examples
        self._source = ThreadSource(job)
        self._delivery = ThreadDelivery(job)
        self._inbox: ThreadInbox | None = None
        work = self._work
        if job.key_limit is not None:
            self._inbox = ThreadInbox(job, self._source, self._delivery)
            work = self._work_by_key
        self._threads = WorkerThreads(job, self._source, work)

    def enqueue_ops(self) -> list[EnqueueOp]:
        ops = [*self._threads.enqueue_ops(), *self._source.enqueue_ops()]
        return ops if self._inbox is None else [*ops, self.take_items]

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

    def end(self) -> BaseException | None:
        return self._source.close()

    def _work(self) -> None:
        """The work of one worker, until there is none."""
        while True:
            self._delivery.deliver(self._prepare(self._source.take()))

    def _prepare(self, item: Item) -> Prepared:
        """Prepare an item, as often as it may be tried."""
        make = self._examples
        failures = 0
        while True:
            try:
                examples = make(item)
                if not self._streams:
                    examples = tuple(examples)
                return Prepared(item, examples, failures=failures)
            except BaseException as raised:
                error = self._job.failure_of_item(raised)
            failures += 1
            delay = self._job.progress.failed(item, error, failures)
            if delay is None:
                return Prepared(item, failures=failures - 1, is_skipped=True)
            self._threads.pause(delay)

    def _work_by_key(self) -> None:
        """The same where keys are limited: an item is tried once, and what failed comes again."""
        assert self._inbox is not None
        while True:
            for pending in self._inbox.take():
                self._try(pending, self._inbox)

    def _try(self, pending: Pending, inbox: ThreadInbox) -> None:
        """Prepare an item that has its place, which it keeps for as long as that takes."""
        try:
            examples = self._examples(pending.item)
            if not self._streams:
                examples = tuple(examples)
        except BaseException as raised:
            inbox.give_back(pending)
            inbox.failed(pending, self._job.failure_of_item(raised))
            return
        if type(examples) is tuple:
            inbox.give_back(pending)
        self._delivery.deliver(Prepared(pending.item, examples, failures=pending.failures))
        inbox.give_back(pending)  # if it was being made until now
