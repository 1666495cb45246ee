"""Writing down what was measured: two Markdown pages and their pictures, never edited by hand."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import aioqueue
from benchmarks.chart import draw
from benchmarks.harness import Comparison, Row

__all__ = ("read", "redraw", "render", "update", "write")

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
"""What users read: ratios and conditions."""
AIMS = PAGE.with_name("aims.md")
"""What the project reads: aims, and what falls short."""
PEERS = (
    "numpy anyio uvloop janus culsans torch spdl-core grain opencv-python-headless tensorflow-cpu"
)

HEAD = """\
# Benchmarks

<!-- Written by `python -m benchmarks`; do not edit. -->

Each row compares two sides that ran alternately in one invocation. It shows the median of the
ratios, and their spread. The machine is shared and noisy, so read ratios, not times. A ratio above
1 means that aioqueue is faster, unless the row measures time, memory or bytes.

![How many times as fast as each peer](images/benchmarks-light.svg#gh-light-mode-only)
![How many times as fast as each peer](images/benchmarks-dark.svg#gh-dark-mode-only)

Bars end at the median. Thin lines go from the lowest to the highest ratio of the rounds.

"""

AIMS_HEAD = """\
# Aims of the benchmarks

<!-- Written by `python -m benchmarks`; do not edit. -->

The project sets an aim for every row of the [benchmarks](benchmarks.md). In a row with "≥", the
ratio says how many times as fast aioqueue is as the other side. In a row with "≤", it says how many
times as much time or memory aioqueue takes.

"""

SECTIONS = {
    "Queues, one element at a time": (1, 2, 3, 4, 13, 15, 16),
    "Queues, batches of arrays": (5, 6, 7, 8, 14, 22, 23),
    "Input pipelines": (9, 10, 11, 12, 17, 18, 19, 24, 26, 40, 43, 44, 45, 49),
    "Files": (48, 50),
    "PyTorch's DataLoader": (25,),
    "Processes of one machine": (51, 52, 53, 54, 55, 56, 57, 58),
    "Ray clusters": (30, 31, 32, 33, 34),
    "Monitoring": (35, 36, 37, 38, 46),
    "Resuming": (39,),
    "TensorFlow 1's names": (20, 21, 27, 41, 42),
}
"""The headings of the page, and the numbers of the rows below each."""


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


def sections(comparisons: list[Comparison]) -> Iterator[tuple[str, list[Comparison]]]:
    """The rows below each heading, and at the end those that no heading names."""
    left = by_number(comparisons)
    for heading, numbers in SECTIONS.items():
        rows = [c for c in left if int(c.row.number) in numbers]
        if rows:
            yield heading, rows
        left = [c for c in left if c not in rows]
    if left:
        yield "Other", left


def render(comparisons: list[Comparison], measured: str) -> str:
    """The page for users: ratios and conditions, without aims."""
    lines = [HEAD + measured]
    for heading, rows in sections(comparisons):
        lines += ["", f"## {heading}", "", "| row | what | over | ratio | spread | figures |"]
        lines.append("|" + "---|" * 6)
        for c in rows:
            figures = ", ".join(f"{name}: {figure}" for name, figure in c.figures.items())
            lines.append(
                f"| {c.row.number} | {c.row.title} | {c.row.over} | **{c.ratio:.2f}**"
                f" | {spread(c)} | {figures} |"
            )
    lines += ["", beside("conditions.md")]
    return "\n".join(lines) + "\n"


def render_aims(comparisons: list[Comparison]) -> str:
    """The project's own page: what each row was to reach, and why some do not."""
    short = [c for c in comparisons if not c.met]
    lines = [
        f"{AIMS_HEAD}{len(comparisons) - len(short)} of {len(comparisons)} rows meet their aim.",
        "",
        "| row | what | over | ratio | aim | |",
        "|" + "---|" * 6,
    ]
    for c in by_number(comparisons):
        aim = f"{'≥' if c.row.at_least else '≤'} {c.row.target:.2f}"
        verdict = "met" if c.met else "**short**"
        lines.append(
            f"| {c.row.number} | {c.row.title} | {c.row.over} | {c.ratio:.2f} | {aim} | {verdict} |"
        )
    lines += ["", beside("notes.md")]
    return "\n".join(lines) + "\n"


def beside(name: str) -> str:
    """The text of a file of this folder, which is written by hand."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8").rstrip()


ROW = re.compile(
    r"\| (?P<number>\d+) \| (?P<title>[^|]+) \| (?P<over>[^|]+) \| \*\*(?P<ratio>[\d.]+)\*\*"
    r" \| (?P<spread>[^|]+) \| (?P<figures>[^|]*) \|"
)
AIM = re.compile(
    r"\| (?P<number>\d+) \| (?P<title>[^|]+) \| (?P<over>[^|]+) \| [\d.]+"
    r" \| (?P<sign>[≥≤]) (?P<target>[\d.]+) \| (?P<verdict>[^|]+) \|"
)


def read(page: str, aims: str) -> list[Comparison]:
    """What the pages say was measured; of all rounds the lowest, median and highest ratio."""
    rows = {}
    for match in AIM.finditer(aims):
        number, title, over = match["number"], match["title"], match["over"]
        row = Row(number, title, over, float(match["target"]), at_least=match["sign"] == "≥")
        rows[number, title, over] = row, match["verdict"] == "met"
    found = []
    for match in ROW.finditer(page):
        row, was_met = rows[match["number"], match["title"], match["over"]]
        ratio = float(match["ratio"])
        if ratio == row.target and not was_met:  # it was rounded to its aim
            ratio += -0.001 if row.at_least else 0.001
        ends = [float(end) for end in match["spread"].split(" to ") if end != "—"]
        # The name of a side may contain a comma; figures do not contain one before a blank.
        figures = re.findall(r"(?:^|, )(.+?): (.+?)(?=, [^:]+: |$)", match["figures"])
        rounds = [min(*ends, ratio), ratio, max(*ends, ratio)] if ends else [ratio]
        found.append(Comparison(row, rounds, dict(figures)))
    return found


def write(comparisons: list[Comparison], measured: str | None = None) -> None:
    """Write the pages and, if matplotlib is installed, the pictures."""
    PAGE.write_text(render(comparisons, measured or machine()), encoding="utf-8")
    AIMS.write_text(render_aims(comparisons), encoding="utf-8")
    try:
        draw(by_number(comparisons))
    except ImportError:
        print("no picture: pip install '.[bench]' brings matplotlib", file=sys.stderr)


def redraw() -> None:
    """Lay out the pages again, and draw their pictures, of what the pages say."""
    written, measured = _written()
    write(written, measured)


def update(comparisons: list[Comparison]) -> None:
    """Replace some rows of the pages, and say which were measured again and when."""
    written, measured = _written()
    fresh = {(c.row.number, c.row.title, c.row.over): c for c in comparisons}
    kept = [c for c in written if (c.row.number, c.row.title, c.row.over) not in fresh]
    numbers = {int(c.row.number) for c in comparisons}
    today = f"{date.today():%Y-%m-%d}"
    for sentence in re.findall(rf" Rows [\d, ]+ were measured again on {today}\.", measured):
        numbers.update(map(int, re.findall(r"\d+", sentence.partition(" were ")[0])))
        measured = measured.replace(sentence, "")
    rows = ", ".join(map(str, sorted(numbers)))
    write([*kept, *comparisons], f"{measured} Rows {rows} were measured again on {today}.")


def _written() -> tuple[list[Comparison], str]:
    """What the pages say: the rows, and on what they were measured."""
    page = PAGE.read_text(encoding="utf-8")
    measured = re.search(r"^Measured on .*$", page, flags=re.MULTILINE)
    assert measured is not None, f"{PAGE.name} does not say when it was measured"
    return read(page, AIMS.read_text(encoding="utf-8")), measured[0]
