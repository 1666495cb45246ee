"""The arithmetic and the report of the count of instructions; nothing is counted here."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks import instructions
from benchmarks.callgrind import counters_in
from benchmarks.instructions import (
    PATHS,
    YARDSTICK,
    Record,
    compare,
    grown_alone,
    per_element,
    table,
)

LOOP = "one loop, capacity 50"
THREADS = "thread to thread, capacity 50"


def profile(*counters: int) -> str:
    return "\n".join(f"part: {n}\nsummary: {counter}" for n, counter in enumerate(counters))


def test_a_figure_is_the_difference_of_two_runs() -> None:
    n = PATHS[LOOP].n
    first = (10**9, 5_000 + 100 * n, 5_000 + 300 * n)  # 5,000 for each run, 100 for each element
    second = (777, 40 * PATHS[THREADS].n, 120 * PATHS[THREADS].n)
    counted = per_element([LOOP, THREADS], counters_in(profile(*first, *second, 123)))
    assert counted == {LOOP: 100, THREADS: 40}
    with pytest.raises(RuntimeError, match="5 counters for 2 paths"):
        per_element([LOOP, THREADS], counters_in(profile(1, 2, 3, 4, 5)))


def test_what_has_grown_is_named_and_by_how_much() -> None:
    record = Record({LOOP: 1000, THREADS: 1000, YARDSTICK: 500})
    assert compare(record, {LOOP: 1029, THREADS: 1079, YARDSTICK: 500}) == {}
    assert compare(record, {LOOP: 500, THREADS: 500, YARDSTICK: 500}) == {}
    assert compare(record, {LOOP: 1031, THREADS: 1079, YARDSTICK: 500}) == {
        LOOP: f"{LOOP}: 1,031 instructions, +3.1% over 1,000 (at most +3%)"
    }
    assert [*compare(record, {THREADS: 1081, YARDSTICK: 500})] == [THREADS]


def test_what_has_not_grown_alone_has_not_grown() -> None:
    record = Record({LOOP: 1000, THREADS: 1000, YARDSTICK: 500})
    alone = {LOOP: 1031, THREADS: 1000, YARDSTICK: 500}

    def count(titles: Iterable[str]) -> dict[str, float]:
        return {title: alone[title] for title in titles}

    (line,) = grown_alone(record, [LOOP, THREADS], count)
    assert line.startswith(f"{LOOP}: 1,031 instructions")


def test_another_build_of_python_is_measured_with_its_own_yardstick() -> None:
    record = Record({LOOP: 1000, YARDSTICK: 500})
    assert compare(record, {LOOP: 1100, YARDSTICK: 550}) == {}
    assert compare(record, {LOOP: 1000, YARDSTICK: 450})


def test_a_new_path_and_a_peer_cannot_have_grown() -> None:
    record = Record({YARDSTICK: 500})
    assert compare(record, {LOOP: 1000, YARDSTICK: 500}) == {}


def test_the_table_has_the_peers_beside_their_path() -> None:
    rows = table(Record({LOOP: 12_000, YARDSTICK: 10_500, "`queue.sync`": 500})).splitlines()[2:]
    assert rows == [f"| {LOOP} | 12,000 | asyncio.Queue 10,500 |", "| `queue.sync` | 500 | — |"]


def test_figures_are_recorded_and_laid_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, records = tmp_path / "page.md", tmp_path / "records.json"
    page.write_text(f"before\n{instructions.BEGIN}\nold\n{instructions.END}\nafter\n")
    monkeypatch.setattr(instructions, "PAGE", page)
    monkeypatch.setattr(instructions, "RECORDS", records)
    instructions.write({LOOP: 1000.4, YARDSTICK: 500})
    instructions.write({THREADS: 2000})
    assert json.loads(records.read_text()) == {
        instructions.version(): {LOOP: 1000, YARDSTICK: 500, THREADS: 2000}
    }
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert f"| {THREADS} | 2,000 | — |" in text


def test_the_page_shows_the_recorded_figures() -> None:
    records = instructions.read_records()
    text = instructions.PAGE.read_text(encoding="utf-8")
    assert records
    for record in records.values():
        assert set(record.figures) <= set(PATHS)
        assert table(record) in text
