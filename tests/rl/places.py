"""Where random programs run: event loops in virtual time, and one of uvloop, which has none.

In each of them a call may be cancelled at any turn of the loop, in whatever it waits.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import anyio
import pytest

from tests.kit.worlds import HAS_TRIO, TrioWorld, UvloopWorld
from tests.rl.kit import VirtualLoop

Body = Callable[[], Awaitable[Any]]


class Place(ABC):
    """An event loop.

    Attributes:
        has_time: whether time limits and backoffs expire in it.
        random: decides which calls are cancelled; ``None`` for those at one turn.
        cancelled_turn: the turn in which calls are cancelled then, from the first with such a call.
        turns: how many there were.
    """

    has_time = True

    def __init__(self, cancelled_turn: int = -1) -> None:
        self.random: Random | None = None
        self.cancelled_turn = cancelled_turn
        self.turns = 0
        self._cancellable: dict[Any, Callable[[], object]] = {}

    @abstractmethod
    def run(self, body: Body) -> Any:
        """Run a coroutine function to its end, and return what it returns."""

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    @abstractmethod
    async def cancellable(self, body: Body) -> Any:
        """Await a call, which may be cancelled; return ``None`` then."""

    async def together(self, *bodies: Body) -> None:
        async with anyio.create_task_group() as group:
            for body in bodies:
                group.start_soon(_awaited, body)

    def cancel_some(self) -> None:
        """Cancel a call now and then: before it has run on, in whatever it waits."""
        turn = self.turns
        self.turns += bool(self._cancellable)
        for key, cancel in list(self._cancellable.items()):
            is_due = turn == self.cancelled_turn
            if is_due if self.random is None else self.random.random() < 0.05:
                del self._cancellable[key]
                cancel()


class Asyncio(Place):
    """asyncio, whose time jumps to the next timer."""

    def _new_loop(self) -> Any:
        loop = VirtualLoop()
        loop.before_round = self.cancel_some
        return loop

    def run(self, body: Body) -> Any:
        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            return runner.run(_awaited(body))

    async def cancellable(self, body: Body) -> Any:
        task = asyncio.ensure_future(_awaited(body))
        self._cancellable[task] = task.cancel
        try:
            return await task
        except asyncio.CancelledError:
            return None
        finally:
            self._cancellable.pop(task, None)


class Uvloop(Asyncio):
    """uvloop, in which to sleep is to let others run for some turns."""

    has_time = False

    def _new_loop(self) -> Any:
        import uvloop

        return uvloop.new_event_loop()

    def run(self, body: Body) -> Any:
        async def disturbed() -> Any:
            async def disturb() -> None:
                while True:
                    await asyncio.sleep(0)
                    self.cancel_some()

            disturbing = asyncio.ensure_future(disturb())
            try:
                return await body()
            finally:
                disturbing.cancel()

        return super().run(disturbed)

    async def sleep(self, seconds: float) -> None:
        for _ in range(int(8 * seconds)):
            await asyncio.sleep(0)


class Trio(Place):
    """trio, whose time jumps to the next deadline."""

    def run(self, body: Body) -> Any:
        import trio
        import trio.testing

        class Disturbing(trio.abc.Instrument):
            def __init__(self, cancel_some: Callable[[], object]) -> None:
                self.cancel_some = cancel_some

            def after_io_wait(self, timeout: float) -> None:
                self.cancel_some()

        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(body, clock=clock, instruments=[Disturbing(self.cancel_some)])

    async def cancellable(self, body: Body) -> Any:
        with anyio.CancelScope() as scope:
            self._cancellable[scope] = scope.cancel
            try:
                return await body()
            finally:
                self._cancellable.pop(scope, None)
        return None


async def _awaited(body: Body) -> Any:
    return await body()


_needs_trio = pytest.mark.skipif(not HAS_TRIO, reason=TrioWorld.missing())
_needs_uvloop = pytest.mark.skipif(bool(UvloopWorld.missing()), reason=UvloopWorld.missing())
VIRTUAL_PLACES = (Asyncio, pytest.param(Trio, marks=_needs_trio))
PLACES = (*VIRTUAL_PLACES, pytest.param(Uvloop, marks=_needs_uvloop))
