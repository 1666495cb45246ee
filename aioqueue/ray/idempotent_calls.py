"""Numbered calls: made in order and exactly once, however they arrive.

Ray starts the calls of one caller of an async actor in any order, and repeats a call whose reply
was lost. So callers number their calls, and the actor makes each one wait for its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")


class StaleCallError(Exception):
    """The call has no waiting caller: it was answered before, or its caller is gone."""


class NumberedCalls(Generic[T]):
    """The calls of one caller. Used in one event loop, except `has_ended` and `abandon`.

    Args:
        first: number of the first call.
        skipped: numbers of later calls that will not come.
    """

    def __init__(self, first: int = 0, skipped: Collection[int] = ()) -> None:
        self._loop = asyncio.get_running_loop()
        self._next = first
        self._skipped = set(skipped)  # also calls that were cancelled before their turn
        self._waiting: dict[int, asyncio.Event] = {}
        self._results: dict[int, asyncio.Future[T]] = {}
        self._is_abandoned = False

    async def call_once(
        self, number: int, known: int, make: Callable[[Callable[[], None]], Awaitable[T]]
    ) -> T:
        """Make a call in its turn, or wait for its result if it was made before.

        Args:
            number: number of the call.
            known: the caller has the results of all calls below this number, so forget them.
            make: makes the call. Its argument lets the next call begin; `make` calls it as soon as
                this call has its place in the queue. The next call also begins when this one ends.

        Raises:
            StaleCallError: the call was answered before, or the caller is gone.
            Exception: whatever `make` raises; repeated calls raise it again.
        """
        for old in [old for old in self._results if old < known]:
            del self._results[old]
        if known > self._next:  # calls below `known` that never arrived have failed at the caller
            self._advance_to(known)
        made = self._results.get(number)
        if made is not None:
            return await asyncio.shield(made)
        if number < max(known, self._next) or number in self._skipped or self._is_abandoned:
            raise StaleCallError
        # Before the first wait, so that a copy that arrives meanwhile finds it.
        made = self._results[number] = self._loop.create_future()
        try:
            await self._wait_turn(number)
            result = await make(partial(self._release_turn, number))
        except asyncio.CancelledError:
            made.cancel()
            raise
        except BaseException as error:
            made.set_exception(error)
            made.exception()  # mark it as retrieved; it is raised below
            raise
        else:
            made.set_result(result)
            return result
        finally:
            # Also for a call that has failed before it had a place: else all later calls would
            # wait.
            self._release_turn(number)

    def has_ended(self, number: int) -> bool:
        made = self._results.get(number)
        return number < self._next if made is None else made.done()

    def skip(self, number: int) -> None:
        """Record that a call will not come, or not again. Thread-safe."""
        self._loop.call_soon_threadsafe(self._release_turn, number)

    def abandon(self) -> None:
        """Fail all waiting calls, since the caller no longer exists. Thread-safe."""
        self._loop.call_soon_threadsafe(self._abandon)

    def _abandon(self) -> None:
        self._is_abandoned = True
        for event in self._waiting.values():
            event.set()

    async def _wait_turn(self, number: int) -> None:
        if number > self._next and not self._is_abandoned:
            event = self._waiting[number] = asyncio.Event()
            try:
                await event.wait()
            finally:
                del self._waiting[number]
        if self._is_abandoned:
            raise StaleCallError

    def _release_turn(self, number: int) -> None:
        """Let the next call begin: this one has its place in the queue, or will not get one."""
        if number < self._next:
            return
        self._skipped.add(number)
        self._advance_to(self._next)

    def _advance_to(self, number: int) -> None:
        """Record that all calls below this number have had their turn."""
        self._next = number
        self._skipped = {one for one in self._skipped if one >= number}
        while self._next in self._skipped:
            self._skipped.remove(self._next)
            self._next += 1
        event = self._waiting.get(self._next)
        if event is not None:
            event.set()
