"""What every way of waiting has in common, and how wakes are delivered.

A *lane* is where callers of one world wait: the tasks of one asyncio loop, the tasks of one trio
run, one blocked thread. The machine posts an attempt in its lane when it ends (`Lane.post`, under
the machine's lock, so in the order of the grants) and names the lane; `deliver` kicks it when the
lock is released. A lane is kicked once for all attempts that ended in one move, and a kick from a
foreign thread costs one crossing, however many callers it wakes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from time import sleep
from typing import Any, Final, Protocol

from aioqueue.attempts import Attempt, Lane
from aioqueue.locks import OwnedLock

__all__ = ("AsyncLane", "KickableLane", "deliver", "enter", "tell", "withdraw_all")

_WAY: Final = 2e-5  # seconds: long enough for another thread to be let in
_PATIENCE: Final = 100


class KickableLane(Lane, Protocol):
    """A lane as the shell knows it."""

    def kick(self, *, from_anywhere: bool = False) -> Iterable[Attempt]:
        """Wake the owners of the attempts posted; return those whose world has ended.

        May be called from any thread, and more often than something was posted.

        Args:
            from_anywhere: it may come from a signal handler, which a sleeping event loop does not
                notice, though it is of the same thread.
        """

    def is_dead(self) -> bool:
        """Whether the world of this lane has ended, so that no one in it will ever run again."""


class AsyncLane(KickableLane, Protocol):
    """A lane whose callers are tasks. Its methods are called in its own thread only."""

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
        """Whether the task that is running belongs to this lane."""


class _Enterable(Protocol):
    """Something with a lock that knows its owner."""

    def is_entered_here(self) -> bool:
        """Whether the calling thread holds the lock already."""


def enter(lock: OwnedLock) -> None:
    """Take the lock of a machine, which another thread was found to have.

    That thread was interrupted in the middle of its move, which takes a microsecond, so it is given
    way. To wait for the lock itself would be worse: whoever waits is handed it, and then waits for
    the interpreter; meanwhile the one that has the interpreter finds the lock taken, and waits in
    turn. From then on every move would cost a switch of threads.
    """
    for _ in range(_PATIENCE):
        sleep(_WAY)
        if lock.acquire(False):
            return
    lock.acquire()


def deliver(lanes: Iterable[Lane], *, from_anywhere: bool = False) -> None:
    """Kick lanes that the machine has named. Never call it with a machine's lock held.

    A lane whose event loop has been closed loses nothing: its attempts are withdrawn, and what they
    had been granted serves the next in line.
    """
    lane: Any  # a KickableLane: whoever begins an attempt passes one
    for lane in lanes:
        abandoned = lane.kick(from_anywhere=from_anywhere) if from_anywhere else lane.kick()
        if abandoned:
            withdraw_all(abandoned)


def withdraw_all(attempts: Iterable[Attempt]) -> None:
    """Withdraw attempts whose owners will never run again, and deliver the wakes of that."""
    waiting = deque(attempts)
    while waiting:
        attempt = waiting.popleft()
        assert attempt.host is not None
        lane: Any
        for lane in attempt.host.withdraw(attempt):
            waiting.extend(lane.kick())


def tell(move: Callable[..., Iterable[Lane]], *arguments: Any, **options: Any) -> None:
    """Make a move that may come at any time, and deliver the wakes.

    Such as `Machine.close` and `Machine.withdraw`, which a signal handler may call, or a finalizer
    of a waiting coroutine, in the middle of a move of the same object and thread. Then it cannot be
    made here, so it is left to a thread.

    Args:
        move: a bound method that returns the lanes to kick.
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
