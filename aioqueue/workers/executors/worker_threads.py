"""The common parts of executors whose workers are threads.

These threads take items from the source, wait for work, and enqueue examples. An executor adds how
an item gets to the function, and how its outcome comes back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf
from time import perf_counter
from typing import Any, Final, Protocol

from aioqueue import QueueClosedError, sync
from aioqueue.base.arguments import EnqueueOp
from aioqueue.coordination.classify import Classification, classify
from aioqueue.errors import add_note
from aioqueue.items.item import Delivered, EpochEnd, Item, ItemFields, Prepared, as_item
from aioqueue.sources.source_reader import combine_errors, failure_of_clean_up
from aioqueue.system.locks import synchronized
from aioqueue.workers.flow_control import (
    NOTE_OF_KEY,
    InFlightWindow,
    OutputBuffer,
    Pending,
    ReadPace,
    Tally,
)
from aioqueue.workers.job import Job
from aioqueue.workers.key_limits import Inbox
from aioqueue.workers.timing import WorkerGauge

_item: Final[Callable[[ItemFields], Item]] = partial(tuple.__new__, Item)


class ThreadSource:
    """The source of a job, which one thread reads at a time.

    If the function is fast and the items are in memory, the reading thread takes several items at
    once, and others then take theirs without a turn. Such items belong to no worker yet, so none
    has to wait for another one's preparation.

    Args:
        job: the job.
        waits_till_low: whether to wake a thread that waits for room only when there is much room,
            or when the source has ended.
    """

    def __init__(self, job: Job, *, waits_till_low: bool = False) -> None:
        self._job = job
        self._lock = job.lock
        self._window = job.window
        self._waits_till_low = waits_till_low
        self.is_for_workers = True  # workers read it themselves, and may be dismissed
        self._read_lock = threading.Lock()
        self._room = threading.Condition(job.lock)
        self._reader = job.feed.async_reader(job.count) if job.feed.is_async_only else None
        may_read_ahead = job.feed.is_in_memory and job.window.limit_bytes is None
        in_memory = job.feed.items_in_memory() if may_read_ahead else None
        items = (self._reader or job.feed).items() if in_memory is None else in_memory
        self._items: Iterator[ItemFields] = items
        self._close_items: Callable[[], object] = items.close
        self.pace: ReadPace | None = ReadPace() if may_read_ahead else None
        self._pace = self.pace
        self._ahead: deque[ItemFields] = deque()  # items that were read, for any worker
        job.window.ahead = self._ahead
        self._seconds_each = 0.0  # the seconds to read one of these
        self._read = 0  # the number of items so far
        self._next_watch = 1  # the next number at which calls are watched for draws
        self._watch_draws = job.call.watch_draws

    @property
    def ahead(self) -> deque[ItemFields]:
        """The items that were read and belong to no worker yet. Any worker may take the first."""
        return self._ahead

    def enqueue_ops(self) -> list[EnqueueOp]:
        """Return the ops that are needed besides the readers."""
        return [] if self._reader is None else [self._reader.read_source]

    def take(self, worker: WorkerGauge | None = None, seconds: float = inf) -> Item:
        """Return the next item, which counts as in flight from now on.

        Args:
            worker: the caller's gauge, if it measures this turn.
            seconds: how long the caller's latest call of the function has taken.

        Raises:
            NothingMore: no item is left, or the run wants no more.
            BaseException: the failure of the source.
        """
        job, ahead, window = self._job, self._ahead, self._window
        while True:
            with self._read_lock:
                # While this worker waited for the lock, the one that held it may have read ahead.
                # The item may still go to a faster worker without the lock; then this one reads.
                if ahead and (item := self._read_already()) is not None:
                    if worker is not None:
                        job.gauge.source_waits.add(self._seconds_each, worker.weight)
                    return item
                n = 1
                if window.came < window.may_come and not (job.source_ended or job.roster.surplus):
                    window.came += 1
                else:
                    n = self._admit(seconds)
                self._read = read = self._read + n
                if read >= self._next_watch:
                    self._next_watch = 4 * read
                    self._watch_draws()
                try:
                    if n > 1:
                        self._read_ahead(n)
                    elif worker is None:
                        fields = next(self._items)
                        return fields if type(fields) is Item else _item(fields)
                    else:
                        return self._measured(worker.weight)
                except BaseException as error:
                    # Still under the lock, so that the next worker finds the source ended and
                    # does not ask it again.
                    raise job.source_raised(error)  # noqa: B904  # the user's own cause matters

    def _read_already(self) -> Item | None:
        """Return the next item that was read ahead; ``None`` if none is there or wanted."""
        job = self._job
        if job.is_halted:
            return None
        # Before the item is taken: a worker that leaves must hold none.
        if job.roster.surplus and self.is_for_workers:
            job.dismiss()
        try:
            return _item(self._ahead.popleft())
        except IndexError:
            return None  # other workers were faster

    def _admit(self, seconds: float) -> int:
        """Wait until an item may come in; return how many may."""
        job, pace = self._job, self._pace
        with self._lock:
            if not self._window.has_room():
                self._wait_for_room()
            # Room is not the only end of that wait: the stop, a drain and a resize end it, too.
            if job.source_ended:
                raise job.nothing_more()
            if job.roster.surplus and self.is_for_workers:
                job.dismiss()
            if pace is None:
                self._window.enter()
                # Not with an inbox. Its workers end when the source has ended and nothing is in
                # flight, so the reader must not count an item after they have looked.
                if self.is_for_workers:
                    self._window.grant()
                else:
                    self._window.asked = 1
                return 1
            n = pace.next(seconds)
            if n == 1 and job.output_buffer is not None:
                job.output_buffer.slow_down()
            return self._window.enter_some(n)

    def _read_ahead(self, n: int) -> None:
        """Read items that were let in. Keep the source's exception until all items are taken.

        Raises:
            BaseException: the exception of the source, if there are no items.
        """
        began = perf_counter()
        read: list[ItemFields] = []
        try:
            if self._window.quota is None:
                read.extend(islice(self._items, n))  # keeps the items before a failure
            else:
                for item in islice(self._items, n):
                    read.append(item)
                    if type(item[1]) is EpochEnd:  # the next epoch has a number of its own
                        break
            if not read:
                raise StopIteration
        except BaseException as error:
            if not read:
                # `take` passes the error to `Job.source_raised`, which uncounts one item.
                self._uncount(n - 1)
                raise
            # The items before the failure are prepared as if they had been read one by one. The
            # next read raises the error.
            self._items = _raising(error)
        self._uncount(n - len(read))
        self._seconds_each = (perf_counter() - began) / len(read)
        self._ahead.extend(read)

    def _uncount(self, n: int) -> None:
        """Uncount items that were let in, but did not come. The caller has the turn, and no one
        else waits for room, so there is no one to wake."""
        if n:
            with self._lock:
                self._window.abort(n)

    def _measured(self, weight: int) -> Item:
        began = perf_counter()
        item = next(self._items)
        self._job.gauge.source_waits.add(perf_counter() - began, weight)
        return item if type(item) is Item else _item(item)

    def _wait_for_room(self) -> None:
        """Wait until another item may come in, or none will. Called under the lock."""
        job, window = self._job, self._window
        job.gauge.is_full(by_bytes=window.is_full_of_bytes)
        try:
            self._sleep(job, window)
        finally:
            job.gauge.has_room()

    def _sleep(self, job: Job, window: InFlightWindow) -> None:
        # Only one thread waits here, as it holds the read lock. A worker with a `Tally` takes no
        # lock of the job, so it could deliver an item after the check for room and before the wait.
        # Therefore this thread first announces that it waits and then checks. The worker first
        # counts its item and then reads the announcement. Whatever the order, one of them sees the
        # other. (This needs the GIL, which orders the two writes.)
        job.is_room_awaited = True
        while not (job.source_ended or window.has_room() or self._is_to_dismiss()):
            self._room.wait()
        job.is_room_awaited = False

    def _is_to_dismiss(self) -> bool:
        return self.is_for_workers and self._job.is_to_dismiss

    def notify_resize(self) -> None:
        self._room.notify()

    def notify_room(self) -> None:
        if not self._is_patient() or self._window.is_low or self._job.source_ended:
            self._room.notify()

    def _is_patient(self) -> bool:
        """Return whether to wait until there is room for many items.

        That pays for fast items in order, where each item would wake a thread. The consumer's next
        item is not delayed, because it is in preparation already.
        """
        pace = self._pace
        is_quick = pace is not None and pace.is_quick
        return self._waits_till_low or (is_quick and self._job.is_ordered)

    def stop(self) -> None:
        """End the wait for room, and the wait for an async source."""
        self._wake()
        if self._reader is not None:
            self._reader.close()

    @synchronized
    def _wake(self) -> None:
        self._room.notify_all()

    def _discard_ahead(self) -> None:
        """Drop items that were read ahead and are not wanted; they stay counted."""
        # The window subtracts them from the items that workers have taken, which the statistics
        # report. So they must remain in its ``ahead``, but only as a number: the items are freed.
        dropped = 0
        with suppress(IndexError):
            while True:
                self._ahead.popleft()
                dropped += 1
        if dropped:
            self._window.ahead = range(dropped)

    def close(self) -> BaseException | None:
        """Close the source; if a thread is inside, leave the closing to that thread.

        Returns:
            What has failed in that.
        """
        if self._reader is not None:
            self._reader.close()  # it may wait until its items are taken
        # A thread that is inside the source may stay there for any time, so this one does not wait.
        # After the stop, each worker calls this method as it leaves, the one inside included.
        if not self._read_lock.acquire(blocking=False):
            return None
        try:
            self._discard_ahead()
            self._close_items()
        except BaseException as error:
            return failure_of_clean_up(error)
        finally:
            self._read_lock.release()
        return None


def _raising(error: BaseException) -> Generator[Item, None, None]:
    yield from ()
    try:
        raise error
    finally:
        del error  # its traceback contains this frame


class ExampleWriter(Protocol):
    """What the queue offers to enqueue many elements of one thread together."""

    arrivals: Any
    write_usual: Callable[[Any], bool]
    lost: int

    def write(self, element: Any) -> None: ...

    def collect(self) -> None: ...

    def close(self) -> None: ...


class ThreadDelivery:
    """Enqueues examples from threads, waiting if the queue is full."""

    def __init__(self, job: Job) -> None:
        self._job = job
        # Bound once, because every item uses them.
        self._enqueue = job.into.sync.enqueue
        self._records_prepared = job.records_prepared

    @property
    def takes_singles(self) -> bool:
        """Whether `deliver_single` may be used, in this run."""
        return False

    def deliver(self, prepared: Prepared) -> None:
        """Enqueue the examples of an item: now, or later if the order or a buffer requires it.

        Raises:
            BaseException: what ends the worker.
        """
        due = self._job.item_prepared(prepared) if self._records_prepared else prepared
        del prepared  # keep nothing that is in the queue
        # With a kept order, `_put` returns the next item as long as it is there. Meanwhile other
        # workers leave theirs to this one, so that examples are enqueued by one thread at a time.
        while due is not None:
            due = self._put(due)

    def deliver_single(self, item: ItemFields, example: Any, tally: Tally) -> None:
        """Do the same with the only example of an item that has never failed, at a small part of
        the cost.

        Args:
            item: the item. It is not the end of an epoch.
            example: the example.
            tally: the caller's.

        Raises:
            BaseException: what ends the worker.
        """
        raise NotImplementedError

    def element_writer(self) -> ExampleWriter | None:
        """Return what enqueues the examples of quick items together, for one worker; ``None`` if
        each has to be enqueued by itself."""
        return None

    def not_written(self, item: ItemFields, error: BaseException) -> None:
        """Handle an example that is wrong, so that it was not written.

        Raises:
            BaseException: what ends the worker.
        """
        prepared = Prepared(as_item(item))
        self._job.not_enqueued(prepared, error)
        self._job.item_delivered(prepared)

    def collect(self, writer: ExampleWriter, tally: Tally) -> None:
        """Enqueue the examples that were written.

        Raises:
            BaseException: what ends the worker.
        """
        try:
            writer.collect()
        except QueueClosedError:
            tally.count -= writer.lost
            raise self._job.nothing_more() from None
        except BaseException:
            tally.count -= writer.lost
            raise

    def flush(self) -> None:
        """Do nothing at the end of a worker: there is no buffer to flush."""

    def _put(self, prepared: Prepared) -> Prepared | None:
        """Enqueue the examples of an item; return the item to enqueue next."""
        examples, enqueue = prepared.examples, self._enqueue
        try:
            for example in examples if type(examples) is tuple else self._as_made(prepared):
                try:
                    enqueue(example)
                except BaseException as error:
                    self._job.not_enqueued(prepared, error)
                    break
                prepared.entered += 1
        except BaseException:
            # This ends the worker before the item is complete. The examples that are in the queue
            # count nevertheless.
            self._job.progress.entered(prepared.entered)
            raise
        return self._job.item_delivered(prepared)

    def _as_made(self, prepared: Prepared) -> Iterator[Any]:
        """Yield the examples of a generator; if it fails, the item has failed."""
        examples = iter(prepared.examples)
        while True:
            try:
                example = next(examples)
            except StopIteration:
                return
            except BaseException as error:
                self._job.refused(prepared, self._job.failure_of_item(error))
                return
            yield example  # outside the `try`: closing this generator is not a failure of that one


class SimpleDelivery(ThreadDelivery):
    """Enqueues each example at once, where neither order, bytes nor leases matter.

    It counts by a `Tally`, so it needs a GIL: otherwise the thread that waits for room could miss
    a count (see `ThreadSource._sleep`).
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._to_row, self._try_enqueue = job.into.sync._steps_of_enqueue() or (None, never_enqueue)
        self._by_item = job.by_item

    @property
    def takes_singles(self) -> bool:
        # A resumed pipeline must not count what an earlier run has counted, as a tally would.
        return not self._job.fits and self._job.progress.is_known is None

    def element_writer(self) -> ExampleWriter | None:
        return None if self._by_item else self._job.into.sync._element_writer(_MOST_TOGETHER)

    def deliver_single(self, item: ItemFields, example: Any, tally: Tally) -> None:
        try:
            to_row, try_enqueue = self._to_row, self._try_enqueue
            if self._by_item:
                number, _, epoch, index = item
                example = (epoch, number, index, (example,), None)  # a `Delivered`
            if not try_enqueue(example if to_row is None else to_row(example)):
                self._enqueue(example)
        except BaseException as error:
            self.not_written(item, error)
        else:
            # First the count, then the check: see `ThreadSource._sleep`.
            tally.count += 1
            if self._job.is_room_awaited:
                self._job.notify_room()


