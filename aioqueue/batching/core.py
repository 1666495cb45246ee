"""What the two faces of a batcher share: its requests, what becomes of each, and its end.

A call is a `Request`: an element of the queue, and an attempt that its caller waits for with the
waker of its world, as for a queue. So tasks of several event loops and threads can call one
batcher, and the answers of a batch cost one wake per event loop, however many callers it has.

Whoever takes a request out of the queue owes it an answer. There are three who do: a worker that
has a batch (`begin`, `finish`), a worker that ends with one in its hands (`worker_ended`), and
whoever stops the batcher before it has come to all (`_refuse_the_rest`). The lock is held for
microseconds, never while the function runs, and wakes are delivered after it is released.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from types import FrameType
from typing import Any, Final, Literal, get_args

from aioqueue.arguments import (
    checked_count,
    checked_seconds,
    checked_watchdog,
    function_name,
    is_coroutine_function,
)
from aioqueue.attempts import DONE, PENDING, WITHDRAWN, Attempt, Waker
from aioqueue.batching.batcher_statistics import BatcherCounts, BatcherState, BatcherStatistics
from aioqueue.coordination.classify import running_task
from aioqueue.coordination.workers import Worker
from aioqueue.errors import (
    InvalidArgumentError,
    OutOfRangeError,
    QueueClosedError,
    QueueEmpty,
    QueueFull,
    WorkerDiedError,
    counted,
    describe_exception,
    own,
)
from aioqueue.locks import guarded, is_held_here
from aioqueue.processes.worker import check_not_importing, pickled
from aioqueue.queues import QueueFace
from aioqueue.queues.faces import AsyncQueue, BlockingQueue
from aioqueue.queues.fifo import FIFOConstructor, FIFOQueue
from aioqueue.queues.priority import PriorityConstructor
from aioqueue.storage.sized import size_of
from aioqueue.telemetry.explanation import Culprit, ExplainedWait, Explanation, seconds_told
from aioqueue.telemetry.stacks import place_of, stack_of
from aioqueue.telemetry.wait_graph import explain, note_waits
from aioqueue.telemetry.watchdog import Watchdog
from aioqueue.waiting import Gate, Owner, apply_deferred

__all__ = ("BatcherCore", "OnFull", "Request", "Where")

Where = Literal["auto", "task", "thread", "process"]
OnFull = Literal["wait", "refuse"]

_CAPACITY: Final = 1024
_numbers = itertools.count(1)


class _Call:
    """One call of the function, and whether it is over."""

    __slots__ = ("core", "is_over")

    def __init__(self, core: BatcherCore) -> None:
        self.core = core
        self.is_over = False


_calls: Final[ContextVar[tuple[_Call, ...]]] = ContextVar(
    "aioqueue.batching.function_calls", default=()
)
"""Those that this code is a part of; in tasks that a function has started as well."""


class Request(Attempt):
    """One call: its value, and later its result or, as ``error``, its failure."""

    __slots__ = ("is_accepted", "is_in_flight", "result", "value")

    def __init__(self, value: Any, host: BatcherCore, waker: Waker) -> None:
        super().__init__()
        self.value = value
        self.host = host
        self.waker = waker
        self.is_accepted = False  # whether it is in the queue, or was
        self.is_in_flight = False
        self.result: Any = None
        self.began = perf_counter()

    @property
    def nbytes(self) -> int:
        """What it weighs in a queue with ``max_bytes``: as much as its value."""
        return size_of((self.value,))

    def outcome(self) -> Any:
        """The result, or the failure raised, which is this caller's own."""
        if self.error is not None:
            self.raise_error()
        return self.result


