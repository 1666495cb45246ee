"""Asynchronous reinforcement learning on a toy: an engine generates, a trainer trains, at once.

    python examples/rollouts.py
    python examples/rollouts.py --steps-ahead 0        generate, train, generate, train
    python examples/rollouts.py --sync                 a trainer that is a plain script

The policy is asked to continue counting: "3" should be answered with "4". It begins with random
answers, gets a reward for each right one, and learns from groups of eight answers to the same
question, whose advantages are their rewards minus the mean (as in GRPO). The engine stands for an
inference server: answers take time, some take long, and new weights need a pause.

* Groups in which all answers are equally good teach nothing: ``accept=`` refuses them, and others
  are generated in their place.
* The policy of a rollout may be older than that which is trained. Its probabilities come with it,
  and the loss corrects for the difference by importance weights.
* ``--steps-ahead 1`` generates while the trainer trains; the last line tells who waited.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import aioqueue
from aioqueue import inputs, sync
from aioqueue.rl import Batch, Group, Rollout, RolloutQueue

DIGITS = 10
LEARNING_RATE = 1.0
ANSWER_SECONDS = 0.01
TRAINING_SECONDS = 0.02
PUBLICATION_SECONDS = 0.002


@dataclass
class Answer:
    """A sample: what was answered, how probable that was, and its reward."""

    digit: int
    probability: float
    reward: float


def probabilities(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max())
    result: np.ndarray = powers / powers.sum()
    return result


class Engine:
    """Stands for an inference server with weights of its own."""

    def __init__(self) -> None:
        self.weights = np.zeros((DIGITS, DIGITS))

    async def answer(self, question: int, rollout: Rollout[Answer]) -> Answer:
        generator = np.random.default_rng(rollout.seed)
        await asyncio.sleep(ANSWER_SECONDS * generator.lognormal(0, 1))
        chances = probabilities(self.weights[question])
        digit = int(generator.choice(DIGITS, p=chances))
        return Answer(digit, float(chances[digit]), float(digit == (question + 1) % DIGITS))

    async def update(self, weights: np.ndarray) -> None:
        await asyncio.sleep(PUBLICATION_SECONDS)
        self.weights = weights.copy()


def score(group: Group[int, Answer]) -> bool:
    """Note the advantages of a group, and refuse one that teaches nothing."""
    rewards = np.array([one.result.reward for one in group.rollouts])
    group.info["advantages"] = rewards - rewards.mean()
    return bool(rewards.min() < rewards.max())


def train(weights: np.ndarray, batch: Batch[int, Answer]) -> None:
    """Follow the gradient of the policy, with importance weights of at most 2."""
    for group in batch.groups:
        for one, advantage in zip(group.rollouts, group.info["advantages"], strict=True):
            answer = one.result
            chances = probabilities(weights[group.prompt])
            importance = min(chances[answer.digit] / answer.probability, 2.0)
            gradient = -chances
            gradient[answer.digit] += 1
            step = LEARNING_RATE * importance * advantage / len(group.rollouts)
            weights[group.prompt] += step * gradient
    time.sleep(TRAINING_SECONDS)  # a real model takes its time


def report(batch: Batch[int, Answer], weights: np.ndarray) -> None:
    if batch.step % 10 == 9:
        right = [probabilities(weights[digit])[(digit + 1) % DIGITS] for digit in range(DIGITS)]
        oldest = max(batch.staleness)
        print(
            f"step {batch.step + 1:3}: {np.mean(right):4.0%} right, trained on answers at most"
            f" {oldest} steps old",
            flush=True,
        )


async def train_async(rollouts: RolloutQueue[int, Answer], engine: Engine, steps: int) -> None:
    weights = engine.weights.copy()
    async with aioqueue.Coordinator() as coord:
        coord.start(rollouts.generate(engine.answer, retry=inputs.Retry(3), timeout=60))
        async for batch in rollouts.batches(steps):
            await asyncio.to_thread(train, weights, batch)
            async with rollouts.publishing():
                await engine.update(weights)
            report(batch, weights)


def train_sync(rollouts: RolloutQueue[int, Answer], engine: Engine, steps: int) -> None:
    weights = engine.weights.copy()
    with sync.Coordinator() as coord:
        coord.start(rollouts.generate(engine.answer, retry=inputs.Retry(3), timeout=60))
        for batch in rollouts.sync.batches(steps):
            train(weights, batch)
            with rollouts.sync.publishing():
                engine.weights = weights.copy()
            report(batch, weights)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--steps-ahead", type=float, default=1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--sync", action="store_true", help="train in a plain script")
    given = parser.parse_args(arguments)

    questions = inputs.items(range(DIGITS), shuffle=True, seed=given.seed)
    options: dict[str, Any] = {"steps_ahead": given.steps_ahead, "seed": given.seed}
    rollouts: RolloutQueue[int, Answer] = RolloutQueue(
        questions, batch_size=4, group_size=8, accept=score, max_refused=100, **options
    )
    engine = Engine()
    if given.sync:
        train_sync(rollouts, engine, given.steps)
    else:
        asyncio.run(train_async(rollouts, engine, given.steps))
    counts = rollouts.statistics()
    print(f"{counts.trained} groups trained, {counts.refused} refused")
    print(counts.verdict)


if __name__ == "__main__":
    main()
