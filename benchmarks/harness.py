"""Comparing: both sides alternately, several rounds, the median of the ratios.

The machine may be shared and noisy, so a time alone says little. Every round runs each side once,
one after the other, and yields one ratio; a comparison reports the median ratio and its spread.
"""

from __future__ import annotations

import gc
import importlib.util
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aioqueue

__all__ = ("Comparison", "Mode", "Row", "compare", "for_build", "installed")


def installed(package: str) -> bool:
    """Whether a peer is there; rows of those that are not are left out."""
    return importlib.util.find_spec(package) is not None


def for_build(pure: float, compiled: float) -> float:
    """What a row must reach with the core that is installed: the pure or the compiled one."""
    return compiled if aioqueue.__compiled__ else pure


@dataclass(frozen=True)
class Mode:
    """How much to measure."""

    quick: bool = False

    @property
    def rounds(self) -> int:
        return 1 if self.quick else 7

    def scaled(self, n: int) -> int:
        """A number of operations: less of them in quick mode."""
        return max(n // 50, 200) if self.quick else n


@dataclass(frozen=True)
class Row:
    """One requirement: a comparison, and the ratio that it must reach."""

    number: str
    title: str
    over: str
    target: float
    at_least: bool = True
    """Whether the ratio must be at least the target, or at most."""


@dataclass
class Comparison:
    """The outcome of one row."""

    row: Row
    ratios: list[float]
    """One per round: how many times better than the other side, or the share of a limit reached."""
    figures: dict[str, str] = field(default_factory=dict)
    """Absolute figures by side, for reading."""

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def met(self) -> bool:
        return self.ratio >= self.row.target if self.row.at_least else self.ratio <= self.row.target

    @property
    def spread(self) -> str:
        return f"{min(self.ratios):.2f} to {max(self.ratios):.2f}"


def compare(
    row: Row,
    ours: Callable[[], float],
    theirs: Callable[[], float],
    mode: Mode,
    *,
    names: tuple[str, str],
    show: Callable[[float], str] = lambda seconds: f"{seconds * 1e6:.2f} µs",
) -> Comparison:
    """Measure two sides that return seconds per unit of work; the ratio is theirs over ours."""
    times: Mapping[str, list[float]] = {name: [] for name in names}
    ours(), theirs()  # warm up both
    for _ in range(mode.rounds):
        for name, side in zip(names, (ours, theirs), strict=True):
            gc.collect()
            times[name].append(side())
    mine, other = (times[name] for name in names)
    ratios = [b / a for a, b in zip(mine, other, strict=True)]
    figures = {name: show(statistics.median(values)) for name, values in times.items()}
    return Comparison(row, ratios, figures)
