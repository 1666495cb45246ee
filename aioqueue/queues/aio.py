"""The async face: queues whose operations are awaited, in asyncio (on any event loop) and in trio.

A method first tries the fast path; only if that is refused does it begin an attempt and wait for it
(`_complete`). An operation that need not wait does not suspend its task, so that it costs what the
work costs; but every so often one does all the same (`_breathe`), so that a consumer which never
runs dry still lets other tasks run, and can be cancelled. In trio every operation is a checkpoint.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from aioqueue.attempts import GRANTED, PENDING, Attempt, Put, PutMany, QueueState, Take, UntilClosed
from aioqueue.errors import InvalidArgumentError, OutOfRangeError
from aioqueue.machine import NOTHING
from aioqueue.queues import blocking
from aioqueue.queues.core import QueueCore, QueueFace, checked_seconds, note_rows
from aioqueue.queues.kinds import (
    FIFOConstructor,
    PaddingFIFOConstructor,
    PriorityConstructor,
    RandomShuffleConstructor,
)
from aioqueue.waiting import AsyncWaker, apply_deferred, current_waker, deliver

__all__ = (
    "AsyncBatches",
    "AsyncQueue",
    "FIFOQueue",
    "PaddingFIFOQueue",
    "PriorityQueue",
    "RandomShuffleQueue",
)


class AsyncQueue(QueueFace):
    """What all queues of the async face can do.

    **Cancelled means it did not happen.** A cancelled dequeue leaves every element in the queue,
    first in line; a cancelled `enqueue` has put nothing in; a cancelled `enqueue_many` has put in a
    prefix. That holds for cancellation at any moment, by `asyncio.timeout`, `anyio.fail_after`,
    trio's scopes or `Task.cancel`. So there are no timeout arguments here: use those.

    One queue may be used from any number of event loops and threads at the same time.
    """

    _world = "aio"

    def _bind(self, core: QueueCore) -> None:
        super()._bind(core)
        self._allowance = 0  # how many elements might be moved before one had to pause,
        self._budget = 0  # and how many of them are left
        self._waker: AsyncWaker | None = None  # of the last caller that had to ask

    @property
    def aio(self) -> Self:
        """The async face of the same queue, for coroutines.

        That is this face itself, so code can be given either face and ask for the one it needs.
        """
        return self

    @property
    def sync(self) -> blocking.BlockingQueue:
        """The blocking face of the same queue, for threads."""
        face: blocking.BlockingQueue = self._peer("sync")
        return face

    async def enqueue(self, element: Any) -> None:
        """Put one element in, waiting while the queue is full.

        Args:
            element: a value for one component (shape and dtype as declared, cast under NumPy's
                ``same_kind`` rule); a tuple of them for several; a dict for named ones; any object
                in a queue of objects, which keeps a reference to it. Arrays of typed elements are
                copied by the time that the call returns: leave them alone while it waits.

        Raises:
            QueueClosedError: `close` has been called.
            InvalidArgumentError: wrong dtype, shape or components; the queue is unchanged.

        Cancellation:
            A cancelled call has put nothing in.
        """
        self._budget -= 1
        if self._budget < 0:
            await self._breathe()
        row = element if self._to_row is None else self._to_row(element)
        if not self._try_enqueue(row):
            await self._complete(Put(row))

    async def enqueue_many(self, batch: Any, *, copy: bool = True) -> None:
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

        Raises:
            QueueClosedError: `close` has been called; ``enqueued`` tells how many rows are in.
            InvalidArgumentError: wrong dtype, shape or components; the queue is unchanged.

        Cancellation:
            A cancelled call has put in the first k rows; ``enqueued`` on the exception, and a
            note, tell k (neither: it had put in none).
        """
        columns, n = self._core.spec.columns(batch)
        self._budget -= n
        if self._budget < 0 or n == 0:
            await self._breathe(n)
        if n:
            columns = self._core.made_ready(columns, n, copy=copy)
            if not self._machine.try_enqueue_many(columns, n):
                await self._complete(PutMany(columns, n))

    async def dequeue(self) -> Any:
        """Take one element out, waiting for one.

        Returns:
            The value of a single component, a tuple of several, or a dict of named ones; arrays are
            private to the caller and writable, scalars are NumPy scalars. The object itself in a
            queue of objects.

        Raises:
            OutOfRangeError: the queue is closed and empty.

        Cancellation:
            A cancelled call leaves every element in the queue, first in line.
        """
        self._budget -= 1
        if self._budget < 0:
            await self._breathe()
        row = self._try_dequeue()
        if row is NOTHING:
            take = Take(1, single=True)
            await self._complete(take)
            row = take.held.single
        return row if self._from_row is None else self._from_row(row)

    async def dequeue_many(self, n: int, *, out: Any = None) -> Any:
        """Take exactly n elements out as one batch, waiting until all of them have come.

        It takes them as they come, so producers get their room back at once and n may exceed the
        capacity (but not that of a `PriorityQueue`).

        Args:
            n: how many, >= 0; for 0 an empty batch is returned at once.
            out: arrays to write the batch to: per component one of shape ``(n, *shape)`` and
                exactly its dtype, given like a batch. Until the call returns, their content is
                undefined.

        Returns:
            Per component an array of shape ``(n, *shape)``: alone, in a tuple, or in a dict;
            ``out`` if that was given; a list of n objects in a queue of objects.

        Raises:
            OutOfRangeError: the queue is closed and fewer than n are left; they stay.
            InvalidArgumentError: n or ``out`` is wrong, or the queue was made without shapes.

        Cancellation:
            A cancelled call leaves every element in the queue, first in line and in order.
        """
        n, arrays = self._core.check_dequeue_many(n, out)
        if n == 0:
            await self._breathe(0)
            return self._core.empty_batch(arrays)
        self._budget -= n
        if self._budget < 0:
            await self._breathe(n)
        batch = self._core.try_batch(n, arrays)
        if batch is not NOTHING:
            return batch
        take = Take(n, out=arrays)
        await self._complete(take)
        return self._core.finish_batch(take)

    async def dequeue_up_to(self, n: int, max_wait: float | None = None) -> Any:
        """Take n elements out as one batch, or fewer where waiting for more is of no use.

        Args:
            n: how many at most, >= 0; for 0 an empty batch is returned at once.
            max_wait: seconds after which it returns what is there; if nothing is, it waits for the
                first element. ``None`` waits for all n.

        Returns:
            A batch as from `dequeue_many`: of n elements; or of the 1 to n that are left, once the
            queue is closed; or of the 1 to n that have come within ``max_wait``. Never an empty
            one.

        Raises:
            OutOfRangeError: the queue is closed and empty.
            InvalidArgumentError: n or ``max_wait`` is wrong, or the queue was made without shapes.

        Cancellation:
            A cancelled call leaves every element in the queue, first in line and in order.
        """
        n = self._core.check_batch_size(n)
        if max_wait is not None:
            max_wait = checked_seconds(max_wait, "max_wait")
        if n == 0:
            await self._breathe(0)
            return self._core.empty_batch()
        self._budget -= n
        if self._budget < 0:
            await self._breathe(n)
        batch = self._core.try_batch(n)
        if batch is not NOTHING:
            return batch
        take = Take(n, up_to=True, expired=max_wait == 0)
        await self._complete(take, max_wait or None)
        return self._core.finish_batch(take)

    async def wait_closed(self) -> None:
        """Wait until nothing more will come in.

        That is: until `close` has been called, and every enqueue that began before is in or has
        failed.

        Cancellation:
            A cancelled call has changed nothing.
        """
        if self._machine.state is QueueState.CLOSED:
            await self._breathe(0)
        else:
            await self._complete(UntilClosed())

    def __aiter__(self) -> Self:
        """Iterate over elements, taking each out, until the queue is closed and empty."""
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.dequeue()
        except OutOfRangeError:
            raise StopAsyncIteration from None

    def batches(self, n: int, *, drop_remainder: bool = False) -> AsyncBatches:
        """Iterate over batches of n elements until the queue is closed and empty.

        Args:
            n: how many elements each has, >= 1.
            drop_remainder: leave the last elements in the queue if they are fewer than n, instead
                of making a smaller last batch of them.

        Raises:
            InvalidArgumentError: n is wrong, or the queue was made without shapes.

        Cancellation:
            As for `dequeue_many`; the iteration can go on afterwards.
        """
        if self._core.check_batch_size(n) == 0:
            raise InvalidArgumentError("n: got 0; expected an int >= 1")
        return AsyncBatches(self, n, drop_remainder)

    async def _breathe(self, n: int = 1) -> None:
        """Let other tasks run, once in a while; in trio, each time."""
        waker = current_waker(self._waker)
        used = self._allowance
        self._budget = self._allowance = waker.allowance()
        # A call counts as one at least: those that move no rows may be made in a loop, too.
        await waker.pause(used + max(n, 1))

    async def _complete(self, attempt: Attempt, max_wait: float | None = None) -> None:
        """Begin an attempt, wait until it ends, and commit it; or withdraw it."""
        machine = self._machine
        waker = current_waker(self._waker)
        if waker is not self._waker:
            self._waker = waker
            self._core.remember(waker)
        cancel_timer = None
        began = perf_counter()
        is_moving = True
        try:
            # Begun in here, as Ctrl-C outside of `asyncio.run` may strike at once: an attempt whose
            # owner is gone must not stay in line.
            wakers = machine.begin(attempt, waker)
            if wakers:
                deliver(wakers)
            if attempt.state is PENDING or attempt.state is GRANTED:
                self._budget = self._allowance = waker.allowance()
                if len(self._core.wakers) > 1:  # our own loop is not dead
                    self._core.drop_dead_loops()
                if max_wait is not None:
                    cancel_timer = waker.call_later(
                        max_wait, lambda: deliver(machine.expire(attempt))
                    )
                is_moving = False
                await waker.wait(attempt)
                is_moving = True
                wakers = machine.commit(attempt, perf_counter() - began)
                if wakers:
                    deliver(wakers)
        except BaseException as error:
            apply_deferred(machine.withdraw, attempt, perf_counter() - began)
            if is_moving:  # a signal handler's exception has come between a move and its wakes
                self._core.wake_all()
            note_rows(attempt, error)
            raise
        finally:
            if cancel_timer is not None:
                cancel_timer()
        if attempt.error is not None:
            attempt.raise_error()


