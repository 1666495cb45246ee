"""Whether autotune finds the numbers of workers: at least 0.9 of the best fixed ones.

    python -m proofs.tuning [--simulated 200] [--pipelines 10] [--seconds 30] [--rounds 7]

Pipelines begin with one worker for each stage, and are tuned for so many seconds. Then it is
measured how fast they are with the numbers that were found, and with the best of all others.

Simulated pipelines have parts of known speed, in virtual time, so that it does not matter what else
the machine does. Real ones sleep and compute: what was found and its rivals take turns, again and
again, so that whatever else the machine does hits all of them alike. It only ever makes them
slower; so the best turns are compared.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

from aioqueue.telemetry import Monitor
from tests.telemetry.real_pipelines import Function, Real
from tests.telemetry.tuned_runs import TunedRun, best_fixed, fixed_rate, random_tunable

__all__ = ("ENOUGH", "PIPELINES", "judge_simulated")

ENOUGH = 0.9
"""Share of the best that has to be reached."""

PIPELINES = (
    Real(0, (Function(0.010, 1),), 0.010),
    Real(0, (Function(0.040, 1),), 0.010),
    Real(0, (Function(0.002, 1),), 0.020),
    Real(0.002, (Function(0.030, 1),), 0.002),
    Real(0, (Function(0.020, 1, ordered=False),), 0.005),
    Real(0, (Function(0.010, 1, computes=True),), 0.005, 1),
    Real(0, (Function(0.010, 1), Function(0.030, 1)), 0.010),
    Real(0, (Function(0.030, 1), Function(0.010, 1)), 0.010),
    Real(0, (Function(0.020, 1, "process"),), 0.010),
    Real(0.004, (Function(0.010, 1), Function(0.020, 1)), 0.004),
)
_CHOICES = (1, 2, 4, 8, 16)
_RIVALS = 3
"""Of the fixed numbers: those that were fastest at first sight."""
_WARM, _MEASURED = 1.0, 1.0
"""Seconds of a turn: until what is in the queues is gone, and then."""

_LIMIT = 64
"""Items in flight: enough for all workers, and few enough that what has come while others had their
turns is gone when it is measured."""

Counts = tuple[int, ...]


def judge_simulated(seed: int, seconds: int = 30) -> tuple[float, Counts]:
    """Tune a simulated pipeline: the share of the best rate that it reaches with the numbers of
    workers which were found, and these."""
    shape = random_tunable(seed)
    run = TunedRun(shape, seed)
    run.continues(seconds)
    return fixed_rate(shape, run.workers, seed) / best_fixed(shape, seed), run.workers


class Going:
    """A pipeline that runs, with fixed numbers of workers, and is iterated over at times.

    Args:
        real: what it is.
        counts: workers of each stage.
    """

    def __init__(self, real: Real, counts: Counts) -> None:
        pairs = zip(real.stages, counts, strict=True)
        stages = tuple(replace(one, workers=count) for one, count in pairs)
        self._step = real.step
        self._epochs: Any = replace(real, stages=stages).pipeline(max_in_flight=_LIMIT).epochs(1)
        self._batches = next(self._epochs)
        next(self._batches)  # processes take their time to start
        self.rates: list[float] = []

    def close(self) -> None:
        self._epochs.close()

    def takes_turn(self) -> float:
        """Run it for some more seconds: batches per second, once it is warm."""
        self._steps(_WARM)
        steps, seconds = self._steps(_MEASURED)
        self.rates.append(steps / seconds)
        return self.rates[-1]

    def _steps(self, least: float) -> tuple[int, float]:
        began, steps = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < least or not steps:
            next(self._batches)
            time.sleep(self._step)
            steps += 1
        return steps, passed


@dataclass(frozen=True)
class Tuned:
    """What tuning has come to: numbers of workers; and batches per second of its last seconds."""

    counts: Counts
    rate: float


def tuned(real: Real, seconds: float, last: float = 5.0) -> Tuned:
    """Let a pipeline be tuned for some seconds."""
    pipeline = real.pipeline(autotune=(1, max(_CHOICES)))
    steps = 0
    with Monitor(pipeline) as monitor, pipeline.epochs(1) as epochs:
        batches = next(epochs)
        began = time.perf_counter()
        while (passed := time.perf_counter() - began) < seconds:
            next(batches)
            time.sleep(real.step)
            steps += passed > seconds - last
        counts = dict.fromkeys((f"stage{number}" for number in range(len(real.stages))), 1)
        counts |= {change.stage: change.after for change in monitor.changes}
    return Tuned(tuple(counts.values()), steps / last)


def rivals(real: Real) -> list[Counts]:
    """The fixed numbers that are fastest at first sight."""
    found = []
    for counts in itertools.product(_CHOICES, repeat=len(real.stages)):
        with closing(Going(real, counts)) as going:
            found.append((going.takes_turn(), counts))
    return [counts for _, counts in sorted(found)[-_RIVALS:]]


def compared(real: Real, all_counts: Sequence[Counts], rounds: int) -> list[float]:
    """Batches per second with each of these numbers of workers, which take turns."""
    with ExitStack() as stack:
        going = [stack.enter_context(closing(Going(real, counts))) for counts in all_counts]
        for turn in range(rounds):
            for one in going if turn % 2 else reversed(going):
                one.takes_turn()
        return [max(one.rates) for one in going]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulated", type=int, default=200)
    parser.add_argument("--pipelines", type=int, nargs="*", default=range(len(PIPELINES)))
    parser.add_argument("--seconds", type=int, default=30, help="of tuning")
    parser.add_argument("--rounds", type=int, default=7, help="of the comparison")
    given = parser.parse_args()
    good = 0
    for seed in range(given.simulated):
        share, counts = judge_simulated(seed, given.seconds)
        good += share >= ENOUGH
        if share < ENOUGH:
            print(f"simulated {seed}: {share:.2f} with {counts}", flush=True)
    print(f"simulated: {good} of {given.simulated} reach {ENOUGH}", flush=True)
    true = 0
    for number in given.pipelines:
        real = PIPELINES[number]
        found = tuned(real, given.seconds)
        others = rivals(real)
        rate, *rates = compared(real, [found.counts, *others], given.rounds)
        best, counts = max(zip(rates, others, strict=True))
        true += rate >= ENOUGH * best
        print(
            f"real {number}: found {found.counts}, {rate:.1f}/s (in the last of the tuning"
            f" {found.rate:.1f}/s); best fixed {counts}, {best:.1f}/s: {rate / best:.2f}",
            flush=True,
        )
    print(f"real: {true} of {len(given.pipelines)} reach {ENOUGH}")
    return 0 if good == given.simulated and true == len(given.pipelines) else 1


if __name__ == "__main__":
    sys.exit(main())
