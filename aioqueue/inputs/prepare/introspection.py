"""What explanations and monitors see of a run: of a `prepare`, and of the nodes of a pipeline.

Stages with workers measure themselves (`JobStage`). The code between them, such as a ``collate`` or
the source, is measured node by node (`NodePart`), and only while a monitor looks: then the methods
of nodes are replaced by measuring ones. So a run without a monitor pays nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import PurePath
from random import Random
from time import monotonic, perf_counter
from typing import Any, Final, Protocol

from aioqueue.errors import counted
from aioqueue.inputs.core.items import EpochEnd, Item, value_told
from aioqueue.inputs.prepare import source_reader
from aioqueue.inputs.prepare.job import Job
from aioqueue.inputs.prepare.worker_timing import InProgress
from aioqueue.meters import Durations, Tracer
from aioqueue.telemetry import FUNCTION, EndingPart, Histogram, StageNumbers
from aioqueue.telemetry.explain.explanation import (
    ExplainedItem,
    ExplainedStage,
    ExplainedWorker,
)
from aioqueue.telemetry.explain.stacks import Stack, stack_of

_PATIENCE = 0.5
"""Seconds that all processes of a stage together have to report their stacks."""

_READER = PurePath(source_reader.__file__).parts[-2:]
"""The file whose functions take items from the source."""


def explained_stage(runner: ExplainedStage, job: Job, description: str) -> ExplainedStage:
    """Return the explanation of a runner, completed with its job's knowledge.

    Args:
        runner: the explanation that any runner has: its workers, and their stacks.
        job: the job of the workers.
        description: what it does, in words.
    """
    hands = job.hands.all()
    deadline = monotonic() + _PATIENCE
    workers = [_worker(worker, hands.get(worker.key), deadline) for worker in runner.workers]
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
        idle_seconds=min((hand.seconds for hand in hands.values()), default=None),
        notes=tuple(_notes(job)),
    )


def explained_item(item: Item, failures: int, seconds: float) -> ExplainedItem:
    """Return the explanation of an item in preparation."""
    return ExplainedItem(
        value_told(item.value), item.number, item.epoch, item.index, failures + 1, seconds
    )


def _named(description: str) -> str:
    """Put the function first: "decode on 4 threads" becomes "decode (4 threads)"."""
    function, _, workers = description.rpartition(" on ")
    return f"{function} ({workers})"


def _worker(worker: ExplainedWorker, hand: InProgress | None, deadline: float) -> ExplainedWorker:
    if hand is None or worker.state != "running":
        return replace(worker, is_at_source=_is_at_source(worker.stack))
    if hand.process is not None:
        told: ExplainedWorker = hand.process.explained(max(0.02, deadline - monotonic()))
        return replace(told, key=worker.key)
    if hand.thread is not None:
        stack = stack_of(hand.thread)
        worker = replace(worker, stack=stack, key=id(hand.thread), registered=worker.key)
    item, failures, seconds = hand.item, hand.failures, hand.seconds
    if item is None or isinstance(item.value, EpochEnd):
        return replace(worker, is_at_source=_is_at_source(worker.stack))
    return replace(worker, item=explained_item(item, failures, seconds))


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
        notes += job.key_limit.told()
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
        """Return whether all its workers have ended."""
        return self._job.state == "ended"

    def queues(self) -> list[Any]:
        """Return the queue that it reads, if known, and the queue that it fills."""
        feed, into = self._job.feed, self._job.into
        return [into] if feed.queue is None else [feed.queue, into]

    def sample(self, now: float) -> None:
        """Sample its workers, and have them measure their turns."""
        self._job.gauge.look(now)

    def stop_sampling(self) -> None:
        """Stop measuring turns, as nothing monitors it any more."""
        self._job.gauge.is_on = False

    def trace(self, tracer: Tracer | None) -> None:
        """Trace its current and future workers; ``None`` ends that."""
        self._job.gauge.trace(None if tracer is None else partial(tracer, self.name))

    def numbers(self, now: float) -> StageNumbers:
        """Return its numbers so far."""
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


_QUICK: Final = 5e-6
"""Calls that take fewer seconds are sampled, and not measured each time."""

_MOST: Final = 64
"""About how many calls one measured call may stand for."""


class _MeasuredNode(Protocol):
    """A node of a pipeline, as far as it is measured."""

    def calls_of(self, given: tuple[Any, ...], result: Any) -> int:
        """Return how many calls of the function a call of a measured method has made."""


class NodePart(EndingPart):
    """The time that is spent in one node: in a function of the user, or in the source.

    Args:
        node: the node. It is not kept alive.
        key: identifies the node in all runs of the pipeline.
        name: the name of the function; of the stage, if it calls none.
        kind: the name of the stage.
        methods: the names of the methods that are measured.
        is_sampled: whether calls may be so many and so fast that only some of them are measured.
    """

    def __init__(
        self,
        node: _MeasuredNode,
        key: Hashable,
        name: str,
        kind: str,
        methods: Iterable[str],
        *,
        is_sampled: bool,
    ) -> None:
        self.key = key
        self.name = name
        self.within: str | None = None
        """The key of the stage that reads it; ``None`` if the user's loop does."""
        self._kind = kind
        self._node = weakref.ref(node)
        self._methods = tuple(methods)
        self._is_sampled = is_sampled
        self._is_on = False
        self._random = Random(0)
        self._stride = 1
        self._left = 0  # how many of the next calls are not measured
        self._passed_over = 0  # unmeasured calls that the next measured one stands for
        self._service = Durations()
        self._since = 0.0
        self._begun = 0.0  # seconds spent so far without a finished call of the function

    @property
    def is_over(self) -> bool:
        """Whether its node is gone, so that the numbers will not change any more."""
        return self._node() is None

    def queues(self) -> list[Any]:
        """Its queues: a node has none."""
        return []

    def sample(self, now: float) -> None:
        """Start to measure the node."""
        if not self._is_on:
            self._is_on = True
            node = self._node()
            for name in self._methods if node is not None else ():
                setattr(node, name, self._measured(getattr(type(node), name)))

    def stop_sampling(self) -> None:
        """Stop measuring the node."""
        node = self._node()
        if self._is_on and node is not None:
            for name in self._methods:
                vars(node).pop(name, None)
        self._is_on = False

    def trace(self, tracer: Tracer | None) -> None:
        """Do nothing: the node has no workers to trace."""

    def numbers(self, now: float) -> StageNumbers:
        """The time that was spent so far, as the numbers of a stage."""
        service, since = Histogram(*self._service.counted()), self._since
        spent = service.seconds + self._begun
        return StageNumbers(
            name=self.name,
            where=FUNCTION,
            source=self._kind,
            into=self.within or "",
            workers=(),
            resizable=False,
            taken=service.count,
            delivered=service.count,
            skipped=0,
            retried=0,
            in_flight=0,
            in_flight_bytes=None,
            max_in_flight=None,
            service=service,
            cpu_sampled=0.0,
            cpu=0.0,
            source_waits=Histogram(),
            blocked=0.0,
            starved=0.0,
            seconds_window_full=0.0,
            ordered=True,
            busy=spent + (max(0.0, now - since) if since else 0.0),
        )

    def _measured(self, call: Callable[..., Any]) -> Callable[..., Any]:
        referent = self._node  # a weak reference: the node holds this function, so no cycle forms

        def measured(*arguments: Any) -> Any:
            node = referent()
            assert node is not None
            if self._left:
                self._left -= 1
                return call(node, *arguments)
            began = self._since = perf_counter()
            result = None
            try:
                result = call(node, *arguments)
            finally:
                seconds = perf_counter() - began
                self._since = 0.0
                self._add(seconds, node.calls_of(arguments, result))
            return result

        return measured

    def _add(self, seconds: float, calls: int) -> None:
        seconds += self._begun
        self._begun = 0.0 if calls else seconds
        if calls:
            self._service.add(seconds / calls, calls * (1 + self._passed_over))
        if self._is_sampled:
            self._stride = min(_MOST, 2 * self._stride) if seconds < _QUICK else 1
            # The distance is random, so that a periodic slow call is sampled as often as it occurs.
            self._left = self._passed_over = self._random.randrange(2 * self._stride - 1)
