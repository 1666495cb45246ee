"""`zip`: rows of several pipelines side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import checked_flag
from aioqueue.items.item import EpochEnd
from aioqueue.items.provenance import joined
from aioqueue.pipeline.batches.batch_shape import BatchShape, Beside
from aioqueue.pipeline.nodes.flow import Flow
from aioqueue.pipeline.nodes.node import Node, Taken
from aioqueue.pipeline.nodes.rows import ROW_INDEX, ROW_SUB, Row, State, origin_of, value_of
from aioqueue.pipeline.nodes.state_fields import (
    COMMON,
    HELD,
    Fields,
    NestedField,
    own_fields,
    read_fields,
    write_fields,
)
from aioqueue.pipeline.stages.base import BuildContext
from aioqueue.pipeline.stages.combining import (
    CombiningNode,
    CombiningStage,
    _Lookahead,
    branches_of,
)
from aioqueue.pipeline.stages.transform import failure_in


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
        self._expect(n, *self._lookaheads)
        filled = []
        for branch in self._lookaheads:
            filled.append((yield from branch.fill(n)))
            if not filled[-1] and not self._strict:
                break
        if all(filled):
            return self.take_ready(n)
        if any(filled) and self._strict:
            raise self._refused(filled)
        end = EpochEnd(self._epoch, self._given)
        self._skip_to(self._epoch + 1)
        return end

    def take_ready(self, n: int) -> list[Row]:
        # The tuples are made only now: until then a state names the rows of each branch.
        count = min(n, min([branch.ready for branch in self._lookaheads]))
        if not count:
            return []
        tuples = zip(*[branch.take_ready(count) for branch in self._lookaheads], strict=True)
        first = self._given
        self._given += count
        return [
            (
                tuple(map(value_of, rows)),
                number,
                rows[0][ROW_INDEX],
                rows[0][ROW_SUB],
                joined(map(origin_of, rows)),
            )
            for number, rows in enumerate(tuples, first)
        ]

    def _refused(self, filled: list[bool]) -> BaseException:
        error = InvalidArgumentError(
            f"zip: got pipelines of different lengths in epoch {self._epoch}: after"
            f" {self._given} examples of each, number {filled.index(False)} has ended and number"
            f" {filled.index(True)} has not; expected as many of each, or strict=False, which ends"
            " with the shortest"
        )
        return failure_in(self.stage, error, (), self._epoch)

    def _go_to(self, epoch: int) -> None:
        super()._go_to(epoch)


_AHEAD: Final = NestedField({**COMMON, **HELD})
"""The state of a `_Lookahead`."""


class _Lookaheads(NestedField):
    """A field with the states of all branches, by their number."""

    def check(self, where: str, value: Any) -> None:
        for branch, one in value.items():
            _AHEAD.check(f"{where}.{branch}", one)


@dataclass(frozen=True)
class Zip(CombiningStage):
    """Makes tuples of one example from each pipeline."""

    name: ClassVar[str] = "zip"
    state_fields: ClassVar[Fields] = {"ahead": _Lookaheads({})}
    strict: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_flag(self.strict, "strict")

    def details(self) -> str:
        return f"of {len(self.others) + 1}{' strict' if self.strict else ''}"

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return ZipNode(self._nodes(upstream, building), strict=self.strict)

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        # What one pipeline has left on a rank may be another part than that of another one.
        return "which pairs examples otherwise on another number of ranks"

    @classmethod
    def blank_entry(cls, arguments: Mapping[str, Any], *, is_padded: bool) -> dict[str, Any]:
        blank = super().blank_entry(arguments, is_padded=is_padded)
        numbers = range(branches_of(arguments))
        return {**blank, "ahead": {str(branch): _AHEAD.blank() for branch in numbers}}

    @classmethod
    def write_entry(cls, entry: dict[str, Any], state: State | None) -> list[State | None]:
        branches = super().write_entry(entry, state)
        return list(map(write_fields, entry["ahead"].values(), branches))

    @classmethod
    def read_entry(
        cls, entry: Mapping[str, Any], upstream: State | None, others: Sequence[State | None]
    ) -> State | None:
        own = own_fields(entry, COMMON)
        branches = [
            read_fields(ahead, _AHEAD.fields, one)
            for ahead, one in zip(entry["ahead"].values(), [upstream, *others], strict=True)
        ]
        return {**own, "branches": branches} if own else None

    def length(self, rows: int | None) -> int | None:
        lengths = self._lengths(rows)
        return None if lengths is None else min(lengths)
