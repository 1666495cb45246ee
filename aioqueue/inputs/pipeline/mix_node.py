"""Mixes several pipelines: each example is the next one of a pipeline that is drawn at random.

Which pipeline is drawn depends only on the seed, the epoch and the number of draws. So the state of
the node is a count of draws, and the states of its branches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal

from aioqueue.inputs.core.items import EpochEnd
from aioqueue.inputs.core.shuffling import bounds_of
from aioqueue.inputs.pipeline.node import (
    Flow,
    Id,
    Node,
    NoPositionError,
    Row,
    State,
    Taken,
    WantedRows,
    told_apart,
)
from aioqueue.philox import PhiloxWords

__all__ = ("MixNode", "Stop")

Stop = Literal["first", "all"]


class MixNode(Node):
    """The node of a `mix`; see `Stages.mix`.

    Args:
        branches: the last nodes of the pipelines.
        weights: the share of each.
        seed: the seed of the draws.
        stop: whether an epoch ends with the first branch that ends, or with all.
    """

    def __init__(self, branches: list[Node], weights: list[float], seed: int, stop: Stop) -> None:
        super().__init__(branches[0].span)
        self.is_ordered: bool = all(branch.is_ordered for branch in branches)
        self._branches = branches
        self._weights = weights
        self._seed = seed
        self._stop = stop
        self._chosen: int | None = None  # drawn, but not yet taken from
        self._words = PhiloxWords((seed, 1))
        self._left: list[float] = []  # the weights; 0 for branches whose epoch has ended
        self._go_to(self._epoch)

    def take(self, n: int) -> Flow[Taken]:
        while any(self._left):
            if self._chosen is None:
                self._chosen = bisect_right(self._bounds, self._words.take(1)[0])
                self._drawn += 1
            taken = yield from self._branches[self._chosen].take(1)
            if not isinstance(taken, EpochEnd):
                return self._marked(taken, self._chosen)
            self._ended(self._chosen)
        end = EpochEnd(self._epoch, self._given)
        self._go_to(self._epoch + 1)
        return end

    def _skip_to(self, epoch: int) -> None:
        for branch in self._branches:
            branch.skip_to(epoch)
        self._go_to(epoch)

    def state(self, held: Sequence[Id] = ()) -> State:
        if held:
            raise NoPositionError(
                "this pipeline has no position: a stage after `mix` holds examples from workers"
                " that do not keep the order (ordered=False); keep the order"
            )
        return {
            "epoch": self._epoch,
            "given": self._given,
            "drawn": self._drawn,
            "chosen": self._chosen,
            "running": [bool(weight) for weight in self._left],
            "branches": [branch.state() for branch in self._branches],
        }

    def restore(self, state: State, wanted: WantedRows | None = None) -> None:
        self._go_to(state["epoch"])
        self._given, self._chosen = state["given"], state.get("chosen")
        self._drawn = state["drawn"]
        self._words.skip(self._drawn)
        self._left = [
            weight if goes_on else 0.0
            for weight, goes_on in zip(self._left, state["running"], strict=True)
        ]
        self._bounds = bounds_of(self._left)
        for branch, one in zip(self._branches, state["branches"], strict=True):
            branch.restore(one)

    def weight(self) -> int:
        return sum(branch.weight() for branch in self._branches)

    def close(self) -> None:
        for branch in self._branches:
            branch.close()

    def _marked(self, rows: Sequence[Row], branch: int) -> list[Row]:
        self._chosen = None
        first, count = self._given, len(self._branches)
        self._given += len(rows)
        return [  # new numbers and indices, because those of different branches may be the same
            (value, number, told_apart(index, branch, count), sub, origin)
            for number, (value, _, index, sub, origin) in enumerate(rows, first)
        ]

    def _ended(self, branch: int) -> None:
        self._chosen = None
        if self._stop == "all":
            self._left[branch] = 0.0
            self._bounds = bounds_of(self._left)
            return
        for other, node in enumerate(self._branches):
            if other != branch and self._left[other]:
                node.skip_to(self._epoch + 1)
        self._left = [0.0] * len(self._left)

    def _go_to(self, epoch: int) -> None:
        self._epoch, self._given = epoch, 0
        self._left = list(self._weights)
        self._bounds = bounds_of(self._left)
        self._words = PhiloxWords((self._seed, epoch + 1))
        self._drawn = 0
        self._chosen = None
