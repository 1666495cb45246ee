"""Cancel scopes for threads, which end blocking calls as in anyio and trio; and a gate to wait at.

A blocked thread cannot be cancelled as a task can. But the attempt that it waits for can be
withdrawn, under the lock of the queue. So either the call has happened, or nothing has.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from time import perf_counter
from types import TracebackType
from typing import Any, Final, Self
from weakref import WeakValueDictionary

from aioqueue.base.arguments import checked_seconds
from aioqueue.base.public_names import public
from aioqueue.core.attempts import DONE, PENDING, WITHDRAWN, Attempt, UntilDone, Waker
from aioqueue.errors import CancelledError, DeadlineExceededError, counted
from aioqueue.system.forks import living_queues
from aioqueue.system.locks import is_held_here, synchronized
from aioqueue.worlds.waker import AsyncWaker, Owner, ThreadWaker, apply_deferred, current_worker


class _Scopes(threading.local):
    """The scopes that the calling thread is in, outermost first."""

    entered: tuple[CancelScope, ...] = ()


_scopes = _Scopes()


def entered_scopes() -> tuple[CancelScope, ...]:
    return _scopes.entered


def current_scopes() -> tuple[CancelScope, ...]:
    """Return the scopes that end the calling thread's waits: its own and its coordinator's."""
    if not active_stops:
        return _scopes.entered
    return (*stop_scopes(threading.current_thread()), *_scopes.entered)


def stop_scopes(worker: object) -> tuple[CancelScope, ...]:
    """Return the scopes with which the stop of a coordinator ends a thread's or task's waits."""
    if not active_stops:
        return ()
    scope = _stops.get(id(worker))
    found = () if scope is None else scope.chain()
    belongs_to = current_worker.get()
    due: CancelScope | None = None if belongs_to is None else belongs_to.due
    return found if due is None or due in found else (*found, due)


def is_stopped(worker: object) -> bool:
    return any(scope.cancelled for scope in stop_scopes(worker))


def cancelled_by(scopes: Iterable[CancelScope]) -> str:
    if any(scope.cancelled for scope in scopes if not isinstance(scope, StopScope)):
        return "cancelled by its CancelScope"
    return "ended by the stop of its coordinator"


def seconds_left(scopes: Iterable[CancelScope], timeout: float | None) -> float | None:
    """Return the seconds until the earliest deadline; ``None`` if no scope has one."""
    limits = [scope.deadline - perf_counter() for scope in scopes if scope.deadline is not None]
    if timeout is not None:
        limits.append(timeout)
    return max(0.0, min(limits)) if limits else None


class _Watched:
    """An attempt that a thread waits for in a scope, as a host for `apply_deferred`."""

    __slots__ = ("attempt", "began")

    def __init__(self, attempt: Attempt, began: float) -> None:
        self.attempt = attempt
        self.began = began

    def is_entered_here(self) -> bool:
        host: Any = self.attempt.host
        return bool(host.is_entered_here())

    def end(self) -> Collection[Waker]:
        """Withdraw it, unless it has ended; return the wakers to wake, its owner's among them."""
        attempt = self.attempt
        assert attempt.host is not None
        assert attempt.waker is not None
        state = attempt.state
        if state is WITHDRAWN:  # a signal handler may have raised before all were woken
            attempt.waker.notify(attempt)
            return (*attempt.host.withdraw(attempt), attempt.waker)
        if state is not PENDING:
            return ()
        waited = perf_counter() - self.began
        # The host's lock decides between this withdrawal and a grant that comes at the same time.
        wakers = attempt.host.withdraw(attempt, waited, if_pending=True)
        if attempt.state is WITHDRAWN:
            # A withdrawal notifies nobody, since its maker is usually the owner. Here the owner
            # sleeps. If the grant came first, it is woken once more, which does no harm.
            attempt.waker.notify(attempt)
        return (*wakers, attempt.waker)


