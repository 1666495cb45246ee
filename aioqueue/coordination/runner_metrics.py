"""The metrics of a queue runner's workers, one stage per enqueue op."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from aioqueue.base.arguments import EnqueueOp, function_name
from aioqueue.core.meters import LockSamples, Meter, Tracer
from aioqueue.queues.queue_core import QueueFace
from aioqueue.telemetry.explain.lock_waits import locks_of
from aioqueue.telemetry.metrics.watch import EndingPart

if TYPE_CHECKING:
    from aioqueue.telemetry.metrics.snapshots import StageNumbers, WorkerNumbers


class _WorkerPlan(Protocol):
    """One worker: its op, and where it runs."""

    @property
    def op(self) -> EnqueueOp: ...

    @property
    def is_task(self) -> bool: ...


class OpStage(EndingPart):
    """The workers that call one op. They do nothing else, so they are busy whenever they run.

    Args:
        name: the name of the op.
        where: what runs it, thread or task.
        meters: one meter per worker.
        queue: the queue that they fill; ``None`` if they fill none.
    """

    def __init__(self, name: str, where: str, meters: list[Meter], queue: QueueFace | None) -> None:
        self.key: Hashable = id(self)
        self.name = name
        self._where = where
        self._meters = meters
        self._queue = queue
        self._locks = LockSamples()

    @property
    def is_over(self) -> bool:
        return all(meter.ended for meter in self._meters)

    def queues(self) -> list[QueueFace]:
        return [] if self._queue is None else [self._queue]

    def sample(self, now: float) -> None:
        """Sample which of the workers wait for a lock."""
        working = (
            meter.owner()
            for meter in self._meters
            if meter.owner is not None and not meter.ended and not meter.waits.since
        )
        self._locks.add(locks_of(working))

    def stop_sampling(self) -> None:
        """Do nothing: sampling leaves nothing behind."""

    def trace(self, tracer: Tracer | None) -> None:
        """Report each worker to a tracer. ``None`` ends tracing, which needs no action here."""
        if tracer is not None:
            for meter in self._meters:
                tracer(self.name, meter)

    def numbers(self, now: float) -> StageNumbers:
        from aioqueue.core.meters import Histogram
        from aioqueue.telemetry.metrics.snapshots import StageNumbers

        waits = [meter.waits.until(meter.ended or now) for meter in self._meters]
        calls = sum(meter.calls for meter in self._meters)
        live = [meter for meter in self._meters if meter.began and not meter.ended]
        busy = sum(_busy(meter, now) for meter in self._meters)
        return StageNumbers(
            name=self.name,
            where=self._where,
            source=next((meter.reads for meter in self._meters if meter.reads), None),
            into=None if self._queue is None else self._queue.name,
            workers=tuple(_numbers(meter, now) for meter in live),
            resizable=False,
            taken=calls + len(live),
            delivered=calls,
            skipped=0,
            retried=0,
            in_flight=len(live),
            in_flight_bytes=None,
            max_in_flight=len(self._meters),
            service=Histogram(seconds=busy),
            cpu_sampled=0.0,
            cpu=0.0,
            source_waits=Histogram(),
            blocked=sum(enqueues for enqueues, _ in waits),
            starved=sum(dequeues for _, dequeues in waits),
            seconds_window_full=0.0,
            ordered=False,
            busy=busy,
            alive=sum((meter.ended or now) - meter.began for meter in self._meters if meter.began),
            looks=self._locks.count,
            in_line=self._locks.waiting,
            lock=self._locks.lock,
            deaths=sum(meter.restarts for meter in self._meters),
        )


def op_stages(
    workers: Iterable[tuple[_WorkerPlan, Meter]], queue: QueueFace | None
) -> Iterator[OpStage]:
    """Yield one stage per op, with the meters of its workers."""
    groups: dict[tuple[str, str], list[Meter]] = {}
    names: dict[int, str] = {}  # many workers often have one op
    for plan, meter in workers:
        name = names.get(id(plan.op))
        if name is None:
            name = names[id(plan.op)] = function_name(plan.op)
        groups.setdefault((name, "task" if plan.is_task else "thread"), []).append(meter)
    for (name, where), group in groups.items():
        yield OpStage(name, where, group, queue)


def _busy(meter: Meter, now: float) -> float:
    end = meter.ended or now
    if not meter.began:
        return 0.0
    return max(0.0, end - meter.began - meter.paused - sum(meter.waits.until(end)))


def _numbers(meter: Meter, now: float) -> WorkerNumbers:
    from aioqueue.telemetry.metrics.snapshots import WorkerNumbers

    busy = _busy(meter, now)
    return WorkerNumbers(
        name=meter.name,
        busy=busy,
        idle=max(0.0, now - meter.began - busy),
        items=meter.calls,
        deaths=meter.restarts,
        item=None,
        seconds=0.0,
    )
