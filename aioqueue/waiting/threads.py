"""Waiting in a thread: a lock serves as a one-shot sleep.

Every wait has its own waker with a lock that is taken; the wake releases it. The machine's lock
decides whether a timeout or a grant came first, so grant and commit are one step. The main thread
is the exception: Ctrl-C can raise in it between the two, so they are two steps there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from aioqueue.attempts import Attempt

__all__ = ("ThreadWaker",)


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
