"""The table of a run, as it stands in a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from aioqueue.telemetry.views.table import RunTable, status_line
from tests.telemetry.fluid_model import Stage, Watching, generating, history, usual

pytest.importorskip("rich", reason="needs the extra `rich`")

from rich.console import Console, Group
from rich.panel import Panel


def rendered(watching: Watching, width: int, *, encoding: str = "utf-8") -> list[str]:
    """The lines of the table in a terminal of so many columns."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(file=stream, width=width, force_terminal=True, color_system=None)
    console.print(RunTable(watching))
    stream.flush()
    return raw.getvalue().decode(encoding).splitlines()


def slow() -> Watching:
    """A run whose second stage limits."""
    run = usual(60)
    return Watching([*run.history, run.now][:29])


def test_in_80_columns() -> None:
    lines = rendered(slow(), 80)
    assert max(map(len, lines)) == 80
    assert lines[0] == "0:28  100 batches/s   the training step waits 55 % of the time"
    head, read, reads, decode, decoded = lines[1], *lines[3:7]
    assert head.split() == ["per", "s", "busy", "or", "full", "no", "data", "no", "room"]
    assert read.split()[:4] == ["read", "2", "tasks", "100"]
    assert read.endswith("20 %      0 %     80 %")
    assert reads.startswith("    read-queue")
    assert "256 of 256" in reads
    assert reads.endswith("100 % 0.4 wait 1.6 wait")
    assert decode.startswith("▶ decode ")
    assert decode.endswith("90 %     10 %      0 %")
    assert "2 of 64" in decoded
    assert "decode (4 threads) is" in " ".join(lines[7:])


def test_a_generation_and_its_groups() -> None:
    lines = rendered(generating(), 80)
    assert lines[0] == "0:20  1 batches/s   the training step waits 40 % of the time"
    rollouts, groups = lines[3:5]
    assert rollouts.startswith("▶ grpo ")
    assert rollouts.split()[2:6] == ["24", "in", "flight", "90"]
    assert groups.startswith("    staleness 1.0, worst 3  5 ready, lag 1 ")
    assert "0.4 wait" in groups
    assert lines[5].startswith("Generation is the bottleneck: the trainer waits for 40 %")
    line = status_line(generating(), 5.0)
    assert "grpo busy 90 %, staleness 1.0, worst 3. Generation is the bottleneck" in line
    ahead = rendered(generating(trainer=0.01), 80)
    assert ahead[3].startswith("  grpo ")
    assert ahead[5].startswith("The trainer is the bottleneck: it waits for 1 % of its time, and 5")


@pytest.mark.parametrize("width", [40, 60, 63, 64, 80, 95, 96, 120, 200])
@pytest.mark.parametrize("letters", [1, 20, 300])
def test_in_any_width(width: int, letters: int) -> None:
    names = [f"{'name' * letters}{number}"[-letters:] + str(number) for number in range(3)]
    stages = [Stage(name, capacity=None if n == 1 else 64) for n, name in enumerate(names)]
    lines = rendered(Watching(history(stages, seconds=6)), width)
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if " 4 threads " in line and "(" not in line]
    assert len(rows) == 3 or width == 40
    if width >= 60:
        assert all(row.count("%") == 3 for row in rows)


def test_the_bottleneck_is_marked_and_named_below() -> None:
    lines = rendered(slow(), 100)
    assert [line.split()[1] for line in lines if line.startswith("▶")] == ["decode"]
    assert not [line for line in rendered(usual(60), 100) if line.startswith("▶")]


def test_functions_between_stages_have_rows() -> None:
    (row,) = [line for line in rendered(slow(), 80) if "my_collate" in line]
    assert row.split()[:2] == ["my_collate", "batch"]
    assert float(row.split()[2]) == pytest.approx(100, abs=2)
    assert " 5 %" in row


def test_in_ascii() -> None:
    lines = rendered(slow(), 80, encoding="ascii")
    assert [line.split()[1] for line in lines if line.startswith(">")] == ["decode"]


def test_a_run_that_has_just_begun() -> None:
    assert rendered(Watching(history([Stage("decode")], seconds=0)), 80)[0].startswith("0:00")
    assert rendered(Watching(history([], seconds=0)), 80)[0].startswith("0:00")


def test_it_can_be_part_of_a_layout() -> None:
    console = Console(file=io.StringIO(), width=90, record=True)
    console.print(Panel(Group("my training", RunTable(usual(10)))))
    assert "decode-queue" in console.export_text()


def test_the_status_line() -> None:
    line = status_line(slow(), 5.0)
    assert line.startswith("0:28 100 batches/s, waits 55 %; read busy 20 %; decode busy 90 %. ")
    assert "decode (4 threads)" in line
    assert "\n" not in line


def test_an_ended_run_shows_its_former_number_of_workers() -> None:
    run = usual(20)
    ended = replace(run.now, stages=tuple(replace(one, workers=()) for one in run.now.stages))
    read, decode = rendered(Watching([*run.history, ended]), 80)[3:7:2]
    assert read.replace("▶", " ").split()[:3] == ["read", "2", "tasks"]
    assert decode.replace("▶", " ").split()[:3] == ["decode", "4", "threads"]
