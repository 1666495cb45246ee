"""The records of an explanation: queues, stages, workers, and the root cause of each wait.

They describe one moment, and render themselves as text. `aioqueue.telemetry.explain.wait_graph`
fills them. Names are for people; ``key`` identifies a thing whose name is not unique.

The records name everything, however many callers wait. The text is for people: of those that wait
alike it shows the three longest waits and counts the others, so its length has a bound.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, ClassVar, Final, Literal

from aioqueue.base.display_text import in_safe_lines, on_one_line
from aioqueue.base.folded_lines import folded
from aioqueue.base.public_names import public
from aioqueue.errors import counted
from aioqueue.telemetry.explain.stacks import Stack, format_stack, name_and_key, place_of, stack_of

CulpritKind = Literal[
    "item",
    "worker",
    "source",
    "process",
    "loop",
    "nobody fills",
    "nobody takes",
    "too few",
    "unfinished",
    "cycle",
]
"""The kind of a root cause: an item in preparation, a busy worker, a source that yields nothing, a
stopped or unresponsive process, a blocked event loop; a queue that nobody fills or empties, that
can never hold enough, or whose elements are not done with; or a cycle of callers that wait for each
other."""

WorkerState = Literal[
    "not started", "running", "ended", "stopped", "does not answer", "waits for its restart"
]


class _SingleLineTexts:
    """A record whose texts of users, such as names, are on one line: nobody forges another one."""

    __slots__ = ()
    _texts: ClassVar[tuple[str, ...]] = ("name",)

    def __post_init__(self) -> None:
        for field_name in self._texts:
            text = getattr(self, field_name)
            if text is not None:
                object.__setattr__(self, field_name, on_one_line(text))


@dataclass(frozen=True, slots=True)
class ExplainedCaller(_SingleLineTexts):
    """A caller that waits at a queue.

    Attributes:
        name: name of the thread or task.
        side: what the call does.
        elements: how many elements it still has to take or to put in.
        seconds: how long it has waited.
        is_granted: whether it has been served, but its task has not run since.
        stack: its call stack, innermost call first.
        key: identifies the thread or task.
    """

    name: str
    side: Literal["enqueue", "dequeue"]
    elements: int
    seconds: float
    is_granted: bool
    stack: Stack
    key: int = field(repr=False, compare=False)

    def lines(self) -> Iterator[str]:
        """Yield lines that say for what it waits, and where."""
        what = "to put in" if self.side == "enqueue" else "for"
        waits = "was served but has not run" if self.is_granted else "waits"
        yield (
            f"{self.name} {waits} {what} {counted(self.elements, 'element')},"
            f" for {format_seconds(self.seconds)}{format_stack(self.stack, '    ')}"
        )


@dataclass(frozen=True, slots=True)
class ExplainedQueue(_SingleLineTexts):
    """A queue.

    Attributes:
        name: its name.
        kind: its class.
        size: elements in the queue, without those that a waiting batch has taken.
        capacity: most elements that it holds; ``None`` if it is unbounded.
        held: elements that waiting batches have taken.
        least: how many must stay in the queue while it is open (``min_after_dequeue``).
        state: ``"open"``, ``"closing"`` or ``"closed"``.
        enqueued: elements enqueued so far.
        dequeued: elements dequeued so far.
        callers: the waiting callers, each side in queue order.
        last_dequeuer: the last caller that had to wait for elements; ``None`` if none had to.
        last_dequeuer_ended: whether that thread or task has ended.
        last_dequeuer_stack: its call stack, if it has not.
        last_enqueuer: the last caller that had to wait for room.
        last_enqueuer_ended: whether that thread or task has ended.
        last_end: how the last runner that filled the queue ended; ``None`` if there was none.
        granted: elements that were given to callers which have not run on yet.
        served_by: the batcher whose workers take its elements; ``None`` if no batcher does.
        key: identifies the queue.
        shared_as: identifies it in all processes that use it; empty if it is not shared.
        is_owned: whether it is a queue of this process, and not the handle of another one's.
    """

    _texts: ClassVar[tuple[str, ...]] = ("name", "last_dequeuer", "last_enqueuer", "last_end")

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
    granted: int = 0
    served_by: str | None = None
    key: int = field(default=0, repr=False, compare=False)
    last_dequeuer_key: int = field(default=0, repr=False, compare=False)
    last_enqueuer_key: int = field(default=0, repr=False, compare=False)
    shared_as: str = field(default="", repr=False, compare=False)
    is_owned: bool = field(default=True, repr=False, compare=False)

    @property
    def fill(self) -> str:
        """How full it is, in words."""
        size = (
            counted(self.size, "element")
            if self.capacity is None
            else f"{self.size}/{self.capacity}"
        )
        size += f", {self.granted} granted" if self.granted else ""
        return size + (f" and {self.held} in a batch that waits" if self.held else "")

    def lines(self) -> Iterator[str]:
        """Yield lines that describe the queue and its waiting callers."""
        state = "" if self.state == "open" else f", {self.state}"
        least = f", {self.least} have to stay" if self.least and self.state == "open" else ""
        yield (
            f"{self.kind} '{self.name}': {self.fill}{state}{least},"
            f" {self.enqueued} in, {self.dequeued} out"
        )
        yield from indented(
            folded(self.callers, _alike_caller, ExplainedCaller.lines, _caller_seconds), "  "
        )
        if not self.callers and self.last_end is not None:
            yield f"  the last runner that filled it has ended: {self.last_end}"


@dataclass(frozen=True, slots=True)
class ExplainedItem(_SingleLineTexts):
    """An item in preparation.

    Attributes:
        text: its shortened ``repr``.
        number: its position among all items taken, from 0.
        epoch: the epoch of the source.
        index: its position in that epoch.
        attempt: which attempt this is, from 1.
        seconds: how long this attempt has lasted.
    """

    _texts: ClassVar[tuple[str, ...]] = ("text",)

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
class ExplainedWorker(_SingleLineTexts):
    """A worker.

    Attributes:
        name: name of its thread, task or process.
        state: whether it runs; a process may also be stopped, or not answer, and a failed worker
            may wait for its restart.
        item: the item that it prepares; ``None`` for none.
        is_at_source: whether it waits for an item of the source.
        stack: its call stack, innermost call first; empty if unknown.
        note: how it ended, or another remark.
        key: identifies the thread or task.
        registered: the key of the thread that the coordinator knows, if it is a different one.
    """

    _texts: ClassVar[tuple[str, ...]] = ("name", "note")

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
            words += f" has been at {self.item} for {format_seconds(self.item.seconds)}"
        elif self.is_at_source:
            words += " waits for the source"
        return words + (f": {self.note}" if self.note else "")

    def lines(self) -> Iterator[str]:
        """Yield lines that say what it does, and where."""
        yield f"{self.name}{self.doing}{format_stack(self.stack, '    ')}"


@dataclass(frozen=True, slots=True)
class ExplainedStage(_SingleLineTexts):
    """The workers of a `QueueRunner`, or a ``prepare`` stage.

    Attributes:
        name: its name.
        into: name of the queue that it fills; ``None`` if it fills none.
        source: name of the queue that it reads; ``None`` if it reads something else, or if that is
            unknown.
        workers: its workers, those with the oldest items first.
        in_flight: items taken from the source whose examples are not yet in the queue.
        max_in_flight: most items in flight; ``None`` if there is no bound.
        idle_seconds: how long the source has yielded nothing; ``None`` if unknown.
        notes: other remarks.
        key: identifies the stage.
    """

    _texts: ClassVar[tuple[str, ...]] = ("name", "into", "source")

    name: str
    into: str | None
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
        return any(worker.state != "ended" for worker in self.workers)

    def lines(self) -> Iterator[str]:
        """Yield lines that describe the stage and its workers."""
        flight = ""
        if self.max_in_flight is not None:
            flight = f", {self.in_flight} of {self.max_in_flight} items in flight"
        source = "" if self.source is None else f" from '{self.source}'"
        into = "" if self.into is None else f" into '{self.into}'"
        yield f"{self.name}{source}{into}{flight}"
        yield from indented(folded(self.notes, str, _one_line), "  ")
        shown = [worker for worker in self.workers if worker.state != "ended" or worker.note]
        yield from indented(
            folded(shown, _alike_worker, ExplainedWorker.lines, _item_seconds), "  "
        )
        ended = len(self.workers) - len(shown)
        if ended:
            yield f"  {counted(ended, 'worker')} ended"


@dataclass(frozen=True, slots=True)
class ExplainedCoordinator:
    """A coordinator.

    Attributes:
        state: ``"running"``, ``"stopping"`` or ``"joined"``.
        stopped_by: who requested the stop; ``None`` if nobody did.
        stopped_seconds: how long ago that was; 0.0 before a stop.
        failures: the failures reported so far, in order.
        workers: the workers that it waits for and that belong to no stage.
    """

    state: str
    stopped_by: str | None
    stopped_seconds: float
    failures: tuple[str, ...]
    workers: tuple[ExplainedWorker, ...]

    def lines(self) -> Iterator[str]:
        """Yield lines that describe its state."""
        failures = counted(len(self.failures), "failure") if self.failures else "no failures"
        stop = ""
        if self.stopped_by is not None:
            stop = (
                f", stop requested by {self.stopped_by} {format_seconds(self.stopped_seconds)} ago"
            )
        yield f"{self.state}, {failures}{stop}"
        yield from indented(folded(self.failures, str, _one_line), "  ")
        yield from indented(
            folded(self.workers, _alike_worker, ExplainedWorker.lines, _item_seconds), "  "
        )


@public("aioqueue")
@dataclass(frozen=True, slots=True)
class Culprit:
    """The root cause of a wait.

    Attributes:
        kind: its kind.
        sentence: a description.
        chain: the path through the wait graph, from the caller that waits first.
        queue: name of the queue, or of the last one on the path.
        stage: name of the stage, if there is one.
        worker: name of the thread, task or process, if there is one.
        item: the item, if there is one.
        key: identifies the thread or task, where needed.
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
        """Yield lines with the sentence and the path."""
        yield self.sentence
        if self.kind != "cycle":  # whose sentence is the path
            yield from indented(shown_steps(self.chain), "  ")


