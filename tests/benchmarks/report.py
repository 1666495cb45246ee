"""Writing down what was measured: one Markdown page and one picture, never edited by hand."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from datetime import date
from pathlib import Path

from tests.benchmarks.harness import Comparison

__all__ = ("render", "write")

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
PICTURE = PAGE.parent / "images" / "benchmarks.svg"
PEERS = (
    "numpy anyio uvloop janus culsans torch spdl-core grain opencv-python-headless tensorflow-cpu"
)

HEAD = """\
# Benchmarks

<!-- Written by `python -m tests.benchmarks`; do not edit. -->

Each row compares two sides that were run alternately in one invocation, and gives the median of
the ratios with their spread. The machine is shared and noisy, so read ratios, not times.
See [what the rows run](performance.md#what-the-benchmarks-run).

![Ratios reached and aimed at, by row](images/benchmarks.svg)

"""


def machine() -> str:
    """What all of it was measured on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = []
    for name in ("aioqueue", *PEERS.split()):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return (
        f"Measured on {date.today():%Y-%m-%d} with {platform.python_implementation()}"
        f" {platform.python_version()} on {platform.system()} {platform.machine()}, {cores} cores."
        f" Versions: {', '.join(versions)}."
    )


def by_number(comparisons: list[Comparison]) -> list[Comparison]:
    """Sorted by the rows' numbers; within a number as they were measured."""
    return sorted(comparisons, key=lambda c: int(c.row.number))


def spread(comparison: Comparison) -> str:
    """The least and the greatest ratio, or a dash for what is measured once."""
    return comparison.spread if len(comparison.ratios) > 1 else "—"


def render(comparisons: list[Comparison]) -> str:
    """The page."""
    lines = [HEAD + machine(), ""]
    lines += ["| row | what | over | ratio | spread | aim | | figures |", "|" + "---|" * 8]
    for c in by_number(comparisons):
        aim = f"{'≥' if c.row.at_least else '≤'} {c.row.target:.2f}"
        figures = ", ".join(f"{name}: {figure}" for name, figure in c.figures.items())
        verdict = "met" if c.met else "**short**"
        lines.append(
            f"| {c.row.number} | {c.row.title} | {c.row.over} | **{c.ratio:.2f}** | {spread(c)}"
            f" | {aim} | {verdict} | {figures} |"
        )
    short = [c for c in comparisons if not c.met]
    lines += ["", f"{len(comparisons) - len(short)} of {len(comparisons)} rows meet their aim."]
    notes = Path(__file__).with_name("notes.md")
    if short and notes.exists():
        lines += ["", notes.read_text().rstrip()]
    return "\n".join(lines) + "\n"


def draw(comparisons: list[Comparison]) -> None:
    """Bars: how much of its aim each row reaches; 1 is the aim."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot, ticker

    comparisons = by_number(comparisons)
    reached = [
        c.ratio / c.row.target if c.row.at_least else c.row.target / c.ratio for c in comparisons
    ]
    labels = [f"{c.row.number}  {c.row.title} / {c.row.over}" for c in comparisons]
    height = 0.28 * len(comparisons) + 1.2
    figure, axes = pyplot.subplots(figsize=(9, height), layout="constrained")
    colours = ["#2a7f9e" if value >= 1 else "#c8553d" for value in reached]
    bars = axes.barh(labels, reached, color=colours, height=0.7)
    axes.bar_label(bars, [f"{c.ratio:.2f}" for c in comparisons], padding=3, fontsize=8)
    axes.axvline(1, color="#444444", linewidth=1)
    above = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    axes.annotate("the aim", (1, 1), (0, 3), **above, ha="center", va="bottom", fontsize=8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda times, _: f"×{times:g}"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_xlabel("how far the aim is reached (log scale); figures: ratios")
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, facecolor="white")


def write(comparisons: list[Comparison]) -> None:
    """Write the page and, if matplotlib is installed, the picture."""
    PAGE.write_text(render(comparisons))
    try:
        draw(comparisons)
    except ImportError:
        print("no picture: pip install '.[bench]' brings matplotlib", file=sys.stderr)
