"""What every way of waiting has in common, and how wakes are delivered.

A *lane* is where callers of one world wait: the tasks of one asyncio loop, the tasks of one trio
run, one blocked thread. The machine posts an attempt in its lane when it ends (`Lane.post`, under
the machine's lock, so in the order of the grants) and names the lane; `deliver` kicks it when the
lock is released. A lane is kicked once for all attempts that ended in one move, and a kick from a
foreign thread costs one crossing, however many callers it wakes.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, cast

from aioqueue.attempts import Attempt, Lane
from aioqueue.machine import Machine

__all__ = ("AsyncLane", "KickableLane", "deliver", "reap", "tell")


class KickableLane(Lane, Protocol):
    """A lane as the shell knows it."""

    def kick(self) -> Iterable[Attempt]:
        """Wake the owners of the attempts posted; return those whose world has ended.

        May be called from any thread, and more often than something was posted.
        """

    def is_dead(self) -> bool:
        """Whether the world of this lane has ended, so that no one in it will ever run again."""


class AsyncLane(KickableLane, Protocol):
    """A lane whose callers are tasks. Its methods are called in its own thread only."""

    budget: int
    """How many elements a task may move without waiting before it must let others run."""

    def wait(self, attempt: Attempt) -> Awaitable[None]:
        """Sleep until the attempt is no longer pending; to be awaited at once."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Callable[[], object]:
        """Call back after some seconds; returns what cancels that."""

    def is_current(self) -> bool:
        """Whether the task that is running belongs to this lane."""

    async def checkpoint(self) -> None:
        """Let others run, and be cancelled if that was asked for."""


class Enterable(Protocol):
    """Something with a lock that knows its owner."""

    def is_entered_here(self) -> bool:
        """Whether the calling thread holds the lock already."""


def deliver(lanes: Iterable[Lane]) -> None:
    """Kick lanes that the machine has named. Never call it with a machine's lock held.

    A lane whose event loop has been closed loses nothing: its attempts are withdrawn, and what they
    had been granted serves the next in line.
    """
    lane: Any  # a KickableLane: whoever begins an attempt passes one
    for lane in lanes:
        for attempt in lane.kick():
            _withdraw(attempt)


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
    owner: Enterable = move.__self__  # type: ignore[attr-defined]

    def make() -> None:
        deliver(move(*arguments, **options))

    if owner.is_entered_here():
        threading.Thread(target=make, name="aioqueue-deferred-move", daemon=True).start()
    else:
        make()


def reap(machine: Machine) -> None:
    """Withdraw what was granted to callers whose event loop was closed before they could run."""
    for attempt in machine.oldest_granted():
        if cast(KickableLane, attempt.lane).is_dead():
            _withdraw(attempt)
            reap(machine)
            return


def _withdraw(attempt: Attempt) -> None:
    assert attempt.host is not None
    deliver(attempt.host.withdraw(attempt))
