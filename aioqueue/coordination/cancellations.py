"""Cancellations of tasks: whether one was asked for, and how a worker gets the stop.

**Whether.** A task may see a cancellation that nobody asked of it, because something that it awaits
was cancelled. It may also have been cancelled long ago, and have continued. So `Call` notes, when a
call begins, how often its task had been cancelled by then; `is_being_cancelled` compares. No other
module asks a task (`tests/project/test_layers.py`).

**How.** asyncio cancels a task once, and its clean-up may await. A cancelled scope of anyio cancels
each await of its tasks, as trio does, which would cut each clean-up short at its first await. But
only scopes respect shields, such as that of `anyio.to_thread`. So a worker in asyncio is in two
scopes (`WorkerScope`). The stop cancels the outer one. When that has cancelled the task, the inner
one becomes a shield, which lets nothing more in. At the end of the grace period the shield is taken
away, and the same happens once more. In trio there is one scope, and trio's own rule.

The stop also ends the waits in our own calls that began before it reached the worker: under a
shield, too, in tasks that the worker started, and in threads that it waits for. A worker that gets
the stop in this way, by the exception of that call, is not cancelled besides.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import Callable, Collection, Generator
from contextlib import AbstractContextManager
from enum import Enum, auto
from time import perf_counter
from types import FrameType, TracebackType
from typing import Any, Final, Self

import anyio
import anyio.lowlevel

from aioqueue.core.attempts import Attempt
from aioqueue.errors import QueueClosedError
from aioqueue.worlds.asyncio import is_deferred
from aioqueue.worlds.scopes import StopScope, end_wait, waits_of_workers
from aioqueue.worlds.waker import current_worker, loaded_trio, running_loop

_SCOPE_PREFIX: Final = "cancel scope "
"""What stands before the name of a scope in the messages of anyio."""

_ROUNDS: Final = 8
"""Rounds of an event loop in which a worker's cancellation reaches the tasks that it waits for, by
groups within groups. Only then the stop itself ends the waits of such tasks that are left."""


def running_task() -> object:
    """Return the running task; ``None`` outside of tasks."""
    loop = running_loop()
    if loop is not None:
        return asyncio.current_task(loop)
    trio = loaded_trio()
    if trio is not None and trio.lowlevel.in_trio_task():
        task: object = trio.lowlevel.current_task()
        return task
    return None


class Call:
    """Marks the start of a call in the running task, if there is one.

    Only cancellations requested after the mark count. Earlier ones may be left over from a task
    group of Python 3.11 whose child failed, from an old timeout, or from code that swallowed one.

    Attributes:
        task: the running task.
        requests: returns how often the task was cancelled so far, in whatever way. A loop that
            makes calls compares it with ``known`` before each, and calls `renew` if it differs.
        known: what it returned at the mark.
    """

    __slots__ = ("_before", "known", "requests", "task")

    def __init__(self) -> None:
        self.task: object = running_task()
        # In trio, and in threads, nothing can be left over.
        self.requests: Callable[[], int] = getattr(self.task, "cancelling", int)
        self.known: int = self.requests()
        # A request that is still to be delivered will reach this call: it must count. So the mark
        # is what was delivered, not what was requested.
        self._before = _delivered(self.task) if self.known else 0

    def renew(self) -> None:
        """Mark the start of another call in the same task.

        A request that has not been delivered counts for the new call, if it is new. Since Python
        3.13, a task group with a failed child repeats an old one, which leaves the count as it is.
        """
        known, self.known = self.known, self.requests()
        # A greater count is a new request, for this call if it was not delivered. An equal count
        # with an undelivered request is a repeated old one: all requests so far are old then.
        self._before = _delivered(self.task) if self.known > known else _requests(self.task)

    def is_cancel_delivered(self) -> bool:
        """Return whether the task has been cancelled since, and may have noticed."""
        return _delivered(self.task) > self._before

    def is_cancel_requested(self, task: object) -> bool:
        """Return whether a task has been cancelled since this one was at its mark."""
        return _requests(task) > self._before


def _delivered(task: object) -> int:
    """Return how many requests to end a task has received.

    A request that arrives while the task runs is delivered at its next wait. It does not count yet.
    """
    if not isinstance(task, asyncio.Task):
        return 0
    # `Task.cancel` of a task that runs sets this attribute, also in the C implementation. Our own
    # wakers may hold back a cancellation, too.
    is_to_come = getattr(task, "_must_cancel", False) or is_deferred(task)
    return _requests(task) - bool(is_to_come)


def _requests(task: object) -> int:
    """Return how often a task was cancelled from outside: without its inner scopes' requests."""
    if not isinstance(task, asyncio.Task):
        return 0
    inner: int = getattr(task, "inner_cancellations", 0)
    return task.cancelling() - inner


