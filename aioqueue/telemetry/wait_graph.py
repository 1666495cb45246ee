"""Finds the root cause of a hang by walking the wait graph, and gathers the facts it needs.

A *consumer* waits for elements of a queue; a *producer* waits for room in one. The walk leads from
a consumer to those that fill its queue, from a producer to those that empty it, and from a worker
to whatever the worker waits for. It ends in one of four ways: at an item, a source or a line of
user code; at a queue that nobody fills or empties; at a queue that can never hold enough; or at a
point that it has visited before, which is a cycle.

Runners declare which queue they fill, and a `prepare` declares which queue it reads. For all other
callers, the last one that had to wait at a queue is taken for its reader or writer. Where even that
is unknown and another caller is blocked too, the result is worded as a guess.

A service that waits for requests is not stuck, and looks the same as a consumer whose producers
have forgotten to close their queue. So an empty queue is a root cause only if somebody who filled
it is known to have ended, or if no other thread is left that could fill it. Otherwise it is a hint.
Workers of a batcher that wait for requests are idle, and are left out.

The facts are read from outside, one after another, while everything runs. So an explanation is
consistent only where nothing moves, which is where you need one. Locks are held just long enough to
copy what they guard. Any thread may call `explain`; signal handlers go through
`aioqueue.telemetry.explain_socket`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from types import FrameType
from typing import Any, Literal

from aioqueue.core.attempts import DEQUEUE, ENQUEUE, GRANTED, Attempt, PutMany, Side, Take
from aioqueue.errors import counted
from aioqueue.system.forks import living_queues
from aioqueue.telemetry.explanation import (
    Culprit,
    ExplainedCaller,
    ExplainedQueue,
    ExplainedStage,
    ExplainedWait,
    ExplainedWorker,
    Explanation,
    seconds_told,
)
from aioqueue.telemetry.registry import (
    Coordinating,
    Serving,
    known_coordinators,
    known_runs,
    known_waits,
)
from aioqueue.telemetry.stacks import current_frames, place_of, stack_of
from aioqueue.worlds.waker import Owner

_AS_OLD = 0.5
"""Also name workers whose items are at least this share of the oldest item's age."""

Path = tuple[str, ...]
Been = frozenset[tuple[int, str]]


def culprits_of(
    queues: Sequence[ExplainedQueue],
    stages: Sequence[ExplainedStage],
    waits: Sequence[ExplainedWait] = (),
    *,
    could_fill: bool = False,
) -> tuple[Culprit, ...]:
    """Return the root causes of all waits, each once, those of the longest waits first.

    Args:
        queues: the queues.
        stages: the stages.
        waits: waits other than at queues.
        could_fill: whether code that is not known here could fill a queue. Then queues that are
            only empty are left out; `hints_of` has them.
    """
    found = _without_twins(_Search(queues, stages, waits).culprits())
    return tuple(one for one in found if not (could_fill and _may_be_idle(one, queues)))


def hints_of(
    queues: Sequence[ExplainedQueue],
    stages: Sequence[ExplainedStage],
    waits: Sequence[ExplainedWait] = (),
) -> tuple[Culprit, ...]:
    """Return the queues that are empty, and perhaps rightly so, each once."""
    found = _without_twins(_Search(queues, stages, waits).culprits())
    return tuple(
        replace(
            one,
            sentence=f"'{one.queue}' is empty, and no runner fills it: either code that fills it by"
            " hand has nothing for it now, or its producers have ended without closing it",
        )
        for one in found
        if _may_be_idle(one, queues)
    )


def _may_be_idle(culprit: Culprit, queues: Sequence[ExplainedQueue]) -> bool:
    """Return whether the root cause is a queue that is known only to be empty."""
    if culprit.kind != "nobody fills" or culprit.queue is None:
        return False
    of = [queue for queue in queues if queue.name == culprit.queue and queue.callers]
    return not any(
        queue.last_end is not None or (queue.last_enqueuer and queue.last_enqueuer_ended)
        for queue in of
    )


def _without_twins(culprits: Iterable[Culprit]) -> Iterator[Culprit]:
    seen = set()
    for culprit in culprits:
        key = (culprit.kind, culprit.queue, culprit.stage, culprit.worker)
        if culprit.kind == "cycle":
            key = ("cycle", None, None, None)
        if key not in seen:
            seen.add(key)
            yield culprit


