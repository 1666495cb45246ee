"""A run as a table for terminals (rich) or as one line, and its waits beside a progress bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aioqueue.base import extras
from aioqueue.base.display_text import (
    clock,
    count,
    duration,
    on_one_line,
    sentence,
    share,
    shortened,
    workers,
)
from aioqueue.telemetry.metrics.intervals import (
    FunctionInterval,
    GenerationInterval,
    Interval,
    QueueInterval,
    StageInterval,
    latest,
)
from aioqueue.telemetry.verdict.bottleneck import Verdict
from aioqueue.telemetry.verdict.monitored_run import MonitoredRun

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.progress import ProgressColumn
    from rich.table import Table


_WIDE: Final = 96
"""From this many columns on, the table has room for secondary numbers."""

_NARROW: Final = 64
"""Below this many columns, the table has no room for bars."""

_BAR_WIDTH: Final = 8
_SHOWN_FROM: Final = 0.01
"""A function between stages gets a row from this share of the time on."""

_HIGHLIGHTED_FROM: Final = 0.2
"""A wait gets a colour from this share of the time on."""


def rich() -> Any:
    """Import and return rich.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import rich as module
        import rich.console
        import rich.live
        import rich.progress
        import rich.progress_bar
        import rich.table
        import rich.text
    except ImportError as error:
        raise ImportError(
            f"tables and bars in a terminal require rich: {extras.command_for('rich')}"
        ) from error
    return module


def status_line(watched: MonitoredRun, seconds: float) -> str:
    """Return a run as one line, for logs: ``12:05 183 batches/s, waits 27 %; …`` and the verdict.

    Args:
        watched: the run.
        seconds: how many of the last seconds it covers.
    """
    now = watched.snapshot()
    interval = latest(watched.history, now, seconds)
    step = interval.step
    stages = "".join(
        f"; {on_one_line(stage.now.name)} busy {share(stage.busy)}"
        + ("" if stage.generation is None else f", {_staleness(stage.generation)}")
        for stage in interval.stages
    )
    return (
        f"{clock(now.seconds)} {count(round(step.rate, 2))} {step.unit}/s, waits"
        f" {share(step.waits)}{stages}. {sentence(str(watched.verdict(seconds)))}"
    )


class RunTable:
    """A table that rich can print, alone or in a layout, with the numbers of each moment.

    It has a row for every stage and queue, in the order of the data flow, and the verdict below.

    A stage's row shows the items delivered per second, and the shares of its workers' time that
    they were busy, waited for items and waited for room. A queue's row shows the elements dequeued
    per second, how full it was, and how many callers waited on average to dequeue and to enqueue. A
    function between stages (a ``collate``, a filter, a source) shows how often it was called and
    for which share of the time, if that is at least one per cent. The generation of a
    `RolloutQueue` has a row of its groups, with their mean and worst staleness, and the publish
    lag.

    Args:
        watched: the run.
        seconds: how many of the last seconds rates and shares cover.

    Raises:
        ImportError: rich is not installed.
    """

    def __init__(self, watched: MonitoredRun, seconds: float = 5.0) -> None:
        rich()
        self._watched = watched
        self._seconds = seconds

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        now = self._watched.snapshot()
        interval = latest(self._watched.history, now, self._seconds)
        verdict = self._watched.verdict(self._seconds)
        yield _headline(interval, options.max_width)
        if interval.stages or interval.queues or interval.functions:
            yield _table(interval, verdict, options.max_width, ascii_only=options.ascii_only)
        yield Text(sentence(str(verdict)), style="bold")


def _headline(interval: Interval, width: int) -> Any:
    from rich.text import Text

    step = interval.step
    reader = "the training step" if step.unit == "batches" else "the reader"
    head = Text.assemble(
        (clock(interval.end), "dim"),
        "  ",
        (count(round(step.rate, 2)), "bold"),
        f" {step.unit}/s   {reader} waits ",
        (share(step.waits), "bold yellow" if step.waits > _HIGHLIGHTED_FROM else "bold"),
    )
    rest = " of the time"
    return head.append(rest) if head.cell_len + len(rest) <= width else head


