"""One job: it makes examples from the items of a source and enqueues them.

The rules here hold for every kind of worker; an `Executor` runs the workers. An `InFlightWindow`
counts what is in flight. If the job keeps the order of the source, a worker hands in its result and
continues. The worker with the next result in order enqueues it, and all that can follow it, while
the others prepare.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sized
from typing import Any, Protocol

from aioqueue import (
    AsyncQueue,
    ItemTimeoutError,
    OutOfRangeError,
    QueueClosedError,
    sync,
)
from aioqueue.coordination.cancellations import Call, is_cancellation
from aioqueue.coordination.classify import Classification, as_failure, cause_of, classify, is_fatal
from aioqueue.core.storage.sized import size_of
from aioqueue.errors import add_note, describe_exception
from aioqueue.items.item import Delivered, EpochEnd, Item, Prepared
from aioqueue.items.reordering import Reordering
from aioqueue.sources.source_reader import SOURCE_NOTE, SourceReader, combine_errors
from aioqueue.system.locks import release_if_held, synchronized
from aioqueue.telemetry.explain.stacks import Stack, place_of
from aioqueue.workers.calls import ItemCall
from aioqueue.workers.flow_control import (
    DefaultInFlight,
    InFlightWindow,
    OutputBuffer,
    ReadPace,
    Tally,
)
from aioqueue.workers.key_limits import KeyLimit
from aioqueue.workers.retries import PrepareProgress
from aioqueue.workers.timing import Gauge, InProgressTable


class NothingMore(OutOfRangeError):  # noqa: N818  # it is no error
    """A worker has nothing more to do, for any reason. Only this class counts as our own end: the
    user's code may raise an `OutOfRangeError` too, which is a failure."""


class Dismissed(NothingMore):
    """A worker has nothing more to do, because fewer workers are wanted; others continue."""


class RunOfJob(Protocol):
    """The run of a queue runner, as far as its job needs it."""

    began_in_time: bool
    """Whether it began before its queue was closed."""

    def call_when_over(self, callback: Callable[[], object]) -> None:
        """Call back when the run is stopped, or its queue closed."""


class JobExecutor(Protocol):
    """What a job calls of its `Executor`."""

    def stop(self) -> None: ...

    def notify_room(self) -> None: ...

    def notify_resize(self) -> None: ...

    def end(self) -> BaseException | None: ...


class WorkerRoster:
    """The number of workers of a running job. The job's lock guards it.

    (These are not fields of the job, because CPython is slower with objects of more than about
    thirty fields.)

    Args:
        launched: workers that were started, or will be.
        in_flight: how many items may be in flight; ``None`` if that does not depend on the workers.

    Attributes:
        surplus: workers that should leave.
        leaving: workers that were dismissed, but have not left yet.
    """

    __slots__ = ("in_flight", "launched", "leaving", "surplus")

    def __init__(self, launched: int, in_flight: DefaultInFlight | None) -> None:
        self.launched: int = launched
        self.in_flight: DefaultInFlight | None = in_flight
        self.surplus: int = 0
        self.leaving: int = 0


