"""GRPO from nothing: a policy learns to add digits, while the next answers are generated.

How it flows::

    prompts ──► RolloutQueue ──► engine: 8 answers a prompt ──► score ──► batch ──► trainer
                     ▲                                                                 │
                     └────────────────── publishing: new weights ◄─────────────────────┘

* The task can be verified. A prompt has one to four digits. The policy reads them one by one, and
  writes a digit after each. The answer is right if the last one is the sum, modulo 10. That is all
  that is rewarded: what to write before, the policy has to find out.
* The policy is a table of logits: a row for each digit that it may have written last, and each that
  it reads.
* The engine stands for an inference server. Its answers take time, and a few take long. It takes
  new weights between two tokens, so that a long answer may come from several versions.
* The loss is that of GRPO. The advantage of an answer is its reward relative to its group, and the
  ratio of each token's new probability to the old one is clipped, so that old answers do no harm.

::

    python examples/async_grpo.py                     # compares steps_ahead 0, 1 and 2
    python examples/async_grpo.py --steps-ahead 1     # one run
    python examples/async_grpo.py --steps-ahead 1 --save run.json

You can interrupt the last one, or kill it. The same command then continues: each prompt is trained
once over both runs. With ``--steps-ahead 0``, even the weights are, to the last bit, those of a run
that was not interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import aioqueue
from aioqueue import inputs
from aioqueue.rl import Batch, Group, Rollout, RolloutQueue

Floats = NDArray[np.float64]
Digits = tuple[int, ...]

BASE = 10
MAX_DIGITS = 4
BATCH_SIZE, GROUP_SIZE = 16, 8
LEARNING_RATE = 120.0
CLIP = 0.2
HELD_OUT = 500  # prompts
REPORT_EVERY = 10  # steps

TOKEN_SECONDS = 0.002
TRAINING_SECONDS = 0.02
PUBLICATION_SECONDS = 0.002


@dataclass(frozen=True)
class Answer:
    """One sample: for each token what the policy saw, what it wrote, and how probable that was."""

    states: NDArray[np.int_]  # (tokens, 2): written last, and read
    tokens: NDArray[np.int_]
    logprobs: Floats
    reward: float


def log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


class Engine:
    """Stands for an inference server, which has weights of its own."""

    def __init__(self, weights: Floats) -> None:
        self.weights = weights

    async def generate(self, prompt: Digits, rollout: Rollout[Answer]) -> Answer:
        rng = np.random.default_rng(rollout.seed)
        seconds = TOKEN_SECONDS * rng.lognormal(sigma=1.0)  # some replicas are busy
        written = 0
        states, tokens, logprobs = [], [], []
        for digit in prompt:
            await asyncio.sleep(seconds)
            scores = log_softmax(self.weights[written, digit])
            token = int(np.argmax(scores + rng.gumbel(size=BASE)))  # a sample of the softmax
            rollout.mark(1)  # this token is of the version that is published now
            states.append((written, digit))
            tokens.append(token)
            logprobs.append(scores[token])
            written = token
        reward = float(written == sum(prompt) % BASE)
        return Answer(np.array(states), np.array(tokens), np.array(logprobs), reward)

    async def update(self, weights: Floats) -> None:
        await asyncio.sleep(PUBLICATION_SECONDS)
        self.weights = weights


def score(group: Group[Digits, Answer]) -> bool:
    """Give a group its advantages; refuse one whose answers are all right, or all wrong."""
    rewards = np.array([one.result.reward for one in group.rollouts])
    spread = rewards.std()
    if spread == 0:
        return False
    group.info["advantages"] = (rewards - rewards.mean()) / spread
    return True


def train(weights: Floats, batch: Batch[Digits, Answer]) -> Floats:
    """Return the weights after a step up the gradient of GRPO's clipped objective."""
    answers = [one.result for group in batch.groups for one in group.rollouts]
    written, read = np.concatenate([answer.states for answer in answers]).T
    tokens = np.concatenate([answer.tokens for answer in answers])
    old = np.concatenate([answer.logprobs for answer in answers])
    of_answers = np.concatenate([group.info["advantages"] for group in batch.groups])
    advantages = np.repeat(of_answers, [len(answer.tokens) for answer in answers])

    logprobs = log_softmax(weights[written, read])
    ratios = np.exp(logprobs[np.arange(len(tokens)), tokens] - old)
    is_clipped = np.where(advantages > 0, ratios > 1 + CLIP, ratios < 1 - CLIP)
    gains = np.where(is_clipped, 0.0, ratios * advantages)
    direction = np.eye(BASE)[tokens] - np.exp(logprobs)  # the gradient of a token's logprob
    gradient = np.zeros_like(weights)
    np.add.at(gradient, (written, read), gains[:, None] * direction)
    time.sleep(TRAINING_SECONDS)  # a real model takes its time
    return weights + LEARNING_RATE * gradient / len(tokens)


