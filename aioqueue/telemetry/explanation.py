"""What an explanation consists of: queues, stages, workers, and who keeps them all waiting.

Plain records of one moment, and how they are told. Who gathers them is `explaining`, and who finds
the culprits among them `culprits`. Names are for people; ``key`` tells things apart that happen to
have the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from aioqueue.errors import counted
from aioqueue.telemetry.stacks import Stack, format_stack

__all__ = (
    "Culprit",
    "CulpritKind",
    "ExplainedCaller",
    "ExplainedCoordinator",
    "ExplainedItem",
    "ExplainedQueue",
    "ExplainedStage",
    "ExplainedWait",
    "ExplainedWorker",
    "Explanation",
    "WorkerState",
    "indented",
    "seconds_told",
)

CulpritKind = Literal[
    "item",
    "worker",
    "source",
    "process",
    "loop",
    "nobody fills",
    "nobody takes",
    "too few",
    "cycle",
]
"""What keeps a run waiting: an item that is being prepared, a worker in the middle of something
else, a source that gives nothing, a process that is stopped or does not answer, an event loop that
is blocked; a queue that nobody fills, or nobody empties, or that can never have enough; or some who
wait for each other."""

WorkerState = Literal["not started", "running", "ended", "stopped", "does not answer"]


@dataclass(frozen=True, slots=True)
class ExplainedCaller:
    """Someone who waits at a queue.

    Attributes:
        name: of the thread or task.
        side: what the call wants to do.
        elements: how many it still needs, or has to put in.
        seconds: how long it has waited.
        is_granted: it was given what it waits for, but its task has not run since.
        stack: where it is, innermost call first.
        key: tells the thread or task from others.
    """

    name: str
    side: Literal["enqueue", "dequeue"]
    elements: int
    seconds: float
    is_granted: bool
    stack: Stack
    key: int = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class ExplainedQueue:
    """A queue.

    Attributes:
        name: its name.
        kind: its class.
        size: elements inside, without those that a waiting batch has taken.
        capacity: how many fit; ``None``: no bound.
        held: elements that waiting batches have taken.
        least: how many must stay inside while it is open (``min_after_dequeue``).
        state: ``"open"``, ``"closing"`` or ``"closed"``.
        enqueued: elements put in so far.
        dequeued: elements taken out so far.
        callers: who waits, each side in the order of its line.
        last_dequeuer: who waited here last to take something out; ``None``: nobody ever had to.
        last_dequeuer_ended: whether that thread or task has ended.
        last_dequeuer_stack: where it is, if not.
        last_enqueuer: who waited here last to put something in.
        last_enqueuer_ended: whether that thread or task has ended.
        last_end: how the last runner that filled it has ended; ``None``: there was none.
        key: tells it from others.
    """

    name: str
    kind: str
    size: int
    capacity: int | None
    held: int
    least: int
    state: str
    enqueued: int
    dequeued: int
    callers: tuple[ExplainedCaller, ...]
    last_dequeuer: str | None = None
    last_dequeuer_ended: bool = False
    last_dequeuer_stack: Stack = ()
    last_enqueuer: str | None = None
    last_enqueuer_ended: bool = False
    last_end: str | None = None
    key: int = field(default=0, repr=False, compare=False)
    last_dequeuer_key: int = field(default=0, repr=False, compare=False)
    last_enqueuer_key: int = field(default=0, repr=False, compare=False)

    @property
    def fill(self) -> str:
        """How full it is, in words."""
        size = (
            counted(self.size, "element")
            if self.capacity is None
            else f"{self.size}/{self.capacity}"
        )
        return size + (f" and {self.held} in a batch that waits" if self.held else "")

    def lines(self) -> Iterator[str]:
        """What it is and who waits, in lines."""
        state = "" if self.state == "open" else f", {self.state}"
        least = f", {self.least} have to stay" if self.least and self.state == "open" else ""
        yield (
            f"{self.kind} '{self.name}': {self.fill}{state}{least},"
            f" {self.enqueued} in, {self.dequeued} out"
        )
        for caller in self.callers:
            what = "to put in" if caller.side == "enqueue" else "for"
            waits = "was served but has not run" if caller.is_granted else "waits"
            yield (
                f"  {caller.name} {waits} {what} {counted(caller.elements, 'element')},"
                f" for {seconds_told(caller.seconds)}{format_stack(caller.stack, '      ')}"
            )
        if not self.callers and self.last_end is not None:
            yield f"  the last runner that filled it has ended: {self.last_end}"


@dataclass(frozen=True, slots=True)
class ExplainedItem:
    """An item that is being prepared.

    Attributes:
        text: what it says of itself, bounded.
        number: its place among all that were taken, from 0.
        epoch: of the source.
        index: its place in that epoch.
        attempt: how often it has been tried, this time included.
        seconds: how long this attempt has lasted.
    """

    text: str
    number: int
    epoch: int
    index: int
    attempt: int
    seconds: float

    def __str__(self) -> str:
        again = f", attempt {self.attempt}" if self.attempt > 1 else ""
        return f"item {self.text} (epoch {self.epoch}, index {self.index}{again})"


@dataclass(frozen=True, slots=True)
class ExplainedWorker:
    """A worker.

    Attributes:
        name: of its thread, task or process.
        state: whether it runs; of a process also whether it was stopped, or does not answer.
        item: what it prepares; ``None``: nothing.
        is_at_source: it waits for the source to give it an item.
        stack: where it is, innermost call first; empty if that cannot be told.
        note: how it has ended, or what else there is to say.
        key: tells the thread or task from others.
        registered: the key of the thread that the coordinator knows, if that is another one.
    """

    name: str
    state: WorkerState
    item: ExplainedItem | None = None
    is_at_source: bool = False
    stack: Stack = ()
    note: str = ""
    key: int = field(default=0, repr=False, compare=False)
    registered: int = field(default=0, repr=False, compare=False)

    @property
    def doing(self) -> str:
        """What it does, in words."""
        words = "" if self.state == "running" else f" {self.state}"
        if self.item is not None:
            words += f" has been at {self.item} for {seconds_told(self.item.seconds)}"
        elif self.is_at_source:
            words += " waits for the source"
        return words + (f": {self.note}" if self.note else "")

    def lines(self, indent: str = "    ") -> Iterator[str]:
        """What it does and where, in lines."""
        yield f"{self.name}{self.doing}{format_stack(self.stack, indent)}"


@dataclass(frozen=True, slots=True)
class ExplainedStage:
    """What fills a queue: a `QueueRunner`, or what `prepare` has made.

    Attributes:
        name: what it does.
        into: the queue that it fills, by name.
        source: the queue that it takes from, by name; ``None``: something else, or unknown.
        workers: those with the oldest items first.
        in_flight: items taken from the source whose examples are not yet in the queue.
        max_in_flight: how many of these there may be; ``None``: it has no such bound.
        idle_seconds: how long the source has not given anything; ``None`` if it is not known.
        notes: what else there is to say.
        key: tells it from others.
    """

    name: str
    into: str
    workers: tuple[ExplainedWorker, ...]
    source: str | None = None
    in_flight: int = 0
    max_in_flight: int | None = None
    idle_seconds: float | None = None
    notes: tuple[str, ...] = ()
    key: int = field(default=0, repr=False, compare=False)
    into_key: int = field(default=0, repr=False, compare=False)
    source_key: int = field(default=0, repr=False, compare=False)

    @property
    def is_alive(self) -> bool:
        """Whether any of its workers can still do something."""
        return any(worker.state != "ended" for worker in self.workers)

    def lines(self) -> Iterator[str]:
        """What it is, and its workers, in lines."""
        flight = ""
        if self.max_in_flight is not None:
            flight = f", {self.in_flight} of {self.max_in_flight} items in flight"
        source = "" if self.source is None else f" from '{self.source}'"
        yield f"{self.name}{source} into '{self.into}'{flight}"
        for note in self.notes:
            yield f"  {note}"
        ended = [worker for worker in self.workers if worker.state == "ended" and not worker.note]
        for worker in self.workers:
            if worker not in ended:
                for line in worker.lines("      "):
                    yield f"  {line}"
        if ended:
            yield f"  {counted(len(ended), 'worker')} ended"


@dataclass(frozen=True, slots=True)
class ExplainedCoordinator:
    """A coordinator.

    Attributes:
        state: ``"running"``, ``"stopping"`` or ``"joined"``.
        stopped_by: who has requested the stop; ``None``: nobody has.
        stopped_seconds: how long ago that was.
        failures: what has been reported so far, in order.
        workers: those that it waits for and that belong to no stage.
    """

    state: str
    stopped_by: str | None
    stopped_seconds: float
    failures: tuple[str, ...]
    workers: tuple[ExplainedWorker, ...]

    def lines(self) -> Iterator[str]:
        """What it knows, in lines."""
        failures = counted(len(self.failures), "failure") if self.failures else "no failures"
        stop = ""
        if self.stopped_by is not None:
            stop = f", stop requested by {self.stopped_by} {seconds_told(self.stopped_seconds)} ago"
        yield f"{self.state}, {failures}{stop}"
        for failure in self.failures:
            yield f"  {failure}"
        for worker in self.workers:
            for line in worker.lines("      "):
                yield f"  {line}"


@dataclass(frozen=True, slots=True)
class Culprit:
    """What someone waits for in the end.

    Attributes:
        kind: what it is.
        sentence: in words.
        chain: how one comes there, from who waits first.
        queue: the name of the queue, if it is one, or the last one on the way.
        stage: the name of the stage, if it is in one.
        worker: the name of the thread, task or process, if it is one.
        item: the item, if it is one.
        key: tells the thread or task from others, where that is needed.
    """

    kind: CulpritKind
    sentence: str
    chain: tuple[str, ...] = ()
    queue: str | None = None
    stage: str | None = None
    worker: str | None = None
    item: ExplainedItem | None = None
    key: int = field(default=0, repr=False, compare=False)

    def lines(self) -> Iterator[str]:
        """The sentence, and the way there, in lines."""
        yield self.sentence
        for step in self.chain:
            yield f"  {step}"


@dataclass(frozen=True, slots=True)
class ExplainedWait:
    """Someone who waits, and at no queue: in a join, for the answer of a batcher, or in functions
    of a pipeline that the loop's own thread calls.

    Attributes:
        name: of the thread or task, or how many there are.
        what: what it waits for.
        seconds: how long it has waited.
        culprits: who keeps it waiting, as far as that is known here.
        stack: where it is, innermost call first; empty if that cannot be told.
        is_join: it waits for others to end, which may take as long as it takes.
        key: tells the thread or task from others.
    """

    name: str
    what: str
    seconds: float
    culprits: tuple[Culprit, ...] = ()
    stack: Stack = ()
    is_join: bool = False
    key: int = field(default=0, repr=False, compare=False)

    def lines(self) -> Iterator[str]:
        """Who waits and for what, in lines."""
        yield (
            f"{self.name} {self.what}, for {seconds_told(self.seconds)}"
            f"{format_stack(self.stack, '    ')}"
        )


@dataclass(frozen=True, slots=True)
class Explanation:
    """Who waits for whom, since when, and for what in the end; ``str`` gives it as text.

    Attributes:
        culprits: what all others wait for, the one that has kept someone waiting longest first;
            empty if nobody waits.
        queues: those that are filled by runners, and those at which someone waits.
        stages: the runners that have not ended.
        coordinators: what they know.
        pid: of the process.
        waits: who else waits, and at no queue.
    """

    culprits: tuple[Culprit, ...]
    queues: tuple[ExplainedQueue, ...]
    stages: tuple[ExplainedStage, ...]
    coordinators: tuple[ExplainedCoordinator, ...]
    pid: int
    waits: tuple[ExplainedWait, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"aioqueue: why process {self.pid} waits"
        if not self.culprits and not self.waits:
            yield "  nobody waits"
        for culprit in self.culprits:
            yield from indented(culprit.lines(), "  ")
        for title, parts in (
            ("others that wait", self.waits),
            ("queues", self.queues),
            ("stages", self.stages),
            ("coordinators", self.coordinators),
        ):
            if parts:
                yield title
            for part in parts:
                yield from indented(part.lines(), "  ")


def indented(lines: Iterator[str], indent: str) -> Iterator[str]:
    """The same lines, further to the right."""
    for line in lines:
        yield indent + line.replace("\n", f"\n{indent}")


def seconds_told(seconds: float) -> str:
    """A duration in words."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
