"""The blocking face of a queue, for threads.

The methods have the names of the async face, and take ``timeout=`` seconds as well. A call raises
`RuntimeError` if it would block a thread whose event loop is running: it would stop the very loop
that may have to wake it. The cell of a notebook may block its loop (`aioqueue.worlds.waker`).
There, a call raises only if tasks of that loop would have to wake it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import current_thread
from time import perf_counter
from typing import Any, Generic, NoReturn, Self, TypeVar, overload

from aioqueue.base.arguments import checked_seconds
from aioqueue.base.hints import refuse_search
from aioqueue.base.public_names import public
from aioqueue.base.tracebacks import SHORTENED, shorten, shorten_again
from aioqueue.core.attempts import (
    PENDING,
    WITHDRAWN,
    Attempt,
    Put,
    PutMany,
    QueueState,
    Take,
    UntilClosed,
    UntilDone,
)
from aioqueue.core.elements.spec import BatchT, ElementT, Row, Typed
from aioqueue.core.fast_path import NOTHING
from aioqueue.core.machine import Machine
from aioqueue.core.meters import current_meter
from aioqueue.errors import (
    CancelledError,
    DeadlineExceededError,
    OutOfRangeError,
)
from aioqueue.queues.element_writer import ElementWriter
from aioqueue.queues.leases import QueueLeases
from aioqueue.queues.queue_core import QueueFace, add_rows_note
from aioqueue.system.forks import NOT_BEGUN, PROCESS, begun_here
from aioqueue.worlds.scopes import cancelled_by, current_scopes, seconds_left, unwatch, watch
from aioqueue.worlds.waker import (
    ThreadWaker,
    apply_deferred,
    deliver,
    in_event_loop,
    is_free_threaded,
)

T = TypeVar("T")


class BlockingMethods(QueueFace[ElementT]):
    """The methods of the blocking face."""

    _world = "sync"

    @overload
    def enqueue(
        self: BlockingMethods[Typed[Any, Any]], element: Any, *, timeout: float | None = None
    ) -> None: ...
    @overload
    def enqueue(self, element: ElementT, *, timeout: float | None = None) -> None: ...
    def enqueue(self, element: Any, *, timeout: float | None = None) -> None:
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout")
        # Local names, as in `aioqueue.core.fast_path`.
        to_row, try_enqueue = self._to_row, self._try_enqueue
        row = element if to_row is None else to_row(element)
        if not try_enqueue(row):
            try:  # the code of `SHORTENED`, without the calls of its methods
                self._complete(Put(row), "enqueue", timeout)
            except BaseException as error:
                shorten(error)
                raise

    def _steps_of_enqueue(
        self,
    ) -> tuple[Callable[[Any], Row] | None, Callable[[Row], bool]] | None:
        """Return the two steps of an `enqueue` that need not wait, for a caller of many.

        They are the function that makes a row, ``None`` if an element is one already, and the try
        to put it in. ``None``: a subclass has an `enqueue` of its own.
        """
        if type(self).enqueue is not BlockingMethods.enqueue or "enqueue" in vars(self):
            return None
        return self._core.quick_row_maker(), self._try_enqueue

    def _element_writer(self, rows: int) -> ElementWriter | None:
        """Return what enqueues many elements of one thread together; ``None`` if that is of no use.

        Args:
            rows: how many, at most.
        """
        # Without a global interpreter lock, a writer and the machine could miss each other. A queue
        # of another process has no machine here.
        is_here = isinstance(self._machine, Machine)
        if is_free_threaded() or not is_here or self._steps_of_enqueue() is None:
            return None
        spec = self._core.spec_of_packed_rows()
        packing = None if spec is None else self._core.storage.row_packing(rows)
        if spec is None or packing is None:
            return None
        return ElementWriter(self._machine, self._complete_enqueue, spec, packing)

    def _complete_enqueue(self, attempt: Attempt) -> None:
        self._complete(attempt, "enqueue", None)

    @overload
    def enqueue_many(
        self: BlockingMethods[Typed[Any, Any]],
        batch: Any,
        *,
        copy: bool = True,
        timeout: float | None = None,
    ) -> None: ...
    @overload
    def enqueue_many(
        self, batch: Iterable[ElementT], *, copy: bool = True, timeout: float | None = None
    ) -> None: ...
    def enqueue_many(self, batch: Any, *, copy: bool = True, timeout: float | None = None) -> None:
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout")
        columns, n = self._core.spec.columns(batch)
        if n:
            columns = self._core.prepare_columns(columns, n, copy=copy)
            if not self._machine.try_enqueue_many(columns, n):
                with SHORTENED:
                    self._complete(PutMany(columns, n), "enqueue_many", timeout)

    @overload
    def dequeue(self: BlockingMethods[Typed[T, Any]], *, timeout: float | None = None) -> T: ...
    @overload
    def dequeue(self, *, timeout: float | None = None) -> ElementT: ...
    def dequeue(self, *, timeout: float | None = None) -> Any:
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout")
        try_dequeue = self._try_dequeue
        row = try_dequeue()
        if row is NOTHING:
            take = Take(1, True)
            try:
                self._complete(take, "dequeue", timeout)
            except BaseException as error:
                shorten(error)
                raise
            row = take.held.single if self._row_of is None else self._row_of(take)
        from_row = self._from_row  # after the wait: sharing the queue replaces it
        return row if from_row is None else from_row(row)

    @overload
    def dequeue_many(
        self: BlockingMethods[Typed[Any, T]],
        n: int,
        *,
        out: Any = None,
        timeout: float | None = None,
    ) -> T: ...
    @overload
    def dequeue_many(
        self, n: int, *, out: None = None, timeout: float | None = None
    ) -> list[ElementT]: ...
    def dequeue_many(self, n: int, *, out: Any = None, timeout: float | None = None) -> Any:
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout")
        n, arrays = self._core.check_dequeue_many(n, out)
        if n == 0:
            return self._core.empty_batch(arrays)
        batch = self._core.try_batch(n, arrays)
        if batch is not NOTHING:
            return batch
        take = Take(n, out=arrays)
        with SHORTENED:
            self._complete(take, "dequeue_many", timeout)
        return self._core.finish_batch(take)

    @overload
    def dequeue_up_to(
        self: BlockingMethods[Typed[Any, T]],
        n: int,
        max_wait: float | None = None,
        *,
        timeout: float | None = None,
    ) -> T: ...
    @overload
    def dequeue_up_to(
        self, n: int, max_wait: float | None = None, *, timeout: float | None = None
    ) -> list[ElementT]: ...
    def dequeue_up_to(
        self, n: int, max_wait: float | None = None, *, timeout: float | None = None
    ) -> Any:
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
        with SHORTENED:
            self._complete(take, "dequeue_up_to", timeout, max_wait or None)
        return self._core.finish_batch(take)

    def wait_closed(self, *, timeout: float | None = None) -> None:
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout")
        if self._machine.state is not QueueState.CLOSED:
            with SHORTENED:
                self._complete_wait(UntilClosed(), "wait_closed", timeout)

    def join(self, *, timeout: float | None = None) -> None:
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout")
        with SHORTENED:
            self._complete_wait(UntilDone(), "join", timeout)

    def __iter__(self) -> Self:
        """Iterate over the elements, taking each out, until the queue is closed and empty.

        If a failure has closed the queue, the iteration raises `OutOfRangeError` at its end, with
        the failure as the cause.
        """
        return self

    @overload
    def __next__(self: BlockingMethods[Typed[T, Any]]) -> T: ...
    @overload
    def __next__(self) -> ElementT: ...
    def __next__(self) -> Any:
        try:
            return self.dequeue()
        except OutOfRangeError as end:
            if end.__cause__ is not None:  # a failure is not an end
                shorten_again(end)
                raise
            raise StopIteration from None
        except BaseException as error:
            shorten_again(error)
            raise

    @overload
    def batches(
        self: BlockingMethods[Typed[Any, T]],
        n: int,
        *,
        drop_remainder: bool = False,
        max_wait: float | None = None,
    ) -> Batches[T]: ...
    @overload
    def batches(
        self, n: int, *, drop_remainder: bool = False, max_wait: float | None = None
    ) -> Batches[list[ElementT]]: ...
    def batches(
        self, n: int, *, drop_remainder: bool = False, max_wait: float | None = None
    ) -> Batches[Any]:
        n, max_wait = self._core.check_batches(n, drop_remainder, max_wait)
        return Batches(self, n, drop_remainder, max_wait)

    def _complete_wait(
        self, attempt: UntilClosed | UntilDone, method: str, timeout: float | None
    ) -> None:
        """Do the same as `_complete` for an attempt that only waits."""
        try:
            self._complete(attempt, method, timeout)
        finally:
            self._core.forget_wait(attempt)

    def _complete(
        self,
        attempt: Attempt,
        method: str,
        timeout: float | None,
        max_wait: float | None = None,
    ) -> None:
        """Begin an attempt, wait until it ends, and commit it; withdraw it on an exception."""
        if in_event_loop():
            if not self._try_nowait(attempt):
                if timeout == 0:
                    raise self._timeout_error(attempt, method, timeout)
                raise RuntimeError(
                    f"{method} would have to wait, and this thread's event loop is running:"
                    f" use `await queue.aio.{method}(...)` here"
                )
            return
        meter = None
        began = attempt.began = perf_counter()
        waker = ThreadWaker()
        scopes = current_scopes()
        blocked_wakers = self._core.blocked_wakers
        try:
            blocked_wakers[waker] = None  # first: `wake_all` must reach it after an interruption
            if self._core.has_leases and type(attempt) is Take:
                self._core.record_owner(attempt, current_thread())  # the machine asks whose it is
            wakers = self._machine.begin(attempt, waker)
            if wakers:
                deliver(wakers)
            if attempt.waits:
                self._core.record_owner(attempt, current_thread())
                if self._core.wakers:
                    self._core.drop_dead_loops()
                    if timeout != 0 and attempt.is_pending and self._core.would_deadlock(attempt):
                        raise self._deadlock_error(method)
                limit = timeout
                if scopes:
                    limit = seconds_left(scopes, timeout)
                    watch(scopes, attempt, began)
                meter = current_meter.get()
                if meter is not None:
                    meter.wait_started(attempt, self.name, began)
                # The loop is a function of its own so that Ctrl-C can end it:
                # `aioqueue.system.locks`.
                if not self._wait(attempt, waker, began, limit, max_wait):
                    raise self._timeout_error(
                        attempt, method, timeout if limit == timeout else None
                    )
                if attempt.state is WITHDRAWN:
                    raise self._cancelled_error(attempt, method)
                if attempt.borrower is not None:
                    self._machine.count_wait(attempt, perf_counter() - began)
                else:
                    wakers = self._machine.commit(attempt, perf_counter() - began)
                    if wakers:
                        deliver(wakers)
        except BaseException as error:
            # Ask the attempt, which was decided under the lock, whether it was withdrawn. The
            # exception cannot tell: it may come from a signal handler.
            if not attempt.is_withdrawn:
                apply_deferred(self._machine.withdraw, attempt, perf_counter() - began)
                self._core.wake_all()
                add_rows_note(attempt, error)
            raise
        finally:
            blocked_wakers.pop(waker, None)
            if meter is not None:
                meter.wait_ended(perf_counter())
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
            False if the limit came first; then the attempt is withdrawn.
        """
        while attempt.state is PENDING:
            if limit is None and max_wait is None:
                waker.wait(None)
                continue
            limits = [seconds for seconds in (limit, max_wait) if seconds is not None]
            if waker.wait(min(limits) - (perf_counter() - began)):
                continue
            waited = perf_counter() - began
            # The lock of the machine decides whether the limit or a grant came first. If it was the
            # grant, the attempt is not pending any more, and the loop ends.
            if limit is not None and waited >= limit:
                deliver(self._machine.withdraw(attempt, waited, if_pending=True))
                if attempt.is_withdrawn:
                    return False
            elif max_wait is not None and waited >= max_wait:
                max_wait = None  # from now on the first row ends the wait, however late it comes
                assert isinstance(attempt, Take)
                deliver(self._machine.expire(attempt))
        return True

    def _deadlock_error(self, method: str) -> RuntimeError:
        return RuntimeError(
            f"{method} on {self._core.label} would have to wait for tasks of the event"
            " loop that runs this cell, and they cannot run before the cell ends: use"
            f" `await queue.aio.{method}(...)` here, or run the tasks on threads"
        )

    def _cancelled_error(self, attempt: Attempt, method: str) -> CancelledError:
        done = attempt.done if isinstance(attempt, PutMany) else 0
        return CancelledError(
            f"{method} on {self._core.label} was {cancelled_by(current_scopes())}"
            + (f"; {done} of its rows are in" if done else ""),
            enqueued=done,
        )

    def _timeout_error(
        self, attempt: Attempt, method: str, timeout: float | None
    ) -> DeadlineExceededError:
        """Make the error of an expired timeout; ``None`` stands for that of a `CancelScope`."""
        done = attempt.done if isinstance(attempt, PutMany) else 0
        limit = (
            "reached the deadline of its CancelScope"
            if timeout is None
            else f"waited its timeout of {timeout:.4g} s"
        )
        return DeadlineExceededError(
            f"{method} on {self._core.label} has {limit}"
            + (f"; {done} of its rows are in" if done else ""),
            enqueued=done,
        )


