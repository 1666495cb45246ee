"""`mix`: draws rows from several pipelines, by weights."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import function_name, is_async, is_int
from aioqueue.core.elements.philox import PhiloxWords
from aioqueue.items.item import EpochEnd
from aioqueue.pipeline.nodes.flow import Flow
from aioqueue.pipeline.nodes.node import Node, Taken
from aioqueue.pipeline.nodes.rows import ROW_VALUE, Row, State
from aioqueue.pipeline.nodes.state_fields import NUMBER, Field, Fields, is_amount, list_of
from aioqueue.pipeline.stages.base import BuildContext
from aioqueue.pipeline.stages.combining import CombiningNode, CombiningStage, Stop
from aioqueue.pipeline.stages.transform import failure_in
from aioqueue.sources.shuffling import bounds_of, checked_weights, resolved_seed

Tokens = Callable[[Any], int]
"""Tells how many tokens an example has."""


class MixNode(CombiningNode):
    """The node of a `mix`; see `Stages.mix`.

    Which branch is drawn depends only on the seed, the epoch and the number of draws. So the state
    is a count of draws, and the states of the branches.

    Args:
        branches: the last nodes of the pipelines.
        weights: the share of each.
        seed: the seed of the draws.
        stop: whether an epoch ends with the first branch that ends, or with all.
        tokens: tells how many tokens an example has, if the shares are those of tokens. Then
            nothing is drawn: next is the branch that has had the least of its share so far.
    """

    def __init__(
        self,
        branches: Sequence[Node],
        weights: list[float],
        seed: int,
        stop: Stop,
        tokens: Tokens | None = None,
    ) -> None:
        super().__init__(branches)
        self._weights = weights
        self._seed = seed
        self._stop = stop
        self._tokens = tokens
        self.measured: tuple[str, ...] = () if tokens is None else ("_tokens_of",)
        self._chosen: int | None = None  # drawn, but not yet taken from
        self._words = PhiloxWords((seed, 1))
        self._left: list[float] = []  # the weights; 0 for branches whose epoch has ended
        self._spent: list[int] = []  # tokens that each has had
        self._go_to(self._epoch)

    def take(self, n: int) -> Flow[Taken]:
        while any(self._left):
            if self._chosen is None:
                self._chosen = self._draw() if self._tokens is None else self._neediest()
            self._expect(1, self._branches[self._chosen])
            taken = yield from self._branches[self._chosen].take(1)
            if not isinstance(taken, EpochEnd):
                chosen, self._chosen = self._chosen, None
                if self._tokens is not None:
                    self._spent[chosen] += self._tokens_of(taken, self._tokens)
                return self._renumbered(taken, chosen)
            self._end_branch(self._chosen)
        return self._end_epoch()

    def _own_state(self) -> State:
        state: State = {
            "drawn": self._drawn,
            "chosen": self._chosen,
            "running": [bool(weight) for weight in self._left],
        }
        return state if self._tokens is None else {**state, "spent": list(self._spent)}

    def _restore_own(self, state: State) -> None:
        self._chosen = state.get("chosen")
        self._drawn = state["drawn"]
        self._words.skip(self._drawn)
        self._left = [
            weight if is_running else 0.0
            for weight, is_running in zip(self._left, state["running"], strict=True)
        ]
        self._bounds = bounds_of(self._left)
        self._spent = list(state.get("spent", self._spent))

    def _draw(self) -> int:
        self._drawn += 1
        return bisect_right(self._bounds, self._words.take(1)[0])

    def _neediest(self) -> int:
        """The branch that is furthest behind its share; the first of several."""
        running = [at for at, weight in enumerate(self._left) if weight]
        return min(running, key=lambda at: self._spent[at] / self._left[at])

    def _tokens_of(self, rows: Sequence[Row], tokens: Tokens) -> int:
        try:
            return sum(_checked_tokens(tokens(row[ROW_VALUE])) for row in rows)
        except BaseException as error:
            raise failure_in(self.stage, error, rows, self._epoch)  # noqa: B904  # has its cause

    def _end_branch(self, branch: int) -> None:
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
        super()._go_to(epoch)
        self._left = list(self._weights)
        self._bounds = bounds_of(self._left)
        self._words = PhiloxWords((self._seed, epoch + 1))
        self._drawn = 0
        self._spent = [0] * len(self._weights)
        self._chosen = None


def _checked_tokens(count: Any) -> int:
    if not is_int(count) or count < 0:
        raise InvalidArgumentError(
            f"tokens: got {count!r} for an example; expected a function that returns an int >= 0,"
            " as len does"
        )
    return int(count)


@dataclass(frozen=True)
class Mix(CombiningStage):
    """Mixes in other pipelines."""

    name: ClassVar[str] = "mix"
    state_fields: ClassVar[Fields] = {
        "drawn": NUMBER,
        "chosen": NUMBER,
        "running": Field(list_of(lambda one: isinstance(one, bool)), "a list of bools"),
        "spent": Field(list_of(is_amount), "a list of amounts"),
    }
    weights: Any
    seed: int | None
    stop: Stop
    tokens: Tokens | None

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_weights(self.weights, len(self.others) + 1)
        resolved_seed(self.seed)
        if self.stop not in ("first", "all"):
            raise InvalidArgumentError(f"stop: got {self.stop!r}; expected 'first' or 'all'")
        if self.tokens is not None and (not callable(self.tokens) or is_async(self.tokens)):
            raise InvalidArgumentError(
                f"tokens: got {self.tokens!r}; expected a plain function that tells how many tokens"
                " an example has, as len does, or None"
            )

    @property
    def own_seed(self) -> int | None:
        return self.seed

    def function_name(self) -> str:
        return self.name if self.tokens is None else function_name(self.tokens)

    def details(self) -> str:
        weights = checked_weights(self.weights, len(self.others) + 1)
        shares = " : ".join(f"{weight / sum(weights):.3g}" for weight in weights)
        of = "" if self.tokens is None else f" of {function_name(self.tokens)}"
        return f"{shares}{of}, stop={self.stop!r}"

    def node(self, upstream: Node, building: BuildContext) -> Node:
        branches = self._nodes(upstream, building)
        weights = checked_weights(self.weights, len(branches))
        seed = building.seed("mix")
        seed = seed if self.seed is None else int(self.seed)
        return MixNode(branches, weights, seed, self.stop, self.tokens)

    def fingerprint(self) -> dict[str, Any]:
        weights = checked_weights(self.weights, len(self.others) + 1)
        found = {"weights": weights, "seed": self.seed, "stop": self.stop}
        return found if self.tokens is None else {**found, "tokens": True}

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        if arguments.get("stop") == "first":
            return "with stop='first', whose end depends on the draws of each rank"
        return None

    @classmethod
    def blank_entry(cls, arguments: Mapping[str, Any], *, is_padded: bool) -> dict[str, Any]:
        blank = super().blank_entry(arguments, is_padded=is_padded)
        if not arguments.get("tokens"):
            del blank["spent"]
        return blank

    def length(self, rows: int | None) -> int | None:
        lengths = self._lengths(rows)
        return sum(lengths) if lengths is not None and self.stop == "all" else None

    def depends_on_data(self) -> bool:
        return True  # a pipeline that is mixed in may skip items
