"""A `RolloutQueue`: the types of prompts and results."""

from __future__ import annotations

import asyncio
from typing import Any, assert_type

import aioqueue
from aioqueue import sync
from aioqueue.inputs import items
from aioqueue.rl import Batch, Group, Rollout, RolloutQueue


async def generate(prompt: str, rollout: Rollout[int]) -> int:
    return len(prompt) + rollout.index


def score(group: Group[str, int]) -> bool:
    assert_type(group.prompt, str)
    assert_type(group.rollouts[0].result, int)
    return True


async def main() -> None:
    rollouts: RolloutQueue[str, int] = RolloutQueue(["a", "bc"], batch_size=1, accept=score)
    async with aioqueue.Coordinator() as coordinator:
        coordinator.start(rollouts.generate(generate))
        async for batch in rollouts.batches():
            assert_type(batch, Batch[str, int])
            assert_type(batch.staleness, tuple[int, ...])
            async with rollouts.publishing() as publication:
                assert_type(publication.version, int)
    inferred = RolloutQueue(items([1, 2], epochs=1), batch_size=2)
    assert_type(inferred, RolloutQueue[int, Any])


def in_a_script() -> None:
    rollouts: RolloutQueue[str, int] = RolloutQueue(["a", "bc"], batch_size=1)
    with sync.Coordinator() as coordinator:
        coordinator.start(rollouts.generate(generate))
        for batch in rollouts.sync.batches():
            assert_type(batch, Batch[str, int])
            with rollouts.sync.publishing() as publication:
                assert_type(publication.before, int)


asyncio.run(main())
in_a_script()
