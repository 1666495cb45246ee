"""What executors have in common whose workers are threads.

Here they take items from the source, wait for what is to be done, and enqueue examples. What an
executor adds is how an item gets to the function, and what has become of it back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

from aioqueue import QueueClosedError, sync
from aioqueue.arguments import EnqueueOp
from aioqueue.coordination.classify import Classification, add_note, classify
from aioqueue.inputs.core.items import Item
from aioqueue.inputs.prepare.flow_control import (
    NOTE_OF_KEY,
    Inbox,
    InFlightWindow,
    Pending,
    ReadPace,
)
from aioqueue.inputs.prepare.job import Job
from aioqueue.inputs.prepare.output_buffer import OutputBuffer
from aioqueue.inputs.prepare.prepared_items import Prepared
from aioqueue.inputs.prepare.source_reader import combine_errors, failure_of_clean_up
from aioqueue.inputs.prepare.worker_timing import WorkerGauge
from aioqueue.locks import guarded

__all__ = ("LineDelivery", "ThreadDelivery", "ThreadInbox", "ThreadSource", "WorkerThreads")


class ThreadSource:
    """The source of a job, for threads, which take turns.

    Where the function is cheap and the items are in memory, who has the turn reads some more for
    whoever comes next: they need no turn then. Such items are nobody's: none of them waits for
    another one to be prepared.

    Args:
        job: whose source it is.
        waits_till_low: whether who waits for room is woken only when there is much of it, or the
            source has ended.
    """

    def __init__(self, job: Job, *, waits_till_low: bool = False) -> None:
        self._job = job
        self._lock = job.lock
        self._window = job.window
        self._waits_till_low = waits_till_low
        self.is_for_workers = True  # who ask themselves, and may be dismissed
        self._turn = threading.Lock()
        self._room = threading.Condition(job.lock)
        self._reader = job.feed.async_reader(job.count) if job.feed.is_async_only else None
        self._items = (self._reader or job.feed).items()
        may_read_ahead = job.feed.is_in_memory and job.window.limit_bytes is None
        self.pace = self._pace = ReadPace() if may_read_ahead else None
        self._ahead: deque[Item] = deque()  # read by somebody, and for anybody
        job.window.ahead = self._ahead
        self._seconds_each = 0.0  # that reading one of those took

    def enqueue_ops(self) -> list[EnqueueOp]:
        """Who is needed beside those that take."""
        return [] if self._reader is None else [self._reader.read_source]

    def take(self, worker: WorkerGauge | None = None) -> Item:
        """The next item, which is counted as being in flight from now on.

        Args:
            worker: who asks, if it measures this turn.

        Raises:
            NothingMore: there is none, or none is wanted.
            BaseException: the failure of the source.
        """
        job, ahead = self._job, self._ahead
        while True:
            if ahead and worker is None and (item := self._read_already()) is not None:
                return item
            with self._turn:
                if ahead and (item := self._read_already()) is not None:
                    if worker is not None:
                        job.gauge.source_waits.add(self._seconds_each, worker.weight)
                    return item
                n = self._let_in()
                try:
                    if n > 1:
                        self._read_ahead(n)
                    elif worker is None:
                        return next(self._items)
                    else:
                        return self._measured(worker.weight)
                except BaseException as error:
                    raise job.source_raised(error)  # noqa: B904  # the cause is the user's affair

    def _read_already(self) -> Item | None:
        """The next of those that were read ahead; ``None``: there is none, or none is wanted."""
        job = self._job
        if job.is_halted:
            return None
        if job.crew.surplus and self.is_for_workers:
            job.dismiss()
        try:
            return self._ahead.popleft()
        except IndexError:
            return None  # others were quicker

    def _let_in(self) -> int:
        """Wait until an item may come in; returns how many do."""
        job, pace = self._job, self._pace
        with self._lock:
            if not self._window.has_room():
                self._wait_for_room()
            if job.source_ended:
                raise job.nothing_more()
            if job.crew.surplus and self.is_for_workers:
                job.dismiss()
            if pace is None:
                self._window.enter()
                return 1
            return self._window.enter_some(pace.next(job.count))

    def _read_ahead(self, n: int) -> None:
        """Read items that were let in. What the source raises is kept until they are all taken.

        Raises:
            BaseException: what the source has raised, if there are none.
        """
        began = perf_counter()
        read: list[Item] = []
        try:
            read.extend(islice(self._items, n))  # keeps what came before a failure
            if not read:
                raise StopIteration
        except BaseException as error:
            if not read:
                self._never_came(n - 1)
                raise
            self._items = _raising(error)
        self._never_came(n - len(read))
        self._seconds_each = (perf_counter() - began) / len(read)
        self._ahead.extend(read)

    def _never_came(self, n: int) -> None:
        """So many of the items that were let in are not there. Who has the turn need not be woken,
        and nobody else waits for room."""
        if n:
            with self._lock:
                self._window.abort(n)

    def _measured(self, weight: int) -> Item:
        began = perf_counter()
        item = next(self._items)
        self._job.gauge.source_waits.add(perf_counter() - began, weight)
        return item

    def _wait_for_room(self) -> None:
        """Wait until one more item may come in, or none will. Called under the lock."""
        job, window = self._job, self._window
        job.gauge.is_full(by_bytes=window.is_full_of_bytes)
        try:
            self._sleep(job, window)
        finally:
            job.gauge.has_room()

    def _sleep(self, job: Job, window: InFlightWindow) -> None:
        while not (job.source_ended or window.has_room() or self._is_to_dismiss()):
            job.is_room_awaited = True  # by one at most, since it is a turn
            self._room.wait()
        job.is_room_awaited = False

    def _is_to_dismiss(self) -> bool:
        return self.is_for_workers and self._job.is_to_dismiss

    def resized(self) -> None:
        """See `Executor.resized`."""
        self._room.notify()

    def room_came(self) -> None:
        """See `Executor.room_came`."""
        if not self._is_patient() or self._window.is_low or self._job.source_ended:
            self._room.notify()

    def _is_patient(self) -> bool:
        """Whether to wait until there is room for many: quick items in order, for each of which a
        thread would have to be woken. What the consumer waits for is in preparation then."""
        pace = self._pace
        is_quick = pace is not None and pace.is_quick
        return self._waits_till_low or (is_quick and self._job.is_ordered)

    def stop(self) -> None:
        """End the wait for room, and that for an async source."""
        self._wake()
        if self._reader is not None:
            self._reader.close()

    @guarded
    def _wake(self) -> None:
        self._room.notify_all()

    def _drop_ahead(self) -> None:
        """Nobody takes what was read ahead: let go of it. That it was there remains known."""
        dropped = 0
        with suppress(IndexError):
            while True:
                self._ahead.popleft()
                dropped += 1
        if dropped:
            self._window.ahead = range(dropped)

    def close(self) -> BaseException | None:
        """Close it; or leave that to who is in it, and closes it afterwards.

        Returns:
            What has failed in that.
        """
        if self._reader is not None:
            self._reader.close()  # which may wait until somebody takes what it has read
        if not self._turn.acquire(blocking=False):
            return None
        try:
            self._drop_ahead()
            self._items.close()
        except BaseException as error:
            return failure_of_clean_up(error)
        finally:
            self._turn.release()
        return None


def _raising(error: BaseException) -> Generator[Item, None, None]:
    """Items that end by a failure at once."""
    yield from ()
    raise error


class ThreadDelivery:
    """Puts examples into the queue of a job, from threads; waits there if it must."""

    def __init__(self, job: Job) -> None:
        self._job = job
        # Bound once: they are on the way of every item.
        self._enqueue = job.into.sync.enqueue
        self._notes_made = job.notes_made

    def deliver(self, prepared: Prepared) -> None:
        """Enqueue the examples of an item; in order, if that is kept: then perhaps later, or
        together with others.

        Raises:
            BaseException: what ends the worker.
        """
        turn = self._job.made(prepared) if self._notes_made else prepared
        del prepared  # nothing is kept here that is in the queue
        while turn is not None:
            turn = self._put(turn)

    def deliver_rest(self) -> None:
        """A worker ends: nothing waits that it would have to enqueue."""

    def _put(self, prepared: Prepared) -> Prepared | None:
        """Enqueue the examples of an item; returns what is to follow."""
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
            self._job.progress.entered(prepared.entered)
            raise
        return self._job.left(prepared)

    def _as_made(self, prepared: Prepared) -> Iterator[Any]:
        """The examples that a generator is making; if it fails, so has the item."""
        examples = iter(prepared.examples)
        while True:
            try:
                example = next(examples)
            except StopIteration:
                return
            except BaseException as error:
                self._job.refused(prepared, self._job.failure_of_item(error))
                return
            yield example  # out of the `try`: what closes us is no failure of the generator


class LineDelivery(ThreadDelivery):
    """The same where several are enqueued together; see `OutputBuffer`."""

    def __init__(self, job: Job, line: OutputBuffer) -> None:
        super().__init__(job)
        self._line = line
        self._enqueue_many = job.into.sync.enqueue_many

    def deliver(self, prepared: Prepared) -> None:
        """Lay down an item, and enqueue what is to be.

        Raises:
            BaseException: what ends the worker.
        """
        self._job.make_whole(prepared)
        run = self._line.bring(prepared)
        del prepared  # as above
        while run:
            run = self._put_run(run)

    def deliver_rest(self) -> None:
        """Enqueue what lies there, since a worker ends.

        Raises:
            BaseException: what ends it instead.
        """
        run = self._line.rest()
        while run:
            run = self._put_run(run) or self._line.rest()

    def _put_run(self, run: Sequence[Prepared]) -> Sequence[Prepared]:
        """Enqueue items; returns what is to follow."""
        try:
            if len(run) == 1:
                self._enqueue(run[0].examples[0])
            else:
                self._enqueue_many([prepared.examples[0] for prepared in run], copy=False)
        except QueueClosedError:
            if self._job.into.is_closed():
                raise self._job.nothing_more() from None
            raise
        return self._line.entered(run)


class WorkerThreads:
    """The workers of a job that are threads.

    Args:
        job: what they work for.
        source: where they, or others for them, take items from.
    """

    def __init__(self, job: Job, source: ThreadSource) -> None:
        self._job = job
        self._lock = job.lock
        self._source = source
        self.scope = sync.CancelScope()  # around all that a worker may wait for in a queue
        self._stopped = threading.Condition(job.lock)

    def enqueue_ops(self, work: Callable[[WorkerGauge], object]) -> list[EnqueueOp]:
        """One for each worker.

        Args:
            work: what each does until it raises: `Job.nothing_more`, or what has failed. It is
                given the gauge of the worker. (It is a method of who owns us, so we do not keep
                it.)
        """
        return [partial(self.prepare_items, work)] * self._job.count

    def prepare_items(self, work: Callable[[WorkerGauge], object]) -> None:
        """The whole life of a worker."""
        job, thread = self._job, threading.current_thread()
        job.enter()
        worker = job.gauge.worker(thread.name)
        job.hands.give(thread, worker.hand)
        ended: BaseException | None = None
        try:
            with self.scope:
                work(worker)
        except BaseException as error:
            is_stop = classify(error, stopping=job.is_stopping) is Classification.STOP
            ended = job.nothing_more() if is_stop else error
        job.hands.drop(thread)
        job.gauge.left(worker)
        closing = self._source.close() if job.is_halted else None
        try:
            raise job.leave(ended, closing)
        finally:
            del ended, closing  # which have this frame in their tracebacks

    def helper(self, work: Callable[[], object]) -> None:
        """The whole life of a thread that helps them: ended by a stop as they are.

        Raises:
            BaseException: what has failed; or else that there is nothing more to do.
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
            del errors, closing  # as above

    def pause(self, seconds: float) -> None:
        """Let some time pass.

        Raises:
            NothingMore: nobody wants any more examples.
        """
        with self._lock:
            self._stopped.wait_for(lambda: self._job.is_halted, seconds)
        if self._job.is_halted:
            raise self._job.nothing_more()

    def stop(self) -> None:
        """End whatever they wait for."""
        self.scope.cancel()
        self._wake()

    @guarded
    def _wake(self) -> None:
        self._stopped.notify_all()


