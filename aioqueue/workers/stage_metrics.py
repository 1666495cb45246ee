"""What explanations and monitors see of a run: of a `prepare`, and of the nodes of a pipeline.

Stages with workers measure themselves (`JobStage`). The code between them, such as a ``collate`` or
the source, is measured node by node (`NodePart`), and only while a monitor looks: then the methods
of nodes are replaced by measuring ones. So a run without a monitor pays nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import PurePath
from time import monotonic
from types import FrameType
from typing import Any

from aioqueue.core.meters import Tracer
from aioqueue.errors import counted
from aioqueue.items.item import EpochEnd, Item, as_item
from aioqueue.items.value_text import format_value
from aioqueue.sources import source_reader
from aioqueue.telemetry import EndingPart, Histogram, StageNumbers
from aioqueue.telemetry.explain.explanation import ExplainedItem, ExplainedStage, ExplainedWorker
from aioqueue.telemetry.explain.stacks import Stack, stack_of
from aioqueue.workers.job import Job
from aioqueue.workers.timing import InProgress

_PATIENCE = 0.5
"""Seconds that all processes of a stage together have to report their stacks."""


_READER = PurePath(source_reader.__file__).parts[-2:]
"""The file whose functions take items from the source."""


def explained_stage(
    runner: ExplainedStage, job: Job, description: str, frames: Mapping[int, FrameType]
) -> ExplainedStage:
    """Return the explanation of a runner, completed with its job's knowledge.

    Args:
        runner: the explanation that any runner has: its workers, and their stacks.
        job: the job of the workers.
        description: what it does, in words.
        frames: the current frames of all threads.
    """
    in_progress = job.in_progress.all()
    deadline = monotonic() + _PATIENCE
    workers = [
        _worker(worker, in_progress.get(worker.key), deadline, frames) for worker in runner.workers
    ]
    workers.sort(key=lambda one: 0.0 if one.item is None else -one.item.seconds)
    source = job.feed.queue
    return replace(
        runner,
        name=_named(description),
        source=None if source is None else source.name,
        source_key=0 if source is None else id(source._core),
        workers=tuple(workers),
        in_flight=job.window.taken,
        max_in_flight=job.window.max_in_flight,
        idle_seconds=min((entry.seconds for entry in in_progress.values()), default=None),
        notes=tuple(_notes(job)),
    )


def explained_item(item: Item, failures: int, seconds: float) -> ExplainedItem:
    return ExplainedItem(
        format_value(item.value), item.number, item.epoch, item.index, failures + 1, seconds
    )


def _named(description: str) -> str:
    """Put the function first: "decode on 4 threads" becomes "decode (4 threads)"."""
    function, _, workers = description.rpartition(" on ")
    return f"{function} ({workers})"


def _worker(
    worker: ExplainedWorker,
    entry: InProgress | None,
    deadline: float,
    frames: Mapping[int, FrameType],
) -> ExplainedWorker:
    if entry is None or worker.state != "running":
        return replace(worker, is_at_source=_is_at_source(worker.stack))
    if entry.process is not None:
        explained: ExplainedWorker = entry.process.explained(max(0.02, deadline - monotonic()))
        return replace(explained, key=worker.key)
    if entry.thread is not None:
        stack = stack_of(entry.thread, frames)
        worker = replace(worker, stack=stack, key=id(entry.thread), registered=worker.key)
    item, failures, seconds = entry.item, entry.failures, entry.seconds
    if item is None or isinstance(item[1], EpochEnd):
        return replace(worker, is_at_source=_is_at_source(worker.stack))
    return replace(worker, item=explained_item(as_item(item), failures, seconds))


def _is_at_source(stack: Stack) -> bool:
    """Return whether a worker is inside the source: its innermost known frame is a ``take``."""
    for inner, outer in pairwise(stack):
        if outer.function.endswith("Source.take"):
            return PurePath(inner.file).parts[-2:] == _READER
    return any(frame.function.endswith("AsyncReader._read") for frame in stack)


def _notes(job: Job) -> list[str]:
    notes = []
    waiting = job.waiting_in_order()
    if waiting:
        notes.append(
            f"{counted(waiting, 'item')} prepared, waiting for one before them (ordered=True)"
        )
    if job.key_limit is not None:
        notes += job.key_limit.describe_waiting()
    died = job.progress.statistics().workers_died
    if died:
        notes.append(f"{died} of its processes have died and were replaced")
    cut_short = job.progress.statistics().timed_out
    if cut_short:
        notes.append(f"item_timeout has cut short {counted(cut_short, 'item')}")
    return notes


class JobStage(EndingPart):
    """The workers of a job, as a part that a monitor watches.

    Args:
        job: the job.
        name: the name of the function.
        where: the kind of worker.
    """

    def __init__(self, job: Job, name: str, where: str) -> None:
        self.key: Hashable = id(self)
        self.name = name
        self.source: str | None = None if job.feed.queue is None else job.feed.queue.name
        self._job = job
        self._where = where

    @property
    def is_over(self) -> bool:
        return self._job.state == "ended"

    def queues(self) -> list[Any]:
        feed, into = self._job.feed, self._job.into
        return [into] if feed.queue is None else [feed.queue, into]

    def sample(self, now: float) -> None:
        """Sample its workers, and have them measure their turns."""
        self._job.gauge.sample(now)

    def stop_sampling(self) -> None:
        """Stop measuring turns, as nothing monitors it any more."""
        self._job.gauge.is_on = False

    def trace(self, tracer: Tracer | None) -> None:
        self._job.gauge.trace(None if tracer is None else partial(tracer, self.name))

    def left_out(self) -> int:
        """Return how many items gave no example."""
        return self._job.progress.statistics().left_out

    def numbers(self, now: float) -> StageNumbers:
        job, gauge = self._job, self._job.gauge
        workers, total = gauge.workers(), gauge.sum(now)
        counts, keys = job.progress.statistics(), job.key_limit
        delivered = counts.prepared + counts.left_out
        return StageNumbers(
            name=self.name,
            where=self._where,
            source=self.source or next((one.reads for one in workers if one.reads), None),
            into=job.into.name,
            workers=tuple(worker.numbers(now) for worker in workers),
            resizable=True,
            taken=delivered + counts.skipped + counts.in_flight,
            delivered=delivered,
            skipped=counts.skipped,
            retried=counts.retried,
            in_flight=counts.in_flight,
            in_flight_bytes=job.window.bytes if job.window.limit_bytes is not None else None,
            max_in_flight=job.window.max_in_flight,
            service=Histogram(*total.service),
            cpu_sampled=total.cpu_sampled,
            cpu=total.cpu,
            source_waits=Histogram(*gauge.source_waits.counted()),
            blocked=total.blocked,
            starved=total.starved,
            seconds_window_full=gauge.full_until(now),
            ordered=job.is_ordered,
            busy=total.busy,
            alive=total.alive,
            fed=total.fed,
            deaths=total.deaths,
            limit_bytes=job.window.limit_bytes,
            seconds_bytes_full=gauge.bytes_full_until(now),
            looks=gauge.locks.count,
            in_line=gauge.locks.waiting,
            lock=gauge.locks.lock,
            max_per_key=None if keys is None else keys.max_per_key,
            seconds_keys_full=0.0 if keys is None else keys.seconds_short(now),
            full_key=None if keys is None else keys.fullest(),
        )
