"""Pipelines in virtual time that are tuned: how their numbers of workers change."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from aioqueue.telemetry import Snapshot, Tuner, Watch
from tests.telemetry.simulation import Run, Shape, StageShape, simulated

__all__ = ("MOST", "TunedRun", "best_fixed", "fixed_rate", "random_tunable", "with_workers")

MOST = 16
"""Workers that a stage may have."""

_LIMIT = 16
"""Items in flight for each worker."""

_SECONDS = 30.0
"""For which it is measured how fast a pipeline is; after a third of them."""


class TunedRun:
    """A pipeline that is tuned while it runs, in virtual time.

    Args:
        shape: what it is, with the workers that it begins with.
        seed: of the times that differ.
        bounds: the fewest and the most workers of a stage.
    """

    def __init__(self, shape: Shape, seed: int, bounds: tuple[int, int] = (1, MOST)) -> None:
        self.run = Run(shape, seed)
        self.watch = Watch()
        self.history: deque[Snapshot] = deque([self.run.snapshot()], maxlen=300)
        self.tuners = [
            Tuner(
                self.watch,
                stage.shape.name,
                stage.queue_name,
                bounds,
                count=partial(getattr, stage, "count"),
                resize=stage.resize,
            )
            for stage in self.run.stages
        ]
        self.tuning = self.tuners[0].tuning
        self.tuning.close()  # time is ours

    @property
    def workers(self) -> tuple[int, ...]:
        """Of each stage, now."""
        return tuple(stage.count for stage in self.run.stages)

    def continues(self, seconds: int) -> float:
        """So many seconds pass: batches per second of them."""
        steps = self.run.steps
        for _ in range(seconds):
            self.run.world.run(self.run.world.now + 1)
            self.history.append(self.run.snapshot())
            self.tuning.tune_all(self.history)
        return (self.run.steps - steps) / seconds


def with_workers(shape: Shape, counts: Sequence[int]) -> Shape:
    """The same with so many workers of each stage."""
    pairs = zip(shape.stages, counts, strict=True)
    stages = [replace(one, workers=count, max_in_flight=_LIMIT * count) for one, count in pairs]
    return replace(shape, stages=tuple(stages))


def fixed_rate(shape: Shape, counts: Sequence[int], seed: int) -> float:
    """Batches per second with so many workers of each stage."""
    rate, _, _ = simulated(with_workers(shape, counts), seed, _SECONDS)
    return rate


def best_fixed(shape: Shape, seed: int) -> float:
    """Batches per second with the most workers: nothing that is simulated suffers from them."""
    return fixed_rate(shape, [MOST] * len(shape.stages), seed)


def random_tunable(seed: int) -> Shape:
    """A pipeline of one to three stages, each of one worker, that needs up to a dozen of them."""
    rng = random.Random(seed)
    item = 0.003  # seconds for an item, of the part that is as fast as the others
    cores = rng.choice([2.0, 4.0, 8.0])

    def pace() -> float:
        return item * 2 ** rng.uniform(-1.0, 1.0)

    holds = rng.random() < 0.2  # whether functions hold the interpreter lock
    stages = []
    for number in range(rng.randint(1, 3)):
        where = rng.choice(["thread", "thread", "process"])
        wanted = rng.uniform(0.5, 12.0)
        seconds, waits = pace() * wanted, 1.0
        if where == "process":
            waits = rng.choice([0.0, 0.5, 1.0])
        elif holds:
            seconds, waits = pace(), rng.choice([0.0, 0.5])
        stages.append(
            StageShape(
                name=f"stage{number}",
                where=where,
                workers=1,
                waits=waits * seconds,
                computes=(1 - waits) * seconds,
                spread=rng.choice([0.0, 0.3, 1.0]),
                ordered=rng.random() < 0.7,
                max_in_flight=_LIMIT,
                room=rng.choice([16, 64, 128]),
                starts=rng.choice([0.3, 1.0, 5.0]) if where == "process" else 0.0,
                places=rng.choice([0, 0, 0, 0, 2, 4]),
            )
        )
    batch = rng.choice([1, 4, 16])
    source = rng.choice([0.0, 0.3, 1.0]) * pace()
    return Shape(source, tuple(stages), batch, pace() * rng.choice([0.3, 1.0]) * batch, cores)