class ThreadInbox:
    """Items that a thread of their own takes from the source, for workers that are threads.

    So workers need not wait for the source: they can take what is to be tried again, was given back
    by a worker that died, or has been put aside for want of a place.

    Args:
        job: whose items they are.
        source: where they are taken.
        delivery: where items that fail for good are said to have ended.
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
        """Take items from the source until there are no more."""
        while True:
            item = self._source.take()
            with self._lock:
                self._inbox.put(Pending(item))
                self._work_came.notify()

    def take(self, n: int = 1, *, wait: bool = True) -> list[Pending]:
        """Take what is to be prepared next.

        Args:
            n: how many at most; a fair share, if there are not enough for all.
            wait: whether to wait for the first.

        Returns:
            Items, which all have their places. None, if there are none and we may not wait.

        Raises:
            NothingMore: everything has been prepared, or nobody wants any more.
            BaseException: the failure to get the key of an item, if that is to end all.
        """
        while True:
            pendings = self._next(n, wait)
            if self._job.key_limit is not None:
                pendings = [pending for pending in pendings if self._is_admitted(pending)]
            if pendings or not wait:
                return pendings

    def _next(self, n: int, wait: bool) -> list[Pending]:
        with self._lock:
            while not self._job.is_halted:
                if self._job.crew.surplus:
                    if not wait:
                        return []  # let it come to an end
                    self._job.dismiss()
                share = self._inbox.share(self._job.count)
                pendings = self._inbox.take(max(1, min(n, share)))
                if pendings or not wait:
                    return pendings
                if self._job.source_ended and self._job.window.items == 0:
                    break
                self._sleep()
        raise self._job.nothing_more()

    def _sleep(self) -> None:
        """Wait for something to do. Called under the lock."""
        keys = self._job.key_limit
        if keys is not None:
            keys.waits(1)
        try:
            self._work_came.wait(self._inbox.seconds())
        finally:
            if keys is not None:
                keys.waits(-1)

    def _is_admitted(self, pending: Pending) -> bool:
        """Whether an item may be prepared now; else it is put aside, or has failed."""
        assert self._job.key_limit is not None
        try:
            self._job.key_limit.note_key(pending)
        except BaseException as error:
            add_note(error, NOTE_OF_KEY)
            self.failed(pending, self._job.failure_of_item(error))
            return False
        with self._lock:
            return self._inbox.admit(pending)

    def give_back(self, pending: Pending) -> None:
        """An item is not in preparation any more: it has ended, or is going to be tried again."""
        if self._job.key_limit is not None:
            with self._lock:
                if self._inbox.give_back(pending):
                    self._work_came.notify()

    def put_back(self, pendings: list[Pending]) -> None:
        """Items are to be prepared once more, since who had them is lost."""
        with self._lock:
            for pending in pendings:
                self._inbox.give_back(pending)
            self._inbox.put_back(pendings)
            self._work_came.notify_all()

    def failed(self, pending: Pending, error: BaseException) -> None:
        """The preparation of an item has failed: it is tried again, or skipped.

        Raises:
            BaseException: the failure, if it ends all; or what else ends the worker.
        """
        pending.failures += 1
        delay = self._job.progress.failed(pending.item, error, pending.failures)
        if delay is None:
            retried = pending.failures - 1
            self._delivery.deliver(Prepared(pending.item, failures=retried, is_skipped=True))
            return
        with self._lock:
            self._inbox.put_off(pending, delay)
            self._work_came.notify_all()  # whoever has nothing to do is to know when to look

    def resized(self) -> None:
        """See `Executor.resized`."""
        self._work_came.notify_all()

    def room_came(self) -> None:
        """See `Executor.room_came`: it may be over."""
        if self._job.source_ended:
            self._work_came.notify_all()

    def stop(self) -> None:
        """End the wait for something to do."""
        self._wake()

    @guarded
    def _wake(self) -> None:
        self._work_came.notify_all()
