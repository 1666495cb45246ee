"""Writing down what was measured: one Markdown page and its pictures, never edited by hand."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from datetime import date
from pathlib import Path

import aioqueue
from tests.benchmarks.chart import draw
from tests.benchmarks.harness import Comparison, Row

__all__ = ("read", "redraw", "render", "write")

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
PEERS = (
    "numpy anyio uvloop janus culsans torch spdl-core grain opencv-python-headless tensorflow-cpu"
)

HEAD = """\
# Benchmarks

<!-- Written by `python -m tests.benchmarks`; do not edit. -->

Each row compares two sides that were run alternately in one invocation, and gives the median of
the ratios with their spread. The machine is shared and noisy, so read ratios, not times.
See [what the rows run](performance.md#what-the-benchmarks-run).

![How many times as fast as each peer](images/benchmarks-light.svg#gh-light-mode-only)
![How many times as fast as each peer](images/benchmarks-dark.svg#gh-dark-mode-only)

Bars end at the median; thin lines go from the least to the greatest ratio of the rounds.

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
    core = "compiled" if aioqueue.__compiled__ else "pure"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return (
        f"Measured on {date.today():%Y-%m-%d} with the {core} core and {python}"
        f" on {platform.system()} {platform.machine()}, {cores} cores."
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


ROW = re.compile(
    r"\| (?P<number>\d+) \| (?P<title>[^|]+) \| (?P<over>[^|]+) \| \*\*(?P<ratio>[\d.]+)\*\*"
    r" \| (?P<spread>[^|]+) \| (?P<sign>[≥≤]) (?P<target>[\d.]+) \|"
)


def read(page: str) -> list[Comparison]:
    """What a page says was measured; of the rounds: the least, the median and the greatest."""
    found = []
    for match in ROW.finditer(page):
        row = Row(
            match["number"],
            match["title"],
            match["over"],
            float(match["target"]),
            at_least=match["sign"] == "≥",
        )
        ends = [float(end) for end in match["spread"].split(" to ") if end != "—"]
        found.append(Comparison(row, sorted([*ends, float(match["ratio"])])))
    return found


def write(comparisons: list[Comparison]) -> None:
    """Write the page and, if matplotlib is installed, the pictures."""
    PAGE.write_text(render(comparisons), encoding="utf-8")
    try:
        draw(by_number(comparisons))
    except ImportError:
        print("no picture: pip install '.[bench]' brings matplotlib", file=sys.stderr)


def redraw() -> None:
    """Draw the pictures again, of what the page says."""
    draw(read(PAGE.read_text(encoding="utf-8")))
