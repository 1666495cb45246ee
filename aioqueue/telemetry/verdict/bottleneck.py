"""Finds the bottleneck of a run from two snapshots, and says what would help.

In a pipeline with buffers between its parts, the slowest part sets the pace: it works nearly all
the time while the others wait. So the verdict names the part that was busiest in the interval:

* the training step, which works whenever it does not wait for data;
* a stage, which works while its workers are in its function;
* a source that is not one of our queues, which yields one item at a time;
* the training loop itself, where its own thread makes the batches.

A run that trains on rollouts has a verdict of its own: see `aioqueue.telemetry.verdict.generation`.

Three cases need more care. If the step waits for more than `_AHEAD` of the time, the bottleneck is
in the data, however busy the step is. If workers compete for processors or for the GIL, all of them
look busy; the one that uses most processor time is the cause. If no part is busy, something holds
the run up from outside: one slow item in an ordered stage, a limit on what is in flight, or
something that is not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Final, Literal, NamedTuple

from aioqueue.telemetry.metrics.intervals import FunctionInterval, Interval, StageInterval
from aioqueue.telemetry.metrics.snapshots import Snapshot
from aioqueue.telemetry.verdict.generation import limit_of, limit_sentence

Cause = Literal["step", "stage", "source", "gate", "unknown", "nothing"]
"""The bottleneck: the training step (data is ahead), a stage, the source of the first stage, the
publication of weights to a generation, or something that is not measured; ``"nothing"`` while too
little has happened to judge."""

Advice = Literal[
    "none",
    "fewer workers",
    "more workers",
    "more cores",
    "processes",
    "higher max_in_flight",
    "faster source",
    "slow item",
    "prefetch",
    "faster function",
    "higher limit_bytes",
    "less locking",
    "wider max_per_key",
    "higher rate",
    "threads",
    "larger items",
]
"""What would help."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The bottleneck of a run over an interval, as one sentence (`str`) and as fields.

    Attributes:
        sentence: the verdict in plain words.
        cause: which kind of part is the bottleneck.
        stage: name of the stage, or of the function between stages (a ``collate``, say), that is
            the bottleneck; `None` if it is neither.
        advice: what would help.
        workers: how many workers to add (or to remove); 0 if that does not help.
        starved: share of the interval that the training step waited for data, from 0 to 1.
        rate: batches handed over per second; elements, if no loop is watched.
        seconds: length of the interval.
    """

    sentence: str
    cause: Cause
    stage: str | None
    advice: Advice
    workers: int
    starved: float
    rate: float
    seconds: float

    def __str__(self) -> str:
        return self.sentence


_AHEAD: Final = 0.05
"""Data counts as ahead while the step waits for it for at most this share of the time."""

_AHEAD_IF_SATURATED: Final = 0.02
"""The same, if some part of the pipeline works all the time."""

_SATURATED: Final = 0.97
"""A part that works for at least this share of the time works all the time."""

_PAIR_WEIGHT: Final = 0.98
"""Weight of a stage and its source that are busy together, against a part that is busy alone."""

_IDLE: Final = 0.6
"""A part that works for less than this share of the time is not the bottleneck."""

_COMPUTES: Final = 0.6
"""A call that spends more than this share of its time on a processor computes; otherwise it waits.
"""

_GIL_CONTENDED: Final = 0.5
"""Threads compete for the GIL if more than this share of the samples finds it held."""

_ONE_CORE: Final = 1.6
"""Most cores that a process uses if its threads compete for the GIL."""

_HOLDER_CORES: Final = 0.3
"""Fewest cores that a stage uses if it is the one that holds the GIL. It is well below one because
a machine with other work gives the process less than a core."""

_MOST_ON_PROCESSOR: Final = 0.85
"""Threads that compete for the GIL spend at most this share of a call on a processor."""

_WAITERS_AT_SOURCE: Final = 4.0
"""Workers that wait at a source, for each share of the time that the source works."""

_MOST_GROWTH: Final = 4
"""Advise at most this many times the current workers at once."""


_MAIN_SHARE: Final = 0.5
"""A function causes the time of a loop or a source if it takes at least this share of it."""

_PREFETCH_PAYS: Final = 0.2
"""The step must take at least this share of the time for ``prefetch`` to pay off."""

_TOO_SHORT_TO_WAIT: Final = 50e-6
"""Seconds of a call that is too short for any wait that another thread could use."""

_SHORT_CALL: Final = 250e-6
"""Seconds of a call that costs no more than a few hand-overs of its item from thread to thread.
If the GIL is held meanwhile, threads take turns, and each turn costs more than the call."""

_GIL_HELD: Final = 0.35
"""Share of the samples that find the GIL held if such calls compute."""

_TRANSFER_SECONDS: Final = 20e-6
"""Seconds that it takes at least to hand over an item and its example."""

_HIDDEN_WAIT: Final = 1.3
"""Threads take turns if they seem to compute on this many times the cores that the process used: a
call that keeps the GIL to its end is on a processor all the time, and hides how long it waited."""

_LOCKED: Final = 0.3
"""Workers mostly wait for a lock if more than this share of the samples finds one waiting."""

_HELD_UP_BY_OTHERS: Final = 0.3
"""A source or a full queue holds up the tasks of a stage from this share of the time on."""

_MOST_TRANSFERS: Final = 0.3
"""Hand-overs of items are the bottleneck from this share of the time on."""


class _Suspect(NamedTuple):
    """A part that may be the bottleneck, and the share of the time that it worked."""

    share: float
    cause: Cause
    stage: StageInterval | None = None


_NO_SUSPECT: Final = _Suspect(0.0, "nothing")


def verdict_of(earlier: Snapshot, later: Snapshot) -> Verdict:
    """Return the bottleneck of a run between two of its snapshots."""
    interval = Interval.between(earlier, later)
    generating = _main_generation(interval)
    if generating is not None:
        return _limit_of_generation(interval, generating)
    if not (interval.stages or interval.functions) or not interval.has_moved:
        return _verdict(interval, "nothing", "too little has happened yet for a verdict")
    suspect = max(_suspects(interval), key=lambda one: one.share, default=_NO_SUSPECT)
    if interval.step.waits <= (_AHEAD if suspect.share < _SATURATED else _AHEAD_IF_SATURATED):
        return _slow_step(interval)
    holder = _gil_holder(interval)
    if suspect.stage is not None and _waits_for_lock(suspect.stage):
        return _slow_stage(interval, suspect.stage)
    quick = _short_calls_stage(interval)
    # Processes would not help a stage whose calls are quicker than the hand-over of their items.
    may_lack_gil = suspect.cause == "unknown" or _is_short_of_processor(suspect)
    if holder is not None and holder is not quick and may_lack_gil:
        return _holds_gil(interval, holder)
    if quick is not None and (suspect.share < _IDLE or suspect.stage is quick):
        return _short_calls(interval, quick)
    if suspect.share < _IDLE:
        return _held_up(interval)
    if suspect.cause == "unknown":
        return _own_loop(interval)
    assert suspect.stage is not None
    if suspect.cause == "source":
        functions = [*interval.functions_within(suspect.stage.now.name)]
        most = _main_function(functions, suspect.stage.source)
        if most is not None and most.now.kind != "source":
            return _slow_function(interval, most, f"{suspect.stage.now.name} waits for it")
        return _slow_source(interval, suspect.stage)
    return _slow_stage(interval, suspect.stage)


def _main_generation(interval: Interval) -> StageInterval | None:
    """Return the generation that a trainer waits longest for; ``None`` before its first step.

    It has its verdict also if nothing has moved: a trainer that waits for one rollout, say.
    """
    found: StageInterval | None = None
    most = -1.0
    for stage in interval.stages:
        one = stage.generation
        if one is not None and one.now.steps and one.trainer > most:
            found, most = stage, one.trainer
    return found


def _limit_of_generation(interval: Interval, stage: StageInterval) -> Verdict:
    one = stage.generation
    assert one is not None
    limit = limit_of(one.trainer, one.slots, one.gate)
    what = limit_sentence(
        limit,
        trainer=one.trainer,
        gate=one.gate,
        ready=one.now.ready,
        existing=one.now.existing,
        missing=one.now.missing,
    )
    causes: dict[str, Cause] = {"generation": "stage", "trainer": "step", "gate": "gate"}
    return Verdict(
        sentence=what,
        cause=causes[limit],
        stage=stage.now.name if limit == "generation" else None,
        advice="none",
        workers=0,
        starved=interval.step.waits,
        rate=interval.step.rate,
        seconds=interval.seconds,
    )


def _suspects(interval: Interval) -> list[_Suspect]:
    """Return the parts that may be the bottleneck of a step that waits for data."""
    suspects = []
    if (
        interval.step.preparing > _AHEAD
    ):  # the loop's thread is at work when it does not wait at the queue
        suspects.append(_Suspect(1 - (interval.step.waits - interval.step.preparing), "unknown"))
    ours = {queue.name for queue in interval.later.queues}
    for stage in reversed(interval.stages):  # of those that are as busy, the last one blocks all
        if stage.now.source not in ours or stage.source > _IDLE:
            suspects.append(_stage_or_source(stage, is_fed=stage.now.source in ours))
        else:
            suspects.append(_Suspect(_utilization(stage), "stage", stage))
    return suspects


def _utilization(stage: StageInterval) -> float:
    """Return the share of the time in which a stage could do no more.

    All tasks of an event loop share one thread, so their processor time adds up. Workers whose
    items are all deferred by ``max_per_key`` can do no more either.
    """
    busy = max(stage.busy, stage.cores) if stage.now.where == "task" else stage.busy
    return min(1.0, max(busy, stage.full_of_keys))


def _blocks_its_loop(stage: StageInterval) -> bool:
    """Return whether one of several tasks is in the function at any time, while neither a source
    nor a queue holds up the others: then it does not let them run."""
    at_once = stage.busy * stage.workers
    is_free = max(stage.source, stage.blocked) < _HELD_UP_BY_OTHERS
    return stage.now.where == "task" and stage.workers > 1.5 and is_free and 0.8 < at_once < 1.2


def _waits_for_lock(stage: StageInterval) -> bool:
    """Return whether the workers of a stage mostly wait for a lock, by samples of their stacks."""
    is_seen = stage.now.where in ("thread", "task")
    return is_seen and stage.at_lock > _LOCKED and stage.busy > _IDLE


def _stage_or_source(stage: StageInterval, *, is_fed: bool) -> _Suspect:
    """Return the suspect for a stage that reads its own source directly.

    No buffer lies between the two, so a worker that waits for an item keeps busy together with the
    source. Which of the two is the bottleneck follows from a model: the one that would gain more
    from being twice as fast.
    """
    share = max(_utilization(stage), stage.source)
    if not is_fed:
        together = _utilization(stage) + min(stage.starved, stage.source * _WAITERS_AT_SOURCE)
        share = max(share, _PAIR_WEIGHT * together)
    source, service = stage.source, stage.busy * stage.workers  # seconds per second
    workers = round(stage.workers)
    of_source = _throughput(source / 2, service, workers)
    of_stage = _throughput(source, service / 2, workers)
    cause: Cause = "source" if of_source > of_stage else "stage"
    return _Suspect(min(1.0, share), cause, stage)


def _is_short_of_processor(suspect: _Suspect) -> bool:
    """Return whether the suspect is a stage whose threads get less processor time than they
    need."""
    stage = suspect.stage
    return (
        stage is not None
        and stage.now.where == "thread"
        and (stage.on_processor or 1.0) < _MOST_ON_PROCESSOR
    )


def _throughput(source: float, service: float, workers: int) -> float:
    """Return the throughput of workers that share one source and then work in parallel.

    This is mean value analysis of a closed network (Reiser and Lavenberg, 1980).

    Args:
        source: time for one item at the source.
        service: time for one item afterwards.
        workers: how many there are.
    """
    queue = pace = 0.0
    for count in range(1, max(1, workers) + 1):
        at_source = source * (1 + queue)
        pace = count / max(at_source + service, 1e-12)
        queue = pace * at_source
    return pace


def _gil_holder(interval: Interval) -> StageInterval | None:
    """Return the stage that uses most processor time if threads compete for the GIL, even if the
    bottleneck is the loop."""
    threads = [
        one for one in interval.stages if one.now.where == "thread" and one.on_processor is not None
    ]
    if interval.gil <= _GIL_CONTENDED or interval.cores > _ONE_CORE or not threads:
        return None
    most = max(threads, key=lambda one: one.cores)
    return most if most.cores > _HOLDER_CORES else None


def _slow_stage(interval: Interval, stage: StageInterval) -> Verdict:
    """The bottleneck is a stage; the advice depends on what its function does, and where it
    runs."""
    name, where = stage.now.name, stage.now.where
    count = max(1, round(stage.workers))
    subject = f"{name} ({_count_workers(count, where)})"
    more = _more_workers(interval, count)
    threads = _plural(where)
    more_workers = f"{more} more {threads}" if more > 1 else f"one more {where}"
    on = stage.on_processor
    cores = interval.later.cores
    busiest = interval.cores if where != "process" else stage.cores
    if _waits_for_lock(stage):
        what = (
            f"{subject} mostly waits for a lock, at {stage.now.lock}: hold the lock for less time,"
            " or avoid it; more workers would only wait for it too"
        )
        return _verdict(interval, "stage", what, stage, "less locking")
    if stage.full_of_keys > 0.5 and stage.busy < 0.95:
        return _full_of_keys(interval, stage)
    if stage.full_of_bytes > 0.5 and stage.busy < 0.9:
        return _full_of_bytes(interval, stage)
    if on is not None and on > _COMPUTES and max(stage.cores, busiest) > 0.9 * cores:
        what = f"{subject} computes on all {cores:g} cores: use more cores, or compute less"
        return _verdict(interval, "stage", what, stage, "more cores")
    if where == "task" and (stage.cores > 0.9 or 0.9 < interval.cores < 1.35):
        what = f"{subject} keeps the event loop busy: make it a plain function with where='process'"
        return _verdict(interval, "stage", what, stage, "processes", count)
    if on is not None and on < _COMPUTES and interval.cores > 0.9 * cores:
        what = f"{subject} waits for a processor: use more cores, or compute less"
        return _verdict(interval, "stage", what, stage, "more cores")
    if where == "thread" and interval.cores > 0.5 and stage.cores > _HIDDEN_WAIT * interval.cores:
        return _holds_gil(interval, stage)
    how = ""
    if on is not None:
        how = " and computes" if on > _COMPUTES else " and mostly waits"
    what = f"{subject} is saturated{how}: give it {more_workers}"
    return _verdict(interval, "stage", what, stage, "more workers", more)


def _holds_gil(interval: Interval, stage: StageInterval) -> Verdict:
    """Return the verdict that the threads of a stage hold the GIL and block all others."""
    count = max(1, round(stage.workers))
    subject = f"{stage.now.name} ({_count_workers(count, stage.now.where)})"
    what = f"{subject} is saturated and holds the GIL: use where='process'"
    return _verdict(interval, "stage", what, stage, "processes", count)


def _short_calls_stage(interval: Interval) -> StageInterval | None:
    """Return the stage on threads whose calls are so quick that handing over their items, from
    thread to thread, takes most of the time; ``None`` if there is no such stage.

    Half of the calls are quick. The mean says little: a call that loses the GIL takes milliseconds.
    """

    def is_quick(stage: StageInterval) -> bool:
        usual = stage.service.quantile(0.5)
        if stage.now.where != "thread" or not 0 < usual < _SHORT_CALL:
            return False
        if usual >= _TOO_SHORT_TO_WAIT and interval.gil < _GIL_HELD:
            return False  # they wait, for a cache in memory perhaps: others can run meanwhile
        return stage.rate * (usual + _TRANSFER_SECONDS) > _MOST_TRANSFERS

    quick = [stage for stage in interval.stages if is_quick(stage)]
    return max(quick, key=lambda stage: stage.rate, default=None)


def _short_calls(interval: Interval, stage: StageInterval) -> Verdict:
    """Return the verdict that the hand-over of items between threads is the bottleneck."""
    count = max(1, round(stage.workers))
    subject = f"{stage.now.name} ({_count_workers(count, stage.now.where)})"
    usual = _format_duration(stage.service.quantile(0.5))
    what = (
        f"a call of {subject} takes about {usual}, no more than to hand its item from thread to"
        " thread: more threads do not help; give each call more work, such as a whole batch with"
        " map_batches(...), or do the work in vectorised code after batch(...)"
    )
    return _verdict(interval, "stage", what, stage, "larger items")


def _main_function(functions: Sequence[FunctionInterval], whole: float) -> FunctionInterval | None:
    """Return the function that takes most of a share of the time, if there is one."""
    most = max(functions, key=lambda one: one.busy, default=None)
    return None if most is None or most.busy < _MAIN_SHARE * whole else most


def _own_loop(interval: Interval) -> Verdict:
    """The bottleneck is the loop's own thread, which makes the batches that it waits for.

    A prefetch thread would work in parallel with the training step; the slower of the two would
    then set the pace.
    """
    most = _main_function(interval.functions_within(None), interval.step.preparing)
    if most is not None and most.now.kind == "dataset":
        mean = _format_duration(most.service.mean)
        what = (
            f"the loop's own thread makes its batches of {most.now.name}, at {mean} each: give the"
            " loader workers (num_workers=2)"
        )
        return _verdict(interval, "stage", what, advice="more workers", name=most.now.name)
    is_worth_it = 1 - interval.step.waits > _PREFETCH_PAYS
    if most is None or is_worth_it:
        own = ", and spends most of that time in" if most is not None else ""
        where = f"{own} {_describe(most)}" if most is not None else ""
        what = (
            f"the loop's own thread prepares its batches{where}:"
            " add prefetch(...) at the end of the pipeline, so that another thread does it"
        )
        cause: Cause = "unknown"
        name = None
        if most is not None:
            is_source = most.now.kind == "source"
            cause = "source" if is_source else "stage"
            name = None if is_source else most.now.name
        return _verdict(interval, cause, what, advice="prefetch", name=name)
    if most.now.kind == "source":
        mean = _format_duration(most.service.mean)
        what = (
            f"the source is the bottleneck, at {mean} an item: read several files at once,"
            " or read ahead"
        )
        return _verdict(interval, "source", what, advice="faster source")
    return _slow_function(
        interval, most, "the loop's own thread calls it", gain=1 - interval.step.waits
    )


def _slow_function(
    interval: Interval, function: FunctionInterval, waiting: str, *, gain: float | None = None
) -> Verdict:
    """The bottleneck is a function that has no workers of its own.

    Args:
        interval: the interval.
        function: the function.
        waiting: a phrase that says who waits for it.
        gain: the largest share of the time that a thread of its own would save; ``None`` if it
            already has one.
    """
    beside = "prefetch(...) does not help"
    if gain is not None and gain >= 0.01:
        saved = _format_percent(gain)
        beside = f"prefetch(...) would save at most the {saved} that the training step takes"
    what = (
        f"the bottleneck is {_describe(function)}; {waiting}, one thread at a time: make it faster,"
        f" or move its work into prepare(...), which has workers; {beside}"
    )
    return _verdict(interval, "stage", what, advice="faster function", name=function.now.name)


def _describe(function: FunctionInterval) -> str:
    mean = _format_duration(function.service.mean)
    return f"{function.now}, at {mean} a call"


def _slow_source(interval: Interval, stage: StageInterval) -> Verdict:
    """Return the verdict that the source of a stage is the bottleneck."""
    mean = stage.now.source_waits.mean
    each = f", at {_format_duration(mean)} an item" if mean else ""
    what = (
        f"the source of {stage.now.name} is the bottleneck{each}: read several files at once,"
        " or read ahead"
    )
    return _verdict(interval, "source", what, stage, "faster source")


def _slow_step(interval: Interval) -> Verdict:
    """Return the verdict that data waits for the training step, which is the bottleneck."""
    waits = _format_percent(interval.step.waits)
    what = f"data is ahead: the training step is the bottleneck, and waits {waits} of the time"
    is_last_full = interval.last_queue is not None and interval.last_queue.full >= 0.5
    spare = [(floor(one.workers - 1.25 * one.busy * one.workers), one) for one in interval.stages]
    spare = [(min(count, len(one.now.workers) - 1), one) for count, one in spare]
    most, stage = max(spare, key=lambda pair: pair[0], default=(0, None))
    if stage is None or most < 1 or not is_last_full:
        return _verdict(interval, "step", what)
    of = _count_workers(len(stage.now.workers), stage.now.where)
    what += f"; {stage.now.name} ({of}) needs {most} fewer"
    return _verdict(interval, "step", what, stage, "fewer workers", most)


def _full_of_bytes(interval: Interval, stage: StageInterval) -> Verdict:
    """Return the verdict that finished examples take all the bytes that ``limit_bytes`` allows."""
    now = stage.now
    what = f"finished examples of {now.name} fill limit_bytes: raise it above {now.limit_bytes}"
    return _verdict(interval, "stage", what, stage, "higher limit_bytes")


def _full_of_keys(interval: Interval, stage: StageInterval) -> Verdict:
    """As many items of one key are in preparation as ``max_per_key`` allows, or as many have begun
    as a rate allows."""
    now = stage.now
    key = "one key" if now.full_key is None else f"the key {now.full_key}"
    if now.max_per_key is None:
        what = f"workers of {now.name} are idle while rate= defers items: allow a higher one"
        return _verdict(interval, "stage", what, stage, "higher rate")
    what = (
        f"workers of {now.name} are idle while concurrency_key defers items of {key}:"
        f" raise max_per_key above {now.max_per_key}, or mix in items of other keys"
    )
    return _verdict(interval, "stage", what, stage, "wider max_per_key")


def _held_up(interval: Interval) -> Verdict:
    """Return the verdict that a limit or a slow item holds the run up: no part is always busy."""
    for stage in reversed(interval.stages):
        now = stage.now
        if stage.full_of_keys > 0.5 * _IDLE:
            return _full_of_keys(interval, stage)
        if stage.full < 0.5:
            continue
        if stage.full_of_bytes > stage.full / 2:
            return _full_of_bytes(interval, stage)
        oldest = max(now.workers, key=lambda one: one.seconds, default=None)
        usual = max(10 * now.service.quantile(0.99), 0.1)
        is_stuck = oldest is not None and oldest.item is not None and oldest.seconds > usual
        if now.ordered and (is_stuck or stage.busy < 0.9):
            which = f"item {oldest.item}" if is_stuck and oldest is not None else "slow items"
            hold = "holds" if is_stuck else "hold"
            what = (
                f"{which} of {now.name} {hold} up finished ones:"
                f" use ordered=False, or raise max_in_flight above {now.max_in_flight}"
            )
            return _verdict(interval, "stage", what, stage, "slow item")
        what = (
            f"{now.name} has as many items in flight as max_in_flight allows:"
            f" raise it above {now.max_in_flight}"
        )
        return _verdict(interval, "stage", what, stage, "higher max_in_flight")
    for stage in reversed(interval.stages):
        if _blocks_its_loop(stage):
            subject = f"{stage.now.name} ({_count_workers(round(stage.workers), 'task')})"
            what = (
                f"{subject} waits without await, so one task at a time holds up their event loop:"
                " await there, or make it a plain function, which runs on threads"
            )
            return _verdict(interval, "stage", what, stage, "threads")
    what = "its workers wait for something that is not measured"
    return _verdict(interval, "unknown", what)


def _more_workers(interval: Interval, count: int) -> int:
    """Estimate how many more workers it takes until the step no longer waits."""
    starved = min(interval.step.waits, 0.99)
    return max(1, min(ceil(count * starved / (1 - starved) - 0.05), _MOST_GROWTH * count))


def _verdict(
    interval: Interval,
    cause: Cause,
    what: str,
    stage: StageInterval | None = None,
    advice: Advice = "none",
    workers: int = 0,
    *,
    name: str | None = None,
) -> Verdict:
    if cause not in ("step", "nothing"):
        waits = _format_percent(interval.step.waits)
        what = f"the training step waits for data {waits} of the time; {what}"
    return Verdict(
        sentence=what,
        cause=cause,
        stage=name if stage is None else stage.now.name,
        advice=advice,
        workers=workers,
        starved=interval.step.waits,
        rate=interval.step.rate,
        seconds=interval.seconds,
    )


def _format_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _count_workers(count: int, where: str) -> str:
    return f"{count} {where if count == 1 else _plural(where)}"


def _plural(where: str) -> str:
    return "processes" if where == "process" else f"{where}s"


def _format_duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{1e6 * seconds:.3g} us"
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
