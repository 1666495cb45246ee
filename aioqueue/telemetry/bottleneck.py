"""Finds the bottleneck of a run from two snapshots, and says what would help.

In a pipeline with buffers between its parts, the slowest part sets the pace: it works nearly all
the time while the others wait. So the verdict names the part that was busiest in the interval:

* the training step, which works whenever it does not wait for data;
* a stage, which works while its workers are in its function;
* a source that is not one of our queues, which yields one item at a time;
* the training loop itself, where its own thread makes the batches.

Three cases need more care. If the step waits for more than `_AHEAD` of the time, the bottleneck is
in the data, however busy the step is. If workers compete for processors or for the GIL, all of them
look busy; the one that uses most processor time is the cause. If no part is busy, something holds
the run up from outside: one slow item in an ordered stage, a limit on what is in flight, or
something that is not measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Final, Literal, NamedTuple

from aioqueue.base.display_text import without_secrets
from aioqueue.telemetry.intervals import FunctionShares, IntervalShares, StageShares
from aioqueue.telemetry.snapshots import Snapshot

Cause = Literal["step", "stage", "source", "unknown", "nothing"]
"""The bottleneck: the training step (data is ahead), a stage, the source of the first stage, or
something that is not measured; ``"nothing"`` while too little has happened to judge."""

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

_HARDLY: Final = 0.02
"""The same, if some part of the pipeline works all the time."""

_SATURATED: Final = 0.97
"""A part that works for at least this share of the time works all the time."""

_TOGETHER: Final = 0.98
"""Weight of a stage and its source that are busy together, against a part that is busy alone."""

_IDLE: Final = 0.6
"""A part that works for less than this share of the time is not the bottleneck."""

_COMPUTES: Final = 0.6
"""A call that spends more than this share of its time on a processor computes; otherwise it waits.
"""

_TAKEN: Final = 0.5
"""Threads compete for the GIL if more than this share of the samples finds it held."""

_ONE_CORE: Final = 1.6
"""Most cores that a process uses if its threads compete for the GIL."""

_SOME: Final = 0.3
"""Fewest cores that a stage uses if it is the one that holds the GIL. It is well below one because
a machine with other work gives the process less than a core."""

_ON: Final = 0.85
"""Threads that compete for the GIL spend at most this share of a call on a processor."""

_IN_LINE: Final = 4.0
"""Workers that wait at a source, for each share of the time that the source works."""

_MOST_TIMES: Final = 4
"""Advise at most this many times the current workers at once."""


_MOSTLY: Final = 0.5
"""A function causes the time of a loop or a source if it takes at least this share of it."""

_WORTH_IT: Final = 0.2
"""The step must take at least this share of the time for ``prefetch`` to pay off."""

_TINY: Final = 50e-6
"""Seconds of a call that is too short for any wait that another thread could use."""

_QUICK: Final = 250e-6
"""Seconds of a call that costs no more than a few hand-overs of its item from thread to thread.
If the GIL is held meanwhile, threads take turns, and each turn costs more than the call."""

_HELD: Final = 0.35
"""Share of the samples that find the GIL held if such calls compute."""

_HAND_OVER: Final = 20e-6
"""Seconds that it takes at least to hand over an item and its example."""

_TURNS: Final = 1.3
"""Threads take turns if they seem to compute on this many times the cores that the process used: a
call that keeps the GIL to its end is on a processor all the time, and hides how long it waited."""

_IN_A_LINE: Final = 0.3
"""Workers queue for a lock if more than this share of the samples finds one waiting for it."""


class _Suspect(NamedTuple):
    """A part that may be the bottleneck, and the share of the time that it worked."""

    share: float
    cause: Cause
    stage: StageShares | None = None


_NOBODY: Final = _Suspect(0.0, "nothing")


def verdict_of(earlier: Snapshot, later: Snapshot) -> Verdict:
    """Return the bottleneck of a run between two of its snapshots."""
    window = IntervalShares(earlier, later)
    if not (window.stages or window.functions) or not window.has_moved:
        return _verdict(window, "nothing", "too little has happened yet for a verdict")
    suspect = max(_suspects(window), key=lambda one: one.share, default=_NOBODY)
    if window.starved <= (_AHEAD if suspect.share < _SATURATED else _HARDLY):
        return _step(window)
    holder = _gil_holder(window)
    if suspect.stage is not None and _is_in_line(suspect.stage):
        return _stage(window, suspect.stage)
    quick = _too_quick(window)
    # Processes would not help a stage whose calls are quicker than the hand-over of their items.
    is_theirs = suspect.cause == "unknown" or _is_in_thread(suspect)
    if holder is not None and holder is not quick and is_theirs:
        return _holds_gil(window, holder)
    if quick is not None and (suspect.share < _IDLE or suspect.stage is quick):
        return _hand_overs(window, quick)
    if suspect.share < _IDLE:
        return _nobody(window)
    if suspect.cause == "unknown":
        return _loop(window)
    assert suspect.stage is not None
    if suspect.cause == "source":
        functions = [*window.functions_of(suspect.stage.stage.name)]
        most = _most(functions, suspect.stage.source)
        if most is not None and most.function.kind != "source":
            return _function(window, most, f"{suspect.stage.stage.name} waits for it")
        return _source(window, suspect.stage)
    return _stage(window, suspect.stage)


def scalars_of(earlier: Snapshot, later: Snapshot) -> dict[str, float]:
    """Return what happened between two snapshots as a flat dict; see `Monitor.scalars`."""
    window = IntervalShares(earlier, later)
    scalars = {"data/rate": window.rate, "data/step_wait": window.starved}
    before = {queue.name: queue for queue in earlier.queues}
    tags = _tags(queue.name for queue in later.queues)
    for queue in later.queues:
        taken = queue.dequeued - (before[queue.name].dequeued if queue.name in before else 0)
        fill = queue.size / queue.capacity if queue.capacity else float(queue.size)
        name = f"data/{tags[queue.name]}"
        scalars[f"{name}/fill"] = fill
        scalars[f"{name}/rate"] = taken / window.seconds
    tags = _tags(shares.stage.name for shares in window.stages)
    for shares in window.stages:
        name = f"data/{tags[shares.stage.name]}"
        scalars[f"{name}/busy"] = shares.busy
        scalars[f"{name}/blocked"] = shares.blocked
        scalars[f"{name}/starved"] = shares.starved
        scalars[f"{name}/rate"] = shares.rate
        scalars[f"{name}/seconds"] = shares.service.mean
        scalars[f"{name}/workers"] = float(len(shares.stage.workers))
    stages = {shares.stage.name for shares in window.stages}
    for one in window.functions:
        function = one.function
        apart = f"{function.name}-{function.kind}" if function.name in stages else function.name
        name = f"data/{_tag(apart)}"
        scalars[f"{name}/busy"] = one.busy
        scalars[f"{name}/seconds"] = one.service.mean
    return scalars


def _tags(names: Iterable[str]) -> dict[str, str]:
    """Return a tag for each name, with a number where two names would share one."""
    found: dict[str, str] = {}
    for name in names:
        tag, count = _tag(name), 1
        while tag in found.values():
            count += 1
            tag = f"{_tag(name)}-{count}"
        found[name] = tag
    return found


def _tag(name: str) -> str:
    """Return a name that all trackers accept as part of a tag (they reject ``<lambda>``)."""
    return re.sub(r"[^\w\-. ]+", "_", without_secrets(name)).strip("_") or "_"


def _suspects(window: IntervalShares) -> list[_Suspect]:
    """Return the parts that may be the bottleneck of a step that waits for data."""
    suspects = []
    if window.own > _AHEAD:  # the loop's thread is at work when it does not wait at the queue
        suspects.append(_Suspect(1 - (window.starved - window.own), "unknown"))
    ours = {queue.name for queue in window.later.queues}
    for shares in reversed(window.stages):  # of those that are as busy, the last one blocks all
        if shares.stage.source not in ours or shares.source > _IDLE:
            suspects.append(_with_source(shares, is_fed=shares.stage.source in ours))
        else:
            suspects.append(_Suspect(_at_work(shares), "stage", shares))
    return suspects


def _at_work(shares: StageShares) -> float:
    """Return the share of the time in which a stage could do no more.

    All tasks of an event loop share one thread, so their processor time adds up. Workers whose
    items are all deferred by ``max_per_key`` can do no more either.
    """
    busy = max(shares.busy, shares.cores) if shares.stage.where == "task" else shares.busy
    return min(1.0, max(busy, shares.full_of_keys))


def _holds_up_its_loop(shares: StageShares) -> bool:
    """Return whether one of several tasks is in the function at any time, while neither a source
    nor a queue holds up the others: then it does not let them run."""
    at_once = shares.busy * shares.workers
    is_free = max(shares.source, shares.blocked) < _IN_A_LINE
    return shares.stage.where == "task" and shares.workers > 1.5 and is_free and 0.8 < at_once < 1.2


def _is_in_line(shares: StageShares) -> bool:
    """Return whether the workers of a stage mostly wait for a lock, by samples of their stacks."""
    is_seen = shares.stage.where in ("thread", "task")
    return is_seen and shares.in_line > _IN_A_LINE and shares.busy > _IDLE


def _with_source(shares: StageShares, *, is_fed: bool) -> _Suspect:
    """Return the suspect for a stage that reads its own source directly.

    No buffer lies between the two, so a worker that waits for an item keeps busy together with the
    source. Which of the two is the bottleneck follows from a model: the one that would gain more
    from being twice as fast.
    """
    share = max(_at_work(shares), shares.source)
    if not is_fed:
        together = _at_work(shares) + min(shares.starved, shares.source * _IN_LINE)
        share = max(share, _TOGETHER * together)
    source, service = shares.source, shares.busy * shares.workers  # seconds per second
    workers = round(shares.workers)
    of_source = _pace(source / 2, service, workers)
    of_stage = _pace(source, service / 2, workers)
    cause: Cause = "source" if of_source > of_stage else "stage"
    return _Suspect(min(1.0, share), cause, shares)


def _is_in_thread(suspect: _Suspect) -> bool:
    """Return whether the suspect is a stage whose threads get less processor time than they
    need."""
    shares = suspect.stage
    return shares is not None and shares.stage.where == "thread" and (shares.on or 1.0) < _ON


def _pace(source: float, service: float, workers: int) -> float:
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


def _gil_holder(window: IntervalShares) -> StageShares | None:
    """Return the stage that uses most processor time if threads compete for the GIL, even if the
    bottleneck is the loop."""
    threads = [one for one in window.stages if one.stage.where == "thread" and one.on is not None]
    if window.gil <= _TAKEN or window.cores > _ONE_CORE or not threads:
        return None
    most = max(threads, key=lambda one: one.cores)
    return most if most.cores > _SOME else None


def _stage(window: IntervalShares, shares: StageShares) -> Verdict:
    """The bottleneck is a stage; the advice depends on what its function does, and where it
    runs."""
    name, where = shares.stage.name, shares.stage.where
    count = max(1, round(shares.workers))
    who = f"{name} ({_counted(count, where)})"
    more = _more_workers(window, count)
    threads = _plural(where)
    more_workers = f"{more} more {threads}" if more > 1 else f"one more {where}"
    on = shares.on
    cores = window.later.cores
    busiest = window.cores if where != "process" else shares.cores
    if _is_in_line(shares):
        what = (
            f"{who} mostly waits for a lock, at {shares.stage.lock}: hold the lock for less time,"
            " or avoid it; more workers would only wait for it too"
        )
        return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "less locking")
    if shares.full_of_keys > 0.5 and shares.busy < 0.95:
        return _keys(window, shares)
    if shares.full_of_bytes > 0.5 and shares.busy < 0.9:
        return _bytes(window, shares)
    if on is not None and on > _COMPUTES and max(shares.cores, busiest) > 0.9 * cores:
        what = f"{who} computes on all {cores:g} cores: use more cores, or compute less"
        return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "more cores")
    if where == "task" and (shares.cores > 0.9 or 0.9 < window.cores < 1.35):
        what = f"{who} keeps the event loop busy: make it a plain function with where='process'"
        return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "processes", count)
    if on is not None and on < _COMPUTES and window.cores > 0.9 * cores:
        what = f"{who} waits for a processor: use more cores, or compute less"
        return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "more cores")
    if where == "thread" and window.cores > 0.5 and shares.cores > _TURNS * window.cores:
        return _holds_gil(window, shares)
    how = ""
    if on is not None:
        how = " and computes" if on > _COMPUTES else " and mostly waits"
    what = f"{who} is saturated{how}: give it {more_workers}"
    return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "more workers", more)


def _holds_gil(window: IntervalShares, shares: StageShares) -> Verdict:
    """The bottleneck is a stage whose threads keep each other, and all others, from running."""
    count = max(1, round(shares.workers))
    who = f"{shares.stage.name} ({_counted(count, shares.stage.where)})"
    what = f"{who} is saturated and holds the GIL: use where='process'"
    return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "processes", count)


def _too_quick(window: IntervalShares) -> StageShares | None:
    """Return the stage on threads whose calls are so quick that handing over their items, from
    thread to thread, takes most of the time; ``None`` if there is no such stage.

    Half of the calls are quick. The mean says little: a call that loses the GIL takes milliseconds.
    """

    def is_quick(shares: StageShares) -> bool:
        usual = shares.service.quantile(0.5)
        if shares.stage.where != "thread" or not 0 < usual < _QUICK:
            return False
        if usual >= _TINY and window.gil < _HELD:
            return False  # they wait, for a cache in memory perhaps: others can run meanwhile
        return shares.rate * (usual + _HAND_OVER) > _IN_A_LINE

    quick = [shares for shares in window.stages if is_quick(shares)]
    return max(quick, key=lambda shares: shares.rate, default=None)


def _hand_overs(window: IntervalShares, shares: StageShares) -> Verdict:
    """The bottleneck is the hand-over of items between threads."""
    count = max(1, round(shares.workers))
    who = f"{shares.stage.name} ({_counted(count, shares.stage.where)})"
    usual = _duration(shares.service.quantile(0.5))
    what = (
        f"a call of {who} takes about {usual}, no more than to hand its item from thread to thread:"
        " more threads do not help; give each call more work, such as a whole batch with"
        " map_batches(...), or do the work in vectorised code after batch(...)"
    )
    return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "larger items")


def _most(functions: Sequence[FunctionShares], whole: float) -> FunctionShares | None:
    """Return the function that takes most of a share of the time, if there is one."""
    most = max(functions, key=lambda one: one.busy, default=None)
    return None if most is None or most.busy < _MOSTLY * whole else most


def _loop(window: IntervalShares) -> Verdict:
    """The bottleneck is the loop's own thread, which makes the batches that it waits for.

    A prefetch thread would work in parallel with the training step; the slower of the two would
    then set the pace.
    """
    most = _most(window.functions_of(None), window.own)
    is_worth_it = 1 - window.starved > _WORTH_IT
    if most is None or is_worth_it:
        own = ", and spends most of that time in" if most is not None else ""
        where = f"{own} {_described(most)}" if most is not None else ""
        what = (
            f"the loop's own thread prepares its batches{where}:"
            " add prefetch(...) at the end of the pipeline, so that another thread does it"
        )
        cause: Cause = "unknown"
        stage = None
        if most is not None:
            is_source = most.function.kind == "source"
            cause = "source" if is_source else "stage"
            stage = None if is_source else most.function.name
        return _verdict(window, cause, f"{_waits(window)}; {what}", advice="prefetch", stage=stage)
    if most.function.kind == "source":
        mean = most.service.mean
        what = (
            f"the source is the bottleneck, at {_duration(mean)} an item: read several files at"
            " once, or read ahead"
        )
        return _verdict(window, "source", f"{_waits(window)}; {what}", advice="faster source")
    return _function(window, most, "the loop's own thread calls it", gain=1 - window.starved)


def _function(
    window: IntervalShares, shares: FunctionShares, who: str, *, gain: float | None = None
) -> Verdict:
    """The bottleneck is a function that has no workers of its own.

    Args:
        window: the interval.
        shares: the function.
        who: a phrase that says who waits for it.
        gain: the largest share of the time that a thread of its own would save; ``None`` if it
            already has one.
    """
    beside = "prefetch(...) does not help"
    if gain is not None and gain >= 0.01:
        beside = (
            f"prefetch(...) would save at most the {_percent(gain)} that the training step takes"
        )
    what = (
        f"the bottleneck is {_described(shares)}; {who}, one thread at a time: make it faster, or"
        f" move its work into prepare(...), which has workers; {beside}"
    )
    sentence = f"{_waits(window)}; {what}"
    return _verdict(window, "stage", sentence, advice="faster function", stage=shares.function.name)


def _described(shares: FunctionShares) -> str:
    mean = _duration(shares.service.mean)
    return f"{shares.function}, at {mean} a call"


def _source(window: IntervalShares, shares: StageShares) -> Verdict:
    """The bottleneck is the source of a stage."""
    mean = shares.stage.source_waits.mean
    each = f", at {_duration(mean)} an item" if mean else ""
    what = (
        f"the source of {shares.stage.name} is the bottleneck{each}: read several files at once,"
        " or read ahead"
    )
    return _verdict(window, "source", f"{_waits(window)}; {what}", shares, "faster source")


def _step(window: IntervalShares) -> Verdict:
    """Data is ahead; the training step is the bottleneck."""
    said = (
        f"data is ahead: the training step is the bottleneck, and waits {_percent(window.starved)}"
        " of the time"
    )
    spare = [(floor(one.workers - 1.25 * one.busy * one.workers), one) for one in window.stages]
    spare = [(min(count, len(one.stage.workers) - 1), one) for count, one in spare]
    most, shares = max(spare, key=lambda pair: pair[0], default=(0, None))
    if shares is None or most < 1 or window.full < 0.5:
        return _verdict(window, "step", said)
    of = _counted(len(shares.stage.workers), shares.stage.where)
    said += f"; {shares.stage.name} ({of}) needs {most} fewer"
    return _verdict(window, "step", said, shares, "fewer workers", most)


def _bytes(window: IntervalShares, shares: StageShares) -> Verdict:
    """Finished examples take as many bytes as ``limit_bytes`` allows."""
    stage = shares.stage
    what = f"finished examples of {stage.name} fill limit_bytes: raise it above {stage.limit_bytes}"
    return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "higher limit_bytes")


def _keys(window: IntervalShares, shares: StageShares) -> Verdict:
    """As many items of one key are in preparation as ``max_per_key`` allows, or as many have begun
    as a rate allows."""
    stage = shares.stage
    key = "one key" if stage.full_key is None else f"the key {stage.full_key}"
    if stage.max_per_key is None:
        what = f"workers of {stage.name} are idle while rate= defers items: allow a higher one"
        return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "higher rate")
    what = (
        f"workers of {stage.name} are idle while concurrency_key defers items of {key}:"
        f" raise max_per_key above {stage.max_per_key}, or mix in items of other keys"
    )
    return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "wider max_per_key")


def _nobody(window: IntervalShares) -> Verdict:
    """No part that is measured works all the time: a limit, or a slow item, holds the run up."""
    for shares in reversed(window.stages):
        stage = shares.stage
        if shares.full_of_keys > 0.5 * _IDLE:
            return _keys(window, shares)
        if shares.full < 0.5:
            continue
        if shares.full_of_bytes > shares.full / 2:
            return _bytes(window, shares)
        oldest = max(stage.workers, key=lambda one: one.seconds, default=None)
        usual = max(10 * stage.service.quantile(0.99), 0.1)
        is_stuck = oldest is not None and oldest.item is not None and oldest.seconds > usual
        if stage.ordered and (is_stuck or shares.busy < 0.9):
            which = f"item {oldest.item}" if is_stuck and oldest is not None else "slow items"
            hold = "holds" if is_stuck else "hold"
            what = (
                f"{which} of {stage.name} {hold} up finished ones:"
                f" use ordered=False, or raise max_in_flight above {stage.max_in_flight}"
            )
            return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "slow item")
        what = (
            f"{stage.name} has as many items in flight as max_in_flight allows:"
            f" raise it above {stage.max_in_flight}"
        )
        return _verdict(
            window, "stage", f"{_waits(window)}; {what}", shares, "higher max_in_flight"
        )
    for shares in reversed(window.stages):
        if _holds_up_its_loop(shares):
            who = f"{shares.stage.name} ({_counted(round(shares.workers), 'task')})"
            what = (
                f"{who} waits without await, so one task at a time holds up their event loop: await"
                " there, or make it a plain function, which runs on threads"
            )
            return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "threads")
    what = "its workers wait for something that is not measured"
    return _verdict(window, "unknown", f"{_waits(window)}; {what}")


def _more_workers(window: IntervalShares, count: int) -> int:
    """Estimate how many more workers it takes until the step no longer waits."""
    starved = min(window.starved, 0.99)
    return max(1, min(ceil(count * starved / (1 - starved) - 0.05), _MOST_TIMES * count))


def _verdict(
    window: IntervalShares,
    cause: Cause,
    sentence: str,
    shares: StageShares | None = None,
    advice: Advice = "none",
    workers: int = 0,
    *,
    stage: str | None = None,
) -> Verdict:
    return Verdict(
        sentence=sentence,
        cause=cause,
        stage=stage if shares is None else shares.stage.name,
        advice=advice,
        workers=workers,
        starved=window.starved,
        rate=window.rate,
        seconds=window.seconds,
    )


def _waits(window: IntervalShares) -> str:
    return f"the training step waits for data {_percent(window.starved)} of the time"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _counted(count: int, where: str) -> str:
    return f"{count} {where if count == 1 else _plural(where)}"


def _plural(where: str) -> str:
    return "processes" if where == "process" else f"{where}s"


def _duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{1e6 * seconds:.3g} us"
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
