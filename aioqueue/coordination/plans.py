"""The workers of a run before they begin: what each calls, and how its end is put in words."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import FrameType
from typing import Any

from aioqueue.coordination.mixups import described
from aioqueue.coordination.outcomes import as_failure, is_cancellation, said, told, without_stops
from aioqueue.errors import OutOfRangeError
from aioqueue.functions import EnqueueOp, function_name, is_coroutine_function
from aioqueue.telemetry.explanations import ExplainedWorker
from aioqueue.telemetry.stacks import stack_of
from aioqueue.waiting.owners import Owner

__all__ = ("WorkerPlan", "no_ops", "stray_of", "told_publicly")


def stray_of(plan: WorkerPlan, error: BaseException) -> BaseException:
    """The failure that a worker has ended by: in a task, what nobody has asked of it is wrapped."""
    error = without_stops(error) or error
    if not plan.is_task or isinstance(error, Exception):
        return error
    what = f"enqueue op {function_name(plan.op)!r} raised {type(error).__name__}"
    if is_cancellation(error):
        what += ", but was not cancelled: something that it awaits was"
    return as_failure(error, what)


def told_publicly(error: BaseException) -> str:
    """What a worker has ended by, under a name that users know."""
    if isinstance(error, OutOfRangeError):
        return f"{OutOfRangeError.__name__}: {said(error)}"
    return told(error)


def no_ops(given: Any) -> str:
    """What is wrong with what was given for enqueue ops."""
    wrong = [one for one in given if not callable(one)] if isinstance(given, list) else [given]
    results = [described(one) for one in wrong if inspect.iscoroutine(one)]
    if results:
        return f"got {results[0]}; expected the function itself, which is called again and again"
    return f"got {given!r}; expected callables, one per worker"


class WorkerPlan:
    """One worker of a run: what it calls, and its name."""

    __slots__ = ("has_ended", "is_task", "name", "op", "owner")

    def __init__(self, op: EnqueueOp, queue_name: str, number: int) -> None:
        self.op = op
        self.is_task = is_coroutine_function(op)
        kind = "QueueRunnerTask" if self.is_task else "QueueRunnerThread"
        self.name = f"{kind}-{queue_name}-{function_name(op)}-{number}"
        self.owner: Owner | None = None  # the thread or task, once it has begun
        self.has_ended = False

    def explained(self, frames: Mapping[int, FrameType]) -> ExplainedWorker:
        """What it does now."""
        owner = self.owner
        if owner is None or self.has_ended:
            return ExplainedWorker(self.name, "ended" if self.has_ended else "not started")
        stack = stack_of(owner.thing, frames)
        return ExplainedWorker(self.name, "running", stack=stack, key=owner.key)
