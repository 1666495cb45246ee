"""Numbered calls: made in order and once, though they come in any order and more than once.

Ray starts the calls of one caller of an async actor in any order, and makes a call again whose
reply was lost. So callers number theirs, and the actor makes each one wait for its turn.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

__all__ = ("Turns",)

T = TypeVar("T")


class Turns(Generic[T]):
    """The calls of one caller. Used in one event loop.

    Args:
        first: the number of the first call.
    """

    def __init__(self, first: int = 0) -> None:
        self._next = first
        self._waiting: dict[int, asyncio.Event] = {}
        self._results: dict[int, asyncio.Future[T]] = {}

    async def begin(self, number: int, known: int) -> asyncio.Future[T] | None:
        """Wait until it is a call's turn.

        Args:
            number: of the call.
            known: the caller has the results of all calls below this one: they are forgotten.

        Returns:
            ``None`` if it is to be made now, and then ended by `end`. The result that is coming, or
            has come, if the same call was made before.
        """
        for old in [old for old in self._results if old < known]:
            del self._results[old]
        made = self._results.get(number)
        if made is not None:
            return made
        self._results[number] = asyncio.get_running_loop().create_future()
        if number > self._next:
            event = self._waiting.setdefault(number, asyncio.Event())
            try:
                await event.wait()
            finally:
                self._waiting.pop(number, None)
        return None

    def go_on(self, number: int) -> None:
        """The next call may begin: this one has its place."""
        if number == self._next:
            self._next += 1
            event = self._waiting.get(self._next)
            if event is not None:
                event.set()

    def end(self, number: int, result: T) -> T:
        """A call has ended: by this, whenever it is made again."""
        self.go_on(number)
        future = self._results.get(number)
        if future is not None and not future.done():
            future.set_result(result)
        return result
