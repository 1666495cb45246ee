"""Workers on threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from time import perf_counter, thread_time
from typing import Any, ClassVar

from aioqueue.base.arguments import EnqueueOp
from aioqueue.items.item import EpochEnd, Item, Prepared, as_item
from aioqueue.sources.source_reader import combine_errors
from aioqueue.workers.executor import Executor
from aioqueue.workers.executors.worker_threads import (
    BufferedDelivery,
    ExampleWriter,
    OrderedDelivery,
    SimpleDelivery,
    ThreadDelivery,
    ThreadInbox,
    ThreadSource,
    WorkerThreads,
)
from aioqueue.workers.flow_control import Pending, ReadPace, Tally
from aioqueue.workers.job import Job, NothingMore
from aioqueue.workers.timing import InProgress, WorkerGauge
from aioqueue.worlds.waker import is_free_threaded


class Abandoned(BaseException):  # not a failure
    """Ends an abandoned thread, which was too slow with an item; see `TimedThreadExecutor`."""


class ThreadExecutor(Executor):
    """Calls the function in the workers themselves.

    Workers read the source one at a time. With a key limit, a separate thread reads it, so that a
    worker does not wait there while an item that was put aside gets its place.

    Args:
        job: the job.
        examples: returns the examples of an item, in a worker's thread; ``None`` calls the
            function there.
    """

    where = "thread"
    worker_name = "thread"
    worker_plural = "threads"
    per_worker = 16
    limit_bytes: ClassVar[int | None] = None
    most_workers: ClassVar[int | None] = 64
    is_async = False
    is_timed: ClassVar[bool | None] = False
    takes_ray = False

    def __init__(self, job: Job, examples: Callable[[Item], Iterable[Any]] | None = None) -> None:
        super().__init__(job)
        self._streams = job.streams
        self._is_here = examples is None  # otherwise its processor time cannot be measured
        self._examples = job.call.examples if examples is None else examples
        self._source = ThreadSource(job)
        buffer = job.open_output_buffer(self._source.pace)
        # Whether examples enter the queue one by one, and only their number counts.
        is_simple = buffer is None and job.window.limit_bytes is None and job.feed.leases is None
        self._delivery = ThreadDelivery(job)
        if buffer is not None:
            self._delivery = BufferedDelivery(job, buffer)
        elif is_simple and not is_free_threaded():
            self._delivery = OrderedDelivery(job) if job.is_ordered else SimpleDelivery(job)
        self._inbox: ThreadInbox | None = None
        self._is_buffered = buffer is not None
        if buffer is None and job.key_limit is not None:
            self._inbox = ThreadInbox(job, self._source, self._delivery)
        dtypes = job.into.dtypes
        copies = dtypes is not None and not any(dtype.hasobject for dtype in dtypes)
        # A queue of typed components copies the example into its own memory, and without an order
        # the worker enqueues it at once. So nothing can change it before it is copied.
        if copies and is_simple and not job.is_ordered:
            job.call.make_no_copies()
        self._threads = WorkerThreads(job, self._source)

    def enqueue_ops(self) -> list[EnqueueOp]:
        ops = [*self._threads.enqueue_ops(self._run_worker), *self._source.enqueue_ops()]
        return ops if self._inbox is None else [*ops, self.take_items]

    def _run_worker(self, worker: WorkerGauge) -> None:
        if self._is_buffered:
            self._work_buffered(worker)
        elif self._inbox is not None:
            self._work_by_key(worker)
        else:
            self._work(worker)

    def take_items(self) -> None:
        assert self._inbox is not None
        self._threads.helper(self._inbox.take_items)

    def stop(self) -> None:
        self._source.stop()
        self._threads.stop()
        if self._inbox is not None:
            self._inbox.stop()

    def notify_room(self) -> None:
        self._source.notify_room()
        if self._inbox is not None:
            self._inbox.notify_room()

    def notify_resize(self) -> None:
        self._source.notify_resize()
        if self._inbox is not None:
            self._inbox.notify_resize()

    def end(self) -> BaseException | None:
        return self._source.close()

    def _work(self, worker: WorkerGauge) -> None:
        with self._job.tally() as tally:
            self._take_turns(worker, tally)

    def _take_turns(self, worker: WorkerGauge, tally: Tally) -> None:
        gauge, source, in_progress = self._job.gauge, self._source, worker.in_progress
        take_unmeasured = (
            self._take_quick_turns if self._delivery.takes_singles else self._take_plain_turns
        )
        while True:
            while not gauge.is_on:  # without a monitor
                take_unmeasured(in_progress, tally)
            worker.start_measuring()
            seconds = inf
            while gauge.is_on:
                skipped = 0
                for skipped in worker.skipped_turns():  # noqa: B007  # the last value is used
                    item = source.take(None, seconds)
                    seconds = self._prepare_and_deliver(item, in_progress)
                    del item
                seconds = self._work_measured(worker, in_progress, skipped, seconds)

    def _take_plain_turns(self, in_progress: InProgress, tally: Tally) -> None:
        """Take turns until a monitor needs measured ones."""
        gauge, take = self._job.gauge, self._source.take
        seconds = inf
        while not gauge.is_on:
            seconds = self._prepare_and_deliver(take(None, seconds), in_progress)

    def _take_quick_turns(self, in_progress: InProgress, tally: Tally) -> None:
        """Do the same at less than half the cost, if items of one example can be delivered as such.

        It repeats the code of several methods, because their calls would cost more than the work.
        """
        delivery, pace = self._delivery, self._source.pace
        writer = None if pace is None else delivery.element_writer()
        if pace is None or writer is None:
            self._take_single_turns(in_progress, tally, None, ReadPace())
            return
        try:
            self._take_single_turns(in_progress, tally, writer, pace)
        finally:
            try:
                if writer.arrivals.rows:
                    delivery.collect(writer, tally)
            finally:
                writer.close()

    def _take_single_turns(
        self, in_progress: InProgress, tally: Tally, writer: ExampleWriter | None, pace: ReadPace
    ) -> None:
        """Do so.

        Args:
            in_progress: the worker's.
            tally: the worker's.
            writer: enqueues examples together while items are quick; ``None``: one by one.
            pace: shows whether they are.
        """
        job, call, take, ahead = self._job, self._job.call, self._source.take, self._source.ahead
        gauge, roster, deliver_single = job.gauge, job.roster, self._delivery.deliver_single
        take_ahead, now = ahead.popleft, perf_counter
        # Otherwise `ItemCall.examples`, or what stands for it, makes the call.
        is_direct = self._is_here and not call.takes_rng
        has_ends, complete_types = job.by_item, call.complete_types
        is_quick = is_written = False  # as of the latest read: then examples are written together
        delivery = self._delivery
        if writer is not None:
            arrivals, write_usual, write = writer.arrivals, writer.write_usual, writer.write
            rows = arrivals.rows
        seconds = inf
        in_progress.failures = 0
        while not gauge.is_on:
            # Without a lock: `popleft` is atomic, so each item goes to one worker. A worker that
            # has to leave must not take this way: `take` dismisses it.
            if ahead and not job.is_halted and not roster.surplus:
                try:
                    item = take_ahead()
                except IndexError:  # other workers were faster
                    in_progress.item = None
                    item = take(None, seconds)
            else:
                in_progress.item = None
                item = take(None, seconds)
                is_quick = writer is not None and pace.is_quick
            in_progress.began = now()  # as `InProgress.begin`
            in_progress.item = item
            is_end = has_ends and type(item[1]) is EpochEnd
            try:
                if is_direct and not is_end:
                    made = call.call(item[1])
                    # A usual element of a queue with a writer is complete: see `make_no_copies`.
                    is_written = is_quick and write_usual(made)
                    if not is_written:
                        is_example = type(made) in complete_types
                        if not is_example:
                            results = [made]
                            del made  # an example must have only one owner, or it would be copied
                            made = call.examples_in(results, item[1])
                else:
                    made, is_example = self._examples(as_item(item)), False
                if not (is_written or is_example):
                    if type(made) is not tuple:
                        if not self._streams:
                            made = tuple(made)  # see `_prepare`
                    elif len(made) == 1 and not is_end:
                        (made,), is_example = made, True
            except BaseException as raised:
                in_progress.item = None
                if writer is not None and rows:
                    delivery.collect(writer, tally)  # those before it
                item = as_item(item)
                # Give the exception's result no name here: its traceback refers to this frame.
                delay = job.item_failed(item, raised, 1)
            else:
                if not ahead:  # then this worker may read next, and needs the measure
                    seconds = now() - in_progress.began
                if not is_written and writer is not None:
                    in_progress.item = None if is_example else in_progress.item
                    if is_example and is_quick:
                        try:
                            write(made)
                        except BaseException as error:
                            if rows:
                                delivery.collect(writer, tally)
                            delivery.not_written(item, error)
                            continue
                        is_written = True
                    elif rows:
                        delivery.collect(writer, tally)  # they come first
                if is_written:
                    # First the count, then the check: see `ThreadSource._sleep`.
                    tally.count += 1
                    # From the append on, another thread may take the row in.
                    if len(rows) >= arrivals.limit:
                        in_progress.item = None
                        delivery.collect(writer, tally)  # type: ignore[arg-type]  # there is one
                    if job.is_room_awaited:
                        job.notify_room()
                    continue
                if is_example:
                    in_progress.item = None
                    deliver_single(item, made, tally)
                elif type(made) is tuple:
                    in_progress.item = None
                    self._delivery.deliver(Prepared(as_item(item), made))
                else:  # a generator, which works only in the delivery
                    self._deliver(Prepared(as_item(item), made), in_progress)
                    seconds = now() - in_progress.began
                # Keep nothing of the item while waiting for the next one.
                del item, made
                continue
            prepared, seconds = self._prepare_again(item, in_progress, 1, delay)
            in_progress.failures = 0
            self._deliver(prepared, in_progress)
            del item, prepared
        in_progress.item = None

    def _prepare_and_deliver(self, item: Item, in_progress: InProgress) -> float:
        """Take an unmeasured turn; return how long the function has taken."""
        prepared, seconds = self._prepare(item, in_progress)
        as_made = type(prepared.examples) is not tuple
        self._deliver(prepared, in_progress)
        return perf_counter() - in_progress.began if as_made else seconds

    def _deliver(self, prepared: Prepared, in_progress: InProgress) -> None:
        self._delivery.deliver(prepared)
        # A generator has made the examples during the delivery, so the item was in progress.
        in_progress.item = None

    def _work_buffered(self, worker: WorkerGauge) -> None:
        """Do the same with an output buffer, which the worker may have to flush at its end."""
        errors: list[BaseException] = []
        try:
            self._work(worker)
        except BaseException as error:
            errors.append(error)
        try:
            if self._flushes_at_end(errors[0]):
                self._delivery.flush()
        except BaseException as error:
            errors.append(error)
        try:
            raise combine_errors(errors)
        finally:
            del errors  # their tracebacks contain this frame

    def _flushes_at_end(self, ended: BaseException) -> bool:
        """Return whether to flush the buffer before the worker reports its end.

        A failure must be reported at once; meanwhile the buffer would fill up again and again. With
        a kept order it cannot: only items before the failed one may follow.
        """
        is_failure = not isinstance(ended, NothingMore)
        return not is_failure or (self._job.is_ordered and isinstance(ended, Exception))

    def _work_measured(
        self, worker: WorkerGauge, in_progress: InProgress, skipped: int, seconds: float
    ) -> float:
        """Take a measured turn.

        Args:
            worker: the worker's gauge.
            in_progress: the same as the gauge's.
            skipped: the number of turns before that were not measured.
            seconds: how long the latest call of the function has taken.

        Returns:
            How long this one has taken.
        """
        gauge = self._job.gauge
        worker.item_wait_started(skipped, gauge.seconds_full)
        item = self._source.take(worker, seconds)
        worker.item_received(item, gauge.seconds_full)
        cpu = thread_time()
        prepared, seconds = self._prepare(item, in_progress)
        as_made = type(prepared.examples) is not tuple
        worker.call_finished(thread_time() - cpu if self._is_here and not as_made else None)
        worker.item = None
        began, blocked = perf_counter(), worker.waits.enqueues
        self._delivery.deliver(prepared)
        in_progress.item = None
        worker.delivery_finished(as_made=as_made, began=began, blocked=blocked)
        return perf_counter() - in_progress.began if as_made else seconds

    def _prepare(
        self, item: Item, in_progress: InProgress, failures: int = 0
    ) -> tuple[Prepared, float]:
        """Prepare an item, with all its retries, after this many earlier failures.

        Returns:
            The item, and the seconds that the last call has taken.
        """
        make = self._examples
        while True:
            # As `InProgress.begin`, inlined for speed.
            in_progress.failures, in_progress.began = failures, perf_counter()
            in_progress.item = item
            try:
                examples = make(item)
                if type(examples) is tuple:
                    in_progress.item = None
                elif not self._streams:
                    # No example may be in the queue before the last one is made: the item may be
                    # retried, say. See `Job.streams`.
                    examples = tuple(examples)
                    in_progress.item = None
                return Prepared(item, examples, failures), perf_counter() - in_progress.began
            except BaseException as raised:
                in_progress.clear()
                failures += 1
                # Give the exception's result no name here: its traceback refers to this frame.
                delay = self._job.item_failed(item, raised, failures)
            if delay is None:
                return Prepared(item, failures=failures - 1, is_skipped=True), inf
            self._threads.pause(delay)

    def _prepare_again(
        self, item: Item, in_progress: InProgress, failures: int, delay: float | None
    ) -> tuple[Prepared, float]:
        """Do the same with an item that has just failed.

        Args:
            item: the item.
            in_progress: the worker's.
            failures: how often it has failed.
            delay: the seconds to wait before; ``None`` if it is skipped.
        """
        if delay is None:
            return Prepared(item, failures=failures - 1, is_skipped=True), inf
        self._threads.pause(delay)
        return self._prepare(item, in_progress, failures)

    def _work_by_key(self, worker: WorkerGauge) -> None:
        """Do the same with a key limit: each attempt takes a place, and retries come back later."""
        assert self._inbox is not None
        worker.measures_all = True
        while True:
            worker.item_wait_started()
            for pending in self._inbox.take():
                worker.item_received(pending.item)
                began, blocked = perf_counter(), worker.waits.enqueues
                as_made = self._attempt(pending, self._inbox, worker)
                worker.delivery_finished(as_made=as_made, began=began, blocked=blocked)

    def _attempt(self, pending: Pending, inbox: ThreadInbox, worker: WorkerGauge) -> bool:
        """Prepare an item that has a place, and keep the place meanwhile.

        Returns:
            Whether a generator ran while the examples were delivered.
        """
        in_progress = worker.in_progress
        in_progress.begin(pending.item, pending.failures)
        cpu = thread_time()
        try:
            examples = self._examples(pending.item)
            if not self._streams:
                examples = tuple(examples)
        except Abandoned:
            raise  # the worker has taken the item back
        except BaseException as raised:
            worker.call_finished()
            worker.item = None
            in_progress.clear()
            inbox.failed(pending, self._job.failure_of_item(raised))
            return False
        is_made = type(examples) is tuple
        worker.call_finished(thread_time() - cpu if self._is_here and is_made else None)
        worker.item = None
        # The delivery may wait for a full queue. If the function has returned, another item of the
        # key can be prepared meanwhile. A generator still runs, so it keeps the place until its
        # last example is in the queue. (To release a place twice changes nothing.)
        if is_made:
            in_progress.clear()
            inbox.release_place(pending)
        self._delivery.deliver(Prepared(pending.item, examples, failures=pending.failures))
        in_progress.clear()
        inbox.release_place(pending)
        return not is_made
