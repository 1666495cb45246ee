"""Random programs over a `RolloutQueue`, in which every wait may be cancelled at any moment."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import aioqueue
from aioqueue.rl import Retry, RolloutQueue
from tests.rl.places import Place
from tests.rl.test_queue import check_sums


class EngineError(Exception):
    """The weights cannot be updated."""


class RandomProgram:
    """Trainers, publications, evaluations and cancellations.

    Args:
        seed: for all choices.
        place: where it runs.
    """

    def __init__(self, seed: int, place: Place) -> None:
        self.place = place
        self.random = place.random = Random(seed)
        random = self.random
        self.on_stale = random.choice(["train", "train", "wait", "drop", "cancel"])
        ahead = random.choice([0, 0.5, 1, 2])
        stale: dict[str, Any] = {}
        if self.on_stale != "train":
            stale = {"on_stale": self.on_stale, "max_staleness": math.ceil(ahead) + 1}
        self.prompts = random.choice([7, 24, 50])
        self.rollouts: RolloutQueue[int, int] = RolloutQueue(
            range(self.prompts),
            batch_size=random.choice([1, 2, 3]),
            group_size=random.choice([1, 3]),
            steps_ahead=ahead,
            order=random.choice(["ready", "oldest", "strict"]),
            max_in_flight=random.choice([None, 1, 4]),
            accept=self.accept if random.random() < 0.5 else self.accept_async,
            on_refused=random.choice(["replace", "shorten"]),
            on_error=random.choice(["drop", "partial"]),
            max_refused=None,
            **stale,
        )
        self.trained: list[int] = []
        self.is_publishing = False
        self.running = 0
        self.violations: list[str] = []

    async def sleep(self, most: int) -> None:
        """Sleep for a time that many others sleep for, so that events fall on one moment."""
        await self.place.sleep(self.random.randrange(2 * most + 1) / 2)

    def accept(self, group: Any) -> bool:
        return self.random.random() < 0.8

    async def accept_async(self, group: Any) -> bool:
        await self.sleep(1)
        return self.random.random() < 0.8

    async def generate(self, prompt: Any, rollout: Any) -> int:
        if self.is_publishing:
            self.violations.append("a rollout begins while weights are published")
        self.running += 1
        if self.running > self.rollouts._core.machine.running:
            self.violations.append("more rollouts run than are counted")
        try:
            await self.sleep(3)
            if self.random.random() < 0.1:
                raise ConnectionError("engine")
            if self.random.random() < 0.2:
                await rollout.safe_point()
            if self.random.random() < 0.1:
                rollout.frozen()
            rollout.mark(3)
            return int(rollout.index)
        finally:
            self.running -= 1

    async def sometimes(self, body: Callable[[], Awaitable[Any]]) -> Any:
        """Await a call, which may be cancelled; return ``None`` then."""
        if self.random.random() < 0.6:
            return await self.place.cancellable(body)
        return await body()

    async def train(self) -> None:
        while True:
            try:
                batch = await self.sometimes(self.rollouts.get)
            except aioqueue.OutOfRangeError:
                return
            if batch is None:
                continue
            if self.random.random() < 0.1 and batch.step == self.rollouts.step - 1:
                batch.give_back()
                continue
            await self.sleep(1)
            self.trained += [group.prompt for group in batch.groups]
            for group in batch.groups:
                assert group.rollouts
            if self.random.random() < 0.6:
                await self.sometimes(self.publish)
            batch.done()

    async def publish(self) -> None:
        drain: Any = self.random.choice([False, False, True, "safe"])
        try:
            async with self.rollouts.publishing(drain=drain):
                self.is_publishing = True
                try:
                    await self.sleep(1)
                    if self.random.random() < 0.2:
                        raise EngineError
                finally:
                    self.is_publishing = False
        except EngineError:
            pass

    async def evaluate(self) -> None:
        for _ in range(self.random.choice([0, 1, 3])):
            await self.sleep(3)
            await self.sometimes(self.evaluate_some)

    async def evaluate_some(self) -> None:
        priority = self.random.random() < 0.7
        groups = await self.rollouts.evaluate(["a", "b"], group_size=2, priority=priority)
        assert [group.prompt for group in groups] == ["a", "b"]

    async def disturb(self) -> None:
        for _ in range(3):
            await self.sleep(2)
            self.rollouts.set(max_in_flight=self.random.choice([1, 5, None]))
            str(self.rollouts.explain())
            self.rollouts.statistics()
            check_sums(self.rollouts)

    async def run(self) -> None:
        retry = Retry(1, self.random.choice([0.0, 0.5]) if self.place.has_time else 0.0)
        timeout = self.random.choice([None, 3.0]) if self.place.has_time else None
        async with aioqueue.Coordinator() as coordinator:
            coordinator.start(self.rollouts.generate(self.generate, retry=retry, timeout=timeout))
            await self.place.together(self.evaluate, self.disturb, self.train)
        self.check()

    def check(self) -> None:
        counts = self.rollouts.statistics()
        core = self.rollouts._core
        check_sums(self.rollouts)
        assert not self.violations
        assert (self.running, counts.running, counts.existing, counts.evaluating) == (0, 0, 0, 0)
        assert len(set(self.trained)) == len(self.trained) == counts.trained
        assert counts.trained + counts.refused + counts.dropped == self.prompts
        if self.on_stale in ("train", "wait"):
            assert set(counts.dropped_by) <= {"failed"}
        assert not core.calls
        assert not core.takers
        assert not core.publishers
        assert core.publisher is None
