"""What the numbers say: which part limits the run, and what would help.

The reading of the numbers: which part limits a run, and what would help.

Whatever is at work nearly all the time sets the pace of all: a pipeline with room between its parts
is as fast as the slowest of them. So the part is accused that is busiest, by shares of the window:

* the training step, which is at work when it does not wait for data;
* each stage, whose workers are at work when they are in its function;
* each source that is no queue of ours, which gives one item at a time;
* the loop itself, where it makes the batches that it waits for.

But where the step waits for more than `_AHEAD` of the time, it is some part of the data that limits
it, and where workers compete for processors, or for the interpreter, all of them seem busy, and it
is the one that computes most which is to blame. What nobody is busy with is waited for elsewhere:
by one slow item that holds up finished ones, by a limit on what is in flight, or by something that
is not measured.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Final, Literal, NamedTuple

from aioqueue.telemetry.intervals import FunctionShares, IntervalShares, StageShares
from aioqueue.telemetry.metrics import Snapshot

__all__ = ("Advice", "Cause", "Verdict", "scalars_of", "verdict_of")


Cause = Literal["step", "stage", "source", "unknown", "nothing"]
"""What limits: the training step (data are ahead), a stage, the source of the first stage,
something that is not measured; or nothing has moved yet that could be judged."""

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
]
"""What would help."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits a run, over a window of time; `str` gives the sentence.

    Attributes:
        sentence: in the user's words.
        cause: what limits.
        stage: name of the limiting stage, or of the function between stages (a ``collate``, say);
            `None` if none limits.
        advice: what would help.
        workers: how many workers more (or fewer) it would take; 0 if that does not help.
        starved: share of the window that the training step waited for data, from 0 to 1.
        rate: batches (or elements, where no loop is watched) handed over per second.
        seconds: length of the window.
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
"""Share of the time that the step may wait for data which are ahead of it all the same."""

_HARDLY: Final = 0.02
"""The same, where a part of the data is at work all the time."""

_SATURATED: Final = 0.97
"""Share of the time at work that is all the time."""

_TOGETHER: Final = 0.98
"""What two parts count that are at work together all the time, beside one that is so alone."""

_IDLE: Final = 0.6
"""Share of the time below which nothing that is at work limits the rest."""

_COMPUTES: Final = 0.6
"""Share of a call on a processor above which it computes, and waits below."""

_TAKEN: Final = 0.5
"""Share of looks that find the interpreter taken where threads compete for it."""

_ONE_CORE: Final = 1.6
"""Cores that a process uses, at most, in which threads wait for the interpreter."""

_SOME: Final = 0.3
"""Cores that a stage uses, at least, that is to blame for that: on a machine that has others to
serve it may be far from one."""

_ON: Final = 0.85
"""Share of a call on a processor, at most, where threads compete for it."""

_IN_LINE: Final = 4.0
"""Workers in line at a source, for each share of the time that it is at work."""

_MOST_TIMES: Final = 4
"""Times the workers of now that are advised at once, at most."""


_MOSTLY: Final = 0.5
"""Share of the time of a loop, or of a source, that one function takes to which it is due."""

_WORTH_IT: Final = 0.2
"""Share of the time that the step takes, at least, where it pays to make batches beside it."""

_IN_A_LINE: Final = 0.3
"""Share of the looks into a function above which its workers queue for a lock."""


class _Suspect(NamedTuple):
    """A part that may limit the run, and which share of the time it was at work."""

    share: float
    cause: Cause
    stage: StageShares | None = None


_NOBODY: Final = _Suspect(0.0, "nothing")


def verdict_of(earlier: Snapshot, later: Snapshot) -> Verdict:
    """What limits a run, by what was done between two snapshots of it."""
    window = IntervalShares(earlier, later)
    if not (window.stages or window.functions) or not window.has_moved:
        return _verdict(window, "nothing", "nothing has moved yet that could be judged")
    suspect = max(_suspects(window), key=lambda one: one.share, default=_NOBODY)
    if window.starved <= (_AHEAD if suspect.share < _SATURATED else _HARDLY):
        return _step(window)
    holder = _gil_holder(window)
    if suspect.stage is not None and _is_in_line(suspect.stage):
        return _stage(window, suspect.stage)
    if holder is not None and (suspect.cause == "unknown" or _is_in_thread(suspect)):
        return _holds_gil(window, holder)
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
    """What was done between two snapshots, as a flat dict; see `Monitor.scalars`."""
    window = IntervalShares(earlier, later)
    scalars = {"data/rate": window.rate, "data/step_wait": window.starved}
    before = {queue.name: queue for queue in earlier.queues}
    for queue in later.queues:
        taken = queue.dequeued - (before[queue.name].dequeued if queue.name in before else 0)
        fill = queue.size / queue.capacity if queue.capacity else float(queue.size)
        name = f"data/{_tag(queue.name)}"
        scalars[f"{name}/fill"] = fill
        scalars[f"{name}/rate"] = taken / window.seconds
    for shares in window.stages:
        name = f"data/{_tag(shares.stage.name)}"
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


