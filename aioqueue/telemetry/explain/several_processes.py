"""Joins the facts of several processes to one graph, in which waits lead from one to the other.

Each process explains itself, and names its threads, tasks and queues by numbers of its own. Here
they get numbers that no two processes share. A queue that several processes use is seen by each of
them: it becomes one queue, with the callers of all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from aioqueue.telemetry.explain.explanation import ExplainedQueue, ExplainedStage, Explanation


def joined(
    queues: Sequence[ExplainedQueue],
    stages: Sequence[ExplainedStage],
    elsewhere: Iterable[Explanation],
) -> tuple[tuple[ExplainedQueue, ...], tuple[ExplainedStage, ...]]:
    """Return the queues and stages of all processes.

    Args:
        queues: those of this process.
        stages: those of this process.
        elsewhere: the other processes.
    """
    views: dict[str, list[tuple[int, ExplainedQueue]]] = defaultdict(list)
    found_queues: list[ExplainedQueue] = []
    found_stages: list[ExplainedStage] = []
    here = 0
    parts = [(here, queues, stages), *((one.pid, one.queues, one.stages) for one in elsewhere)]
    for pid, some_queues, some_stages in parts:
        keys = {0: 0}  # of this process's queues: their keys in the whole
        for queue in some_queues:
            keys[queue.key] = _shared_key(queue) if queue.shared_as else _key(pid, queue.key)
            view = _queue_of(pid, queue, keys[queue.key])
            if queue.shared_as:
                views[queue.shared_as].append((pid, view))
            else:
                found_queues.append(view)
        found_stages += [_stage_of(pid, stage, keys) for stage in some_stages]
    found_queues += map(_one_queue, views.values())
    return tuple(found_queues), tuple(found_stages)


def _key(pid: int, key: int) -> int:
    return hash((pid, key)) if pid and key else key


def _shared_key(queue: ExplainedQueue) -> int:
    return hash(queue.shared_as)


def _queue_of(pid: int, queue: ExplainedQueue, key: int) -> ExplainedQueue:
    """Return a queue as one of a process, with callers that say so."""
    if not pid:
        return replace(queue, key=key)
    place = f" (process {pid})"
    callers = tuple(
        replace(one, name=f"{one.name}{place}", key=_key(pid, one.key)) for one in queue.callers
    )
    return replace(
        queue,
        key=key,
        callers=callers,
        last_dequeuer=queue.last_dequeuer and f"{queue.last_dequeuer}{place}",
        last_enqueuer=queue.last_enqueuer and f"{queue.last_enqueuer}{place}",
        last_dequeuer_key=_key(pid, queue.last_dequeuer_key),
        last_enqueuer_key=_key(pid, queue.last_enqueuer_key),
    )


def _stage_of(pid: int, stage: ExplainedStage, queue_keys: dict[int, int]) -> ExplainedStage:
    into_key = queue_keys.get(stage.into_key, _key(pid, stage.into_key))
    source_key = queue_keys.get(stage.source_key, _key(pid, stage.source_key))
    if not pid:
        return replace(stage, into_key=into_key, source_key=source_key)
    workers = tuple(
        replace(one, key=_key(pid, one.key), registered=_key(pid, one.registered))
        for one in stage.workers
    )
    return replace(
        stage,
        name=f"{stage.name} in process {pid}",
        workers=workers,
        into_key=into_key,
        source_key=source_key,
    )


def _one_queue(views: list[tuple[int, ExplainedQueue]]) -> ExplainedQueue:
    """Return a queue that several processes see, as its owner sees it, with the callers of all."""
    # The owner knows of the others only that they wait: by the name of their process.
    _, owner = next((view for view in views if view[1].is_owned), views[0])
    own_names = {f"process {pid}" for pid, _ in views}
    callers = [one for one in owner.callers if one.name not in own_names]
    callers += [one for _, view in views if view is not owner for one in view.callers]
    ends = (view.last_end for _, view in views if view.last_end is not None)
    return replace(owner, callers=tuple(callers), last_end=next(ends, None))
