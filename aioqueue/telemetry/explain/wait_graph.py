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

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from aioqueue.errors import counted
from aioqueue.telemetry.explain.explanation import (
    Culprit,
    ExplainedCaller,
    ExplainedQueue,
    ExplainedStage,
    ExplainedWait,
    ExplainedWorker,
    format_seconds,
    shown_steps,
)
from aioqueue.telemetry.explain.stacks import place_of

_NEARLY_OLDEST = 0.5
"""Also name workers whose items are at least this share of the oldest item's age."""

_Path: TypeAlias = "tuple[_Path, str] | None"
"""The steps of the walk so far: those before the last one, and the last one."""

_Findings: TypeAlias = Iterator["Culprit | _Findings"]
"""Root causes, and further parts of the walk in their place."""


def culprits_of(
    queues: Sequence[ExplainedQueue],
    stages: Sequence[ExplainedStage],
    waits: Sequence[ExplainedWait] = (),
) -> tuple[Culprit, ...]:
    """Return the root causes of all waits, each once, those of the longest waits first.

    Queues that are only empty are among them; see `split_hints`.

    Args:
        queues: the queues.
        stages: the stages.
        waits: waits other than at queues.
    """
    return tuple(_distinct(_Walk(queues, stages, waits).culprits()))


def split_hints(
    culprits: Sequence[Culprit], queues: Sequence[ExplainedQueue], *, could_fill: bool
) -> tuple[tuple[Culprit, ...], tuple[Culprit, ...]]:
    """Return the root causes, and separately as hints the queues that are empty, and perhaps
    rightly so: code that is not known here could fill them.

    Args:
        culprits: what `culprits_of` has found.
        queues: the queues.
        could_fill: whether this program has code that could fill them. Another process could fill
            a queue that it shares in any case.
    """
    shared = {queue.name for queue in queues if queue.shared_as}
    abandoned = {
        queue.name
        for queue in queues
        if queue.callers
        and (queue.last_end is not None or (queue.last_enqueuer and queue.last_enqueuer_ended))
    }
    certain, hints = [], []
    for one in culprits:
        is_shared = one.queue in shared
        is_certain = one.queue in abandoned or not (could_fill or is_shared)
        if one.kind != "nobody fills" or is_certain:
            certain.append(one)
            continue
        runner = "no runner that is known here" if is_shared else "no runner"
        sentence = (
            f"'{one.queue}' is empty, and {runner} fills it: either code that fills it by"
            " hand has nothing for it now, or its producers have ended without closing it"
        )
        hints.append(replace(one, sentence=sentence))
    return tuple(certain), tuple(hints)


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
    """A walk over all known queues, callers and workers.

    Its cost is linear in their number: it follows each of them once, however many callers lead
    there. The rest is the same, and each root cause is reported once.
    """

    def __init__(
        self,
        queues: Sequence[ExplainedQueue],
        stages: Sequence[ExplainedStage],
        waits: Sequence[ExplainedWait],
    ) -> None:
        self._queues = queues
        self._waits = sorted(waits, key=lambda one: -one.seconds)
        self._stages = [stage for stage in stages if stage.is_alive]
        self._queue_keys = {queue.key for queue in queues}
        self._waiting: dict[int, tuple[ExplainedQueue, ExplainedCaller]] = {}
        self._first_enqueuers: dict[int, ExplainedCaller] = {}  # by the id of their queue
        for queue in queues:
            for caller in queue.callers:
                if caller.key:
                    self._waiting[caller.key] = (queue, caller)
                if caller.side == "enqueue":
                    self._first_enqueuers.setdefault(id(queue), caller)
        self._longest_enqueues = _longest_enqueues(self._waiting.values())
        self._workers: set[int] = set()
        self._fillers: dict[int, list[ExplainedStage]] = defaultdict(list)  # by queue
        self._takers: dict[int, list[ExplainedStage]] = defaultdict(list)
        for stage in self._stages:
            self._workers.update(worker.key for worker in stage.workers if worker.key)
            self._fillers[stage.into_key].append(stage)
            self._takers[stage.source_key].append(stage)
        self._by_name: dict[str | None, list[Culprit]] = defaultdict(list)  # of the waits, by queue
        for wait in self._waits:
            for culprit in wait.culprits:
                self._by_name[culprit.queue].append(culprit)
        # Where the walk has been.
        self._entered: set[Hashable] = set()
        self._left: set[Hashable] = set()
        self._path: set[tuple[int, str]] = set()  # the callers on it
        self._has_cycle = False

    def culprits(self) -> Iterator[Culprit]:
        # Without recursion: a chain of callers may be longer than the interpreter's stack.
        parts: list[_Findings] = [self._starts()]
        while parts:
            found = next(parts[-1], None)
            if found is None:
                parts.pop()
            elif isinstance(found, Culprit):
                yield found
            else:
                parts.append(found)

    def _starts(self) -> _Findings:
        # A wait that ends at a queue is followed from that queue, below.
        waits = [one for one in self._waits if not one.key or one.key not in self._waiting]
        for wait in waits:
            if not wait.is_join:
                yield from wait.culprits
        calls = [(queue, caller) for queue in self._queues for caller in queue.callers]
        for queue, caller in sorted(calls, key=self._rank):
            yield self._of_caller(queue, caller, None)
        # Nobody waits at a queue: callers wait in joins, or in ways that are not known here, for a
        # lock of the user, say. They may wait for the busy workers.
        if not calls:
            for stage in self._stages:
                yield self._of_workers(stage, None, is_asked=False)
        for wait in waits:
            if wait.is_join:
                yield from (one for one in wait.culprits if one.key not in self._waiting)

    def _rank(self, call: tuple[ExplainedQueue, ExplainedCaller]) -> tuple[bool, bool, float]:
        """Sort the training step (a consumer that is no worker) first, then by time waited."""
        _, caller = call
        return caller.key in self._workers, caller.side == "enqueue", -caller.seconds

    def _unless_known(self, place: Hashable, findings: _Findings) -> _Findings:
        """Follow what a place leads to, unless the walk has been there."""
        # Coming back to a place that the walk is still in leads to a caller on the path, and so to
        # a cycle. It has to be followed until the first cycle is found; there is one report of all.
        if place in self._left or (place in self._entered and self._has_cycle):
            return
        self._entered.add(place)
        yield from findings
        self._left.add(place)

    def _of_caller(self, queue: ExplainedQueue, caller: ExplainedCaller, path: _Path) -> _Findings:
        if id(caller) in self._left:
            return
        what = "room for" if caller.side == "enqueue" else ""
        step = (
            f"{caller.name} waits for {what} {counted(caller.elements, 'element')} in"
            f" '{queue.name}' ({queue.fill}), for {format_seconds(caller.seconds)}"
        ).replace("  ", " ")
        path = (path, step)
        # It has its elements, or its room. Only its event loop can keep it from running.
        if caller.is_granted:
            yield self._blocked_loop(queue, caller, path)
            return
        # The walk has come back to a caller: all those on the path wait for each other.
        key = (caller.key or id(caller), caller.side)
        if key in self._path:
            if not self._has_cycle:
                self._has_cycle = True
                yield _cycle(queue, path)
            return
        self._path.add(key)
        if caller.side == "dequeue":
            yield self._of_consumer(queue, caller, path)
        else:
            yield self._of_producer(queue, caller, path)
        self._path.discard(key)
        self._left.add(id(caller))

    def _of_consumer(
        self, queue: ExplainedQueue, caller: ExplainedCaller, path: _Path
    ) -> _Findings:
        """A consumer waits for those that fill the queue."""
        if queue.served_by is not None:
            return  # an idle worker of a batcher
        # Both sides wait at the same queue: it is full, and still has too few for the consumer.
        blocked = self._first_enqueuers.get(id(queue))
        if blocked is not None:
            yield Culprit(
                "too few",
                f"'{queue.name}' can never give {counted(caller.elements, 'more element')} to"
                f" {caller.name}: it is as full as it can be ({queue.fill}"
                + (f"; {queue.least} of them have to stay" if queue.least else "")
                + f"), and {blocked.name} waits for room in it",
                _steps(path),
                queue=queue.name,
            )
            return
        fillers = self._fillers.get(queue.key)
        if fillers:
            step = f"'{queue.name}' is filled by"
            stages = (self._of_workers(one, (path, f"{step} {one.name}")) for one in fillers)
            yield from self._unless_known(("fillers", id(queue)), stages)
            return
        other = self._waiting.get(queue.last_enqueuer_key)
        if other is not None and queue.last_enqueuer_key != caller.key:
            step = f"'{queue.name}' was filled by {queue.last_enqueuer}"
            yield self._of_caller(*other, (path, step))
            return
        yield self._suspected_cycle(queue, caller, path) or self._unfilled(queue, path)

    def _of_producer(
        self, queue: ExplainedQueue, caller: ExplainedCaller, path: _Path
    ) -> _Findings:
        """A producer waits for those that empty the queue."""
        if queue.served_by is not None:  # callers of a batcher wait for the batches before theirs
            found = self._by_name.get(queue.name, ())
            yield from self._unless_known(("served", id(queue)), iter(found))
            return
        takers = self._takers.get(queue.key)
        if takers:
            step = f"'{queue.name}' is emptied by"
            stages = (self._of_workers(one, (path, f"{step} {one.name}")) for one in takers)
            yield from self._unless_known(("takers", id(queue)), stages)
            return
        other = self._waiting.get(queue.last_dequeuer_key)
        if other is not None and queue.last_dequeuer_key != caller.key:
            step = f"'{queue.name}' was emptied by {queue.last_dequeuer}"
            yield self._of_caller(*other, (path, step))
            return
        yield self._suspected_cycle(queue, caller, path) or self._unread(queue, path)

    def _of_workers(
        self, stage: ExplainedStage, path: _Path, *, is_asked: bool = True
    ) -> _Findings:
        findings = self._of_busy_workers(stage, path, is_asked)
        return self._unless_known(("workers", id(stage)), findings)

    def _of_busy_workers(self, stage: ExplainedStage, path: _Path, is_asked: bool) -> _Findings:
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
        if at_source and stage.source_key not in self._queue_keys:
            for worker in at_source:
                yield self._source(stage, worker, path)
            return
        waiting = [self._waiting[one.key] for one in stage.workers if one.key in self._waiting]
        for queue, caller in waiting:
            yield self._of_caller(queue, caller, path)
        if waiting or not is_asked:
            return
        for worker in active:
            yield Culprit(
                "worker",
                _describe_worker(stage, worker),
                _steps(path),
                queue=stage.into,
                stage=stage.name,
                worker=worker.name,
            )

    def _of_items(
        self, stage: ExplainedStage, busy: list[ExplainedWorker], path: _Path
    ) -> Iterator[Culprit]:
        ages = [worker.item.seconds for worker in busy if worker.item is not None]
        oldest = max(ages)
        rest = _rest_in_flight(stage)
        for worker, age in sorted(zip(busy, ages, strict=True), key=lambda pair: -pair[1]):
            if age < _NEARLY_OLDEST * oldest:
                continue
            yield Culprit(
                "item" if worker.state == "running" else "process",
                _describe_item(stage, worker) + rest,
                _steps(path),
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
            _steps(path),
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
            "nobody fills", f"nobody fills '{queue.name}': {why}", _steps(path), queue=queue.name
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
        return Culprit("nobody takes", sentence, _steps(path), queue=queue.name, worker=worker)

    def _suspected_cycle(
        self, queue: ExplainedQueue, caller: ExplainedCaller, path: _Path
    ) -> Culprit | None:
        """Guess a cycle where the responsible caller is unknown and another one is blocked
        elsewhere."""
        longest = next(
            (
                (place, one)
                for place, one in self._longest_enqueues
                if one.key != caller.key and place.key != queue.key
            ),
            None,
        )
        if longest is None:
            return None
        place, other = longest
        act = "fills" if caller.side == "dequeue" else "empties"
        return Culprit(
            "cycle",
            f"{caller.name} and {other.name} wait for each other, if it is {other.name} that {act}"
            f" '{queue.name}': it waits for room in '{place.name}' ({place.fill}), for"
            f" {format_seconds(other.seconds)}",
            _steps(path),
            queue=queue.name,
            worker=other.name,
        )

    def _blocked_loop(self, queue: ExplainedQueue, caller: ExplainedCaller, path: _Path) -> Culprit:
        return Culprit(
            "loop",
            f"{caller.name} was served by '{queue.name}', but has not run since: its event loop is"
            " blocked, or it was not scheduled yet",
            _steps(path),
            queue=queue.name,
            worker=caller.name,
        )


def _longest_enqueues(
    calls: Iterable[tuple[ExplainedQueue, ExplainedCaller]],
) -> list[tuple[ExplainedQueue, ExplainedCaller]]:
    """Return the two longest waits for room at each queue, the longest of all first.

    That is enough to find the longest one at another queue than a caller's, and of another caller,
    within four steps.
    """
    found = []
    counts: dict[int, int] = defaultdict(int)
    for queue, caller in sorted(calls, key=lambda call: -call[1].seconds):
        if caller.side == "enqueue" and counts[queue.key] < 2:
            counts[queue.key] += 1
            found.append((queue, caller))
    return found


def _steps(path: _Path) -> tuple[str, ...]:
    found = []
    while path is not None:
        path, step = path
        found.append(step)
    return tuple(reversed(found))


def _cycle(queue: ExplainedQueue, path: _Path) -> Culprit:
    steps = tuple(dict.fromkeys(_steps(path)))
    shown = tuple(shown_steps(steps))
    return Culprit(
        "cycle",
        "these wait for each other: " + "; ".join(shown),
        () if shown == steps else steps,
        queue=queue.name,
    )


def _describe_item(stage: ExplainedStage, worker: ExplainedWorker) -> str:
    """Return a sentence that says in which item a worker is stuck."""
    item = worker.item
    assert item is not None
    state = "" if worker.state == "running" else f" ({_describe_state(worker)})"
    return (
        f"{stage.name} is stuck in {item} for {format_seconds(item.seconds)}, in"
        f" {worker.name}{state}" + _at_place(worker)
    )


def _rest_in_flight(stage: ExplainedStage) -> str:
    """Return what to say of the items that no worker has, if no more may be taken."""
    finished = stage.in_flight - sum(one.item is not None for one in stage.workers)
    if stage.max_in_flight is None or stage.in_flight < stage.max_in_flight or finished <= 0:
        return ""
    return f"; {counted(finished, 'other item')} in flight wait for it or for a worker"


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
