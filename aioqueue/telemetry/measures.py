"""What is sent of a snapshot, under which names: the same for all that it is sent to.

`aioqueue.telemetry.prometheus` and `aioqueue.telemetry.opentelemetry` spell the names as is usual
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from aioqueue.telemetry.numbers import (
    FunctionNumbers,
    Histogram,
    QueueNumbers,
    Snapshot,
    StageNumbers,
    StepNumbers,
)

__all__ = ("DISTRIBUTIONS", "MEASURES", "Distribution", "Labels", "Measure", "Unit")

Labels: TypeAlias = Mapping[str, str]
Unit: TypeAlias = Literal["", "seconds", "bytes"]


@dataclass(frozen=True)
class Measure:
    """A number of each queue, each stage, each function between stages, or the training step.

    Attributes:
        name: in parts, as ``"queue.size"``.
        is_counter: it only ever grows.
        unit: ``"seconds"``, ``"bytes"``, or none: it counts things.
        meaning: in a few words.
        read: the values in a snapshot, each with its labels.
    """

    name: str
    is_counter: bool
    unit: Unit
    meaning: str
    read: Callable[[Snapshot], Iterable[tuple[Labels, float]]]


@dataclass(frozen=True)
class Distribution:
    """Durations of each queue, each stage, each function between stages, or the training step, in
    seconds.

    Attributes:
        name: in parts, as ``"queue.enqueue_wait"``.
        meaning: in a few words.
        read: the histograms in a snapshot, each with its labels.
    """

    name: str
    meaning: str
    read: Callable[[Snapshot], Iterable[tuple[Labels, Histogram]]]


def _of_queues(of: Callable[[QueueNumbers], float | None]) -> Callable[[Snapshot], _Values]:
    def read(snapshot: Snapshot) -> _Values:
        for queue in snapshot.queues:
            value = of(queue)
            if value is not None:
                yield {"queue": queue.name}, value

    return read


def _of_stages(of: Callable[[StageNumbers], float | None]) -> Callable[[Snapshot], _Values]:
    def read(snapshot: Snapshot) -> _Values:
        for stage in snapshot.stages:
            value = of(stage)
            if value is not None:
                yield _stage(stage), value

    return read


def _of_functions(
    of: Callable[[FunctionNumbers], float],
) -> Callable[[Snapshot], _Values]:
    def read(snapshot: Snapshot) -> _Values:
        for function in snapshot.functions:
            yield _function(function), of(function)

    return read


def _of_step(of: Callable[[StepNumbers], float]) -> Callable[[Snapshot], _Values]:
    def read(snapshot: Snapshot) -> _Values:
        if snapshot.steps is not None:
            yield {}, of(snapshot.steps)

    return read


def _items(snapshot: Snapshot) -> _Values:
    for stage in snapshot.stages:
        for outcome in ("delivered", "skipped"):
            yield {**_stage(stage), "outcome": outcome}, getattr(stage, outcome)


def _stage(stage: StageNumbers) -> Labels:
    return {"stage": stage.name, "where": stage.where}


def _function(function: FunctionNumbers) -> Labels:
    return {"function": function.name, "kind": function.kind, "within": function.within or ""}


_Values: TypeAlias = Iterator[tuple[Labels, float]]

MEASURES: Final = (
    Measure("queue.size", False, "", "Elements inside.", _of_queues(lambda q: q.size)),
    Measure(
        "queue.capacity",
        False,
        "",
        "Elements that there may be inside; none where there is no bound.",
        _of_queues(lambda q: q.capacity),
    ),
    Measure(
        "queue.memory", False, "bytes", "Of the elements inside.", _of_queues(lambda q: q.bytes)
    ),
    Measure("queue.enqueued", True, "", "Elements put in.", _of_queues(lambda q: q.enqueued)),
    Measure("queue.dequeued", True, "", "Elements taken out.", _of_queues(lambda q: q.dequeued)),
    Measure(
        "queue.enqueue_waiting",
        False,
        "",
        "Callers that wait to put in.",
        _of_queues(lambda q: len(q.enqueue_waiting)),
    ),
    Measure(
        "queue.dequeue_waiting",
        False,
        "",
        "Callers that wait to take out.",
        _of_queues(lambda q: len(q.dequeue_waiting)),
    ),
    Measure(
        "queue.longest_wait",
        False,
        "seconds",
        "How long the caller has waited that waits longest now.",
        _of_queues(lambda q: max((*q.enqueue_waiting, *q.dequeue_waiting), default=0.0)),
    ),
    Measure(
        "queue.empty",
        True,
        "seconds",
        "In which it was empty.",
        _of_queues(lambda q: q.seconds_empty),
    ),
    Measure(
        "queue.full", True, "seconds", "In which it was full.", _of_queues(lambda q: q.seconds_full)
    ),
    Measure("stage.workers", False, "", "Workers.", _of_stages(lambda s: len(s.workers))),
    Measure("stage.items", True, "", "Items that have ended.", _items),
    Measure("stage.retried", True, "", "Calls made again.", _of_stages(lambda s: s.retried)),
    Measure(
        "stage.in_flight",
        False,
        "",
        "Items taken and not yet delivered.",
        _of_stages(lambda s: s.in_flight),
    ),
    Measure(
        "stage.in_flight_limit",
        False,
        "",
        "Items that may be in flight; none where there is no bound.",
        _of_stages(lambda s: s.limit),
    ),
    Measure(
        "stage.starved",
        True,
        "seconds",
        "That workers waited for an item, over all workers.",
        _of_stages(lambda s: s.starved),
    ),
    Measure(
        "stage.blocked",
        True,
        "seconds",
        "That workers waited for room, over all workers.",
        _of_stages(lambda s: s.blocked),
    ),
    Measure(
        "stage.full",
        True,
        "seconds",
        "In which no more items were let in, for limit or limit_bytes.",
        _of_stages(lambda s: s.seconds_window_full),
    ),
    Measure(
        "stage.bytes_full",
        True,
        "seconds",
        "The part of these that was for limit_bytes.",
        _of_stages(lambda s: s.seconds_bytes_full),
    ),
    Measure(
        "stage.keys_full",
        True,
        "seconds",
        "In which workers had nothing to do beside items put aside by limit_per.",
        _of_stages(lambda s: s.seconds_keys_full),
    ),
    Measure(
        "stage.deaths",
        True,
        "",
        "Workers that died and were replaced.",
        _of_stages(lambda s: s.deaths),
    ),
    Measure(
        "function.busy",
        True,
        "seconds",
        "Spent in a function between stages, the call that goes on included.",
        _of_functions(lambda f: f.busy),
    ),
    Measure("step.batches", True, "", "Batches handed over.", _of_step(lambda step: step.steps)),
    Measure(
        "step.worked",
        True,
        "seconds",
        "In the body of the training loop.",
        _of_step(lambda step: step.worked),
    ),
    Measure(
        "step.waiting",
        False,
        "seconds",
        "That the training loop has waited now; 0 while it works.",
        _of_step(lambda step: step.waiting),
    ),
)

DISTRIBUTIONS: Final = (
    Distribution(
        "queue.enqueue_wait",
        "How long enqueues waited that had to.",
        lambda snapshot: [({"queue": q.name}, q.enqueue_waits) for q in snapshot.queues],
    ),
    Distribution(
        "queue.dequeue_wait",
        "How long dequeues waited that had to.",
        lambda snapshot: [({"queue": q.name}, q.dequeue_waits) for q in snapshot.queues],
    ),
    Distribution(
        "stage.service",
        "How long a call of the function took.",
        lambda snapshot: [(_stage(s), s.service) for s in snapshot.stages],
    ),
    Distribution(
        "stage.source_wait",
        "How long the source took to give an item.",
        lambda snapshot: [(_stage(s), s.source_waits) for s in snapshot.stages],
    ),
    Distribution(
        "function.service",
        "How long a call of a function between stages took.",
        lambda snapshot: [(_function(f), f.service) for f in snapshot.functions],
    ),
    Distribution(
        "step.wait",
        "How long the training loop waited for a batch.",
        lambda snapshot: [] if snapshot.steps is None else [({}, snapshot.steps.waits)],
    ),
)
