"""The page of a run: whole, self-contained, and true."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations, pairwise

import numpy as np
import pytest

from aioqueue.base.display_text import sentence
from aioqueue.telemetry.metrics.intervals import Interval, recorded
from aioqueue.telemetry.verdict.bottleneck import verdict_of
from aioqueue.telemetry.views.chart_data import COLOURS, chart_of, time_ticks
from aioqueue.telemetry.views.html_page import page
from tests.telemetry.fluid_model import Stage, Watching, generating, history, usual

VOID = {"meta", "br", "hr", "img", "link", "input", "path"}


class Reader(HTMLParser):
    """Reads a page strictly: every element is closed, in the order in which they were opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        return [
            attributes
            for _, attributes in self.elements
            if name in (attributes.get("class") or "").split()
        ]


def page_of(watching: Watching) -> str:
    return page(recorded(watching.history, watching.now), watching.verdict(None), verdict_of)


RUNS = {
    "usual": usual(60),
    "of five minutes": usual(300),
    "of a second": Watching(history([Stage("decode")], seconds=1)),
    "that begins": Watching(history([Stage("decode")], seconds=0)),
    "nobody watches the loop": Watching(history([Stage("decode")], seconds=20, loop=False)),
    "no bound": Watching(history([Stage("decode", capacity=None)], seconds=20)),
    "twelve stages": Watching(
        history([Stage(f"stage {n}", workers=n + 1) for n in range(12)], seconds=30)
    ),
    "odd names": Watching(history([Stage('<lambda> & "x"' * 9, workers=1)], seconds=20)),
}


@pytest.mark.parametrize("run", RUNS)
def test_every_page_is_complete_and_self_contained(run: str) -> None:
    text = page_of(RUNS[run])
    reader = Reader(text)
    names = {tag for tag, _ in reader.elements}
    assert names.isdisjoint({"script", "link", "img", "iframe", "object"})
    assert not [one for _, one in reader.elements if {"src", "href", "onload"} & set(one)]
    assert "//" not in re.sub(r"<!--.*?-->", "", text), "an address"
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme:dark" in text
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in (
        reader.elements
    )
    assert "nan" not in re.sub(r"[a-z]+nan|nan[a-z]+", "", text.lower())


@pytest.mark.parametrize("run", RUNS)
def test_lines_stay_within_their_box(run: str) -> None:
    reader = Reader(page_of(RUNS[run]))
    paths = [one["d"] or "" for tag, one in reader.elements if tag == "path"]
    for path in paths:
        for command, x, y in re.findall(r"([ML])([\d.]+) ([\d.]+)", path):
            assert 0 <= float(x) <= 1000, command
            assert 0 <= float(y) <= 100
        assert all(0 <= float(x) <= 1000 for x in re.findall(r"H([\d.]+)", path))
        assert all(0 <= float(y) <= 100 for y in re.findall(r"V([\d.]+)", path))
    assert paths or run == "that begins"


def test_the_figures_are_the_measured_ones() -> None:
    watching = usual(60)
    reader = Reader(page_of(watching))
    text = " ".join(reader.texts).replace("\xa0", " ")
    whole = Interval.over([*watching.history, watching.now])
    assert sentence(str(watching.verdict(None))) in text
    assert f"{100 * whole.step.waits:.0f} %" in text
    for name in ("read", "decode", "read-queue", "decode-queue"):
        assert name in reader.texts
    assert "2 tasks" in text
    assert "4 threads" in text
    assert "capacity 256" in text
    at = reader.texts.index("my_collate")
    assert reader.texts[at + 1 : at + 3] == ["batch", "the loop"]


def test_a_generation_has_a_panel_and_a_row() -> None:
    reader = Reader(page_of(generating(gate=0.1, slots=0.05)))
    texts = reader.texts
    assert "grpo: groups" in texts
    assert "version 19, 8 groups/s" in texts
    assert "steps; staleness 1.0 on average, 3 at worst" in texts
    begin = texts.index("Generation and training")
    row = [text for text in texts[begin:] if text.strip()][13:25]
    assert row == [
        *("grpo", "8", "5", "16 of 16", "1.00", "3", "19", "1"),
        *("40 %", "5 %", "10 %", "20 %"),
    ]
    assert "Generation and training" not in Reader(page_of(usual(20))).texts


