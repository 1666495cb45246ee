"""The benchmark suite works: its quick mode measures every part. No time is asserted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import (
    batches,
    elements,
    files,
    loaders,
    pipelines,
    report,
    scaling,
    stalls,
    watching,
)
from benchmarks.harness import Comparison, Mode, Row, installed

PARTS = [
    (elements.measure, {"1", "3"}),
    (batches.measure, {"7", "8"}),
    (scaling.measure, {"13", "14", "15", "16"}),
    (pipelines.measure, {"11"}),
    (stalls.measure, {"22", "23"}),
    (files.measure, {"48", "50"} if installed("pyarrow") else set()),
    (watching.measure, {"35", "36", "37", "38"}),
]

NUMBER = re.compile(r"""(?:\bRow\(|\bAim\(|\bNUMBER = )\s*"([^"]+)\"""")


@pytest.mark.slow
@pytest.mark.parametrize(("measure", "numbers"), PARTS)
def test_a_part_measures_its_rows(
    measure: Callable[[Mode], Iterator[Comparison]], numbers: set[str]
) -> None:
    comparisons = list(measure(Mode(quick=True)))
    assert numbers <= {comparison.row.number for comparison in comparisons}
    for comparison in comparisons:
        assert comparison.ratio >= 0
        assert comparison.figures


def test_no_two_parts_have_rows_of_one_number() -> None:
    parts: dict[str, set[str]] = {}
    for file in Path(report.__file__).parent.glob("*.py"):
        for number in NUMBER.findall(file.read_text(encoding="utf-8")):
            parts.setdefault(number, set()).add(file.stem)
    assert len(parts) > 30
    assert all(map(str.isdecimal, parts)), "the page and the picture sort them"
    assert not {number: files for number, files in parts.items() if len(files) > 1}


def test_some_rows_are_replaced_and_the_rest_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PAGE", "AIMS"):
        copy = tmp_path / getattr(report, name).name
        copy.write_text(getattr(report, name).read_text(encoding="utf-8"), encoding="utf-8")
        monkeypatch.setattr(report, name, copy)
    monkeypatch.setattr(report, "draw", lambda comparisons: None)
    before = report.read(report.PAGE.read_text("utf-8"), report.AIMS.read_text("utf-8"))
    old = before[0]
    fresh = Comparison(old.row, [7.0, 8.0, 9.0], {"aioqueue": "1 µs"})
    report.update([fresh])
    page = report.PAGE.read_text(encoding="utf-8")
    after = report.read(page, report.AIMS.read_text("utf-8"))
    assert len(after) == len(before)
    changed = [c.row for c in after if f"{c.ratio:.2f}" == "8.00"]
    assert changed == [old.row]
    again = rf"Rows [\d, ]*\b{old.row.number}\b[\d, ]* were measured again on 20"
    assert re.search(again, page)


def test_the_loaders_are_measured_where_pytorch_is() -> None:
    comparisons = list(loaders.measure(Mode(quick=True)))
    assert {c.row.number for c in comparisons} <= {"25"}
    assert len(comparisons) in range(0, 5 * len(loaders.DECODERS) + 1, 5)
    assert all(c.figures for c in comparisons)


def test_the_page_lists_what_fell_short() -> None:
    reached = Comparison(Row("1", "one thing", "a peer", 2.0), [2.5], {"aioqueue": "1 µs"})
    missed = Comparison(Row("2", "another", "a limit", 0.9), [0.5, 0.7, 0.6], {"limit": "9 µs"})
    page = report.render_aims([reached, missed])
    assert "| 1 | one thing | a peer | 2.50 | ≥ 2.00 | met |" in page
    assert "| 2 | another | a limit | 0.60 | ≥ 0.90 | **short** |" in page
    assert "1 of 2 rows meet their aim" in page


def test_the_page_for_users_has_ratios_and_no_aims() -> None:
    measured = [Comparison(Row("1", "one thing", "a peer", 2.0), [2.5], {"aioqueue": "1 µs"})]
    page = report.render(measured, "Measured once.")
    assert "| 1 | one thing | a peer | **2.50** | — | aioqueue: 1 µs |" in page
    assert "Measured once." in page
    assert "≥" not in page


def test_the_page_has_a_spread_where_there_is_one() -> None:
    row = Row("12", "memory", "the best peer", 1.1, at_least=False)
    once, twice = Comparison(row, [0.9]), Comparison(row, [0.9, 0.9])
    assert "| **0.90** | — |" in report.render([once], "")
    assert "| **0.90** | 0.90 to 0.90 |" in report.render([twice], "")


def test_the_page_is_sorted_by_number_and_then_as_measured() -> None:
    measured = [("12", "b"), ("2", "b"), ("12", "a"), ("10", "c"), ("2", "a")]
    rows = [Comparison(Row(number, title, "a peer", 1.0), [2.0]) for number, title in measured]
    listed = re.findall(r"^\| (\d+) \| (\w+) \|", report.render_aims(rows), re.MULTILINE)
    assert listed == [("2", "b"), ("2", "a"), ("10", "c"), ("12", "b"), ("12", "a")]


def test_a_bound_is_met_from_below() -> None:
    row = Row("14", "memory", "the bound", 1.0, at_least=False)
    assert Comparison(row, [0.9]).met
    assert not Comparison(row, [1.1]).met
