"""Refuse to use, in a forked child, objects that were begun in its parent process.

Only the thread that forks continues in the child. Anything that has begun may have a lock whose
holder does not exist there, callers and workers that never run, and files that share their offset
with the parent: reading on would steal data from it. So everything that has begun raises
`RuntimeError` in a child. What has not begun can begin in the child.

Two mechanisms do that. Neither costs anything without a fork. `note_for_forks` lets an object
replace its parts in the child by ones that raise. Nothing can be replaced in a running iterator, so
iterators compare a number (`in_one_process`).

Queues come first, because other objects may use them when they are notified. The child's copy of a
queue may have pending attempts whose callers never run, and a lock whose holder does not exist. So
the child replaces the lock of every inherited queue by one that raises (`refuse_in_forks`). The
register of living queues also serves those who look for callers that wait (`living_queues`).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, Final, NoReturn, Protocol, TypeVar

T = TypeVar("T")


class _Process:
    """This process, as forks count them."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number: int = 0


PROCESS: Final = _Process()
"""Its number differs between a process and its forks."""


class Forkable(Protocol):
    """An object that must know of forks."""

    def _was_forked(self) -> None:
        """Handle the fork: this process is the child. No other code has run in it yet."""


class LivingObjects:
    """Objects of one kind that this process has made, for as long as they live.

    A fork begins with none: the callers and workers of its parent's objects do not run there.
    """

    def __init__(self) -> None:
        self._by_process: dict[int, weakref.WeakSet[Any]] = {}

    def add(self, thing: Any) -> None:
        self._in_this_process().add(thing)

    def discard(self, thing: Any) -> None:
        self._in_this_process().discard(thing)

    def listed(self) -> list[Any]:
        """Return the objects, in no particular order."""
        while True:
            try:
                return list(self._in_this_process())
            except RuntimeError:  # another thread has added one in the meantime
                continue

    def inherited(self) -> list[Any]:
        others = [things for n, things in self._by_process.items() if n != PROCESS.number]
        return [thing for things in others for thing in things]

    def _in_this_process(self) -> weakref.WeakSet[Any]:
        things = self._by_process.get(PROCESS.number)
        if things is None:
            things = self._by_process.setdefault(PROCESS.number, weakref.WeakSet())
        return things


_living: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def note_for_forks(made: Forkable) -> None:
    """Notify an object in each fork, for as long as the object lives."""
    _living.add(made)


def inherited_error(what: object) -> RuntimeError:
    """Make the error for the use of an object that belongs to the parent process.

    Args:
        what: what the object is, for the message.
    """
    return RuntimeError(
        f"{what} was begun in the parent process and continues there: begin a new one in this fork."
        " Start processes with 'spawn' or 'forkserver'"
    )


NOT_BEGUN: Final = -1
"""The number of no process: what has it was not begun in any."""


def begun_here(number: int, what: object) -> int:
    """Return the number of this process for an iterator that is about to begin in it.

    Args:
        number: in which process it was begun.
        what: what it is, for the message.

    Raises:
        RuntimeError: it was begun in the parent.
    """
    if number != NOT_BEGUN:
        raise inherited_error(what)
    return PROCESS.number


class InheritedObject:
    """Replaces, in a fork, an object that belongs to the parent: every attribute raises.

    Args:
        what: what the object is, for the message.
        kept: the object. It must be kept alive, since its end would flush what it has buffered.
    """

    def __init__(self, what: str, kept: object = None) -> None:
        self.__what = what
        self.__kept = kept

    def __getattr__(self, name: str) -> NoReturn:
        raise inherited_error(self.__what)

    def abandon(self) -> None:
        """Do nothing when dropped: no part of the object runs in this process."""

    def leave(self) -> None:
        """Do nothing when an exception leaves its block: users should see that exception."""


def is_inherited(thing: object) -> bool:
    """Return whether an object has been replaced by a `InheritedObject`, in a fork."""
    return isinstance(thing, InheritedObject)


def inherited_object(what: str, kept: object = None) -> Any:
    """Make a `InheritedObject` that can take the place of anything."""
    return InheritedObject(what, kept)


class InheritedLock:
    """Replaces, in a fork, the lock of an object that belongs to the parent.

    Args:
        why: the message of the error.
    """

    def __init__(self, why: str) -> None:
        self._why = why

    def acquire(self, blocking: bool = True, /) -> NoReturn:
        raise RuntimeError(self._why)

    def __enter__(self) -> NoReturn:
        self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Do nothing: the lock is never entered."""

    def release(self) -> None:
        """Do nothing: the lock is never acquired."""

    def _is_owned(self) -> bool:
        return False


def in_one_process(run: Iterator[T], what: object) -> Iterator[T]:
    """Yield the items of an iterator, in the process that asks for the first one only.

    Args:
        run: the iterator. Closing this iterator closes it, too, if it can be closed.
        what: what it is, for the message.
    """
    number = PROCESS.number
    try:
        for item in run:
            yield item
            if PROCESS.number != number:
                raise inherited_error(what)
    finally:
        getattr(run, "close", bool)()


async def in_one_process_async(run: AsyncIterator[T], what: object) -> AsyncIterator[T]:
    """Do the same as `in_one_process` for an async iterator."""
    number = PROCESS.number
    try:
        async for item in run:
            yield item
            if PROCESS.number != number:
                raise inherited_error(what)
    finally:
        close = getattr(run, "aclose", None)
        if close is not None:
            await close()


def _after_fork() -> None:
    PROCESS.number += 1
    _refuse_queues()
    for made in list(_living):
        made._was_forked()


class _Guarded(Protocol):
    def guard_with(self, lock: Any) -> None: ...


class _Machine(_Guarded, Protocol):
    def waiting(self) -> list[Any]: ...


class ForkedQueue(Protocol):
    """The parts of a queue that a fork concerns."""

    lock: Any  # a `threading.RLock`, which is not a class

    @property
    def label(self) -> str: ...
    @property
    def copier(self) -> _Guarded: ...
    @property
    def machine(self) -> _Machine: ...


_queues: Final = LivingObjects()


def refuse_in_forks(queue: ForkedQueue) -> None:
    """Register a queue, so that it raises in every process forked from this one."""
    _queues.add(queue)


def living_queues() -> list[ForkedQueue]:
    """Return the queues of this process, in no particular order."""
    return _queues.listed()


def _refuse_queues() -> None:
    for queue in _queues.inherited():
        lock = InheritedLock(
            f"{queue.label} belongs to the parent process and cannot"
            " be used in this fork. Share it before the fork (`queue.share()`), or start processes"
            " with 'spawn' or 'forkserver', and make queues after the start"
        )
        queue.machine.guard_with(lock)
        queue.copier.guard_with(lock)
        queue.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
