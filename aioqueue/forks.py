"""Forks: what was begun in one process refuses its service in the processes forked from it.

Of all threads only the one that forks goes on in the child. What has begun there may have a lock
whose holder does not exist, callers and workers that will never come, and files whose offsets are
those of the parent: to read on would take from it what it never misses. So what has begun raises
`RuntimeError` in a child. Two means do that, and neither costs anything where nobody forks: what
there is of an object in the child is replaced by something that refuses (`note_for_forks`); and
iterators, which nothing can be replaced in, compare a number (`in_one_process`). What has not begun
can begin in the child.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any, Final, NoReturn, Protocol, TypeVar

__all__ = (
    "PROCESS",
    "Forkable",
    "Refusing",
    "RefusingLock",
    "begun_elsewhere",
    "call_in_forks",
    "in_one_process",
    "in_one_process_async",
    "is_refusing",
    "note_for_forks",
    "refusing",
)

T = TypeVar("T")


class _Process:
    """This process, as forks count them."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


PROCESS: Final = _Process()
"""Its number is another one in a fork than in the process that was forked."""


class Forkable(Protocol):
    """What has to know of forks."""

    def _was_forked(self) -> None:
        """This process is a fork of the one that made it; nothing else runs here yet."""


_first: Final[list[Callable[[], None]]] = []
_living: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def call_in_forks(call: Callable[[], None]) -> None:
    """Call a function in each fork, before anything is told that it was forked."""
    _first.append(call)


def note_for_forks(made: Forkable) -> None:
    """Tell something in each fork that it was forked, as long as it lives."""
    _living.add(made)


def begun_elsewhere(what: object) -> RuntimeError:
    """What to raise where something is used that was begun in another process.

    Args:
        what: it is.
    """
    return RuntimeError(
        f"{what} was begun in another process, of which this one is a fork, and goes on there:"
        " begin another one here. Start processes by 'spawn' or 'forkserver'"
    )


class Refusing:
    """Stands in a fork for what belongs to another process: whatever is wanted of it raises.

    Args:
        what: it is.
        kept: what it stands for, which must not be dropped: that would flush what is buffered.
    """

    def __init__(self, what: str, kept: object = None) -> None:
        self.__what = what
        self.__kept = kept

    def __getattr__(self, name: str) -> NoReturn:
        raise begun_elsewhere(self.__what)

    def abandon(self) -> None:
        """It was dropped: there is nothing of it here that could end."""

    def leave(self) -> None:
        """Its block was left by an exception, which is what is to be seen."""


def is_refusing(thing: object) -> bool:
    """Whether something has been replaced by a `Refusing`, in a fork."""
    return isinstance(thing, Refusing)


def refusing(what: str, kept: object = None) -> Any:
    """A `Refusing` that can take the place of anything."""
    return Refusing(what, kept)


class RefusingLock:
    """Stands in a fork for the lock of something that belongs to another process.

    Args:
        why: what to say to those who want it.
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
        """Never entered, so never left."""

    def release(self) -> None:
        """Never taken, so there is nothing to release."""

    def _is_owned(self) -> bool:
        return False


def in_one_process(run: Iterator[T], what: object) -> Iterator[T]:
    """The same items, in the process alone in which the first of them was asked for.

    Args:
        run: what has the items; it is closed with this iterator, if it can be.
        what: errors call it.
    """
    number = PROCESS.number
    try:
        for item in run:
            yield item
            if PROCESS.number != number:
                raise begun_elsewhere(what)
    finally:
        getattr(run, "close", bool)()


async def in_one_process_async(run: AsyncIterator[T], what: object) -> AsyncIterator[T]:
    """The same for ``async for``."""
    number = PROCESS.number
    try:
        async for item in run:
            yield item
            if PROCESS.number != number:
                raise begun_elsewhere(what)
    finally:
        close = getattr(run, "aclose", None)
        if close is not None:
            await close()


def _after_fork() -> None:
    PROCESS.number += 1
    for call in _first:
        call()
    for made in list(_living):
        made._was_forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
