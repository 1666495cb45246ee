"""Finds the root cause of a hang by walking the wait graph.

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
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from aioqueue.errors import counted
from aioqueue.telemetry.explain.explanation import (
    Culprit,
    ExplainedCaller,
    ExplainedQueue,
    ExplainedStage,
    ExplainedWait,
    ExplainedWorker,
    format_seconds,
)
from aioqueue.telemetry.explain.stacks import place_of

_NEARLY_OLDEST = 0.5
"""Also name workers whose items are at least this share of the oldest item's age."""

_Path = tuple[str, ...]
_Visited = frozenset[tuple[int, str]]


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
    found = _distinct(_Walk(queues, stages, waits).culprits())
    return tuple(one for one in found if not (could_fill and _may_be_idle(one, queues)))


def hints_of(
    queues: Sequence[ExplainedQueue],
    stages: Sequence[ExplainedStage],
    waits: Sequence[ExplainedWait] = (),
) -> tuple[Culprit, ...]:
    """Return the queues that are empty, and perhaps rightly so, each once."""
    found = _distinct(_Walk(queues, stages, waits).culprits())
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


def _distinct(culprits: Iterable[Culprit]) -> Iterator[Culprit]:
    seen = set()
    for culprit in culprits:
        key = (culprit.kind, culprit.queue, culprit.stage, culprit.worker)
        if culprit.kind == "cycle":
            key = ("cycle", None, None, None)
        if key not in seen:
            seen.add(key)
            yield culprit


