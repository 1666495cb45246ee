"""The faces against the machine as their model, in virtual time."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

import aioqueue
from aioqueue.rl import Retry, RolloutQueue
from aioqueue.rl.machine import Effects, RolloutCall, RolloutMachine
from tests.rl.kit import run_virtually
from tests.rl.test_queue import check_sums


def latency(prompt: int, index: int) -> float:
    """Seconds of a rollout: long-tailed, and different for all."""
    return math.exp(Random(prompt * 1009 + index).gauss(0, 1))


class Simulation:
    """The machine alone, driven by a heap of events: what the faces have to do."""

    def __init__(
        self, machine: RolloutMachine, prompts: int, group_size: int, *, training: float
    ) -> None:
        self.machine = machine
        self.prompts = prompts
        self.group_size = group_size
        self.training = training
        self.now = 0.0
        self.batches: list[tuple[list[int], list[int]]] = []
        self._heap: list[tuple[float, int, Callable[..., Effects], tuple[Any, ...]]] = []
        self._number = 0
        self._is_over = False

    def run(self) -> list[tuple[list[int], list[int]]]:
        """Return the prompts and the staleness of each batch."""
        self._do(self.machine.begin())
        self._do(self.machine.take())
        while self._heap and not self._is_over:
            self.now, _, event, args = heapq.heappop(self._heap)
            self._do(event(*args))
        return self.batches

    def _after(self, seconds: float, event: Callable[..., Effects], *args: Any) -> None:
        self._number += 1
        heapq.heappush(self._heap, (self.now + seconds, self._number, event, args))

    def _do(self, effects: Effects) -> None:
        machine = self.machine
        while effects.pull is not None:
            if effects.pull < self.prompts:
                pulled = machine.prompt(effects.pull, self.group_size)[1]
            else:
                pulled = machine.source_end()
            self._starts(effects)
            self._rest(effects)
            effects = pulled
        self._starts(effects)
        self._rest(effects)

    def _starts(self, effects: Effects) -> None:
        for call in effects.starts:
            assert self.machine.enter(call)
            self._after(latency(call.group.prompt, call.index), self._finish, call)

    def _finish(self, call: RolloutCall) -> Effects:
        return self.machine.finished(call)

    def _rest(self, effects: Effects) -> None:
        for call in effects.cancels:
            self._do(self.machine.call_ended(call))
        for group in effects.judge:
            self._do(self.machine.judged(group, group.prompt % 5 != 3))
        if effects.step is not None:
            prompts = [group.prompt for group in effects.groups]
            ages = [effects.step - (group.version or 0) for group in effects.groups]
            self.batches.append((prompts, ages))
            self._after(self.training, self._train)
        self._is_over = self._is_over or effects.is_end

    def _train(self) -> Effects:
        self._do(self.machine.pause())
        self._do(self.machine.resume(self.machine.step))
        return self.machine.take()


async def by_the_face(
    prompts: int, group_size: int, training: float, **options: Any
) -> list[tuple[list[int], list[int]]]:
    rollouts: RolloutQueue[int, Any] = RolloutQueue(
        range(prompts), group_size=group_size, accept=lambda group: group.prompt % 5 != 3, **options
    )

    async def generate(prompt: int, rollout: Any) -> int:
        await asyncio.sleep(latency(prompt, rollout.index))
        return prompt

    batches = []
    async with aioqueue.Coordinator() as coordinator:
        coordinator.start(rollouts.generate(generate))
        async for batch in rollouts.batches():
            batches.append(([group.prompt for group in batch.groups], list(batch.staleness)))
            await asyncio.sleep(training)
            await rollouts.publish()
    check_sums(rollouts)
    return batches


@pytest.mark.parametrize("order", ["ready", "oldest", "strict"])
@pytest.mark.parametrize("steps_ahead", [0, 0.5, 1, 2])
@pytest.mark.parametrize("stale", [{}, {"on_stale": "wait"}, {"on_stale": "drop"}], ids=str)
@pytest.mark.slow(every=5)
def test_the_face_does_what_the_machine_decides(
    order: Any, steps_ahead: float, stale: dict[str, Any]
) -> None:
    """The same prompts and ages in each batch, with a slow trainer and with a quick one."""
    if stale:
        stale = {**stale, "max_staleness": math.ceil(steps_ahead) + 1}
    for training in (0.5, 6.0):
        options = {"batch_size": 4, "steps_ahead": steps_ahead, "order": order, **stale}
        machine = RolloutMachine(limit=13, **options)
        simulated = Simulation(machine, 60, 3, training=training).run()
        made = run_virtually(by_the_face(60, 3, training, max_in_flight=13, **options))
        assert made == simulated


class Chaos:
    """A random program over a queue: trainers, publications, evaluations and cancellations.

    Every wait of a caller may be cancelled, at any moment of virtual time.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
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
        self.cancellable: set[asyncio.Future[Any]] = set()

    async def sleep(self, most: int) -> None:
        """Sleep for a time that many others sleep for, so that events fall on one moment."""
        await asyncio.sleep(self.random.randrange(2 * most + 1) / 2)

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

    async def sometimes(self, body: Callable[[], Any]) -> Any:
        """Await a call, which may be cancelled; return ``None`` then."""
        task = asyncio.ensure_future(body())
        if self.random.random() < 0.6:
            self.cancellable.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            return None
        finally:
            self.cancellable.discard(task)

    def cancel_some(self) -> None:
        """Cancel a call now and then: before it has run on, in whatever it waits."""
        for task in list(self.cancellable):
            if self.random.random() < 0.05:
                self.cancellable.discard(task)
                task.cancel()

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
        async with self.rollouts.publishing(drain=drain):
            self.is_publishing = True
            try:
                await self.sleep(1)
                if self.random.random() < 0.2:
                    raise asyncio.CancelledError
            finally:
                self.is_publishing = False

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
        loop: Any = asyncio.get_running_loop()
        loop.before_round = self.cancel_some
        async with aioqueue.Coordinator() as coordinator:
            retry = Retry(1, self.random.choice([0.0, 0.5]))
            timeout = self.random.choice([None, 3.0])
            coordinator.start(self.rollouts.generate(self.generate, retry=retry, timeout=timeout))
            others = [asyncio.ensure_future(one) for one in (self.evaluate(), self.disturb())]
            await self.train()
            for other in others:
                await other
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


@pytest.mark.parametrize("seed", range(200))
@pytest.mark.slow(every=20)
def test_random_programs_lose_and_repeat_nothing(seed: int) -> None:
    run_virtually(asyncio.wait_for(Chaos(seed).run(), 10_000))