def is_cancellation(error: BaseException) -> bool:
    """Return whether asyncio or trio cancels tasks by this exception."""
    if isinstance(error, asyncio.CancelledError):
        return True
    trio = loaded_trio()
    return trio is not None and isinstance(error, trio.Cancelled)


def is_being_cancelled(since: Call | None) -> bool:
    """Return whether the running task itself was cancelled, not just something that it awaits.

    Args:
        since: the call since whose start requests count; ``None`` in a thread, which cannot be
            cancelled.
    """
    task = running_task()
    if since is None or task is None:
        return False
    return since.is_cancel_requested(task) or is_scope_cancelled()


def is_scope_cancelled() -> bool:
    """Return whether a scope around the running task is cancelled: each wait raises."""
    return bool(anyio.current_effective_deadline() == -math.inf)


def repeat_cancellation(since: Call) -> None:
    """Cancel the running task again, if it was cancelled and raises something else instead.

    `asyncio.TaskGroup` does the same: the failure is raised, and the cancellation is delivered at
    the next await. Two cases need no repetition. Before Python 3.13 the repeated cancellation would
    outlive its `asyncio.timeout`. A cancelled anyio scope around the task repeats by itself, and
    would not recognise our cancellation as its own.

    Args:
        since: the call since whose start requests count.
    """
    task = running_task()
    if (
        sys.version_info >= (3, 13)
        and isinstance(task, asyncio.Task)
        and since.is_cancel_delivered()
    ):
        if is_scope_cancelled():
            return
        # In a pair: the count stays as it is, and the next await raises.
        task.uncancel()
        task.cancel()


async def cancellation_to_raise() -> asyncio.CancelledError:
    """Return the exception to raise after `wait_shielded`, as the cancelled scope knows it."""
    task = running_task()
    try:
        if getattr(task, "_must_cancel", False):
            await asyncio.sleep(0)  # deliver a pending request now: it must not be delivered twice
        await anyio.lowlevel.checkpoint_if_cancelled()
    except asyncio.CancelledError as error:
        return error
    return asyncio.CancelledError()


_SCOPES: Final = frozenset(
    {"asyncio.taskgroups", "asyncio.timeouts", "anyio._backends._asyncio", "async_timeout"}
)
"""Modules whose scopes cancel the task inside them, and take the request back (or forget to)."""

_RUNNERS: Final = frozenset({"asyncio.runners", "uvloop"})
"""Modules that cancel all remaining tasks when the main task has ended."""


