"""The docstrings of the queue methods that may wait, shared by both faces.

Each face implements these methods in its own way of waiting and inherits the docstrings, rendered
by `aioqueue.base.public_names`. The methods that never wait are in `aioqueue.queues.queue_core`.
"""

from __future__ import annotations

from typing import Any, Generic

from aioqueue.core.elements.spec import ElementT


class QueueMethods(Generic[ElementT]):
    """The methods of a queue that may wait. Each face overrides all of them."""

    def enqueue(self, element: Any) -> Any:
        """Put one element in. Wait while the queue is full.

        The queue is full when it holds ``capacity`` elements, or when the new element would bring
        it above ``max_bytes``. The bound on bytes yields where a dequeue would otherwise wait for
        ever: an empty queue accepts an element of any size.

        Args:
            element: a value for one component; a tuple of values for several; a dict for named
                ones. Each has the declared shape, and is cast to the dtype by NumPy's ``same_kind``
                rule. Arrays are copied before the call returns: do not change them until then. A
                queue of objects takes any object, and keeps a reference to it.
            timeout: in threads, seconds to wait at most; ``None`` waits for ever.

        Raises:
            DeadlineExceededError: in threads, the timeout has expired, or the time of a
                `CancelScope` around the call; nothing was put in. It is a `TimeoutError`.
            CancelledError: in threads, a `CancelScope` around the call was cancelled; nothing was
                put in.
            QueueClosedError: `close` has been called.
            InvalidArgumentError: wrong dtype, shape or components; the queue is unchanged.
            RuntimeError: in threads, the call would block a thread whose event loop is running.

        Cancellation:
            A cancelled call has put nothing in. If an asyncio task is cancelled when the element is
            in, and the call only lets other tasks run, the call returns, and the next ``await`` of
            the task is cancelled.
        """
        raise NotImplementedError

    def enqueue_many(self, batch: Any, *, copy: bool = True) -> Any:
        """Put the rows of a batch in, in order. Wait whenever the queue is full.

        The rows stay together: no other enqueue gets between them. A waiting call puts in as many
        rows as there is room for. A batch of no rows always returns at once.

        Args:
            batch: an array of shape ``(n, *shape)`` for one component; a tuple of arrays for
                several; a dict of arrays for named ones. A queue of objects takes any iterable. The
                arrays are copied before the call returns: do not change them until then. (A large
                batch is copied before the call waits for room.)
            copy: ``False`` hands the arrays over without a copy. Do not touch them afterwards,
                however the call ends.
            timeout: in threads, seconds to wait at most, over all rows; ``None`` waits for ever.

        Raises:
            DeadlineExceededError: in threads, the timeout has expired, or the time of a
                `CancelScope` around the call. It is a `TimeoutError`; its ``enqueued`` is the
                number of rows that are in.
            CancelledError: in threads, a `CancelScope` around the call was cancelled; ``enqueued``
                is the number of rows that are in.
            QueueClosedError: `close` has been called; ``enqueued`` is the number of rows that are
                in.
            InvalidArgumentError: wrong dtype, shape or components; the queue is unchanged.
            RuntimeError: in threads, the call would block a thread whose event loop is running.

        Cancellation:
            A cancelled call has put in the first k rows. The exception has k as ``enqueued`` and in
            a note; if it has neither, k is 0. Once all rows are in, the same holds as for
            `enqueue`.
        """
        raise NotImplementedError

    def dequeue(self) -> Any:
        """Take one element out. Wait until there is one.

        Args:
            timeout: in threads, seconds to wait at most; ``None`` waits for ever.

        Returns:
            The value of a single component, a tuple of several, or a dict of named ones. Arrays are
            writable and yours alone; scalars are NumPy scalars. A queue of objects returns the
            object itself.

        Raises:
            DeadlineExceededError: in threads, the timeout has expired, or the time of a
                `CancelScope` around the call; nothing was taken. It is a `TimeoutError`.
            CancelledError: in threads, a `CancelScope` around the call was cancelled; nothing was
                taken.
            OutOfRangeError: the queue is closed and empty.
            RuntimeError: in threads, the call would block a thread whose event loop is running.

        Cancellation:
            A cancelled call leaves every element in the queue, first in line.
        """
        raise NotImplementedError

    def dequeue_many(self, n: int, *, out: Any = None) -> Any:
        """Take exactly n elements out as one batch. Wait until all of them are there.

        A waiting call takes elements as they arrive, so producers get room at once and n may exceed
        the capacity. (A `PriorityQueue` cannot take elements early; there, n is at most the
        capacity.)

        Args:
            n: the number of elements, >= 0; 0 returns an empty batch at once.
            out: arrays to write the batch to, structured like a batch: each has the shape
                ``(n, *shape)`` and exactly the dtype of its component. Their content is undefined
                until the call returns.
            timeout: in threads, seconds to wait at most; ``None`` waits for ever.

        Returns:
            An array of shape ``(n, *shape)`` per component: alone for one, in a tuple for several,
            in a dict for named ones. If you passed ``out``, that. A queue of objects returns a list
            of n objects.

        Raises:
            DeadlineExceededError: in threads, the timeout has expired, or the time of a
                `CancelScope` around the call; nothing was taken. It is a `TimeoutError`.
            CancelledError: in threads, a `CancelScope` around the call was cancelled; nothing was
                taken.
            OutOfRangeError: the queue is closed and fewer than n elements are left; they stay.
            InvalidArgumentError: n or ``out`` is wrong, or the queue was made without shapes.
            RuntimeError: in threads, the call would block a thread whose event loop is running.

        Cancellation:
            A cancelled call leaves every element in the queue, first in line and in order.
        """
        raise NotImplementedError

    def dequeue_up_to(self, n: int, max_wait: float | None = None) -> Any:
        """Take up to n elements out as one batch. Wait only as long as more can come.

        Args:
            n: the largest number of elements, >= 0; 0 returns an empty batch at once.
            max_wait: seconds after which the call returns what is there. If nothing is, it waits
                for the first element. ``None`` waits for all n.
            timeout: in threads, seconds to wait at most, for the first element too; ``None`` waits
                for ever.

        Returns:
            A batch as from `dequeue_many`. It has n elements; fewer only if ``max_wait`` has
            expired or the queue is closed. For n >= 1 it is never empty.

        Raises:
            DeadlineExceededError: in threads, the timeout has expired, or the time of a
                `CancelScope` around the call; nothing was taken. It is a `TimeoutError`.
            CancelledError: in threads, a `CancelScope` around the call was cancelled; nothing was
                taken.
            OutOfRangeError: the queue is closed and empty.
            InvalidArgumentError: n or ``max_wait`` is wrong, or the queue was made without shapes.
            RuntimeError: in threads, the call would block a thread whose event loop is running.

        Cancellation:
            A cancelled call leaves every element in the queue, first in line and in order.
        """
        raise NotImplementedError

    def wait_closed(self) -> Any:
        """Wait until no further element can come in.

        That is so once `close` has been called and every enqueue that began before it has completed
        or failed.

        Args:
            timeout: in threads, seconds to wait at most; ``None`` waits for ever.

        Raises:
            DeadlineExceededError: in threads, the timeout has expired, or the time of a
                `CancelScope` around the call. It is a `TimeoutError`.
            CancelledError: in threads, a `CancelScope` around the call was cancelled.
            RuntimeError: in threads, the call would block a thread whose event loop is running.

        Cancellation:
            A cancelled call has changed nothing.
        """
        raise NotImplementedError

    def join(self) -> Any:
        """Wait until every element that went in is done with, as in `queue.Queue`.

        That is so once `task_done` has been called for each of them. It is the end of a program
        that feeds its own queue: an empty queue is not, since a worker may still
        process the last element and put new ones in. More elements may come afterwards.

        Closing the queue in the ordinary way ends no join: consumers can still finish what is
        inside. The stop of a coordinator ends a join in which one of its workers waits, and one in
        which the task or thread of its block waits: the workers have stopped.

        Args:
            timeout: in threads, seconds to wait at most; ``None`` waits for ever.

        Raises:
            QueueClosedError: a failure has closed the queue: it is the ``__cause__``.
            DeadlineExceededError: in threads, the timeout has expired, or the time of a
                `CancelScope` around the call. It is a `TimeoutError`.
            CancelledError: a coordinator has stopped, as above; or, in threads, a `CancelScope`
                around the call was cancelled.
            RuntimeError: in threads, the call would block a thread whose event loop is running.

        Cancellation:
            A cancelled call has changed nothing.
        """
        raise NotImplementedError

    def batches(
        self, n: int, *, drop_remainder: bool = False, max_wait: float | None = None
    ) -> Any:
        """Iterate over batches of n elements until the queue is closed and empty.

        If a failure has closed the queue, the iteration raises `OutOfRangeError` at its end, with
        the failure as the cause. An iteration that just ends has returned every element.

        Args:
            n: the number of elements per batch, >= 1.
            drop_remainder: leave fewer than n last elements in the queue, instead of returning a
                smaller last batch.
            max_wait: seconds after which a batch takes what is there, or else the first elements to
                arrive, as for `dequeue_up_to`; ``None`` waits for n elements. Whole batches
                (``drop_remainder``) cannot have it.

        Raises:
            InvalidArgumentError: an argument is not as described, or the queue was made without
                shapes.

        Cancellation:
            As for `dequeue_many`. You can continue the iteration afterwards.
        """
        raise NotImplementedError