@dataclass(frozen=True, slots=True)
class ExplainedWait(_SingleLineTexts):
    """A wait other than in a queue's line: in a join, of workers or of a queue, for the answer of a
    batcher, or in functions of a pipeline that the loop's own thread calls.

    Attributes:
        name: name of the thread or task, or how many there are.
        what: what it waits for.
        seconds: how long it has waited.
        culprits: the root causes, as far as they are known here.
        stack: its call stack, innermost call first; empty if unknown.
        is_join: whether it waits for workers, or for all their work, which may rightly take long.
        key: identifies the thread or task.
    """

    name: str
    what: str
    seconds: float
    culprits: tuple[Culprit, ...] = ()
    stack: Stack = ()
    is_join: bool = False
    key: int = field(default=0, repr=False, compare=False)

    def lines(self) -> Iterator[str]:
        """Yield lines that say who waits, and for what."""
        yield (
            f"{self.name} {self.what}, for {format_seconds(self.seconds)}"
            f"{format_stack(self.stack, '    ')}"
        )


@public("aioqueue")
@dataclass(frozen=True, slots=True)
class Explanation:
    """Which callers wait, for what, for how long, and the root cause; ``str`` renders it as text.

    Attributes:
        culprits: the root causes, those of the longest waits first; empty if nobody waits.
        queues: the queues that runners fill, and those at which callers wait.
        stages: the runners that have not ended.
        coordinators: the coordinators.
        pid: the process.
        waits: other waits, not at queues.
        hints: what may be a root cause, or as it should be: callers that wait for elements of a
            queue that other code fills by hand.
        processes: the explanations of the other processes that share a coordinator with this one,
            of those that answer within half a second.
    """

    culprits: tuple[Culprit, ...]
    queues: tuple[ExplainedQueue, ...]
    stages: tuple[ExplainedStage, ...]
    coordinators: tuple[ExplainedCoordinator, ...]
    pid: int
    waits: tuple[ExplainedWait, ...] = ()
    hints: tuple[Culprit, ...] = ()
    processes: tuple[Explanation, ...] = ()

    def __str__(self) -> str:
        return in_safe_lines("\n".join(self._lines()))

    def _lines(self) -> Iterator[str]:
        yield f"aioqueue: why process {self.pid} waits"
        if not (self.culprits or self.waits or self.hints):
            yield "  nobody waits"
        for found in (self.culprits, self.hints):
            yield from indented(folded(found, _alike_culprit, Culprit.lines), "  ")
        parts: tuple[tuple[str, Iterator[str]], ...] = (
            ("other waits", folded(self.waits, _alike_wait, ExplainedWait.lines, _wait_seconds)),
            ("queues", folded(self.queues, id, ExplainedQueue.lines, _call_seconds)),
            ("stages", folded(self.stages, id, ExplainedStage.lines)),
            (
                "coordinators",
                folded(self.coordinators, _alike_coordinator, ExplainedCoordinator.lines),
            ),
        )
        for title, lines in parts:
            for number, line in enumerate(indented(lines, "  ")):
                if number == 0:
                    yield title
                yield line
        for process in self.processes:
            yield from process._lines()


