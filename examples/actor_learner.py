"""Actors play, and a learner learns: a policy in NumPy, with aioqueue between the two sides.

How it flows::

    actor 0 ─┐                                   ┌──► learner: one step per 32 episodes
    actor 1 ─┼─ episodes ──► FIFOQueue ──────────┘         │
    actor 2 ─┘                                             │ new weights
       ▲                                                   ▼
       └────────────── the newest weights ◄──────────── Latest

* The game is Catch: a ball falls from a random column, and a paddle has to be below it. The actors
  are threads, or with ``--processes`` processes, as a slow game in Python needs. Each plays one
  episode after the other, always with the newest weights.
* The learner wants all episodes, each once: they go through a queue. Each actor wants the newest
  weights only, again and again: they are in a ``Latest``. So publishing never waits, and no actor
  begins an episode with old weights.
* The game of one actor has a defect, and crashes after a while. ``Restart`` starts the actor again,
  with a new game, and logs the failure. If that went on, the learner would end with the failure.

::

    python examples/actor_learner.py                # a few seconds
    python examples/actor_learner.py --actors 8 --steps 200
    python examples/actor_learner.py --processes
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import aioqueue
from aioqueue import sync

Floats = NDArray[np.float64]

WIDTH, HEIGHT = 9, 8
MOVES = 3  # left, stay, right
SEEN = 2 * WIDTH - 1  # how far the ball is to the left or right of the paddle
EPISODES = 32  # per step
RATE = 2.0
REPORT = 20  # steps


class Catch:
    """The game. A defect makes it crash at its `crash_at`-th episode, if it has one."""

    def __init__(self, rng: np.random.Generator, crash_at: int | None) -> None:
        self._rng = rng
        self._crash_at = crash_at
        self._played = 0

    def episode(self, weights: Floats) -> Episode:
        self._played += 1
        if self._played == self._crash_at:
            raise RuntimeError("the game has crashed")
        ball, paddle = self._rng.integers(WIDTH, size=2)
        seen, moves = [], []
        for _ in range(HEIGHT):
            offset = int(ball - paddle) + WIDTH - 1
            move = int(self._rng.choice(MOVES, p=chances(weights[offset])))
            paddle = min(max(paddle + move - 1, 0), WIDTH - 1)
            seen.append(offset)
            moves.append(move)
        return Episode(np.array(seen), np.array(moves), caught=bool(ball == paddle))


@dataclass
class Episode:
    """What an actor saw and did, and with which weights."""

    seen: NDArray[np.int_]
    moves: NDArray[np.int_]
    caught: bool
    version: int = 0


def chances(scores: Floats) -> Floats:
    """The probabilities of moves."""
    grown: Floats = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Floats = grown / grown.sum(axis=-1, keepdims=True)
    return shares


def improved(weights: Floats, episodes: list[Episode]) -> Floats:
    """One step of REINFORCE: what was done in good episodes becomes more likely."""
    caught = np.array([one.caught for one in episodes], dtype=float)
    gradient = np.zeros_like(weights)
    for episode, gain in zip(episodes, caught - caught.mean(), strict=True):
        wanted = np.eye(MOVES)[episode.moves] - chances(weights[episode.seen])
        np.add.at(gradient, episode.seen, gain * wanted)
    return weights + RATE * gradient / len(episodes)


def make_actor(
    number: int,
    queue: aioqueue.FIFOQueue[Episode],
    policy: aioqueue.Latest[Floats],
    seed: int,
    crash_at: int | None,
) -> Callable[[], None]:
    lives: Iterator[int] = itertools.count()

    def actor() -> None:
        """One life: it ends with the run, or with a failure. The next life has a new game."""
        life = next(lives)
        game = Catch(np.random.default_rng((seed, number, life)), None if life else crash_at)
        while True:
            version, weights = policy.sync.get()
            episode = game.episode(weights)
            episode.version = version
            queue.sync.enqueue(episode)

    return actor


def restart(seed: int) -> aioqueue.Restart:
    return aioqueue.Restart(times=3, backoff=0.1, jitter=0.5, seed=seed, reset_after=60)


def play_in_process(
    coord: sync.Coordinator,
    queue: aioqueue.FIFOQueue[Episode],
    policy: aioqueue.Latest[Floats],
    number: int,
    seed: int,
    crash_at: int | None,
) -> None:
    """What another process does: one actor, in the same run as the learner.

    All three are handles of what the learner's process has. The actor itself is the same.
    """
    logging.basicConfig(format="%(message)s")
    actor = make_actor(number, queue, policy, seed, crash_at)
    coord.start(sync.QueueRunner(queue.sync, [actor], restart=restart(seed)))
    coord.join()


async def learn(actors: int, steps: int, seed: int, crash_at: int, *, processes: bool) -> float:
    """Train a policy; return the share of balls that it catches in the end."""
    queue = aioqueue.FIFOQueue[Episode](2 * EPISODES, name="episodes")
    policy = aioqueue.Latest(np.zeros((SEEN, MOVES)), name="policy")
    crashes = [None if number else crash_at for number in range(actors)]
    ops = [make_actor(number, queue, policy, seed, at) for number, at in enumerate(crashes)]
    runner = aioqueue.QueueRunner(queue, ops, restart=restart(seed))
    players: list[multiprocessing.process.BaseProcess] = []
    weights = policy.get_nowait().value
    share = 0.0
    async with aioqueue.Coordinator() as coord:
        if processes:
            shared = coord.share().sync, queue.share(), policy.share()
            spawn = multiprocessing.get_context("spawn").Process
            for number, at in enumerate(crashes):
                arguments = (*shared, number, seed, at)
                players.append(spawn(target=play_in_process, args=arguments))
                players[-1].start()
        else:
            coord.start(runner)
        caught, ages = [], []
        for step in range(1, steps + 1):
            episodes = await queue.dequeue_many(EPISODES)
            caught += [one.caught for one in episodes]
            ages += [policy.version - one.version for one in episodes]
            weights = improved(weights, episodes)
            policy.publish(weights)
            if step % REPORT == 0 or step == steps:
                share = float(np.mean(caught))
                age = np.mean(ages)
                print(f"step {step:3}: caught {share:4.0%}, weights {age:.1f} versions old")
                caught, ages = [], []
    # The end of the block has stopped the actors, wherever they are.
    if processes:
        for player in players:
            player.join()
        print(f"exit codes of actors: {[player.exitcode for player in players]}")
    else:
        print(f"restarts of actors: {runner.times_restarted}")
    return share


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Actors and a learner.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--actors", type=int, default=3)
    add("--steps", type=int, default=120, help=f"of the learner, with {EPISODES} episodes each")
    add("--processes", action="store_true", help="each actor in a process of its own")
    add("--crash-at", type=int, default=200, help="episode at which the game of actor 0 crashes")
    add("--seed", type=int, default=7)
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s")
    learning = learn(
        options.actors,
        options.steps,
        options.seed,
        options.crash_at,
        processes=options.processes,
    )
    asyncio.run(learning)


if __name__ == "__main__":
    main()