class Job:
    """The state that all workers of a `prepare` share, and their rules. Thread-safe.

    Args:
        feed: reads the items.
        into: the queue that receives the examples.
        call: calls the function.
        progress: counts outcomes, and decides about failures.
        window: bounds what is in flight.
        ordered: whether examples are enqueued in the order of the source.
        count: the number of workers.
        key_limit: limits the items of one key in preparation; ``None`` for no limit.
        in_flight: how many items may be in flight; ``None`` if that does not depend on the workers.
        by_item: whether to deliver items as a whole (`Delivered`), even without examples.
        fit: converts or refuses each example, if items are delivered as a whole.
        item_timeout: seconds after which an item is cut short; ``None`` for no limit.
    """

    def __init__(
        self,
        feed: SourceReader,
        into: AsyncQueue | sync.BlockingQueue,
        call: ItemCall,
        progress: PrepareProgress,
        window: InFlightWindow,
        *,
        ordered: bool,
        count: int,
        key_limit: KeyLimit | None = None,
        in_flight: DefaultInFlight | None = None,
        by_item: bool = False,
        fit: Callable[[Any], Any] | None = None,
        item_timeout: float | None = None,
    ) -> None:
        self.item_timeout = item_timeout
        self.feed = feed
        self.into = into
        self.call = call
        self.progress = progress
        self.window = window
        self.count: int = count
        self.roster: WorkerRoster = WorkerRoster(count, in_flight)
        self.gauge: Gauge = Gauge()
        self.key_limit = key_limit
        is_counted = window.limit_bytes is not None
        self.is_ordered = ordered
        self.by_item = by_item
        self._fit = fit
        # Whether a result must be registered before it is enqueued.
        self.records_prepared: bool = ordered or is_counted or by_item
        # Whether nothing else is to be done for most items when they are delivered.
        self.delivers_at_once: bool = by_item and not (
            is_counted or fit is not None or feed.leases is not None
        )
        # Whether examples of a generator may be enqueued before the last one is made. Not if the
        # item may be retried, because some examples would come twice; and not if their size must be
        # known first.
        is_timed = item_timeout is not None  # waiting for the queue must not count as slow
        holds = ordered or is_counted or by_item or is_timed
        self.streams: bool = not (holds or progress.policy.may_fail_twice)
        # Guards the window and all below. There is one lock, because each item has to take it.
        self.lock: threading.RLock = progress.lock
        self._lock = self.lock
        self.in_progress: InProgressTable = InProgressTable(self.lock)
        self.source_ended: bool = False  # nothing more is taken from the source
        self.is_halted: bool = False
        self.is_room_awaited = False  # the executor sets it, to be woken when there is room
        self._executor: JobExecutor | None = None
        self._run: RunOfJob | None = None
        self._order: Reordering[Prepared] = Reordering()
        self.early: Sized = self._order  # prepared items that wait for an earlier one
        self.output_buffer: OutputBuffer | None = None
        """Holds a pipeline's examples that are to be enqueued together, if there are any."""
        self._inside = 0
        self._begun = 0
        self._has_begun = False
        self._has_ended = False
        self._is_exhausted = False  # the source itself has ended
        self._end_cause: BaseException | None = None
        self.call_soon: Callable[[Callable[[], object]], object] = _now
        """Runs a call where the workers are: at once, unless they are tasks of a loop."""

    def open_output_buffer(self, pace: ReadPace | None) -> OutputBuffer | None:
        """Enqueue items together, if that is possible and worthwhile.

        Args:
            pace: measures the items; ``None`` if they are not read together.

        Returns:
            The buffer that collects the items; ``None``: each is enqueued by itself.
        """
        is_plain = self.key_limit is None and self.item_timeout is None
        if pace is not None and is_plain and self.by_item:
            self.output_buffer = OutputBuffer(
                self.into.sync,
                self.window,
                self.progress,
                pace,
                ordered=self.is_ordered,
            )
        return self.output_buffer

    # Begin and end.

    def begin(self, run: RunOfJob, executor: JobExecutor) -> None:
        """Prepare to begin as part of a run.

        The job refers to its run and executor only from here until it has ended. Otherwise the
        reference cycle would keep items alive until the garbage collector runs.
        """
        self._run, self._executor = run, executor
        if self.output_buffer is not None:
            self.output_buffer.on_room = self._notify_room_if_awaited
        self.window.quota = self.feed.quota  # by now the later stages have set their limits
        if self.window.quota is not None:
            self.window.quota.changed = self._notify_room_from_any_thread

    def return_leased(self) -> None:
        """Give the items of a queue that were taken, and not enqueued, back to it."""
        if self.feed.leases is not None:
            self.feed.leases.give_back()

    def detach(self) -> JobExecutor | None:
        """Drop the run and the executor, at the end or if it never begins; return the executor."""
        executor, self._executor, self._run = self._executor, None, None
        if self.output_buffer is not None:
            self.output_buffer.on_room = None
        if self.window.quota is not None:
            self.window.quota.changed = None
        return executor

    @property
    def state(self) -> str:
        """The state of the job, in one word."""
        if self._has_ended:
            return "ended"
        return "running" if self._has_begun else "idle"

    @property
    def fits(self) -> bool:
        """Whether each example is converted before it is delivered."""
        return self._fit is not None

    @property
    def is_last_inside(self) -> bool:
        return self._inside == 1

    def enter(self) -> None:
        """Begin a worker.

        Raises:
            RuntimeError: its results could not be enqueued.
            NothingMore: there is nothing more to do.
        """
        try:
            run = self._count_in()
        except RuntimeError:
            # No worker will ever read the source, so helpers must not wait for room.
            self.end_source(None)
            raise
        # Not under the lock: if the run is over already, it calls `stop` at once.
        if run is not None:
            run.call_when_over(self.stop)

    @synchronized
    def _count_in(self) -> RunOfJob | None:
        """Count the worker; return the run if it is the first worker."""
        self._begun += 1
        name = self.into.name
        if self._begun > self.roster.launched:
            raise RuntimeError(
                f"the prepare into '{name}' has run already, and its queue is"
                " closed: make a new prepare(...) and a new queue"
            )
        if self._has_ended:
            raise self.nothing_more()
        self._has_begun = True
        # Only the first worker takes the run, so `stop` is registered once, and before any item.
        run, self._run = self._run, None
        if run is not None and not run.began_in_time:
            self._has_ended = True
            raise RuntimeError(
                f"'{name}' was closed before the prepare into it was started, so no results could"
                " be enqueued; start all runners of a queue before the first of them ends"
            )
        self._inside += 1
        return run

    # The number of workers.

    def resize(self, count: int, start: Callable[[], object]) -> None:
        """Change the number of workers.

        Surplus workers leave when they have finished their current item, and their results are
        enqueued as usual. So no item is lost or prepared twice, and the order is kept.

        Args:
            count: the new number, >= 1.
            start: starts one more worker, or raises.
        """
        for _ in range(self._set_count(count)):
            try:
                start()
            except BaseException:
                self._not_started()
                raise

    @synchronized
    def _set_count(self, count: int) -> int:
        """Set the number; return how many workers to start."""
        if self.source_ended or self._has_ended:
            return 0  # all workers are about to leave
        change, self.count = count - self.count, count
        if self.roster.in_flight is not None:
            self.window.resize(self.roster.in_flight.items(count), at_once=count)
        # More workers are wanted again before all surplus ones have noticed: these stay, and only
        # the rest is started.
        stay = max(0, min(change, self.roster.surplus))
        self.roster.surplus += max(0, -change) - stay
        start = max(0, change - stay)
        self.roster.launched += start
        if self._executor is not None:
            self._executor.notify_resize()
        return start

    @synchronized
    def _not_started(self) -> None:
        self.count -= 1
        self.roster.launched -= 1

    @synchronized
    def dismiss(self) -> None:
        """Dismiss the calling worker before it waits for an item, if there is one too many.

        Raises:
            Dismissed: there is.
        """
        if self.is_to_dismiss and not self.source_ended:
            self.roster.surplus -= 1
            self.roster.leaving += 1
            raise Dismissed("there are more workers than wanted")

    @property
    def is_to_dismiss(self) -> bool:
        """Return whether the calling worker should leave. One worker always stays: others may not
        have begun yet, and without any worker the run would end."""
        roster = self.roster
        return roster.surplus > 0 and self._inside - roster.leaving > 1

    def leave(self, *raised: BaseException | None, owner: Call | None = None) -> BaseException:
        """End a worker; the last one to leave ends the job.

        Args:
            raised: what ended the worker: an end, a stop, or failures; there may be several.
            owner: the call that is the worker's whole work, if it is a task.

        Returns:
            What the worker must raise: all failures, otherwise the stop, otherwise the end.
        """
        errors = [_as_own_end(error) for error in raised if error is not None]
        came_to_the_end = all(isinstance(error, NothingMore) for error in errors)
        # First the stop, then the count: if this is the last worker, `_count_out` has to find that
        # nothing more is taken from the source, or nobody would end the job.
        if not came_to_the_end:
            self.stop()
        if self._count_out(any(isinstance(error, Dismissed) for error in errors)):
            errors += self._end(came_to_the_end and not self.into.is_closed())
        return combine_errors(errors, owner)

    @synchronized
    def _count_out(self, was_dismissed: bool) -> bool:
        """Count the worker out; return whether it is the last one of the job."""
        self._inside -= 1
        self.roster.leaving -= was_dismissed
        # Others may not have begun, and after a stop never will; but then nothing is left to do.
        is_over = self._inside == 0 and (self.source_ended or self.into.is_closed())
        self._has_ended = is_over
        return is_over

    def _end(self, came_to_the_end: bool) -> list[BaseException]:
        """End the job after the last worker; return what fails in that."""
        # If a closed queue has ended the workers, a helper may still wait for room. A stop that
        # comes later finds no executor to call.
        self.end_source(None)
        executor = self.detach()
        failures = [None if executor is None else executor.end()]
        self.return_leased()
        self.progress.log(self.into.name)
        if came_to_the_end:
            failures.append(self._too_many_skipped())
        return [error for error in failures if error is not None]

    def _too_many_skipped(self) -> BaseException | None:
        try:
            self.progress.check_share()
        except RuntimeError as error:
            return error
        return None

    def stop(self) -> None:
        """End all workers, whatever they wait for.

        The run calls it back when it is over, and so does a worker that must end all others. Every
        step may run twice, because Ctrl-C may interrupt the first call.
        """
        # First the mark, then the wake: a worker that wakes, or begins to wait only now, reads it.
        self._halt()
        executor = self._executor
        if executor is not None:
            executor.stop()

    @synchronized
    def _halt(self) -> None:
        self.is_halted = self.source_ended = True

    @property
    def is_stopping(self) -> bool:
        """Return whether no more examples are wanted."""
        return self.is_halted or self.into.is_closed()

    def truncation_cause(self) -> BaseException | None:
        """Return why examples are missing, if all workers are gone without a failure or a stop:
        then they were cancelled one by one."""
        if self.into.is_closed() or (self._is_exhausted and self.window.items == 0):
            return None
        return RuntimeError(
            f"a worker that prepares into '{self.into.name}' was cancelled before all examples"
            " were enqueued"
        )

    # The source.

    @synchronized
    def end_source(self, cause: BaseException | None) -> None:
        """Take nothing more from the source; the cause is its failure, if it failed."""
        if not self.source_ended:
            self.source_ended, self._end_cause = True, cause
        self._notify_room()

    def drain(self) -> None:
        """Take nothing more from the source, and deliver what was taken. Any thread may call it.

        A source that others fill is read to its end instead.
        """
        if not self.feed.drain():
            self._exhaust()
            self.call_soon(self.notify_room)  # wake the worker that waits for room: it can end now

    def in_flight(self) -> int:
        """The number of items that were taken, or asked for, and are not in the queue."""
        return self.window.items

    @synchronized
    def _exhaust(self) -> None:
        self._is_exhausted = self.source_ended = True

    @synchronized
    def notify_room(self) -> None:
        """Wake the thread that waits for room, if there is enough."""
        self._notify_room()

    def _notify_room_from_any_thread(self) -> None:
        """Do the same from any thread: the notification runs where the workers are."""
        self.call_soon(self.notify_room)

    def nothing_more(self) -> NothingMore:
        """Return the exception that ends a worker with nothing more to do."""
        error = NothingMore("the source has ended")
        error.__cause__ = self._end_cause
        return error

    def source_raised(self, error: BaseException, owner: Call | None = None) -> BaseException:
        """Handle an exception of the source: no other worker asks it again.

        Args:
            error: the exception.
            owner: the call of a task that asked the source; ``None`` in a thread.

        Returns:
            What the worker must raise: an end, a stop, or the failure of the source.
        """
        self._abort()  # it was counted before the source was asked, and will not come
        # The exception of another queue that ended is a failure of the source, not its end.
        if isinstance(error, StopIteration if owner is None else StopAsyncIteration):
            self._is_exhausted = True
            self.end_source(None)
            return self.nothing_more()
        meaning = classify(error, (OutOfRangeError,), stopping=self.is_stopping, owner=owner)
        if meaning is Classification.FAILURE:
            error = as_failure(error, f"the source raised {describe_exception(error)}")
            add_note(error, SOURCE_NOTE)
            self.end_source(error)
            return error
        self._is_exhausted |= meaning is Classification.END and not self.is_halted  # not our stop
        self.end_source(cause_of(error) if meaning is Classification.END else None)
        return error if _must_be_raised(error, owner) else self.nothing_more()

    @synchronized
    def _abort(self) -> None:
        self.window.abort()

    def _notify_room(self) -> None:
        if self._executor is not None:
            self._executor.notify_room()

    def _notify_room_if_awaited(self) -> None:
        if self.is_room_awaited or self.source_ended:
            self._notify_room()

    def tally(self) -> Tally:
        """Return a block in which a worker counts what it delivers without the lock."""
        return Tally(self.lock, self.window)

    # The outcomes of items.

    def failure_of_item(self, error: BaseException, owner: Call | None = None) -> BaseException:
        """Return the failure of an item whose preparation has raised an exception.

        Raises:
            BaseException: what ends the worker, if the exception is not the item's failure.
        """
        meaning = classify(error, stopping=self.is_stopping, owner=owner)
        try:
            if meaning is Classification.STOP:
                if _must_be_raised(error, owner):
                    raise error
                raise self.nothing_more() from error
            if is_fatal(error):
                raise error
        except BaseException:
            del error  # its traceback now contains this frame
            raise
        if owner is not None and is_cancellation(error):
            failure = RuntimeError("what the function awaited was cancelled")
            failure.__cause__ = error
            return failure
        return error

    def item_failed(
        self, item: Item, raised: BaseException, failures: int, owner: Call | None = None
    ) -> float | None:
        """Handle an exception of an item's preparation, which has now failed this many times.

        Returns:
            The seconds after which to try again; ``None``: the item is skipped.

        Raises:
            BaseException: the failure, if it ends the pipeline; or what else ends the worker.
        """
        try:
            return self.progress.failed(item, self.failure_of_item(raised, owner), failures)
        finally:
            del raised  # a stop is raised through this frame: that would be a cycle

    def timeout_error(self, item: Item, stack: Stack) -> ItemTimeoutError:
        """Return the failure of an item that was cut short.

        Args:
            item: the item.
            stack: where its preparation was.
        """
        place = place_of(stack)
        where = "" if place is None else str(place)
        assert self.item_timeout is not None
        return ItemTimeoutError(
            f"{item.describe()} was not prepared within item_timeout={self.item_timeout:g} s"
            + (f"; it was at {where}" if where else ""),
            seconds=self.item_timeout,
            where=where,
        )

    def not_enqueued(
        self, prepared: Prepared, error: BaseException, owner: Call | None = None
    ) -> None:
        """Handle an example that was not enqueued: it is not wanted, or its item has failed.

        Raises:
            BaseException: what ends the worker, unless only the item has failed.
        """
        if isinstance(error, QueueClosedError) and self.into.is_closed():
            # Some examples are in the queue, where others may have taken them already. If the item
            # went back to its queue, they would come twice.
            if prepared.entered:
                self._commit_lease(prepared)
            raise self.nothing_more() from None
        try:
            self.refused(prepared, self.failure_of_item(error, owner))
        finally:
            del error  # as in `item_failed`

    def refused(self, prepared: Prepared, error: BaseException) -> None:
        """Fail an item some of whose examples may be in the queue: it is not retried.

        Raises:
            Exception: the failure, if it ends the pipeline.
        """
        self.progress.give_up(prepared.item, error, prepared.failures + 1)
        prepared.is_skipped = True

    def item_prepared(self, prepared: Prepared) -> Prepared | None:
        """Count a prepared item.

        Returns:
            The same item, if the caller is to enqueue it now. If the order is kept, another worker
            may have to do so, after the items before it.
        """
        is_counted = self.window.limit_bytes is not None
        if is_counted and not prepared.size:
            prepared.size = size_of(prepared.examples)
        if self.by_item:
            self.pack_whole(prepared)
        if is_counted:
            self._record_size(prepared)
        if not self.is_ordered:
            return prepared
        lock = self.lock
        try:  # as `synchronized`, inlined for speed
            lock.acquire()
            due = self._order.add(prepared.item.number, prepared)
            lock.release()
        except BaseException:
            release_if_held(lock)
            raise
        return due

    def deliver_at_once(self, prepared: Prepared, try_enqueue: Callable[[Delivered], bool]) -> bool:
        """Deliver an item as a whole, if it is the next one and that affects no other caller.

        It is the same as `item_prepared`, the enqueue and `item_delivered`, for the usual item, in
        one step and with one lock. Only for workers that are tasks of one loop, and for jobs that
        `delivers_at_once`.

        Args:
            prepared: the item, whose examples were all made.
            try_enqueue: enqueues it if that affects no other caller; returns whether it did.

        Returns:
            Whether that was done. If not, nothing has happened, and the caller enqueues it in the
            usual way.
        """
        order = self._order
        number, value, epoch, index = prepared.item
        examples = prepared.examples
        if (
            prepared.failures
            or prepared.is_skipped
            or type(value) is EpochEnd
            or (self.is_ordered and not order.is_only(number))
        ):
            return False
        if not try_enqueue((epoch, number, index, examples, None)):
            return False
        prepared.count = len(examples)
        lock = self.lock
        try:  # as `synchronized`, inlined for speed
            lock.acquire()
            if self.is_ordered:
                order.skip()
            self.window.leave(1)
            self.progress.item_delivered(prepared)
            if self.is_room_awaited or self.source_ended:
                self._notify_room()
            lock.release()
        except BaseException:
            release_if_held(lock)
            raise
        return True

    def pack_whole(self, prepared: Prepared) -> None:
        """Convert an item to the form in which whole items are delivered."""
        if self._fit is not None and not isinstance(prepared.item.value, EpochEnd):
            self._make_fit(prepared, self._fit)
        number, value, epoch, index = prepared.item
        if prepared.failures or prepared.is_skipped or type(value) is EpochEnd:
            prepared.pack()
        else:  # the same, inlined for speed
            examples = prepared.examples
            prepared.count = len(examples)
            prepared.examples = ((epoch, number, index, examples, None),)

    def _make_fit(self, prepared: Prepared, fit: Callable[[Any], Any]) -> None:
        try:
            prepared.examples = tuple(map(fit, prepared.examples))
        except BaseException as error:
            # Nothing is awaited here, so no task was cancelled.
            failure = as_failure(error, f"an example raised {describe_exception(error)}")
            if not isinstance(failure, Exception):
                raise
            prepared.examples = ()
            self.refused(prepared, failure)

    @synchronized
    def _record_size(self, prepared: Prepared) -> None:
        # Until the first size is known, only one item per worker was let in.
        if self.window.mark_ready(prepared.size):
            self._notify_room()

    @synchronized
    def waiting_in_order(self) -> int:
        """The number of prepared items that wait for an earlier one."""
        return len(self.early) if self.output_buffer is None else self.output_buffer.early

    def _commit_lease(self, prepared: Prepared) -> None:
        """Note that an item of a queue does not go back: its examples are enqueued, or it was
        skipped, or gave none."""
        if self.feed.leases is not None:
            self.feed.leases.commit((prepared.item.number,))

    def item_delivered(self, prepared: Prepared) -> Prepared | None:
        """Note that all examples of an item are in the queue.

        Returns:
            What the caller is to enqueue next: the following item, if the order is kept.
        """
        # Before the job's lock is taken: both call code that has locks of its own.
        if prepared.release is not None:
            prepared.release()
        if self.feed.leases is not None:
            self._commit_lease(prepared)
        lock = self.lock
        try:  # as `synchronized`, inlined for speed
            lock.acquire()
            self.window.release(prepared.size)
            self.progress.item_delivered(prepared)
            if self.is_room_awaited or self.source_ended:
                self._notify_room()
            following = self._order.following() if self.is_ordered else None
            lock.release()
        except BaseException:
            release_if_held(lock)
            raise
        return following


def _now(call: Callable[[], object]) -> None:
    call()


def _must_be_raised(error: BaseException, owner: Call | None) -> bool:
    """Return whether a stop is a task's cancellation, which the task must re-raise."""
    return owner is not None and not isinstance(error, Exception)


def _as_own_end(error: BaseException) -> BaseException:
    """Return what a worker ends with. The end of something unrelated becomes a failure."""
    if isinstance(error, NothingMore) or not isinstance(error, Exception):
        return error
    return as_failure(error, f"a worker has ended by {describe_exception(error)}")
