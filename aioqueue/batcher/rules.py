"""The state of a batcher, shared by its faces: its requests, their outcomes, and its end.

A call is a `Request`. It is an element of the queue, and also an attempt that the caller waits for
with the waker of its world, as queues do. So tasks of several event loops and threads can call one
batcher, and the answers of a batch cost one wake per event loop, however many callers it has.

Code that takes a request out of the queue must answer it; otherwise its caller waits for ever.
There are four such places, one for each way in which a request ends. An option that holds requests
back elsewhere needs a fifth:

1. `finish`: the function has been called with the batch.
2. `worker_ended`: a worker ends while it holds a batch that it has not answered, by a stop between
   collecting and calling, by `SystemExit` in the function, or because its event loop is gone.
3. `stop`: requests that no worker has taken. The queue is closed, so no more come, but its workers
   may not take them any more either.
4. The end of the last worker: a worker whose dequeue is cancelled puts its requests back into the
   queue, perhaps after the stop has emptied it.

The lock is held for microseconds, never while the function runs. Wakes are delivered after its
release.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from time import perf_counter
from types import FrameType
from typing import Any, Final, Literal, Protocol, get_args

from aioqueue.base.arguments import checked_count, checked_seconds, checked_watchdog, function_name
from aioqueue.batcher.admission import Admission
from aioqueue.batcher.function_calls import (
    OnFailure,
    Where,
    checked_function,
    checked_where,
    takes_contexts,
)
from aioqueue.batcher.statistics import BatcherCounts, BatcherState, BatcherStatistics
from aioqueue.coordination.cancellations import running_task
from aioqueue.coordination.watchdog import Watchdog
from aioqueue.coordination.workers import Worker
from aioqueue.core.attempts import DONE, PENDING, WITHDRAWN, Attempt, Take, Waker
from aioqueue.core.storage.sized import size_of
from aioqueue.errors import (
    InvalidArgumentError,
    OutOfRangeError,
    QueueClosedError,
    QueueEmpty,
    QueueFull,
    WorkerDiedError,
    copy_for_caller,
    counted,
    describe_exception,
)
from aioqueue.queues.base import AsyncQueue, BlockingQueue
from aioqueue.queues.fifo import FIFOConstructor, FIFOQueue
from aioqueue.queues.priority import PriorityConstructor
from aioqueue.queues.queue_core import QueueFace
from aioqueue.system.locks import is_held_here, synchronized
from aioqueue.telemetry.explain.explanation import (
    Culprit,
    CulpritKind,
    ExplainedWait,
    Explanation,
    WorkerState,
    format_seconds,
)
from aioqueue.telemetry.explain.gather import explain
from aioqueue.telemetry.explain.registry import note_waits
from aioqueue.telemetry.explain.stacks import Stack, place_of, stack_of
from aioqueue.worlds.scopes import Gate
from aioqueue.worlds.waker import Owner, ThreadWaker, apply_deferred, deliver

OnFull = Literal["wait", "refuse"]

_CAPACITY: Final = 1024
_ENDED: Final = ("answered", "failed", "cancelled")
_NO_CONTEXT: Final = Context()
_MOST_SAMPLES: Final = 50
"""How often to sample the counts of a batcher that answers calls meanwhile."""
_numbers = itertools.count(1)


class _FunctionCall:
    """One call of the function, and whether it has ended."""

    __slots__ = ("core", "is_over")

    def __init__(self, core: BatcherCore) -> None:
        self.core = core
        self.is_over = False


_calls: Final[ContextVar[tuple[_FunctionCall, ...]]] = ContextVar(
    "aioqueue.batcher.function_calls", default=()
)
"""The calls that the current code runs in. Tasks that a function starts inherit them."""


class Request(Attempt):
    """One call: its value, and later its result or its failure, as ``error``.

    Attributes:
        is_sealed: whether its value came from another process, pickled, and its result goes there.
        is_examined: whether its value was checked and weighed before it came in.
    """

    __slots__ = ("context", "is_accepted", "is_taken", "is_weighed", "result", "value", "weight")

    is_sealed = False
    is_examined = False

    def __init__(self, value: Any, host: BatcherCore, waker: Waker) -> None:
        super().__init__()
        self.value: Any = value
        self.context: Context = copy_context() if host.takes_contexts else _NO_CONTEXT
        self.host: BatcherCore = host
        self.waker: Waker = waker
        self.is_accepted: bool = False  # whether it is in the queue, or was
        self.is_taken: bool = False  # whether a worker has taken it out, or its caller has left
        self.is_weighed: bool = False  # whether its weight counts as waiting
        self.weight: float = 0
        self.result: Any = None
        self.began: float = perf_counter()

    @property
    def nbytes(self) -> int:
        """The size of the value, for a queue with ``max_bytes``."""
        return size_of((self.value,))

    def open(self) -> None:
        """Unpickle the value of a sealed request, on the thread of the worker that needs it.

        Raises:
            Exception: it cannot be unpickled here.
        """
        raise NotImplementedError

    def sealed(self, outcome: Any) -> Any:
        """Return the outcome of a sealed request as it is sent to its caller."""
        raise NotImplementedError

    def outcome(self) -> Any:
        """Return the result, or raise the failure: an exception that no other caller gets."""
        if self.error is not None:
            self.raise_error()
        return self.result


_STACK_SECONDS: Final = 0.5
"""Seconds that a process has to report its stack."""

_STATE_TEXTS: Final = {"stopped": "is stopped (SIGSTOP)", "ended": "has ended"}


class Inspected(Protocol):
    """A process that works on a batch."""

    name: str

    def condition(self, seconds: float) -> tuple[Stack, WorkerState, str]:
        """Return its stack, its state, and a remark. Any thread may call it."""


class BatcherCore:
    """The state of one batcher, shared by its faces. Its arguments are those of the faces.

    The state of a batcher of another process has the same methods for callers.
    """

    # Attributes rather than methods: a call of a method would cost each request more.
    new_request: Final[type[Request]] = Request
    new_thread_waker: Final[type[ThreadWaker]] = ThreadWaker
    is_elsewhere = False
    """Whether the batcher belongs to another process."""

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
        on_failure: OnFailure,
        weight: Callable[[Any], float] | None,
        max_batch_weight: float | None,
        check: Callable[[Any], bool | None] | None,
        ageing: float | None,
        name: str | None,
        watchdog: float | None,
    ) -> None:
        self.function: Callable[..., Any] = checked_function(function)
        self.watchdog: float | None = checked_watchdog(watchdog)
        self.max_batch: int = checked_count(max_batch, "max_batch", least=1)
        self.max_wait: float = checked_seconds(max_wait, "max_wait")
        self.workers: int = checked_count(workers, "workers", least=1)
        self.where = checked_where(where, function)
        self.takes_contexts: bool = takes_contexts(function, self.where)
        self.payload: bytes | None = None
        if self.where == "process":
            from aioqueue.processes.function_pickles import pickled

            self.payload = pickled(function, function)
        if on_full not in ("wait", "refuse"):
            raise InvalidArgumentError(f"on_full: got {on_full!r}; expected 'wait' or 'refuse'")
        if name is not None and not isinstance(name, str):
            raise InvalidArgumentError(f"name: got {name!r}; expected a string or None")
        if on_failure not in get_args(OnFailure):
            raise InvalidArgumentError(
                f"on_failure: got {on_failure!r}; expected 'fail' or 'one_by_one'"
            )
        self.tries_one_by_one: bool = on_failure == "one_by_one"
        self.refuses: bool = on_full == "refuse"
        self.name: str = name or f"{function_name(function)}-{next(_numbers)}"
        self._has_own_queue = queue is None
        if queue is None:
            queue = self._new_queue()
        self.has_priorities: bool = _checked_queue(queue, self.max_batch)
        self.admission: Admission = Admission(
            weight, max_batch_weight, check, ageing, has_priorities=self.has_priorities
        )
        self.max_batch_weight: float | None = self.admission.max_weight
        queue._machine.disable_claims()  # requests that a worker collects count as waiting
        # Keep both faces: the queue itself refers to them only weakly.
        self.aio, self.sync = queue.aio, queue.sync
        self.state: BatcherState = BatcherState.NEW
        self.failure: WorkerDiedError | None = None
        self.has_sealed = False  # whether requests may come from other processes
        self.shared: Any = None  # how other processes reach it (`aioqueue.sharing`), if they do
        self.ended: Gate = Gate()
        self.started: list[Worker] = []  # filled by one thread; for reports
        # Cancels the tasks of another thread's loop once more, as long as they run.
        self.cancel_again: Callable[[], object] | None = None
        self._lock = threading.RLock()  # guards everything below and the state of every request
        self._running = 0
        self._is_stopped = False
        self._waiting_weight: float = 0  # of the requests in the queue, if they have weights
        self._filling: Take | None = None  # the wait of the worker that collects by weight
        self._on_stop: list[Callable[[], object]] = []
        self._on_giving_up: list[Callable[[], object]] = []
        # Id of a worker that calls the function -> the worker, its batch, and the start time.
        self._in_work: dict[int, tuple[Any, list[Request], float]] = {}
        self.processes: dict[int, Inspected] = {}  # id of a worker -> the process that it asks
        note_waits(self)
        self._counts = BatcherCounts()

    def _new_queue(self) -> FIFOQueue[Any]:
        return FIFOQueue(max(_CAPACITY, self.max_batch), name=self.name)

    # Called by callers.

    def renew(self) -> None:
        """Make a new lock and queue in a fork, so that a batcher not yet entered works there."""
        self._lock = threading.RLock()
        if self._has_own_queue:
            queue = self._new_queue()
            queue._machine.disable_claims()
            self.aio, self.sync = queue.aio, queue.sync
        note_waits(self)

    def element(self, request: Request, priority: int | None) -> Any:
        """Return the queue's element for a request.

        Raises:
            InvalidArgumentError: a priority was given, but the queue has none.
            RuntimeError: the batcher's block has not been entered; or its own function makes the
                call.
            QueueClosedError: the block has been left.
            WorkerDiedError: the batcher has failed.
            Exception: ``check`` or ``weight`` has raised it.
        """
        # Tasks that the function has started may call once its own call is over.
        calls = _calls.get()
        if calls and any(call.core is self and not call.is_over for call in calls):
            raise RuntimeError(
                f"{self} was called by its own function, which would deadlock: the call waits for a"
                " worker, and the worker for the call. Call the function itself, or another batcher"
            )
        if self.state is not BatcherState.RUNNING:
            raise self.refusal()
        if not self.has_priorities and priority is not None:
            raise InvalidArgumentError(
                f"priority: got {priority!r}, but {self} has a {self.aio._core.kind}; make it with"
                " `queue=PriorityQueue(capacity)`"
            )
        if self.admission.examines and not request.is_examined:
            self.examine(request)
        if self.has_priorities:
            return (self.admission.key(priority or 0, request.began), request)
        return request

    def examine(self, request: Request) -> None:
        """Have the value checked and weighed.

        Raises:
            InvalidArgumentError: the value is refused, or heavier than a batch may be.
            Exception: ``check`` or ``weight`` has raised it.
        """
        try:
            request.weight = self.admission.examine(request.value)
        except BaseException:
            self._count_rejected()
            raise

    @synchronized
    def _count_rejected(self) -> None:
        self._counts.rejected += 1

    def note_accepted(self, request: Request) -> None:
        """Note that a request is in the queue.

        If the waiting ones weigh as much as a batch may, the worker that collects waits no longer.
        """
        request.is_accepted = True
        if self.max_batch_weight is not None:
            filling = self._add_weight(request)
            if filling is not None:
                deliver(self.aio._machine.expire(filling))

    @synchronized
    def _add_weight(self, request: Request) -> Take | None:
        # A worker may have taken it out before its caller ran on.
        if not request.is_taken:
            request.is_weighed = True
            self._waiting_weight += request.weight
        return self._filling if self._is_full() else None

    def _is_full(self) -> bool:
        return self.max_batch_weight is not None and self._waiting_weight >= self.max_batch_weight

    def _remove_weight(self, request: Request) -> None:
        """Note that a request does not wait in the queue any more. The caller holds the lock."""
        request.is_taken = True
        if request.is_weighed:
            request.is_weighed = False
            self._waiting_weight -= request.weight

    def refusal(self) -> Exception:
        if self.state is BatcherState.NEW:
            return RuntimeError(
                f"{self} does not run yet: call it within its block,"
                " `async with aioqueue.Batcher(...) as batcher` (`with` for aioqueue.sync)"
            )
        if self.failure is not None:
            return _copied_failure(self.failure)
        is_left = self.state is not BatcherState.RUNNING
        why = "its block has been left" if is_left else "its queue was closed by other code"
        return QueueClosedError(f"{self} is closed: {why}", queue=self.aio.name)

    @synchronized
    def full(self) -> QueueFull:
        """Count a call that is refused for lack of room, and make its error."""
        self._counts.refused += 1
        if self.aio.max_bytes is None:
            waiting = counted(self.aio.capacity or 0, "request")  # without a bound it is not full
        else:
            size = counted(self.aio.size(), "request")
            waiting = f"{size}, or {counted(self.aio.max_bytes, 'byte')} of them,"
        return QueueFull(f"{self} has {waiting} waiting already; try again later")

    def __str__(self) -> str:
        return f"Batcher '{self.name}'"

    def is_entered_here(self) -> bool:
        return is_held_here(self._lock)

    def leave(self, request: Request) -> Gate | None:
        """End a call, whatever has become of its request: the request must free its place.

        Returns:
            ``None``; in another process, a gate to wait for: it opens when the batcher knows.
        """
        # Two moves, so that our lock and the queue's are never held together: no deadlock. First
        # the state: a worker that dequeues the request in between skips it (`requests_of`).
        apply_deferred(self.withdraw, request)
        if request.state is WITHDRAWN:
            apply_deferred(self.aio._machine.drop, request)
        return None

    @synchronized
    def withdraw(
        self, attempt: Attempt, waited: float = 0.0, *, if_pending: bool = False
    ) -> tuple[()]:
        """Withdraw a request whose caller has left: its answer will be dropped."""
        assert isinstance(attempt, Request)
        # An answer that came first stays: the caller may still read it.
        if attempt.state is PENDING:
            attempt.state = WITHDRAWN
            self._counts.cancelled += attempt.is_accepted
            self._remove_weight(attempt)
        return ()

    # Called by workers.

    def batch_limit(self) -> int:
        """Return how many requests a batch may have: fewer if the capacity was made smaller."""
        return int(min(self.max_batch, self.aio._machine.max_rows))

    @synchronized
    def begin_filling(self, limit: int) -> Take | None:
        """Return the wait for a batch that is full by number or by weight, and takes nothing.

        Returns:
            ``None`` if the requests that wait weigh as much as a batch may.
        """
        if self._is_full():
            return None
        # Entered under the lock: a caller that makes the batch full either came before, or finds
        # the wait here and ends it (`note_accepted`), even if it has not begun yet.
        self._filling = Take(limit, up_to=True, peeks=True)
        return self._filling

    @synchronized
    def end_filling(self) -> None:
        self._filling = None

    def take_next(self, weight: float) -> Request | None:
        """Take the next request out of the queue, if a batch can take its weight. It never waits.

        Args:
            weight: that of the batch so far.

        Returns:
            The request, whose caller still waits; ``None`` if the queue is empty, or
            the next one is too heavy.
        """
        assert self.max_batch_weight is not None
        face: Any = self.aio
        while True:
            take = Take(1, True)
            try:
                if not face._try_nowait(take):
                    return None
            except OutOfRangeError:
                return None
            row = take.held.single
            element = row if face._from_row is None else face._from_row(row)
            request: Request = element[1] if self.has_priorities else element
            # The head decides, and no lighter request behind it overtakes: so a heavy one never
            # starves. It is the first of the next batch.
            if request.state is PENDING and weight + request.weight > self.max_batch_weight:
                apply_deferred(face._machine.withdraw, take)
                return None
            if self._note_taken(request):
                return request

    @synchronized
    def _note_taken(self, request: Request) -> bool:
        """Note that a request has left the queue; return whether its caller still waits."""
        self._remove_weight(request)
        return request.state is PENDING

    def requests_of(self, elements: Iterable[Any]) -> Iterator[Request]:
        """Yield the requests in elements of the queue whose callers still wait."""
        for element in elements:
            request = element[1] if self.has_priorities else element
            if request.state is PENDING:
                yield request

    @synchronized
    def pending(self, batch: Iterable[Request]) -> list[Request]:
        return [request for request in batch if request.state is PENDING]

    def begin(self, batch: Iterable[Request]) -> list[Request]:
        """Note that the function is about to be called with a batch.

        Returns:
            The requests whose callers still wait; perhaps none.
        """
        return self._begin(self._opened(batch) if self.has_sealed else batch)

    def _opened(self, batch: Iterable[Request]) -> list[Request]:
        """Unpickle the values that have come from other processes; answer those that fail."""
        # Outside of the lock: it runs code of the user. A value that cannot be unpickled fails its
        # own caller, and nobody else.
        opened: list[Request] = []
        for request in self.pending(batch):
            if request.is_sealed:
                try:
                    request.open()
                except Exception as error:
                    apply_deferred(self._fail, request, request.sealed(error))
                    continue
            opened.append(request)
        return opened

    @synchronized
    def _fail(self, request: Request, error: Exception) -> Collection[Waker]:
        return self._settle([request], [error])

    @synchronized
    def _begin(self, batch: Iterable[Request]) -> list[Request]:
        requests = self.pending(batch)
        if requests:
            now, counts = perf_counter(), self._counts
            counts.batch_sizes[len(requests)] += 1
            for request in requests:
                counts.queue_seconds += now - request.began
            worker = _current()
            self._in_work[id(worker)] = (worker, requests, now)
        return requests

    def context_arguments(self, batch: list[Request]) -> dict[str, Any]:
        if not self.takes_contexts:
            return {}
        return {"contexts": [request.context for request in batch]}

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Mark the code inside as part of a call of the function."""
        call = _FunctionCall(self)
        token = _calls.set((*_calls.get(), call))
        try:
            yield
        finally:
            call.is_over = True
            _calls.reset(token)

    @synchronized
    def begin_retry(self, request: Request) -> bool:
        """Note that a request of a failed batch is tried by itself, if its caller still waits.

        Returns:
            Whether it is. After a stop no request is tried once more.
        """
        is_tried = request.state is PENDING and not self._is_stopped
        self._counts.retried += is_tried
        return is_tried

    def finish_one(self, request: Request, outcome: Any, seconds: float) -> None:
        """Give one caller of a batch its outcome; the worker is not done with the batch yet."""
        if request.is_sealed:
            outcome = request.sealed(outcome)
        elif isinstance(outcome, BaseException):
            outcome = copy_for_caller(outcome, is_shared=True)
        apply_deferred(self._finish_one, request, outcome, seconds)

    @synchronized
    def _finish_one(self, request: Request, outcome: Any, seconds: float) -> Collection[Waker]:
        self._counts.function_seconds += seconds
        return self._settle([request], [outcome])

    def finish(self, batch: list[Request], outcomes: list[Any], seconds: float) -> None:
        """Give every caller its outcome, after the function has returned.

        Args:
            batch: the requests that `begin` has returned.
            outcomes: one per request; an exception is a failure. Several callers may get the same
                failure, and a function may raise one object again and again. So each caller gets a
                copy of its own, with the traceback that the failure had when it left the function.
            seconds: how long the function took.
        """
        # Copied before the lock is taken: a copy may run code of the user.
        times = Counter(id(one) for one in outcomes if isinstance(one, BaseException))
        owned = [
            copy_for_caller(one, is_shared=times[id(one)] > 1)
            if isinstance(one, BaseException)
            else one
            for one in outcomes
        ]
        if self.has_sealed:
            owned = [
                request.sealed(one) if request.is_sealed and request.state is PENDING else one
                for request, one in zip(batch, owned, strict=True)
            ]
        apply_deferred(self._finish, batch, owned, seconds)

    @synchronized
    def _finish(
        self, batch: list[Request], outcomes: list[Any], seconds: float
    ) -> Collection[Waker]:
        self._counts.function_seconds += seconds
        self._in_work.pop(id(_current()), None)
        return self._settle(batch, outcomes)

    def refuse(self, requests: list[Request]) -> None:
        """Answer requests that have not entered a batch: they fail."""
        if requests:
            apply_deferred(self._refuse, requests)

    @synchronized
    def _refuse(self, requests: list[Request]) -> Collection[Waker]:
        return self._settle(requests, [self.stop_error() for _ in requests])

    def stop_error(self) -> Exception:
        if self.failure is not None:
            return _copied_failure(self.failure)
        return QueueClosedError(
            f"{self} was stopped before it came to this request", queue=self.aio.name
        )

    def _settle(self, requests: list[Request], outcomes: list[Any]) -> Collection[Waker]:
        """Give requests their outcomes; return the wakers to wake. The caller holds the lock."""
        now, counts = perf_counter(), self._counts
        wakers: dict[Waker, None] = {}
        for request, outcome in zip(requests, outcomes, strict=True):
            if request.state is not PENDING:
                continue  # its caller has left
            if isinstance(outcome, BaseException):
                request.error = outcome
                counts.failed += 1
            else:
                request.result = outcome
                counts.answered += 1
            counts.add_latency(now - request.began)
            request.state = DONE
            assert request.waker is not None
            request.waker.notify(request)
            wakers[request.waker] = None
        return wakers

    @synchronized
    def count_death(self) -> None:
        self._counts.workers_died += 1

    # The beginning and the end.

    def enter(self) -> None:
        """Enter the block, and start the watchdog."""
        self._enter()
        if self.watchdog is not None:
            Watchdog(self, self.watchdog, self.ended, lambda: None).start()

    @synchronized
    def _enter(self) -> None:
        """Enter the block.

        Raises:
            RuntimeError: it has been entered before, through either face; or the main module makes
                the call while a new process imports it, which would start processes without end.
        """
        if self.state is not BatcherState.NEW:
            raise RuntimeError(f"the block of {self} has been entered already; make a new one")
        if self.where == "process":
            from aioqueue.processes.worker_process import check_may_start

            check_may_start()
        self.state = BatcherState.RUNNING
        self._running = self.workers

    def close(self) -> None:
        """Accept no more calls. Those that wait, even for room, are still answered."""
        self._note_closing()
        self.aio.close()

    @synchronized
    def _note_closing(self) -> None:
        if self.state is BatcherState.RUNNING:
            self.state = BatcherState.CLOSING if self._running else BatcherState.CLOSED

    @property
    def is_stopped(self) -> bool:
        """Whether workers must take no more requests and begin no more batches."""
        return self._is_stopped

    def stop(self, failure: BaseException | None = None) -> None:
        """Refuse the requests that are not in a batch yet, and end the workers.

        Args:
            failure: the exception that has ended a worker; the other workers finish their batches.
                ``None`` ends all of them at once, as far as possible.
        """
        # The order matters. First the state: callers that the close wakes must find the failure as
        # their reason. Then the close, so that no request comes in after the queue was emptied.
        for callback in self._note_stop(failure):
            callback()
        self.aio.close(cancel_pending_enqueues=True, cause=self.failure)
        self._refuse_the_rest()

    @synchronized
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
            return []  # the other workers finish their batches
        callbacks, self._on_stop = self._on_stop, []
        return callbacks

    def call_on_stop(self, callback: Callable[[], object]) -> None:
        """Call back at the stop, in any thread; now, if it has been requested."""
        if not self._is_kept(callback):
            callback()

    @synchronized
    def _is_kept(self, callback: Callable[[], object]) -> bool:
        # A failure lets the running batches finish: only a later `stop(None)` calls back.
        is_kept = not self._is_stopped or self.failure is not None
        if is_kept:
            self._on_stop.append(callback)
        return is_kept

    @synchronized
    def call_on_giving_up(self, callback: Callable[[], object]) -> None:
        """Call back if the block is left while workers still run."""
        self._on_giving_up.append(callback)

    def give_up(self) -> None:
        """End the workers that still run when the block is left, as far as possible."""
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
        """Note that a worker has ended.

        Args:
            name: the name of the worker.
            error: the exception that has ended it; after a stop it does not count as a failure.
            batch: the requests that it has taken out of the queue and not answered.
        """
        # Before its own requests are refused, so that their callers get the failure.
        if error is not None and not self._is_stopped:
            self.stop(error)
        self._in_work.pop(id(_current()), None)
        self.refuse(list(batch))
        if self._remove_worker():
            # A cancelled worker may have put requests back after the stop had emptied the queue. No
            # other worker is left that could take them.
            self._refuse_the_rest()
            self._note_end()
            self.ended.open()

    @synchronized
    def _remove_worker(self) -> bool:
        """Note that a worker has ended; return whether it was the last one."""
        self._running -= 1
        return self._running == 0

    @synchronized
    def _note_end(self) -> None:
        # In any other state, other code has closed the queue, and the block has not been left yet.
        if self.state is BatcherState.CLOSING:
            self.state = BatcherState.CLOSED

    # Called by monitors and explanations.

    def waits(self, frames: Mapping[int, FrameType]) -> list[ExplainedWait]:
        """Return which callers wait for which batch, and the worker that has it."""
        waits = [self._wait(*one, frames) for one in list(self._in_work.values())]
        return [wait for wait in waits if wait is not None]

    def _wait(
        self, worker: Any, batch: list[Request], began: float, frames: Mapping[int, FrameType]
    ) -> ExplainedWait | None:
        waiting = sum(request.state is PENDING for request in list(batch))
        if not waiting:
            return None
        owner, seconds = Owner(worker), perf_counter() - began
        kind: CulpritKind = "worker"
        process = self.processes.get(id(worker))
        if process is None:
            name, state, place = owner.name, "", place_of(stack_of(worker, frames))
        else:
            name, (stack, condition, note) = process.name, process.condition(_STACK_SECONDS)
            place = place_of(stack)
            state = (
                ""
                if condition == "running"
                else f", which {_STATE_TEXTS.get(condition, condition)}"
            )
            state += f" ({note})" if note else ""
            kind = "worker" if condition == "running" else "process"
        at = "" if place is None else f", at {place}"
        callers = counted(waiting, "caller")
        what = f"{'waits' if waiting == 1 else 'wait'} for {self}"
        queued = self.aio.size()
        step = f"{callers} {what}, for {format_seconds(seconds)}"
        if queued:
            step += f"; {queued} more in line behind"
        culprit = Culprit(
            kind,
            f"{self}: {name}{state} has been at a batch of {len(batch)} for"
            f" {format_seconds(seconds)}{at}",
            (step,),
            queue=self.aio.name,
            stage=function_name(self.function),
            worker=name,
        )
        return ExplainedWait(callers, what, seconds, (culprit,))

    @property
    def serves(self) -> int:
        """Return what identifies the queue whose elements its workers take."""
        return id(self.aio._core)

    def waits_move(self) -> Hashable:
        """Return how many calls have ended: the number changes as long as the batcher works."""
        counts = self._counts
        return counts.answered, counts.failed, counts.cancelled

    def longest_of_waits(self) -> float:
        """Return how long the oldest call in a batch has waited."""
        begun = [
            began
            for _, batch, began in list(self._in_work.values())
            if any(request.state is PENDING for request in list(batch))
        ]
        return perf_counter() - min(begun) if begun else 0.0

    def waits_for(self, coordinator: object) -> bool:
        """Return true: any coordinator may have workers that call the batcher, and the batcher
        does not know which."""
        return True

    # Called by the batcher's own watchdog.

    def explain(self) -> Explanation:
        return explain()

    def progress(self) -> dict[int, Hashable]:
        return {id(self): self.waits_move()}

    def longest_wait(self) -> float:
        return self.longest_of_waits()

    def statistics(self) -> BatcherStatistics:
        # Two locks guard the counts. A call that is answered between the two samples would seem in
        # flight still: then sample again. If the calls never pause, the last sample stands. In it
        # the calls come first: the queue's counts, taken later, are never smaller.
        later = self._call_counts()
        for _ in range(_MOST_SAMPLES):
            calls, queue = later, self.aio.statistics()
            later = self._call_counts()
            if later == calls:
                break
        # A caller that has left the queue is in flight. (One that has given up stays in the queue
        # for a moment, and counts as cancelled.)
        present = queue.enqueued - sum(calls[name] for name in _ENDED)
        waiting = min(queue.size, present)
        return BatcherStatistics(
            requests=queue.enqueued,
            waiting=waiting,
            in_flight=present - waiting,
            waiting_for_room=queue.waiting_enqueues,
            capacity=queue.capacity,
            **calls,
        )

    @synchronized
    def _call_counts(self) -> dict[str, Any]:
        counts = self._counts
        return {
            "answered": counts.answered,
            "failed": counts.failed,
            "cancelled": counts.cancelled,
            "refused": counts.refused,
            "batches": counts.batch_sizes.total(),
            "batch_sizes": counts.sizes(),
            "queue_seconds": counts.queue_seconds,
            "function_seconds": counts.function_seconds,
            "latency_seconds": counts.latency_seconds,
            "latencies": counts.latencies(),
            "workers_died": counts.workers_died,
            "rejected": counts.rejected,
            "retried": counts.retried,
        }

    def describe(self) -> str:
        """Return the part of the repr that follows the name."""
        plural = f"{self.where}{'es' if self.where == 'process' else 's'}"
        workers = f"{self.workers} {self.where if self.workers == 1 else plural}"
        state = self.state.value
        if self.state in (BatcherState.RUNNING, BatcherState.CLOSING):
            record = self.statistics()
            state += f", {record.waiting} waiting, {record.in_flight} in flight"
        most = f"up to {self.max_batch}"
        if self.max_batch_weight is not None:
            most += f", or a weight of {self.max_batch_weight:g},"
        return f"batches of {most} on {workers}, {state}"


def _current() -> Any:
    return running_task() or threading.current_thread()


def _copied_failure(failure: WorkerDiedError) -> WorkerDiedError:
    error = WorkerDiedError(str(failure), exitcode=failure.exitcode)
    error.__cause__ = failure.__cause__
    return error


def _checked_queue(queue: Any, max_batch: int) -> bool:
    """Check the queue for requests; return whether it orders them by priority."""
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
            f"queue: got {queue!r}, which is or was in use; expected a new queue for this batcher"
            " alone"
        )
    if queue.capacity is not None and queue.capacity < max_batch:
        raise InvalidArgumentError(
            f"queue: got a {queue._core.kind} with a capacity of {queue.capacity}; expected at"
            f" least max_batch, {max_batch}, since a batch waits there until it is full"
        )
    return isinstance(queue, PriorityConstructor)
