"""Observes a run: its numbers, its bottleneck, the root cause of a hang, and ways to view them."""

from __future__ import annotations

from aioqueue.telemetry.autotune import Tuner
from aioqueue.telemetry.bottleneck import Advice, Cause, Verdict
from aioqueue.telemetry.metrics import (
    BOUNDS,
    FUNCTION,
    FunctionNumbers,
    Histogram,
    QueueNumbers,
    Snapshot,
    StageNumbers,
    StepNumbers,
    WorkerNumbers,
)
from aioqueue.telemetry.monitor import Monitor
from aioqueue.telemetry.registry import EndingPart, Watch, WorkerChange, note_waits
from aioqueue.telemetry.step_timer import StepMeter, StepMeters, Steps

__all__ = (
    "BOUNDS",
    "FUNCTION",
    "Advice",
    "Cause",
    "EndingPart",
    "FunctionNumbers",
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
