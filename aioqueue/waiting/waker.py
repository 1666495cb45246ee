"""The base of every way of waiting, and the delivery of wakes.

A *waker* wakes the callers of one world: the tasks of one asyncio loop, the tasks of one trio run,
or one blocked thread. When an attempt ends, the machine notifies its waker (`Waker.notify`, under
the machine's lock, hence in the order of the grants) and returns the notified wakers. After the
release of the lock, `deliver` calls `Waker.wake` once for all attempts that ended in the move. So a
wake from another thread costs one call into the event loop, however many callers it wakes.

A blocked thread has a waker of its own for every wait, with a lock that is taken; the wake releases
it. The machine's lock decides whether a timeout or a grant came first, so grant and commit are one
step. The main thread is the exception: Ctrl-C can raise in it between the two, so they are two
steps there. `CallbackWaker` serves code without a thread or task to wait in.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from time import sleep
from typing import Any, Final, Protocol, TypeVar

from aioqueue.attempts import DONE, Attempt, Waker
from aioqueue.locks import OwnedLock
from aioqueue.waiting.caller import in_event_loop

__all__ = (
    "AsyncWaker",
    "CallbackWaker",
    "ThreadWaker",
    "apply_deferred",
    "defers_ctrl_c",
    "deliver",
    "enter",
    "lets_ctrl_c_in",
    "note_trio",
    "taken_out",
    "withdraw_all",
)

_GIVE_WAY: Final = 2e-5  # seconds: long enough for another thread to get the interpreter
_PATIENCE: Final = 100


class AsyncWaker(Waker, Protocol):
    """A waker whose callers are tasks. Only its own thread calls its methods."""

    def allowance(self) -> int:
        """Return how many elements tasks may now move without waiting before one must `pause`."""

    async def pause(self, n: int) -> None:
        """Let other tasks run, and deliver a cancellation: always, or from time to time.

        Args:
            n: how many elements are about to be moved.
        """

    def wait(self, attempt: Attempt) -> Awaitable[None]:
        """Sleep until the attempt is no longer pending. Await the result at once."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Callable[[], object]:
        """Call back after some seconds; return a function that cancels this."""

    def is_current(self) -> bool:
        """Return whether the running task belongs to this waker."""

    def runner(self) -> Any:
        """Return the running task; in code of the loop itself, the thread."""


class _Enterable(Protocol):
    """An object with a lock that knows its owner."""

    def is_entered_here(self) -> bool:
        """Return whether the calling thread holds the lock already."""


def enter(lock: OwnedLock) -> None:
    """Take the lock of a machine when another thread has it.

    That thread was interrupted in the middle of a move, which takes a microsecond. So this one
    gives way to it first, unless it runs an event loop. Waiting for the lock itself would be worse:
    it is handed to the waiting thread, which then waits for the interpreter; meanwhile the thread
    that has the interpreter finds the lock taken, and waits in turn. From then on every move would
    cost a switch of threads (a lock convoy).

    A thread that runs an event loop does not sleep here, since its tasks would wait, too; they wait
    only for the rest of that move. No convoy forms as long as the other threads give way. Without a
    global interpreter lock there is no interpreter to wait for, and no thread needs to give way.
    """
    if not (in_event_loop() or _runs_free()):
        for _ in range(_PATIENCE):
            sleep(_GIVE_WAY)
            if lock.acquire(False):
                return
    lock.acquire()


def _runs_free() -> bool:
    """Return whether threads run at the same time, without a global lock, at this moment."""
    is_enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)
    return is_enabled is not None and not is_enabled()


def deliver(wakers: Iterable[Waker], from_anywhere: bool = False) -> None:
    """Wake the wakers that a move of the machine has returned. Never call it with its lock held.

    If an event loop has been closed nothing is lost: its attempts are withdrawn, and what they were
    granted goes to the next in line.
    """
    for waker in wakers:
        abandoned = waker.wake(from_anywhere=from_anywhere) if from_anywhere else waker.wake()
        if abandoned:
            withdraw_all(abandoned)