class _Search:
    """A walk over all known queues, callers and workers."""

    def __init__(
        self,
        queues: Sequence[ExplainedQueue],
        stages: Sequence[ExplainedStage],
        waits: Sequence[ExplainedWait],
    ) -> None:
        self._queues = queues
        self._waits = sorted(waits, key=lambda one: -one.seconds)
        self._stages = [stage for stage in stages if stage.is_alive]
        self._by_key = {queue.key: queue for queue in queues}
        self._at = {
            caller.key: (queue, caller)
            for queue in queues
            for caller in queue.callers
            if caller.key
        }
        self._workers = {
            worker.key for stage in self._stages for worker in stage.workers if worker.key
        }

    def culprits(self) -> Iterator[Culprit]:
        # A wait that ends at a queue is followed from that queue, below.
        waits = [one for one in self._waits if not one.key or one.key not in self._at]
        for wait in waits:
            if not wait.is_join:
                yield from wait.culprits
        calls = [(queue, caller) for queue in self._queues for caller in queue.callers]
        for queue, caller in sorted(calls, key=self._rank):
            yield from self._of_caller(queue, caller, (), frozenset())
        if not calls:  # only joins, or waits of the user's own: report busy workers
            for stage in self._stages:
                yield from self._of_workers(stage, (), frozenset(), is_asked=False)
        for wait in waits:
            if wait.is_join:
                yield from (one for one in wait.culprits if one.key not in self._at)

    def _rank(self, call: tuple[ExplainedQueue, ExplainedCaller]) -> tuple[bool, bool, float]:
        """Sort the training step (a consumer that is no worker) first, then by time waited."""
        _, caller = call
        return caller.key in self._workers, caller.side == "enqueue", -caller.seconds

    def _of_caller(
        self, queue: ExplainedQueue, caller: ExplainedCaller, path: Path, been: Been
    ) -> Iterator[Culprit]:
        what = "room for" if caller.side == "enqueue" else ""
        step = (
            f"{caller.name} waits for {what} {counted(caller.elements, 'element')} in"
            f" '{queue.name}' ({queue.fill}), for {seconds_told(caller.seconds)}"
        ).replace("  ", " ")
        path = (*path, step)
        if caller.is_granted:
            yield self._blocked_loop(queue, caller, path)
            return
        if (caller.key or id(caller), caller.side) in been:
            yield Culprit(
                "cycle",
                "these wait for each other: " + "; ".join(dict.fromkeys(path)),
                queue=queue.name,
            )
            return
        been = been | {(caller.key or id(caller), caller.side)}
        if caller.side == "dequeue":
            yield from self._of_consumer(queue, caller, path, been)
        else:
            yield from self._of_producer(queue, caller, path, been)

    def _of_consumer(
        self, queue: ExplainedQueue, caller: ExplainedCaller, path: Path, been: Been
    ) -> Iterator[Culprit]:
        """A consumer waits for those that fill the queue."""
        if queue.served_by is not None:
            return  # an idle worker of a batcher
        fillers = [stage for stage in self._stages if stage.into_key == queue.key]
        blocked = [other for other in queue.callers if other.side == "enqueue"]
        if blocked:
            yield Culprit(
                "too few",
                f"'{queue.name}' can never give {counted(caller.elements, 'more element')} to"
                f" {caller.name}: it is as full as it can be ({queue.fill}"
                + (f"; {queue.least} of them have to stay" if queue.least else "")
                + f"), and {blocked[0].name} waits for room in it",
                path,
                queue=queue.name,
            )
            return
        for stage in fillers:
            step = f"'{queue.name}' is filled by {stage.name}"
            yield from self._of_workers(stage, (*path, step), been)
        if fillers:
            return
        other = self._at.get(queue.last_enqueuer_key)
        if other is not None and queue.last_enqueuer_key != caller.key:
            step = f"'{queue.name}' was filled by {queue.last_enqueuer}"
            yield from self._of_caller(*other, (*path, step), been)
            return
        yield self._crossed(queue, caller, path) or self._unfilled(queue, path)

    def _of_producer(
        self, queue: ExplainedQueue, caller: ExplainedCaller, path: Path, been: Been
    ) -> Iterator[Culprit]:
        """A producer waits for those that empty the queue."""
        if queue.served_by is not None:  # callers of a batcher wait for the batches before theirs
            for wait in self._waits:
                yield from (one for one in wait.culprits if one.queue == queue.name)
            return
        takers = [stage for stage in self._stages if stage.source_key == queue.key]
        for stage in takers:
            step = f"'{queue.name}' is emptied by {stage.name}"
            yield from self._of_workers(stage, (*path, step), been)
        if takers:
            return
        other = self._at.get(queue.last_dequeuer_key)
        if other is not None and queue.last_dequeuer_key != caller.key:
            step = f"'{queue.name}' was emptied by {queue.last_dequeuer}"
            yield from self._of_caller(*other, (*path, step), been)
            return
        yield self._crossed(queue, caller, path) or self._unemptied(queue, path)

    def _of_workers(
        self, stage: ExplainedStage, path: Path, been: Been, *, is_asked: bool = True
    ) -> Iterator[Culprit]:
        """A caller that waits for a stage waits for its busy workers.

        These are the workers with the oldest items. If no worker has an item, they are those at the
        source or in other code; if all wait at queues, the walk continues there.
        """
        busy = [worker for worker in stage.workers if worker.item is not None]
        busy = [worker for worker in busy if worker.key not in self._at or not worker.key]
        if busy:
            yield from self._of_items(stage, busy, path)
            return
        active = [one for one in stage.workers if one.state != "ended" and one.key not in self._at]
        at_source = [worker for worker in active if worker.is_at_source]
        if at_source and stage.source_key not in self._by_key:
            for worker in at_source:
                yield self._source(stage, worker, path)
            return
        waiting = [self._at[one.key] for one in stage.workers if one.key in self._at]
        for queue, caller in waiting:
            yield from self._of_caller(queue, caller, path, been)
        if waiting or not is_asked:
            return
        for worker in active:
            yield Culprit(
                "worker",
                _describe_worker(stage, worker),
                path,
                queue=stage.into,
                stage=stage.name,
                worker=worker.name,
            )

    def _of_items(
        self, stage: ExplainedStage, busy: list[ExplainedWorker], path: Path
    ) -> Iterator[Culprit]:
        ages = [worker.item.seconds for worker in busy if worker.item is not None]
        oldest = max(ages)
        for worker, age in sorted(zip(busy, ages, strict=True), key=lambda pair: -pair[1]):
            if age < _AS_OLD * oldest:
                continue
            yield Culprit(
                "item" if worker.state == "running" else "process",
                _describe_item(stage, worker),
                path,
                queue=stage.into,
                stage=stage.name,
                worker=worker.name,
                item=worker.item,
            )

    def _source(self, stage: ExplainedStage, worker: ExplainedWorker, path: Path) -> Culprit:
        seconds = stage.idle_seconds
        since = "" if seconds is None else f" for {seconds_told(seconds)}"
        return Culprit(
            "source",
            f"the source of {stage.name} has yielded nothing{since}: {worker.name} waits for it"
            + _at_place(worker),
            path,
            queue=stage.into,
            stage=stage.name,
            worker=worker.name,
        )

    def _unfilled(self, queue: ExplainedQueue, path: Path) -> Culprit:
        if queue.last_end is not None:
            why = f"its runner has ended: {queue.last_end}, and has not closed it"
        elif queue.last_enqueuer is not None and queue.last_enqueuer_ended:
            why = f"{queue.last_enqueuer}, who did, has ended and has not closed it"
        elif queue.enqueued:
            why = (
                f"no runner of it is running, and after {counted(queue.enqueued, 'element')}"
                " nobody has closed it (is a close() missing?)"
            )
        else:
            why = "nothing was ever put in, no runner of it is running, and nobody has closed it"
        return Culprit(
            "nobody fills", f"nobody fills '{queue.name}': {why}", path, queue=queue.name
        )

    def _unemptied(self, queue: ExplainedQueue, path: Path) -> Culprit:
        worker = queue.last_dequeuer
        if worker is None:
            why = "nobody has ever waited to take from it"
        elif queue.last_dequeuer_ended:
            why = f"{worker}, who took from it last, has ended"
        else:
            place = place_of(queue.last_dequeuer_stack)
            why = f"{worker}, who took from it last, is doing something else"
            why += f", at {place}" if place is not None else ""
        sentence = f"nobody takes from '{queue.name}', which is full ({queue.fill}): {why}"
        return Culprit("nobody takes", sentence, path, queue=queue.name, worker=worker)

    def _crossed(
        self, queue: ExplainedQueue, caller: ExplainedCaller, path: Path
    ) -> Culprit | None:
        """Guess a cycle where the responsible caller is unknown and another one is blocked
        elsewhere."""
        others = [
            (place, one)
            for place, one in self._at.values()
            if one.key != caller.key and place.key != queue.key and one.side == "enqueue"
        ]
        if not others:
            return None
        place, other = min(others, key=lambda pair: -pair[1].seconds)
        act = "fills" if caller.side == "dequeue" else "empties"
        return Culprit(
            "cycle",
            f"{caller.name} and {other.name} wait for each other, if it is {other.name} that {act}"
            f" '{queue.name}': it waits for room in '{place.name}' ({place.fill}), for"
            f" {seconds_told(other.seconds)}",
            path,
            queue=queue.name,
            worker=other.name,
        )

    def _blocked_loop(self, queue: ExplainedQueue, caller: ExplainedCaller, path: Path) -> Culprit:
        return Culprit(
            "loop",
            f"{caller.name} was served by '{queue.name}', but has not run since: its event loop is"
            " blocked, or it was not scheduled yet",
            path,
            queue=queue.name,
            worker=caller.name,
        )


