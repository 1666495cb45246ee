"""Actors fill a replay buffer with transitions of a toy arm, and a learner fits its motion.

    python fit_arm.py FOLDER

A transition is a tree: what was seen, what was done, what came of it. It goes through a queue with
dtypes in dicts, and then, from a file of episodes, through a pipeline that pads, buckets and goes
on from a position. Both fits must find the same arm.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aioqueue import sync
from aioqueue.inputs import items, load_position, save_position

ARM = np.array([[0.9, 0.1], [-0.2, 0.8]])
PUSH = np.array([0.5, 0.25])

DTYPES = {
    "seen": {"joints": np.float64, "camera": {"pixels": np.uint8, "exposure": np.float32}},
    "done": np.float64,
    "next": {"joints": np.float64},
}
SHAPES: dict[str, Any] = {
    "seen": {"joints": (2,), "camera": {"pixels": (2, 2), "exposure": ()}},
    "done": (),
    "next": {"joints": (2,)},
}


@dataclass(frozen=True)
class Episode:
    """All steps of one try, some more and some fewer."""

    joints: np.ndarray[Any, Any]
    pushes: np.ndarray[Any, Any]
    about: dict[str, Any]


def episode(seed: int) -> Episode:
    rng = np.random.default_rng(seed)
    joints = [rng.normal(size=2)]
    pushes = rng.normal(size=int(rng.integers(4, 20)))
    for push in pushes:
        joints.append(ARM @ joints[-1] + PUSH * push)
    about = {"seed": seed, "robot": f"arm-{seed % 3}", "notes": None}
    return Episode(np.array(joints), np.append(pushes, 0), about)


def transitions(seed: int) -> Any:
    """The steps of an episode, one by one."""
    one = episode(seed)
    for before, push, after in zip(one.joints, one.pushes, one.joints[1:], strict=False):
        camera = {"pixels": np.full((2, 2), seed, np.uint8), "exposure": 0.01}
        seen = {"joints": before, "camera": camera}
        yield {"seen": seen, "done": push, "next": {"joints": after}}


def fitted(befores: Any, pushes: Any, afters: Any) -> Any:
    """The arm and the push that explain the motion best."""
    known = np.column_stack([befores, pushes])
    return np.linalg.lstsq(known, afters, rcond=None)[0].T


def from_actors() -> Any:
    """What a learner finds in the transitions that two actors make meanwhile."""
    replay = sync.RandomShuffleQueue(256, 64, DTYPES, SHAPES, seed=7)

    def actor(first: int) -> Any:
        seeds = iter(range(first, 40, 2))
        left: list[Any] = []

        def act() -> None:
            while not left:
                left.extend(transitions(next(seeds)))
            replay.enqueue(left.pop())

        return act

    with sync.Coordinator() as coord:
        runner = sync.QueueRunner(
            replay, [actor(0), actor(1)], queue_closed_exception_types=(StopIteration,)
        )
        coord.start(runner)
        batches = list(replay.batches(32))
    assert batches[0]["seen"]["camera"]["pixels"].shape == (32, 2, 2)
    return fitted(
        np.concatenate([batch["seen"]["joints"] for batch in batches]),
        np.concatenate([batch["done"] for batch in batches]),
        np.concatenate([batch["next"]["joints"] for batch in batches]),
    )


def from_episodes(folder: Path) -> Any:
    """The same from whole episodes, in a loop that is left and resumed."""
    episodes = items(range(40), shuffle=True, seed=1).prepare(episode, workers=2)
    pipeline = episodes.bucket([8, 14], 8, length=lambda one: len(one.pushes))
    befores: list[Any] = []
    pushes: list[Any] = []
    afters: list[Any] = []
    position: Any = None
    for most in (2, None):
        with pipeline.epochs(1, resume=position) as epochs:
            for number, (lengths, batch) in enumerate(next(epochs)):
                assert isinstance(batch, Episode)
                assert batch.about["notes"] is None
                for row, length in enumerate(lengths):
                    joints = batch.joints[row, :length]
                    befores += list(joints[:-1])
                    afters += list(joints[1:])
                    pushes += list(batch.pushes[row, : length - 1])
                if number + 1 == most:
                    break
            save_position(folder / "position.json", epochs.state_dict())
        position = load_position(folder / "position.json")
    return fitted(np.array(befores), np.array(pushes), np.array(afters))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    right = np.column_stack([ARM, PUSH])
    for name, found in (("actors", from_actors()), ("episodes", from_episodes(folder))):
        print(f"{name}: off by {np.abs(found - right).max():.6f}")


if __name__ == "__main__":
    main()
