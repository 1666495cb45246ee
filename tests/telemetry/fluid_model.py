"""Made-up runs: their numbers, second by second, as a fluid that flows through stages.

Queues are filled and emptied at the rates that workers, rooms and the training step allow. All
sums agree, as they do in a real run: a worker is busy, starved or blocked, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from aioqueue.core.meters import BOUNDS, Histogram, Tracer
from aioqueue.telemetry.metrics.scalars import scalars_of
from aioqueue.telemetry.metrics.snapshots import (
    FunctionNumbers,
    GenerationNumbers,
    QueueNumbers,
    Snapshot,
    StageNumbers,
    StepNumbers,
    WorkerNumbers,
)
from aioqueue.telemetry.monitor import MonitorExports
from aioqueue.telemetry.verdict.bottleneck import Verdict, verdict_of

BEGAN = 1_795_346_580.0  # 22 November 2026, 11:23 UTC


@dataclass
class Stage:
    """A stage of a run that never was, and the queue that it fills."""

    name: str
    workers: int = 4
    service: float = 0.004
    where: str = "thread"
    capacity: int | None = 64
    on_cpu: float = 0.95


@dataclass
class _Flow:
    stage: Stage
    level: float = 0.0
    into: float = 0.0
    out: float = 0.0
    busy: float = 0.0
    starved: float = 0.0
    blocked: float = 0.0
    enqueue_wait: float = 0.0
    dequeue_wait: float = 0.0
    empty: float = 0.0
    full: float = 0.0
    occupancy: list[float] = field(default_factory=lambda: [0.0] * 10)


def history(
    stages: Sequence[Stage],
    *,
    seconds: int = 60,
    step: float = 0.01,
    slow: Mapping[tuple[int, int], tuple[str, float]] | None = None,
    loop: bool = True,
) -> list[Snapshot]:
    """The snapshots of a run, one per second, the one at its beginning included.

    Args:
        stages: in the order in which data go through them.
        seconds: how long it runs.
        step: seconds that the training step works on a batch.
        slow: by seconds (from, to): which stage, or ``"step"``, takes how many times as long.
        loop: whether the training loop is watched.
    """
    flows = [_Flow(stage) for stage in stages]
    steps, waited, worked = 0.0, 0.0, 0.0
    found = [_snapshot(0, flows, steps, waited, worked, loop)]
    ticks = 50
    for second in range(seconds):
        times = dict(worker for when, worker in (slow or {}).items() if when[0] <= second < when[1])
        for tick in range(ticks):
            # The step and the workers come in bursts, or no queue would ever be between the ends.
            burst = 1.0 + 0.5 * ((tick * 7 + second * 3) % 11 - 5) / 5
            dt = 1 / ticks
            wanted = dt / (step * times.get("step", 1.0)) * burst
            for index in reversed(range(len(flows))):
                flow = flows[index]
                taken = min(wanted, flow.level)
                flow.level -= taken
                flow.out += taken
                idle = dt * (1 - taken / wanted)
                if index == len(flows) - 1:
                    flow.dequeue_wait += idle
                    waited, worked = waited + idle, worked + dt - idle
                    steps += taken
                else:
                    follower = flows[index + 1]
                    follower.into += taken
                    follower.level += taken
                    workers = follower.stage.workers
                    own = taken * follower.stage.service * times.get(follower.stage.name, 1.0)
                    room = follower.stage.capacity
                    rest = dt * workers - own
                    is_full = room is not None and follower.level >= 0.9 * room
                    follower.busy += own
                    if is_full:
                        follower.blocked += rest
                        follower.enqueue_wait += rest
                    else:
                        follower.starved += rest
                        flow.dequeue_wait += rest
                wanted = _wanted(flow, dt, times, 1 / burst)
            first = flows[0]
            first.into += wanted
            first.level += wanted
            own = wanted * first.stage.service * times.get(first.stage.name, 1.0)
            first.busy += own
            first.blocked += dt * first.stage.workers - own
            first.enqueue_wait += dt * first.stage.workers - own
            for flow in flows:
                _measure(flow, dt)
        found.append(_snapshot(second + 1, flows, steps, waited, worked, loop))
    return found


def _wanted(flow: _Flow, dt: float, times: Mapping[str, float], burst: float) -> float:
    """How much a stage could put into its queue."""
    service = flow.stage.service * times.get(flow.stage.name, 1.0)
    able = min(dt * flow.stage.workers / service * burst, dt * flow.stage.workers / service)
    room = able if flow.stage.capacity is None else flow.stage.capacity - flow.level
    return max(1e-12, min(able, room))


def _measure(flow: _Flow, dt: float) -> None:
    capacity = flow.stage.capacity
    flow.empty += dt * (flow.level < 0.5)
    if capacity is not None:
        flow.full += dt * (flow.level > capacity - 0.5)
        flow.occupancy[min(9, int(10 * flow.level / capacity))] += dt


def durations(number: int, each: float) -> Histogram:
    """So many durations, most of them near ``each``, some twice and a few eight times as long."""
    counts = [0] * (len(BOUNDS) + 1)
    middle = next(bucket for bucket, bound in enumerate(BOUNDS) if bound >= each)
    for further, share in ((0, 0.8), (1, 0.15), (3, 0.05)):
        counts[min(middle + further, len(BOUNDS))] += round(number * share)
    return Histogram(tuple(counts), number * each, 8 * each if number else 0.0)


def _snapshot(
    second: int, flows: list[_Flow], steps: float, waited: float, worked: float, loop: bool
) -> Snapshot:
    queues, stages = [], []
    for index, flow in enumerate(flows):
        stage = flow.stage
        enqueued, dequeued = int(flow.into), int(flow.out)
        queues.append(
            QueueNumbers(
                name=f"{stage.name}-queue",
                kind="FIFOQueue",
                size=enqueued - dequeued,
                capacity=stage.capacity,
                held=0,
                bytes=1024 * (enqueued - dequeued),
                max_bytes=None,
                is_closed=False,
                enqueued=enqueued,
                dequeued=dequeued,
                enqueue_waits=_waits(enqueued // 8, flow.enqueue_wait),
                dequeue_waits=_waits(dequeued // 8, flow.dequeue_wait),
                enqueue_waiting=(),
                dequeue_waiting=(),
                seconds_empty=flow.empty,
                seconds_full=flow.full,
                occupancy=() if stage.capacity is None else tuple(flow.occupancy),
                unfinished=enqueued - dequeued + 2,
            )
        )
        stages.append(
            StageNumbers(
                name=stage.name,
                where=stage.where,
                source=queues[index - 1].name if index else None,
                into=queues[index].name,
                workers=tuple(_worker(flow, number) for number in range(stage.workers)),
                resizable=True,
                taken=enqueued + 2,
                delivered=enqueued,
                skipped=enqueued // 1000,
                retried=enqueued // 500,
                in_flight=2,
                in_flight_bytes=2048,
                max_in_flight=16 * stage.workers,
                service=durations(enqueued, stage.service),
                cpu_sampled=flow.busy,
                cpu=flow.busy * stage.on_cpu,
                source_waits=durations(enqueued, 2e-5),
                blocked=flow.blocked,
                starved=flow.starved,
                seconds_window_full=0.0,
                ordered=False,
                busy=flow.busy,
                alive=float(second * stage.workers),
            )
        )
    reads = queues[-1].name if queues else None
    watched = StepNumbers(int(steps), _waits(int(steps), waited), 0.0, worked, reads)
    return Snapshot(
        seconds=float(second),
        time=BEGAN + second,
        cores=8.0,
        process_cpu=2.0 * second,
        queues=tuple(queues),
        stages=tuple(stages),
        steps=watched if loop else None,
    )


def _waits(number: int, seconds: float) -> Histogram:
    if not number:
        return Histogram()
    each = max(seconds / number, 1e-6)
    return replace(durations(number, min(each, 1.0)), seconds=seconds)


def _worker(flow: _Flow, number: int) -> WorkerNumbers:
    workers = flow.stage.workers
    return WorkerNumbers(
        name=f"{flow.stage.name}-{number}",
        busy=flow.busy / workers,
        idle=(flow.starved + flow.blocked) / workers,
        items=int(flow.into) // workers,
        deaths=0,
        item=int(flow.into) + number,
        seconds=0.001,
    )


class Watching(MonitorExports):
    """Stands for a monitor: a history that was, of which the last snapshot is now."""

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self.seen = snapshots[:-1]
        self.now = snapshots[-1]
        self.on_step: list[Callable[[int], None]] = []

    @property
    def history(self) -> Sequence[Snapshot]:
        return self.seen

    def snapshot(self) -> Snapshot:
        return self.now

    def verdict(self, seconds: float | None = 10.0) -> Verdict:
        since = self.now.seconds - (seconds or 300.0)
        first = next((one for one in self.seen if one.seconds >= since), self.now)
        return verdict_of(first, self.now)

    def scalars(self, seconds: float = 10.0) -> dict[str, float]:
        since = self.now.seconds - seconds
        first = next((one for one in self.seen if one.seconds >= since), self.now)
        return scalars_of(first, self.now)

    def _sizes(self) -> dict[str, int]:
        return {queue.name: queue.size for queue in self.now.queues}

    def _trace(self, tracer: Tracer) -> None:
        pass

    def _stop_tracing(self, tracer: Tracer) -> None:
        pass

    def _call_on_step(self, call: Callable[[int], None]) -> None:
        self.on_step.append(call)


def usual(seconds: int = 60) -> Watching:
    """A run of two stages: ahead at first; then the second is slow, then the first; then ahead."""
    stages = [
        Stage("read", workers=2, service=0.004, where="task", capacity=256, on_cpu=0.1),
        Stage("decode", workers=4, service=0.006),
    ]
    slow = {
        (seconds // 5, seconds // 2): ("decode", 6.0),
        (seconds // 2, 4 * seconds // 5): ("read", 3.3),
    }
    return Watching(
        [_with_collate(one) for one in history(stages, seconds=seconds, step=0.004, slow=slow)]
    )


def _with_collate(snapshot: Snapshot) -> Snapshot:
    """The same with a function between the stages, which takes half a millisecond."""
    steps = 0 if snapshot.steps is None else snapshot.steps.steps
    service = durations(steps, 0.0005)
    function = FunctionNumbers("my_collate", "batch", None, service, service.seconds)
    return replace(snapshot, functions=(function,))


def generating(
    seconds: int = 20, *, trainer: float = 0.4, slots: float = 0.1, gate: float = 0.02
) -> Watching:
    """A run that trains on rollouts: a step each second, of eight groups with a staleness of 1.

    Args:
        seconds: how long it is.
        trainer: the share of the time for which the trainer waits.
        slots: that in which nothing is generated, for want of slots.
        gate: that in which nothing is generated, since weights are published.
    """

    def at(now: int, snapshot: Snapshot) -> Snapshot:
        stage = replace(
            snapshot.stages[0],
            name="grpo",
            where="task",
            into=None,
            workers=(),
            in_flight=24,
            max_in_flight=32,
            generation=GenerationNumbers(
                steps=now,
                version=max(0, now - 1),
                publish_lag=min(now, 1),
                groups=8 * now,
                staleness=8 * now,
                worst_staleness=3,
                existing=16,
                ready=5,
                slots=16,
                missing="3 of 8 groups are missing",
                waits=durations(now, trainer),
                waiting=0.0,
                waited_for_slots=slots * now,
                waited_at_gate=gate * now,
                publishing=2 * gate * now,
                seconds=float(now),
            ),
        )
        assert stage.generation is not None
        return replace(snapshot, stages=(stage,), queues=(), steps=stage.generation.steps_taken)

    snapshots = history([Stage("generate", workers=4, service=0.04)], seconds=seconds)
    return Watching([at(now, one) for now, one in enumerate(snapshots)])
