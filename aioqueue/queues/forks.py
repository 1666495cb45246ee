"""Queues in a forked process: they refuse, where they would wait for ever.

Of all threads only the one that forks goes on in the child. The copy of a queue there may have a
lock whose holder does not exist, and callers that will never come. So in the child every inherited
queue is given a lock that refuses to be taken; nothing is checked, and nothing costs, elsewhere.
"""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType
from typing import Any, NoReturn, Protocol

from aioqueue.copying import Copier
from aioqueue.machine import Machine

__all__ = ("Forkable", "living_queues", "refuse_in_forks")


class Forkable(Protocol):
    """What a queue is made of, as far as a fork concerns it."""

    kind: str
    name: str
    copier: Copier
    machine: Machine
    lock: Any  # a `threading.RLock`, which is not a class


_queues: weakref.WeakSet[Forkable] = weakref.WeakSet()


def refuse_in_forks(queue: Forkable) -> None:
    """Make a queue refuse its service in the processes that are forked from this one."""
    _queues.add(queue)


def living_queues() -> list[Forkable]:
    """The queues that there are in this process, in no special order."""
    while True:
        try:
            return list(_queues)
        except RuntimeError:  # one was made meanwhile, by another thread
            continue


class _RefusingLock:
    """In the place of a machine's lock, in a process that has only a copy of the queue."""

    def __init__(self, queue: Forkable) -> None:
        self._whose = f"{queue.kind} '{queue.name}'"

    def acquire(self, blocking: bool = True, /) -> NoReturn:
        raise RuntimeError(
            f"{self._whose} was made in another process, of which this one is a fork: a queue lives"
            " in one process. Start processes by 'spawn' or 'forkserver', and make queues after the"
            " start"
        )

    def __enter__(self) -> NoReturn:
        self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Never entered, so never left."""

    def release(self) -> None:
        """Never taken, so there is nothing to release."""

    def _is_owned(self) -> bool:
        return False


def _refuse_all() -> None:
    for queue in _queues:
        lock = _RefusingLock(queue)
        queue.machine.guard_with(lock)
        queue.copier.guard_with(lock)
        queue.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_refuse_all)
