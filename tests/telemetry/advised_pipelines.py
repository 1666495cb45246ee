"""Pipelines in which something other than a stage or a source limits, and what a verdict advises.

Each is described by a record; to follow an advice changes the record as a user would change it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

import numpy as np

from aioqueue.inputs import items
from aioqueue.telemetry import Verdict

__all__ = ("Advised", "random_case")

Kind = Literal[
    "collate", "filter", "prefetch", "limit_bytes", "lock", "concurrency_key", "lock of tasks"
]
KINDS: tuple[Kind, ...] = (
    "collate",
    "filter",
    "prefetch",
    "limit_bytes",
    "lock",
    "concurrency_key",
    "lock of tasks",
)
_BYTES = 100_000


@dataclass(frozen=True)
class Advised:
    """One pipeline.

    Attributes:
        kind: what is expected to limit.
        seconds: of a call of what does.
        step: seconds of a training step.
        workers: of the one stage.
        batch: how many examples a batch has.
        limit_bytes: of that stage.
        max_per_key: of that stage: how many items of one key.
        prefetches: whether a thread makes the batches.
    """

    kind: Kind
    seconds: float
    step: float
    workers: int
    batch: int
    limit_bytes: int | None = None
    max_per_key: int | None = None
    prefetches: bool = False

    def pipeline(self) -> Any:
        """It, without an end."""
        lock, seconds, kind = threading.Lock(), self.seconds, self.kind

        def light(number: int) -> int:
            return number

        def locked(number: int) -> int:
            with lock:
                time.sleep(seconds)
            return number

        async def locked_task(number: int) -> int:
            async with lock_of_tasks:
                await asyncio.sleep(seconds)
            return number

        def fetch(number: int) -> int:
            time.sleep(seconds)
            return number

        def host(number: int) -> int:
            return int(number % 20 == 0)

        def uneven(number: int) -> Any:
            time.sleep(seconds if number % 20 else 30 * seconds)
            return np.zeros(_BYTES, np.uint8)

        def my_collate(examples: list[Any]) -> Any:
            time.sleep(seconds)
            return np.array(examples)

        def my_filter(number: int) -> bool:
            time.sleep(seconds)
            return True

        lock_of_tasks = asyncio.Lock()
        functions: dict[str, Any] = {
            "lock": locked,
            "lock of tasks": locked_task,
            "limit_bytes": uneven,
            "concurrency_key": fetch,
        }
        made: Any = items(range(10**6)).prepare(
            functions.get(kind, light),
            workers=self.workers,
            limit_bytes=self.limit_bytes,
            concurrency_key=None if self.max_per_key is None else host,
            max_per_key=self.max_per_key,
        )
        if kind == "filter":
            made = made.filter(my_filter)
        made = made.batch(
            self.batch, collate=my_collate if kind in ("collate", "prefetch") else None
        )
        return made.prefetch(4) if self.prefetches else made

    def following(self, verdict: Verdict) -> Advised | None:
        """The same as advised; ``None`` if there was no advice."""
        if verdict.advice == "prefetch":
            return replace(self, prefetches=True)
        if verdict.advice in ("faster function", "less locking"):
            return replace(self, seconds=self.seconds / 2)
        if verdict.advice == "higher limit_bytes" and self.limit_bytes is not None:
            return replace(self, limit_bytes=4 * self.limit_bytes)
        if verdict.advice == "wider max_per_key" and self.max_per_key is not None:
            return replace(self, max_per_key=2 * self.max_per_key)
        if verdict.advice == "more workers":
            return replace(self, workers=self.workers + verdict.workers)
        return None


def random_case(seed: int) -> Advised:
    """All kinds in turn."""
    random, kind = Random(seed), KINDS[seed % len(KINDS)]
    batch = random.choice((4, 8))
    step = random.choice((0.001, 0.002))
    if kind in ("collate", "prefetch"):
        seconds = random.uniform(0.01, 0.03)
        step = random.choice((0.001, seconds / 2, seconds * 0.8))
        return Advised(kind, seconds, step, 2, batch, prefetches=kind == "prefetch")
    if kind == "filter":
        return Advised(kind, random.uniform(0.002, 0.005), step, 2, batch)
    if kind == "limit_bytes":
        return Advised(kind, random.uniform(0.003, 0.006), step, 8, batch, 4 * _BYTES)
    if kind == "concurrency_key":
        seconds = random.uniform(0.004, 0.01)
        return Advised(kind, seconds, 0.001, 8, batch, max_per_key=random.choice((1, 2, 3)))
    return Advised(kind, random.uniform(0.003, 0.006), step, random.choice((4, 6)), batch)
