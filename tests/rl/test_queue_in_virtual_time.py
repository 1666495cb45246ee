"""The faces against the machine as their model, in virtual time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import aioqueue
from aioqueue.rl import RolloutQueue
from aioqueue.rl.machine import Effects, RolloutCall, RolloutMachine
from tests.rl.places import PLACES, VIRTUAL_PLACES, Place
from tests.rl.random_programs import RandomProgram
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
        await anyio.sleep(latency(prompt, rollout.index))
        return prompt

    batches = []
    async with aioqueue.Coordinator() as coordinator:
        coordinator.start(rollouts.generate(generate))
        async for batch in rollouts.batches():
            batches.append(([group.prompt for group in batch.groups], list(batch.staleness)))
            await anyio.sleep(training)
            await rollouts.publish()
    check_sums(rollouts)
    return batches


@pytest.mark.parametrize("order", ["ready", "oldest", "strict"])
@pytest.mark.parametrize("steps_ahead", [0, 0.5, 1, 2])
@pytest.mark.parametrize("stale", [{}, {"on_stale": "wait"}, {"on_stale": "drop"}], ids=str)
@pytest.mark.parametrize("place", VIRTUAL_PLACES)
@pytest.mark.slow(every=5)
def test_the_face_does_what_the_machine_decides(
    place: type[Place], order: Any, steps_ahead: float, stale: dict[str, Any]
) -> None:
    """The same prompts and ages in each batch, with a slow trainer and with a quick one."""
    if stale:
        stale = {**stale, "max_staleness": math.ceil(steps_ahead) + 1}
    for training in (0.5, 6.0):
        options = {"batch_size": 4, "steps_ahead": steps_ahead, "order": order, **stale}
        machine = RolloutMachine(limit=13, **options)
        simulated = Simulation(machine, 60, 3, training=training).run()
        body = partial(by_the_face, 60, 3, training, max_in_flight=13, **options)
        assert place().run(body) == simulated


@pytest.mark.parametrize("seed", range(200))
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.slow(every=20)
def test_random_programs_lose_and_repeat_nothing(place: type[Place], seed: int) -> None:
    here = place()
    here.run(RandomProgram(seed, here).run)


async def get(rollouts: RolloutQueue[Any, Any]) -> None:
    (await rollouts.get()).done()


async def publish_drained(rollouts: RolloutQueue[Any, Any]) -> None:
    async with rollouts.publishing(drain=True):
        await anyio.lowlevel.checkpoint()


async def publish_at_safe_points(rollouts: RolloutQueue[Any, Any]) -> None:
    async with rollouts.publishing(drain="safe"):
        await anyio.lowlevel.checkpoint()


async def evaluate(rollouts: RolloutQueue[Any, Any]) -> None:
    assert len(await rollouts.evaluate(["a", "b"], group_size=2)) == 2


@pytest.mark.parametrize("call", [get, publish_drained, publish_at_safe_points, evaluate])
@pytest.mark.parametrize("place", PLACES)
def test_a_call_may_be_cancelled_in_each_of_its_turns(
    place: type[Place], call: Callable[[RolloutQueue[Any, Any]], Any]
) -> None:
    """Whenever that is, the next calls and the rest of the run find nothing of it."""

    async def generate(prompt: Any, rollout: Any) -> Any:
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
            await rollout.safe_point()
        return prompt

    async def body() -> int:
        rollouts: RolloutQueue[Any, Any] = RolloutQueue(
            range(8), batch_size=2, group_size=2, steps_ahead=0.5, max_in_flight=3
        )
        async with aioqueue.Coordinator() as coordinator:
            coordinator.start(rollouts.generate(generate))
            await here.cancellable(partial(call, rollouts))
            await call(rollouts)
            batches = [batch async for batch in rollouts.batches()]
        counts = rollouts.statistics()
        check_sums(rollouts)
        assert (counts.trained, counts.running, counts.evaluating) == (8, 0, 0)
        # What `get` has returned, once or twice, was trained by it.
        trained = [group.ordinal for batch in batches for group in batch.groups]
        assert len(set(trained)) == len(trained) >= (4 if call is get else 8)
        assert rollouts._core.publisher is None
        return here.turns

    here = place()
    whole = here.run(body)
    assert whole
    for turn in range(whole + 4):  # in trio, the order within a turn is up to chance
        here = place(turn)
        here.run(body)