def _tag(name: str) -> str:
    """A name as a part of a tag: of letters that all trackers take (``<lambda>`` is none)."""
    return re.sub(r"[^\w\-. ]+", "_", name).strip("_") or "_"


def _suspects(window: IntervalShares) -> list[_Suspect]:
    """What may limit a step that waits for data."""
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
    """Share of the time in which a stage can do no more. All tasks of a loop have one thread: what
    they compute there, they compute one after the other, however many they are. And workers that
    may not have the items that there are can do no more, either."""
    busy = max(shares.busy, shares.cores) if shares.stage.where == "task" else shares.busy
    return min(1.0, max(busy, shares.full_of_keys))


def _is_in_line(shares: StageShares) -> bool:
    """Whether the workers of a stage mostly wait for a lock, as their stacks show."""
    is_seen = shares.stage.where in ("thread", "task")
    return is_seen and shares.in_line > _IN_A_LINE and shares.busy > _IDLE


def _with_source(shares: StageShares, *, is_fed: bool) -> _Suspect:
    """A stage and its own source, between which there is no room: workers that wait for an item
    are at work, as it were, together with it. Which one limits is a question of both."""
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
    """Whether a stage is suspected whose threads do not get the processors that they ask for."""
    shares = suspect.stage
    return shares is not None and shares.stage.where == "thread" and (shares.on or 1.0) < _ON


def _pace(source: float, service: float, workers: int) -> float:
    """How fast workers are who take turns at a source, and then each do their own.

    By mean value analysis of that closed network (Reiser and Lavenberg, 1980).

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
    """The stage that computes most, if threads wait for the interpreter; the loop's own as well."""
    threads = [one for one in window.stages if one.stage.where == "thread" and one.on is not None]
    if window.gil <= _TAKEN or window.cores > _ONE_CORE or not threads:
        return None
    most = max(threads, key=lambda one: one.cores)
    return most if most.cores > _SOME else None


def _stage(window: IntervalShares, shares: StageShares) -> Verdict:
    """A stage limits: what would help depends on what its function does, and where."""
    name, where = shares.stage.name, shares.stage.where
    count = max(1, round(shares.workers))
    who = f"{name} ({_counted(count, where)})"
    more = _more_workers(window, count)
    told = f"{more} more" if more > 1 else "one more"
    on = shares.on
    cores = window.later.cores
    busiest = window.cores if where != "process" else shares.cores
    if _is_in_line(shares):
        what = (
            f"{who} mostly waits for a lock, at {shares.stage.lock}: more workers would wait there"
            " too; hold it for less time, or do without"
        )
        return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "less locking")
    if shares.full_of_keys > 0.5 and shares.busy < 0.95:
        return _keys(window, shares)
    if shares.full_of_bytes > 0.5 and shares.busy < 0.9:
        return _bytes(window, shares)
    if on is not None and on > _COMPUTES and max(shares.cores, busiest) > 0.9 * cores:
        what = f"{who} computes on all {cores:g} cores: it takes more cores, or less to compute"
        return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "more cores")
    if where == "task" and (shares.cores > 0.9 or 0.9 < window.cores < 1.35):
        what = f"{who} keeps the event loop busy: a plain function with where='process'"
        return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "processes", count)
    if on is not None and on < _COMPUTES and window.cores > 0.9 * cores:
        what = f"{who} waits for a processor: it takes more cores, or less to compute"
        return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "more cores")
    how = ""
    if on is not None:
        how = " and computes" if on > _COMPUTES else " and mostly waits"
    what = f"{who} is saturated{how}: {told}"
    return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "more workers", more)


def _holds_gil(window: IntervalShares, shares: StageShares) -> Verdict:
    """The threads of a stage keep the interpreter from each other, and from all others."""
    count = max(1, round(shares.workers))
    who = f"{shares.stage.name} ({_counted(count, shares.stage.where)})"
    what = f"{who} is saturated and holds the GIL: where='process'"
    return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "processes", count)


def _most(functions: Sequence[FunctionShares], whole: float) -> FunctionShares | None:
    """Which of some functions takes most of a share of the time, if one does."""
    most = max(functions, key=lambda one: one.busy, default=None)
    return None if most is None or most.busy < _MOSTLY * whole else most


