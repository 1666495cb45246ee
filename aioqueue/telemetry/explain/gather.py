"""Gathers the facts that an explanation needs: who waits in this process, and who works on what.

The facts are read from outside, one after another, while everything runs. So an explanation is
consistent only where nothing moves, which is where you need one. Locks are held just long enough to
copy what they guard. Any thread may call `explain`; signal handlers go through
`aioqueue.telemetry.explain.explain_socket`.
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
from aioqueue.telemetry.explain.explanation import (
    Culprit,
    ExplainedCaller,
    ExplainedQueue,
    ExplainedWait,
    Explanation,
    format_seconds,
)
from aioqueue.telemetry.explain.frames import current_frames
from aioqueue.telemetry.explain.registry import (
    Coordinating,
    Serving,
    known_coordinators,
    known_runs,
    known_waits,
    known_workers,
)
from aioqueue.telemetry.explain.several_processes import joined
from aioqueue.telemetry.explain.stacks import stack_of
from aioqueue.telemetry.explain.wait_graph import culprits_of, split_hints
from aioqueue.worlds.waker import Owner


def explain() -> Explanation:
    """Explain which callers wait in this process, for what and for how long, and the root cause.

    It covers all queues at which callers wait, all runners and their workers (threads, tasks of any
    event loop, processes), and all coordinators. You can call it from any thread or task at any
    time; it stops nothing. Worker processes that do not answer cost it half a second in all.

    Returns:
        The waits and their root causes, as records and, by ``str``, as text.
    """
    return explain_for(known_coordinators())


def items_in_progress() -> dict[int, str]:
    """Return descriptions of the items in preparation, by the key of their thread or task."""
    with current_frames() as frames:
        workers = [worker for run in known_runs() for worker in run.explained(frames).workers]
    return {
        key: f"{worker.item} for {format_seconds(worker.item.seconds)}"
        for worker in workers
        if worker.item is not None
        for key in (worker.key, worker.registered)
    }


def explain_for(coordinators: Sequence[Coordinating], *, everywhere: bool = True) -> Explanation:
    """Like `explain`, for the given coordinators.

    Args:
        coordinators: the coordinators.
        everywhere: whether to ask the other processes that share them, too.
    """
    # First of all: meanwhile this process moves on, and its facts should be of one moment.
    elsewhere = {
        one.pid: one
        for coordinator in coordinators
        if everywhere
        for one in coordinator.elsewhere()
    }
    with current_frames() as frames:
        stages = tuple(run.explained(frames) for run in known_runs())
        filled = {key for stage in stages for key in (stage.into_key, stage.source_key)}
        queues = tuple(_queues(filled, frames))
        waits = tuple(wait for one in known_waits() for wait in one.waits(frames))
        waits += tuple(_join_waits(frames))
        could_fill = _could_anybody_fill(queues, waits, frames)
        workers = [worker for stage in stages for worker in stage.workers]
        belonging = frozenset(key for worker in workers for key in (worker.key, worker.registered))
        explained = tuple(one.explained(belonging, frames) for one in coordinators)
    known = known_workers()
    waits = tuple(_without_known(wait, known) for wait in waits)
    all_queues, all_stages = joined(queues, stages, elsewhere.values())
    culprits = culprits_of(all_queues, all_stages, waits)
    culprits, hints = split_hints(culprits, all_queues, could_fill=could_fill)
    return Explanation(
        culprits,
        queues,
        stages,
        explained,
        os.getpid(),
        waits,
        hints,
        tuple(elsewhere.values()),
    )


def _without_known(wait: ExplainedWait, known: frozenset[int]) -> ExplainedWait:
    """Leave out of a join's root causes the workers whose waits, or work, have root causes of their
    own."""
    if known.isdisjoint(one.key for one in wait.culprits):
        return wait
    return replace(wait, culprits=tuple(one for one in wait.culprits if one.key not in known))


def _join_waits(frames: Mapping[int, FrameType]) -> Iterator[ExplainedWait]:
    """Yield the calls that wait until all elements of a queue are done with."""
    for core in living_queues():
        yield from _join_waits_of(core, frames)


def _join_waits_of(core: Any, frames: Mapping[int, FrameType]) -> Iterator[ExplainedWait]:
    joins = core.machine.joins()
    if not joins:
        return
    counts = core.recent_statistics()
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
    now = perf_counter()  # one moment for all: a pause in between must not order them anew
    for attempt in joins:
        owner: Owner | None = attempt.owner
        name = "somebody" if owner is None else owner.name
        seconds = _seconds_since(attempt, now)
        chain = (f"{name} {what}, for {format_seconds(seconds)}",)
        culprit = Culprit("unfinished", sentence, chain, queue=core.name)
        stack = () if owner is None else stack_of(owner.thing, frames)
        key = 0 if owner is None else owner.key
        yield ExplainedWait(name, what, seconds, (culprit,), stack, True, key=key)


def _could_anybody_fill(
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


def _queues(known: Iterable[int], frames: Mapping[int, FrameType]) -> Iterable[ExplainedQueue]:
    known = set(known)
    batchers = {one.serves: str(one) for one in known_waits() if isinstance(one, Serving)}
    for core in living_queues():
        waiting = core.machine.waiting()
        served_by = batchers.get(id(core))
        # A batcher's workers wait for requests in its queue. Only callers that wait for room count.
        if served_by is not None and all(attempt.side is DEQUEUE for attempt in waiting):
            continue
        if waiting or id(core) in known:
            yield _queue(core, waiting, frames, served_by)


def _queue(
    core: Any, waiting: Iterable[Attempt], frames: Mapping[int, FrameType], served_by: str | None
) -> ExplainedQueue:
    statistics = core.recent_statistics()
    dequeuer: Owner | None = core.last_dequeuer
    enqueuer: Owner | None = core.last_enqueuer
    now = perf_counter()  # one moment for all: see `_join_waits_of`
    return ExplainedQueue(
        core.name,
        core.kind,
        statistics.size,
        statistics.capacity,
        statistics.claimed,
        core.keep,
        core.recent_state().value,
        statistics.enqueued,
        statistics.dequeued,
        tuple(_caller(attempt, frames, now) for attempt in waiting),
        last_dequeuer=None if dequeuer is None else dequeuer.name,
        last_dequeuer_ended=dequeuer is not None and dequeuer.has_ended(),
        last_dequeuer_stack=() if dequeuer is None else stack_of(dequeuer.thing, frames),
        last_enqueuer=None if enqueuer is None else enqueuer.name,
        last_enqueuer_ended=enqueuer is not None and enqueuer.has_ended(),
        last_end=core.last_end,
        granted=statistics.granted,
        served_by=served_by,
        key=id(core),
        last_dequeuer_key=0 if dequeuer is None else dequeuer.key,
        last_enqueuer_key=0 if enqueuer is None else enqueuer.key,
        shared_as="" if core.shared is None else core.shared.identity,
        is_owned=core.shared is not core,
    )


def _seconds_since(attempt: Attempt, now: float) -> float:
    return max(0.0, now - attempt.began) if attempt.began else 0.0


def _caller(attempt: Attempt, frames: Mapping[int, FrameType], now: float) -> ExplainedCaller:
    owner: Owner | None = attempt.owner
    return ExplainedCaller(
        "somebody" if owner is None else owner.name,
        _SIDES[attempt.side],
        _missing_elements(attempt),
        _seconds_since(attempt, now),
        attempt.state is GRANTED,
        () if owner is None else stack_of(owner.thing, frames),
        key=0 if owner is None else owner.key,
    )


def _missing_elements(attempt: Attempt) -> int:
    if isinstance(attempt, PutMany):
        return attempt.n - attempt.done
    return max(1, attempt.n - attempt.held.count) if isinstance(attempt, Take) else 1


_SIDES: dict[Side, Literal["enqueue", "dequeue"]] = {ENQUEUE: "enqueue", DEQUEUE: "dequeue"}
