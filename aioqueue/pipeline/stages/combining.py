"""What stages share that mix in other pipelines."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from aioqueue import InvalidArgumentError
from aioqueue.base.json_files import DocumentError
from aioqueue.items.index import derive_index
from aioqueue.items.item import EpochEnd
from aioqueue.pipeline.batches.batch_shape import AnyOf, BatchShape
from aioqueue.pipeline.nodes.deferred import made
from aioqueue.pipeline.nodes.flow import Flow
from aioqueue.pipeline.nodes.node import READ_TOGETHER, Node, NoPositionError
from aioqueue.pipeline.nodes.rows import Id, Row, State, WantedRows
from aioqueue.pipeline.nodes.state_fields import COMMON, own_fields, write_fields
from aioqueue.pipeline.stages.base import BasePipeline, BaseStage, BuildContext
from aioqueue.pipeline.stages.lengths import as_pipeline, length_of_source
from aioqueue.pipeline.stages.transform import HoldingTransform

Stop = Literal["first", "all"]


class CombiningNode(Node):
    """A node that makes the rows of several branches one.

    Args:
        branches: where the rows come from.
    """

    measured: tuple[str, ...] = ()
    """Names of the methods in which it calls a function of the user's."""

    def __init__(self, branches: Sequence[Node]) -> None:
        super().__init__(branches[0].span)
        self.is_ordered: bool = all(branch.is_ordered for branch in branches)
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
        """Return the shape of the values, given the shapes in the branches that they come from."""
        return AnyOf(shapes)

    def _expect(self, n: int, *branches: Node) -> None:
        """Tell the branches how many rows are still wanted: at least those that are requested."""
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
        """Begin an epoch: the subclass resets its own state."""
        self._epoch, self._given = epoch, 0

    def _own_state(self) -> State:
        """Return the subclass's own state, in addition to that of the branches."""
        return {}

    def _restore_own(self, state: State) -> None:
        """Restore what `_own_state` has returned."""

    def _end_epoch(self) -> EpochEnd:
        """End the epoch, after it has ended in all branches."""
        end = EpochEnd(self._epoch, self._given)
        self._go_to(self._epoch + 1)
        return end

    def _renumbered(self, rows: Sequence[Row], branch: int) -> list[Row]:
        """Return rows of one branch as rows of this node."""
        first, count = self._given, len(self._branches)
        self._given += len(rows)
        return [  # new numbers and indices, because those of different branches may be the same
            (value, number, derive_index(index, branch, count), sub, origin)
            for number, (value, _, index, sub, origin) in enumerate(rows, first)
        ]


class _Lookahead(HoldingTransform):
    """The rows of a branch; it waits for the next one before that is taken.

    All rows of a tuple are taken in one step, when the last of them is there. So no position is
    between two of them.
    """

    @property
    def ready(self) -> int:
        """How many rows were fetched, and not taken yet."""
        return len(self._ready)

    def fill(self, n: int) -> Flow[bool]:
        """Fetch the next row of the epoch unless it is there, and up to n without a further wait;
        return whether there is one."""
        if self._log.needs_replay:
            self._put_back((yield from self._log.replay()))
        # One at a time, if that may wait: the feeder of the branches may give each its next row
        # only when it has taken the one before, so that nobody must wait for more of one branch.
        together = 1
        if self._upstream.never_waits:
            together = n if self.is_limited else max(n, READ_TOGETHER)
        while not self._ready and not self._has_ended:
            if self.is_limited:
                self._upstream.expect(max(together, self._still_wanted))
            taken = yield from self._pull(together)
            self._has_begun = True
            self._take_in(taken)
            if n > 1 and self._ready:
                self._ready.extend(self._log.take_ready(n - 1))
        return bool(self._ready)

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        return rows

    def _held(self) -> list[Id]:
        return self._ids(self._ready)

    def _held_count(self) -> int:
        return len(self._ready)

    def _put_back(self, rows: list[Row]) -> None:
        self._ready = deque(rows)

    def _buffer_state(self) -> State:
        return {}

    def _restore_buffer(self, state: State) -> None:
        """Do nothing: the row that was fetched ahead has no further state."""


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
            if any(stage.is_on_device for stage in as_pipeline(other).stages):
                raise InvalidArgumentError(
                    f"others: got {other!r}; expected `to_device` after `{self.name}`, for all of"
                    " them"
                )

    @property
    def own_seed(self) -> int | None:
        """The seed that the user gave; ``None`` if the pipeline's seed decides."""
        return None

    def without_quarantine(self) -> BaseStage:
        return self.with_branches(_without_quarantine)

    def with_branches(self, change: Callable[[Any, int], Any]) -> BaseStage:
        return replace(self, others=tuple(change(one, at) for at, one in enumerate(self.others, 1)))

    @classmethod
    def check_entry(cls, entry: Mapping[str, Any]) -> None:
        super().check_entry(entry)
        count = branches_of(entry)
        for name in ("running", "spent"):
            if entry.get(name) is not None and len(entry[name]) != count:
                raise DocumentError(f"{name}: got {len(entry[name])} values; expected {count}")
        chosen = entry.get("chosen")
        if chosen is not None and chosen >= count:
            raise DocumentError(f"chosen: got {chosen}; expected less than {count}")

    @classmethod
    def write_entry(cls, entry: dict[str, Any], state: State | None) -> list[State | None]:
        state = made(state)
        if state is None:
            return [None] * branches_of(entry)
        write_fields(entry, {key: one for key, one in state.items() if key != "branches"})
        branches: list[State | None] = state["branches"]
        return branches

    @classmethod
    def read_entry(
        cls, entry: Mapping[str, Any], upstream: State | None, others: Sequence[State | None]
    ) -> State | None:
        own = own_fields(entry, {**COMMON, **cls.state_fields})
        return {**own, "branches": [upstream, *others]} if own else None

    def branches(self) -> list[BasePipeline[Any]]:
        return [as_pipeline(other) for other in self.others]

    def _nodes(self, upstream: Node, building: BuildContext) -> list[Node]:
        return [upstream, *map(building.branch, self.branches())]

    def _lengths(self, rows: int | None) -> list[int] | None:
        """Return the number of rows of each pipeline; ``None`` unless all of them are known."""
        lengths = [rows, *map(length_of_source, self.others)]
        known = [length for length in lengths if length is not None]
        return known if len(known) == len(lengths) else None


def branches_of(entry: Mapping[str, Any]) -> int:
    """How many pipelines a stage makes one, by its entry: the one before it, and the others."""
    return 1 + len(entry["others"])


def _without_quarantine(given: Any, number: int) -> BasePipeline[Any]:
    branch = as_pipeline(given)
    stages = [stage.without_quarantine() for stage in branch.stages]
    return branch._made_of(branch.source, stages)