def _loop(window: IntervalShares) -> Verdict:
    """The loop's own thread makes what it waits for: a thread that did so would work beside the
    training step, and the slower of both would set the pace."""
    most = _most(window.functions_of(None), window.own)
    is_worth_it = 1 - window.starved > _WORTH_IT
    if most is None or is_worth_it:
        own = ", most of that time in" if most is not None else ""
        where = f"{own} {_function_told(most)}" if most is not None else ""
        what = (
            f"the loop's own thread makes the batches that it waits for{where}:"
            " prefetch(...) at the end of the pipeline has a thread do that"
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
            f"the source, which takes {_duration(mean)} for an item, limits: read several files at"
            " once, or ahead"
        )
        return _verdict(window, "source", f"{_waits(window)}; {what}", advice="faster source")
    return _function(window, most, "the loop's own thread calls it", gain=1 - window.starved)


def _function(
    window: IntervalShares, shares: FunctionShares, who: str, *, gain: float | None = None
) -> Verdict:
    """A function limits that has no workers of its own.

    Args:
        window: the window.
        shares: the function.
        who: who waits for it.
        gain: share of the time that a thread of its own would save at most; ``None``: it has one.
    """
    beside = "prefetch(...) does not help"
    if gain is not None and gain >= 0.01:
        beside = f"prefetch(...) would save no more than the {_percent(gain)} of the training step"
    what = (
        f"{_function_told(shares)}, limits, for {who}, and one thread at a time: make it faster, or"
        f" do its work in a function of prepare(...), which has workers; {beside}"
    )
    sentence = f"{_waits(window)}; {what}"
    return _verdict(window, "stage", sentence, advice="faster function", stage=shares.function.name)


def _function_told(shares: FunctionShares) -> str:
    mean = _duration(shares.service.mean)
    return f"{shares.function}, which takes {mean} a call"


def _source(window: IntervalShares, shares: StageShares) -> Verdict:
    """The source of a stage limits."""
    mean = shares.stage.source_waits.mean
    each = f", which takes {_duration(mean)} for an item" if mean else ""
    what = f"the source of {shares.stage.name}{each}, limits: read several files at once, or ahead"
    return _verdict(window, "source", f"{_waits(window)}; {what}", shares, "faster source")


def _step(window: IntervalShares) -> Verdict:
    """Data are ahead."""
    said = (
        f"data are ahead: the training step waits {_percent(window.starved)} for them, and limits"
    )
    spare = [(floor(one.workers - 1.25 * one.busy * one.workers), one) for one in window.stages]
    spare = [(min(count, len(one.stage.workers) - 1), one) for count, one in spare]
    most, shares = max(spare, key=lambda pair: pair[0], default=(0, None))
    if shares is None or most < 1 or window.full < 0.5:
        return _verdict(window, "step", said)
    of = _counted(len(shares.stage.workers), shares.stage.where)
    said += f"; {shares.stage.name} ({of}) could do with {most} fewer"
    return _verdict(window, "step", said, shares, "fewer workers", most)


def _bytes(window: IntervalShares, shares: StageShares) -> Verdict:
    """As many bytes are in flight as may be."""
    stage = shares.stage
    what = (
        f"examples of {stage.name} that are prepared and wait take as many bytes as they may:"
        f" limit_bytes above {stage.limit_bytes}"
    )
    return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "higher limit_bytes")


def _keys(window: IntervalShares, shares: StageShares) -> Verdict:
    """As many items of one key are in preparation as may be."""
    stage = shares.stage
    key = "one key" if stage.full_key is None else f"the key {stage.full_key}"
    what = (
        f"workers of {stage.name} have nothing to do, while items of {key} are put aside by"
        f" concurrency_key: max_per_key above {stage.max_per_key}, or items of other keys between"
        " them"
    )
    return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "wider max_per_key")


def _nobody(window: IntervalShares) -> Verdict:
    """Nothing that is measured is at work all the time."""
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
                f"{which} of {stage.name} {hold} up those that are finished:"
                f" ordered=False, or max_in_flight above {stage.max_in_flight}"
            )
            return _verdict(window, "stage", f"{_waits(window)}; {what}", shares, "slow item")
        what = (
            f"{stage.name} has as many items in flight as it may:"
            f" max_in_flight above {stage.max_in_flight}"
        )
        return _verdict(
            window, "stage", f"{_waits(window)}; {what}", shares, "higher max_in_flight"
        )
    what = "its workers wait for something that is not measured"
    return _verdict(window, "unknown", f"{_waits(window)}; {what}")


def _more_workers(window: IntervalShares, count: int) -> int:
    """How many more it takes until the step waits no more, as far as one can tell."""
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
    return f"the training step waits {_percent(window.starved)} for data"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _counted(count: int, where: str) -> str:
    plural = {"process": "processes"}.get(where, f"{where}s")
    return f"{count} {where if count == 1 else plural}"


def _duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{1e6 * seconds:.3g} us"
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
