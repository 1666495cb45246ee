"""Whether autotune finds the numbers of workers: at least 0.9 of the best fixed ones.

    python -m tests.proof.tuning [--seconds 30] [--pipelines 10]

Real pipelines are run with fixed numbers of workers, of which the best is taken, and with autotune
from one worker each; then they are measured in the last seconds.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from dataclasses import replace

from tests.telemetry.real import Function, Real, measured

__all__ = ("PIPELINES",)

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


def fixed(real: Real, counts: tuple[int, ...]) -> Real:
    """The same with so many workers."""
    stages = [replace(one, workers=count) for one, count in zip(real.stages, counts, strict=True)]
    return replace(real, stages=tuple(stages))


def best_fixed(real: Real) -> tuple[float, tuple[int, ...]]:
    """Batches per second with the best of some fixed numbers."""
    found: tuple[float, tuple[int, ...]] = (0.0, ())
    for counts in itertools.product(_CHOICES, repeat=len(real.stages)):
        rate, _ = measured(fixed(real, counts).pipeline(), real.step, 3.0)
        found = max(found, (rate, counts))
    return found


def tuned(real: Real, seconds: float) -> float:
    """Batches per second after some seconds of tuning, over five seconds."""
    pipeline = real.pipeline(autotune=(1, 16))
    began, steps = time.perf_counter(), 0
    for _ in pipeline:
        time.sleep(real.step)
        passed = time.perf_counter() - began
        steps += passed > seconds
        if passed > seconds + 5:
            break
    return steps / 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=25.0, help="of tuning")
    parser.add_argument("--pipelines", type=int, default=len(PIPELINES))
    given = parser.parse_args()
    good = 0
    for number, real in enumerate(PIPELINES[: given.pipelines]):
        best, counts = best_fixed(real)
        rate = tuned(real, given.seconds)
        good += rate >= 0.9 * best
        print(
            f"{number}: best fixed {best:.1f}/s with {counts}, tuned {rate:.1f}/s:"
            f" {rate / best:.2f}",
            flush=True,
        )
    print(f"{good} of {given.pipelines} reach 0.9")
    return 0 if good == given.pipelines else 1


if __name__ == "__main__":
    sys.exit(main())
