"""Whether the numbers of a monitor agree with each other, and with the clock.

    python -m proofs.sums [--items 1000000] [--seconds 10]

So many items go through a pipeline of two stages, while one thread makes snapshots without a pause,
and checks each: what has gone in is out, inside or held; nothing goes back; nothing is further down
the pipeline than it can be by what was seen before and after. Then one consumer takes elements that
come at odd times, and works with each of them: its waits must be its wall time less that work, but
for a hundredth.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Iterator, Mapping

from aioqueue import sync
from aioqueue.inputs import numbers
from aioqueue.telemetry import Monitor, QueueNumbers, Snapshot, StageNumbers
from aioqueue.telemetry.metrics.queue_samples import QueuePart
from tests.kit.worlds import core_of

__all__ = ("Checker", "problems", "waits_of_a_consumer")

BATCH = 64
AHEAD = 32
"""Items that the source of a stage may have taken from its queue, and not yet given to it."""


def problems(before: Snapshot, now: Snapshot, batch: int) -> list[str]:
    """What does not agree: in a snapshot of a pipeline, and with one that was made before it."""
    found = []
    for queue in now.queues:
        if queue.enqueued != queue.dequeued + queue.size + queue.held:
            found.append(f"{queue.name}: sum")
        if min(queue.size, queue.held, queue.dequeued) < 0:
            found.append(f"{queue.name}: below zero")
        if queue.capacity is not None and queue.size > queue.capacity:
            found.append(f"{queue.name}: more than fit")
    for stage in now.stages:
        if stage.taken != stage.delivered + stage.skipped + stage.in_flight:
            found.append(f"{stage.name}: sum")
        if stage.max_in_flight is not None and stage.in_flight > stage.max_in_flight:
            found.append(f"{stage.name}: more in flight than may be")
    # A queue and the stage that fills it may have one name.
    earlier: list[QueueNumbers | StageNumbers] = [*before.queues, *before.stages]
    before_that = {(type(thing), thing.name): thing for thing in earlier}
    things: list[QueueNumbers | StageNumbers] = [*now.queues, *now.stages]
    for thing in things:
        key = (type(thing), thing.name)
        if key in before_that:
            found += _going_back(before_that[key], thing)
    return found + list(_out_of_order(before, now, batch))


def _going_back(before: QueueNumbers | StageNumbers, now: QueueNumbers | StageNumbers) -> list[str]:
    """The counters that have become less."""
    counters = zip(_counters(now).items(), _counters(before).values(), strict=True)
    return [
        f"{now.name}: {name} goes back: {early} {late}"
        for (name, late), early in counters
        if late < early
    ]


def _out_of_order(before: Snapshot, now: Snapshot, batch: int) -> Iterator[str]:
    """What was further down the pipeline than it can have been, by two snapshots."""
    queues = {queue.name: queue for queue in now.queues}
    for stage in before.stages:
        if stage.into in queues and stage.delivered > queues[stage.into].enqueued:
            yield f"{stage.name}: delivers what is not in {stage.into}"
    for queue in before.queues:
        for stage in now.stages:
            if stage.source == queue.name and queue.dequeued > stage.taken + AHEAD:
                yield f"{stage.name}: has taken {stage.taken}, and {queue.dequeued} are out"
    steps = 0 if before.steps is None else before.steps.steps
    if now.queues and (steps - 1) * batch > now.queues[-1].dequeued:  # the last one may be smaller
        yield "the loop has more than what is out"


def _counters(of: QueueNumbers | StageNumbers) -> Mapping[str, float]:
    """What never becomes less."""
    if isinstance(of, QueueNumbers):
        names = ["enqueued", "dequeued", "seconds_empty", "seconds_full"]
        waits = {"enqueue_waits": of.enqueue_waits, "dequeue_waits": of.dequeue_waits}
        return {name: getattr(of, name) for name in names} | {
            f"{name}.{what}": getattr(histogram, what)
            for name, histogram in waits.items()
            for what in ("count", "seconds", "longest")
        }
    names = ["delivered", "skipped", "retried", "busy", "blocked", "starved", "alive"]
    return {name: getattr(of, name) for name in names} | {"calls": of.service.count}


class Checker:
    """Makes snapshots in a thread of its own without a pause, and checks them."""

    def __init__(self, monitor: Monitor, batch: int) -> None:
        self._monitor = monitor
        self._batch = batch
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0
        self.found: list[str] = []

    def __enter__(self) -> Checker:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        snapshot = self._monitor._collector.snapshot  # not one that is shared
        before = snapshot()
        while not self._over.is_set():
            now = snapshot()
            self.found += problems(before, now, self._batch)
            self.count += 1
            before = now


def same(number: int) -> int:
    """The function of a stage that does nothing."""
    return number


def more(number: int) -> int:
    """Another one."""
    return number + 1


def whole_run(items: int) -> tuple[int, list[str]]:
    """How many snapshots of a pipeline were checked, and what was found."""
    pipeline = numbers(items).prepare(same, workers=2).prepare(more, workers=2).batch(BATCH)
    with pipeline.monitor() as monitor, Checker(monitor, BATCH) as checker:
        seen = sum(len(batch) for epoch in pipeline.epochs(1) for batch in epoch)
    last = monitor.snapshot()
    found = checker.found + [
        f"in the end: {thing}"
        for thing in (*last.queues, *last.stages)
        if isinstance(thing, StageNumbers) and thing.delivered != items
    ]
    return checker.count, found if seen == items else [*found, f"{seen} of {items} items"]


def waits_of_a_consumer(seconds: float, seed: int = 7) -> tuple[float, float]:
    """What the queue says that a consumer has waited, and its wall time less its work."""
    rng, queue = random.Random(seed), sync.FIFOQueue(8)
    over = threading.Event()

    def produce() -> None:
        for pause in iter(lambda: rng.random() * 0.01, None):
            if over.wait(pause):
                break
            queue.enqueue(pause)
        queue.close()

    producer = threading.Thread(target=produce)
    producer.start()
    began, worked = time.perf_counter(), 0.0
    for pause in queue:
        begins = time.perf_counter()
        time.sleep(pause / 3)
        worked += time.perf_counter() - begins
        if begins - began > seconds:
            over.set()
    wall = time.perf_counter() - began
    producer.join()
    return QueuePart(core_of(queue), 0.0).numbers(0.0).dequeue_wait, wall - worked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of the consumer")
    given = parser.parse_args()
    began = time.perf_counter()
    count, found = whole_run(given.items)
    print(f"{given.items:,} items, {time.perf_counter() - began:.0f} s: {count:,} snapshots agree")
    for problem in dict.fromkeys(found):
        print(f"  but {problem}")
    reported, waited = waits_of_a_consumer(given.seconds)
    print(
        f"a consumer waited {waited:.4f} s, and was told {reported:.4f} s: {reported / waited:.4f}"
    )
    return 0 if not found and abs(reported / waited - 1) <= 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
