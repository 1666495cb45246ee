"""Waiting in trio. Imported only while trio is running, so aioqueue does not depend on it.

There is one waker per `trio.run`. In trio, a rescheduled task runs before it can be cancelled. The
abort function, which trio calls, withdraws an attempt that is still pending, and otherwise reports
failure. So grant and commit are one step here.

Every operation is a checkpoint, in two halves: it looks for a cancellation first, then makes its
move, and then lets other tasks run under a shield. So tasks are in line in the order in which they
first run, and a cancelled call has moved nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from time import perf_counter
from typing import Any, Final

import trio

from aioqueue.core.attempts import Attempt, AttemptState
from aioqueue.worlds.waker import deliver, drain_notified, register_marker

_WOKEN: Final = object()
_thread_local = threading.local()


class TrioWaker:
    """The waker of one trio run's tasks."""

    __slots__ = ("_is_over", "_notified", "_token", "next_round", "notify", "two_step")

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self.two_step: bool = False
        self.next_round: Awaitable[None] | None = None  # each call has been a checkpoint already
        self._token = token
        self._is_over = False
        self._notified: deque[Attempt] = deque()
        self.notify: Callable[[Attempt], None] = self._notified.append

    def wake(self, from_anywhere: bool = False) -> Iterable[Attempt]:
        if not from_anywhere and self.is_current():
            self._resume()
            return ()
        try:
            self._token.run_sync_soon(self._resume, idempotent=True)
        except trio.RunFinishedError:
            self._is_over = True
            return drain_notified(self._notified)
        return ()

    def is_dead(self) -> bool:
        return self._is_over

    def is_current(self) -> bool:
        return trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is self._token

    def runner(self) -> Any:
        return trio.lowlevel.current_task()

    async def wait(self, attempt: Attempt) -> None:
        if attempt.waiter is _WOKEN:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        attempt.waiter = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            assert attempt.host is not None
            waited = perf_counter() - attempt.began if attempt.began else 0.0
            deliver(attempt.host.withdraw(attempt, waited, if_pending=True))
            if attempt.state is AttemptState.WITHDRAWN:
                attempt.waiter = None  # a stop may have withdrawn it, and would wake it later
                return trio.lowlevel.Abort.SUCCEEDED
            return trio.lowlevel.Abort.FAILED  # it has ended, and its wake is on the way

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def wait_shielded(self, attempt: Attempt) -> None:
        with trio.CancelScope(shield=True):
            while attempt.state is AttemptState.PENDING:
                await self.wait(attempt)

    def cancellations(self) -> int:
        return 0  # a cancelled scope is seen at each checkpoint

    def defer(self, error: BaseException, asked: int) -> bool:
        return isinstance(error, trio.Cancelled)  # the next checkpoint raises it anew

    def has_woken(self, attempt: Attempt) -> bool:
        return attempt.waiter is _WOKEN

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Callable[[], object]:
        scope = trio.CancelScope()

        async def timer() -> None:
            with scope:
                await trio.sleep(seconds)
                callback()

        trio.lowlevel.spawn_system_task(timer)
        return scope.cancel

    def allowance(self) -> int:
        return 0  # every operation is a checkpoint in trio

    def renew_budget(self) -> int:
        return 0

    def spend(self, n: int) -> bool:
        return True

    def await_first(self) -> Awaitable[None] | None:
        return trio.lowlevel.checkpoint_if_cancelled()  # noqa: ASYNC105  # the caller awaits it

    async def pause(self, n: int) -> None:
        await trio.lowlevel.checkpoint()

    async def yield_shielded(self) -> None:
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def yield_cancellable(self) -> None:
        await trio.lowlevel.cancel_shielded_checkpoint()

    def _resume(self) -> None:
        while self._notified:
            attempt = self._notified.popleft()
            task, attempt.waiter = attempt.waiter, _WOKEN
            if task is not None and task is not _WOKEN:
                trio.lowlevel.reschedule(task)


def current_trio_waker() -> TrioWaker:
    token = trio.lowlevel.current_trio_token()
    waker: TrioWaker | None = getattr(_thread_local, "waker", None)
    if waker is None or waker._token is not token:
        if waker is not None:
            waker._is_over = True  # a thread has one run at a time, so that one has ended
        waker = _thread_local.waker = TrioWaker(token)
    return waker


def _mark(function: Any, defers: bool) -> None:
    low = trio.lowlevel
    (low.enable_ki_protection if defers else low.disable_ki_protection)(function)


register_marker(_mark)
