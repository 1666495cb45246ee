"""Several pipelines as one, stages and nodes: mixed, one behind the other, or side by side."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from aioqueue import InvalidArgumentError
from aioqueue.arguments import checked_flag, function_name, is_async, is_int
from aioqueue.inputs.core.batch_shape import AnyOf, BatchShape, Beside
from aioqueue.inputs.core.items import EpochEnd, joined
from aioqueue.inputs.core.shuffling import bounds_of, checked_weights, resolved_seed
from aioqueue.inputs.pipeline.description import BasePipeline, BaseStage, BuildContext
from aioqueue.inputs.pipeline.node import (
    ROW_INDEX,
    ROW_SUB,
    ROW_VALUE,
    Flow,
    Id,
    Node,
    NoPositionError,
    Row,
    State,
    Taken,
    WantedRows,
    origin_of,
    told_apart,
    value_of,
)
from aioqueue.inputs.pipeline.stages import ToDevice, as_pipeline, length_of_source
from aioqueue.inputs.pipeline.transform_nodes import HoldingTransform, failure_in
from aioqueue.philox import PhiloxWords

Stop = Literal["first", "all"]

Tokens = Callable[[Any], int]
"""Tells how many tokens an example has."""


class CombiningNode(Node):
    """A node that makes the rows of several branches one.

    Args:
        branches: where the rows come from.
    """

    measured: tuple[str, ...] = ()
    """Names of the methods in which it calls a function of the user's."""

    def __init__(self, branches: Sequence[Node]) -> None:
        super().__init__(branches[0].span)
        self.is_ordered = all(branch.is_ordered for branch in branches)
        self.stage = ""
        """What it does, in the words of a failure's note."""
        self._branches = list(branches)

    @property
    def batch_shape(self) -> BatchShape | None:
        shapes = [branch.batch_shape for branch in self._branches]
        return self._shape_of(shapes) if any(shapes) else None

    def limit(self, rows: int) -> None:
        super().limit(rows)
        for branch in self._branches:
            branch.limit(rows)

    def _shape_of(self, shapes: Sequence[BatchShape | None]) -> BatchShape:
        """What is known of its values, if it is of those of some branches."""
        return AnyOf(shapes)

    def _expect(self, n: int, *branches: Node) -> None:
        """Tell branches how many rows are still wanted, at least those that are asked for."""
        if self.is_limited:
            for branch in branches:
                branch.expect(max(n, self._still_wanted))

    def _skip_to(self, epoch: int) -> None:
        for branch in self._branches:
            branch.skip_to(epoch)
        self._go_to(epoch)

    def state(self, held: Sequence[Id] = ()) -> State:
        if held:
            raise NoPositionError(
                "this pipeline has no position: a stage after `mix`, `zip` or `concat` holds"
                " examples that come from workers which do not keep the order (ordered=False);"
                " keep the order"
            )
        return {
            "epoch": self._epoch,
            "given": self._given,
            **self._own_state(),
            "branches": [branch.state() for branch in self._branches],
        }

    def restore(self, state: State, wanted: WantedRows | None = None) -> None:
        self._go_to(state["epoch"])
        self._given = state["given"]
        self._restore_own(state)
        for branch, one in zip(self._branches, state["branches"], strict=True):
            branch.restore(one)

    def weight(self) -> int:
        return sum(branch.weight() for branch in self._branches)

    def close(self) -> None:
        for branch in self._branches:
            branch.close()

    @abstractmethod
    def _go_to(self, epoch: int) -> None:
        """An epoch is next; its own part of that."""
        self._epoch, self._given = epoch, 0

    def _own_state(self) -> State:
        """What it knows besides."""
        return {}

    def _restore_own(self, state: State) -> None:
        """Take over that part of a state."""

    def _turn(self) -> EpochEnd:
        """The epoch has ended in all branches."""
        end = EpochEnd(self._epoch, self._given)
        self._go_to(self._epoch + 1)
        return end

    def _marked(self, rows: Sequence[Row], branch: int) -> list[Row]:
        """Rows of one branch as rows of this node."""
        first, count = self._given, len(self._branches)
        self._given += len(rows)
        return [  # new numbers and indices, because those of different branches may be the same
            (value, number, told_apart(index, branch, count), sub, origin)
            for number, (value, _, index, sub, origin) in enumerate(rows, first)
        ]


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
        self.measured = () if tokens is None else ("_tokens_of",)
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
                return self._marked(taken, chosen)
            self._ended(self._chosen)
        return self._turn()

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
            weight if goes_on else 0.0
            for weight, goes_on in zip(self._left, state["running"], strict=True)
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


class ConcatNode(CombiningNode):
    """The rows of each branch, one branch behind the other, in every epoch."""

    def __init__(self, branches: Sequence[Node]) -> None:
        super().__init__(branches)
        self._at = 0  # which branch is given out

    def limit(self, rows: int) -> None:
        self.is_limited = True
        for at, branch in enumerate(self._branches):
            branch.limit(0 if at else rows)  # a later one may not have its turn at all

    def take(self, n: int) -> Flow[Taken]:
        while self._at < len(self._branches):
            self._expect(n, self._branches[self._at])
            taken = yield from self._branches[self._at].take(n)
            if not isinstance(taken, EpochEnd):
                return self._marked(taken, self._at)
            self._at += 1
        return self._turn()

    def _own_state(self) -> State:
        return {"chosen": self._at}

    def _restore_own(self, state: State) -> None:
        self._at = state["chosen"]

    def _go_to(self, epoch: int) -> None:
        super()._go_to(epoch)
        self._at = 0