# How the text stays short.

_MOST_STEPS: Final = 12
"""The text shows so many steps of a path."""


def shown_steps(steps: Sequence[str]) -> Iterator[str]:
    """Yield the first and the last steps of a path, and how many are between them."""
    half = _MOST_STEPS // 2
    if len(steps) <= _MOST_STEPS:
        yield from steps
        return
    yield from steps[:half]
    yield f"... {len(steps) - 2 * half:,} more ..."
    yield from steps[-half:]


def _one_line(text: str) -> tuple[str]:
    return (text,)


def _alike_caller(caller: ExplainedCaller) -> Hashable:
    return caller.side, caller.is_granted, caller.stack


def _caller_seconds(caller: ExplainedCaller) -> float:
    return caller.seconds


def _alike_worker(worker: ExplainedWorker) -> Hashable:
    has_item = worker.item is not None
    return worker.state, worker.note, has_item, worker.is_at_source, worker.stack


def _item_seconds(worker: ExplainedWorker) -> float:
    return 0.0 if worker.item is None else worker.item.seconds


def _alike_culprit(culprit: Culprit) -> Hashable:
    return culprit.kind, culprit.queue, culprit.stage


def _alike_wait(wait: ExplainedWait) -> Hashable:
    return wait.what, wait.stack


def _wait_seconds(wait: ExplainedWait) -> float:
    return wait.seconds


