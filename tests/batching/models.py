"""What the tests of batchers are made of: functions that can be watched, and batchers in worlds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import aioqueue
from aioqueue import sync
from aioqueue.waiting import Gate, current_waker
from tests.worlds import PATIENCE, ThreadWorld, World

__all__ = ("NEVER", "WHERES", "AwaitedBatcher", "Model", "batcher_of", "begun")

NEVER = 1000.0
"""Seconds that no test waits."""

WHERES = ("task", "thread")


class Model:
    """A function for a batcher: it notes its batches, and may be held up, or fail.

    The result for a value is its double. The word "boom" fails the batch that it is in, and an
    exception is the result for itself. "exit" is a `SystemExit`; "exit at once" does not even wait.

    Args:
        where: as which kind of function.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.batches: list[list[Any]] = []
        self.gate = Gate()
        self.gate.open()

    @property
    def function(self) -> Callable[[list[Any]], Any]:
        return self._coroutine if self.where == "task" else self._plain

    def _plain(self, values: list[Any]) -> list[Any]:
        self._note(values)
        assert self.gate.wait_blocking(6 * PATIENCE)
        return self._results(values)

    async def _coroutine(self, values: list[Any]) -> list[Any]:
        self._note(values)
        await self.gate.wait(current_waker())
        return self._results(values)

    def _note(self, values: list[Any]) -> None:
        self.batches.append(list(values))
        if "exit at once" in values:
            raise SystemExit("the model has had enough")

    def _results(self, values: list[Any]) -> list[Any]:
        if "boom" in values:
            raise FloatingPointError("boom")
        if "exit" in values:
            raise SystemExit("the model has had enough")
        return [value if isinstance(value, Exception) else 2 * value for value in values]


class AwaitedBatcher:
    """The thread face of a batcher, spelled with ``await``; see `tests.worlds.AwaitedQueue`."""

    def __init__(self, face: sync.Batcher[Any, Any]) -> None:
        self.face = face

    def __getattr__(self, name: str) -> Any:
        return getattr(self.face, name)

    def __repr__(self) -> str:
        return repr(self.face)

    async def __call__(self, value: Any, **options: Any) -> Any:
        return self.face(value, **options)

    async def __aenter__(self) -> AwaitedBatcher:
        self.face.__enter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        self.face.__exit__(*raised)


def batcher_of(
    world: World, function: Callable[[list[Any]], Any | Awaitable[Any]], **options: Any
) -> aioqueue.Batcher[Any, Any]:
    """A batcher whose block and calls are those of a world."""
    if isinstance(world, ThreadWorld):
        return AwaitedBatcher(sync.Batcher(function, **options))  # type: ignore[return-value]
    return aioqueue.Batcher(function, **options)


def begun(batcher: aioqueue.Batcher[Any, Any]) -> int:
    """How many calls have begun: accepted, or waiting for room."""
    statistics = batcher.statistics()
    return statistics.requests + statistics.waiting_for_room
