"""Observes a run: its numbers, its bottleneck, the root cause of a hang, and ways to view them."""

from __future__ import annotations

import typing

from aioqueue.base.public_names import PublicNames as _PublicNames

if typing.TYPE_CHECKING:
    from aioqueue.core.meters import BOUNDS, Histogram
    from aioqueue.telemetry.autotune import Tuner
    from aioqueue.telemetry.explain.registry import note_waits
    from aioqueue.telemetry.metrics.snapshots import (
        FUNCTION,
        FunctionNumbers,
        GenerationNumbers,
        QueueNumbers,
        Snapshot,
        StageNumbers,
        StepNumbers,
        WorkerNumbers,
    )
    from aioqueue.telemetry.metrics.step_timer import StepMeter, StepMeters, Steps
    from aioqueue.telemetry.metrics.watch import EndingPart, Watch, WorkerChange
    from aioqueue.telemetry.monitor import Monitor
    from aioqueue.telemetry.verdict.bottleneck import Advice, Cause, Verdict

__all__ = (
    "BOUNDS",
    "FUNCTION",
    "Advice",
    "Cause",
    "EndingPart",
    "FunctionNumbers",
    "GenerationNumbers",
    "Histogram",
    "Monitor",
    "QueueNumbers",
    "Snapshot",
    "StageNumbers",
    "StepMeter",
    "StepMeters",
    "StepNumbers",
    "Steps",
    "Tuner",
    "Verdict",
    "Watch",
    "WorkerChange",
    "WorkerNumbers",
    "note_waits",
)

_names = _PublicNames(
    __name__,
    {
        "aioqueue.telemetry.autotune": "Tuner",
        "aioqueue.telemetry.verdict.bottleneck": "Advice Cause Verdict",
        "aioqueue.core.meters": "BOUNDS Histogram",
        "aioqueue.telemetry.metrics.snapshots": """
            FUNCTION FunctionNumbers GenerationNumbers QueueNumbers Snapshot StageNumbers
            StepNumbers WorkerNumbers
        """,
        "aioqueue.telemetry.monitor": "Monitor",
        "aioqueue.telemetry.explain.registry": "note_waits",
        "aioqueue.telemetry.metrics.watch": "EndingPart Watch WorkerChange",
        "aioqueue.telemetry.metrics.step_timer": "StepMeter StepMeters Steps",
    },
)

if not typing.TYPE_CHECKING:
    __getattr__ = _names.get


def __dir__() -> list[str]:
    """Return the public names, without the modules that define them."""
    return sorted(__all__)
