"""What the methods of a queue do, written once for both faces; see `aioqueue.docstrings`.

Here stand the methods that may have to wait. Each face has its own way of waiting, and takes its
docstrings from here. Methods that never wait are the same for both: they are in `queues.core`.
"""

from __future__ import annotations

from typing import Any, Generic

from aioqueue.elements import ElementT

__all__ = ("QueueMethods",)


class QueueMethods(Generic[ElementT]):
    """What a queue can do that may have to wait. Both faces override all of it."""

    def enqueue(self, element: Any) -> Any:
        """Put one element in, waiting while the queue is full.

        It is full with ``capacity`` elements inside; or when this one and what is inside are more
        than ``max_bytes`` together, but not while the next dequeue needs more elements than there
        are: into an empty queue one goes always, however large.

        Args:
            element: a value for one component (shape and dtype as declared, cast under NumPy's
                ``same_kind`` rule); a tuple of them for several; a dict for named ones; any object
                in a queue of objects, which keeps a reference to it. Arrays of typed elements are
                copied by the time that the call returns: leave them alone while it waits.
            timeout: in threads, seconds to wait at most; ``None`` waits for ever.

        Raises:
            DeadlineExceededError: in threads, (a `TimeoutError`) the timeout has run out, or the
                time of a `CancelScope` around the call; nothing was put in.
            CancelledError: in threads, such a scope was cancelled; nothing was put in.
            QueueClosedError: `close` has been called.
            InvalidArgumentError: wrong dtype, shape or components; the queue is unchanged.
            RuntimeError: in threads, it would have to wait on a thread whose event loop is
                running.

        Cancellation:
            A cancelled call has put nothing in.
        """
        raise NotImplementedError

    def enqueue_many(self, batch: Any, *, copy: bool = True) -> Any:
        """Put the rows of a batch in, one after another, waiting whenever the queue is full.

        The rows stay together: no other enqueue comes between them. As many go in as fit, in number
        and in bytes. A batch of no rows returns at once, always.

        Args:
            batch: per component an array of shape ``(n, *shape)``: alone for one component, in a
                tuple for several, in a dict for named ones; any iterable in a queue of objects.
                The arrays are copied by the time that the call returns: leave them alone until
                then. (A large batch is copied before the call waits for room.)
            copy: ``False`` hands the arrays over: they are not copied on the way in, and the caller
                promises not to touch them any more, however the call ends.
            timeout: in threads, seconds to wait at most, over all rows; ``None`` waits for ever.

        Raises:
            DeadlineExceededError: in threads, (a `TimeoutError`) the timeout has run out, or the
                time of a `CancelScope` around the call; ``enqueued`` tells how many rows are in.
            CancelledError: in threads, such a scope was cancelled; ``enqueued`` tells how many rows
                are in.
            QueueClosedError: `close` has been called; ``enqueued`` tells how many rows are in.
            InvalidArgumentError: wrong dtype, shape or components; the queue is unchanged.
            RuntimeError: in threads, it would have to wait on a thread whose event loop is
                running.

        Cancellation:
            A cancelled call has put in the first k rows; ``enqueued`` on the exception, and a
            note, tell k (neither: it had put in none).
        """
        raise NotImplementedError

    def dequeue(self) -> Any:
        """Take one element out, waiting for one.

        Args:
            timeout: in threads, seconds to wait at most; ``None`` waits for ever.

        Returns:
            The value of a single component, a tuple of several, or a dict of named ones; arrays are
            private to the caller and writable, scalars are NumPy scalars. The object itself in a
            queue of objects.

        Raises:
            DeadlineExceededError: in threads, (a `TimeoutError`) the timeout has run out, or the
                time of a `CancelScope` around the call; nothing was taken.
            CancelledError: in threads, such a scope was cancelled; nothing was taken.
            OutOfRangeError: the queue is closed and empty.
            RuntimeError: in threads, it would have to wait on a thread whose event loop is
                running.

        Cancellation:
            A cancelled call leaves every element in the queue, first in line.
        """
        raise NotImplementedError

    def dequeue_many(self, n: int, *, out: Any = None) -> Any:
        """Take exactly n elements out as one batch, waiting until all of them have come.

        It takes them as they come, so producers get their room back at once and n may exceed the
        capacity (but not that of a `PriorityQueue`).

        Args:
            n: how many, >= 0; for 0 an empty batch is returned at once.
            out: arrays to write the batch to: per component one of shape ``(n, *shape)`` and
                exactly its dtype, given like a batch. Until the call returns, their content is
                undefined.
            timeout: in threads, seconds to wait at most; ``None`` waits for ever.

        Returns:
            Per component an array of shape ``(n, *shape)``: alone, in a tuple, or in a dict;
            ``out`` if that was given; a list of n objects in a queue of objects.

        Raises:
            DeadlineExceededError: in threads, (a `TimeoutError`) the timeout has run out, or the
                time of a `CancelScope` around the call; nothing was taken.
            CancelledError: in threads, such a scope was cancelled; nothing was taken.
            OutOfRangeError: the queue is closed and fewer than n are left; they stay.
            InvalidArgumentError: n or ``out`` is wrong, or the queue was made without shapes.
            RuntimeError: in threads, it would have to wait on a thread whose event loop is
                running.

        Cancellation:
            A cancelled call leaves every element in the queue, first in line and in order.
        """
        raise NotImplementedError

    def dequeue_up_to(self, n: int, max_wait: float | None = None) -> Any:
        """Take n elements out as one batch, or fewer where waiting for more is of no use.

        Args:
            n: how many at most, >= 0; for 0 an empty batch is returned at once.
            max_wait: seconds after which it returns what is there; if nothing is, it waits for the
                first element. ``None`` waits for all n.
            timeout: in threads, seconds to wait at most, for the first element too; ``None`` waits
                for ever.

        Returns:
            A batch as from `dequeue_many`: of n elements; or of the 1 to n that are left, once the
            queue is closed; or of the 1 to n that have come within ``max_wait``. Never an empty
            one.

        Raises:
            DeadlineExceededError: in threads, (a `TimeoutError`) the timeout has run out, or the
                time of a `CancelScope` around the call; nothing was taken.
            CancelledError: in threads, such a scope was cancelled; nothing was taken.
            OutOfRangeError: the queue is closed and empty.
            InvalidArgumentError: n or ``max_wait`` is wrong, or the queue was made without shapes.
            RuntimeError: in threads, it would have to wait on a thread whose event loop is
                running.

        Cancellation:
            A cancelled call leaves every element in the queue, first in line and in order.
        """
        raise NotImplementedError

    def wait_closed(self) -> Any:
        """Wait until nothing more will come in.

        That is: until `close` has been called, and every enqueue that began before is in or has
        failed.

        Args:
            timeout: in threads, seconds to wait at most; ``None`` waits for ever.

        Raises:
            DeadlineExceededError: in threads, (a `TimeoutError`) the timeout has run out, or the
                time of a `CancelScope` around the call.
            CancelledError: in threads, such a scope was cancelled.
            RuntimeError: in threads, it would have to wait on a thread whose event loop is
                running.

        Cancellation:
            A cancelled call has changed nothing.
        """
        raise NotImplementedError

    def batches(self, n: int, *, drop_remainder: bool = False) -> Any:
        """Iterate over batches of n elements until the queue is closed and empty.

        If a failure has closed it, `OutOfRangeError` comes then, with the failure as its cause: an
        iteration that ends has had all there is.

        Args:
            n: how many elements each has, >= 1.
            drop_remainder: leave the last elements in the queue if they are fewer than n, instead
                of making a smaller last batch of them.

        Raises:
            InvalidArgumentError: n is wrong, or the queue was made without shapes.

        Cancellation:
            As for `dequeue_many`; the iteration can go on afterwards.
        """
        raise NotImplementedError