@dataclass(frozen=True)
class _Row:
    """A stage or a queue: its name, the text of each column, and its style."""

    mark: str
    name: str
    what: str
    rate: str
    part: float | None
    """Share that is busy, or filled."""
    median: str
    most: str
    data: str
    room: str
    style: str = ""

    def cells(self, letters: int, *, has_bars: bool, is_wide: bool) -> Iterator[Any]:
        """Return the text of each column, with the name cut to a width."""
        from rich.text import Text

        yield Text(f"{self.mark}{shortened(self.name, letters - len(self.mark))}")
        yield Text(on_one_line(self.what))
        yield self.rate
        if has_bars:
            yield "" if self.part is None else _bar(self.part, "dim" in self.style)
        yield "" if self.part is None else share(self.part)
        if is_wide:
            yield self.median
            yield self.most
        yield self.data
        yield self.room


def _table(interval: Interval, verdict: Verdict, width: int, *, ascii_only: bool) -> Table:
    from rich import box
    from rich.table import Table

    rows = list(_all_rows(interval, verdict, ">" if ascii_only else "▶"))
    has_bars, is_wide = width >= _NARROW, width >= _WIDE
    table = Table(
        box=box.ASCII2 if ascii_only else box.SIMPLE_HEAD,
        padding=0,
        show_edge=False,
        header_style="dim",
        expand=True,
    )
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(no_wrap=True)
    table.add_column("per s", justify="right", no_wrap=True)
    if has_bars:
        table.add_column("busy or", width=_BAR_WIDTH, justify="right")
    for name in ("full" if has_bars else "busy", *(("median", "P90") if is_wide else ())):
        table.add_column(name, justify="right", no_wrap=True, min_width=len("100 %"))
    for name in ("no data", "no room"):
        table.add_column(name, justify="right", no_wrap=True)
    letters = max(8, width - _width_beside_names(rows, has_bars=has_bars, is_wide=is_wide))
    for row in rows:
        cells = row.cells(letters, has_bars=has_bars, is_wide=is_wide)
        table.add_row(*cells, style=row.style)
    return table


def _width_beside_names(rows: Sequence[_Row], *, has_bars: bool, is_wide: bool) -> int:
    """Return the width of all columns but the names, including separators."""
    widths = [
        max((len(row.what) for row in rows), default=0),
        max((len("per s"), *(len(row.rate) for row in rows))),
        len("100 %"),
        max((len("no data"), *(len(row.data) for row in rows))),
        max((len("no room"), *(len(row.room) for row in rows))),
    ]
    widths += [_BAR_WIDTH] if has_bars else []
    widths += [len("999 ms"), len("999 ms")] if is_wide else []
    return sum(widths) + len(widths)


def _all_rows(interval: Interval, verdict: Verdict, mark: str) -> Iterator[_Row]:
    """Return the stages, each before the queue that it fills, with a mark at the bottleneck."""
    limits = verdict.stage if verdict.cause == "stage" else None
    calls: dict[str | None, list[FunctionInterval]] = {}
    for one in interval.busiest_functions():
        if one.busy >= _SHOWN_FROM or one.now.name == limits:
            calls.setdefault(one.now.within, []).append(one)
    for part in interval.in_flow_order():
        if isinstance(part, QueueInterval):
            yield _queue_row(part)
        else:
            yield from _stage_rows(part, calls, limits, mark, interval.seconds)
    for one in calls.pop(None, ()):
        yield _function_row(one, mark if one.now.name == limits else " ", interval.seconds)


def _stage_rows(
    stage: StageInterval,
    calls: dict[str | None, list[FunctionInterval]],
    limits: str | None,
    mark: str,
    seconds: float,
) -> Iterator[_Row]:
    """Return a stage after the functions that its workers wait for."""
    for one in calls.pop(stage.now.name, ()):
        yield _function_row(one, mark if one.now.name == limits else " ", seconds)
    yield _stage_row(stage, mark if stage.now.name == limits else " ")
    if stage.generation is not None:
        yield _groups_row(stage.generation)


