"""Draws a run as a single HTML page with SVG, which needs no network and no script.

Lines and areas are SVG, stretched to the width of the page. All text is HTML beside them, so that
it has the same size on a phone and on a wide screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from aioqueue.base.display_text import (
    clock,
    count,
    duration,
    sentence,
    share,
    shortened,
    size,
    workers,
)
from aioqueue.base.display_text import escaped_for_xml as escape
from aioqueue.telemetry.metrics.intervals import (
    FunctionInterval,
    GenerationInterval,
    Interval,
    QueueInterval,
    StageInterval,
)
from aioqueue.telemetry.metrics.snapshots import Snapshot
from aioqueue.telemetry.verdict.bottleneck import Verdict
from aioqueue.telemetry.verdict.monitored_run import Judge
from aioqueue.telemetry.views.chart_data import (
    COLOURS,
    NOTHING_YET,
    Chart,
    Layer,
    Panel,
    Period,
    Plot,
    Scheme,
    chart_of,
    time_ticks,
)

_WIDTH: Final = 1000
_HEIGHT: Final = 100
"""Height of the box for lines, in its own units; the page stretches it."""

_NARROW: Final = 0.07
"""A period narrower than this share of the width gets no text."""


def page(snapshots: Sequence[Snapshot], verdict: Verdict, judge: Judge) -> str:
    """Return the page of a run.

    Args:
        snapshots: at least one, from `aioqueue.telemetry.metrics.intervals.recorded`.
        verdict: the verdict on all of them.
        judge: returns the verdict between two snapshots.
    """
    if len(snapshots) < 2:
        return _document(
            f"<header>\n<h1>{NOTHING_YET}</h1>\n</header>", "A run that has just begun"
        )
    chart = chart_of(snapshots, judge)
    parts = [
        _header(chart, verdict, snapshots),
        _bottleneck_band(chart),
        '<div class="panels">',
        *[_panel(panel, chart.times) for panel in chart.panels],
        "</div>",
        _stages(chart.whole),
        _generations(chart.whole),
        _functions(chart.whole),
        _queues(chart.whole),
    ]
    return _document("\n".join(filter(None, parts)), sentence(str(verdict)))


def _document(body: str, title: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_styles()}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


# The head of the page: the verdict, and over time.


def _header(chart: Chart, verdict: Verdict, snapshots: Sequence[Snapshot]) -> str:
    first, last = snapshots[0], snapshots[-1]
    whole = chart.whole
    cores = (last.process_cpu - first.process_cpu) / whole.seconds
    figures = [
        (f"{count(round(whole.step.rate, 2))}/s", f"{whole.step.unit} handed over"),
        (share(whole.step.waits), "of the time waited for data"),
        (f"{count(round(cores, 1))} of {count(last.cores)}", "cores used by this process"),
        (f"{clock(whole.seconds)} min", "of the run shown here"),
    ]
    tiles = "".join(
        f"<div><dt>{escape(what)}</dt><dd>{escape(value)}</dd></div>" for value, what in figures
    )
    return (
        f'<header>\n<p class="when">{chart.title}</p>\n'
        f"<h1>{_with_hard_spaces(sentence(str(verdict)))}</h1>\n<dl>{tiles}</dl>\n</header>"
    )


def _with_hard_spaces(text: str) -> str:
    """Return a sentence in which a line break never separates a number from its unit."""
    return escape(text).replace(" %", "&nbsp;%")


def _bottleneck_band(chart: Chart) -> str:
    """Return the bottleneck over time as a band, with the total time of each."""
    begin, end = chart.times[0], chart.times[-1]
    spans = "".join(_period(period, begin, end - begin) for period in chart.periods)
    totals: dict[tuple[str, str], float] = {}
    for period in chart.periods:
        key = (period.label, period.colour)
        totals[key] = totals.get(key, 0.0) + period.end - period.begin
    legend = "".join(
        f'<li><i class="{colour}"></i>{escape(label)} <b>{share(seconds / (end - begin))}</b></li>'
        for (label, colour), seconds in sorted(totals.items(), key=lambda entry: -entry[1])
    )
    return (
        '<section class="card limits"><h2>Bottleneck</h2>'
        f'<ul class="legend">{legend}</ul>\n<div class="plot"><div class="area">'
        f'<div class="strip">{spans}</div>{_time_axis(chart.times)}</div></div></section>'
    )


def _period(period: Period, begin: float, seconds: float) -> str:
    left, width = (period.begin - begin) / seconds, (period.end - period.begin) / seconds
    label = escape(shortened(period.label, 24)) if width >= _NARROW else ""
    when = f"{clock(period.begin)} to {clock(period.end)}"
    return (
        f'<span class="{period.colour}" style="left:{100 * left:.2f}%;width:{100 * width:.2f}%"'
        f' title="{escape(f"{when}: {sentence(period.sentence)}")}">{label}</span>'
    )


# Panels.


def _panel(panel: Panel, times: Sequence[float]) -> str:
    plots = "\n".join(_plot(plot, times) for plot in panel.plots)
    return (
        f'<section class="card"><h2 title="{escape(panel.title)}">'
        f"{escape(shortened(panel.title, 36))}</h2>"
        f'<p class="details">{escape(panel.details)}</p>\n{plots}\n</section>'
    )


def _plot(plot: Plot, times: Sequence[float]) -> str:
    legend = ""
    if len(plot.layers) > 1:
        legend = "".join(
            f'<li><i class="{layer.colour}{" faint" if layer.is_faint else ""}"></i>'
            f"{escape(layer.label)}</li>"
            for layer in plot.layers
        )
        legend = f'<ul class="legend">{legend}</ul>'
    ys = "".join(
        f'<span style="bottom:{100 * value / plot.scale.top:.4g}%">{escape(label)}</span>'
        for value, label in plot.scale.ticks
    )
    return (
        f'<figure class="plot{" small" if plot.is_small else ""}">'
        f"<figcaption>{escape(plot.caption)}</figcaption>{legend}"
        f'<div class="area"><div class="ys">{ys}</div>{_drawing(plot, times)}'
        f"{_time_axis(times)}</div></figure>"
    )


def _time_axis(times: Sequence[float]) -> str:
    begin, end = times[0], times[-1]
    marks = "".join(
        f"<span{'' if is_major else ' class=minor'}"
        f' style="left:{100 * (at - begin) / (end - begin):.4g}%">{label}</span>'
        for at, label, is_major in time_ticks(begin, end)
    )
    return f'<div class="xs">{marks}</div>'


def _drawing(plot: Plot, times: Sequence[float]) -> str:
    begin, end = times[0], times[-1]
    xs = [_WIDTH * (at - begin) / (end - begin) for at in times]
    grid = "".join(
        f"M0 {_y(value, plot.scale.top)}H{_WIDTH}" for value, _ in plot.scale.ticks
    ) + "".join(
        f"M{_WIDTH * (at - begin) / (end - begin):.4g} 0V{_HEIGHT}"
        for at, _, _ in time_ticks(begin, end)
    )
    shapes = "".join(_shape(layer, xs, plot.scale.top) for layer in plot.layers)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img"'
        f' aria-label="{escape(plot.caption)}"><path class="grid" d="{grid}"/>{shapes}</svg>'
    )


def _shape(layer: Layer, xs: Sequence[float], top: float) -> str:
    upper = _stair_path(layer.tops, xs, top)
    if layer.bottoms is None:
        return f'<path class="line {layer.colour}" d="{upper}"/>'
    lower = _stair_path(layer.bottoms[::-1], xs[::-1], top).replace("M", "L", 1)
    faint = " faint" if layer.is_faint else ""
    return f'<path class="band {layer.colour}{faint}" d="{upper}{lower}Z"/>'


def _stair_path(values: Sequence[float], xs: Sequence[float], top: float) -> str:
    """Return a line with one value from each of ``xs`` to the next; equal ones are merged."""
    parts: list[str] = []
    latest = ""
    for index, (value, (begin, end)) in enumerate(zip(values, pairwise(xs), strict=True)):
        height = _y(value, top)
        if not parts:
            parts.append(f"M{begin:.5g} {height}")
        elif height != latest:
            parts.append(f"H{begin:.5g}V{height}")
        latest = height
        if index == len(values) - 1:
            parts.append(f"H{end:.5g}")
    return "".join(parts)


def _y(value: float, top: float) -> str:
    return f"{_HEIGHT * (1 - min(value / top, 1.0)):.4g}"


# Tables.


def _stages(whole: Interval) -> str:
    head = (
        "stage",
        "workers",
        "items/s",
        "busy",
        "waits for items",
        "waits for room",
        "on a core",
        "median",
        "P90",
        "P99",
        "in flight",
        "skipped",
        "retried",
        "deaths",
    )
    return _table("Stages", head, [_stage_row(stage) for stage in whole.stages])


def _stage_row(stage: StageInterval) -> Iterator[str]:
    now = stage.now
    yield now.name
    yield workers(round(stage.workers), now.where)
    yield count(round(stage.rate, 2))
    yield from map(share, (stage.busy, stage.starved, stage.blocked))
    yield "–" if stage.on_processor is None else share(stage.on_processor)
    yield from (duration(stage.service.quantile(part)) for part in (0.5, 0.9, 0.99))
    yield (
        f"{now.in_flight:,}"
        if now.max_in_flight is None
        else f"{now.in_flight:,} of {now.max_in_flight:,}"
    )
    yield from map(count, (now.skipped, now.retried, now.deaths))


def _generations(whole: Interval) -> str:
    head = (
        "generation",
        "groups/s",
        "ready",
        "existing",
        "mean staleness",
        "worst staleness",
        "version",
        "publish lag",
        "trainer waits",
        "waits for slots",
        "waits at the gate",
        "publishing",
    )
    rows = [
        _generation_row(stage.now.name, stage.generation)
        for stage in whole.stages
        if stage.generation is not None
    ]
    return _table("Generation and training", head, rows)


def _generation_row(name: str, one: GenerationInterval) -> Iterator[str]:
    now = one.now
    yield name
    yield count(round(one.group_rate, 2))
    yield f"{now.ready:,}"
    yield f"{now.existing:,}" if now.slots is None else f"{now.existing:,} of {now.slots:,}"
    yield f"{one.mean_staleness:.2f}"
    yield from map(count, (now.worst_staleness, now.version, now.publish_lag))
    yield from map(share, (one.trainer, one.slots, one.gate, one.publishing))


def _functions(whole: Interval) -> str:
    head = ("function", "of", "called by", "calls/s", "busy", "median", "P90", "P99")
    rows = [_function_row(one, whole.seconds) for one in whole.busiest_functions()]
    return _table("Functions between stages", head, rows)


def _function_row(one: FunctionInterval, seconds: float) -> Iterator[str]:
    now = one.now
    yield now.name
    yield now.kind
    yield "the loop" if now.within is None else now.within
    yield count(round(one.service.count / seconds, 2))
    yield share(one.busy)
    yield from (duration(one.service.quantile(part)) for part in (0.5, 0.9, 0.99))


def _queues(whole: Interval) -> str:
    head = (
        "queue",
        "kind",
        "inside",
        "memory",
        "in/s",
        "out/s",
        "filled",
        "empty",
        "full",
        "longest wait to put in",
        "to take out",
    )
    return _table("Queues", head, [_queue_row(queue) for queue in whole.queues])


def _queue_row(queue: QueueInterval) -> Iterator[str]:
    now = queue.now
    yield now.name
    yield now.kind
    yield f"{now.size:,}" if now.capacity is None else f"{now.size:,} of {now.capacity:,}"
    yield "–" if now.bytes is None else size(now.bytes)
    yield from (count(round(rate, 2)) for rate in (queue.rate_in, queue.rate_out))
    yield "–" if now.capacity is None else share(queue.mean)
    yield share(queue.empty)
    yield "–" if now.capacity is None else share(queue.full)
    for waits, waiting in (
        (now.enqueue_waits, now.enqueue_waiting),
        (now.dequeue_waits, now.dequeue_waiting),
    ):
        yield duration(max(waits.longest, *waiting, 0.0))


def _table(title: str, head: Sequence[str], rows: Sequence[Iterable[str]]) -> str:
    if not rows:
        return ""
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = "\n".join(_row(row) for row in rows)
    return (
        f'<section class="card"><h2>{title}</h2><div class="scroll" tabindex="0"><table>'
        f"<thead><tr>{cells}</tr></thead>\n<tbody>{lines}</tbody></table></div></section>"
    )


def _row(cells: Iterable[str]) -> str:
    first, *others = cells
    rest = "".join(f"<td>{escape(cell)}</td>" for cell in others)
    name = escape(shortened(first, 24))
    return f'<tr><th scope="row" title="{escape(first)}">{name}</th>{rest}</tr>'


# Styles.


def _styles() -> str:
    light, dark = COLOURS["light"], COLOURS["dark"]
    colours = "".join(f".{name}{{--own:var(--{name})}}\n" for name in light.of)
    return (
        f":root{{{_variables(light)}--on:#fff}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{_variables(dark)}--on:#0d1117}}}}\n"
        f"{colours}{_CSS}"
    )


def _variables(scheme: Scheme) -> str:
    plain = {name: getattr(scheme, name) for name in ("page", "panel", "text", "muted", "grid")}
    meaning = {str(name): value for name, value in scheme.of.items()}
    return "".join(f"--{name}:{value};" for name, value in (plain | meaning).items())


_CSS: Final = """\
*{box-sizing:border-box;margin:0}
body{background:var(--page);color:var(--text);font:15px/1.45 system-ui,sans-serif;
 font-variant-numeric:tabular-nums;-webkit-text-size-adjust:100%}
