"""What the workers of a `prepare` share, be they tasks or threads.

What is in flight is counted by a `Window`. Where the order of the source is kept, a worker lays
down what it has made and goes on; whoever lays down what everybody waits for enqueues that, and
all that can follow it, while the others prepare.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from aioqueue import AsyncQueue, OutOfRangeError, QueueClosedError, sync
from aioqueue.coordination.outcomes import (
    Meaning,
    add_note,
    as_failure,
    cause_of,
    is_cancellation,
    meaning_of,
    takes_all,
    told,
)
from aioqueue.inputs.prepare.feed import Feed, worst_of
from aioqueue.inputs.prepare.ordering import Reordering
from aioqueue.inputs.prepare.progress import Progress
from aioqueue.inputs.prepare.window import Window, size_of
from aioqueue.inputs.sources.item import Item
from aioqueue.locks import guarded, let_go

__all__ = ("EnqueueOp", "NothingMore", "Prepared", "Workers")

EnqueueOp = Callable[[], Any]


class NothingMore(OutOfRangeError):  # noqa: N818  # it is no error
    """A worker has nothing more to do, whatever the reason. Only of its own making is it an end:
    what of the user's we call on the way may raise an `OutOfRangeError` too, which is a failure."""


class Prepared:
    """An item that has ended: its examples, of which there are none if it was skipped."""

    __slots__ = ("entered", "examples", "failures", "is_skipped", "item", "release", "size")

    def __init__(
        self,
        item: Item,
        examples: Any = (),
        *,
        failures: int = 0,
        is_skipped: bool = False,
        release: Callable[[], None] | None = None,
    ) -> None:
        self.item = item
        self.examples = examples
        self.failures = failures
        self.is_skipped = is_skipped
        self.release = release  # called when the examples are in the queue
        self.size = 0
        self.entered = 0  # how many examples are in the queue


