"""The picture of the benchmarks: how many times as fast as each peer, for light and dark pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ("PICTURES", "draw")

IMAGES = Path(__file__).parents[1] / "docs" / "images"
PICTURES = {scheme: IMAGES / f"benchmarks-{scheme}.svg" for scheme in ("light", "dark")}

PEERS = {
    "asyncio.Queue": "asyncio.Queue",
    "culsans": "culsans",
    "culsans, single gets": "culsans",
    "janus": "janus",
    "queue.Queue": "queue.Queue",
    "TensorFlow": "TensorFlow",
    "torch": "torch DataLoader",
    "torch, no workers": "torch, no workers",
    "spdl": "SPDL",
    "grain": "Grain",
    "the best peer": "the best peer",
}
LIMITS = {
    "one np.copyto": "one np.copyto",
    "limit": "two threads",
    "ideal": "sleeping",
    "processes": "two processes",
    "bare tasks": "64 bare tasks",
    "a future set by call_soon_threadsafe": "call_soon",
}
"""What rows are measured over: other libraries, and what the machine does without any. Rows over
anything else (a bound, or aioqueue itself) are in the table only."""

SECTIONS = {
    "Queues, one element at a time": range(1, 5),
    "Queues, batches of arrays": range(5, 9),
    "Input pipelines": (9, 10, 11, 12, 17, 18, 19, 40, 43, 44),
    "TensorFlow 1's names (aioqueue.compat.v1)": (20, 21, 27, 41, 42),
}
WORDS = {
    "same loop, object queue": "within one event loop",
    "dequeue_many(100) of 1000": "by 100",
    "RandomShuffle": "shuffle",
    "tiny": "tiny examples",
    "decode_jpeg, 640 x 427,": "decoding a JPEG file",
    "jpeg": "JPEG files",
    "io:": "I/O waits:",
    "io,": "I/O waits,",
    "io by": "I/O waits by",
    ", 1,500 examples, heavy main module: first run of a program": ", heavy program: first run",
    ", 1,500 examples, heavy main module": ", heavy program",
    "pycpu": "pure Python",
    "compat.v1: ": "",
    " by Session.run": "",
    " by prepare": ", by prepare",
    ", dequeue_many(128)": "",
    ", batches of 128": "",
    ", batches of 32": "",
    "a wake": "waking",
    "wake, thread to coroutine": "thread wakes coroutine",
}
"""What titles of rows say in code, and what readers of a picture need."""


@dataclass(frozen=True)
class Palette:
    text: str
    muted: str
    better: str
    worse: str


PALETTES = {
    "light": Palette("#20262e", "#5b6572", "#00897b", "#d5690f"),
    "dark": Palette("#e4e8ee", "#a4adba", "#45b3a5", "#ee9f56"),
}


@dataclass(frozen=True)
class Bar:
    """One row: as a share of the other side, more is better, whatever was measured."""

    what: str
    over: str
    times: float
    least: float
    most: float


@dataclass(frozen=True)
class Heading:
    """A line without a bar: the name of a section, or what the bars below it measure."""

    text: str
    is_bold: bool = True


def bar(comparison: Comparison, over: str) -> Bar:
    what = comparison.row.title
    for word, better in WORDS.items():
        what = what.replace(word, better)
    ratios = [comparison.ratio, *comparison.ratios]
    if not comparison.row.at_least:  # so many times the time or the memory
        ratios = [1 / ratio for ratio in ratios]
    return Bar(what, over, ratios[0], min(ratios), max(ratios))


def lines_of(comparisons: list[Comparison]) -> Iterator[Heading | Bar]:
    """The rows that have a peer, below the headings of their sections."""
    for heading, numbers in SECTIONS.items():
        bars = [
            bar(c, PEERS[c.row.over])
            for c in comparisons
            if int(c.row.number) in numbers and c.row.over in PEERS
        ]
        if bars:
            yield Heading(heading)
            yield from under_titles(bars)


def under_titles(bars: Sequence[Bar]) -> Iterator[Heading | Bar]:
    """The bars, with a line before those that measure the same."""
    what = None
    for one in bars:
        if one.what != what:
            what = one.what
            yield Heading(what, is_bold=False)
        yield one


LINE, TOP, BETWEEN, BOTTOM = 0.175, 0.75, 1.1, 0.3  # inches
WIDTH, TITLES_AT, PEERS_AT, AXES_AT, AXES_END = 4.3, 0.005, 0.03, 0.32, 0.88
"""As narrow as a telephone, so that text keeps its size there."""


def draw(comparisons: list[Comparison]) -> None:
    """Draw the picture, once for each colour scheme."""
    peers = list(lines_of(comparisons))
    over = [bar(c, LIMITS[c.row.over]) for c in comparisons if c.row.over in LIMITS]
    limits = list(under_titles(over))
    for scheme, palette in PALETTES.items():
        draw_one(peers, limits, palette, PICTURES[scheme])


def draw_one(
    peers: list[Heading | Bar], limits: list[Heading | Bar], palette: Palette, path: Path
) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    style: dict[str, Any] = {
        "font.size": 8.5,
        "svg.fonttype": "none",
        "svg.hashsalt": "aioqueue",
        "text.color": palette.text,
        "xtick.color": palette.muted,
        "axes.labelcolor": palette.muted,
    }
    with pyplot.rc_context(style):
        height = TOP + LINE * (len(peers) + len(limits)) + BETWEEN + BOTTOM
        figure = pyplot.figure(figsize=(WIDTH, height))
        bottom = BOTTOM / height
        share = LINE * len(limits) / height
        below = figure.add_axes((AXES_AT, bottom, AXES_END - AXES_AT, share))
        bottom += share + BETWEEN / height
        share = LINE * len(peers) / height
        above = figure.add_axes((AXES_AT, bottom, AXES_END - AXES_AT, share))
        draw_peers(above, peers, palette)
        draw_limits(below, limits, palette)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, transparent=True, metadata={"Date": None})
        pyplot.close(figure)


def draw_peers(axes: Axes, lines: list[Heading | Bar], palette: Palette) -> None:
    from matplotlib import ticker

    axes.set_xscale("log")
    bars = [line for line in lines if isinstance(line, Bar)]
    ends = [0.5, *[b.least for b in bars]], [2.0, *[b.most for b in bars]]
    axes.set_xlim(min(ends[0]) * 0.9, max(ends[1]) * 1.1)
    axes.xaxis.set_major_locator(ticker.FixedLocator([0.1, 0.3, 1, 3, 10, 30, 100]))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    draw_lines(axes, lines, palette)
    title(axes, "Times as fast as the peer", "of time and memory: times as little", palette)
    side: dict[str, Any] = {
        "xycoords": ("data", "axes fraction"),
        "textcoords": "offset points",
        "va": "bottom",
    }
    axes.annotate("◂ slower", (1, 1), (-5, 4), ha="right", color=palette.worse, **side)
    axes.annotate("faster ▸", (1, 1), (5, 4), ha="left", color=palette.better, **side)


def draw_limits(axes: Axes, lines: list[Heading | Bar], palette: Palette) -> None:
    axes.set_xlim(0, 1.12)
    draw_lines(axes, lines, palette, is_limit=True)
    title(
        axes, "Share of what is possible", "bare threads, copies, waits, without a queue", palette
    )


def title(axes: Axes, text: str, below: str, palette: Palette) -> None:
    place: dict[str, Any] = {
        "xy": (TITLES_AT, 1),
        "xycoords": ("figure fraction", "axes fraction"),
        "textcoords": "offset points",
    }
    axes.annotate(text, xytext=(0, 34), fontsize=11, fontweight="bold", **place)
    axes.annotate(below, xytext=(0, 20), color=palette.muted, **place)


def draw_lines(
    axes: Axes, lines: Sequence[Heading | Bar], palette: Palette, *, is_limit: bool = False
) -> None:
    """Bars with the other side at their left, a line at 1, and the scale."""
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.tick_params(axis="x", length=0)
    shown = percent if is_limit else multiple
    axes.xaxis.set_major_formatter(lambda times, _: shown(times) if is_limit else f"{times:g}×")
    for y, line in enumerate(lines):
        if isinstance(line, Heading):
            write(axes, TITLES_AT, y, line.text, fontweight="bold" if line.is_bold else "normal")
            continue
        write(axes, PEERS_AT, y, line.over, color=palette.muted)
        start = 0.0 if is_limit else 1.0
        colour = palette.better if is_limit or line.times >= 1 else palette.worse
        axes.barh(y, line.times - start, left=start, height=0.66, color=colour)
        axes.plot([line.least, line.most], [y, y], color=palette.text, linewidth=1, alpha=0.75)
        end = (max(line.most, 1.0), y)
        beside: dict[str, Any] = {"textcoords": "offset points", "va": "center_baseline"}
        axes.annotate(shown(line.times), end, (4, 0), **beside)
        axes.plot([1, 1], [y - 0.5, y + 0.5], color=palette.text, linewidth=1.2)


def write(axes: Axes, x: float, y: float, text: str, **style: Any) -> None:
    """Put text at a place of the figure's width, in one line with a bar."""
    x = (x - AXES_AT) / (AXES_END - AXES_AT)
    axes.text(x, y, text, va="center_baseline", transform=axes.get_yaxis_transform(), **style)


def multiple(times: float) -> str:
    return f"{times:.2f}×" if times < 2 else f"{times:.1f}×" if times < 10 else f"{times:.0f}×"


def percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")
