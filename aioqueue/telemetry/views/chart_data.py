"""Turns the snapshots of a run into charts: panels and plots as numbers, before they are drawn.

`html_page` and `matplotlib_picture` draw the same panels. A value belongs to the interval between
two snapshots and is drawn as a step; nothing is smoothed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final, Literal, TypeAlias, TypeVar

from aioqueue.base.display_text import clock, count, duration, share, workers
from aioqueue.telemetry.metrics.intervals import (
    GenerationInterval,
    Interval,
    QueueInterval,
    StageInterval,
)
from aioqueue.telemetry.metrics.snapshots import Snapshot
from aioqueue.telemetry.verdict.monitored_run import Judge

Colour: TypeAlias = Literal[
    "busy", "busy2", "starved", "blocked", "other", "rate", "fill", "step", "source"
]
"""The meaning of a colour, the same in all panels."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """The colours of one scheme, as ``#rrggbb``; ``of`` maps each meaning to its colour."""

    page: str
    panel: str
    text: str
    muted: str
    grid: str
    of: dict[Colour, str]


COLOURS: Final[dict[str, Scheme]] = {
    "light": Scheme(
        page="#f6f7f9",
        panel="#ffffff",
        text="#1b222b",
        muted="#56616e",
        grid="#dfe3e8",
        of={
            "busy": "#0072b2",
            "busy2": "#1f2f78",
            "starved": "#cf7b00",
            "blocked": "#c46c9d",
            "other": "#4a535d",
            "rate": "#1b6e5a",
            "fill": "#00857c",
            "step": "#00857c",
            "source": "#8f4a00",
        },
    ),
    "dark": Scheme(
        page="#12161c",
        panel="#1a2029",
        text="#e6eaf0",
        muted="#a3adba",
        grid="#323b47",
        of={
            "busy": "#4aa3e0",
            "busy2": "#c3d3fb",
            "starved": "#f0a63c",
            "blocked": "#f0b8d8",
            "other": "#77818e",
            "rate": "#5fcbb0",
            "fill": "#3fb8ac",
            "step": "#3fb8ac",
            "source": "#e08a4a",
        },
    ),
}
"""Hues from the palette of Okabe and Ito, which people with colour blindness can tell apart, at a
contrast of at least 3:1 to the panel."""


@dataclass(frozen=True, slots=True)
class Layer:
    """An area between two lines, or a single line, with a value for every interval.

    Attributes:
        label: the name in the legend.
        colour: the meaning of its colour.
        tops: the upper line, or the only one.
        bottoms: the lower line; `None` for a single line.
        is_faint: whether to draw it as a band behind a line.
    """

    label: str
    colour: Colour
    tops: tuple[float, ...]
    bottoms: tuple[float, ...] | None = None
    is_faint: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """A vertical axis that begins at 0.

    Attributes:
        top: the value at its upper end.
        ticks: the marked values, with their labels.
    """

    top: float
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """One diagram over time.

    Attributes:
        caption: what was measured, and its mean.
        layers: the layers, from back to front.
        scale: the vertical axis.
        is_small: whether it is a detail of the plot above it.
    """

    caption: str
    layers: tuple[Layer, ...]
    scale: Scale
    is_small: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """The plots of one part of the run.

    Attributes:
        title: its name, which may be a long one chosen by the user.
        details: a short description.
        plots: the plots, from top to bottom.
    """

    title: str
    details: str
    plots: tuple[Plot, ...]


