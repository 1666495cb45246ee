"""The async face of a queue: you await its operations, in asyncio (on any event loop) and in trio.

Each method first tries the fast path. Only if that fails does it begin an attempt and wait for it
(`_complete`). An operation that need not wait does not suspend its task, so it costs no more than
the work itself. From time to time one suspends all the same: otherwise a consumer of a queue that
never runs dry would block the other tasks and could not be cancelled. In trio every operation is a
checkpoint.

**In turn.** A call that suspends so does it after its move, since calls are in line in the order of
their first steps. Methods named ``..._in_turn`` do that; the others only count (`_budget`). Until
the task runs on, a dequeue keeps its rows as a grant: if the task is cancelled they go back, and
meanwhile no other caller learns that a closed queue is empty. An enqueue cannot be undone, so the
task is cancelled at its next await instead (`AsyncWaker.yield_shielded`).
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import Any, Final, Generic, NoReturn, Self, TypeVar, overload

from aioqueue.base.arguments import checked_seconds
from aioqueue.base.display_text import on_one_line
from aioqueue.base.hints import refuse_search
from aioqueue.base.public_names import public
from aioqueue.base.tracebacks import shorten
from aioqueue.core.attempts import (
    FAILED,
    GRANTED,
    WITHDRAWN,
    Attempt,
    Put,
    PutMany,
    QueueState,
    Take,
    UntilClosed,
    UntilDone,
)
from aioqueue.core.elements.spec import BatchT, Columns, ElementT, Typed
from aioqueue.core.fast_path import NOTHING
from aioqueue.core.meters import current_meter
from aioqueue.errors import CancelledError, OutOfRangeError
from aioqueue.queues.leases import QueueLeases
from aioqueue.queues.queue_core import QueueCore, QueueFace, add_rows_note
from aioqueue.system.forks import NOT_BEGUN, PROCESS, begun_here
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import (
    CancelScope,
    active_stops,
    is_stopped,
    stop_scopes,
    unwatch,
    watch,
)
from aioqueue.worlds.waker import AsyncWaker, apply_deferred, current_worker, deliver

T = TypeVar("T")

_MAX_SKIPPED: Final = 255
"""The most waits in a row that skip standing by. Their number doubles after every failed retry: the
other side is slow, or in a thread."""


_WAITS_PER_PAUSE: Final = 32
"""How many waits in a row count as a pause. A wait lets other tasks run, too. But a scope of anyio
cancels no task whose wait has just ended; where tasks take turns, it can find each wait so. A pause
waits for nothing, so the scope reaches the task there: then even a call that has waited pauses."""


class AsyncMethods(QueueFace[ElementT]):
    """The methods of the async face."""

    _world = "aio"

    def _bind(self, core: QueueCore) -> None:
        super()._bind(core)
        self._waiting_enqueues, self._waiting_dequeues = core.machine.lines
        # How many elements the face may move between two pauses, and how many of those remain.
        self._allowance = 0
        self._budget = 0
        self._waker: AsyncWaker | None = None  # of the latest caller that needed one
        self._standbys_to_skip = 0  # how many of the next waits skip standing by
        self._failed_retries = 0  # how many waits skipped it after the latest failed retry
        self._waits_until_pause = _WAITS_PER_PAUSE  # how many of the next waits count as a pause

    @property
    def aio(self) -> Self:
        """The async face of the same queue, for coroutines.

        That is this face itself. Code that is given either face can ask for the one it needs.
        """
        return self

    @overload
    async def enqueue(self: AsyncMethods[Typed[Any, Any]], element: Any) -> None: ...
    @overload
    async def enqueue(self, element: ElementT) -> None: ...
    async def enqueue(self, element: Any) -> None:
        self._budget -= 1
        if self._budget < 0:
            await self._enqueue_with_pause(element)
            return
        # Local names, as in `aioqueue.core.fast_path`.
        to_row, try_enqueue = self._to_row, self._try_enqueue
        row = element if to_row is None else to_row(element)
        if not try_enqueue(row):
            put = Put(row)
            # Asked without the lock: a dequeue that begins to wait now has come after this call.
            if not (self._waiting_dequeues and self._serve(put)):
                await self._complete(put, None, True)

    @overload
    async def enqueue_many(
        self: AsyncMethods[Typed[Any, Any]], batch: Any, *, copy: bool = True
    ) -> None: ...
    @overload
    async def enqueue_many(self, batch: Iterable[ElementT], *, copy: bool = True) -> None: ...
    async def enqueue_many(self, batch: Any, *, copy: bool = True) -> None:
        columns, n = self._core.spec.columns(batch)
        self._budget -= n
        if self._budget < 0 or n == 0:
            await self._enqueue_many_with_pause(columns, n, copy)
            return
        columns = self._core.prepare_columns(columns, n, copy=copy)
        if not self._machine.try_enqueue_many(columns, n):
            await self._complete(PutMany(columns, n))

    @overload
    async def dequeue(self: AsyncMethods[Typed[T, Any]]) -> T: ...
    @overload
    async def dequeue(self) -> ElementT: ...
    async def dequeue(self) -> Any:
        self._budget -= 1
        if self._budget < 0:
            return await self._dequeue_with_pause()
        try_dequeue = self._try_dequeue
        row = try_dequeue()
        if row is NOTHING:
            take = Take(1, True)
            await self._complete(take, None, True)
            row = take.held.single if self._row_of is None else self._row_of(take)
        from_row = self._from_row  # after the wait: sharing the queue replaces it
        return row if from_row is None else from_row(row)

    @overload
    async def dequeue_many(self: AsyncMethods[Typed[Any, T]], n: int, *, out: Any = None) -> T: ...
    @overload
    async def dequeue_many(self, n: int, *, out: None = None) -> list[ElementT]: ...
    async def dequeue_many(self, n: int, *, out: Any = None) -> Any:
        n, arrays = self._core.check_dequeue_many(n, out)
        if n == 0:
            await self._yield_if_due(0)
            return self._core.empty_batch(arrays)
        self._budget -= n
        waker = self._spend_budget(n) if self._budget < 0 else None
        if waker is not None:
            return await self._batch_with_pause(Take(n, out=arrays), waker)
        batch = self._core.try_batch(n, arrays)
        if batch is not NOTHING:
            return batch
        take = Take(n, out=arrays)
        await self._complete(take)
        return self._core.finish_batch(take)

    @overload
    async def dequeue_up_to(
        self: AsyncMethods[Typed[Any, T]], n: int, max_wait: float | None = None
    ) -> T: ...
    @overload
    async def dequeue_up_to(self, n: int, max_wait: float | None = None) -> list[ElementT]: ...
    async def dequeue_up_to(self, n: int, max_wait: float | None = None) -> Any:
        n = self._core.check_batch_size(n)
        if max_wait is not None:
            max_wait = checked_seconds(max_wait, "max_wait")
        if n == 0:
            await self._yield_if_due(0)
            return self._core.empty_batch()
        self._budget -= n
        waker = self._spend_budget(n) if self._budget < 0 else None
        if waker is not None:
            take = Take(n, up_to=True, expired=max_wait == 0)
            return await self._batch_with_pause(take, waker, max_wait or None)
        batch = self._core.try_batch(n)
        if batch is not NOTHING:
            return batch
        take = Take(n, up_to=True, expired=max_wait == 0)
        await self._complete(take, max_wait or None)
        return self._core.finish_batch(take)

    async def wait_closed(self) -> None:
        if self._machine.state is QueueState.CLOSED:
            await self._yield_if_due(0)
        else:
            await self._complete_wait(UntilClosed())

    async def join(self) -> None:
        if self._try_nowait(UntilDone()):
            await self._yield_if_due(0)
        else:
            await self._complete_wait(UntilDone())

    def __aiter__(self) -> Self:
        """Iterate over the elements, taking each out, until the queue is closed and empty.

        If a failure has closed the queue, the iteration raises `OutOfRangeError` at its end, with
        the failure as the cause.
        """
        return self

    @overload
    async def __anext__(self: AsyncMethods[Typed[T, Any]]) -> T: ...
    @overload
    async def __anext__(self) -> ElementT: ...
    async def __anext__(self) -> Any:
        try:
            return await self.dequeue()
        except OutOfRangeError as end:
            if end.__cause__ is not None:  # a failure is not an end
                shorten(end)
                raise
            raise StopAsyncIteration from None

    @overload
    def batches(
        self: AsyncMethods[Typed[Any, T]],
        n: int,
        *,
        drop_remainder: bool = False,
        max_wait: float | None = None,
    ) -> AsyncBatches[T]: ...
    @overload
    def batches(
        self, n: int, *, drop_remainder: bool = False, max_wait: float | None = None
    ) -> AsyncBatches[list[ElementT]]: ...
    def batches(
        self, n: int, *, drop_remainder: bool = False, max_wait: float | None = None
    ) -> AsyncBatches[Any]:
        n, max_wait = self._core.check_batches(n, drop_remainder, max_wait)
        return AsyncBatches(self, n, drop_remainder, max_wait)

    # Calls that have used up what the face may move without asking.

    def _spend_budget(self, n: int) -> AsyncWaker | None:
        """Count a call; return the waker if the call must let other tasks run after its move.

        Args:
            n: how many elements it moves. A call counts as one at least: a loop may make calls that
                move none.
        """
        waker = self._waker
        if waker is None or not waker.is_current():
            waker = self._waker = current_waker()
            self._core.remember(waker)  # so that what a task holds goes back if its loop is closed
        is_due = waker.spend(self._allowance + (n or 1))
        # None while a task lets others run: so the calls behind it do the same, and return in their
        # order.
        self._budget = self._allowance = 0 if is_due else waker.allowance()
        return waker if is_due else None

    def _renew_budget(self, waker: AsyncWaker) -> None:
        self._budget = self._allowance = waker.renew_budget()
        self._waits_until_pause = _WAITS_PER_PAUSE

    async def _yield_if_due(self, n: int) -> None:
        """Let other tasks run if it is time, in a call that changes nothing; in trio, always."""
        waker = self._spend_budget(n)
        if waker is not None:
            try:
                await waker.pause(0)
            finally:
                self._renew_budget(waker)

    async def _enqueue_with_pause(self, element: Any) -> None:
        waker = self._spend_budget(1)
        put: Put | None = None
        try:
            if waker is not None:
                # A cancellation that was deferred to this await comes before anything has moved.
                first = waker.await_first()
                if first is not None:
                    await first
            row = element if self._to_row is None else self._to_row(element)
            if not self._try_enqueue(row):
                put = Put(row)
                # Its wait has let other tasks run, which is what the pause is for.
                if await self._complete(put, None, True) and self._waits_until_pause:
                    return
            if waker is not None:
                await waker.yield_shielded()
        except Exception:
            # So that a loop cannot block the others by calls that fail.
            if waker is not None and (put is None or not put.waits):
                await waker.yield_shielded()
            raise
        finally:
            if waker is not None:
                self._renew_budget(waker)

    async def _enqueue_many_with_pause(self, columns: Columns, n: int, copy: bool) -> None:
        if n == 0:
            await self._yield_if_due(0)
            return
        waker = self._spend_budget(n)
        put: PutMany | None = None
        try:
            if waker is not None:
                first = waker.await_first()
                if first is not None:
                    await first
            columns = self._core.prepare_columns(columns, n, copy=copy)
            if not self._machine.try_enqueue_many(columns, n):
                put = PutMany(columns, n)
                if await self._complete(put) and self._waits_until_pause:
                    return
            if waker is not None:
                await waker.yield_shielded()
        except Exception:
            if waker is not None and (put is None or not put.waits):
                await waker.yield_shielded()
            raise
        finally:
            if waker is not None:
                self._renew_budget(waker)

    async def _dequeue_with_pause(self) -> Any:
        waker = self._spend_budget(1)
        row = NOTHING if waker is not None else self._try_dequeue()
        if row is NOTHING:
            take = Take(1, True)
            if waker is None:
                await self._complete(take, None, True)
            else:
                await self._take_with_pause(take, waker, None, True)
            row = take.held.single if self._row_of is None else self._row_of(take)
        from_row = self._from_row
        return row if from_row is None else from_row(row)

    async def _batch_with_pause(
        self, take: Take, waker: AsyncWaker, max_wait: float | None = None
    ) -> Any:
        await self._take_with_pause(take, waker, max_wait)
        return self._core.finish_batch(take)

    async def _take_with_pause(
        self,
        take: Take,
        waker: AsyncWaker,
        max_wait: float | None = None,
        may_stand_by: bool = False,
    ) -> None:
        """Make a dequeue, let other tasks run unless it had to wait, and commit it.

        Args:
            take: a new attempt.
            waker: the waker of the running task.
            max_wait: as for `_complete`.
            may_stand_by: as for `_complete`.
        """
        machine = self._machine
        take.leased = True  # so that it is granted first, whether or not it has to wait
        has_suspended = False
        first = waker.await_first()
        if first is not None:
            await first
        try:
            if not machine.try_grant(take, waker):
                try:
                    has_suspended = await self._complete(take, max_wait, may_stand_by)
                except Exception:
                    if not take.waits:
                        await waker.yield_shielded()
                    raise
            # Granted, and not committed: if the task is cancelled in this pause, its rows go back,
            # and until then nobody learns that a closed queue is empty.
            if not has_suspended or not self._waits_until_pause:
                await waker.yield_cancellable()
            if take.state is GRANTED:
                wakers = machine.commit(take)
                if wakers:
                    deliver(wakers)
        except BaseException:
            if take.state is not WITHDRAWN and take.state is not FAILED:
                apply_deferred(machine.withdraw, take)
            raise
        finally:
            self._renew_budget(waker)

    def _serve(self, put: Put) -> bool:
        """Put a row in for which others wait, if that need not wait; return whether it is in.

        A call that only wakes others does without what a wait needs.
        """
        machine = self._machine
        try:
            wakers = machine.serve(put)
            if wakers is None:
                return False
            if wakers:
                deliver(wakers)
        except BaseException:
            apply_deferred(machine.withdraw, put)  # and let others proceed
            self._core.wake_all()  # the exception may have come between a grant and its wake
            raise
        return True

    async def _complete_wait(self, attempt: UntilClosed | UntilDone) -> None:
        """Do the same as `_complete` for an attempt that only waits."""
        try:
            await self._complete(attempt)
        finally:
            self._core.forget_wait(attempt)

    async def _complete(
        self, attempt: Attempt, max_wait: float | None = None, may_stand_by: bool = False
    ) -> bool:
        """Begin an attempt, wait until it ends, and commit it; withdraw it on an exception.

        Args:
            attempt: a new attempt.
            max_wait: seconds until it takes what is there; ``None`` for no limit.
            may_stand_by: whether to try again, after a round of the event loop, before it begins.

        Returns:
            Whether the task was suspended. A lease that did not wait is not committed.
        """
        machine, core = self._machine, self._core
        waker = self._waker
        if waker is None or not waker.is_current():
            waker = self._waker = current_waker()
            core.remember(waker)
        was_in_standby = False
        cancel_timer = None
        meter = None
        scopes: tuple[CancelScope, ...] = ()
        began = attempt.began = perf_counter()
        is_moving = True
        try:
            # Inside the `try`, since Ctrl-C may strike at once outside of `asyncio.run`: an attempt
            # without an owner would stay in line for ever and block the callers behind it.
            runner = waker.runner()
            next_round = None
            if may_stand_by:
                if self._standbys_to_skip > 0:  # two loops may count at the same time
                    self._standbys_to_skip -= 1
                # Where others wait, nobody stands by: asked here, that saves taking the lock. After
                # a stop, a call that would have to wait begins, and is ended by `watch`.
                elif not (
                    self._waiting_enqueues
                    or self._waiting_dequeues
                    or (active_stops and is_stopped(runner))
                ):
                    next_round = waker.next_round
            if next_round is not None and machine.stand_by(attempt, waker):
                was_in_standby = True
                core.record_owner(attempt, runner)
                if self._waits_until_pause:
                    self._waits_until_pause -= 1
                    self._budget = self._allowance = waker.allowance()
                meter = current_meter.get()
                if meter is not None:
                    meter.wait_started(attempt, core.name, began)
                # Between these two marks the task only sleeps. What is raised there is no handler's
                # exception in the middle of a move, so no wake can be lost.
                is_moving = False
                await next_round
                is_moving = True
                ended = perf_counter()
                # After a stop the attempt has to begin, so that the stop can withdraw it.
                is_over = active_stops and is_stopped(runner)
                if not is_over and machine.retry(attempt, ended - began):
                    self._failed_retries = 0
                    if meter is not None:
                        meter.wait_ended(ended)
                    return True
                self._failed_retries = self._standbys_to_skip = min(
                    2 * self._failed_retries + 1, _MAX_SKIPPED
                )
            if not attempt.waits:
                if core.has_leases and type(attempt) is Take:
                    core.record_owner(attempt, runner)  # the machine asks whose it is
                wakers = machine.begin(attempt, waker)
                if wakers:
                    deliver(wakers)
            if attempt.waits:
                core.record_owner(attempt, runner)
                scopes = stop_scopes(runner) if active_stops else ()
                if scopes:
                    watch(scopes, attempt, began)
                if self._waits_until_pause:
                    self._waits_until_pause -= 1
                    self._budget = self._allowance = waker.allowance()
                if len(core.wakers) > 1:  # a single one is that of our own loop, which runs
                    core.drop_dead_loops()
                if max_wait is not None:
                    cancel_timer = waker.call_later(
                        max_wait, lambda: deliver(machine.expire(attempt))
                    )
                if meter is None:
                    meter = current_meter.get()
                    if meter is not None:
                        meter.wait_started(attempt, core.name, began)
                is_moving = False
                # A task that stood by and was granted meanwhile was scheduled before all that were
                # granted after it. It must not let them go first by waiting for another round.
                if not (was_in_standby and waker.has_woken(attempt)):
                    await waker.wait(attempt)
                is_moving = True
                if attempt.state is WITHDRAWN:
                    raise self._stopped_error(attempt)
                ended = perf_counter()
                # A lease is committed by its loop; in a call that pauses, by `_take_with_pause`.
                if attempt.borrower is not None or (attempt.leased and not self._waits_until_pause):
                    machine.count_wait(attempt, ended - began)  # the lease is committed later
                else:
                    wakers = machine.commit(attempt, ended - began)
                    if wakers:
                        deliver(wakers)
                if meter is not None:
                    meter.wait_ended(ended)
            elif attempt.state is WITHDRAWN:  # by a stop, while it stood by
                raise self._stopped_error(attempt)
            elif meter is not None:
                meter.wait_ended(perf_counter())
        except BaseException as error:
            ended = perf_counter()
            # The exception does not say what has become of the attempt: a grant may have come just
            # before the cancellation. The machine knows, and undoes what can be undone.
            if not attempt.is_withdrawn:
                apply_deferred(machine.withdraw, attempt, ended - began)
            if meter is not None:
                meter.wait_ended(ended)
            if is_moving:  # the exception may have come between a grant and its wake
                core.wake_all()
            add_rows_note(attempt, error)
            raise
        finally:
            if cancel_timer is not None:
                cancel_timer()
            if scopes:
                unwatch(scopes, attempt)
        if attempt.error is not None:
            if (worker := current_worker.get()) is not None:
                worker.note_call_end(attempt.error, core)
            attempt.raise_error()
        return was_in_standby or attempt.waits

    def _stopped_error(self, attempt: Attempt) -> CancelledError:
        done = attempt.done if isinstance(attempt, PutMany) else 0
        return CancelledError(
            f"{self._core.label}: the stop of the coordinator has ended this"
            " call" + (f"; {done} of its rows are in" if done else ""),
            enqueued=done,
        )


@public("aioqueue")
class AsyncBatches(Generic[BatchT]):
    """An async iterator over batches; `batches` returns it."""

    __slots__ = ("_drop_remainder", "_max_wait", "_n", "_process", "_queue")

    def __init__(
        self, queue: AsyncMethods[Any], n: int, drop_remainder: bool, max_wait: float | None = None
    ) -> None:
        self._queue = queue
        self._n = n
        self._drop_remainder = drop_remainder
        self._max_wait = max_wait
        self._process = NOT_BEGUN

    def __repr__(self) -> str:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return on_one_line(f"<{kind} of {self._n} from '{self._queue.name}'>")

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

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> BatchT:
        batch: BatchT
        if self._process != PROCESS.number:
            self._process = begun_here(self._process, self)
        try:
            if self._drop_remainder:
                batch = await self._queue.dequeue_many(self._n)
            else:
                batch = await self._queue.dequeue_up_to(self._n, self._max_wait)
        except OutOfRangeError as end:
            if end.__cause__ is not None:  # a failure is not an end
                shorten(end)
                raise
            raise StopAsyncIteration from None
        return batch
