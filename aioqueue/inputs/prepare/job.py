"""One job: to make examples of the items of a source and put them into a queue.

The rules that hold wherever the function runs; who runs it is an `Executor`. What is in flight is
counted by a `InFlightWindow`. Where the order of the source is kept, a worker lays down what it
has made
and goes on; whoever lays down what everybody waits for enqueues that, and all that can follow it,
while the others prepare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from aioqueue import AsyncQueue, ItemTimeoutError, OutOfRangeError, QueueClosedError, sync
from aioqueue.coordination.classify import (
    Classification,
    add_note,
    as_failure,
    cause_of,
    classify,
    describe_exception,
    is_cancellation,
    is_fatal,
)
from aioqueue.inputs.core.items import EpochEnd, Item
from aioqueue.inputs.prepare.call import ItemCall
from aioqueue.inputs.prepare.executor import Executor
from aioqueue.inputs.prepare.failures import PrepareProgress
from aioqueue.inputs.prepare.flow_control import InFlightWindow, KeyLimit, ReadPace
from aioqueue.inputs.prepare.output_buffer import OutputBuffer
from aioqueue.inputs.prepare.prepared_items import Prepared, Reordering
from aioqueue.inputs.prepare.source_reader import SourceReader, combine_errors
from aioqueue.inputs.prepare.worker_timing import Gauge, InProgressTable
from aioqueue.locks import guarded, release_if_held
from aioqueue.storage.sized import size_of
from aioqueue.telemetry.stacks import Stack, place_of

__all__ = ("Dismissed", "Job", "NothingMore", "RunOfJob", "WorkerRoster")


class NothingMore(OutOfRangeError):  # noqa: N818  # it is no error
    """A worker has nothing more to do, whatever the reason. Only of its own making is it an end:
    what of the user's we call on the way may raise an `OutOfRangeError` too, which is a failure."""


class Dismissed(NothingMore):
    """A worker has nothing more to do, since fewer are wanted; others go on."""


class RunOfJob(Protocol):
    """The run of a queue runner, as far as it concerns the job that it runs."""

    comes_in_time: bool
    """Whether it has begun before its queue was closed."""

    def call_when_over(self, callback: Callable[[], object]) -> None:
        """Call back when it is stopped, or its queue closed."""


class WorkerRoster:
    """Who comes and goes while a job runs. Guarded by the lock of the job.

    (Not among its own fields: CPython is slower with objects that have more than some thirty.)

    Args:
        launched: workers that were started, or are to be.
        per_worker: items in flight for each; ``None`` if their number does not go by the workers.

    Attributes:
        surplus: workers that are to leave.
        leaving: those of them that have been told so, and are still inside.
    """

    __slots__ = ("launched", "leaving", "per_worker", "surplus")

    def __init__(self, launched: int, per_worker: int | None) -> None:
        self.launched = launched
        self.per_worker = per_worker
        self.surplus = self.leaving = 0