class Workers(ABC):
    """What workers of one run share, be they tasks or threads.

    Args:
        feed: where items come from.
        into: where examples go.
        progress: counts, and what failures mean.
        window: what may be in flight.
        ordered: whether examples are enqueued in the order of the source.
        count: how many workers there are.
    """

    def __init__(
        self,
        feed: Feed,
        into: AsyncQueue | sync.BlockingQueue,
        progress: Progress,
        window: Window,
        *,
        ordered: bool,
        count: int,
    ) -> None:
        self._feed = feed
        self._into = into
        self._progress = progress
        self._window = window
        self._order: Reordering[Prepared] | None = Reordering() if ordered else None
        is_counted = window.limit_bytes is not None
        # Whether what is made has to be noted before it is enqueued.
        self._notes_made = ordered or is_counted
        # Whether the examples of a generator may be enqueued before the last one is made. Not if
        # the item may be tried again, for then there would be some twice; and not if their size
        # has to be known first.
        self._streams = not (ordered or progress.policy.may_fail_twice or is_counted)
        self._count = count
        self._lock = threading.RLock()  # guards the window, the order, and all below
        self._was_closed = False  # the queue, before the run began
        self._is_flushing = False
        self._inside = 0
        self._begun = 0
        self._has_begun = False
        self._source_ended = False
        self._end_cause: BaseException | None = None
        self._has_ended = False

    @abstractmethod
    def enqueue_ops(self) -> list[EnqueueOp]:
        """The workers, as a `QueueRunner` wants them."""

    @property
    def state(self) -> str:
        """Where the run is, in one word."""
        if self._has_ended:
            return "ended"
        return "running" if self._has_begun else "idle"

    @abstractmethod
    def halt(self) -> None:
        """End all workers, whatever they wait for."""

    def begins(self, *, in_time: bool) -> None:
        """The run is going to begin, before the queue was closed or not."""
        self._was_closed = not in_time

    def _enter(self) -> None:
        """A worker begins.

        Raises:
            RuntimeError: what it would make can get nowhere.
            OutOfRangeError: there is nothing to be done any more.
        """
        try:
            self._count_in()
        except RuntimeError:
            self._end_source(None)
            raise

    @guarded
    def _count_in(self) -> None:
        self._begun += 1
        name = self._into.name
        if self._begun > self._count:
            raise RuntimeError(
                f"what prepares into '{name}' has run already, and its queue is"
                " closed: make another with prepare(...), and another queue"
            )
        if self._has_ended:
            raise self._nothing_more()
        self._has_begun = True
        if self._was_closed:
            self._has_ended = True
            raise RuntimeError(
                f"'{name}' was closed before what prepares into it was started: nothing of it would"
                " arrive; start all that fill a queue before the first of them has ended"
            )
        self._inside += 1

    def _leave(self, *raised: BaseException | None) -> BaseException:
        """A worker ends; the last one to leave ends the run.

        Args:
            raised: by what it ends: an end or a stop, failures, or several.

        Returns:
            What it is to raise: all failures, or else the stop, or else the end.
        """
        errors = [_own_end(error) for error in raised if error is not None]
        came_to_the_end = all(isinstance(error, NothingMore) for error in errors)
        came_to_the_end &= not self._into.is_closed()
        if not all(isinstance(error, NothingMore) for error in errors):
            self.halt()
        if self._count_out():
            last = (self._ended(), self._check_share() if came_to_the_end else None)
            errors += [error for error in last if error is not None]
        return worst_of(errors)

    @guarded
    def _count_out(self) -> bool:
        """Whether this is the last one of the run."""
        self._inside -= 1
        # Others may not have begun, and after a stop never will; but then there is nothing more to
        # be done.
        is_over = self._inside == 0 and (self._source_ended or self._into.is_closed())
        self._has_ended = is_over
        return is_over

    def _ended(self) -> BaseException | None:
        """The last worker has gone; returns what has failed in that."""
        self._progress.log(self._into.name)
        return None

    def _check_share(self) -> BaseException | None:
        try:
            self._progress.check_share()
        except RuntimeError as error:
            return error
        return None

    @guarded
    def _end_source(self, cause: BaseException | None) -> None:
        if not self._source_ended:
            self._source_ended, self._end_cause = True, cause
        self._room_came()

    def _nothing_more(self) -> NothingMore:
        error = NothingMore("the source has ended")
        error.__cause__ = self._end_cause
        return error

    def _is_stopping(self) -> bool:
        """Whether nobody wants any more examples."""
        return self._into.is_closed()

    @guarded
    def _abort(self) -> None:
        self._window.abort()

    def _source_raised(self, error: BaseException, owner: object = None) -> BaseException:
        """The source has raised: no other worker is to ask it again.

        Returns:
            What the worker is to raise: an end, a stop, or the failure of the source.
        """
        self._abort()  # the item that did not come
        if isinstance(error, StopIteration | StopAsyncIteration):
            self._end_source(None)
            return self._nothing_more()
        meaning = meaning_of(error, (OutOfRangeError,), stopping=self._is_stopping(), owner=owner)
        if meaning is Meaning.FAILURE:
            error = as_failure(error, f"the source raised {told(error)}")
            add_note(error, "in the source of a prepare")
            self._end_source(error)
            return error
        self._end_source(cause_of(error) if meaning is Meaning.END else None)
        return error if self._must_go_on(error, owner) else self._nothing_more()

    def _failure_of_item(self, error: BaseException, owner: object = None) -> BaseException:
        """An exception that has ended the preparation of an item, if it is the item's failure.

        Raises:
            BaseException: what ends the worker instead.
        """
        meaning = meaning_of(error, stopping=self._is_stopping(), owner=owner)
        if meaning is Meaning.STOP:
            if self._must_go_on(error, owner):
                raise error
            raise self._nothing_more() from error
        if takes_all(error):
            raise error
        if owner is not None and is_cancellation(error):
            failure = RuntimeError("what the function awaited was cancelled")
            failure.__cause__ = error
            return failure
        return error

    @staticmethod
    def _must_go_on(error: BaseException, owner: object) -> bool:
        """Whether a stop is the cancellation of a task, which has to end by nothing else."""
        return owner is not None and not isinstance(error, Exception)

    def _not_enqueued(self, prepared: Prepared, error: BaseException, owner: object = None) -> None:
        """An example was not enqueued: nobody wants it, or its item has failed, retried or not."""
        if isinstance(error, QueueClosedError) and self._into.is_closed():
            raise self._nothing_more() from None
        self._refused(prepared, self._failure_of_item(error, owner))

    @abstractmethod
    def _room_came(self) -> None:
        """Wake who waits for room in the window. Called under the lock."""

    def _made(self, prepared: Prepared) -> bool:
        """Count what was made; tell whether the caller has to enqueue (and all that follows)."""
        if self._window.limit_bytes is not None and not prepared.size:
            prepared.size = size_of(prepared.examples)
        return self._note_made(prepared)

    @guarded
    def _note_made(self, prepared: Prepared) -> bool:
        if self._window.mark_ready(prepared.size):
            self._room_came()
        if self._order is None:
            return True
        self._order.put(prepared.item.number, prepared)
        if self._is_flushing:
            return False
        self._is_flushing = True
        return True

    @guarded
    def _next_in_order(self) -> Prepared | None:
        assert self._order is not None
        prepared = self._order.pop()
        if prepared is None:
            self._is_flushing = False
        return prepared

    def _left(self, prepared: Prepared) -> None:
        """The examples of an item are in the queue."""
        if prepared.release is not None:
            prepared.release()
        lock = self._lock
        try:  # as `guarded`, on the way of every item
            lock.acquire()
            self._window.release(prepared.size)
            if prepared.is_skipped:
                self._progress.entered(prepared.entered)
            else:
                self._progress.ended(prepared.entered)
            self._room_came()
            lock.release()
        except BaseException:
            let_go(lock)
            raise

    def _refused(self, prepared: Prepared, error: BaseException) -> None:
        """The queue has refused an example: the item has failed, whatever could be tried."""
        self._progress.give_up(prepared.item, error, prepared.failures + 1)
        prepared.is_skipped = True


def _own_end(error: BaseException) -> BaseException:
    """What a worker ends by: the end of something else is a failure of what is not ours."""
    if isinstance(error, NothingMore) or not isinstance(error, Exception):
        return error
    return as_failure(error, f"a worker has ended by {told(error)}")