@public("aioqueue.sync")
class Batches(Generic[BatchT]):
    """An iterator over batches; `batches` returns it."""

    __slots__ = ("_drop_remainder", "_max_wait", "_n", "_process", "_queue")

    def __init__(
        self,
        queue: BlockingMethods[Any],
        n: int,
        drop_remainder: bool,
        max_wait: float | None = None,
    ) -> None:
        self._queue = queue
        self._n = n
        self._drop_remainder = drop_remainder
        self._max_wait = max_wait
        self._process = NOT_BEGUN

    def __repr__(self) -> str:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return f"<{kind} of {self._n} from '{self._queue.name}'>"

    def _leases(self) -> QueueLeases:
        return QueueLeases(
            self._queue, self._n, up_to=not self._drop_remainder, max_wait=self._max_wait
        )

    def _on_both_faces(self) -> tuple[Any, Any]:
        """Return the same batches for threads, and for tasks."""
        queue: Any = self._queue
        blocking, aio = (
            face.batches(self._n, drop_remainder=self._drop_remainder, max_wait=self._max_wait)
            for face in (queue.sync, queue.aio)
        )
        return blocking, aio

    def __contains__(self, element: object) -> NoReturn:
        """Refuse ``in``, which would use up the iterator.

        Raises:
            TypeError: always.
        """
        refuse_search(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> BatchT:
        batch: BatchT
        if self._process != PROCESS.number:
            self._process = begun_here(self._process, self)
        try:
            if self._drop_remainder:
                batch = self._queue.dequeue_many(self._n)
            else:
                batch = self._queue.dequeue_up_to(self._n, self._max_wait)
        except OutOfRangeError as end:
            if end.__cause__ is not None:  # a failure is not an end
                shorten_again(end)
                raise
            raise StopIteration from None
        except BaseException as error:
            shorten_again(error)
            raise
        return batch
