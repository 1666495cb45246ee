"""Make the queues of a parent process raise in a fork, where they would wait for ever.

Only the thread that forks continues in the child process. The child's copy of a queue may have a
lock whose holder does not exist there, and pending attempts whose callers never run. So the child
replaces the lock of every inherited queue by one that raises. Normal operation pays nothing for it.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol

from aioqueue.copying import BatchCopier
from aioqueue.forks import RefusingLock, call_in_forks
from aioqueue.machine import Machine

__all__ = ("ForkedQueue", "living_queues", "refuse_in_forks")


class ForkedQueue(Protocol):
    """The parts of a queue that a fork concerns."""

    kind: str
    name: str
    copier: BatchCopier
    machine: Machine
    lock: Any  # a `threading.RLock`, which is not a class


_queues: weakref.WeakSet[ForkedQueue] = weakref.WeakSet()


def refuse_in_forks(queue: ForkedQueue) -> None:
    """Register a queue, so that it raises in every process forked from this one."""
    _queues.add(queue)


def living_queues() -> list[ForkedQueue]:
    """Return the queues of this process, in no particular order."""
    while True:
        try:
            return list(_queues)
        except RuntimeError:  # another thread made a queue meanwhile
            continue


def _refuse_all() -> None:
    for queue in _queues:
        lock = RefusingLock(
            f"{queue.kind} '{queue.name}' belongs to the parent process and cannot be used in this"
            " fork: a queue lives in one process. Start processes with 'spawn' or 'forkserver', and"
            " make queues after the start"
        )
        queue.machine.guard_with(lock)
        queue.copier.guard_with(lock)
        queue.lock = threading.RLock()


call_in_forks(_refuse_all)
