"""What a row is: a cost at three sizes, in counts, and how far it may grow.

A row says what n things cost together: rounds of an event loop, calls, bytes, or instructions. Its
figure is the cost of one thing, at three sizes. Where the work is linear, the three are alike. A
row fails where the figure of the largest size exceeds that of the smallest by more than `growth`,
leaves its absolute bounds, or is more than `times` that of its peer: the same work, done with
another library or by hand, which is a row of its own. There are no seconds here: what is counted
repeats on any machine.

A module of this folder adds its rows to the table with `count` or `instructions`; the command finds
all modules by itself.
"""

from __future__ import annotations

import gc
import importlib
import math
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import benchmarks.growth
from benchmarks.callgrind import SLOWER, counters

Run = Callable[[], object]

INSTRUCTIONS = "instructions"


@dataclass(frozen=True)
class Row:
    """A cost that must not grow faster than the work.

    Attributes:
        title: what is done, per what.
        unit: what is counted.
        sizes: how many things, three times, in ascending order.
        cost: returns what n things cost together; with instructions, it prepares the work and
            returns the function that is counted.
        growth: by which factor the cost of one thing may grow from the first size to the last.
        at_most: the most that one thing may cost at any size; None for no such bound.
        at_least: the least, for what should be high (items per round).
        peer: the title of the row of its peer; None if it has none.
        times: how many times the peer's cost it may cost, at any size.
    """

    title: str
    unit: str
    sizes: tuple[int, int, int]
    cost: Callable[[int], float] | Callable[[int], Run]
    growth: float
    at_most: float | None
    at_least: float | None
    peer: str | None = None
    times: float | None = None

    def faults(
        self, figures: tuple[float, ...], of_peer: tuple[float, ...] | None = None
    ) -> list[str]:
        """Return how the figures, the cost of one thing at each size, break the bounds.

        Args:
            figures: of this row.
            of_peer: of its peer; None if it has none.
        """
        faults = []
        ratio = figures[-1] / figures[0]
        if ratio > self.growth:
            faults.append(f"grows {ratio:.2f} times, at most {self.growth:g}")
        if self.at_most is not None and max(figures) > self.at_most:
            faults.append(f"{max(figures):,.5g} {self.unit}, at most {self.at_most:,g}")
        if self.at_least is not None and min(figures) < self.at_least:
            faults.append(f"{min(figures):,.5g} {self.unit}, at least {self.at_least:,g}")
        if of_peer is not None and self.times is not None:
            times = times_of(figures, of_peer)
            if times > self.times:
                faults.append(f"{times:.2f} times {self.peer}, at most {self.times:g}")
        return faults


def times_of(figures: tuple[float, ...], of_peer: tuple[float, ...]) -> float:
    """Return how many times the peer's cost a row costs, at the size where that is most."""
    return max(ours / theirs for ours, theirs in zip(figures, of_peer, strict=True))


ROWS: dict[str, Row] = {}


def _add(row: Row) -> None:
    if row.title in ROWS:
        raise ValueError(f"two rows are called {row.title!r}; rename one")
    ROWS[row.title] = row


def count(
    title: str,
    unit: str,
    sizes: tuple[int, int, int],
    cost: Callable[[int], float],
    *,
    growth: float = 1.2,
    at_most: float | None = None,
    at_least: float | None = None,
) -> None:
    """Add a row whose cost is a count that a function of n returns; see `Row`."""
    _add(Row(title, unit, sizes, cost, growth, at_most, at_least))


def instructions(
    title: str,
    sizes: tuple[int, int, int],
    make: Callable[[int], Run],
    *,
    growth: float = 1.2,
    at_most: float | None = None,
    peer: tuple[str, Callable[[int], Run]] | None = None,
    times: float | None = None,
) -> None:
    """Add a row whose cost is the instructions of what a function of n prepares; see `Row`.

    Args:
        title: see `Row`.
        sizes: see `Row`.
        make: prepares the work on n things, and returns the function that is counted.
        growth: see `Row`.
        at_most: see `Row`.
        peer: what the peer is called, and what prepares the same work with it.
        times: see `Row`.
    """
    name = None
    if peer is not None:
        name = f"{title}: {peer[0]}"
        _add(Row(name, INSTRUCTIONS, sizes, peer[1], math.inf, None, None))
    _add(Row(title, INSTRUCTIONS, sizes, make, growth, at_most, None, name, times))


def load() -> None:
    """Import the modules of this folder, which add their rows."""
    for module in pkgutil.iter_modules(benchmarks.growth.__path__):
        if not module.name.startswith("__"):
            importlib.import_module(f"benchmarks.growth.{module.name}")


def run_counted(titles: Iterable[str]) -> None:
    """Do the work of rows, and mark what counts: what the child of `figures_of` does.

    `os.getppid` is the mark: callgrind writes its counter down before it.
    """
    sys.setswitchinterval(sys.getswitchinterval() * SLOWER)
    gc.disable()
    for title in titles:
        row = ROWS[title]
        work = [row.cost(size) for size in (row.sizes[0], *row.sizes)]
        for number, run in enumerate(work):
            assert callable(run)
            gc.collect()
            if number:  # the first run has CPython specialise the code
                os.getppid()
            run()
            if number:
                os.getppid()


def _counted(rows: list[Row]) -> dict[str, tuple[float, ...]]:
    """Count rows in one child: to import NumPy under valgrind takes longer than most rows."""
    sums = counters("benchmarks.growth", ["--run", *(row.title for row in rows)])
    costs = iter(sums[1::2])  # the counters in between are those of the preparation
    return {row.title: tuple(next(costs) / size for size in row.sizes) for row in rows}


def figures_of(rows: list[Row]) -> dict[str, tuple[float, ...]]:
    """Return the cost of one thing at each size, for each row by its title.

    Raises:
        RuntimeError: valgrind is needed and not installed, or the work failed in its child.
    """
    found: dict[str, tuple[float, ...]] = {}
    for row in rows:
        if row.unit != INSTRUCTIONS:
            costs = []
            for size in row.sizes:
                cost = row.cost(size)
                assert not callable(cost)
                costs.append(cost / size)
            found[row.title] = tuple(costs)
    of_instructions = [row for row in rows if row.unit == INSTRUCTIONS]
    return found | _counted(of_instructions) if of_instructions else found