class _Lookahead(HoldingTransform):
    """The rows of a branch; it waits for the next one before that is taken.

    All rows of a tuple are taken in one step, when the last of them is there. So no position is
    between two of them.
    """

    def fill(self) -> Flow[bool]:
        """Have the next row of the epoch ready; returns whether there is one."""
        if self._tape.is_to_be_wound:
            self._put_back((yield from self._tape.again()))
        while not self._ready and not self._has_ended:
            if self.is_limited:
                self._upstream.expect(max(1, self._still_wanted))
            taken = yield from self._pull(1)
            self._has_begun = True
            self._take_in(taken)
        return bool(self._ready)

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        return rows

    def _held(self) -> list[Id]:
        return self._ids(self._ready)

    def _put_back(self, rows: list[Row]) -> None:
        self._ready = deque(rows)

    def _shape(self) -> State:
        return {}

    def _reshape(self, state: State) -> None:
        """There is nothing to reshape: what is ready comes in order."""


class ZipNode(CombiningNode):
    """Tuples of rows, one of each branch; see `Stages.zip`.

    Args:
        branches: where the rows come from.
        strict: whether branches of different lengths are a failure.
    """

    def __init__(self, branches: Sequence[Node], *, strict: bool) -> None:
        self._lookaheads = [_Lookahead(branch) for branch in branches]
        super().__init__(self._lookaheads)
        self._strict = strict

    def _shape_of(self, shapes: Sequence[BatchShape | None]) -> BatchShape:
        return Beside(shapes)

    def take(self, n: int) -> Flow[Taken]:
        self._expect(1, *self._lookaheads)
        have = []
        for branch in self._lookaheads:
            have.append((yield from branch.fill()))
            if not have[-1] and not self._strict:
                break
        if all(have):
            return [self._tuple([branch.take_ready(1)[0] for branch in self._lookaheads])]
        if any(have) and self._strict:
            raise self._refused(have)
        end = EpochEnd(self._epoch, self._given)
        self._skip_to(self._epoch + 1)
        return end

    def _tuple(self, rows: list[Row]) -> Row:
        number = self._given
        self._given += 1
        first = rows[0]
        origin = joined(map(origin_of, rows))
        return tuple(map(value_of, rows)), number, first[ROW_INDEX], first[ROW_SUB], origin

    def _refused(self, have: list[bool]) -> BaseException:
        error = InvalidArgumentError(
            f"zip: got pipelines of different lengths in epoch {self._epoch}: after"
            f" {self._given} examples of each, number {have.index(False)} has ended and number"
            f" {have.index(True)} has not; expected as many of each, or strict=False, which ends"
            " with the shortest"
        )
        return failure_in(self.stage, error, (), self._epoch)

    def _go_to(self, epoch: int) -> None:
        super()._go_to(epoch)


@dataclass(frozen=True)
class CombiningStage(BaseStage):
    """The base of stages that combine a pipeline with others."""

    combines: ClassVar[bool] = True
    others: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.others:
            raise InvalidArgumentError(
                "others: got none; expected a pipeline or source, or several"
            )
        for other in self.others:
            if any(isinstance(stage, ToDevice) for stage in as_pipeline(other).stages):
                raise InvalidArgumentError(
                    f"others: got {other!r}; expected `to_device` after `{self.name}`, for all of"
                    " them"
                )

    @property
    def own_seed(self) -> int | None:
        """The seed that the user gave; ``None`` if the pipeline's seed decides."""
        return None

    def branches(self) -> list[BasePipeline[Any]]:
        return [as_pipeline(other) for other in self.others]

    def _nodes(self, upstream: Node, building: BuildContext) -> list[Node]:
        return [upstream, *map(building.branch, self.branches())]

    def _lengths(self, rows: int | None) -> list[int] | None:
        """Return the number of rows of each pipeline; ``None`` unless all of them are known."""
        lengths = [rows, *map(length_of_source, self.others)]
        known = [length for length in lengths if length is not None]
        return known if len(known) == len(lengths) else None


@dataclass(frozen=True)
class Mix(CombiningStage):
    """Mixes in other pipelines."""

    name: ClassVar[str] = "mix"
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

    def is_elastic(self) -> bool:
        return self.stop == "all"  # where the first ends depends on what each rank has drawn

    def length(self, rows: int | None) -> int | None:
        lengths = self._lengths(rows)
        return sum(lengths) if lengths is not None and self.stop == "all" else None

    def depends_on_data(self) -> bool:
        return True  # a pipeline that is mixed in may skip items


@dataclass(frozen=True)
class Zip(CombiningStage):
    """Makes tuples of one example from each pipeline."""

    name: ClassVar[str] = "zip"
    strict: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_flag(self.strict, "strict")

    def details(self) -> str:
        return f"of {len(self.others) + 1}{' strict' if self.strict else ''}"

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return ZipNode(self._nodes(upstream, building), strict=self.strict)

    def is_elastic(self) -> bool:
        return False  # what one pipeline has left on a rank may be another part than of another

    def length(self, rows: int | None) -> int | None:
        lengths = self._lengths(rows)
        return None if lengths is None else min(lengths)


@dataclass(frozen=True)
class Concat(CombiningStage):
    """Continues with the examples of other pipelines, one pipeline after the other."""

    name: ClassVar[str] = "concat"

    def details(self) -> str:
        return f"of {len(self.others) + 1}"

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return ConcatNode(self._nodes(upstream, building))

    def length(self, rows: int | None) -> int | None:
        lengths = self._lengths(rows)
        return None if lengths is None else sum(lengths)
