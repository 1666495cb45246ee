"""The thread face: the same queues, blocking.

Methods have the names of the async face and take ``timeout=`` seconds besides. A call that would
have to wait on a thread whose event loop is running is refused, for it would stop the loop that may
have to wake it. A notebook's cell may stop its loop (`aioqueue.waiting.running`); there, it is
refused only where tasks of that loop would have to wake it.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from aioqueue.attempts import (
    GRANTED,
    PENDING,
    Attempt,
    Put,
    PutMany,
    QueueState,
    Take,
    UntilClosed,
)
from aioqueue.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    OutOfRangeError,
)
from aioqueue.machine import NOTHING
from aioqueue.queues.core import QueueFace, checked_seconds, note_rows
from aioqueue.queues.kinds import (
    FIFOConstructor,
    PaddingFIFOConstructor,
    PriorityConstructor,
    RandomShuffleConstructor,
)
from aioqueue.waiting import (
    ThreadWaker,
    apply_deferred,
    current_scopes,
    deliver,
    in_event_loop,
    least_left,
    unwatch,
    watch,
)

if TYPE_CHECKING:
    from aioqueue.queues import aio

__all__ = (
    "Batches",
    "BlockingQueue",
    "FIFOQueue",
    "PaddingFIFOQueue",
    "PriorityQueue",
    "RandomShuffleQueue",
)


class BlockingQueue(QueueFace):
    """What all queues of the thread face can do.

    **Interrupted means it did not happen.** A dequeue that times out, that a `CancelScope` cancels,
    or that Ctrl-C ends while it waits, leaves every element in the queue, first in line; such an
    `enqueue` has put nothing in; such an `enqueue_many` has put in a prefix, which the exception
    tells.

    One queue may be used from any number of threads and event loops at the same time. A call that
    would have to wait on a thread whose event loop is running raises `RuntimeError` at once. In the
    plain code of a notebook's cell it waits all the same, unless what it waits for is up to tasks
    of that very loop.
    """

    _world = "sync"

    @property
    def sync(self) -> Self:
        """The blocking face of the same queue, for threads.

        That is this face itself, so code can be given either face and ask for the one it needs.
        """
        return self

    @property
    def aio(self) -> aio.AsyncQueue:
        """The async face of the same queue, for coroutines."""
        face: aio.AsyncQueue = self._peer("aio")
        return face

    def enqueue(self, element: Any, *, timeout: float | None = None) -> None:
        """Put one element in, waiting while the queue is full.

        Args:
            element: a value for one component (shape and dtype as declared, cast under NumPy's
                ``same_kind`` rule); a tuple of them for several; a dict for named ones; any object
                in a queue of objects, which keeps a reference to it. Arrays of typed elements are
                copied by the time that the call returns: leave them alone while it waits.
            timeout: seconds to wait at most; ``None`` waits for ever.

        Raises:
            DeadlineExceededError: (a `TimeoutError`) the timeout has run out, or the time of a
                `CancelScope` around the call; nothing was put in.
            CancelledError: such a scope was cancelled; nothing was put in.
            QueueClosedError: `close` has been called.
            InvalidArgumentError: wrong dtype, shape or components; the queue is unchanged.
            RuntimeError: it would have to wait on a thread whose event loop is running.
        """
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout")
        row = element if self._to_row is None else self._to_row(element)
        if not self._try_enqueue(row):
            self._complete(Put(row), "enqueue", timeout)

    def enqueue_many(self, batch: Any, *, copy: bool = True, timeout: float | None = None) -> None:
        """Put the rows of a batch in, one after another, waiting whenever the queue is full.

        The rows stay together: no other enqueue comes between them. A batch of no rows returns at
        once, always.

        Args:
            batch: per component an array of shape ``(n, *shape)``: alone for one component, in a
                tuple for several, in a dict for named ones; any iterable in a queue of objects.
                The arrays are copied by the time that the call returns: leave them alone until
                then. (A large batch is copied before the call waits for room.)
            copy: ``False`` hands the arrays over: they are not copied on the way in, and the caller
                promises not to touch them any more, however the call ends.
            timeout: seconds to wait at most, over all rows; ``None`` waits for ever.

        Raises:
            DeadlineExceededError: (a `TimeoutError`) the timeout has run out, or the time of a
                `CancelScope` around the call; ``enqueued`` tells how many rows are in.
            CancelledError: such a scope was cancelled; ``enqueued`` tells how many rows are in.
            QueueClosedError: `close` has been called; ``enqueued`` tells how many rows are in.
            InvalidArgumentError: wrong dtype, shape or components; the queue is unchanged.
            RuntimeError: it would have to wait on a thread whose event loop is running.
        """
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout")
        columns, n = self._core.spec.columns(batch)
        if n:
            columns = self._core.made_ready(columns, n, copy=copy)
            if not self._machine.try_enqueue_many(columns, n):
                self._complete(PutMany(columns, n), "enqueue_many", timeout)

    def dequeue(self, *, timeout: float | None = None) -> Any:
        """Take one element out, waiting for one.

        Args:
            timeout: seconds to wait at most; ``None`` waits for ever.

        Returns:
            The value of a single component, a tuple of several, or a dict of named ones; arrays are
            private to the caller and writable, scalars are NumPy scalars. The object itself in a
            queue of objects.

        Raises:
            DeadlineExceededError: (a `TimeoutError`) the timeout has run out, or the time of a
                `CancelScope` around the call; nothing was taken.
            CancelledError: such a scope was cancelled; nothing was taken.
            OutOfRangeError: the queue is closed and empty.
            RuntimeError: it would have to wait on a thread whose event loop is running.
        """
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout")
        row = self._try_dequeue()
        if row is NOTHING:
            take = Take(1, single=True)
            self._complete(take, "dequeue", timeout)
            row = take.held.single
        return row if self._from_row is None else self._from_row(row)

    def dequeue_many(self, n: int, *, out: Any = None, timeout: float | None = None) -> Any:
        """Take exactly n elements out as one batch, waiting until all of them have come.

        It takes them as they come, so producers get their room back at once and n may exceed the
        capacity (but not that of a `PriorityQueue`).

        Args:
            n: how many, >= 0; for 0 an empty batch is returned at once.
            out: arrays to write the batch to: per component one of shape ``(n, *shape)`` and
                exactly its dtype, given like a batch. Until the call returns, their content is
                undefined.
            timeout: seconds to wait at most; ``None`` waits for ever.

        Returns:
            Per component an array of shape ``(n, *shape)``: alone, in a tuple, or in a dict;
            ``out`` if that was given; a list of n objects in a queue of objects.

        Raises:
            DeadlineExceededError: (a `TimeoutError`) the timeout has run out, or the time of a
                `CancelScope` around the call; nothing was taken.
            CancelledError: such a scope was cancelled; nothing was taken.
            OutOfRangeError: the queue is closed and fewer than n are left; they stay.
            InvalidArgumentError: n or ``out`` is wrong, or the queue was made without shapes.
            RuntimeError: it would have to wait on a thread whose event loop is running.
        """
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout")
        n, arrays = self._core.check_dequeue_many(n, out)
        if n == 0:
            return self._core.empty_batch(arrays)
        batch = self._core.try_batch(n, arrays)
        if batch is not NOTHING:
            return batch
        take = Take(n, out=arrays)
        self._complete(take, "dequeue_many", timeout)
        return self._core.finish_batch(take)

    def dequeue_up_to(
        self, n: int, max_wait: float | None = None, *, timeout: float | None = None
    ) -> Any:
        """Take n elements out as one batch, or fewer where waiting for more is of no use.

        Args:
            n: how many at most, >= 0; for 0 an empty batch is returned at once.
            max_wait: seconds after which it returns what is there; if nothing is, it waits for the
                first element. ``None`` waits for all n.
            timeout: seconds to wait at most, for the first element too; ``None`` waits for ever.

        Returns:
            A batch as from `dequeue_many`: of n elements; or of the 1 to n that are left, once the
            queue is closed; or of the 1 to n that have come within ``max_wait``. Never an empty
            one.

        Raises:
            DeadlineExceededError: (a `TimeoutError`) the timeout has run out, or the time of a
                `CancelScope` around the call; nothing was taken.
            CancelledError: such a scope was cancelled; nothing was taken.
            OutOfRangeError: the queue is closed and empty.
            InvalidArgumentError: n or ``max_wait`` is wrong, or the queue was made without shapes.
            RuntimeError: it would have to wait on a thread whose event loop is running.
        """
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout")
        n = self._core.check_batch_size(n)
        if max_wait is not None:
            max_wait = checked_seconds(max_wait, "max_wait")
        if n == 0:
            return self._core.empty_batch()
        batch = self._core.try_batch(n)
        if batch is not NOTHING:
            return batch
        take = Take(n, up_to=True, expired=max_wait == 0)
        self._complete(take, "dequeue_up_to", timeout, max_wait or None)
        return self._core.finish_batch(take)

    def wait_closed(self, *, timeout: float | None = None) -> None:
        """Wait until nothing more will come in.

        That is: until `close` has been called, and every enqueue that began before is in or has
        failed.

        Args:
            timeout: seconds to wait at most; ``None`` waits for ever.

        Raises:
            DeadlineExceededError: (a `TimeoutError`) the timeout has run out, or the time of a
                `CancelScope` around the call.
            CancelledError: such a scope was cancelled.
            RuntimeError: it would have to wait on a thread whose event loop is running.
        """
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout")
        if self._machine.state is not QueueState.CLOSED:
            self._complete(UntilClosed(), "wait_closed", timeout)

    def __iter__(self) -> Self:
        """Iterate over elements, taking each out, until the queue is closed and empty."""
        return self

    def __next__(self) -> Any:
        try:
            return self.dequeue()
        except OutOfRangeError:
            raise StopIteration from None

    def batches(self, n: int, *, drop_remainder: bool = False) -> Batches:
        """Iterate over batches of n elements until the queue is closed and empty.

        Args:
            n: how many elements each has, >= 1.
            drop_remainder: leave the last elements in the queue if they are fewer than n, instead
                of making a smaller last batch of them.

        Raises:
            InvalidArgumentError: n is wrong, or the queue was made without shapes.
        """
        if self._core.check_batch_size(n) == 0:
            raise InvalidArgumentError("n: got 0; expected an int >= 1")
        return Batches(self, n, drop_remainder)

    def _complete(
        self,
        attempt: Attempt,
        method: str,
        timeout: float | None,
        max_wait: float | None = None,
    ) -> None:
        """Begin an attempt, wait until it ends, and commit it; or withdraw it."""
        if in_event_loop():
            if not self._at_once(attempt):
                if timeout == 0:
                    raise self._timed_out(attempt, method, timeout)
                raise RuntimeError(
                    f"{method} would have to wait, and this thread's event loop is running:"
                    f" use `await queue.aio.{method}(...)` here"
                )
            return
        began = perf_counter()
        waker = ThreadWaker()
        scopes = current_scopes()
        sleepers = self._core.sleepers
        try:
            sleepers[waker] = None
            wakers = self._machine.begin(attempt, waker)
            if wakers:
                deliver(wakers)
            if attempt.state is PENDING or attempt.state is GRANTED:
                if self._core.wakers:
                    self._core.drop_dead_loops()
                    if timeout != 0 and attempt.is_pending and self._core.stands_still_for(attempt):
                        raise self._stands_still(method)
                limit = timeout
                if scopes:
                    limit = least_left(scopes, timeout)
                    watch(scopes, attempt, began)
                # In a function of its own, since it loops: see `aioqueue.locks`.
                if not self._wait(attempt, waker, began, limit, max_wait):
                    raise self._timed_out(attempt, method, timeout if limit == timeout else None)
                if attempt.is_withdrawn:
                    raise self._was_cancelled(attempt, method)
                wakers = self._machine.commit(attempt, perf_counter() - began)
                if wakers:
                    deliver(wakers)
        except BaseException as error:
            # The attempt tells whether it was withdrawn already, under the lock that decided so;
            # not the exception, which may be a signal handler's.
            if not attempt.is_withdrawn:
                apply_deferred(self._machine.withdraw, attempt, perf_counter() - began)
                self._core.wake_all()
                note_rows(attempt, error)
            raise
        finally:
            sleepers.pop(waker, None)
            if scopes:
                unwatch(scopes, attempt)
        if attempt.error is not None:
            attempt.raise_error()

    def _wait(
        self,
        attempt: Attempt,
        waker: ThreadWaker,
        began: float,
        limit: float | None,
        max_wait: float | None,
    ) -> bool:
        """Sleep until the attempt is no longer pending.

        Returns:
            Whether that was before the limit; if not, the attempt is withdrawn.
        """
        while attempt.is_pending:
            limits = [seconds for seconds in (limit, max_wait) if seconds is not None]
            waited = perf_counter() - began
            if waker.wait(min(limits) - waited if limits else None):
                continue
            waited = perf_counter() - began
            if limit is not None and waited >= limit:
                deliver(self._machine.withdraw(attempt, waited, if_pending=True))
                if attempt.is_withdrawn:
                    return False
            elif max_wait is not None and waited >= max_wait:
                max_wait = None
                assert isinstance(attempt, Take)
                deliver(self._machine.expire(attempt))
        return True

    def _stands_still(self, method: str) -> RuntimeError:
        return RuntimeError(
            f"{method} on {self._core.kind} '{self.name}' would have to wait for tasks of the event"
            " loop that this cell runs in, and none of them goes on before the cell has ended: use"
            f" `await queue.aio.{method}(...)` here, or run them on threads"
        )

    def _was_cancelled(self, attempt: Attempt, method: str) -> CancelledError:
        done = attempt.done if isinstance(attempt, PutMany) else 0
        return CancelledError(
            f"{method} on {self._core.kind} '{self.name}' was cancelled by its CancelScope"
            + (f"; {done} of its rows are in" if done else ""),
            enqueued=done,
        )

    def _timed_out(
        self, attempt: Attempt, method: str, timeout: float | None
    ) -> DeadlineExceededError:
        """Why it has failed: its own timeout; or, where that is ``None``, its `CancelScope`."""
        done = attempt.done if isinstance(attempt, PutMany) else 0
        limit = (
            "reached the deadline of its CancelScope"
            if timeout is None
            else f"waited its timeout of {timeout:.4g} s"
        )
        return DeadlineExceededError(
            f"{method} on {self._core.kind} '{self.name}' has {limit}"
            + (f"; {done} of its rows are in" if done else ""),
            enqueued=done,
        )


class Batches:
    """An iterator over batches; made by `batches`."""

    __slots__ = ("_drop_remainder", "_n", "_queue")

    def __init__(self, queue: BlockingQueue, n: int, drop_remainder: bool) -> None:
        self._queue = queue
        self._n = n
        self._drop_remainder = drop_remainder

    def __repr__(self) -> str:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return f"<{kind} of {self._n} from '{self._queue.name}'>"

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        try:
            if self._drop_remainder:
                return self._queue.dequeue_many(self._n)
            return self._queue.dequeue_up_to(self._n)
        except OutOfRangeError:
            raise StopIteration from None


class FIFOQueue(FIFOConstructor, BlockingQueue):
    __doc__ = FIFOConstructor.__doc__

    if TYPE_CHECKING:

        @property
        def aio(self) -> aio.FIFOQueue: ...


class RandomShuffleQueue(RandomShuffleConstructor, BlockingQueue):
    __doc__ = RandomShuffleConstructor.__doc__

    if TYPE_CHECKING:

        @property
        def aio(self) -> aio.RandomShuffleQueue: ...


class PaddingFIFOQueue(PaddingFIFOConstructor, BlockingQueue):
    __doc__ = PaddingFIFOConstructor.__doc__

    if TYPE_CHECKING:

        @property
        def aio(self) -> aio.PaddingFIFOQueue: ...


class PriorityQueue(PriorityConstructor, BlockingQueue):
    __doc__ = PriorityConstructor.__doc__

    if TYPE_CHECKING:

        @property
        def aio(self) -> aio.PriorityQueue: ...
