"""The chart of the documentation: what staleness buys, for light and dark pages.

    python -m proofs.rollouts.chart     (needs the extra `pictures`)

The numbers are those of `proofs.rollouts.simulation`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.chart import PALETTES, Palette
from proofs.rollouts.simulation import ROWS, Row, trained_length

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IMAGES: Final = Path(__file__).parents[2] / "docs" / "images"
PICTURES: Final = {scheme: IMAGES / f"staleness-{scheme}.svg" for scheme in PALETTES}

LINE, TOP, BOTTOM = 0.22, 0.6, 0.4  # inches
WIDTH, IDLE_AT, STALENESS_AT = 4.3, 0.34, 0.66
"""As narrow as a telephone, so that text keeps its size there."""

NOTE: Final = "Orange: leaves out prompts that take long, so it trains on others."


@dataclass(frozen=True)
class Bar:
    """One row: how long the trainer waits, and how old what it trains on is."""

    title: str
    idle: float
    mean: float
    worst: int
    is_biased: bool  # it leaves out prompts that take long

    @property
    def idle_text(self) -> str:
        return f"{self.idle:.0%}".replace("%", " %")

    @property
    def staleness_text(self) -> str:
        return f"{self.mean:.2f}, {self.worst}"


def bar_of(row: Row) -> Bar:
    """Simulate a row."""
    result = row.run()
    length, length_of_all = trained_length(result)
    return Bar(
        f"{row.steps_ahead} ahead, {row}" if row.steps_ahead else "synchronous",
        result.idle,
        result.mean_staleness,
        result.worst_staleness,
        is_biased=length < 0.9 * length_of_all,
    )


def pictures() -> Iterator[tuple[Path, str]]:
    """Draw the chart once for each colour scheme; yield the paths and the drawings."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    bars = [bar_of(row) for row in ROWS]
    for scheme, palette in PALETTES.items():
        style: dict[str, Any] = {
            "font.size": 8.5,
            "svg.fonttype": "none",
            "svg.hashsalt": "aioqueue",
            "text.color": palette.text,
        }
        with pyplot.rc_context(style):
            height = TOP + LINE * len(bars) + BOTTOM
            figure = pyplot.figure(figsize=(WIDTH, height))
            bottom, share = BOTTOM / height, LINE * len(bars) / height
            draw_idle(figure.add_axes((IDLE_AT, bottom, 0.24, share)), bars, palette)
            draw_staleness(figure.add_axes((STALENESS_AT, bottom, 0.31, share)), bars, palette)
            figure.text(0.005, 0.02, NOTE, color=palette.worse)
            drawn = io.StringIO()
            figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
            pyplot.close(figure)
        lines = (line.rstrip() for line in drawn.getvalue().splitlines())
        yield PICTURES[scheme], "\n".join(lines) + "\n"


def draw_idle(axes: Axes, bars: Sequence[Bar], palette: Palette) -> None:
    lay_out(axes, bars, "Trainer waits", "share of its time", palette)
    axes.set_xlim(0, 1)
    axes.set_xticks([])
    for y, bar in enumerate(bars):
        colour = palette.worse if bar.is_biased else palette.better
        axes.barh(y, bar.idle, height=0.66, color=colour)
        axes.annotate(bar.idle_text, (bar.idle, y), (4, 0), **beside())
        axes.annotate(
            bar.title,
            (0, y),
            (-6, 0),
            ha="right",
            color=palette.text,
            **beside(),
        )


def draw_staleness(axes: Axes, bars: Sequence[Bar], palette: Palette) -> None:
    lay_out(axes, bars, "Staleness", "in steps: mean, worst", palette)
    axes.set_xlim(0, 1.75 * max(bar.worst for bar in bars))
    axes.set_xticks([])
    for y, bar in enumerate(bars):
        colour = palette.worse if bar.is_biased else palette.better
        axes.plot([0, bar.worst], [y, y], color=palette.muted, linewidth=1)
        axes.plot([bar.worst, bar.worst], [y - 0.25, y + 0.25], color=palette.muted, linewidth=1)
        axes.plot(bar.mean, y, "o", color=colour, markersize=4)
        axes.annotate(bar.staleness_text, (bar.worst, y), (5, 0), **beside())


def lay_out(axes: Axes, bars: Sequence[Bar], title: str, below: str, palette: Palette) -> None:
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    place: dict[str, Any] = {
        "xy": (0, 1),
        "xycoords": "axes fraction",
        "textcoords": "offset points",
    }
    axes.annotate(title, xytext=(0, 24), fontsize=10, fontweight="bold", **place)
    axes.annotate(below, xytext=(0, 11), color=palette.muted, **place)


def beside() -> dict[str, Any]:
    return {"textcoords": "offset points", "va": "center_baseline"}


if __name__ == "__main__":
    for path, drawn in pictures():
        path.write_text(drawn, encoding="utf-8")
        print(f"wrote {path}")
