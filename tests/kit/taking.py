"""Random pipelines over what cannot be read again, and what they may read of it.

`random_chain` makes stages with, for each, what it makes of numbers, and how many it needs.
`conserved` says whether a queue and its readers have every element between them, exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from aioqueue.inputs import numbers

__all__ = ("Chain", "flat_numbers", "random_chain")


@dataclass
class Chain:
    """Stages behind a source of numbers.

    Attributes:
        apply: puts the stages behind a source.
        needs: how many rows of the source are needed for a number of elements, if none is left out.
        described: what the chain does, for failures.
        is_exact: whether exactly as many are read; otherwise as many as are missing may be in
            flight.
        dropped: the numbers that a stage leaves out.
    """

    steps: list[Callable[[Any], Any]] = field(default_factory=list)
    ways: list[Callable[[int], int]] = field(default_factory=list)
    described: list[str] = field(default_factory=list)
    is_exact: bool = True
    dropped: Callable[[int], bool] = lambda number: False
    keeps_order: bool = True

    def apply(self, source: Any) -> Any:
        for step in self.steps:
            source = step(source)
        return source

    def needs(self, elements: int) -> int:
        for way in reversed(self.ways):
            elements = way(elements) if elements else 0
        return elements

    def add(self, described: str, step: Callable[[Any], Any], way: Callable[[int], int]) -> None:
        self.described.append(described)
        self.steps.append(step)
        self.ways.append(way)


def same(value: Any) -> Any:
    return value


async def same_async(value: Any) -> Any:
    return value


def keeps(value: Any) -> bool:
    return flat_numbers(value)[0] % 3 != 1


def or_none(value: Any) -> Any:
    return value if keeps(value) else None


def threefold(value: Any) -> Any:
    return [value] * 3


def flat_numbers(value: Any) -> list[int]:
    """All the numbers of the source in a value."""
    if isinstance(value, list | tuple):
        return [one for part in value for one in flat_numbers(part)]
    return [int(value)]


def random_chain(draw: Random, *, leaves_out: bool = False, with_flat: bool = False) -> Chain:
    """Some stages: with `leaves_out`, one of them leaves a third of the numbers out."""
    chain = Chain()
    kinds = ["prepare", "batch", "window", "skip", "shuffle", "prefetch", "unbatch", "take"]
    plan = [draw.choice(kinds) for _ in range(draw.randint(0, 3))]
    plan.insert(draw.randint(0, len(plan)), "prepare")
    if leaves_out:
        plan.insert(0, draw.choice(("filter", "drop_none")))
        chain.dropped = lambda number: number % 3 == 1
    if with_flat:
        plan.insert(draw.randint(0, len(plan)), "flat")
        chain.is_exact = False
    for kind in plan:
        _add(chain, kind, draw)
    return chain


def _add(chain: Chain, kind: str, draw: Random) -> None:
    n, workers = draw.randint(1, 4), draw.randint(1, 3)
    if kind == "prepare":
        function: Any = draw.choice((same, same_async))
        is_ordered = draw.random() < 0.8
        chain.keeps_order &= is_ordered
        options = {"workers": workers, "ordered": is_ordered}
        chain.add(f"prepare {options}", lambda one: one.prepare(function, **options), same)
    elif kind == "batch":
        chain.add(f"batch {n}", lambda one: one.batch(n, collate=list), lambda m: m * n)
    elif kind == "window":
        stride = draw.randint(1, 4)
        chain.add(
            f"window {n} {stride}",
            lambda one: one.window(n, stride, collate=list),
            lambda m: n + (m - 1) * stride,
        )
    elif kind == "skip":
        chain.add(f"skip {n}", lambda one: one.skip(n), lambda m: m + n)
    elif kind == "shuffle":
        chain.keeps_order = False
        chain.add(f"shuffle {n}", lambda one: one.shuffle(n, seed=n), lambda m: m + n)
    elif kind == "prefetch":
        chain.add(f"prefetch {n}", lambda one: one.prefetch(n), same)
    elif kind == "take":
        chain.add(f"take {20 + n}", lambda one: one.take(20 + n), lambda m: min(m, 20 + n))
    elif kind == "unbatch":
        chain.add(
            f"batch {n}, unbatch",
            lambda one: one.batch(n, collate=list).prepare(same, workers=workers).unbatch(),
            lambda m: -(-m // n) * n,
        )
    elif kind == "filter":
        chain.add("filter", lambda one: one.prepare(same, workers=workers).filter(keeps), same)
    elif kind == "drop_none":
        chain.add(
            "drop_none",
            lambda one: one.prepare(or_none, workers=workers, drop_none=True),
            same,
        )
    else:
        chain.add("flat", lambda one: one.flat(threefold, workers=workers), same)


def kept_upto(chain: Chain, count: int) -> int:
    """How many numbers, from 0, have so many among them that are not left out."""
    at = found = 0
    while found < count:
        found += not chain.dropped(at)
        at += 1
    return at


def beside(pipeline: Any, elements: Sequence[Any] | int) -> Any:
    """The pipeline, side by side with as many others at least."""
    return pipeline.zip(numbers(10**6))
