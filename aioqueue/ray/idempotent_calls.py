"""Numbered calls: made in order and once, though they come in any order and more than once.

Ray starts the calls of one caller of an async actor in any order, and makes a call again whose
reply was lost. So callers number theirs, and the actor makes each one wait for its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Generic, TypeVar

__all__ = ("NumberedCalls", "StaleCallError")

T = TypeVar("T")


class StaleCallError(Exception):
    """Nobody waits for this call: its answer has come, or its caller is gone."""


class NumberedCalls(Generic[T]):
    """The calls of one caller. Used in one event loop, but for `has_ended` and `abandon`.

    Args:
        first: the number of the first call.
        skipped: the numbers of calls after it that will not come.
    """

    def __init__(self, first: int = 0, skipped: Collection[int] = ()) -> None:
        self._loop = asyncio.get_running_loop()
        self._next = first
        self._skipped = set(skipped)  # or that were cancelled before their turn
        self._waiting: dict[int, asyncio.Event] = {}
        self._results: dict[int, asyncio.Future[T]] = {}
        self._is_abandoned = False

    async def once(
        self, number: int, known: int, make: Callable[[Callable[[], None]], Awaitable[T]]
    ) -> T:
        """Make a call when it is its turn; or wait for the result, if it was made before.

        Args:
            number: of the call.
            known: the caller has the results of all calls below this one: they are forgotten.
            make: makes it. It is given what lets the next call begin, to be called as soon as this
                one has its place in line; when it has ended, the next one begins in any case.

        Raises:
            StaleCallError: the call was answered long ago, or the caller is gone.
            Exception: what ``make`` raises, whenever the call is made again.
        """
        for old in [old for old in self._results if old < known]:
            del self._results[old]
        if known > self._next:  # some could not even be made, and have been answered by that
            self._pass(known)
        made = self._results.get(number)
        if made is not None:
            return await asyncio.shield(made)
        if number < max(known, self._next) or number in self._skipped or self._is_abandoned:
            raise StaleCallError
        made = self._results[number] = self._loop.create_future()
        try:
            await self._turn(number)
            result = await make(partial(self._go_on, number))
        except asyncio.CancelledError:
            made.cancel()
            raise
        except BaseException as error:
            made.set_exception(error)
            made.exception()  # somebody has seen it: who is told below
            raise
        else:
            made.set_result(result)
            return result
        finally:
            self._go_on(number)

    def has_ended(self, number: int) -> bool:
        """Whether a call was made, and has its result. May be called in any thread."""
        made = self._results.get(number)
        return number < self._next if made is None else made.done()

    def skip(self, number: int) -> None:
        """A call will not come, or not again. May be called in any thread."""
        self._loop.call_soon_threadsafe(self._go_on, number)

    def abandon(self) -> None:
        """The caller is gone: who waits for a turn fails. May be called in any thread."""
        self._loop.call_soon_threadsafe(self._abandon)

    def _abandon(self) -> None:
        self._is_abandoned = True
        for event in self._waiting.values():
            event.set()

    async def _turn(self, number: int) -> None:
        if number > self._next and not self._is_abandoned:
            event = self._waiting[number] = asyncio.Event()
            try:
                await event.wait()
            finally:
                del self._waiting[number]
        if self._is_abandoned:
            raise StaleCallError

    def _go_on(self, number: int) -> None:
        """The next call may begin: this one has its place, or will never have one."""
        if number < self._next:
            return
        self._skipped.add(number)
        self._pass(self._next)

    def _pass(self, number: int) -> None:
        """All calls before this one have had their turn."""
        self._next = number
        self._skipped = {one for one in self._skipped if one >= number}
        while self._next in self._skipped:
            self._skipped.remove(self._next)
            self._next += 1
        event = self._waiting.get(self._next)
        if event is not None:
            event.set()
