"""A `RolloutQueue` in an actor: the contract of handles, with trainers anywhere in the cluster."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    OutOfRangeError,
    WorkerDiedError,
)
from tests.kit.worlds import spin_until
from tests.ray.marks import MARKS

pytestmark = MARKS

_numbers = itertools.count()


@pytest.fixture
def queue(cluster: Any) -> Iterator[Callable[..., Any]]:
    """Makes queues with names of their own, which are deleted after the test."""
    import aioqueue.ray

    made: list[Any] = []

    def make(prompts: Any = 8, **options: Any) -> Any:
        options = {"batch_size": 2, "order": "strict", **options}
        prompts = list(range(prompts)) if isinstance(prompts, int) else prompts
        name = f"test rollouts {next(_numbers)}"
        made.append(aioqueue.ray.RolloutQueue(name, prompts, **options))
        return made[-1]

    yield make
    for one in made:
        try:
            one.delete()
        except WorkerDiedError:
            pass


async def generate(prompt: Any, rollout: Any) -> Any:
    await asyncio.sleep(0)
    if prompt == "boom":
        raise ConnectionError("engine")
    return (prompt, os.getpid())


async def never(prompt: Any, rollout: Any) -> Any:
    await asyncio.sleep(1e6)


def prompts_of(batch: Any) -> list[Any]:
    return [group.prompt for group in batch.groups]


class Program:
    """A trainer in a process of its own."""

    def __init__(self, rollouts: Any) -> None:
        self.rollouts = rollouts

    def train(self) -> Any:
        found = []
        for batch in self.rollouts.sync.batches():
            with self.rollouts.sync.publishing() as publication:
                found.append((tuple(publication), prompts_of(batch)))
        return found

    def hold(self) -> Any:
        return prompts_of(self.rollouts.sync.get())

    def enter(self) -> Any:
        self.block = self.rollouts.sync.publishing()
        return tuple(self.block.__enter__())

    def end_part(self, part: Any) -> int:
        part.done()
        return len(part)


@pytest.fixture
def program(cluster: Any) -> Iterator[Callable[..., Any]]:
    started = []

    def start(*arguments: Any) -> Any:
        started.append(cluster.remote(num_cpus=0)(Program).remote(*arguments))
        return started[-1]

    yield start
    for one in started:
        cluster.kill(one)


def expire_silent(rollouts: Any) -> None:
    """Have the actor take programs for dead that are silent, without waiting half a minute."""
    rollouts.statistics()  # this one is not
    rollouts._core.actor.expire.remote(0.5)


def test_a_program_trains(cluster: Any, queue: Any, program: Any) -> None:
    rollouts = queue(group_size=2)
    with sync.Coordinator() as coordinator:
        coordinator.start(rollouts.generate(generate))
        found = cluster.get(program(rollouts).train.remote())
        coordinator.join()
    assert found == [((step + 1, step), [2 * step, 2 * step + 1]) for step in range(4)]
    counts = rollouts.statistics()
    assert (counts.trained, counts.version, rollouts.version, rollouts.step) == (8, 4, 4, 4)


def test_it_is_found_by_its_name(queue: Any) -> None:
    rollouts = queue()
    again: Any = aioqueue.ray.RolloutQueue(rollouts.name)
    assert repr(again) == f"<aioqueue.ray.RolloutQueue '{rollouts.name}', of a Ray actor>"
    with pytest.raises(InvalidArgumentError, match="there is a RolloutQueue of that name"):
        aioqueue.ray.RolloutQueue(rollouts.name, [1], batch_size=1)
    with pytest.raises(LookupError, match="there is no RolloutQueue 'nothing'"):
        aioqueue.ray.RolloutQueue("nothing")
    with pytest.raises(InvalidArgumentError, match="prompts: got None with batch_size"):
        aioqueue.ray.RolloutQueue(rollouts.name, batch_size=2)
    with pytest.raises(InvalidArgumentError, match="batch_size: got 0"):
        aioqueue.ray.RolloutQueue("never", [1], batch_size=0)
    with pytest.raises(InvalidArgumentError, match="prompts: got what cannot be pickled"):
        aioqueue.ray.RolloutQueue("never", (one for one in [1]), batch_size=1)


def test_generation_runs_in_the_actor(queue: Any) -> None:
    rollouts = queue()

    async def body() -> set[int]:
        pids = set()
        async with aioqueue.Coordinator() as coordinator:
            coordinator.start(rollouts.generate(generate))
            async for batch in rollouts.batches():
                pids |= {one.result[1] for group in batch.groups for one in group.rollouts}
                assert len(await rollouts.evaluate(["question"], group_size=2)) == 1
                await rollouts.publish()
        return pids

    pids = asyncio.run(body())
    assert len(pids) == 1
    assert os.getpid() not in pids


def test_a_failure_is_reported(queue: Any) -> None:
    rollouts = queue([1, "boom"], batch_size=1)

    async def body() -> None:
        async with aioqueue.Coordinator() as coordinator:
            coordinator.start(rollouts.generate(generate))
            await coordinator.join()

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(body())
    (error,) = caught.value.exceptions
    assert isinstance(error, ConnectionError)
    assert "rollout 0 of prompt 'boom'" in "".join(error.__notes__)
    assert prompts_of(rollouts.sync.get()) == [1] if rollouts.statistics().ready else True
    with pytest.raises(ConnectionError):
        rollouts.sync.get()


def test_the_stop_ends_the_generation(queue: Any) -> None:
    rollouts = queue()
    with sync.Coordinator() as coordinator:
        coordinator.start(rollouts.generate(never))
        spin_until(lambda: rollouts.statistics().running == 4)
        with pytest.raises(DeadlineExceededError):
            rollouts.sync.get(timeout=0.01)
        assert "waits for step 0" not in str(rollouts.explain())
    assert rollouts.statistics().running == 0
    with pytest.raises(OutOfRangeError):
        rollouts.sync.get()


def test_a_cancelled_trainer_leaves_its_batch(queue: Any) -> None:
    rollouts = queue(20, batch_size=1)

    async def body() -> list[Any]:
        found: list[Any] = []
        async with aioqueue.Coordinator() as coordinator:
            coordinator.start(rollouts.generate(generate))
            for turns in range(20):
                taking = asyncio.ensure_future(rollouts.get())
                while turns % 2 and not any(call.gate.is_open for call in rollouts._core.waiting):
                    await asyncio.sleep(0)
                    if taking.done():
                        break
                taking.cancel()
                await asyncio.wait([taking])
                if not taking.cancelled():
                    found += prompts_of(taking.result())
                    taking.result().done()
            async for batch in rollouts.batches():
                found += prompts_of(batch)
        return found

    assert asyncio.run(body()) == list(range(20))


def test_ranks_end_their_parts(cluster: Any, queue: Any, program: Any) -> None:
    rollouts = queue()
    with sync.Coordinator() as coordinator:
        coordinator.start(rollouts.generate(generate))
        parts = rollouts.sync.get().split(2)
        ranks = [program(rollouts) for _ in parts]
        ended = [rank.end_part.remote(part) for rank, part in zip(ranks, parts, strict=True)]
        assert cluster.get(ended) == [1, 1]
        spin_until(lambda: rollouts.statistics().trained == 2)


def test_what_a_program_has_comes_back_when_it_dies(cluster: Any, queue: Any, program: Any) -> None:
    rollouts = queue()
    with sync.Coordinator() as coordinator:
        coordinator.start(rollouts.generate(generate))
        holding, publishing = program(rollouts), program(rollouts)
        assert cluster.get(holding.hold.remote()) == [0, 1]
        assert cluster.get(publishing.enter.remote()) == (1, 0)
        cluster.kill(holding)
        cluster.kill(publishing)

        def is_back() -> bool:
            expire_silent(rollouts)
            return bool(rollouts.statistics().held == 0)

        spin_until(is_back)
        assert rollouts.version == 0
        found = [prompts_of(batch) for batch in rollouts.sync.batches()]
    assert found == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_the_actor_dies(cluster: Any, queue: Any) -> None:
    rollouts = queue()
    with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coordinator:
        coordinator.start(rollouts.generate(never))
        spin_until(lambda: rollouts.statistics().running == 4)
        cluster.kill(rollouts._core.actor)
        with pytest.raises(WorkerDiedError, match="its actor"):
            rollouts.sync.get()
        coordinator.join()
    assert [type(error) for error in caught.value.exceptions] == [WorkerDiedError]
    with pytest.raises(WorkerDiedError):
        rollouts.statistics()


def test_weights_travel_by_other_ways(queue: Any) -> None:
    rollouts = queue()
    with pytest.raises(InvalidArgumentError, match=r"ray\.put"):
        rollouts.sync.publish("weights")
    with pytest.raises(RuntimeError, match="carries no weights"):
        rollouts.policy  # noqa: B018
