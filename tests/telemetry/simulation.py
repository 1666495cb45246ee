"""Pipelines in virtual time: sources, stages and a training step of known speed, and their numbers.

A small discrete-event simulation, independent of the library but for the numbers that it tells. A
process is a generator that yields what it waits for: seconds, an element of a queue, room in one,
the interpreter lock. What it tells is what a monitor would have measured.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aioqueue.telemetry import (
    Histogram,
    QueueNumbers,
    Snapshot,
    StageNumbers,
    StepNumbers,
    WorkerNumbers,
)

SLICE = 0.005
"""Seconds that a thread keeps the interpreter lock."""

Process = Generator[tuple[str, Any], Any, None]


@dataclass(frozen=True)
class StageShape:
    """One stage.

    Attributes:
        name: of its function.
        where: what runs it.
        workers: how many.
        waits: seconds of a call that it sleeps, in the mean.
        computes: seconds of a call that it computes with the interpreter lock held.
        spread: of the seconds: 0 for always the same, 1 for an exponential distribution.
        ordered: whether the order is kept.
        max_in_flight: items in flight.
        room: of the queue that it fills.
        starts: seconds until a worker that was added is there.
        places: calls that may wait at the same time, of what they wait for; 0 for any number.
    """

    name: str
    where: str
    workers: int
    waits: float
    computes: float
    spread: float
    ordered: bool
    max_in_flight: int
    room: int
    starts: float = 0.0
    places: int = 0


@dataclass(frozen=True)
class Shape:
    """A pipeline: seconds of the source for an item and of the step for a batch, and stages."""

    source: float
    stages: tuple[StageShape, ...]
    batch: int
    step: float
    cores: float = 8.0

    def parts(self) -> list[str]:
        """What can be made faster."""
        return ["step", "source", *(stage.name for stage in self.stages)]

    def faster(self, part: str) -> Shape:
        """The same with one part that is twice as fast."""
        if part == "step":
            return replace(self, step=self.step / 2)
        if part == "source":
            return replace(self, source=self.source / 2)
        stages = [
            replace(one, waits=one.waits / 2, computes=one.computes / 2)
            if one.name == part
            else one
            for one in self.stages
        ]
        return replace(self, stages=tuple(stages))


class World:
    """Virtual time, and what processes wait for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Process, Any]] = []
        self._count = itertools.count()

    def start(self, process: Process) -> None:
        self.resume(process, None)

    def resume(self, process: Process, value: Any, after: float = 0.0) -> None:
        heapq.heappush(self._events, (self.now + after, next(self._count), process, value))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, process, value = heapq.heappop(self._events)
            self._step(process, value)
        self.now = until

    def _step(self, process: Process, value: Any) -> None:
        try:
            what, of = process.send(value)
        except StopIteration:
            return
        if what == "sleep":
            self.resume(process, None, of)
        else:
            getattr(of, what)(process)


