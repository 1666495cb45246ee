"""What a `RolloutQueue` has done so far, in numbers, and what limits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

from aioqueue.base.public_names import public
from aioqueue.rl.machine import GroupState
from aioqueue.rl.metrics import missing_groups
from aioqueue.system.locks import call_with_lock
from aioqueue.telemetry.verdict.generation import limit_of, limit_sentence

if TYPE_CHECKING:
    from aioqueue.rl.core import RolloutCore


@public("aioqueue.rl")
@dataclass(frozen=True, slots=True)
class RolloutStatistics:
    """The counts of a `RolloutQueue`, at one moment.

    They add up: ``admitted == trained + refused + dropped + returned + existing``. After a resume
    they include those of the run before.

    Attributes:
        admitted: groups whose prompt was taken; twice if it was returned and came again.
        trained: groups of the steps that are done.
        refused: groups that ``accept`` has refused.
        dropped: groups that were dropped.
        dropped_by: the same by reason: ``"failed"``, ``"stale"`` or ``"remainder"``.
        returned: groups whose prompt is generated again, now or in the next run.
        existing: groups that have a slot.
        open: those of them that are generated.
        judged: those that ``accept`` decides about.
        ready: those that wait to be handed out.
        held: those of the steps that were handed out and are not done.
        evaluating: prompts of evaluations that have not ended.
        running: rollouts in flight, those of evaluations included.
        step: the number of the next step.
        version: how many steps the published weights contain.
        publish_lag: steps that were handed out, minus the version.
        staleness: how many of the groups that were handed out had each staleness.
        last_staleness: the staleness of each group of the last step.
        seconds: since the generation began.
        trainer_waited: seconds that trainers have waited for steps.
        waited_for_slots: seconds in which no rollout ran, because no slot was free.
        waited_at_gate: seconds in which no rollout ran, because weights were published.
        publishing: seconds in which weights were published.
        verdict: what limits the run, in a sentence; empty before the first step.
    """

    admitted: int
    trained: int
    refused: int
    dropped: int
    dropped_by: Mapping[str, int]
    returned: int
    existing: int
    open: int
    judged: int
    ready: int
    held: int
    evaluating: int
    running: int
    step: int
    version: int
    publish_lag: int
    staleness: Mapping[int, int]
    last_staleness: tuple[int, ...]
    seconds: float
    trainer_waited: float
    waited_for_slots: float
    waited_at_gate: float
    publishing: float
    verdict: str = ""

    @property
    def mean_staleness(self) -> float:
        """The mean over all groups that were handed out; 0.0 before the first."""
        groups = sum(self.staleness.values())
        return sum(age * n for age, n in self.staleness.items()) / groups if groups else 0.0

    @property
    def worst_staleness(self) -> int:
        """The highest staleness of all groups that were handed out."""
        return max(self.staleness, default=0)

    def scalars(self) -> dict[str, float]:
        """Return the numbers that a training run logs, by names such as ``"rollouts/step"``."""
        staleness = self.last_staleness
        return {
            "rollouts/step": float(self.step),
            "rollouts/version": float(self.version),
            "rollouts/publish_lag": float(self.publish_lag),
            "rollouts/running": float(self.running),
            "rollouts/ready": float(self.ready),
            "rollouts/trained": float(self.trained),
            "rollouts/refused": float(self.refused),
            "rollouts/dropped": float(self.dropped),
            "rollouts/staleness_mean": sum(staleness) / len(staleness) if staleness else 0.0,
            "rollouts/staleness_worst": float(max(staleness, default=0)),
            "rollouts/trainer_waited_seconds": self.trainer_waited,
            "rollouts/waited_for_slots_seconds": self.waited_for_slots,
            "rollouts/waited_at_gate_seconds": self.waited_at_gate,
        }


def statistics_of(core: RolloutCore) -> RolloutStatistics:
    """Return the statistics of a queue."""
    record = call_with_lock(core._lock, _statistics_of, core)
    if not record.seconds or not record.step:
        return record
    trainer = record.trainer_waited / record.seconds
    gate = record.waited_at_gate / record.seconds
    limit = limit_of(trainer, record.waited_for_slots / record.seconds, gate)
    # Outside of the lock: it may take the other process of the generation to say where a call is.
    missing = missing_groups(core, core.describe_running) if limit == "generation" else ""
    verdict = limit_sentence(
        limit,
        trainer=trainer,
        gate=gate,
        ready=record.ready,
        existing=record.existing,
        missing=missing,
    )
    return replace(record, verdict=verdict)


def _statistics_of(core: RolloutCore) -> RolloutStatistics:
    machine, times, census = core.machine, core.times, core.machine.census
    now = perf_counter()
    times.add_time(now, machine)
    waiting = sum(now - taker.began for taker in core.takers if not taker.gate.is_open)
    seconds = 0.0 if times.began is None else now - times.began
    return RolloutStatistics(
        admitted=machine.admitted,
        trained=machine.trained,
        refused=machine.refused,
        dropped=sum(machine.dropped.values()),
        dropped_by=dict(machine.dropped),
        returned=machine.returned,
        existing=len(machine.groups),
        open=census[GroupState.OPEN],
        judged=census[GroupState.JUDGED],
        ready=census[GroupState.READY],
        held=census[GroupState.HELD],
        evaluating=len(machine.evaluations),
        running=len(core.calls) if machine.grants_ahead else machine.running,
        step=machine.step,
        version=machine.version,
        publish_lag=machine.step - machine.version,
        staleness=dict(sorted(times.staleness.items())),
        last_staleness=times.last_staleness,
        seconds=seconds,
        trainer_waited=times.waits.seconds + waiting,
        waited_for_slots=times.slots,
        waited_at_gate=times.gate,
        publishing=times.publishing,
    )