def questions(seed: int) -> list[Digits]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, MAX_DIGITS, size=2000, endpoint=True)
    return [tuple(rng.integers(BASE, size=length).tolist()) for length in lengths]


@dataclass(frozen=True)
class Result:
    """What a run has achieved, and what it has cost."""

    accuracy: float  # of prompts that it was not trained on
    idle: float  # the share of the time for which the trainer waited
    mean_staleness: float
    worst_staleness: int
    seconds: float


async def run(steps: int, steps_ahead: float, seed: int, save: Path | None = None) -> Result:
    """Train from the beginning, or from the step that an earlier run has saved."""
    rollouts: RolloutQueue[Digits, Answer] = RolloutQueue(
        inputs.items(questions(seed), shuffle=True, seed=seed),
        batch_size=BATCH_SIZE,
        group_size=GROUP_SIZE,
        steps_ahead=steps_ahead,
        accept=score,
        max_refused=100,
        seed=seed,
    )
    weights: Floats = np.zeros((BASE, BASE, BASE))
    saved: Any = inputs.load_position(save, default=None) if save is not None else None
    if saved is not None:
        weights = np.array(saved["weights"])
        rollouts.load_state_dict(saved["rollouts"])
        print(f"continues after step {rollouts.step}", flush=True)
    engine = Engine(weights)

    async with aioqueue.Coordinator() as coord:
        coord.start(rollouts.generate(engine.generate, retry=inputs.Retry(3), timeout=60))
        async for batch in rollouts.batches(steps):
            weights = await asyncio.to_thread(train, weights, batch)
            async with rollouts.publishing():
                await engine.update(weights)
            if save is not None:
                state = {"weights": weights.tolist(), "rollouts": rollouts.state_dict()}
                inputs.save_position(save, state)
            report(batch)
        held_out = await rollouts.evaluate(questions(seed + 1)[:HELD_OUT])
    counts = rollouts.statistics()
    return Result(
        accuracy=share_of_right(held_out),
        idle=counts.trainer_waited / counts.seconds,
        mean_staleness=counts.mean_staleness,
        worst_staleness=counts.worst_staleness,
        seconds=counts.seconds,
    )


def share_of_right(groups: Iterable[Group[Digits, Answer]]) -> float:
    return float(np.mean([one.result.reward for group in groups for one in group.rollouts]))


def report(batch: Batch[Digits, Answer]) -> None:
    step = batch.step + 1
    if step % REPORT_EVERY == 0:
        right, oldest = share_of_right(batch.groups), max(batch.staleness)
        text = f"step {step:3}: {right:4.0%} of the answers right, the oldest {oldest} steps old"
        print(text, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="GRPO in NumPy, asynchronous.")
    add = parser.add_argument
    add("--steps", type=int, default=50, help="of the whole run, default 50")
    add("--steps-ahead", type=float, help="one run, instead of a comparison")
    add("--save", type=Path, help="a file that the run is saved to, and continues from")
    add("--seed", type=int, default=7)
    options = parser.parse_args(arguments)
    if options.save is not None and options.steps_ahead is None:
        parser.error("--save is for one run: give --steps-ahead, too")
    aheads = (0.0, 1.0, 2.0) if options.steps_ahead is None else (options.steps_ahead,)

    results: dict[float, Result] = {}
    try:
        for ahead in aheads:
            print(f"steps_ahead={ahead:g}", flush=True)
            results[ahead] = asyncio.run(run(options.steps, ahead, options.seed, options.save))
    except KeyboardInterrupt:
        hint = "" if options.save is None else ": the same command continues"
        print(f"interrupted{hint}", flush=True)
        return 130
    print("steps_ahead  accuracy  trainer idle  staleness, mean and worst  seconds")
    for ahead, result in results.items():
        print(
            f"{ahead:11g}  {result.accuracy:8.1%}  {result.idle:12.0%}"
            f"  {result.mean_staleness:15.2f}  {result.worst_staleness:9}  {result.seconds:7.1f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