class Job:
    """What all workers of a `prepare` share, and the rules by which they work. Thread-safe.

    Args:
        feed: where items come from.
        into: where examples go.
        call: how the function is called.
        progress: counts, and what failures mean.
        window: what may be in flight.
        ordered: whether examples are enqueued in the order of the source.
        count: how many workers there are.
        key_limit: how many items of one key may be in preparation; ``None`` for any number.
        per_worker: items in flight that there may be for each worker; ``None`` if their number
            does not go by that of the workers.
        by_item: whether items are delivered as a whole (`Delivered`), also those without examples.
        fit: makes of an example what is delivered, or refuses it, where they are delivered so.
        item_timeout: seconds after which an item is cut short; ``None`` for never.
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
        per_worker: int | None = None,
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
        self.count = count
        self.crew = WorkerRoster(count, per_worker)
        self.gauge = Gauge()
        self.key_limit = key_limit
        is_counted = window.limit_bytes is not None
        self.is_ordered = ordered
        self._by_item = by_item
        self._fit = fit
        # Whether what is made has to be noted before it is enqueued.
        self.notes_made = ordered or is_counted or by_item
        # Whether the examples of a generator may be enqueued before the last one is made. Not if
        # the item may be tried again, for then there would be some twice; and not if their size
        # has to be known first.
        is_timed = item_timeout is not None  # what waits for the queue does not take too long
        holds = ordered or is_counted or by_item or is_timed
        self.streams = not (holds or progress.policy.may_fail_twice)
        # Guards the window, and all below. One for both: each item has to take it.
        self.lock = self._lock = progress.lock
        self.hands = InProgressTable(self.lock)
        self.source_ended = False  # nothing more is taken from it
        self.is_halted = False
        self.is_room_awaited = False  # the executor says so, and is told when it comes
        self._executor: Executor | None = None
        self._run: RunOfJob | None = None
        self._order: Reordering[Prepared] = Reordering()
        self.line: OutputBuffer | None = None
        """Where examples of a pipeline wait in order to be enqueued together, if they do."""
        self._inside = 0
        self._begun = 0
        self._has_begun = False
        self._has_ended = False
        self._is_exhausted = False  # the source, which has told so
        self._end_cause: BaseException | None = None
        self.soon: Callable[[Callable[[], object]], object] = _now
        """Has a call made where the workers are: at once, unless they are tasks of a loop."""

    def open_line(self, pace: ReadPace | None) -> OutputBuffer | None:
        """Have items enqueued together where that can be, and pays.

        Args:
            pace: how quickly items go; ``None`` if they are not taken together either.

        Returns:
            Where they wait for that; ``None``: each is enqueued by itself.
        """
        is_plain = self.key_limit is None and self.item_timeout is None
        if pace is not None and is_plain and self._by_item:
            self.line = OutputBuffer(
                self.into.sync,
                self.window,
                self.progress,
                pace,
                ordered=self.is_ordered,
            )
        return self.line

    # Beginning and ending.

    def begin(self, run: RunOfJob, executor: Executor) -> None:
        """It is going to begin as part of a run.

        Only from now on, and until it has ended, does it know who runs it, who knows it: a cycle
        would keep items until the garbage collector runs.
        """
        self._run, self._executor = run, executor
        if self.line is not None:
            self.line.left = self._look_for_room

    def let_go(self) -> Executor | None:
        """It has ended, or never will begin; returns who has run it."""
        executor, self._executor, self._run = self._executor, None, None
        if self.line is not None:
            self.line.left = None
        return executor

    @property
    def state(self) -> str:
        """Where it is, in one word."""
        if self._has_ended:
            return "ended"
        return "running" if self._has_begun else "idle"

    @property
    def is_last_inside(self) -> bool:
        """Whether the worker that asks is the only one left."""
        return self._inside == 1

    def enter(self) -> None:
        """A worker begins.

        Raises:
            RuntimeError: what it would make can get nowhere.
            NothingMore: there is nothing to be done any more.
        """
        try:
            run = self._count_in()
        except RuntimeError:
            self.end_source(None)
            raise
        if run is not None:
            run.call_when_over(self.stop)

    @guarded
    def _count_in(self) -> RunOfJob | None:
        """Returns the run, to the first worker of it."""
        self._begun += 1
        name = self.into.name
        if self._begun > self.crew.launched:
            raise RuntimeError(
                f"what prepares into '{name}' has run already, and its queue is"
                " closed: make another with prepare(...), and another queue"
            )
        if self._has_ended:
            raise self.nothing_more()
        self._has_begun = True
        run, self._run = self._run, None
        if run is not None and not run.comes_in_time:
            self._has_ended = True
            raise RuntimeError(
                f"'{name}' was closed before what prepares into it was started: nothing of it would"
                " arrive; start all that fill a queue before the first of them has ended"
            )
        self._inside += 1
        return run

    # More or fewer workers.

    def resize(self, count: int, start: Callable[[], object]) -> None:
        """Have another number of workers from now on.

        Those that are too many leave when they have ended the item that they are at; what they
        have made goes its way. So no item is lost, none is made again, and the order is kept.

        Args:
            count: how many, >= 1.
            start: starts one more, or raises.
        """
        for _ in range(self._set_count(count)):
            try:
                start()
            except BaseException:
                self._not_started()
                raise

    @guarded
    def _set_count(self, count: int) -> int:
        """Returns how many workers are to be started."""
        if self.source_ended or self._has_ended:
            return 0  # they are all about to leave
        change, self.count = count - self.count, count
        if self.crew.per_worker is not None:
            self.window.resize(count * self.crew.per_worker, at_once=count)
        stay = max(0, min(change, self.crew.surplus))  # of those that were to leave
        self.crew.surplus += max(0, -change) - stay
        start = max(0, change - stay)
        self.crew.launched += start
        if self._executor is not None:
            self._executor.resized()
        return start

    @guarded
    def _not_started(self) -> None:
        self.count -= 1
        self.crew.launched -= 1

    @guarded
    def dismiss(self) -> None:
        """A worker is about to wait for an item: it is not to, if it is one too many.

        Raises:
            Dismissed: so it is.
        """
        if self.is_to_dismiss and not self.source_ended:
            self.crew.surplus -= 1
            self.crew.leaving += 1
            raise Dismissed("there are more workers than are wanted")

    @property
    def is_to_dismiss(self) -> bool:
        """Whether who asks is to leave. One always stays: others may still be about to begin, and
        without any of them the run would end."""
        crew = self.crew
        return crew.surplus > 0 and self._inside - crew.leaving > 1

    def leave(self, *raised: BaseException | None) -> BaseException:
        """A worker ends; the last one to leave ends the job.

        Args:
            raised: by what it ends: an end or a stop, failures, or several.

        Returns:
            What it is to raise: all failures, or else the stop, or else the end.
        """
        errors = [_own_end(error) for error in raised if error is not None]
        came_to_the_end = all(isinstance(error, NothingMore) for error in errors)
        if not came_to_the_end:
            self.stop()
        if self._count_out(any(isinstance(error, Dismissed) for error in errors)):
            errors += self._end(came_to_the_end and not self.into.is_closed())
        return combine_errors(errors)

    @guarded
    def _count_out(self, was_dismissed: bool) -> bool:
        """Whether this is the last one of the job."""
        self._inside -= 1
        self.crew.leaving -= was_dismissed
        # Others may not have begun, and after a stop never will; but then there is nothing more to
        # be done.
        is_over = self._inside == 0 and (self.source_ended or self.into.is_closed())
        self._has_ended = is_over
        return is_over

    def _end(self, came_to_the_end: bool) -> list[BaseException]:
        """The last worker has gone; returns what fails in that."""
        # If a closed queue has ended them, whoever takes items for them may wait for room; and a
        # stop that comes from now on finds no executor to tell.
        self.end_source(None)
        executor = self.let_go()
        failures = [None if executor is None else executor.end()]
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
        """Let all workers end, whatever they wait for.

        Called back by the run when it is over, and by a worker that ends before the others may.
        Each part can be made again, since Ctrl-C may strike in the middle of the first time.
        """
        self._halt()
        executor = self._executor
        if executor is not None:
            executor.stop()

    @guarded
    def _halt(self) -> None:
        self.is_halted = self.source_ended = True

    @property
    def is_stopping(self) -> bool:
        """Whether nobody wants any more examples."""
        return self.is_halted or self.into.is_closed()

    def what_cut_it_short(self) -> BaseException | None:
        """All workers are gone, and nobody has failed nor asked for a stop: why something is
        missing, if it is. Then workers were cancelled one by one."""
        if self.into.is_closed() or (self._is_exhausted and self.window.items == 0):
            return None
        return RuntimeError(
            f"a worker of what prepares into '{self.into.name}' was cancelled before all examples"
            " were there"
        )

    # The source.

    @guarded
    def end_source(self, cause: BaseException | None) -> None:
        """Take nothing more from the source, which may have ended by a failure."""
        if not self.source_ended:
            self.source_ended, self._end_cause = True, cause
        self._room_came()

    def drain(self) -> None:
        """Take nothing more from the source, and deliver what was taken. Any thread may ask.

        A source that others fill is not left, but ends.
        """
        if not self.feed.drain():
            self._exhaust()
            self.soon(self._look_again)  # now that the end can be seen: who waits is woken

    def in_flight(self) -> int:
        """How many items were taken, or asked for, and are not in the queue."""
        return self.window.items

    @guarded
    def _exhaust(self) -> None:
        self._is_exhausted = self.source_ended = True

    @guarded
    def _look_again(self) -> None:
        self._room_came()

    def nothing_more(self) -> NothingMore:
        """By what a worker ends that has nothing more to do."""
        error = NothingMore("the source has ended")
        error.__cause__ = self._end_cause
        return error

    def source_raised(self, error: BaseException, owner: object = None) -> BaseException:
        """The source has raised: no other worker is to ask it again.

        Args:
            error: what it has raised.
            owner: the task that has asked it; ``None`` in a thread.

        Returns:
            What the worker is to raise: an end, a stop, or the failure of the source.
        """
        self._abort()  # the item that did not come
        # The other one is no end where it comes from, but a failure: of a function that is called.
        if isinstance(error, StopIteration if owner is None else StopAsyncIteration):
            self._is_exhausted = True
            self.end_source(None)
            return self.nothing_more()
        meaning = classify(error, (OutOfRangeError,), stopping=self.is_stopping, owner=owner)
        if meaning is Classification.FAILURE:
            error = as_failure(error, f"the source raised {describe_exception(error)}")
            add_note(error, "in the source of a prepare")
            self.end_source(error)
            return error
        self._is_exhausted |= meaning is Classification.END and not self.is_halted  # else we end it
        self.end_source(cause_of(error) if meaning is Classification.END else None)
        return error if _must_go_on(error, owner) else self.nothing_more()

    @guarded
    def _abort(self) -> None:
        self.window.abort()

    def _room_came(self) -> None:
        if self._executor is not None:
            self._executor.room_came()

    def _look_for_room(self) -> None:
        if self.is_room_awaited or self.source_ended:
            self._room_came()

    # What becomes of an item.

    def failure_of_item(self, error: BaseException, owner: object = None) -> BaseException:
        """An exception that has ended the preparation of an item, if it is the item's failure.

        Raises:
            BaseException: what ends the worker instead.
        """
        meaning = classify(error, stopping=self.is_stopping, owner=owner)
        try:
            if meaning is Classification.STOP:
                if _must_go_on(error, owner):
                    raise error
                raise self.nothing_more() from error
            if is_fatal(error):
                raise error
        except BaseException:
            del error  # which has this frame in its traceback now
            raise
        if owner is not None and is_cancellation(error):
            failure = RuntimeError("what the function awaited was cancelled")
            failure.__cause__ = error
            return failure
        return error

    def item_failed(
        self, item: Item, raised: BaseException, failures: int, owner: object = None
    ) -> float | None:
        """The preparation of an item has raised something, and has failed so many times now.

        Returns:
            The seconds after which to try again; ``None``: the item is skipped.

        Raises:
            BaseException: the failure, since it ends the pipeline; or what else ends the worker.
        """
        return self.progress.failed(item, self.failure_of_item(raised, owner), failures)

    def overdue(self, item: Item, stack: Stack) -> ItemTimeoutError:
        """The failure of an item that was cut short.

        Args:
            item: which one.
            stack: where it was.
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

    def not_enqueued(self, prepared: Prepared, error: BaseException, owner: object = None) -> None:
        """An example was not enqueued: nobody wants it, or its item has failed, retried or not.

        Raises:
            BaseException: what ends the worker, if it is not the item that has failed, or all is to
                end with it.
        """
        if isinstance(error, QueueClosedError) and self.into.is_closed():
            raise self.nothing_more() from None
        self.refused(prepared, self.failure_of_item(error, owner))

    def refused(self, prepared: Prepared, error: BaseException) -> None:
        """An item has failed when some of its examples may be in the queue: it is not tried again.

        Raises:
            Exception: the failure, since it ends the pipeline.
        """
        self.progress.give_up(prepared.item, error, prepared.failures + 1)
        prepared.is_skipped = True

    def made(self, prepared: Prepared) -> Prepared | None:
        """Count what was made.

        Returns:
            The same, if the caller is to enqueue it now. Where the order is kept that may be for
            somebody else to do, after what comes before it.
        """
        if self.window.limit_bytes is not None and not prepared.size:
            prepared.size = size_of(prepared.examples)
        if self._by_item:
            self.make_whole(prepared)
        return self._note_made(prepared)

    def make_whole(self, prepared: Prepared) -> None:
        """Make of an item what is delivered where items are delivered as a whole."""
        if self._fit is not None and not isinstance(prepared.item.value, EpochEnd):
            self._make_fit(prepared, self._fit)
        number, value, epoch, index = prepared.item
        if prepared.failures or prepared.is_skipped or isinstance(value, EpochEnd):
            prepared.pack()
        else:  # the same, on the way of every item
            examples = prepared.examples
            prepared.count = len(examples)
            prepared.examples = ((epoch, number, index, examples, None),)

    def _make_fit(self, prepared: Prepared, fit: Callable[[Any], Any]) -> None:
        try:
            prepared.examples = tuple(map(fit, prepared.examples))
        except BaseException as error:
            # Nothing is awaited in there, so nobody has cancelled a task in it.
            failure = as_failure(error, f"an example raised {describe_exception(error)}")
            if not isinstance(failure, Exception):
                raise
            prepared.examples = ()
            self.refused(prepared, failure)

    @guarded
    def _note_made(self, prepared: Prepared) -> Prepared | None:
        window = self.window
        if window.limit_bytes is not None and window.mark_ready(prepared.size):
            self._room_came()
        if not self.is_ordered:
            return prepared
        return self._order.bring(prepared.item.number, prepared)

    @guarded
    def waiting_in_order(self) -> int:
        """How many items have been prepared and wait for one before them."""
        return len(self._order) if self.line is None else self.line.early

    def left(self, prepared: Prepared) -> Prepared | None:
        """The examples of an item are in the queue, as many as there are to be.

        Returns:
            What the caller is to enqueue next: what follows in the order, if that is kept.
        """
        if prepared.release is not None:
            prepared.release()
        lock = self.lock
        try:  # as `guarded`, on the way of every item
            lock.acquire()
            self.window.release(prepared.size)
            self.progress.left(prepared)
            self._look_for_room()
            following = self._order.following() if self.is_ordered else None
            lock.release()
        except BaseException:
            release_if_held(lock)
            raise
        return following


def _now(call: Callable[[], object]) -> None:
    call()


def _must_go_on(error: BaseException, owner: object) -> bool:
    """Whether a stop is the cancellation of a task, which has to end by nothing else."""
    return owner is not None and not isinstance(error, Exception)


def _own_end(error: BaseException) -> BaseException:
    """What a worker ends by: the end of something else is a failure of what is not ours."""
    if isinstance(error, NothingMore) or not isinstance(error, Exception):
        return error
    return as_failure(error, f"a worker has ended by {describe_exception(error)}")