def _describe_item(stage: ExplainedStage, worker: ExplainedWorker) -> str:
    """Return a sentence that says in which item a worker is stuck."""
    item = worker.item
    assert item is not None
    state = "" if worker.state == "running" else f" ({_describe_state(worker)})"
    sentence = (
        f"{stage.name} is stuck in {item} for {seconds_told(item.seconds)}, in"
        f" {worker.name}{state}" + _at_place(worker)
    )
    finished = stage.in_flight - sum(one.item is not None for one in stage.workers)
    if stage.max_in_flight is not None and stage.in_flight >= stage.max_in_flight and finished > 0:
        sentence += f"; {counted(finished, 'other item')} in flight wait for it or for a worker"
    return sentence


def _describe_worker(stage: ExplainedStage, worker: ExplainedWorker) -> str:
    """Return a sentence that says what a busy worker does, and where."""
    return f"{stage.name}: {worker.name} {_describe_state(worker)}{_at_place(worker)}"


def _describe_state(worker: ExplainedWorker) -> str:
    words = {"running": "is busy", "stopped": "is stopped (SIGSTOP)"}
    state = words.get(worker.state, worker.state)
    return f"{state}: {worker.note}" if worker.note else state


def _at_place(worker: ExplainedWorker) -> str:
    place = place_of(worker.stack)
    return "" if place is None else f", at {place}"


