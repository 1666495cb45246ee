"""Queues in a forked process: they refuse, where they would wait for ever.

Of all threads only the one that forks goes on in the child. The copy of a queue there may have a
lock whose holder does not exist, and callers that will never come. So in the child every inherited
queue is given a lock that refuses to be taken; nothing is checked, and nothing costs, elsewhere.
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
    """What a queue is made of, as far as a fork concerns it."""

    kind: str
    name: str
    copier: BatchCopier
    machine: Machine
    lock: Any  # a `threading.RLock`, which is not a class


_queues: weakref.WeakSet[ForkedQueue] = weakref.WeakSet()


def refuse_in_forks(queue: ForkedQueue) -> None:
    """Make a queue refuse its service in the processes that are forked from this one."""
    _queues.add(queue)


def living_queues() -> list[ForkedQueue]:
    """The queues that there are in this process, in no special order."""
    while True:
        try:
            return list(_queues)
        except RuntimeError:  # one was made meanwhile, by another thread
            continue


def _refuse_all() -> None:
    for queue in _queues:
        lock = RefusingLock(
            f"{queue.kind} '{queue.name}' was made in another process, of which this one is a fork:"
            " a queue lives in one process. Start processes by 'spawn' or 'forkserver', and make"
            " queues after the start"
        )
        queue.machine.guard_with(lock)
        queue.copier.guard_with(lock)
        queue.lock = threading.RLock()


call_in_forks(_refuse_all)
