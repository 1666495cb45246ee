"""The pictures of runs in the documentation: drawn by the code that they show.

``python -m tests.telemetry.views.docs_pictures`` writes them anew; `test_docs_pictures.py` checks
that they say what the code draws now. The runs never were: see `tests.telemetry.fluid_model`.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path

from aioqueue.telemetry.metrics.intervals import recorded
from aioqueue.telemetry.verdict.bottleneck import verdict_of
from aioqueue.telemetry.views.matplotlib_picture import picture
from aioqueue.telemetry.views.table import RunTable
from tests.telemetry.fluid_model import Stage, Watching, history

IMAGES = Path(__file__).parents[3] / "docs" / "images"
COLUMNS = 80


STAGES = (
    Stage("read", workers=2, service=0.004, capacity=64, on_cpu=0.1),
    Stage("decode", workers=4, service=0.006, capacity=64),
)


def run(stage: str, times: float) -> Watching:
    """A run of a minute, which is slow by one stage for most of the time."""
    return Watching(history(STAGES, seconds=60, step=0.004, slow={(12, 52): (stage, times)}))


def at(second: int, whole: Watching) -> Watching:
    """The same run, as it was then."""
    return Watching([*whole.history, whole.now][: second + 1])


def pictures() -> Iterator[tuple[str, str]]:
    """All of them: name and text."""
    by_decode, by_read = run("decode", 6.0), run("read", 3.3)
    snapshots = recorded(by_decode.history, by_decode.now)
    for scheme in ("light", "dark"):
        drawn = picture(
            snapshots, by_decode.verdict(None), verdict_of, kind="svg", dark=scheme == "dark"
        )
        lines = drawn.decode().splitlines()
        yield f"run-{scheme}.svg", "\n".join(line.rstrip() for line in lines) + "\n"
    yield "table-ahead.svg", table(at(10, by_decode))
    yield "table-decode.svg", table(at(30, by_decode))
    yield "table-read.svg", table(at(30, by_read))


def table(watching: Watching) -> str:
    """The table as it stands in a terminal."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=COLUMNS, record=True, force_terminal=True)
    console.print(RunTable(watching))
    drawn = console.export_svg(title="", code_format=_TERMINAL, unique_id="aioqueue")
    size = re.search(
        r'clip-terminal">\s*<rect x="0" y="0" width="([\d.]+)" height="([\d.]+)"', drawn
    )
    assert size is not None
    width, height = (round(float(value)) + 2 * _MARGIN for value in size.groups())
    drawn = drawn.replace("BOX", f"{-_MARGIN} {-_MARGIN} {width} {height}")
    return "\n".join(line.rstrip() for line in drawn.splitlines() if line.strip()) + "\n"


_MARGIN = 14
_TERMINAL = """\
<svg viewBox="BOX" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
<rect x="-14" y="-14" width="100%" height="100%" rx="8" fill="#1a2029"/>
<g>
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g>
</svg>
"""


def words(drawn: str) -> list[str]:
    """What is written in a picture, without when the run was: that depends on the time zone."""
    found = [unescape(text).replace("\xa0", " ") for text in re.findall(r">([^<>]+)</text>", drawn)]
    return [text.strip() for text in found if text.strip() and not text.startswith("Run of")]


if __name__ == "__main__":
    os.environ["TZ"] = "UTC"
    time.tzset()
    for name, text in pictures():
        (IMAGES / name).write_text(text, encoding="utf-8")
        print(f"wrote {IMAGES / name}")