def taken_out(notified: deque[Attempt]) -> list[Attempt]:
    """Remove and return all attempts that a waker was notified of.

    One by one, because other threads may add or remove attempts at the same time.
    """
    taken: list[Attempt] = []
    with suppress(IndexError):
        while True:
            taken.append(notified.popleft())
    return taken


def withdraw_all(attempts: Iterable[Attempt]) -> None:
    """Withdraw attempts whose owners will never run again, and wake those that profit from it."""
    waiting = deque(attempts)
    while waiting:
        attempt = waiting.popleft()
        assert attempt.host is not None
        waker: Any
        for waker in attempt.host.withdraw(attempt):
            waiting.extend(waker.wake())


def apply_deferred(move: Callable[..., Iterable[Waker]], *arguments: Any, **options: Any) -> None:
    """Make a move that may come at any time, and deliver the wakes.

    A signal handler, or a finalizer of a waiting coroutine, may call `Machine.close` or
    `Machine.withdraw` in the middle of a move of the same object and thread. The move cannot be
    made there, so another thread makes it.

    Args:
        move: a bound method that returns the wakers to wake.
        *arguments: its positional arguments.
        **options: its keyword arguments.
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
    """Decorate a function in which, in trio, Ctrl-C must not raise, nor in what it calls.

    The main task raises it at its next wait instead. Code that opens or closes a nursery, or
    reports a worker's end, must not be left in the middle. (Trio 0.26 and 0.27 know no such marks.)
    """
    return _note(function, True)


def lets_ctrl_c_in(function: FunctionT) -> FunctionT:
    """Decorate a function in which, in trio, Ctrl-C may raise, whatever calls it: user code."""
    return _note(function, False)


def note_trio(mark: Callable[[Any, bool], object]) -> None:
    """Mark the decorated functions, present and future ones, once trio is in use.

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


_main_ident = threading.main_thread().ident


def _note_main_thread() -> None:
    global _main_ident
    _main_ident = threading.main_thread().ident


if hasattr(os, "register_at_fork"):
    # The thread that forks is the main thread of the child.
    os.register_at_fork(after_in_child=_note_main_thread)


class ThreadWaker:
    """The waker of one thread that waits for one attempt."""

    __slots__ = ("_asleep", "two_step")

    def __init__(self) -> None:
        self.two_step: bool = threading.get_ident() == _main_ident
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def notify(self, attempt: Attempt, /) -> None:
        """Do nothing: there is only one attempt."""

    def wake(self, from_anywhere: bool = False) -> Iterable[Attempt]:
        try:
            self._asleep.release()
        except RuntimeError:
            pass  # it was woken already, but has not run yet
        return ()

    def is_dead(self) -> bool:
        return False

    def wait(self, seconds: float | None) -> bool:
        """Sleep until woken, for ``seconds`` at most; return whether it was woken."""
        if seconds is None:
            return self._asleep.acquire()
        return self._asleep.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))


class CallbackWaker:
    """Calls back, in the thread that ends the attempt.

    `wake` is called with no lock of a machine held, by the caller that makes the move: any thread,
    a signal handler or a finalizer. It may be called more often than needed, so the callback must
    tolerate a second call.

    Args:
        attempt: the attempt to wait for.
        callback: called when the attempt is done; it must neither wait nor raise.
    """

    __slots__ = ("_attempt", "_callback", "two_step")

    def __init__(self, attempt: Attempt, callback: Callable[[], object]) -> None:
        self.two_step: bool = False
        # Kept only until the call: the attempt refers to this waker, and the callback may, too.
        self._attempt: Attempt | None = attempt
        self._callback: Callable[[], object] | None = callback

    def notify(self, attempt: Attempt, /) -> None:
        """Do nothing: there is only one attempt."""

    def wake(self, from_anywhere: bool = False) -> Iterable[Attempt]:
        attempt, callback = self._attempt, self._callback
        if attempt is not None and callback is not None and attempt.state is DONE:
            callback()
            self.forget()
        return ()

    def forget(self) -> None:
        """Cancel the callback."""
        self._attempt = self._callback = None

    def is_dead(self) -> bool:
        return False