def explain() -> Explanation:
    """Explain which callers wait in this process, for what and for how long, and the root cause.

    It covers all queues at which callers wait, all runners and their workers (threads, tasks of any
    event loop, processes), and all coordinators. You can call it from any thread or task at any
    time; it stops nothing. Worker processes that do not answer cost it half a second in all.

    Returns:
        The waits and their root causes, as records and, by ``str``, as text.
    """
    return explain_for(known_coordinators())


def items_in_hand() -> dict[int, str]:
    """Return descriptions of the items in preparation, by the key of their thread or task."""
    with current_frames() as frames:
        workers = [worker for run in known_runs() for worker in run.explained(frames).workers]
    return {
        key: f"{worker.item} for {seconds_told(worker.item.seconds)}"
        for worker in workers
        if worker.item is not None
        for key in (worker.key, worker.registered)
    }


def explain_for(coordinators: Sequence[Coordinating]) -> Explanation:
    """Like `explain`, for the given coordinators."""
    with current_frames() as frames:
        stages = tuple(run.explained(frames) for run in known_runs())
        named = {key for stage in stages for key in (stage.into_key, stage.source_key)}
        queues = tuple(_explained_queues(named, frames))
        waits = tuple(wait for one in known_waits() for wait in one.waits(frames))
        waits += tuple(_explained_joins(frames))
        hand_filled = _is_anybody_left(queues, waits, frames)
    workers = [worker for stage in stages for worker in stage.workers]
    belonging = frozenset(key for worker in workers for key in (worker.key, worker.registered))
    return Explanation(
        culprits_of(queues, stages, waits, could_fill=hand_filled),
        queues,
        stages,
        tuple(one.explained(belonging) for one in coordinators),
        os.getpid(),
        waits,
        hints_of(queues, stages, waits) if hand_filled else (),
    )


def _explained_joins(frames: Mapping[int, FrameType]) -> Iterator[ExplainedWait]:
    """Yield the calls that wait until all elements of a queue are done with."""
    for core in living_queues():
        yield from _explained_joins_of(core, frames)


