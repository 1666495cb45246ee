"""Adds the readings of several processes up: of those that share a coordinator.

Queues, stages and functions of the same name in several processes are one in the sum. A queue that
the processes share is read by its owner; if that is a process that the monitor does not ask, by one
of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from aioqueue.telemetry.metrics.counters import concurrent, consecutive
from aioqueue.telemetry.metrics.snapshots import (
    FunctionNumbers,
    QueueNumbers,
    Snapshot,
    StageNumbers,
    final_queue_numbers,
    final_stage_numbers,
)

NumbersT = TypeVar("NumbersT", QueueNumbers, StageNumbers, FunctionNumbers)


class ProcessNumbers(NamedTuple):
    """The numbers of another process."""

    snapshot: Snapshot
    shared: Mapping[str, str]
    """The names of those queues that another process owns, each with what identifies it there."""


def together(one: Snapshot, others: Iterable[ProcessNumbers]) -> Snapshot:
    """Return the numbers of this process with those of other processes, at the same time."""
    for other in others:
        theirs, shared = other
        queues = tuple(queue for queue in theirs.queues if queue.name not in shared)
        known = {queue.name for queue in one.queues}
        only_there = (
            queue for queue in theirs.queues if queue.name in shared and queue.name not in known
        )
        one = replace(
            one,
            process_cpu=one.process_cpu + theirs.process_cpu,
            queues=(*_merged(one.queues, queues, _queue_key, concurrent), *only_there),
            stages=_merged(one.stages, theirs.stages, _stage_key, concurrent),
            functions=_merged(one.functions, theirs.functions, _function_key, concurrent),
            steps=(
                one.steps
                if theirs.steps is None
                else theirs.steps
                if one.steps is None
                else concurrent(one.steps, theirs.steps)
            ),
        )
    return one


def final(numbers: ProcessNumbers) -> ProcessNumbers:
    """Return what remains of a process that has ended."""
    snapshot, shared = numbers
    return numbers._replace(
        snapshot=replace(
            snapshot,
            queues=tuple(
                queue if queue.name in shared else final_queue_numbers(queue)
                for queue in snapshot.queues
            ),
            stages=tuple(map(final_stage_numbers, snapshot.stages)),
            steps=None if snapshot.steps is None else replace(snapshot.steps, waiting=0.0),
        )
    )


def one_after_another(ended: ProcessNumbers | None, last: ProcessNumbers) -> ProcessNumbers:
    """Add the final numbers of one more process that has ended."""
    if ended is None:
        return last
    earlier, later = ended.snapshot, last.snapshot
    shared = {**ended.shared, **last.shared}

    def continued(one: QueueNumbers, other: QueueNumbers) -> QueueNumbers:
        return other if other.name in shared else consecutive(one, other)

    steps = later.steps or earlier.steps
    if earlier.steps is not None and later.steps is not None:
        steps = consecutive(earlier.steps, later.steps)
    return ProcessNumbers(
        replace(
            later,
            process_cpu=earlier.process_cpu + later.process_cpu,
            queues=_merged(earlier.queues, later.queues, _queue_key, continued),
            stages=_merged(earlier.stages, later.stages, _stage_key, consecutive),
            functions=_merged(earlier.functions, later.functions, _function_key, consecutive),
            steps=steps,
        ),
        shared,
    )


def _queue_key(queue: QueueNumbers) -> Hashable:
    return queue.name, queue.kind


def _stage_key(stage: StageNumbers) -> Hashable:
    return stage.name, stage.where


def _function_key(function: FunctionNumbers) -> Hashable:
    return function.name, function.kind, function.within


def _merged(
    ours: Sequence[NumbersT],
    theirs: Sequence[NumbersT],
    key: Callable[[NumbersT], Hashable],
    combine: Callable[[NumbersT, NumbersT], NumbersT],
) -> tuple[NumbersT, ...]:
    found = {key(one): one for one in ours}
    for one in theirs:
        before = found.get(key(one))
        found[key(one)] = one if before is None else combine(before, one)
    return tuple(found.values())
