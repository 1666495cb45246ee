"""Generation and training of rollouts: ours, and by hand as programs write it.

The loop by hand has the semantics of a `RolloutQueue` without options: groups, slots, a limit of
rollouts in flight, batches by the order of their prompts, versions, and a gate for publications.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import aioqueue

__all__ = ("all_at_once", "bare_at_once", "manual", "ours")

BATCH = 4
GROUP = 8
IN_FLIGHT = 64


@dataclass
class Rollout:
    """What the function gets, besides the prompt."""

    ordinal: int
    index: int
    version: int
    result: Any = None


@dataclass
class Group:
    """All rollouts of a prompt."""

    ordinal: int
    prompt: Any
    left: int
    rollouts: list[Rollout] = field(default_factory=list)
    version: int | None = None


Generate = Callable[[Any, Any], Awaitable[Any]]


class HandWritten:
    """A manager of rollouts, made of a queue, a semaphore, a condition, an event and counters."""

    def __init__(
        self, prompts: Iterable[Any], generate: Generate, *, steps_ahead: int, in_flight: int
    ) -> None:
        self.prompts: Iterator[tuple[int, Any]] = iter(enumerate(prompts))
        self.generate = generate
        self.slots = BATCH * (steps_ahead + 1)
        self.places = asyncio.Semaphore(in_flight)
        self.condition = asyncio.Condition()
        self.gate = asyncio.Event()
        self.gate.set()
        self.complete: asyncio.Queue[Group] = asyncio.Queue()
        self.ready: list[Group] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.existing = 0
        self.version = 0
        self.admitted = self.trained = 0

    async def admit(self) -> None:
        """Start the rollouts of each prompt, as slots become free."""
        for ordinal, prompt in self.prompts:
            async with self.condition:
                while self.existing >= self.slots:
                    await self.condition.wait()
                self.existing += 1
            self.admitted += 1
            group = Group(ordinal, prompt, GROUP)
            for index in range(GROUP):
                task = asyncio.create_task(self.run(group, index))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)

    async def run(self, group: Group, index: int) -> None:
        """Generate one rollout. The last of a group makes it complete."""
        async with self.places:
            await self.gate.wait()
            if group.version is None:
                group.version = self.version
            rollout = Rollout(group.ordinal, index, self.version)
            rollout.result = await self.generate(group.prompt, rollout)
        group.rollouts.append(rollout)
        group.left -= 1
        if not group.left:
            await self.complete.put(group)

    async def batch(self) -> list[Group]:
        """Wait for a batch: those with the lowest ordinals among the groups that are complete."""
        while len(self.ready) < BATCH:
            self.ready.append(await self.complete.get())
        while not self.complete.empty():
            self.ready.append(self.complete.get_nowait())
        self.ready.sort(key=lambda group: group.ordinal)
        batch, self.ready = self.ready[:BATCH], self.ready[BATCH:]
        return batch

    async def publish(self, batch: list[Group]) -> None:
        """End a step: nothing starts while its weights are published."""
        self.gate.clear()
        self.version += 1
        self.trained += len(batch)
        self.gate.set()
        async with self.condition:
            self.existing -= len(batch)
            self.condition.notify_all()


async def manual(generate: Generate, groups: int, steps_ahead: int = 1) -> int:
    """Train groups by hand; return how many rollouts were trained."""
    manager = HandWritten(range(groups), generate, steps_ahead=steps_ahead, in_flight=IN_FLIGHT)
    admission = asyncio.create_task(manager.admit())
    trained = 0
    for _ in range(groups // BATCH):
        batch = await manager.batch()
        trained += sum(len(group.rollouts) for group in batch)
        await manager.publish(batch)
    await admission
    return trained


async def ours(generate: Generate, groups: int, steps_ahead: int = 1) -> int:
    """Train as many with a `RolloutQueue`."""
    from aioqueue.rl import RolloutQueue

    rollouts = RolloutQueue(
        range(groups),
        batch_size=BATCH,
        group_size=GROUP,
        steps_ahead=steps_ahead,
        max_in_flight=IN_FLIGHT,
    )
    trained = 0
    async with aioqueue.Coordinator() as coordinator:
        coordinator.start(rollouts.generate(generate))
        async for batch in rollouts.batches():
            trained += sum(len(group.rollouts) for group in batch.groups)
            async with rollouts.publishing():
                pass
    return trained


class AllInFlight:
    """A function whose calls end when so many of them have begun."""

    def __init__(self, calls: int) -> None:
        self.left = calls
        self.all_began = asyncio.get_running_loop().create_future()

    async def __call__(self, prompt: Any, rollout: Any) -> Any:
        self.left -= 1
        if not self.left:
            self.all_began.set_result(None)
        await self.all_began
        return prompt


async def all_at_once(n: int) -> int:
    """Start and end so many rollouts, all of which are in flight; return how many were trained."""
    from aioqueue.rl import RolloutQueue

    rollouts = RolloutQueue(
        range(n // GROUP), batch_size=n // GROUP, group_size=GROUP, steps_ahead=0
    )
    async with aioqueue.Coordinator() as coordinator:
        coordinator.start(rollouts.generate(AllInFlight(n)))
        batch = await rollouts.get()
        batch.done()
        return sum(len(group.rollouts) for group in batch.groups)


async def bare_at_once(n: int) -> int:
    """Start and end as many bare tasks; return how many results there are."""
    call = AllInFlight(n)
    return len(await asyncio.gather(*[call(number, None) for number in range(n)]))
