"""What the page of asynchronous RL shows of its simulation: the table, and the chart."""

from __future__ import annotations

import re
from html import unescape

import pytest

from benchmarks.chart import PALETTES
from proofs.rollouts import chart
from proofs.rollouts.simulation import ROWS, trained_length
from tests.kit.children import ROOT

PAGE = ROOT / "docs" / "howto" / "rollouts.md"


def name_in_table(words: str) -> str:
    """What a row is called in the simulation."""
    if words == "any":
        return "oldest"
    return words.replace(", and generate again", ", again").replace(", prompts too", "")


@pytest.mark.slow
def test_the_table_has_the_numbers_of_the_simulation() -> None:
    text = PAGE.read_text(encoding="utf-8")
    cells = re.findall(
        r"^\| (\d) \| ([^|]+) \| ([\d.]+) \| (\d+) \| (\d+ %) \| \**([\d.]+)\** \|$",
        text,
        re.MULTILINE,
    )
    shown = {f"{ahead} {name_in_table(words)}": numbers for ahead, words, *numbers in cells}
    expected = {}
    for row in ROWS:
        result = row.run()
        length, _ = trained_length(result)
        expected[f"{row.steps_ahead} {row}"] = [
            f"{result.mean_staleness:.2f}",
            f"{result.worst_staleness}",
            f"{result.idle:.0%}".replace("%", " %"),
            f"{length:.2f}",
        ]
    assert shown == expected


@pytest.mark.slow
def test_the_chart_is_what_the_code_draws() -> None:
    """By what is written in it: other versions of matplotlib draw other lines."""
    pytest.importorskip("matplotlib", reason="needs the extra `pictures`")
    drawn = dict(chart.pictures())
    assert len(drawn) == len(PALETTES) == 2
    page = PAGE.read_text(encoding="utf-8")
    for path, text in drawn.items():
        assert words(path.read_text(encoding="utf-8")) == words(text), "proofs.rollouts.chart"
        assert f"](../images/{path.name}#gh-" in page
        assert "url(http" not in text


def words(drawn: str) -> list[str]:
    return [unescape(text) for text in re.findall(r">([^<>]+)</text>", drawn)]