main{max-width:80rem;margin:0 auto;padding:1.5rem clamp(.75rem,3vw,2rem) 3rem;display:grid;
 gap:1rem;grid-template-columns:minmax(0,1fr)}
.when,.details,figcaption,dt,.legend,.ys,.xs{color:var(--muted)}
h1{font-size:clamp(1.2rem,1rem + 1.3vw,1.7rem);line-height:1.3;font-weight:650;
 max-width:60ch;margin:.25rem 0 1rem;overflow-wrap:anywhere;text-wrap:pretty}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem 1.5rem}
dl div{display:flex;flex-direction:column;border-top:1px solid var(--grid);
 padding-top:.5rem}
dt{font-size:.82rem}
dd{order:-1;font-size:1.35rem;font-weight:600;line-height:1.2}
.card{background:var(--panel);border:1px solid var(--grid);border-radius:8px;
 padding:.85rem 1rem 1rem;min-width:0}
.panels{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,29rem),1fr))}
h2{font-size:1rem;font-weight:650;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.details,figcaption,.legend{font-size:.82rem}
figcaption{margin-top:.6rem}
.legend{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.1rem .9rem}
.legend li{white-space:nowrap;max-width:100%;overflow:hidden;text-overflow:ellipsis}
.legend b{color:var(--text);font-weight:600}
.legend i{display:inline-block;width:.7rem;height:.7rem;border-radius:2px;margin-right:.4rem;
 background:var(--own)}
.legend i.faint{opacity:.35}
.area{position:relative;margin:.45rem .75rem 1.35rem 3.1rem;height:7rem}
.small .area{height:3.6rem}
.plot:not(:last-child) .xs{display:none}
.plot:not(:last-child) .area{margin-bottom:.9rem}
.limits .area{height:1.9rem;margin-left:.25rem}
svg{display:block;width:100%;height:100%;overflow:visible}
svg path{vector-effect:non-scaling-stroke}
.grid{stroke:var(--grid);fill:none;stroke-width:1}
.band{fill:var(--own);stroke:var(--panel);stroke-width:.75}
.band.faint{opacity:.3;stroke:none}
.line{stroke:var(--own);fill:none;stroke-width:1.75;stroke-linejoin:round}
.ys,.xs{font-size:.75rem;line-height:1}
.ys span{position:absolute;right:calc(100% + .45rem);transform:translateY(50%);white-space:nowrap}
.xs span{position:absolute;top:calc(100% + .4rem);transform:translateX(-50%);white-space:nowrap}
.strip span{position:absolute;top:0;bottom:0;background:var(--own);color:var(--on);
 font-size:.8rem;line-height:1.9rem;padding:0 .4rem;white-space:nowrap;overflow:hidden;
 text-overflow:ellipsis;border-right:2px solid var(--panel)}
.scroll{overflow-x:auto;margin-top:.5rem}
table{border-collapse:collapse;font-size:.85rem;width:100%}
th,td{text-align:right;padding:.35rem .6rem;white-space:nowrap;border-top:1px solid var(--grid)}
thead th{color:var(--muted);font-weight:500;border-top:0;vertical-align:bottom;
 white-space:normal;min-width:4.2rem}
th:first-child{text-align:left;padding-left:0;position:sticky;left:0;background:var(--panel)}
tbody th{font-weight:600}
td:nth-child(2),thead th:nth-child(2){text-align:left}
@media (max-width:40rem){.minor{display:none}.card{padding:.75rem .7rem .85rem}
 th:first-child{max-width:9rem;white-space:normal;overflow-wrap:anywhere}}
@media print{body{background:#fff}.card{break-inside:avoid}}
"""
