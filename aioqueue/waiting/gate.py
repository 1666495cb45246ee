"""A gate at which tasks of any event loop and threads wait together, until it is opened.

It is an event for all worlds at once. It waits with the wakers that queues use. So an opening costs
one wake per waker, however many callers wait, and nothing polls.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from time import perf_counter

from aioqueue.attempts import DONE, PENDING, WITHDRAWN, Attempt, Waker
from aioqueue.errors import CancelledError, DeadlineExceededError, counted
from aioqueue.locks import guarded, is_held_here
from aioqueue.waiting.scopes import (
    CancelScope,
    cancelled_by,
    entered_scopes,
    least_left,
    unwatch,
    watch,
)
from aioqueue.waiting.waker import AsyncWaker, ThreadWaker, apply_deferred

__all__ = ("Gate", "sleep_while_pending")


class _Passage(Attempt):
    """One caller that waits at the gate."""

    __slots__ = ()


class Gate:
    """Shut at first. Any thread or task may open it, and shut it again."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards everything below; it recognises finalizers
        self._is_open = False
        self._waiting: dict[Attempt, None] = {}

    def __repr__(self) -> str:
        state = "open" if self._is_open else f"{counted(len(self._waiting), 'call')} waiting"
        return f"<{type(self).__module__}.{type(self).__name__}, {state}>"

    @property
    def is_open(self) -> bool:
        """Whether callers pass without waiting."""
        return self._is_open

    def open(self) -> None:
        """Let all callers pass: those that wait now, and those that come later."""
        apply_deferred(self._open)

    @guarded
    def shut(self) -> None:
        """Make callers wait that come from now on."""
        self._is_open = False

    async def wait(self, waker: AsyncWaker) -> None:
        """Wait until the gate is open.

        Args:
            waker: the caller's waker.

        Cancellation:
            A cancelled call has changed nothing.
        """
        passage = _Passage()
        if self._begin(passage, waker):
            await waker.pause(1)
            return
        try:
            await waker.wait(passage)
        except BaseException:
            apply_deferred(self.withdraw, passage)
            raise

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

    @guarded
    def withdraw(
        self, attempt: Attempt, waited: float = 0.0, *, if_pending: bool = False
    ) -> Collection[Waker]:
        """End the wait of a caller that was cancelled."""
        if attempt.state is PENDING:
            self._waiting.pop(attempt, None)  # an interrupted `_open` may have removed it
            attempt.state = WITHDRAWN
        return ()

    def is_entered_here(self) -> bool:
        """Return whether the calling thread holds the lock already."""
        return is_held_here(self._lock)

    @guarded
    def _begin(self, passage: Attempt, waker: Waker) -> bool:
        if self._is_open:
            return True
        passage.host = self
        passage.waker = waker
        self._waiting[passage] = None
        return False

    @guarded
    def _open(self) -> Collection[Waker]:
        wakers: dict[Waker, None] = {}
        self._is_open = True
        for passage in self._waiting:
            passage.state = DONE
            assert passage.waker is not None
            passage.waker.notify(passage)
            wakers[passage.waker] = None
        self._waiting.clear()
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
        least = least_left(scopes, left) if scopes else left
        if least is not None and least <= 0:
            break
        waker.wait(least)  # it may return slightly early
