"""The kit for tests of batchers: functions that can be watched, and batchers in worlds."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import aioqueue
from aioqueue import sync
from aioqueue.batcher.function_calls import Where
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate
from tests.batcher.functions import FileGate, modelled, noted, results
from tests.kit.worlds import PATIENCE, ThreadWorld, World

__all__ = ("NEVER", "WHERES", "AwaitedBatcher", "Model", "batcher_of", "begun")

NEVER = 1000.0
"""Seconds that no test waits."""

WHERES: tuple[Where, ...] = ("task", "thread")
if sys.platform != "win32":
    WHERES += ("process",)


class Model:
    """A function for a batcher: it notes its batches, and may wait or fail.

    The result for a value is its double. The word "boom" fails the batch that it is in, and an
    exception is the result for itself. "exit" is a `SystemExit`; "exit at once" does not even wait.
    In a process, "die" and "die at once" are its death.

    Args:
        where: as which kind of function.
        folder: in which a process is watched.
    """

    def __init__(self, where: Where, folder: Path | None = None) -> None:
        self.where = where
        self._batches: list[list[Any]] = []
        self._folder = folder
        self.gate: Any = FileGate(self.folder) if where == "process" else Gate()
        self.gate.open()

    def close(self) -> None:
        """Nothing is watched any more."""
        if self.where == "process":
            self.gate.close()

    @property
    def folder(self) -> Path:
        assert self._folder is not None
        return self._folder

    @property
    def batches(self) -> list[list[Any]]:
        """Those that it was called with."""
        return list(noted(self.folder)) if self.where == "process" else self._batches

    def forget(self) -> None:
        """Keep nothing of the batches so far."""
        for batch in self._batches:
            batch.clear()  # without the GIL, the list is freed when the thread goes on that made it
        self._batches.clear()

    @property
    def death(self) -> str:
        """The word that is the end of a worker."""
        return "die" if self.where == "process" else "exit"

    @property
    def function(self) -> Callable[[list[Any]], Any]:
        if self.where == "process":
            return partial(modelled, self.folder)
        return self._coroutine if self.where == "task" else self._plain

    def _plain(self, values: list[Any]) -> list[Any]:
        self._note(values)
        assert self.gate.wait_blocking(6 * PATIENCE)
        return results(values)

    async def _coroutine(self, values: list[Any]) -> list[Any]:
        self._note(values)
        await self.gate.wait(current_waker())
        return results(values)

    def _note(self, values: list[Any]) -> None:
        self._batches.append(list(values))
        if "exit at once" in values:
            raise SystemExit("the model has had enough")


class AwaitedBatcher:
    """The thread face of a batcher, spelled with ``await``; see `tests.kit.worlds.AwaitedQueue`."""

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
    world: World, function: Model | Callable[[list[Any]], Any | Awaitable[Any]], **options: Any
) -> aioqueue.Batcher[Any, Any]:
    """A batcher whose block and calls are those of a world."""
    if isinstance(function, Model):
        options["where"] = function.where
        function = function.function
    if isinstance(world, ThreadWorld):
        return AwaitedBatcher(sync.Batcher(function, **options))  # type: ignore[return-value]
    return aioqueue.Batcher(function, **options)


def begun(batcher: aioqueue.Batcher[Any, Any]) -> int:
    """Return how many calls have begun: accepted, or waiting for room."""
    statistics = batcher.statistics()
    return statistics.requests + statistics.waiting_for_room
