"""A `RolloutQueue` in each world: its trainer's face, its coordinator, what generates."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aioqueue
from aioqueue import sync
from aioqueue.rl import Batch, Rollout, RolloutQueue
from aioqueue.rl import sharing as rl_sharing
from aioqueue.rl.remote import RemoteRolloutQueue
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate
from tests.kit.worlds import ThreadWorld, World


class Engine:
    """Generates ``(prompt, index)``, at once or when a test says so.

    Attributes:
        queue: the queue, whose version is noted.
        started: the prompt, index and attempt of each call, in order.
        running: those that have not ended.
        most: the most that ran at once.
        holds: whether a call waits for `release`, by its prompt and its rollout.
        result: makes the result, or raises.
    """

    def __init__(
        self,
        world: World,
        holds: Callable[[Any, Rollout[Any]], bool] = lambda prompt, rollout: False,
        result: Callable[[Any, Rollout[Any]], Any] = lambda prompt, rollout: (
            prompt,
            rollout.index,
        ),
    ) -> None:
        self.is_threaded = isinstance(world, ThreadWorld)
        self.holds = holds
        self.result = result
        self.started: list[tuple[Any, int, int]] = []
        self.running: dict[tuple[Any, int, int], Gate] = {}
        self.rollouts: dict[tuple[Any, int, int], Rollout[Any]] = {}
        self.most = 0
        self._lock = threading.Lock()

    @property
    def function(self) -> Any:
        return self._on_thread if self.is_threaded else self._in_task

    def release(self, *keys: tuple[Any, int, int]) -> None:
        """Let calls end; all that run, without keys."""
        for key in keys or list(self.running):
            self.running[key].open()

    def end_all(self) -> None:
        """Hold no call from now on, and let all end that run."""
        self.holds = lambda prompt, rollout: False
        self.release()

    def _begin(self, prompt: Any, rollout: Rollout[Any]) -> tuple[tuple[Any, int, int], Gate]:
        key = (prompt, rollout.index, rollout.attempt)
        gate = Gate()
        self.started.append(key)
        self.running[key] = gate
        self.rollouts[key] = rollout
        with self._lock:  # else one thread writes what another one has outdated
            self.most = max(self.most, len(self.running))
        return key, gate

    async def _in_task(self, prompt: Any, rollout: Rollout[Any]) -> Any:
        key, gate = self._begin(prompt, rollout)
        try:
            if self.holds(prompt, rollout):
                await gate.wait(current_waker())
            return self.result(prompt, rollout)
        finally:
            del self.running[key]

    def _on_thread(self, prompt: Any, rollout: Rollout[Any]) -> Any:
        key, gate = self._begin(prompt, rollout)
        try:
            if self.holds(prompt, rollout):
                gate.wait_blocking()
            return self.result(prompt, rollout)
        finally:
            del self.running[key]


@asynccontextmanager
async def generating(
    world: World, rollouts: RolloutQueue[Any, Any], function: Any, **options: Any
) -> AsyncIterator[Any]:
    """Generate in a coordinator of the world, whose block this is."""
    if isinstance(function, Engine):
        function = function.function
    if isinstance(world, ThreadWorld):
        with sync.Coordinator() as threads:
            threads.start(rollouts.generate(function, **options))
            yield threads
        return
    async with aioqueue.Coordinator() as coordinator:
        coordinator.start(rollouts.generate(function, **options))
        yield coordinator


class Trainer:
    """The face of a queue for a trainer, spelled like the async one in each world."""

    def __init__(self, world: World, rollouts: RolloutQueue[Any, Any]) -> None:
        self._face: Any = rollouts.sync if isinstance(world, ThreadWorld) else rollouts
        self._blocks = isinstance(world, ThreadWorld)

    async def get(self) -> Batch[Any, Any]:
        batch = self._face.get()
        return batch if self._blocks else await batch  # type: ignore[no-any-return]

    async def batches(self, *arguments: Any, **options: Any) -> AsyncIterator[Batch[Any, Any]]:
        batches = self._face.batches(*arguments, **options)
        if self._blocks:
            for batch in batches:
                yield batch
        else:
            async for batch in batches:
                yield batch

    @asynccontextmanager
    async def publishing(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        block = self._face.publishing(*arguments, **options)
        if self._blocks:
            with block as publication:
                yield publication
        else:
            async with block as publication:
                yield publication

    async def publish_drained(self) -> Any:
        """Publish when no rollout runs; return the publication, the other way round."""
        async with self.publishing(drain=True) as publication:
            return (publication.before, publication.version)

    async def evaluate_patiently(self, prompts: Any) -> list[Any]:
        return await self.evaluate(prompts, priority=False)

    async def publish(self, *arguments: Any, **options: Any) -> int:
        version = self._face.publish(*arguments, **options)
        return version if self._blocks else await version  # type: ignore[no-any-return]

    async def evaluate(self, *arguments: Any, **options: Any) -> list[Any]:
        groups = self._face.evaluate(*arguments, **options)
        return groups if self._blocks else await groups  # type: ignore[no-any-return]

    async def train_all(
        self, steps: int | None = None, *, publishes: bool = True
    ) -> list[list[Any]]:
        """Train to the end; return the prompts of each batch."""
        trained = []
        async for batch in self.batches(steps):
            trained.append([group.prompt for group in batch.groups])
            if publishes:
                async with self.publishing():
                    pass
        return trained


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer when nothing is ready.

    Attributes:
        before_round: called before each round.
    """

    before_round: Callable[[], object] = staticmethod(lambda: None)
    _now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        self.before_round()
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._now = max(self._now, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def handle_of(rollouts: RolloutQueue[Any, Any]) -> RolloutQueue[Any, Any]:
    """Share a queue; return a handle as in another process, with a connection to this one."""
    rollouts.share()
    core = rl_sharing.handle_core(*rollouts._core.shared._arguments())
    face: Any = RemoteRolloutQueue.__new__(RemoteRolloutQueue)
    face._core = core
    handle: RolloutQueue[Any, Any] = face
    return handle