class WorkerTask(asyncio.Task[None]):
    """A task that distinguishes requests from outside from those of its own scopes.

    A task group, timeout or scope that the task has entered cancels it, and takes the request back
    on exit. Before Python 3.13 a task group may forget to. The task's count of requests then
    looks as if other code wanted the task to end. So this class counts the inner ones separately.
    """

    inner_cancellations: int = 0
    """How many of the requests in `cancelling` come from scopes inside the task."""

    repeats: int = 0
    """How many requests from outside a task group has taken back, and is about to repeat."""

    is_ending = False
    """Whether the task ends and is closing its resources."""

    worker: WorkerScope | None = None
    """The scope whose stop is delivered once."""

    def cancel(self, msg: Any | None = None) -> bool:
        caller = sys._getframe(1)
        if self.is_ending and _is_runner(caller):
            # The end of the program cancels all tasks once, and then waits for them. Here that
            # would interrupt the closing of a source, and leave its resources open.
            return False
        # The calling frame and anyio's message identify the caller: asyncio has nothing else.
        is_asked = super().cancel(msg)
        if is_asked and self.worker is not None and self.worker.is_stop_message(msg):
            self.worker.mark_delivered()
        elif is_asked and _is_scope(caller):
            # Since 3.13 a task group takes back a request from outside, and repeats it. The repeat
            # comes from outside, too, although the group makes the call.
            if self.repeats:
                self.repeats -= 1  # a task group makes both calls in one step
            else:
                self.inner_cancellations += 1
        return is_asked

    def uncancel(self) -> int:
        caller = sys._getframe(1)
        if self.inner_cancellations and _is_scope(caller):
            self.inner_cancellations -= 1
        elif caller.f_globals.get("__name__") == "asyncio.taskgroups":
            # The group takes back more than its own requests: one from outside.
            self.repeats = 1
        return super().uncancel()