def never_enqueue(row: Any) -> bool:
    """Return false: the queue has an `enqueue` of its own, which has to be called."""
    return False


_MOST_TOGETHER: Final = 64
"""The most examples that a worker enqueues together."""


class OrderedDelivery(SimpleDelivery):
    """Does the same in the order of the source, as `Reordering` does, but without the job's lock.

    A worker hands in its item and continues. One worker at a time has the turn: it enqueues the
    next item in order, and all that follow it.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._held: dict[int, Prepared | tuple[ItemFields, Any]] = {}
        self._next = 0  # the number of the next item to enqueue; of who has the turn
        self._turn = threading.Lock()
        job.early = self._held

    def element_writer(self) -> ExampleWriter | None:
        return None

    def deliver(self, prepared: Prepared) -> None:
        if self._by_item:
            self._job.pack_whole(prepared)
        self._held[prepared.item.number] = prepared
        del prepared  # keep nothing that is in the queue
        self._enqueue_following(None)

    def deliver_single(self, item: ItemFields, example: Any, tally: Tally) -> None:
        self._held[item[0]] = (item, example)
        del item, example
        self._enqueue_following(tally)

    def _enqueue_following(self, tally: Tally | None) -> None:
        """Enqueue the items whose turn has come, unless another worker does.

        Args:
            tally: the caller's; ``None`` counts under the job's lock.
        """
        held, turn = self._held, self._turn
        # If this raises, the worker ends with a failure or the stop. Then nothing must follow, so
        # the turn stays taken.
        while turn.acquire(False):
            at = self._next
            while (one := held.pop(at, None)) is not None:
                self._next = at = at + 1
                if isinstance(one, Prepared):
                    self._put(one)
                elif tally is not None:
                    SimpleDelivery.deliver_single(self, one[0], one[1], tally)
                else:
                    self._put_counted(*one)
            turn.release()
            # A worker that hands in the next item after the last look finds the turn taken, and
            # continues. So look again after the release.
            if at not in held:
                return

    def _put_counted(self, item: ItemFields, example: Any) -> None:
        prepared = Prepared(as_item(item), (example,))
        if self._by_item:
            self._job.pack_whole(prepared)
        self._put(prepared)


class BufferedDelivery(ThreadDelivery):
    """Enqueues several items at once, from an `OutputBuffer`."""

    def __init__(self, job: Job, output_buffer: OutputBuffer) -> None:
        super().__init__(job)
        self._output_buffer = output_buffer
        self._enqueue_many = job.into.sync.enqueue_many

    @property
    def takes_singles(self) -> bool:
        return not self._job.fits

    def deliver(self, prepared: Prepared) -> None:
        """Hand in an item, and enqueue the items that are due.

        Raises:
            BaseException: what ends the worker.
        """
        self._job.pack_whole(prepared)
        run = self._output_buffer.add(prepared)
        del prepared  # keep nothing that is in the queue
        if run:
            self._put_runs(run)

    def deliver_single(self, item: ItemFields, example: Any, tally: Tally) -> None:
        buffer = self._output_buffer
        number, _, epoch, index = item
        arrivals = buffer.arrivals
        arrivals.append((epoch, number, index, (example,), None))  # a `Delivered`
        if len(arrivals) >= buffer.enough:  # only now: see `OutputBuffer._has_due`
            del item, example  # keep nothing that is in the queue
            run = buffer.collect()
            if run:
                self._put_runs(run)

    def flush(self) -> None:
        """Enqueue the rest of the buffer, at the end of a worker.

        Raises:
            BaseException: what ends the worker instead.
        """
        run = self._output_buffer.take_rest()
        while run:
            self._put_runs(run)
            # Other workers may have added items meanwhile, and have left already.
            run = self._output_buffer.take_rest()

    def _put_runs(self, run: Sequence[Delivered]) -> None:
        """Enqueue items, and those that are due next."""
        while run:
            try:
                self._enqueue_many(run, copy=False)
            except QueueClosedError:
                raise self._job.nothing_more() from None
            run = self._output_buffer.enqueued(run)


class WorkerThreads:
    """The workers of a job that are threads.

    Args:
        job: the job.
        source: the source that they, or a helper, take items from.
    """

    def __init__(self, job: Job, source: ThreadSource) -> None:
        self._job = job
        self._lock = job.lock
        self._source = source
        self.scope: sync.CancelScope = (
            sync.CancelScope()
        )  # around every wait of a worker at a queue
        self._stopped = threading.Condition(job.lock)

    def enqueue_ops(self, work: Callable[[WorkerGauge], object]) -> list[EnqueueOp]:
        """Return one op for each worker.

        Args:
            work: called with the worker's gauge. It works until it raises `Job.nothing_more`, or a
                failure. (It is a method of our owner, so we do not keep it.)
        """
        return [partial(self.prepare_items, work)] * self._job.count

    def prepare_items(self, work: Callable[[WorkerGauge], object]) -> None:
        job, thread = self._job, threading.current_thread()
        job.enter()
        worker = job.gauge.worker(thread.name)
        job.in_progress.add(thread, worker.in_progress)
        ended: BaseException | None = None
        try:
            with self.scope:
                work(worker)
        except BaseException as error:
            is_stop = classify(error, stopping=job.is_stopping) is Classification.STOP
            ended = job.nothing_more() if is_stop else error
        job.in_progress.remove(thread)
        job.gauge.worker_ended(worker)
        # After a stop, the thread that was inside the source has to close it. Without one, the
        # last worker does, in `Executor.end`; until then others still read.
        closing = self._source.close() if job.is_halted else None
        try:
            raise job.leave(ended, closing)
        finally:
            del ended, closing  # their tracebacks contain this frame

    def helper(self, work: Callable[[], object]) -> None:
        """Run a helper thread, which a stop ends as it ends the workers.

        Raises:
            BaseException: a failure, otherwise that there is nothing more to do.
        """
        errors: list[BaseException] = []
        self._job.gauge.helper(threading.current_thread().name)
        try:
            with self.scope:
                work()
        except BaseException as error:
            errors.append(error)
        closing = self._source.close()
        if closing is not None:
            errors.append(closing)
        try:
            raise combine_errors(errors)
        finally:
            del errors, closing  # their tracebacks contain this frame

    def pause(self, seconds: float) -> None:
        """Sleep.

        Raises:
            NothingMore: no more examples are wanted.
        """
        with self._lock:
            self._stopped.wait_for(lambda: self._job.is_halted, seconds)
        if self._job.is_halted:
            raise self._job.nothing_more()

    def stop(self) -> None:
        self.scope.cancel()
        self._wake()

    @synchronized
    def _wake(self) -> None:
        self._stopped.notify_all()


class ThreadInbox:
    """Items that a separate thread takes from the source for workers that are threads.

    So workers need not wait for the source while there are items to retry, items of a worker that
    died, or items that were put aside and have a place now.

    Args:
        job: the job.
        source: the source.
        delivery: receives items that fail for good.
    """

    def __init__(self, job: Job, source: ThreadSource, delivery: ThreadDelivery) -> None:
        self._job = job
        self._lock = job.lock
        self._source = source
        source.is_for_workers = False
        self._delivery = delivery
        self._inbox = Inbox(job.key_limit)
        self._work_came = threading.Condition(job.lock)

    def take_items(self) -> None:
        while True:
            item = self._source.take()
            with self._lock:
                self._job.window.asked = 0
                self._inbox.put(Pending(item))
                self._work_came.notify()

    def take(self, n: int = 1, *, wait: bool = True) -> list[Pending]:
        """Return the next items to prepare.

        Args:
            n: the largest number; if there are not enough for all workers, a fair share.
            wait: whether to wait for the first item.

        Returns:
            Items that all have their places. Empty, if there are none and we must not wait.

        Raises:
            NothingMore: everything has been prepared, or no more is wanted.
            BaseException: the failure of the key function, if that ends everything.
        """
        while True:
            pendings = self._next(n, wait)
            if self._job.key_limit is not None:
                pendings = [pending for pending in pendings if self._is_admitted(pending)]
            if pendings or not wait:
                return pendings

    def take_for(self, gauge: WorkerGauge, n: int, *, is_busy: bool) -> list[Pending]:
        """Return the next items for a worker, as `take` does; an idle worker waits for them.

        Args:
            gauge: the worker's gauge, which measures that wait.
            n: the largest number.
            is_busy: whether the worker still has items, so that it must not wait.
        """
        if is_busy:
            return self.take(n, wait=False)
        gauge.item_wait_started()
        try:
            return self.take(n)
        finally:
            gauge.item_wait_ended()

    def _next(self, n: int, wait: bool) -> list[Pending]:
        with self._lock:
            while not self._job.is_halted:
                # Before items are taken: a worker that leaves must hold none.
                if self._job.roster.surplus:
                    if not wait:
                        return []  # end after the current work
                    self._job.dismiss()
                share = self._inbox.share(self._job.count)
                pendings = self._inbox.take(max(1, min(n, share)))
                # The others sleep until a time that they computed before this one was known.
                if self._inbox.is_newly_due():
                    self._work_came.notify_all()
                if pendings or not wait:
                    return pendings
                # As long as one item is in flight, it may come back: to be retried, or from a
                # worker that was lost. So the end of the source alone is not the end of the work.
                if self._job.source_ended and self._job.window.items == 0:
                    break
                self._sleep()
        raise self._job.nothing_more()

    def _sleep(self) -> None:
        """Wait for something to do. Called under the lock."""
        keys = self._job.key_limit
        if keys is not None:
            keys.count_idle(1)
        try:
            self._work_came.wait(self._inbox.seconds())
        finally:
            if keys is not None:
                keys.count_idle(-1)

    def _is_admitted(self, pending: Pending) -> bool:
        """Return whether an item may be prepared now; otherwise it is put aside, or has failed."""
        assert self._job.key_limit is not None
        try:
            # Without the lock: this calls the user's function, which may take its time.
            self._job.key_limit.note_key(pending)
        except BaseException as error:
            add_note(error, NOTE_OF_KEY)
            self.failed(pending, self._job.failure_of_item(error))
            return False
        with self._lock:
            is_admitted = self._inbox.admit(pending)
            if self._inbox.is_newly_due():
                self._work_came.notify_all()
            return is_admitted

    def release_place(self, pending: Pending) -> None:
        """Free the place of an item that has ended or is to be retried."""
        if self._job.key_limit is not None:
            with self._lock:
                if self._inbox.release_place(pending):
                    self._work_came.notify()
                if self._inbox.is_newly_due():
                    self._work_came.notify_all()

    def put_back(self, pendings: list[Pending]) -> None:
        """Put back the items of a lost worker, to be prepared once more."""
        with self._lock:
            # They are admitted once more when a worker takes them, in the same order as before.
            for pending in pendings:
                self._inbox.release_place(pending)
            self._inbox.put_back(pendings)
            self._work_came.notify_all()

    def failed(self, pending: Pending, error: BaseException) -> None:
        """Retry or skip an item whose preparation has failed.

        Raises:
            BaseException: the failure, if it ends everything; or what else ends the worker.
        """
        pending.failures += 1
        try:
            delay = self._job.progress.failed(pending.item, error, pending.failures)
            self._adapt_rate(pending, error, delay)
        finally:
            # Behind the rate, which may slow down its key: the place may go to another item now.
            # This also comes if the failure ends the worker, since others wait for the place.
            self.release_place(pending)
        if delay is None:
            retried = pending.failures - 1
            self._delivery.deliver(Prepared(pending.item, failures=retried, is_skipped=True))
            return
        with self._lock:
            self._inbox.put_off(pending, delay)
            self._work_came.notify_all()  # idle workers must know the time of the retry

    def _adapt_rate(self, pending: Pending, error: BaseException, delay: float | None) -> None:
        keys = self._job.key_limit
        if keys is not None and keys.is_refusal(error):
            self._job.progress.note_refusal()
            with self._lock:
                keys.call_refused(pending, delay)

    def notify_resize(self) -> None:
        self._work_came.notify_all()

    def notify_room(self) -> None:
        """See `Executor.notify_room`. The job may be over."""
        if self._job.source_ended:
            self._work_came.notify_all()

    def stop(self) -> None:
        self._wake()

    @synchronized
    def _wake(self) -> None:
        self._work_came.notify_all()