class AsyncBatches:
    """An async iterator over batches; made by `batches`."""

    __slots__ = ("_drop_remainder", "_n", "_queue")

    def __init__(self, queue: AsyncQueue, n: int, drop_remainder: bool) -> None:
        self._queue = queue
        self._n = n
        self._drop_remainder = drop_remainder

    def __repr__(self) -> str:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return f"<{kind} of {self._n} from '{self._queue.name}'>"

    def __aiter__(self) -> AsyncBatches:
        return self

    async def __anext__(self) -> Any:
        try:
            if self._drop_remainder:
                return await self._queue.dequeue_many(self._n)
            return await self._queue.dequeue_up_to(self._n)
        except OutOfRangeError:
            raise StopAsyncIteration from None


class FIFOQueue(FIFOConstructor, AsyncQueue):
    __doc__ = FIFOConstructor.__doc__

    if TYPE_CHECKING:

        @property
        def sync(self) -> blocking.FIFOQueue: ...


class RandomShuffleQueue(RandomShuffleConstructor, AsyncQueue):
    __doc__ = RandomShuffleConstructor.__doc__

    if TYPE_CHECKING:

        @property
        def sync(self) -> blocking.RandomShuffleQueue: ...


class PaddingFIFOQueue(PaddingFIFOConstructor, AsyncQueue):
    __doc__ = PaddingFIFOConstructor.__doc__

    if TYPE_CHECKING:

        @property
        def sync(self) -> blocking.PaddingFIFOQueue: ...


class PriorityQueue(PriorityConstructor, AsyncQueue):
    __doc__ = PriorityConstructor.__doc__

    if TYPE_CHECKING:

        @property
        def sync(self) -> blocking.PriorityQueue: ...


# Each face makes the other one; the blocking module comes first, so it learns of this one here.
_PAIRS: tuple[tuple[type[QueueFace], type[QueueFace]], ...] = (
    (FIFOQueue, blocking.FIFOQueue),
    (RandomShuffleQueue, blocking.RandomShuffleQueue),
    (PaddingFIFOQueue, blocking.PaddingFIFOQueue),
    (PriorityQueue, blocking.PriorityQueue),
)
for _ours, _theirs in _PAIRS:
    _ours._peer_class, _theirs._peer_class = _theirs, _ours
