"""What every way of waiting has in common, and how wakes are delivered.

A *waker* wakes the callers of one world: the tasks of one asyncio loop, the tasks of one trio run,
one blocked thread. When an attempt ends, the machine notifies its waker (`Waker.notify`, under the
machine's lock, so in the order of the grants) and returns the wakers it has notified; `deliver`
calls `Waker.wake` when the lock is released: once for all attempts that ended in one move, so a
wake from a foreign thread costs one call into the event loop, however many callers it is for.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from time import sleep
from typing import Any, Final, Protocol, TypeVar

from aioqueue.attempts import Attempt, Waker
from aioqueue.locks import OwnedLock
from aioqueue.waiting.caller import in_event_loop

__all__ = (
    "AsyncWaker",
    "apply_deferred",
    "defers_ctrl_c",
    "deliver",
    "enter",
    "lets_ctrl_c_in",
    "note_trio",
    "taken_out",
    "withdraw_all",
)

_WAY: Final = 2e-5  # seconds: long enough for another thread to be let in
_PATIENCE: Final = 100


class AsyncWaker(Waker, Protocol):
    """A waker whose callers are tasks. Its methods are called in its own thread only."""

    def allowance(self) -> int:
        """How many elements tasks may now move without waiting before one must `pause`."""

    async def pause(self, n: int) -> None:
        """Let others run, and be cancelled if that was asked for; once in a while, or always.

        Args:
            n: how many elements are about to be moved.
        """

    def wait(self, attempt: Attempt) -> Awaitable[None]:
        """Sleep until the attempt is no longer pending; to be awaited at once."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Callable[[], object]:
        """Call back after some seconds; returns what cancels that."""

    def is_current(self) -> bool:
        """Whether the task that is running belongs to this waker."""

    def runner(self) -> Any:
        """The task that is running; where it is code of the loop itself, the thread."""


class _Enterable(Protocol):
    """Something with a lock that knows its owner."""

    def is_entered_here(self) -> bool:
        """Whether the calling thread holds the lock already."""


def enter(lock: OwnedLock) -> None:
    """Take the lock of a machine, which another thread was found to have.

    That thread was interrupted in the middle of its move, which takes a microsecond, so it is given
    way, unless this one runs an event loop. To wait for the lock itself would be worse: a
    thread that waits is given it, and then waits for the interpreter; meanwhile the one that has
    the interpreter finds the lock taken, and waits in turn. From then on every move would
    cost a switch of threads.

    Nothing waits by sleeping on an event loop. What keeps its tasks is then the rest of that move,
    and no time of ours. No convoy forms as long as the threads beside it give way. Where there
    is no interpreter to wait for, since there is no global lock, no thread has to.
    """
    if not (in_event_loop() or _runs_free()):
        for _ in range(_PATIENCE):
            sleep(_WAY)
            if lock.acquire(False):
                return
    lock.acquire()


def _runs_free() -> bool:
    """Whether threads run without waiting for each other's interpreter, as of now."""
    is_enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)
    return is_enabled is not None and not is_enabled()


def deliver(wakers: Iterable[Waker], *, from_anywhere: bool = False) -> None:
    """Wake wakers that the machine has named. Never call it with a machine's lock held.

    Where an event loop has been closed nothing is lost: its attempts are withdrawn, and what they
    had been granted serves the next in line.
    """
    for waker in wakers:
        abandoned = waker.wake(from_anywhere=from_anywhere) if from_anywhere else waker.wake()
        if abandoned:
            withdraw_all(abandoned)


def taken_out(notified: deque[Attempt]) -> list[Attempt]:
    """All attempts that a waker was notified of, which it has no more.

    One by one: another thread may notify it of more, or take some out, at the same time.
    """
    taken: list[Attempt] = []
    with suppress(IndexError):
        while True:
            taken.append(notified.popleft())
    return taken


def withdraw_all(attempts: Iterable[Attempt]) -> None:
    """Withdraw attempts whose owners will never run again, and deliver the wakes of that."""
    waiting = deque(attempts)
    while waiting:
        attempt = waiting.popleft()
        assert attempt.host is not None
        waker: Any
        for waker in attempt.host.withdraw(attempt):
            waiting.extend(waker.wake())


def apply_deferred(move: Callable[..., Iterable[Waker]], *arguments: Any, **options: Any) -> None:
    """Make a move that may come at any time, and deliver the wakes.

    Such as `Machine.close` and `Machine.withdraw`, which a signal handler may call, or a finalizer
    of a waiting coroutine, in the middle of a move of the same object and thread. Then it cannot be
    made here, so it is left to a thread.

    Args:
        move: a bound method that returns the wakers to wake.
        *arguments: what to call it with.
        **options: the same, by name.
    """
    owner: _Enterable = move.__self__  # type: ignore[attr-defined]

    def make() -> None:
        deliver(move(*arguments, **options), from_anywhere=True)

    if owner.is_entered_here():
        threading.Thread(target=make, name="aioqueue-deferred-move", daemon=True).start()
    else:
        make()


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_noted: list[tuple[Any, bool]] = []
_mark: list[Callable[[Any, bool], object]] = []


def defers_ctrl_c(function: FunctionT) -> FunctionT:
    """A decorator: in trio, Ctrl-C does not strike in a function or in what it calls.

    It then raises at the next wait of the main task. What opens or closes a nursery, or says how a
    worker has ended, must not be left in the middle. (Trio 0.26 and 0.27 know no such functions.)
    """
    return _note(function, True)


def lets_ctrl_c_in(function: FunctionT) -> FunctionT:
    """A decorator: in trio, Ctrl-C strikes in a function, wherever it is called: code of users."""
    return _note(function, False)


def note_trio(mark: Callable[[Any, bool], object]) -> None:
    """Trio is used: mark the functions that were decorated, and those that will be.

    Args:
        mark: called with a function, and whether it defers Ctrl-C.
    """
    _mark.append(mark)
    for function, defers in _noted:
        mark(function, defers)


def _note(function: FunctionT, defers: bool) -> FunctionT:
    _noted.append((function, defers))
    for mark in _mark:
        mark(function, defers)
    return function