@pytest.mark.parametrize(
    ("waits", "label"),
    [((0.4, 0.0), "grpo"), ((0.01, 0.0), "data is ahead"), ((0.1, 0.2), "the gate")],
)
def test_what_limits_a_generation_is_a_period(waits: tuple[float, float], label: str) -> None:
    trainer, gate = waits
    watching = generating(trainer=trainer, slots=0.0, gate=gate)
    periods = chart_of([*watching.history, watching.now], verdict_of).periods
    assert [period.label for period in periods] == [label]


def test_verdicts_over_time_are_a_band_without_holes() -> None:
    watching = usual(60)
    chart = chart_of(recorded(watching.history, watching.now), verdict_of)
    assert chart.periods[0].begin == 0
    assert chart.periods[-1].end == 60
    for before, after in pairwise(chart.periods):
        assert before.end == after.begin
        assert before.label != after.label
    at_twenty = next(one for one in chart.periods if one.begin <= 20 < one.end)
    at_forty = next(one for one in chart.periods if one.begin <= 40 < one.end)
    assert (at_twenty.label, at_forty.label) == ("decode", "read")
    assert at_twenty.colour != at_forty.colour
    band = Reader(page_of(watching)).of_class("strip")
    assert len(band) == 1


def test_shares_of_a_stage_add_up() -> None:
    watching = usual(60)
    chart = chart_of(recorded(watching.history, watching.now), verdict_of)
    for panel in chart.panels:
        if panel.title not in ("read", "decode"):
            continue
        areas = panel.plots[0].layers
        assert [layer.label for layer in areas] == ["busy", "waits for items", "waits for room"]
        for lower, upper in pairwise(areas):
            assert upper.bottoms == lower.tops
        assert areas[-1].tops == pytest.approx((1.0,) * 60, abs=0.02)


@pytest.mark.slow
def test_the_size_of_a_page_depends_on_what_it_shows() -> None:
    short, long = len(page_of(usual(60))), len(page_of(usual(300)))
    assert long < 5 * short
    assert len(page_of(RUNS["twelve stages"])) < 200_000


def test_a_last_interval_that_is_too_short_is_merged() -> None:
    snapshots = history([Stage("decode")], seconds=5)
    late = replace(snapshots[-1], seconds=5.001)
    found = recorded(snapshots, late)
    assert [snapshot.seconds for snapshot in found] == [0, 1, 2, 3, 4, 5.001]
    assert [one.seconds for one in recorded((), snapshots[1])] == [0, 1]
    assert [one.seconds for one in recorded((), snapshots[0])] == [0]
    assert [one.seconds for one in recorded(snapshots[3:5], snapshots[5])] == [3, 4, 5]


@pytest.mark.parametrize("seconds", [0.3, 1, 7, 60, 61.5, 300, 4000])
def test_the_time_axis_has_few_marks_and_fewer_when_narrow(seconds: float) -> None:
    marks = time_ticks(0.0, seconds)
    assert 3 <= len(marks) <= 11
    assert len({label for _, label, _ in marks}) == len(marks)
    assert sum(is_major for _, _, is_major in marks) <= 6
    assert all(0 <= at <= seconds * (1 + 1e-6) for at, _, _ in marks)


# Colours.


def linear(colour: str) -> np.ndarray:
    rgb = np.array([int(colour[index : index + 2], 16) for index in (1, 3, 5)]) / 255
    found: np.ndarray = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return found


def contrast(one: str, other: str) -> float:
    """As the Web Content Accessibility Guidelines 2 define it."""
    dark, light = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_enough_contrast(scheme: str) -> None:
    colours = COLOURS[scheme]
    on = "#ffffff" if scheme == "light" else "#0d1117"
    for text in (colours.text, colours.muted):
        assert min(contrast(text, colours.page), contrast(text, colours.panel)) >= 4.5
    assert all(contrast(colour, colours.panel) >= 3 for colour in colours.of.values())
    labelled = {"busy", "busy2", "step", "source", "other"}
    assert all(contrast(one, on) >= 4.5 for name, one in colours.of.items() if name in labelled)


VISION = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
"""What is seen of a linear colour: Machado, Oliveira and Fernandes, 2009, at full severity."""

TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, vision: str) -> np.ndarray:
    seen = np.clip(VISION[vision] @ linear(colour), 0, 1)
    xyz = TO_XYZ @ seen / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_are_distinct_with_colour_blindness(scheme: str, vision: str) -> None:
    colours = COLOURS[scheme].of
    times = [lab(colours[one], vision) for one in colours if one in ("busy", "starved", "blocked")]
    assert len(times) == 3
    assert min(np.linalg.norm(one - other) for one, other in combinations(times, 2)) >= 15
