"""Real pipelines of parts whose speed is known: they sleep, or compute, for a given time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from aioqueue import inputs
from aioqueue.inputs import Pipeline
from aioqueue.telemetry import Monitor, Verdict

__all__ = ("REAL", "Function", "Real", "measured")


def sleeping(item: int, seconds: float) -> int:
    """What waits for something else than a processor."""
    time.sleep(seconds)
    return item


def computing(item: int, seconds: float) -> int:
    """What holds the interpreter lock, for so many seconds of a processor."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return item


@dataclass(frozen=True)
class Function:
    """One stage: seconds of a call, and where it runs.

    Attributes:
        seconds: of a call.
        workers: how many.
        where: what runs it.
        computes: whether it holds the interpreter lock all that time.
        ordered: whether the order is kept.
    """

    seconds: float
    workers: int
    where: Any = "thread"
    computes: bool = False
    ordered: bool = True

    def __call__(self, item: int) -> int:
        return (computing if self.computes else sleeping)(item, self.seconds)


@dataclass(frozen=True)
class Real:
    """A pipeline: seconds of the source for an item, stages, and seconds of a step for a batch."""

    source: float
    stages: tuple[Function, ...]
    step: float
    batch: int = 4

    def parts(self) -> list[str]:
        """What can be made faster: stages by number."""
        return ["step", "source", *(f"stage{number}" for number in range(len(self.stages)))]

    def faster(self, part: str) -> Real:
        """The same with one part that is twice as fast."""
        if part in ("step", "source"):
            return replace(self, **{part: getattr(self, part) / 2})
        changed = int(part.removeprefix("stage"))
        stages = [
            replace(one, seconds=one.seconds / 2) if number == changed else one
            for number, one in enumerate(self.stages)
        ]
        return replace(self, stages=tuple(stages))

    def pipeline(self, **options: Any) -> Pipeline[Any]:
        """It, with further options for all stages."""
        made: Any = inputs.from_iterable(partial(_items, self.source))
        for number, stage in enumerate(self.stages):
            function = _Named(f"stage{number}", stage)
            given = {"workers": stage.workers, "where": stage.where, "ordered": stage.ordered}
            made = made.prepare(function, **given | options)
        batches: Pipeline[Any] = made.batch(self.batch)
        return batches


class _Named:
    """A function by a name of its own, for processes too."""

    def __init__(self, name: str, function: Function) -> None:
        self.__name__ = name
        self._function = function

    def __call__(self, item: int) -> int:
        return self._function(item)


def _items(seconds: float) -> Iterator[int]:
    number = 0
    while True:
        if seconds:
            time.sleep(seconds)
        yield number
        number += 1


def measured(pipeline: Pipeline[Any], step: float, seconds: float) -> tuple[float, Verdict]:
    """Go through it for some seconds: batches per second of the last two thirds, and the verdict
    of them."""
    with Monitor(pipeline) as monitor:
        began, steps = 0.0, 0
        warm = 0.0
        for _ in pipeline:
            began = began or time.perf_counter()  # processes take their time to start
            time.sleep(step)
            now = time.perf_counter()
            if now - began > seconds:
                break
            if now - began > seconds / 3:
                steps, warm = steps + 1, warm or now
        rate = (steps - 1) / (now - warm) if steps > 1 else 1 / seconds
        return rate, monitor.verdict(2 * seconds / 3)


REAL = (
    Real(0, (Function(0.002, 4),), 0.020),
    Real(0, (Function(0.010, 2),), 0.002),
    Real(0, (Function(0.010, 3),), 0.008),
    Real(0.005, (Function(0.002, 4),), 0.004),
    Real(0, (Function(0.002, 4, computes=True),), 0.001),
    Real(0, (Function(0.010, 2, "process"),), 0.002),
    Real(0, (Function(0.002, 8), Function(0.020, 2)), 0.004),
    Real(0, (Function(0.020, 2), Function(0.002, 8)), 0.004),
    Real(0, (Function(0.010, 4), Function(0.010, 4)), 0.040),
    Real(0.010, (Function(0.010, 4), Function(0.010, 4)), 0.004),
    Real(0, (Function(0.001, 1), Function(0.040, 8)), 0.002, 2),
    Real(0, (Function(0.040, 8, ordered=False),), 0.002),
    Real(0.001, (Function(0.010, 1),), 0.002, 1),
    Real(0.008, (Function(0.004, 1),), 0.002, 1),
    Real(0, (Function(0.004, 2), Function(0.004, 2, "process")), 0.040),
    Real(0, (Function(0.004, 4), Function(0.020, 2, "process")), 0.002),
    Real(0, (Function(0.010, 6), Function(0.005, 4, computes=True)), 0.001),
    Real(0, (Function(0.030, 6), Function(0.010, 6), Function(0.002, 2)), 0.002),
    Real(0, (Function(0.005, 4), Function(0.050, 6), Function(0.005, 4)), 0.002),
    Real(0.001, (Function(0.005, 8), Function(0.005, 8), Function(0.005, 8)), 0.050),
)
"""Twenty, of which it is known what limits them, or can be measured."""