class _Walk:
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
        self._waiting = {
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
        waits = [one for one in self._waits if not one.key or one.key not in self._waiting]
        for wait in waits:
            if not wait.is_join:
                yield from wait.culprits
        calls = [(queue, caller) for queue in self._queues for caller in queue.callers]
        for queue, caller in sorted(calls, key=self._rank):
            yield from self._of_caller(queue, caller, (), frozenset())
        # Nobody waits at a queue: callers wait in joins, or in ways that are not known here, for a
        # lock of the user, say. They may wait for the busy workers.
        if not calls:
            for stage in self._stages:
                yield from self._of_workers(stage, (), frozenset(), is_asked=False)
        for wait in waits:
            if wait.is_join:
                yield from (one for one in wait.culprits if one.key not in self._waiting)

    def _rank(self, call: tuple[ExplainedQueue, ExplainedCaller]) -> tuple[bool, bool, float]:
        """Sort the training step (a consumer that is no worker) first, then by time waited."""
        _, caller = call
        return caller.key in self._workers, caller.side == "enqueue", -caller.seconds

    def _of_caller(
        self, queue: ExplainedQueue, caller: ExplainedCaller, path: _Path, visited: _Visited
    ) -> Iterator[Culprit]:
        what = "room for" if caller.side == "enqueue" else ""
        step = (
            f"{caller.name} waits for {what} {counted(caller.elements, 'element')} in"
            f" '{queue.name}' ({queue.fill}), for {format_seconds(caller.seconds)}"
        ).replace("  ", " ")
        path = (*path, step)
        # It has its elements, or its room. Only its event loop can keep it from running.
        if caller.is_granted:
            yield self._blocked_loop(queue, caller, path)
            return
        # The walk has come back to a caller: all those on the path wait for each other.
        if (caller.key or id(caller), caller.side) in visited:
            yield Culprit(
                "cycle",
                "these wait for each other: " + "; ".join(dict.fromkeys(path)),
                queue=queue.name,
            )
            return
        visited = visited | {(caller.key or id(caller), caller.side)}
        if caller.side == "dequeue":
            yield from self._of_consumer(queue, caller, path, visited)
        else:
            yield from self._of_producer(queue, caller, path, visited)

    def _of_consumer(
        self, queue: ExplainedQueue, caller: ExplainedCaller, path: _Path, visited: _Visited
    ) -> Iterator[Culprit]:
        """A consumer waits for those that fill the queue."""
        if queue.served_by is not None:
            return  # an idle worker of a batcher
        filling = [stage for stage in self._stages if stage.into_key == queue.key]
        # Both sides wait at the same queue: it is full, and still has too few for the consumer.
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
        for stage in filling:
            step = f"'{queue.name}' is filled by {stage.name}"
            yield from self._of_workers(stage, (*path, step), visited)
        if filling:
            return
        other = self._waiting.get(queue.last_enqueuer_key)
        if other is not None and queue.last_enqueuer_key != caller.key:
            step = f"'{queue.name}' was filled by {queue.last_enqueuer}"
            yield from self._of_caller(*other, (*path, step), visited)
            return
        yield self._suspected_cycle(queue, caller, path) or self._unfilled(queue, path)

    def _of_producer(
        self, queue: ExplainedQueue, caller: ExplainedCaller, path: _Path, visited: _Visited
    ) -> Iterator[Culprit]:
        """A producer waits for those that empty the queue."""
        if queue.served_by is not None:  # callers of a batcher wait for the batches before theirs
            for wait in self._waits:
                yield from (one for one in wait.culprits if one.queue == queue.name)
            return
        takers = [stage for stage in self._stages if stage.source_key == queue.key]
        for stage in takers:
            step = f"'{queue.name}' is emptied by {stage.name}"
            yield from self._of_workers(stage, (*path, step), visited)
        if takers:
            return
        other = self._waiting.get(queue.last_dequeuer_key)
        if other is not None and queue.last_dequeuer_key != caller.key:
            step = f"'{queue.name}' was emptied by {queue.last_dequeuer}"
            yield from self._of_caller(*other, (*path, step), visited)
            return
        yield self._suspected_cycle(queue, caller, path) or self._unread(queue, path)

    def _of_workers(
        self, stage: ExplainedStage, path: _Path, visited: _Visited, *, is_asked: bool = True
    ) -> Iterator[Culprit]:
        """A caller that waits for a stage waits for its busy workers.

        These are the workers with the oldest items. If no worker has an item, they are those at the
        source or in other code; if all wait at queues, the walk continues there.
        """
        busy = [worker for worker in stage.workers if worker.item is not None]
        # A worker may wait at a queue inside the function: then it is no end, the walk continues.
        busy = [worker for worker in busy if worker.key not in self._waiting or not worker.key]
        if busy:
            yield from self._of_items(stage, busy, path)
            return
        alive = [worker for worker in stage.workers if worker.state != "ended"]
        active = [worker for worker in alive if worker.key not in self._waiting]
        # A source that reads a queue of ours waits for that queue's producers instead.
        at_source = [worker for worker in active if worker.is_at_source]
        if at_source and stage.source_key not in self._by_key:
            for worker in at_source:
                yield self._source(stage, worker, path)
            return
        waiting = [self._waiting[one.key] for one in stage.workers if one.key in self._waiting]
        for queue, caller in waiting:
            yield from self._of_caller(queue, caller, path, visited)
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
        self, stage: ExplainedStage, busy: list[ExplainedWorker], path: _Path
    ) -> Iterator[Culprit]:
        ages = [worker.item.seconds for worker in busy if worker.item is not None]
        oldest = max(ages)
        for worker, age in sorted(zip(busy, ages, strict=True), key=lambda pair: -pair[1]):
            if age < _NEARLY_OLDEST * oldest:
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

    def _source(self, stage: ExplainedStage, worker: ExplainedWorker, path: _Path) -> Culprit:
        seconds = stage.idle_seconds
        since = "" if seconds is None else f" for {format_seconds(seconds)}"
        return Culprit(
            "source",
            f"the source of {stage.name} has yielded nothing{since}: {worker.name} waits for it"
            + _at_place(worker),
            path,
            queue=stage.into,
            stage=stage.name,
            worker=worker.name,
        )

    def _unfilled(self, queue: ExplainedQueue, path: _Path) -> Culprit:
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

    def _unread(self, queue: ExplainedQueue, path: _Path) -> Culprit:
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

    def _suspected_cycle(
        self, queue: ExplainedQueue, caller: ExplainedCaller, path: _Path
    ) -> Culprit | None:
        """Guess a cycle where the responsible caller is unknown and another one is blocked
        elsewhere."""
        others = [
            (place, one)
            for place, one in self._waiting.values()
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
            f" {format_seconds(other.seconds)}",
            path,
            queue=queue.name,
            worker=other.name,
        )

    def _blocked_loop(self, queue: ExplainedQueue, caller: ExplainedCaller, path: _Path) -> Culprit:
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
        f"{stage.name} is stuck in {item} for {format_seconds(item.seconds)}, in"
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