@dataclass(frozen=True, slots=True)
class Period:
    """A period in which the verdict stayed the same.

    Attributes:
        begin: seconds since the run began.
        end: seconds since the run began.
        label: the bottleneck, as one word or a name.
        colour: the meaning of its colour.
        sentence: the last verdict in the period.
    """

    begin: float
    end: float
    label: str
    colour: Colour
    sentence: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Everything that a picture of a run shows.

    Attributes:
        times: the boundaries of the intervals, in seconds since the run began.
        began: when the run began, in seconds since the epoch.
        periods: the bottleneck over time.
        panels: the training step, then the stages and queues in the order of the data flow.
        whole: the interval from the first snapshot to the last.
    """

    times: tuple[float, ...]
    began: float
    periods: tuple[Period, ...]
    panels: tuple[Panel, ...]
    whole: Interval

    @property
    def title(self) -> str:
        """When the run began, in words."""
        began = datetime.fromtimestamp(self.began).astimezone()
        return f"Run of {began.day} {began:%B %Y, %H:%M:%S}"


NOTHING_YET: Final = "The run has only just begun: there is nothing to show yet."
"""What a picture of a run with a single snapshot says."""


def chart_of(snapshots: Sequence[Snapshot], judge: Judge) -> Chart:
    """Return the chart of a run.

    Args:
        snapshots: oldest first; at least two, at different times.
        judge: returns the verdict between two snapshots.
    """
    intervals = [Interval.between(earlier, later) for earlier, later in pairwise(snapshots)]
    whole = Interval.over(snapshots)
    last = snapshots[-1]
    return Chart(
        times=tuple(snapshot.seconds for snapshot in snapshots),
        began=last.time - last.seconds,
        periods=tuple(_periods(snapshots, judge)),
        panels=(*_step_panels(intervals, whole), *_flow_panels(intervals, whole)),
        whole=whole,
    )


_CAUSE_LABELS: Final[dict[str, tuple[str, Colour]]] = {
    "step": ("data is ahead", "step"),
    "source": ("the source", "source"),
    "gate": ("the gate", "blocked"),
    "unknown": ("not measured", "other"),
}
_STAGE_COLOURS: Final[tuple[Colour, ...]] = ("busy", "busy2")
_MOST_PERIODS: Final = 60
"""Compute at most this many verdicts, since a picture cannot show more."""


def _periods(snapshots: Sequence[Snapshot], judge: Judge) -> Iterator[Period]:
    """Yield the bottleneck over time; periods without a verdict are left out."""
    every = math.ceil((len(snapshots) - 1) / _MOST_PERIODS)
    marks = [*snapshots[:-1:every], snapshots[-1]]
    shades: dict[str, Colour] = {}
    latest: Period | None = None
    for earlier, later in pairwise(marks):
        verdict = judge(earlier, later)
        if verdict.cause == "nothing":
            continue
        if verdict.cause == "stage":
            label = verdict.stage or "a stage"
            colour = shades.setdefault(label, _STAGE_COLOURS[len(shades) % len(_STAGE_COLOURS)])
        else:
            label, colour = _CAUSE_LABELS[verdict.cause]
        begin = earlier.seconds
        if latest is not None:
            if (latest.label, latest.end) == (label, begin):
                begin = latest.begin
            else:
                yield latest
        latest = Period(begin, later.seconds, label, colour, str(verdict))
    if latest is not None:
        yield latest


def _step_panels(intervals: Sequence[Interval], whole: Interval) -> list[Panel]:
    """Return the panels for throughput, and for how long the reader waited for data."""
    step = whole.step
    rates = tuple(interval.step.rate for interval in intervals)
    waits = tuple(interval.step.waits for interval in intervals)
    reader = "the training step" if step.unit == "batches" else "the reader of the last queue"
    throughput = Plot(
        f"{count(round(step.rate, 2))} {step.unit}/s on average",
        (Layer(f"{step.unit}/s", "rate", rates),),
        _count_scale(max(rates)),
    )
    waiting = Plot(
        f"share of time; {share(step.waits)} on average",
        (Layer("waits for data", "starved", waits, _zeros(waits)),),
        _SHARE_SCALE,
    )
    return [
        Panel("Throughput", f"{step.unit} per second", (throughput,)),
        Panel("Waiting for data", reader, (waiting,)),
    ]


def _flow_panels(intervals: Sequence[Interval], whole: Interval) -> list[Panel]:
    """Return the panels of the stages, each before the queue that it fills."""
    panels: list[Panel] = []
    for part in whole.in_flow_order():
        name = part.now.name
        if isinstance(part, QueueInterval):
            queues = [
                next((one for one in interval.queues if one.now.name == name), None)
                for interval in intervals
            ]
            panels.append(_queue_panel(part, queues))
        else:
            stages = [
                next((one for one in interval.stages if one.now.name == name), None)
                for interval in intervals
            ]
            panels.append(_stage_panel(part, stages))
            if part.generation is not None:
                track = [None if one is None else one.generation for one in stages]
                panels.append(_generation_panel(name, part.generation, track))
    return panels


def _stage_panel(whole: StageInterval, track: Sequence[StageInterval | None]) -> Panel:
    """Return the panel of a stage: how its workers spent their time, and how long a call took."""
    layers: list[Layer] = []
    below = _zeros(track)
    for label, colour, part in _STAGE_LAYERS:
        tops = tuple(
            min(1.0, base + value) for base, value in zip(below, _values(track, part), strict=True)
        )
        layers.append(Layer(label, colour, tops, below))
        below = tops
    of = "workers' time" if whole.generation is None else "places in flight"
    times = Plot(
        f"share of the {of}; busy {share(whole.busy)} on average",
        tuple(layers),
        _SHARE_SCALE,
    )
    halves = _values(track, lambda stage: stage.service.quantile(0.5))
    most = _values(track, lambda stage: stage.service.quantile(0.9))
    service = Plot(
        f"time per call; median {duration(whole.service.quantile(0.5))},"
        f" P90 {duration(whole.service.quantile(0.9))}",
        (Layer("P90", "other", most), Layer("median", "busy", halves)),
        _duration_scale(max(most)),
        is_small=True,
    )
    reader, items = workers(round(whole.workers), whole.now.where), "items"
    if whole.generation is not None:
        reader, items = f"{whole.now.in_flight:,} in flight", "rollouts"
    details = f"{reader}, {count(round(whole.rate, 2))} {items}/s"
    return Panel(whole.now.name, details, (times, service))


def _generation_panel(
    name: str, whole: GenerationInterval, track: Sequence[GenerationInterval | None]
) -> Panel:
    """Return the panel of what a trainer gets: how old it is, and which side waits."""
    now = whole.now
    ages = _values(track, lambda one: one.mean_staleness)
    lags = _values(track, lambda one: float(one.now.publish_lag))
    staleness = Plot(
        f"steps; staleness {whole.mean_staleness:.1f} on average, {now.worst_staleness} at worst",
        (Layer("publish lag", "other", lags), Layer("mean staleness", "busy", ages)),
        _count_scale(max(1.0, *ages, *lags)),
    )
    trainer = _values(track, lambda one: one.trainer)
    slots = _values(track, lambda one: one.slots)
    gate = _values(track, lambda one: one.gate)
    waiting = Plot(
        f"share of the time; {share(whole.trainer)}, {share(whole.slots)} and {share(whole.gate)}"
        " on average",
        (
            Layer("the trainer waits", "starved", trainer),
            Layer("no slot is free", "blocked", slots),
            Layer("weights are published", "source", gate),
        ),
        _SHARE_SCALE,
        is_small=True,
    )
    details = f"version {now.version}, {count(round(whole.group_rate, 2))} groups/s"
    return Panel(f"{name}: groups", details, (staleness, waiting))


_STAGE_LAYERS: Final[tuple[tuple[str, Colour, Callable[[StageInterval], float]], ...]] = (
    ("busy", "busy", lambda stage: stage.busy),
    ("waits for items", "starved", lambda stage: stage.starved),
    ("waits for room", "blocked", lambda stage: stage.blocked),
)


def _queue_panel(whole: QueueInterval, track: Sequence[QueueInterval | None]) -> Panel:
    """Return the panel of a queue: how full it was, and how many callers waited."""
    now = whole.now
    bound = "no bound" if now.capacity is None else f"capacity {now.capacity:,}"
    fill = _size_plot(track) if now.capacity is None else _fill_plot(whole, track)
    into = _values(track, lambda queue: queue.enqueue_waiting)
    out = _values(track, lambda queue: queue.dequeue_waiting)
    waiting = Plot(
        f"waiting callers; on average {count(round(whole.enqueue_waiting, 2))} to enqueue,"
        f" {count(round(whole.dequeue_waiting, 2))} to dequeue",
        (Layer("to enqueue", "blocked", into), Layer("to dequeue", "starved", out)),
        _count_scale(max(1.0, *into, *out)),
        is_small=True,
    )
    return Panel(now.name, f"{now.kind}, {bound}", (fill, waiting))


def _fill_plot(whole: QueueInterval, track: Sequence[QueueInterval | None]) -> Plot:
    lows = _values(track, lambda queue: queue.low)
    means = _values(track, lambda queue: queue.mean)
    highs = _values(track, lambda queue: queue.high)
    return Plot(
        f"share of the capacity in use; {share(whole.mean)} on average",
        (
            Layer("in 80 % of the time", "fill", highs, lows, is_faint=True),
            Layer("mean", "fill", means),
        ),
        _SHARE_SCALE,
    )


def _size_plot(track: Sequence[QueueInterval | None]) -> Plot:
    values = _values(track, lambda queue: float(queue.now.size))
    return Plot(
        f"elements in the queue; {count(values[-1])} at the end",
        (Layer("size", "fill", values),),
        _count_scale(max(values)),
    )


_Part = TypeVar("_Part", StageInterval, QueueInterval, GenerationInterval)


def _values(track: Sequence[_Part | None], of: Callable[[_Part], float]) -> tuple[float, ...]:
    return tuple(0.0 if part is None else of(part) for part in track)


def _zeros(track: Sequence[object]) -> tuple[float, ...]:
    return (0.0,) * len(track)


_SHARE_SCALE: Final = Scale(1.0, ((0.0, "0"), (0.5, "50 %"), (1.0, "100 %")))


def _count_scale(most: float) -> Scale:
    """Return an axis for counts; its top is a round number at or above the largest."""
    top = _round_up(most)
    return Scale(top, ((0.0, "0"), (top / 2, _tick_label(top / 2)), (top, _tick_label(top))))


def _duration_scale(most: float) -> Scale:
    """Return an axis for durations, in the unit of the largest."""
    unit, name = next(((unit, name) for unit, name in _UNITS if most < 1000 * unit), (1.0, "s"))
    top = _round_up(most / unit) * unit
    ticks = ((0.0, "0"), (top, f"{_tick_label(top / unit)} {name}"))
    return Scale(top, ticks)


_UNITS: Final = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))


def _tick_label(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.10g} k"
    return f"{value:,.10g}"


def _round_up(most: float) -> float:
    """Return the next of 1, 2, 3, 4, 5, 6, 8 times a power of ten."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(
        (digit * power for digit in (1, 2, 3, 4, 5, 6, 8) if most <= digit * power * (1 + 1e-9)),
        10 * power,
    )


def time_ticks(begin: float, end: float) -> list[tuple[float, str, bool]]:
    """Return the ticks of the time axis: the second, its label, and whether a narrow picture shows
    it too."""
    span = max(end - begin, 1e-3)
    every = next((step for step in _TICK_STEPS if span / step <= 10), 3600.0)
    near = 0.02 * span  # a tick this close to an end is drawn at the end
    first = math.ceil((begin - near) / every)
    last = math.floor((end + near) / every)
    return [
        (
            min(max(tick * every, begin), end),
            _time_label(tick * every, every),
            tick % 2 == 0 or last - first < 5,
        )
        for tick in range(first, last + 1)
    ]


_TICK_STEPS: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800)


def _time_label(seconds: float, every: float) -> str:
    return f"{seconds:.1f} s" if every < 1 else clock(seconds)