def _call_seconds(queue: ExplainedQueue) -> float:
    return max(map(_caller_seconds, queue.callers), default=0.0)


def _alike_coordinator(coordinator: ExplainedCoordinator) -> Hashable:
    if coordinator.workers:
        return id(coordinator)
    return coordinator.state, coordinator.stopped_by, coordinator.failures


def loop_wait(
    loop: Any,
    seconds: float,
    frames: Mapping[int, FrameType],
    what: str = "waits for the next batch of a pipeline",
) -> ExplainedWait:
    """The wait of a loop that makes the next batch itself.

    Args:
        loop: the thread or the task of the loop.
        seconds: for how long it has waited for the batch.
        frames: the current frames of all threads.
        what: a description of the wait.
    """
    name, key = name_and_key(loop)
    stack = stack_of(loop, frames)
    place = place_of(stack)
    at = "" if place is None else f", at {place}"
    culprit = Culprit(
        "worker",
        f"{name} makes the next batch itself, and has been busy with it for"
        f" {format_seconds(seconds)}{at}",
        (f"{name} {what}, for {format_seconds(seconds)}",),
        worker=name,
    )
    return ExplainedWait(name, what, seconds, (culprit,), stack, key=key)


def indented(lines: Iterator[str], indent: str) -> Iterator[str]:
    for line in lines:
        yield indent + line.replace("\n", f"\n{indent}")


def format_seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