def _is_scope(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") in _SCOPES


def _is_runner(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") in _RUNNERS


class ObservedCoroutine:
    """A coroutine for ``await`` that tells its worker's scope when the stop is thrown into it.

    For tasks that the program's own factory makes: a `WorkerTask` needs no such layer.
    """

    __slots__ = ("_coroutine", "_worker")

    def __init__(self, coroutine: Any, worker: WorkerScope) -> None:
        self._coroutine = coroutine  # `aioqueue.telemetry.explain.stacks` looks for this name
        self._worker = worker

    def __await__(self) -> Generator[Any, Any, Any]:
        return self  # an iterator with a coroutine's methods

    def __iter__(self) -> ObservedCoroutine:
        return self

    def __next__(self) -> Any:
        return self._coroutine.send(None)

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *raised: Any) -> Any:
        # The loop passes an instance, but `throw` takes a class, value and traceback, too.
        for one in raised:
            is_cancellation = isinstance(one, asyncio.CancelledError) and one.args
            if is_cancellation and self._worker.is_stop_message(one.args[0]):
                self._worker.mark_delivered()
        return self._coroutine.throw(*raised)

    def close(self) -> None:
        self._coroutine.close()


class AtStop(Enum):
    """What a stop of the coordinator does to a worker that is a task."""

    NOTHING = auto()
    END_WAITS = auto()
    CANCEL = auto()


class WorkerScope:
    """The scope around a worker that is a task; see the head of this module.

    The worker's task enters it. All else is to be called in the thread of its event loop.
    """

    def __init__(self) -> None:
        self._outer = anyio.CancelScope()
        # Its class is called directly: `anyio.CancelScope` finds out the running library each time.
        self._inner = type(self._outer)() if running_loop() is not None else None
        # anyio names the scope in the message of each cancellation that it sends. If it ever ceases
        # to, the stop is not recognised, and cancels each await, as any scope of anyio does.
        self._name = f"{id(self._outer):x}"
        self._shields: dict[anyio.CancelScope, None] = {}
        self.due: _DueStop | None = None
        """Ends waits, from the stop until it reaches the worker."""
        self._has_ended = False
        self.task: object = None
        self.filled_queue: object = None
        """The queue that a stop closes, and so ends the worker's enqueues."""
        self.should_stop: Callable[[], bool] = bool
        """Whether the stop was requested."""
        self.is_stopped: bool = False
        """Whether the stop was sent: as a cancellation, or only to end waits."""
        self.at_stop: AtStop = AtStop.NOTHING
        """What a stop that is still to come does."""
        self._is_cancelled = False
        self._is_delivered = False  # whether that has reached the worker
        self._is_repeated = False
        self._is_grace_over_first = False  # whether the grace has ended before the stop itself came

    def __enter__(self) -> Self:
        self.task = running_task()
        current_worker.set(self)
        if isinstance(self.task, WorkerTask):
            self.task.worker = self
        self._outer.__enter__()
        if self._inner is not None:
            self._inner.__enter__()
        if self.is_stopped:
            # The stop came before the first step: its scope is cancelled, and the waits that the
            # worker begins under a shield are ended from now on.
            self._set_due()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            if self._inner is not None:
                self._inner.__exit__(kind, error, traceback)
        finally:
            # The outer one in any case: left entered, it would cancel what the task does later.
            is_caught = self._outer.__exit__(kind, error, traceback)
            self.end()
        return bool(is_caught)

    def observed(self, coroutine: Any) -> Any:
        """Return what the worker's task is to await instead of its coroutine."""
        if self._inner is None or isinstance(self.task, WorkerTask):
            return coroutine
        return ObservedCoroutine(coroutine, self)

    def end(self) -> None:
        """Note that the worker has ended. What its tasks have left must not keep it alive."""
        self._clear_due()
        if isinstance(self.task, WorkerTask):
            self.task.worker = None
        self._has_ended, self.task = True, None
        self.filled_queue, self.should_stop = None, bool

    def is_stop_message(self, message: object) -> bool:
        if not (self._is_cancelled and isinstance(message, str)):
            return False
        name = message.partition(_SCOPE_PREFIX)[2].partition(" ")[0]
        return name.rstrip(";") == self._name

    def mark_delivered(self) -> None:
        self._clear_due()
        # From now on the outer scope cancels nothing more, and the clean-up may await. Not before:
        # a shield would keep the stop itself out.
        if self._inner is not None and self._is_cancelled:
            if self._is_repeated and not self._is_delivered:
                # The grace was over before the stop itself came, as in a loop that hangs. The outer
                # scope cancels once more right away; a shield would keep that out for good.
                self._set_due()
            else:
                self._inner.shield = True
            self._is_delivered = True

    def end_waits(self) -> None:
        """End the waits of the worker, and do not cancel it."""
        if not self.is_stopped:
            self.is_stopped = True
            self._set_due()

    def cancel(self) -> None:
        if self._is_cancelled:
            # `cancel_again` came first, and stood for this stop. So this one is the repeat.
            if self._is_grace_over_first:
                self.cancel_again()
            return
        self.is_stopped = self._is_cancelled = True
        if self._inner is not None:
            self._set_due()
        self._outer.cancel()

    def cancel_again(self) -> None:
        """Cancel the worker again after its grace period, or now if it was never cancelled."""
        if not self._is_cancelled:
            self.cancel()
            self._is_grace_over_first = True
        elif not self._is_repeated and not self._has_ended:
            self._is_repeated = True
            if self._inner is not None:
                # The outer scope is still cancelled: without the shield it cancels once more, and
                # `mark_delivered` sets the shield again.
                self._set_due()
                self._inner.shield = False
            for shield in self._shields:
                shield.shield = False

    @property
    def is_due(self) -> bool:
        """Whether the stop was sent, and has not reached the worker."""
        return self.due is not None

    @property
    def needs_wait_ends(self) -> bool:
        """Whether what the worker's task waits for may have to be ended one by one: in asyncio, as
        long as the stop has not reached it; in trio, where a shield may be around each."""
        return self.is_due or self._inner is None

    def end_wait(self, attempt: Attempt) -> None:
        """End a wait of the worker's own task."""
        end_wait(attempt)
        # The call raises because of the stop, so the worker has it. If the attempt was done before,
        # the call returns its result, and the stop is still to come.
        if attempt.is_withdrawn and self.is_due:
            self.mark_delivered()

    def note_call_end(self, error: BaseException, queue: object) -> None:
        """Note how a call of the worker ended. If the stop has closed the worker's queue, this is
        how the worker gets the stop, and the cancellation would come into its clean-up."""
        if not isinstance(error, QueueClosedError) or queue is not self.filled_queue:
            return
        is_own = self._inner is not None and self.task is running_task()
        if is_own and self.should_stop():
            if not self._is_cancelled:
                # The closed queue was faster than the cancellation. In this order: the shield is
                # there before the scope is cancelled, which therefore reaches nothing.
                self.is_stopped = self._is_cancelled = True
                self.mark_delivered()
                self._outer.cancel()
            elif self.is_due:
                self.mark_delivered()

    def shielded(self) -> AbstractContextManager[object]:
        """Return a shield that only the second stop opens."""
        return _WorkerShield(self._shields)

    def _set_due(self) -> None:
        if self.task is not None and self.due is None:
            self.due = _DueStop(self, self.task)

    def _clear_due(self) -> None:
        due, self.due = self.due, None
        if due is not None:
            due.leave()


class _DueStop(StopScope):
    """Ends a wait that begins while the stop is on its way, since a shield keeps it out: one of its
    worker, of a task that this has started, or of a thread that it waits for."""

    def __init__(self, worker: WorkerScope, task: object) -> None:
        super().__init__(task)
        self._worker = worker
        self._cancelled = True

    def _watch(self, watched: Any) -> bool:
        worker, task = self._worker, running_task()
        # Where no shield keeps it out, the cancellation itself is about to end the wait.
        if worker.is_due and not (task is not None and is_scope_cancelled()):
            if task is worker.task:
                worker.end_wait(watched.attempt)
            else:
                end_wait(watched.attempt)
        return False


class _WorkerShield:
    def __init__(self, among: dict[anyio.CancelScope, None]) -> None:
        self._among = among
        self._scope = anyio.CancelScope(shield=True)

    def __enter__(self) -> None:
        self._scope.__enter__()
        self._among[self._scope] = None

    def __exit__(self, *raised: Any) -> bool:
        self._among.pop(self._scope, None)
        return bool(self._scope.__exit__(*raised))


def shielded() -> AbstractContextManager[object]:
    """Return a shield for clean-up. In a worker, only the second stop opens it."""
    worker = current_worker.get()
    if isinstance(worker, WorkerScope) and worker.task is running_task():
        return worker.shielded()
    return anyio.CancelScope(shield=True)


def stop_workers(
    workers: Collection[WorkerScope],
    call_soon: Callable[[Callable[[], object]], object],
    how: Callable[[WorkerScope], object] = WorkerScope.cancel,
) -> None:
    """Stop workers, and end the waits in our calls that they have begun.

    Args:
        workers: their scopes.
        call_soon: makes a call in the next round of their event loop.
        how: the method that stops one.
    """
    for worker in workers:
        how(worker)
    if not workers:
        return
    # What a worker begins to wait for after this moment, its `_DueStop` ends.
    now = perf_counter()
    later: list[Attempt] = []
    known = set(map(id, workers))
    for attempt, waiting, worker in waits_of_workers():
        if id(worker) not in known or attempt.began > now:
            continue
        if waiting is worker.task:
            if worker.needs_wait_ends:
                worker.end_wait(attempt)
        elif isinstance(waiting, threading.Thread):
            end_wait(attempt)  # no cancellation reaches a thread
        else:
            later.append(attempt)  # of a task that it has started
    # A worker's own cancellation ends the tasks of its groups, in the order that its program
    # expects. So their waits have some rounds for that before they are ended from here.
    if later:
        _end_waits_after(_ROUNDS, call_soon, later)


def _end_waits_after(
    rounds: int, call_soon: Callable[[Callable[[], object]], object], attempts: list[Attempt]
) -> None:
    if rounds:
        call_soon(lambda: _end_waits_after(rounds - 1, call_soon, attempts))
        return
    for attempt in attempts:
        end_wait(attempt)
