"""Draws a run as a picture with Matplotlib, with the panels of the page."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from aioqueue.base import extras
from aioqueue.base.display_text import on_one_line, sentence, shortened
from aioqueue.telemetry.metrics.snapshots import Snapshot
from aioqueue.telemetry.verdict.bottleneck import Verdict
from aioqueue.telemetry.verdict.monitored_run import Judge
from aioqueue.telemetry.views.chart_data import (
    COLOURS,
    NOTHING_YET,
    Chart,
    Panel,
    Plot,
    Scheme,
    chart_of,
    time_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

_WIDTH: Final = 10.0
"""Width of the picture in inches: 1200 pixels at the default resolution of `picture`."""

_HEAD: Final = 1.45
_TITLE: Final = 0.42
_PLOT: Final = 1.65
_SMALL_PLOT: Final = 0.95
_TIME_AXIS: Final = 0.3
"""Heights in inches: the verdict with its band; the title of a panel; a plot with its caption and
legend; a small plot; the axis below."""

_CAPTION: Final = 0.15
_LEGEND: Final = 0.34
_LINES_TOP: Final = 0.44
"""Distances in inches from the top of a plot: the middle of its caption, the bottom of its legend,
and the top of its lines."""

_DOTS_PER_INCH: Final = 120
_NARROW: Final = 0.09


def picture(
    snapshots: Sequence[Snapshot], verdict: Verdict, judge: Judge, *, kind: str, dark: bool
) -> bytes:
    """Return the picture of a run.

    Args:
        snapshots: at least one, from `aioqueue.telemetry.metrics.intervals.recorded`.
        verdict: the verdict on all of them.
        judge: returns the verdict between two snapshots.
        kind: a format of Matplotlib: ``"png"``, ``"svg"`` or ``"pdf"``.
        dark: whether to draw light on dark.

    Raises:
        ImportError: Matplotlib is not installed.
    """
    scheme = COLOURS["dark" if dark else "light"]
    matplotlib = _matplotlib()
    # Makes pictures reproducible, and keeps the text of vector formats searchable.
    options: dict[str, Any] = {"svg.hashsalt": "aioqueue", "svg.fonttype": "none", "font.size": 8.5}
    options["text.parse_math"] = False  # a name may have dollars
    fonts = matplotlib.rc_context({**options, "font.family": "DejaVu Sans"})
    with fonts, warnings.catch_warnings():
        # A name may be in a script that the font lacks; the file is good without these letters.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        if len(snapshots) < 2:
            figure = _empty(scheme)
        else:
            figure = _figure(chart_of(snapshots, judge), verdict, scheme)
        written = io.BytesIO()
        metadata = {"png": None, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
        figure.savefig(
            written, format=kind, dpi=_DOTS_PER_INCH, facecolor=scheme.page, metadata=metadata
        )
    return written.getvalue()


def _matplotlib() -> Any:
    """Import and return Matplotlib without pyplot, so that no window ever opens.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import matplotlib as module
        import matplotlib.figure
    except ImportError as error:
        raise ImportError(
            f"pictures of a run need Matplotlib: {extras.command_for('pictures')}; or save it as"
            " .html, which needs nothing"
        ) from error
    return module


def _empty(scheme: Scheme) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, _HEAD))
    figure.text(0.03, 0.5, NOTHING_YET, color=scheme.text, size=13, weight="bold", va="center")
    return figure


def _figure(chart: Chart, verdict: Verdict, scheme: Scheme) -> Figure:
    from matplotlib.figure import Figure

    rows = [chart.panels[index : index + 2] for index in range(0, len(chart.panels), 2)]
    heights = [_HEAD, *(max(map(_height, row)) for row in rows)]
    figure = Figure(figsize=(_WIDTH, sum(heights)))
    head, *others = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    _draw_head(head, chart, verdict, scheme)
    for part, row in zip(others, rows, strict=True):
        for half, panel in zip(part.subfigures(1, 2), row, strict=False):
            _draw_panel(half, panel, chart.times, scheme)
    for part in (head, *others):
        part.set_facecolor(scheme.page)
    return figure


def _height(panel: Panel) -> float:
    plots = sum(_SMALL_PLOT if plot.is_small else _PLOT for plot in panel.plots)
    return _TITLE + plots + _TIME_AXIS