@public("aioqueue.sync", hints="coordinators")
class CancelScope:
    """Lets any thread cancel the blocking calls made in ``with scope:``.

    A call that waits when `cancel` is called, or would have to wait afterwards, raises
    `CancelledError`, and it did not happen: a dequeue leaves every element in the queue, first in
    line; an `enqueue` has put nothing in; an `enqueue_many` has put in a prefix, and the exception
    says how many rows. A call that need not wait is not affected.

    Scopes nest. Several threads may enter one scope, and you may enter it again after leaving it. A
    thread that you start inside the scope is not in it.

    Args:
        timeout: seconds from now, after which calls that wait raise `DeadlineExceededError`. It is
            one limit for all calls together. ``None`` for no limit.

    Raises:
        InvalidArgumentError: the timeout is not a number of seconds.
    """

    def __init__(self, timeout: float | None = None) -> None:
        if timeout is not None:
            timeout = checked_seconds(timeout, "timeout", otherwise=", or None")
        self._deadline = None if timeout is None else perf_counter() + timeout
        self._lock = threading.RLock()  # guards everything below; a signal handler may cancel
        self._cancelled = False
        self._watched: dict[Attempt, _Watched] = {}

    def __repr__(self) -> str:
        state = "cancelled" if self._cancelled else f"{counted(len(self._watched), 'call')} waiting"
        return f"<{type(self).__module__}.{type(self).__name__}, {state}>"

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` has been called."""
        return self._cancelled

    @property
    def deadline(self) -> float | None:
        """When its time expires, on the clock of `time.perf_counter`; ``None`` for no limit."""
        return self._deadline

    def cancel(self) -> None:
        """Cancel the calls that wait in the scope, and those that will have to wait.

        The call returns at once. Any thread, task or signal handler may make it, more than once.
        """
        try:
            self._end_all()
        except BaseException:
            self._end_all()  # a signal handler has raised in the middle: finish what began
            raise

    def _end_all(self) -> None:
        for one in self._cancel():
            apply_deferred(one.end)

    def __enter__(self) -> Self:
        _scopes.entered = (*_scopes.entered, self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        entered = list(_scopes.entered)
        # From the innermost outwards: the thread may have entered the same scope twice.
        for place in range(len(entered) - 1, -1, -1):
            if entered[place] is self:
                del entered[place]
                break
        _scopes.entered = tuple(entered)

    @synchronized
    def _cancel(self) -> list[_Watched]:
        self._cancelled = True
        return list(self._watched.values())

    @synchronized
    def _watch(self, watched: _Watched) -> bool:
        """Add a call that waits; return whether the scope was cancelled."""
        self._watched[watched.attempt] = watched
        return self._cancelled  # read after the insertion: a signal handler may cancel in between

    @synchronized
    def _unwatch(self, attempt: Attempt) -> None:
        self._watched.pop(attempt, None)


class StopScope(CancelScope):
    """Ends the calls in which a worker waits when its coordinator stops.

    The worker does not enter it: its thread or task identifies it. The registration ends with the
    last reference to the scope.

    Args:
        worker: the thread or task.

    Attributes:
        key: the id of the worker.
    """

    def __init__(self, worker: object) -> None:
        super().__init__()
        self.key: int = id(worker)
        self._previous = _stops.get(self.key)  # of another coordinator with the same worker
        _stops[self.key] = self

    def leave(self) -> None:
        """Exempt the calling worker: from now on it may wait, despite a stop."""
        if _stops.get(self.key) is not self:
            return  # another coordinator has registered the same worker since
        if self._previous is None:
            _stops.pop(self.key, None)
        else:
            _stops[self.key] = self._previous

    def chain(self) -> tuple[CancelScope, ...]:
        """Return this scope, and those that were registered before it."""
        return (self,) if self._previous is None else (self, *self._previous.chain())

    @synchronized
    def renew(self) -> None:
        self._cancelled = False


_stops: Final[WeakValueDictionary[int, StopScope]] = WeakValueDictionary()
active_stops: Final[dict[int, Any]] = _stops.data  # type: ignore[attr-defined]
"""The dict inside: each call that waits asks whether it is empty. The truth of the outer one is
Python code, and costs as much as taking a lock. A call that waits often looks here itself."""


def watch(scopes: Iterable[CancelScope], attempt: Attempt, began: float) -> None:
    """Let scopes end a call that begins to wait; end it now if one of them was cancelled.

    Args:
        scopes: the scopes that the calling thread is in.
        attempt: the attempt that the call waits for; it has begun.
        began: when, on the clock of `time.perf_counter`.
    """
    for scope in scopes:
        watched = _Watched(attempt, began)
        # Registered before the flag is read. So a `cancel` in another thread either finds the call,
        # or has set the flag by now.
        if scope._watch(watched):
            apply_deferred(watched.end)


def unwatch(scopes: Iterable[CancelScope], attempt: Attempt) -> None:
    for scope in scopes:
        scope._unwatch(attempt)


def end_wait(attempt: Attempt) -> None:
    """End a call that waits, unless it has ended: its caller raises `CancelledError`."""
    if attempt.state is PENDING and attempt.host is not None:
        apply_deferred(_Watched(attempt, attempt.began or perf_counter()).end)


_registered: Final[dict[Attempt, tuple[object, object]]] = {}
"""The attempts of calls that wait at no queue, each with the thread or task that waits, and the
worker that this belongs to."""


def register_wait(attempt: Attempt, waiting: object) -> None:
    """Note a call that begins to wait at no queue: its worker may be registered meanwhile.

    Args:
        attempt: what it waits for.
        waiting: the thread or task.
    """
    _registered[attempt] = (waiting, current_worker.get())


def unregister_wait(attempt: Attempt) -> None:
    """Forget such a call, which has ended."""
    _registered.pop(attempt, None)


def all_waits() -> list[tuple[Attempt, object]]:
    """Return what threads and tasks wait for in our calls: each attempt with who waits."""
    found = [
        (attempt, owner.thing)
        for queue in living_queues()
        for attempt in queue.machine.waiting()
        if (owner := attempt.owner) is not None
    ]
    return found + [(attempt, waiting) for attempt, (waiting, _) in list(_registered.items())]


def waits_of_workers() -> list[tuple[Attempt, object, Any]]:
    """Return what workers that are tasks wait for in our calls, wherever: each attempt with the
    task or thread that waits, and the worker that this belongs to (`current_worker`)."""
    found: list[tuple[Attempt, object, Any]] = [
        (attempt, owner.thing, owner.worker)
        for queue in living_queues()
        for attempt in queue.machine.waiting()
        if (owner := attempt.owner) is not None and owner.worker is not None
    ]
    for attempt, (waiting, worker) in list(_registered.items()):
        if worker is not None:
            found.append((attempt, waiting, worker))
    return found


def end_joins_of(owner: Owner) -> None:
    """End the joins in which the owner of a coordinator's block waits, since that has stopped.

    They would wait for workers that have ended. The owner is no worker, and its other calls wait
    for queues that a stop closes. What it begins after the stop may wait: it can know of that.
    """
    thing = owner.thing
    for attempt, (waiting, _) in list(_registered.items()):
        if waiting is thing and thing is not None and isinstance(attempt, UntilDone):
            apply_deferred(_Watched(attempt, attempt.began).end)


class _Passage(Attempt):
    """One caller that waits at the gate."""

    __slots__ = ()


class Gate:
    """A gate at which tasks of any event loop and threads wait together, until it is opened.

    It is an event for all worlds at once, shut at first. Any thread or task may open it, and shut
    it again. It waits with the wakers that queues use. So an opening costs one wake per waker,
    however many callers wait, and nothing polls.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards everything below; it recognises finalizers
        self._is_open = False
        self._waiting: dict[Attempt, None] = {}

    def __repr__(self) -> str:
        waiting = sum(one.state is PENDING for one in list(self._waiting))
        state = "open" if self._is_open else f"{counted(waiting, 'call')} waiting"
        return f"<{type(self).__module__}.{type(self).__name__}, {state}>"

    @property
    def is_open(self) -> bool:
        """Whether callers pass without waiting."""
        return self._is_open

    def open(self) -> None:
        """Let all callers pass: those that wait now, and those that come later."""
        try:
            apply_deferred(self._open)
        except BaseException:
            apply_deferred(self._open)  # a signal handler has raised before all were woken
            raise

    @synchronized
    def shut(self) -> None:
        """Make callers wait that come from now on."""
        self._is_open = False

    async def wait(self, waker: AsyncWaker, *, until_stop: bool = False) -> None:
        """Wait until the gate is open.

        Args:
            waker: the caller's waker.
            until_stop: whether the stop of the calling worker ends the wait, under a shield, too.

        Raises:
            CancelledError: that stop has come.

        Cancellation:
            A cancelled call has changed nothing.
        """
        passage = _Passage()
        if self._begin(passage, waker):
            await waker.pause(1)
            return
        runner = waker.runner()
        scopes = stop_scopes(runner) if until_stop else ()
        try:
            if until_stop:
                passage.began = perf_counter()
                register_wait(passage, runner)
                watch(scopes, passage, passage.began)
            await waker.wait(passage)
            if passage.state is WITHDRAWN:  # by the stop: a cancellation raises in the line above
                raise CancelledError(f"the wait was {cancelled_by(scopes)}")
        finally:
            unregister_wait(passage)
            unwatch(scopes, passage)
            apply_deferred(self.withdraw, passage)

    def wait_blocking(
        self, timeout: float | None = None, scopes: Collection[CancelScope] | None = None
    ) -> bool:
        """Wait until the gate is open, or for ``timeout`` seconds; return whether it is open.

        Args:
            timeout: seconds to wait at most; ``None`` for no limit.
            scopes: the scopes that end the wait. ``None`` stands for those that the thread has
                entered, without the stop of its coordinator: clean-up after the stop waits so.

        Raises:
            CancelledError: a `CancelScope` around the call was cancelled.
            DeadlineExceededError: the deadline of such a scope came before the timeout.
        """
        passage, waker = _Passage(), ThreadWaker()
        if self._begin(passage, waker):
            return True
        began = perf_counter()
        deadline = None if timeout is None else began + timeout
        scopes = entered_scopes() if scopes is None else scopes
        try:
            watch(scopes, passage, began)
            sleep_while_pending(passage, waker, scopes, deadline)
            if passage.state is WITHDRAWN:
                raise CancelledError(f"the wait was {cancelled_by(scopes)}")
        finally:
            apply_deferred(self.withdraw, passage)
            unwatch(scopes, passage)
        if passage.state is not DONE and (deadline is None or perf_counter() < deadline):
            raise DeadlineExceededError("the deadline of the CancelScope has passed")
        return passage.state is DONE

    # What wakers and `apply_deferred` require of a host, as of a machine.

    @synchronized
    def withdraw(
        self, attempt: Attempt, waited: float = 0.0, *, if_pending: bool = False
    ) -> Collection[Waker]:
        """End the wait of a caller, however it ends."""
        self._waiting.pop(attempt, None)
        if attempt.state is PENDING:
            attempt.state = WITHDRAWN
        return ()

    def is_entered_here(self) -> bool:
        return is_held_here(self._lock)

    @synchronized
    def _begin(self, passage: Attempt, waker: Waker) -> bool:
        if self._is_open:
            return True
        passage.host = self
        passage.waker = waker
        self._waiting[passage] = None
        return False

    @synchronized
    def _open(self) -> Collection[Waker]:
        """Let all pass that wait; return the wakers to wake.

        Each removes itself. Those that were let pass before are woken once more: a signal handler
        may have raised before their wake. Those that have not left by then never will.
        """
        wakers: dict[Waker, None] = {}
        self._is_open = True
        for passage in list(self._waiting):
            assert passage.waker is not None
            if passage.state is PENDING:
                passage.state = DONE
            else:  # let pass by an earlier call, and still here: see above
                self._waiting.pop(passage, None)
            passage.waker.notify(passage)
            wakers[passage.waker] = None
        return wakers


def sleep_while_pending(
    attempt: Attempt,
    waker: ThreadWaker,
    scopes: Collection[CancelScope],
    deadline: float | None,
) -> None:
    """Block a thread until an attempt is no longer pending, or a deadline has come."""
    while attempt.state is PENDING:
        left = None if deadline is None else deadline - perf_counter()
        least = seconds_left(scopes, left) if scopes else left
        if least is not None and least <= 0:
            break
        waker.wait(least)  # it may return slightly early