class BatcherCore:
    """The batcher itself, whichever face it is seen by. The arguments are those of the faces."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        max_batch: int,
        max_wait: float,
        queue: AsyncQueue | BlockingQueue | None,
        workers: int,
        where: Where,
        on_full: OnFull,
        name: str | None,
        watchdog: float | None = None,
    ) -> None:
        self.function = _checked_function(function)
        self.watchdog = checked_watchdog(watchdog)
        self.max_batch = checked_count(max_batch, "max_batch", least=1)
        self.max_wait = checked_seconds(max_wait, "max_wait")
        self.workers = checked_count(workers, "workers", least=1)
        self.where = _checked_where(where, function)
        self.payload = pickled(function, function) if self.where == "process" else None
        if on_full not in ("wait", "refuse"):
            raise InvalidArgumentError(f"on_full: got {on_full!r}; expected 'wait' or 'refuse'")
        if name is not None and not isinstance(name, str):
            raise InvalidArgumentError(f"name: got {name!r}; expected a string or None")
        self.refuses = on_full == "refuse"
        self.name = name or f"{function_name(function)}-{next(_numbers)}"
        self._has_own_queue = queue is None
        if queue is None:
            queue = FIFOQueue(_CAPACITY, name=self.name)
        self.has_priorities = _checked_queue(queue, self.max_batch)
        # Both faces are kept, since each face of a queue is dropped when nobody holds it.
        self.aio, self.sync = queue.aio, queue.sync
        self.state = BatcherState.NEW
        self.failure: WorkerDiedError | None = None
        self.ended = Gate()
        self.started: list[Worker] = []  # by one thread; for reports
        self._lock = threading.RLock()  # guards all below, and the state of every request
        self._left = 0
        self._is_stopped = False
        self._on_stop: list[Callable[[], object]] = []
        self._on_giving_up: list[Callable[[], object]] = []
        # By the identities of the workers that call the function: these, their batches, since when.
        self._in_work: dict[int, tuple[Any, list[Request], float]] = {}
        note_waits(self)
        self._counts = BatcherCounts()

    # For callers.

    def renew(self) -> None:
        """In a fork, before the block was entered: it can be entered there."""
        self._lock = threading.RLock()
        if self._has_own_queue:
            queue = FIFOQueue(_CAPACITY, name=self.name)
            self.aio, self.sync = queue.aio, queue.sync

    def element(self, request: Request, priority: int | None) -> Any:
        """What goes into the queue for a request.

        Raises:
            InvalidArgumentError: a priority was given where there are none.
            RuntimeError: the batcher's block has not been entered; or it is its own function that
                asks.
            QueueClosedError: it has been left.
            WorkerDiedError: the batcher has failed.
        """
        if any(call.core is self and not call.is_over for call in _calls.get()):
            raise RuntimeError(
                f"{self} was called by its own function, which would wait for a worker while one"
                " waits for it: call the function itself there, or another batcher"
            )
        if self.state is not BatcherState.RUNNING:
            raise self.refusal()
        if self.has_priorities:
            return (0 if priority is None else priority, request)
        if priority is not None:
            raise InvalidArgumentError(
                f"priority: got {priority!r}, but {self} has a {self.aio._core.kind}; make it with"
                " `queue=PriorityQueue(capacity)`"
            )
        return request

    def refusal(self) -> Exception:
        """What a caller is told that comes when nothing is accepted."""
        if self.state is BatcherState.NEW:
            return RuntimeError(
                f"{self} does not run yet: call it within its block,"
                " `async with aioqueue.Batcher(...) as batcher` (`with` for aioqueue.sync)"
            )
        if self.failure is not None:
            return _again(self.failure)
        is_left = self.state is not BatcherState.RUNNING
        why = "its block has been left" if is_left else "somebody has closed its queue"
        return QueueClosedError(f"{self} is closed: {why}", queue=self.aio.name)

    @guarded
    def full(self) -> QueueFull:
        """A caller was refused because there is no room; what it is told."""
        self._counts.refused += 1
        if self.aio.max_bytes is None:
            waiting = counted(self.aio.capacity or 0, "request")  # what has no bound is never full
        else:
            size = counted(self.aio.size(), "request")
            waiting = f"{size}, or {counted(self.aio.max_bytes, 'byte')} of them,"
        return QueueFull(f"{self} has {waiting} waiting already; try again later")

    def __str__(self) -> str:
        return f"Batcher '{self.name}'"

    def is_entered_here(self) -> bool:
        """Whether the calling thread holds the lock already."""
        return is_held_here(self._lock)

    def leave(self, request: Request) -> None:
        """The caller of a request goes, whatever has become of that; it occupies nothing more."""
        apply_deferred(self.withdraw, request)
        if request.state is WITHDRAWN:
            apply_deferred(self.aio._machine.drop, request)

    @guarded
    def withdraw(
        self, attempt: Attempt, waited: float = 0.0, *, if_pending: bool = False
    ) -> tuple[()]:
        """The caller of a request has gone: nobody waits for its answer."""
        assert isinstance(attempt, Request)
        if attempt.state is PENDING:
            attempt.state = WITHDRAWN
            self._counts.cancelled += attempt.is_accepted
        return ()

    # For workers.

    def requests_of(self, elements: Iterable[Any]) -> Iterator[Request]:
        """The requests in elements of the queue, without those whose callers have gone."""
        for element in elements:
            request = element[1] if self.has_priorities else element
            if request.state is PENDING:
                yield request

    @guarded
    def pending(self, batch: Iterable[Request]) -> list[Request]:
        """A batch without those whose callers have gone."""
        return [request for request in batch if request.state is PENDING]

    @guarded
    def begin(self, batch: Iterable[Request]) -> list[Request]:
        """The function is about to be called with a batch.

        Returns:
            The batch without those whose callers have gone meanwhile; perhaps nothing.
        """
        requests = self.pending(batch)
        if requests:
            now, counts = perf_counter(), self._counts
            counts.in_flight += len(requests)
            counts.batch_sizes[len(requests)] += 1
            for request in requests:
                request.is_in_flight = True
                counts.queue_seconds += now - request.began
            worker = _current()
            self._in_work[id(worker)] = (worker, requests, now)
        return requests

    @contextmanager
    def calling(self) -> Iterator[None]:
        """The function is called within this block."""
        call = _Call(self)
        token = _calls.set((*_calls.get(), call))
        try:
            yield
        finally:
            call.is_over = True
            _calls.reset(token)

    def finish(self, batch: list[Request], outcomes: list[Any], seconds: float) -> None:
        """The function has ended: give every caller its outcome.

        Args:
            batch: what `begin` has returned.
            outcomes: one per request; those that are exceptions are failures, each of which may be
                that of several callers, or one that the function raises again and again. So every
                caller gets one of its own, with the traceback that it had when it came out of the
                function.
            seconds: how long the function took.
        """
        times = Counter(id(one) for one in outcomes if isinstance(one, BaseException))
        owned = [
            own(one, is_shared=times[id(one)] > 1) if isinstance(one, BaseException) else one
            for one in outcomes
        ]
        apply_deferred(self._finish, batch, owned, seconds)

    @guarded
    def _finish(
        self, batch: list[Request], outcomes: list[Any], seconds: float
    ) -> Collection[Waker]:
        self._counts.function_seconds += seconds
        self._in_work.pop(id(_current()), None)
        return self._settle(batch, outcomes)

    def refuse(self, requests: list[Request]) -> None:
        """Tell callers whose requests come into no batch why."""
        if requests:
            apply_deferred(self._refuse, requests)

    @guarded
    def _refuse(self, requests: list[Request]) -> Collection[Waker]:
        return self._settle(requests, [self.stop_error() for _ in requests])

    def stop_error(self) -> Exception:
        """What a caller is told whose request has come into no batch."""
        if self.failure is not None:
            return _again(self.failure)
        return QueueClosedError(
            f"{self} was stopped before it came to this request", queue=self.aio.name
        )

    def _settle(self, requests: list[Request], outcomes: list[Any]) -> Collection[Waker]:
        """Give callers their outcomes; returns whom to wake. Called under the lock."""
        now, counts = perf_counter(), self._counts
        wakers: dict[Waker, None] = {}
        for request, outcome in zip(requests, outcomes, strict=True):
            counts.in_flight -= request.is_in_flight
            request.is_in_flight = False
            if request.state is not PENDING:
                continue  # its caller has gone
            if isinstance(outcome, BaseException):
                request.error = outcome
                counts.failed += 1
            else:
                request.result = outcome
                counts.answered += 1
            counts.took(now - request.began)
            request.state = DONE
            assert request.waker is not None
            request.waker.notify(request)
            wakers[request.waker] = None
        return wakers

    @guarded
    def process_died(self) -> None:
        """A worker process has died, not of us."""
        self._counts.workers_died += 1

    # Beginning and end.

    def enter(self) -> None:
        """The block is entered: see `_enter`."""
        self._enter()
        if self.watchdog is not None:
            Watchdog(self, self.watchdog, self.ended, lambda: None).start()

    @guarded
    def _enter(self) -> None:
        """The block is entered.

        Raises:
            RuntimeError: it was before, by whichever face; or this is a new process, which imports
                the main module and would have processes of its own.
        """
        if self.state is not BatcherState.NEW:
            raise RuntimeError(f"the block of {self} has been entered already; make a new one")
        if self.where == "process":
            check_not_importing()
        self.state = BatcherState.RUNNING
        self._left = self.workers

    def close(self) -> None:
        """Accept no more calls. Those that wait, for room too, are going to be answered."""
        self._note_closing()
        self.aio.close()

    @guarded
    def _note_closing(self) -> None:
        if self.state is BatcherState.RUNNING:
            self.state = BatcherState.CLOSING if self._left else BatcherState.CLOSED

    @property
    def is_stopped(self) -> bool:
        """Whether workers are to take no more requests, and begin no more batches."""
        return self._is_stopped

    def stop(self, failure: BaseException | None = None) -> None:
        """Refuse what is not in a batch yet, and end the workers.

        Args:
            failure: what has ended one of them; the others finish their batches. ``None``: they are
                ended at once, where that is possible.
        """
        for callback in self._note_stop(failure):
            callback()
        self.aio.close(cancel_pending_enqueues=True, cause=self.failure)
        self._refuse_the_rest()

    @guarded
    def _note_stop(self, failure: BaseException | None) -> list[Callable[[], object]]:
        self._is_stopped = True
        if failure is not None and self.failure is None:
            self.state = BatcherState.FAILED
            self.failure = WorkerDiedError(
                f"a worker of {self} has died: {describe_exception(failure)}",
                exitcode=failure.exitcode if isinstance(failure, WorkerDiedError) else 0,
            )
            self.failure.__cause__ = failure
        elif self.state is BatcherState.RUNNING:
            self.state = BatcherState.CLOSING
        if failure is not None:
            return []  # the other workers finish the batches that they have
        callbacks, self._on_stop = self._on_stop, []
        return callbacks

    def call_on_stop(self, callback: Callable[[], object]) -> None:
        """Call back at the stop, in any thread; now, if it has come."""
        if not self._is_kept(callback):
            callback()

    @guarded
    def _is_kept(self, callback: Callable[[], object]) -> bool:
        is_kept = not self._is_stopped or self.failure is not None
        if is_kept:
            self._on_stop.append(callback)
        return is_kept

    @guarded
    def call_on_giving_up(self, callback: Callable[[], object]) -> None:
        """Call back when the block is left with workers that still run."""
        self._on_giving_up.append(callback)

    def give_up(self) -> None:
        """The block is left though workers still run: end them, where that is possible."""
        for callback in list(self._on_giving_up):
            callback()

    def _refuse_the_rest(self) -> None:
        while True:
            try:
                element = self.aio.dequeue_nowait()
            except (QueueEmpty, OutOfRangeError):
                return
            self.refuse(list(self.requests_of([element])))

    def worker_ended(
        self, name: str, error: BaseException | None = None, batch: Iterable[Request] = ()
    ) -> None:
        """A worker has ended.

        Args:
            name: of the worker.
            error: what has ended it; ``None`` and whatever comes after a stop are no failure.
            batch: what it had taken out of the queue, and has not answered.
        """
        if error is not None and not self._is_stopped:
            self.stop(error)
        self._in_work.pop(id(_current()), None)
        self.refuse(list(batch))
        if self._took_the_last():
            self._refuse_the_rest()  # what a worker gave back when it was cancelled
            self._note_end()
            self.ended.open()

    @guarded
    def _took_the_last(self) -> bool:
        self._left -= 1
        return self._left == 0

    @guarded
    def _note_end(self) -> None:
        # Else somebody has closed the queue, and the block has not been left yet.
        if self.state is BatcherState.CLOSING:
            self.state = BatcherState.CLOSED

    # What there is to see.

    def waits(self, frames: Mapping[int, FrameType]) -> list[ExplainedWait]:
        """Which callers wait for which batch, and who has that."""
        told = [self._wait(*one, frames) for one in list(self._in_work.values())]
        return [wait for wait in told if wait is not None]

    def _wait(
        self, worker: Any, batch: list[Request], began: float, frames: Mapping[int, FrameType]
    ) -> ExplainedWait | None:
        waiting = sum(request.state is PENDING for request in list(batch))
        if not waiting:
            return None
        owner, seconds = Owner(worker), perf_counter() - began
        place = place_of(stack_of(worker, frames))
        at = "" if place is None else f", at {place}"
        where = " in a process" if self.where == "process" else ""
        name = counted(waiting, "caller")
        what = f"{'waits' if waiting == 1 else 'wait'} for {self}"
        queued = self.aio.size()
        step = f"{name} {what}, for {seconds_told(seconds)}"
        if queued:
            step += f"; {counted(queued, 'more')} in line behind"
        culprit = Culprit(
            "worker",
            f"{self}: {owner.name} has been at a batch of {len(batch)}{where} for"
            f" {seconds_told(seconds)}{at}",
            (step,),
            queue=self.aio.name,
            stage=function_name(self.function),
            worker=owner.name,
        )
        return ExplainedWait(name, what, seconds, (culprit,))

    def waits_move(self) -> Hashable:
        """How many calls have ended."""
        counts = self._counts
        return counts.answered, counts.failed, counts.cancelled

    def longest_of_waits(self) -> float:
        """How long the oldest call waits that is in a batch."""
        begun = [
            began
            for _, batch, began in list(self._in_work.values())
            if any(request.state is PENDING for request in list(batch))
        ]
        return perf_counter() - min(begun) if begun else 0.0

    def waits_for(self, coordinator: object) -> bool:
        """Whether it is a part of what a coordinator watches: any may have callers among its
        workers, and none knows of that."""
        return True

    # A watchdog of its own.

    def explain(self) -> Explanation:
        """Who waits for whom."""
        return explain()

    def moved(self) -> dict[int, Hashable]:
        """What has moved."""
        return {id(self): self.waits_move()}

    def longest_wait(self) -> float:
        """How long the oldest call waits that is in a batch."""
        return self.longest_of_waits()

    def statistics(self) -> BatcherStatistics:
        """See `BatcherFace.statistics`."""
        of_the_calls = self._calls_so_far()  # first: of the queue there are never fewer
        queue = self.aio.statistics()
        return BatcherStatistics(
            requests=queue.enqueued,
            waiting=queue.size,
            waiting_for_room=queue.waiting_enqueues,
            capacity=queue.capacity,
            **of_the_calls,
        )

    @guarded
    def _calls_so_far(self) -> dict[str, Any]:
        counts = self._counts
        return {
            "answered": counts.answered,
            "failed": counts.failed,
            "cancelled": counts.cancelled,
            "refused": counts.refused,
            "in_flight": counts.in_flight,
            "batches": counts.batch_sizes.total(),
            "batch_sizes": counts.sizes(),
            "queue_seconds": counts.queue_seconds,
            "function_seconds": counts.function_seconds,
            "latency_seconds": counts.latency_seconds,
            "latencies": counts.latencies(),
            "workers_died": counts.workers_died,
        }

    def describe(self) -> str:
        """What the repr of a face says after the name."""
        plural = f"{self.where}{'es' if self.where == 'process' else 's'}"
        workers = f"{self.workers} {self.where if self.workers == 1 else plural}"
        state = self.state.value
        if self.state in (BatcherState.RUNNING, BatcherState.CLOSING):
            state += f", {self.aio.size()} waiting, {self._counts.in_flight} in flight"
        return f"batches of up to {self.max_batch} on {workers}, {state}"


def _current() -> Any:
    """The task or thread that is running."""
    return running_task() or threading.current_thread()


def _again(failure: WorkerDiedError) -> WorkerDiedError:
    """The failure for one more caller."""
    error = WorkerDiedError(str(failure), exitcode=failure.exitcode)
    error.__cause__ = failure.__cause__
    return error


def _checked_function(function: Any) -> Callable[..., Any]:
    if not callable(function):
        raise InvalidArgumentError(
            f"function: got {function!r}; expected a function that is given a list of requests and"
            " returns one result each"
        )
    return function  # type: ignore[no-any-return]


def _checked_where(where: Any, function: Any) -> Where:
    if where not in get_args(Where):
        raise InvalidArgumentError(
            f"where: got {where!r}; expected 'auto', 'task', 'thread' or 'process'"
        )
    fitting: Where = "task" if is_coroutine_function(function) else "thread"
    if where == "process" and fitting == "thread":
        return "process"
    if where not in ("auto", fitting):
        what = "a coroutine function" if where == "task" else "a plain function"
        raise InvalidArgumentError(
            f"function: got {function_name(function)!r} with where={where!r}; expected {what}, or"
            " where='auto'"
        )
    return fitting


def _checked_queue(queue: Any, max_batch: int) -> bool:
    """Check a queue that is to hold requests; tell whether it orders them by priority."""
    is_object_queue = (
        isinstance(queue, QueueFace)
        and isinstance(queue, FIFOConstructor | PriorityConstructor)
        and queue.dtypes is None
    )
    if not is_object_queue:
        raise InvalidArgumentError(
            f"queue: got {queue!r}; expected a FIFOQueue or PriorityQueue of plain objects (made"
            " without dtypes), or None"
        )
    if queue.is_closed() or queue.statistics().enqueued:
        raise InvalidArgumentError(
            f"queue: got {queue!r}, which is or was in use; expected a new one, for this batcher"
            " alone"
        )
    has_priorities = isinstance(queue, PriorityConstructor)
    if has_priorities and queue.capacity is not None and queue.capacity < max_batch:
        raise InvalidArgumentError(
            f"queue: got a PriorityQueue with a capacity of {queue.capacity}; expected at least"
            f" max_batch, {max_batch}, which it gives out at once"
        )
    return has_priorities
