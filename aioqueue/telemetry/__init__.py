"""What is slow, what is stuck, and what to do about it: numbers, their reading, ways to look."""

from __future__ import annotations

from aioqueue.telemetry.explaining import note_waits
from aioqueue.telemetry.monitor import Monitor
from aioqueue.telemetry.numbers import (
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
from aioqueue.telemetry.parts import Change, Mortal, Watch
from aioqueue.telemetry.stepping import StepMeter, StepMeters, Steps
from aioqueue.telemetry.tuning import Tuner
from aioqueue.telemetry.verdicts import Advice, Cause, Verdict

__all__ = (
    "BOUNDS",
    "FUNCTION",
    "Advice",
    "Cause",
    "Change",
    "FunctionNumbers",
    "Histogram",
    "Monitor",
    "Mortal",
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
    "WorkerNumbers",
    "note_waits",
)