def _draw_head(part: SubFigure, chart: Chart, verdict: Verdict, scheme: Scheme) -> None:
    part.text(0.03, 0.9, chart.title, color=scheme.muted, size=8.5, va="center")
    text = textwrap.shorten(sentence(str(verdict)), 190, placeholder=" …")
    lines = textwrap.fill(text, 95)
    part.text(0.03, 0.67, lines, color=scheme.text, size=11.5, weight="bold", va="center")
    axes = part.add_axes((0.03, 0.2, 0.94, 0.24))
    begin, end = chart.times[0], chart.times[-1]
    on = "#0d1117" if scheme is COLOURS["dark"] else "#ffffff"
    for period in chart.periods:
        width = period.end - period.begin
        colour = scheme.of[period.colour]
        axes.axvspan(period.begin, period.end, color=colour, linewidth=0)
        axes.axvline(period.end, color=scheme.page, linewidth=1.5)
        if width / (end - begin) >= _NARROW:
            letters = round(110 * width / (end - begin))
            name = shortened(period.label, max(letters, 3))
            middle = (period.begin + period.end) / 2
            axes.text(middle, 0.5, name, color=on, ha="center", va="center", clip_on=True)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    _draw_time(axes, chart.times, scheme)


def _draw_panel(part: SubFigure, panel: Panel, times: Sequence[float], scheme: Scheme) -> None:
    height = _height(panel)
    part.set_facecolor(scheme.page)
    name = shortened(panel.title, 44)
    part.text(0.06, 1 - 0.1 / height, name, color=scheme.text, size=10, weight="bold", va="top")
    part.text(
        0.06, 1 - 0.29 / height, on_one_line(panel.details), color=scheme.muted, size=8, va="top"
    )
    bottom = height - _TITLE
    for plot in panel.plots:
        size = _SMALL_PLOT if plot.is_small else _PLOT
        top, bottom = bottom, bottom - size
        has_legend = len(plot.layers) > 1
        below = _CAPTION if has_legend else _LEGEND - 0.05
        part.text(
            0.06,
            (top - below) / height,
            plot.caption,
            color=scheme.muted,
            size=8,
            va="center",
        )
        box = (0.125, bottom / height, 0.83, (size - _LINES_TOP) / height)
        axes = part.add_axes(box)
        _draw_plot(axes, plot, times, scheme)
        if has_legend:
            _draw_legend(part, (top - _LEGEND) / height, plot, scheme)
        if plot is not panel.plots[-1]:
            axes.tick_params(labelbottom=False)


def _draw_plot(axes: Axes, plot: Plot, times: Sequence[float], scheme: Scheme) -> None:
    for layer in plot.layers:
        colour = scheme.of[layer.colour]
        if layer.bottoms is None:
            axes.stairs(
                layer.tops, times, baseline=None, color=colour, linewidth=1.3, clip_on=False
            )
            continue
        axes.fill_between(
            times,
            (*layer.bottoms, layer.bottoms[-1]),
            (*layer.tops, layer.tops[-1]),
            step="post",
            color=colour,
            alpha=0.3 if layer.is_faint else 1.0,
            linewidth=0,
        )
    axes.set_ylim(0, plot.scale.top)
    axes.set_yticks(
        [value for value, _ in plot.scale.ticks], [label for _, label in plot.scale.ticks]
    )
    axes.grid(color=scheme.grid, linewidth=0.6)
    axes.set_axisbelow(True)
    _draw_time(axes, times, scheme)


def _draw_legend(part: SubFigure, y: float, plot: Plot, scheme: Scheme) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(
            color=scheme.of[layer.colour], alpha=0.3 if layer.is_faint else 1.0, label=layer.label
        )
        for layer in plot.layers
    ]
    part.legend(
        handles=patches,
        loc="lower left",
        bbox_to_anchor=(0.06, y),
        ncols=len(patches),
        fontsize=8,
        labelcolor=scheme.muted,
        frameon=False,
        handlelength=0.8,
        handleheight=0.8,
        handletextpad=0.4,
        columnspacing=1.2,
        borderaxespad=0.0,
        borderpad=0.0,
    )


def _draw_time(axes: Axes, times: Sequence[float], scheme: Scheme) -> None:
    ticks = time_ticks(times[0], times[-1])
    axes.set_xlim(times[0], times[-1])
    axes.set_xticks([at for at, _, _ in ticks], [label for _, label, _ in ticks])
    axes.tick_params(colors=scheme.muted, length=0, labelsize=7.5)
    axes.set_facecolor(scheme.panel)
    for spine in axes.spines.values():
        spine.set_visible(False)