def _explained_joins_of(core: Any, frames: Mapping[int, FrameType]) -> Iterator[ExplainedWait]:
    joins = core.machine.joins()
    if not joins:
        return
    counts = core.machine.statistics()
    held = counts.granted + counts.claimed
    parts = (
        (counts.size, "inside"),
        (held, "with dequeues that have not ended"),
        (counts.unfinished - counts.size - held, "taken out, without a task_done() yet"),
    )
    where = ", ".join(f"{count} {what}" for count, what in parts if count > 0)
    rest = f"{counted(counts.unfinished, 'element')} of '{core.name}'"
    sentence = f"{rest} {'is' if counts.unfinished == 1 else 'are'} unfinished: {where}"
    what = f"waits in join of '{core.name}'"
    for attempt in joins:
        owner: Owner | None = attempt.owner
        name = "somebody" if owner is None else owner.name
        seconds = max(0.0, perf_counter() - attempt.began) if attempt.began else 0.0
        chain = (f"{name} {what}, for {seconds_told(seconds)}",)
        culprit = Culprit("unfinished", sentence, chain, queue=core.name)
        stack = () if owner is None else stack_of(owner.thing, frames)
        key = 0 if owner is None else owner.key
        yield ExplainedWait(name, what, seconds, (culprit,), stack, True, key=key)


def _is_anybody_left(
    queues: Iterable[ExplainedQueue],
    waits: Iterable[ExplainedWait],
    frames: Mapping[int, FrameType],
) -> bool:
    """Return whether any thread of the program could still fill a queue.

    Those that wait at a queue or in a join cannot, nor can our own. A thread with an event loop
    can, whatever its tasks do: its callbacks may bring requests.
    """
    waiting = {caller.key for queue in queues for caller in queue.callers}
    waiting |= {wait.key for wait in waits}
    return any(
        id(thread) not in waiting
        and not thread.name.startswith("aioqueue-")
        and not _is_in_join(frames.get(thread.ident or 0))
        for thread in threading.enumerate()
    )


def _is_in_join(frame: FrameType | None) -> bool:
    """Return whether a thread waits until another one has ended."""
    while frame is not None and frame.f_code.co_filename == threading.__file__:
        if frame.f_code.co_name in ("join", "_shutdown"):
            return True
        frame = frame.f_back
    return False


def _explained_queues(
    named: Iterable[int], frames: Mapping[int, FrameType]
) -> Iterable[ExplainedQueue]:
    named = set(named)
    batchers = {one.serves: str(one) for one in known_waits() if isinstance(one, Serving)}
    for core in living_queues():
        waiting = core.machine.waiting()
        served_by = batchers.get(id(core))
        if served_by is not None and all(attempt.side is DEQUEUE for attempt in waiting):
            continue  # its own workers, which are idle
        if waiting or id(core) in named:
            yield _explained_queue(core, waiting, frames, served_by)


def _explained_queue(
    core: Any, waiting: Iterable[Attempt], frames: Mapping[int, FrameType], served_by: str | None
) -> ExplainedQueue:
    statistics = core.machine.statistics()
    taker: Owner | None = core.last_dequeuer
    giver: Owner | None = core.last_enqueuer
    return ExplainedQueue(
        core.name,
        core.kind,
        statistics.size,
        statistics.capacity,
        statistics.claimed,
        core.keep,
        core.machine.state.value,
        statistics.enqueued,
        statistics.dequeued,
        tuple(_explained_caller(attempt, frames) for attempt in waiting),
        last_dequeuer=None if taker is None else taker.name,
        last_dequeuer_ended=taker is not None and taker.has_ended(),
        last_dequeuer_stack=() if taker is None else stack_of(taker.thing, frames),
        last_enqueuer=None if giver is None else giver.name,
        last_enqueuer_ended=giver is not None and giver.has_ended(),
        last_end=core.last_end,
        granted=statistics.granted,
        served_by=served_by,
        key=id(core),
        last_dequeuer_key=0 if taker is None else taker.key,
        last_enqueuer_key=0 if giver is None else giver.key,
    )


def _explained_caller(attempt: Attempt, frames: Mapping[int, FrameType]) -> ExplainedCaller:
    owner: Owner | None = attempt.owner
    return ExplainedCaller(
        "somebody" if owner is None else owner.name,
        _SIDES[attempt.side],
        _elements_of(attempt),
        max(0.0, perf_counter() - attempt.began) if attempt.began else 0.0,
        attempt.state is GRANTED,
        () if owner is None else stack_of(owner.thing, frames),
        key=0 if owner is None else owner.key,
    )


def _elements_of(attempt: Attempt) -> int:
    if isinstance(attempt, PutMany):
        return attempt.n - attempt.done
    return max(1, attempt.n - attempt.held.count) if isinstance(attempt, Take) else 1


_SIDES: dict[Side, Literal["enqueue", "dequeue"]] = {ENQUEUE: "enqueue", DEQUEUE: "dequeue"}
