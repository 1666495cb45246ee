"""The metrics of a run: each is named once, with its unit, its meaning and how to read it.

Each exporter spells the names as is usual there: ``aioqueue.queue.size`` in OpenTelemetry, and
``aioqueue_queue_size`` in Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from aioqueue.core.meters import Histogram
from aioqueue.telemetry.metrics.snapshots import (
    FunctionNumbers,
    GenerationNumbers,
    QueueNumbers,
    Snapshot,
    StageNumbers,
    StepNumbers,
)

Labels: TypeAlias = Mapping[str, str]
Values: TypeAlias = Iterator[tuple[Labels, float]]
Unit: TypeAlias = Literal["", "seconds", "bytes"]


@dataclass(frozen=True)
class Measure:
    """A number of each queue, stage, function between stages, or the training step.

    Attributes:
        name: its parts, joined by dots, such as ``"queue.size"``.
        is_counter: whether it only grows.
        unit: ``"seconds"``, ``"bytes"``, or empty for a count.
        meaning: a short description.
        read: returns the values in a snapshot, each with its labels.
    """

    name: str
    is_counter: bool
    unit: Unit
    meaning: str
    read: Callable[[Snapshot], Iterable[tuple[Labels, float]]]


@dataclass(frozen=True)
class Distribution:
    """Durations in seconds, of each queue, stage, function between stages, or the training step.

    Attributes:
        name: its parts, joined by dots, such as ``"queue.enqueue_wait"``.
        meaning: a short description.
        read: returns the histograms in a snapshot, each with its labels.
    """

    name: str
    meaning: str
    read: Callable[[Snapshot], Iterable[tuple[Labels, Histogram]]]


def _per_queue(of: Callable[[QueueNumbers], float | None]) -> Callable[[Snapshot], Values]:
    def read(snapshot: Snapshot) -> Values:
        for queue in snapshot.queues:
            value = of(queue)
            if value is not None:
                yield {"queue": queue.name}, value

    return read


def _per_stage(of: Callable[[StageNumbers], float | None]) -> Callable[[Snapshot], Values]:
    def read(snapshot: Snapshot) -> Values:
        for stage in snapshot.stages:
            value = of(stage)
            if value is not None:
                yield _stage_labels(stage), value

    return read


def _per_generation(of: Callable[[GenerationNumbers], float]) -> Callable[[Snapshot], Values]:
    def read(snapshot: Snapshot) -> Values:
        for stage in snapshot.stages:
            if stage.generation is not None:
                yield _stage_labels(stage), of(stage.generation)

    return read


def _per_function(
    of: Callable[[FunctionNumbers], float],
) -> Callable[[Snapshot], Values]:
    def read(snapshot: Snapshot) -> Values:
        for function in snapshot.functions:
            yield _function_labels(function), of(function)

    return read


def _of_loop(of: Callable[[StepNumbers], float]) -> Callable[[Snapshot], Values]:
    def read(snapshot: Snapshot) -> Values:
        if snapshot.steps is not None:
            yield {}, of(snapshot.steps)

    return read


def _items(snapshot: Snapshot) -> Values:
    for stage in snapshot.stages:
        for outcome in ("delivered", "skipped"):
            yield {**_stage_labels(stage), "outcome": outcome}, getattr(stage, outcome)


def _stage_labels(stage: StageNumbers) -> Labels:
    return {"stage": stage.name, "where": stage.where}


def _function_labels(function: FunctionNumbers) -> Labels:
    return {"function": function.name, "kind": function.kind, "within": function.within or ""}


MEASURES: Final = (
    Measure("queue.size", False, "", "Elements in the queue.", _per_queue(lambda q: q.size)),
    Measure(
        "queue.capacity",
        False,
        "",
        "Most elements that the queue holds; absent if it is unbounded.",
        _per_queue(lambda q: q.capacity),
    ),
    Measure(
        "queue.memory",
        False,
        "bytes",
        "Bytes of the elements in the queue.",
        _per_queue(lambda q: q.bytes),
    ),
    Measure(
        "queue.held",
        False,
        "",
        "Elements that dequeues have taken which have not ended.",
        _per_queue(lambda q: q.held),
    ),
    Measure(
        "queue.unfinished",
        False,
        "",
        "Elements enqueued without a task_done yet; absent until one is called.",
        _per_queue(lambda q: q.unfinished),
    ),
    Measure("queue.enqueued", True, "", "Elements enqueued.", _per_queue(lambda q: q.enqueued)),
    Measure("queue.dequeued", True, "", "Elements dequeued.", _per_queue(lambda q: q.dequeued)),
    Measure(
        "queue.enqueue_waiting",
        False,
        "",
        "Callers that wait to enqueue.",
        _per_queue(lambda q: len(q.enqueue_waiting)),
    ),
    Measure(
        "queue.dequeue_waiting",
        False,
        "",
        "Callers that wait to dequeue.",
        _per_queue(lambda q: len(q.dequeue_waiting)),
    ),
    Measure(
        "queue.longest_wait",
        False,
        "seconds",
        "How long the longest-waiting caller has waited.",
        _per_queue(lambda q: max((*q.enqueue_waiting, *q.dequeue_waiting), default=0.0)),
    ),
    Measure(
        "queue.empty",
        True,
        "seconds",
        "How long the queue was empty.",
        _per_queue(lambda q: q.seconds_empty),
    ),
    Measure(
        "queue.full",
        True,
        "seconds",
        "How long the queue was full.",
        _per_queue(lambda q: q.seconds_full),
    ),
    Measure("stage.workers", False, "", "Workers.", _per_stage(lambda s: len(s.workers))),
    Measure("stage.items", True, "", "Items delivered or skipped.", _items),
    Measure("stage.retried", True, "", "Calls retried.", _per_stage(lambda s: s.retried)),
    Measure(
        "stage.in_flight",
        False,
        "",
        "Items taken from the source and not yet delivered.",
        _per_stage(lambda s: s.in_flight),
    ),
    Measure(
        "stage.max_in_flight",
        False,
        "",
        "Most items in flight; absent if there is no bound.",
        _per_stage(lambda s: s.max_in_flight),
    ),
    Measure(
        "stage.starved",
        True,
        "seconds",
        "How long workers waited for items, summed over workers.",
        _per_stage(lambda s: s.starved),
    ),
    Measure(
        "stage.blocked",
        True,
        "seconds",
        "How long workers waited for room, summed over workers.",
        _per_stage(lambda s: s.blocked),
    ),
    Measure(
        "stage.full",
        True,
        "seconds",
        "How long max_in_flight or limit_bytes kept further items out.",
        _per_stage(lambda s: s.seconds_window_full),
    ),
    Measure(
        "stage.bytes_full",
        True,
        "seconds",
        "How long limit_bytes kept further items out.",
        _per_stage(lambda s: s.seconds_bytes_full),
    ),
    Measure(
        "stage.keys_full",
        True,
        "seconds",
        "How long workers were idle while concurrency_key deferred items.",
        _per_stage(lambda s: s.seconds_keys_full),
    ),
    Measure(
        "stage.deaths",
        True,
        "",
        "Workers that died and were replaced.",
        _per_stage(lambda s: s.deaths),
    ),
    Measure(
        "function.busy",
        True,
        "seconds",
        "Time in a function between stages, including the current call.",
        _per_function(lambda f: f.busy),
    ),
    Measure(
        "generation.version",
        False,
        "",
        "Steps in the published weights.",
        _per_generation(lambda one: one.version),
    ),
    Measure(
        "generation.publish_lag",
        False,
        "",
        "Steps handed out, minus the version.",
        _per_generation(lambda one: one.publish_lag),
    ),
    Measure(
        "generation.ready",
        False,
        "",
        "Groups that wait to be handed out.",
        _per_generation(lambda one: one.ready),
    ),
    Measure(
        "generation.existing",
        False,
        "",
        "Groups that have a slot.",
        _per_generation(lambda one: one.existing),
    ),
    Measure(
        "generation.groups",
        True,
        "",
        "Groups handed out.",
        _per_generation(lambda one: one.groups),
    ),
    Measure(
        "generation.staleness",
        True,
        "",
        "The staleness of all groups handed out, added up.",
        _per_generation(lambda one: one.staleness),
    ),
    Measure(
        "generation.worst_staleness",
        False,
        "",
        "The highest staleness of a group handed out.",
        _per_generation(lambda one: one.worst_staleness),
    ),
    Measure(
        "generation.waited_for_slots",
        True,
        "seconds",
        "How long no rollout ran, because no slot was free.",
        _per_generation(lambda one: one.waited_for_slots),
    ),
    Measure(
        "generation.waited_at_gate",
        True,
        "seconds",
        "How long no rollout ran, because weights were published.",
        _per_generation(lambda one: one.waited_at_gate),
    ),
    Measure(
        "generation.publishing",
        True,
        "seconds",
        "How long weights were published.",
        _per_generation(lambda one: one.publishing),
    ),
    Measure("step.batches", True, "", "Batches handed over.", _of_loop(lambda step: step.steps)),
    Measure(
        "step.worked",
        True,
        "seconds",
        "Time in the body of the training loop.",
        _of_loop(lambda step: step.worked),
    ),
    Measure(
        "step.waiting",
        False,
        "seconds",
        "How long the training loop has been waiting; 0 while it works.",
        _of_loop(lambda step: step.waiting),
    ),
)

DISTRIBUTIONS: Final = (
    Distribution(
        "queue.enqueue_wait",
        "How long enqueues that had to wait waited.",
        lambda snapshot: [({"queue": q.name}, q.enqueue_waits) for q in snapshot.queues],
    ),
    Distribution(
        "queue.dequeue_wait",
        "How long dequeues that had to wait waited.",
        lambda snapshot: [({"queue": q.name}, q.dequeue_waits) for q in snapshot.queues],
    ),
    Distribution(
        "stage.service",
        "How long a call of the function took.",
        lambda snapshot: [(_stage_labels(s), s.service) for s in snapshot.stages],
    ),
    Distribution(
        "stage.source_wait",
        "How long the source took to yield an item.",
        lambda snapshot: [(_stage_labels(s), s.source_waits) for s in snapshot.stages],
    ),
    Distribution(
        "function.service",
        "How long a call of a function between stages took.",
        lambda snapshot: [(_function_labels(f), f.service) for f in snapshot.functions],
    ),
    Distribution(
        "step.wait",
        "How long the training loop waited for a batch.",
        lambda snapshot: [] if snapshot.steps is None else [({}, snapshot.steps.waits)],
    ),
)