class Waits:
    """Seconds of waits, including those in progress."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.seconds = 0.0
        self._since: dict[Any, float] = {}

    def begin(self, worker: Any) -> None:
        self._since[worker] = self._world.now

    def end(self, worker: Any) -> None:
        self.seconds += self._world.now - self._since.pop(worker)

    def until_now(self) -> float:
        return self.seconds + sum(self._world.now - since for since in self._since.values())


class Store:
    """A bounded queue."""

    def __init__(self, world: World, room: float) -> None:
        self.world, self.room = world, room
        self.inside: deque[Any] = deque()
        self.entered = self.left = 0
        self.put_waits, self.get_waits = Waits(world), Waits(world)
        self._getters: deque[Process] = deque()
        self._putters: deque[tuple[Process, Any]] = deque()
        self._offers: dict[Process, Any] = {}

    def offer(self, process: Process, element: Any) -> tuple[str, Store]:
        self._offers[process] = element
        return ("put", self)

    def put(self, process: Process) -> None:
        self._putters.append((process, self._offers.pop(process)))
        self.put_waits.begin(process)
        self._move()

    def get(self, process: Process) -> None:
        self._getters.append(process)
        self.get_waits.begin(process)
        self._move()

    def _move(self) -> None:
        moved = True
        while moved:
            moved = False
            if self._putters and len(self.inside) < self.room:
                process, element = self._putters.popleft()
                self.inside.append(element)
                self.entered += 1
                self.put_waits.end(process)
                self.world.resume(process, None)
                moved = True
            if self._getters and self.inside:
                process = self._getters.popleft()
                self.left += 1
                self.get_waits.end(process)
                self.world.resume(process, self.inside.popleft())
                moved = True


class Mutex:
    """A few at a time: the turn at a source, the interpreter lock, cores."""

    def __init__(self, world: World, places: int = 1) -> None:
        self.world = world
        self._free = places
        self._waiting: deque[Process] = deque()

    def take(self, process: Process) -> None:
        if self._free > 0:
            self._free -= 1
            self.world.resume(process, None)
        else:
            self._waiting.append(process)

    def give(self) -> None:
        self._free += 1
        self._let_in()

    def add(self, places: int) -> None:
        """So many more; or fewer, as soon as they are given back."""
        self._free += places
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._free > 0:
            self._free -= 1
            self.world.resume(self._waiting.popleft(), None)


class Run:
    """A pipeline that runs.

    Args:
        shape: what it is.
        seed: of the times that differ.
    """

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape = shape
        self.world = world = World()
        self.gil = Mutex(world)
        self.cores = Mutex(world, int(shape.cores))
        self.computed = 0.0
        self.stages: list[Stage] = []
        upstream: Store | None = None
        for number, stage in enumerate(shape.stages):
            made = Stage(self, stage, upstream, random.Random(f"{seed}-{number}"))
            self.stages.append(made)
            upstream = made.into
        assert upstream is not None
        self.last = upstream
        self.steps = 0
        self.step_waits = Waits(world)
        self.worked = Waits(world)
        world.start(self._loop())

    def _loop(self) -> Process:
        while True:
            self.step_waits.begin(self)
            for _ in range(self.shape.batch):
                yield ("get", self.last)
            self.step_waits.end(self)
            self.steps += 1
            self.worked.begin(self)
            yield ("sleep", self.shape.step)
            self.worked.end(self)

    def snapshot(self) -> Snapshot:
        """What a monitor would see now."""
        return Snapshot(
            seconds=self.world.now,
            time=self.world.now,
            cores=self.shape.cores,
            process_cpu=self.computed,
            queues=tuple(stage.queue_numbers() for stage in self.stages),
            stages=tuple(stage.numbers() for stage in self.stages),
            steps=StepNumbers(
                steps=self.steps,
                waits=Histogram(seconds=self.step_waits.until_now()),
                waiting=0.0,
                worked=self.worked.until_now(),
                queue=self.stages[-1].queue_name,
            ),
            gil_looks=int(1000 * self.world.now),
            gil_taken=int(1000 * self.computed),
        )


class Stage:
    """A stage that runs."""

    def __init__(
        self, run: Run, shape: StageShape, upstream: Store | None, rng: random.Random
    ) -> None:
        world = run.world
        self.run, self.shape, self.upstream = run, shape, upstream
        self.rng = rng
        self.into = Store(world, shape.room)
        self.queue_name = f"queue-{shape.name}"
        self.source_name = None if upstream is None else f"queue-{_before(run, shape).name}"
        self.turn = Mutex(world)
        self.window = Mutex(world, shape.max_in_flight)
        self.served = Mutex(world, shape.places or 10**6)
        self.busy, self.starved, self.full = Waits(world), Waits(world), Waits(world)
        self.source = Waits(world)
        self.calls = 0
        self.cpu = 0.0
        self.taken = self.delivered = 0
        self.ready: set[int] = set()
        self.next = 0
        self.is_flushing = False
        self.count = self.live = 0
        self.started = itertools.count()
        self.alive, self.changed = 0.0, 0.0
        self.done: dict[int, int] = {}  # items of each worker that is there
        self._have(shape.workers, 0.0)

    def resize(self, count: int) -> None:
        """Have so many workers from now on; those that are too many end what they are at."""
        self.window.add((count - self.count) * (self.shape.max_in_flight // self.shape.workers))
        self._have(count, self.shape.starts)

    def _have(self, count: int, after: float) -> None:
        self.count = count
        for _ in range(count - len(self.done)):
            worker = next(self.started)
            self.done[worker] = 0
            self.run.world.resume(self._work(worker), None, after)

    def _lives(self, more: int) -> None:
        self.alive, self.changed = self.alive_until_now(), self.run.world.now
        self.live += more

    def alive_until_now(self) -> float:
        """Seconds that its workers have been there, all together."""
        return self.alive + self.live * (self.run.world.now - self.changed)

    def _work(self, worker: int) -> Process:
        process_of: list[Process] = []
        process_of.append(self._body(worker, process_of))
        return process_of[0]

    def _body(self, worker: int, me: list[Process]) -> Process:
        self._lives(1)
        while len(self.done) <= self.count:
            self.starved.begin(worker)
            yield ("take", self.turn)
            self.starved.end(worker)
            self.full.begin(worker)
            yield ("take", self.window)
            self.full.end(worker)
            self.starved.begin(worker)
            self.source.begin(worker)
            if self.upstream is None:
                yield ("sleep", self.run.shape.source)
            else:
                yield ("get", self.upstream)
            self.source.end(worker)
            number = self.taken
            self.taken += 1
            self.turn.give()
            self.starved.end(worker)
            self.busy.begin(worker)
            yield from self._call()
            self.busy.end(worker)
            self.calls += 1
            self.done[worker] += 1
            if not self.shape.ordered:
                yield self.into.offer(me[0], number)
                self._left()
                continue
            self.ready.add(number)
            if self.is_flushing:
                continue
            self.is_flushing = True
            while self.next in self.ready:
                self.ready.remove(self.next)
                yield self.into.offer(me[0], self.next)
                self.next += 1
                self._left()
            self.is_flushing = False
        self._lives(-1)
        del self.done[worker]

    def _left(self) -> None:
        self.delivered += 1
        self.window.give()

    def _call(self) -> Process:
        shape = self.shape
        factor = 1 - shape.spread + shape.spread * self.rng.expovariate(1.0)
        if shape.waits:
            yield ("take", self.served)
            yield ("sleep", shape.waits * factor)
            self.served.give()
        left = shape.computes * factor
        lock = self.run.cores if shape.where == "process" else self.run.gil
        while left > 1e-12:
            now = min(left, SLICE)
            yield ("take", lock)
            yield ("sleep", now)
            lock.give()
            self.run.computed += now if lock is self.run.gil else 0.0
            self.cpu += now
            left -= now

    def queue_numbers(self) -> QueueNumbers:
        store = self.into
        return QueueNumbers(
            name=self.queue_name,
            kind="FIFOQueue",
            size=len(store.inside),
            capacity=int(store.room),
            held=0,
            bytes=None,
            max_bytes=None,
            is_closed=False,
            enqueued=store.entered,
            dequeued=store.left,
            enqueue_waits=Histogram(seconds=store.put_waits.until_now()),
            dequeue_waits=Histogram(seconds=store.get_waits.until_now()),
            enqueue_waiting=(),
            dequeue_waiting=(),
            seconds_empty=0.0,
            seconds_full=0.0,
            occupancy=(),
        )

    def numbers(self) -> StageNumbers:
        shape = self.shape
        busy = self.busy.until_now()
        return StageNumbers(
            name=shape.name,
            where=shape.where,
            source=self.source_name,
            into=self.queue_name,
            workers=tuple(
                WorkerNumbers(
                    f"{shape.name}-{worker}", busy / len(self.done), 0.0, done, 0, None, 0.0
                )
                for worker, done in self.done.items()
            ),
            resizable=True,
            taken=self.taken,
            delivered=self.delivered,
            skipped=0,
            retried=0,
            in_flight=self.taken - self.delivered,
            in_flight_bytes=None,
            max_in_flight=shape.max_in_flight // shape.workers * self.count,
            service=Histogram(counts=(*(0,) * 10, self.calls, *(0,) * 15), seconds=busy),
            cpu_sampled=busy,
            cpu=self.cpu,
            source_waits=Histogram(seconds=self.source.until_now()),
            blocked=self.into.put_waits.until_now(),
            starved=self.starved.until_now(),
            seconds_window_full=min(self.full.until_now(), self.run.world.now),
            ordered=shape.ordered,
            busy=busy,
            alive=self.alive_until_now(),
            fed=0.0 if self.upstream is None else self.upstream.get_waits.until_now(),
        )


def _before(run: Run, shape: StageShape) -> StageShape:
    at = run.shape.stages.index(shape)
    return run.shape.stages[at - 1]


def simulated(shape: Shape, seed: int, seconds: float) -> tuple[float, Snapshot, Snapshot]:
    """Run a pipeline: batches per second after a while, and snapshots of then and of the end."""
    run = Run(shape, seed)
    run.world.run(seconds / 3)
    earlier, steps = run.snapshot(), run.steps
    run.world.run(seconds)
    rate = (run.steps - steps) / (seconds - seconds / 3)
    return rate, earlier, run.snapshot()


def random_shape(seed: int) -> Shape:
    """A pipeline of one to three stages, whose parts differ in speed, more or less."""
    rng = random.Random(seed)
    item = 0.002  # seconds for an item, of the part that is as fast as the others

    def pace() -> float:
        return item * 2 ** rng.uniform(-2.0, 2.0)

    holds = rng.random() < 0.3  # whether functions hold the interpreter lock
    stages = []
    for number in range(rng.randint(1, 3)):
        workers = rng.choice([1, 2, 3, 4, 6, 8])
        where = rng.choice(["thread", "thread", "process"])
        computes = where == "thread" and holds
        # What holds the lock is as fast as one worker, however many there are.
        seconds = pace() if computes else pace() * workers
        stages.append(
            StageShape(
                name=f"stage{number}",
                where=where,
                workers=workers,
                waits=0.0 if computes else seconds,
                computes=seconds if computes else 0.0,
                spread=rng.choice([0.0, 0.3, 1.0]),
                ordered=rng.random() < 0.7,
                max_in_flight=16 * workers,
                room=rng.choice([16, 64, 128]),
            )
        )
    batch = rng.choice([1, 4, 16])
    return Shape(pace() * rng.choice([0.1, 1.0]), tuple(stages), batch, pace() * batch)


Judge = Callable[[Snapshot, Snapshot], Any]


def rates(shape: Shape, seed: int, seconds: float) -> dict[str, float]:
    """What making each part twice as fast makes of the rate."""
    return {part: simulated(shape.faster(part), seed, seconds)[0] for part in shape.parts()}


def parts_of(shapes: Sequence[Shape]) -> int:
    """How many parts there are in all."""
    return sum(len(shape.parts()) for shape in shapes)