def _function_row(one: FunctionInterval, mark: str, seconds: float) -> _Row:
    now = one.now
    return _Row(
        mark=f"{mark} ",
        name=now.name,
        what=now.kind if now.kind != now.name else "",
        rate=count(round(one.service.count / seconds, 1)),
        part=one.busy,
        median=duration(one.service.quantile(0.5)),
        most=duration(one.service.quantile(0.9)),
        data="",
        room="",
        style="" if mark == " " else "bold",
    )


def _stage_row(stage: StageInterval, mark: str) -> _Row:
    now = stage.now
    if stage.generation is not None:
        what = f"{now.in_flight:,} in flight"
    else:
        # A stage that has ended has no workers.
        what = workers(len(now.workers) or round(stage.workers), now.where)
    return _Row(
        mark=f"{mark} ",
        name=now.name,
        what=what,
        rate=count(round(stage.rate, 1)),
        part=stage.busy,
        median=duration(stage.service.quantile(0.5)),
        most=duration(stage.service.quantile(0.9)),
        data=share(stage.starved),
        room=share(stage.blocked),
        style="" if mark == " " else "bold",
    )


def _groups_row(generation: GenerationInterval) -> _Row:
    """Return the groups of a generation, as the queue that it fills."""
    now = generation.now
    return _Row(
        mark="    ",
        name=_staleness(generation),
        what=f"{now.ready:,} ready, lag {now.publish_lag}",
        rate=count(round(generation.group_rate, 1)),
        part=None if now.slots is None else min(1.0, now.existing / max(1, now.slots)),
        median="",
        most="",
        data=_format_waiting(generation.trainer),
        room="",
        style="dim",
    )


def _staleness(generation: GenerationInterval) -> str:
    return f"staleness {generation.mean_staleness:.1f}, worst {generation.now.worst_staleness}"


def _queue_row(queue: QueueInterval) -> _Row:
    now = queue.now
    bounded = now.capacity is not None
    return _Row(
        mark="    ",
        name=now.name,
        what=f"{now.size:,} of {now.capacity:,}" if bounded else f"{now.size:,}",
        rate=count(round(queue.rate_out, 1)),
        part=queue.mean if bounded else None,
        median="",
        most="",
        data=_format_waiting(queue.dequeue_waiting),
        room=_format_waiting(queue.enqueue_waiting),
        style="dim",
    )


def _bar(part: float, is_queue: bool) -> Any:
    from rich.progress_bar import ProgressBar

    style = "green" if is_queue else "blue"
    return ProgressBar(
        total=1.0, completed=part, width=_BAR_WIDTH, complete_style=style, finished_style=style
    )


def _format_waiting(number: float) -> str:
    """Return how many callers waited on average; empty if hardly any did."""
    return f"{count(round(number, 1))} wait" if number >= 0.05 else ""


class Waits:
    """``waits 3 %``: the share of the last seconds in which the training step waited for data.

    It is computed when it is printed. As the ``postfix`` of tqdm, that is whenever the bar is
    drawn; in between it costs nothing.

    Args:
        watched: the run.
        seconds: how many of the last seconds it covers.
    """

    def __init__(self, watched: MonitoredRun, seconds: float = 5.0) -> None:
        self._watched = watched
        self._seconds = seconds

    def __str__(self) -> str:
        interval = latest(self._watched.history, self._watched.snapshot(), self._seconds)
        return f"waits {share(interval.step.waits)}"

    def __radd__(self, before: Any) -> Any:
        # tqdm always prints ", " before the postfix.
        return f"{before}{self}" if isinstance(before, str) else NotImplemented


def waits_column(watched: MonitoredRun, seconds: float = 5.0) -> ProgressColumn:
    """Return the same as a column for `rich.progress.Progress`.

    Args:
        watched: the run.
        seconds: how many of the last seconds it covers.

    Raises:
        ImportError: rich is not installed.
    """
    rich()
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    waits = Waits(watched, seconds)

    class WaitsColumn(ProgressColumn):
        """Shows how long the training step waits."""

        max_refresh = 0.5

        def render(self, task: Task) -> Text:
            return Text(str(waits), style="progress.data.speed")

    return WaitsColumn()
