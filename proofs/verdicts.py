"""Whether the verdict is true: it accuses the part whose speeding up by two makes all fastest.

    python -m proofs.verdicts [--simulated 200] [--real 20] [--advised 100] [--seconds 3]

Simulated pipelines have parts of known speed, in virtual time; real ones sleep and compute. Each is
run as it is, for the verdict, and with each of its parts twice as fast, for the truth. Where
something else limits (a bound of bytes or of items of one key, a collate, a filter, a prefetch, a
lock of threads or of tasks), the advice is followed, and the rate has to rise.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from aioqueue.telemetry import Verdict
from aioqueue.telemetry.verdict.bottleneck import verdict_of
from tests.telemetry.advised_pipelines import Advised, random_case
from tests.telemetry.real_pipelines import REAL, Real, measured
from tests.telemetry.simulation import random_shape, rates, simulated

__all__ = ("accused", "is_true")

_AS_GOOD = 0.97
"""What counts as the best of parts: as near to it as that."""


_RISEN = 1.08
"""What counts as a rate that has risen."""


def accused(verdict: Verdict) -> str | None:
    """The part that a verdict says limits."""
    return {"step": "step", "source": "source", "stage": verdict.stage}.get(verdict.cause)


def is_true(verdict: Verdict, faster: Mapping[str, float]) -> bool:
    """Whether no other part would help more; and data are ahead only where the step hardly waits.

    Args:
        verdict: what was said.
        faster: the rate with each part twice as fast.
    """
    if verdict.cause == "step" and verdict.starved > 0.05:
        return False
    part = accused(verdict)
    return part is not None and part in faster and faster[part] >= _AS_GOOD * max(faster.values())


def judge_simulated(seed: int, seconds: float = 6.0) -> tuple[bool, Verdict]:
    """Judge the verdict on one simulated pipeline."""
    shape = random_shape(seed)
    _, earlier, later = simulated(shape, seed, seconds)
    verdict = verdict_of(earlier, later)
    return is_true(verdict, rates(shape, seed, seconds)), verdict


def judge_real(real: Real, seconds: float) -> tuple[bool, Verdict, dict[str, float]]:
    """Judge the verdict on one real pipeline."""
    _, verdict = measured(real.pipeline(), real.step, seconds)
    faster = {}
    for part in real.parts():
        changed = real.faster(part)
        if changed != real:
            faster[part], _ = measured(changed.pipeline(), changed.step, seconds)
    return is_true(verdict, faster), verdict, faster


def judge_advised(case: Advised, seconds: float) -> tuple[bool, Verdict, float, float]:
    """Judge the advice for a pipeline by what it does to the rate.

    The machine may have other things to do for a while: where the rate has not risen, it is the
    median of three comparisons that counts.
    """
    before, verdict = measured(case.pipeline(), case.step, seconds)
    changed = case.following(verdict)
    if changed is None:
        return False, verdict, before, before
    after, _ = measured(changed.pipeline(), changed.step, seconds)
    pairs = [(after / before, before, after)]
    while pairs[0][0] < _RISEN and len(pairs) < 3:
        before, _ = measured(case.pipeline(), case.step, seconds)
        after, _ = measured(changed.pipeline(), changed.step, seconds)
        pairs.append((after / before, before, after))
    times, before, after = sorted(pairs)[len(pairs) // 2]
    return times >= _RISEN, verdict, before, after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulated", type=int, default=200)
    parser.add_argument("--real", type=int, default=len(REAL))
    parser.add_argument("--seconds", type=float, default=3.0, help="of each real run")
    parser.add_argument("--advised", type=int, default=100)
    given = parser.parse_args()
    good = 0
    for seed in range(given.simulated):
        is_good, verdict = judge_simulated(seed)
        good += is_good
        if not is_good:
            print(f"simulated {seed}: {verdict}")
    print(f"simulated: {good} of {given.simulated} true")
    true = 0
    for number, real in enumerate(REAL[: given.real]):
        is_good, verdict, faster = judge_real(real, given.seconds)
        true += is_good
        report = ", ".join(f"{part} {rate:.1f}" for part, rate in faster.items())
        print(f"real {number}: {'true' if is_good else 'FALSE'}: {verdict} [{report}]", flush=True)
    print(f"real: {true} of {given.real} true")
    helped = 0
    for seed in range(given.advised):
        case = random_case(seed)
        has_risen, verdict, before, after = judge_advised(case, given.seconds)
        helped += has_risen
        effect = "helps" if has_risen else "DOES NOT HELP"
        print(f"{case.kind} {seed}: {effect}: {before:.1f} -> {after:.1f}: {verdict}", flush=True)
    print(f"advised: {helped} of {given.advised} helped")
    is_good = good >= 0.95 * given.simulated and true >= 0.95 * given.real
    return 0 if is_good and helped >= 0.95 * given.advised else 1


if __name__ == "__main__":
    sys.exit(main())
