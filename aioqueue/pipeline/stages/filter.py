"""`filter`: keeps the rows for which a function returns a true value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import Answers, function_name, is_async
from aioqueue.items.provenance import finish
from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.nodes.rows import ROW_ORIGIN, ROW_VALUE, Row
from aioqueue.pipeline.stages.base import BaseStage, BuildContext
from aioqueue.pipeline.stages.transform import Transform


@dataclass(frozen=True)
class Filter(BaseStage):
    """Keeps the rows for which a function returns a true value."""

    name: ClassVar[str] = "filter"
    predicate: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.predicate) or is_async(self.predicate):
            raise InvalidArgumentError(
                f"predicate: got {self.predicate!r}; expected a plain function (pass a coroutine"
                " function that returns None for unwanted items to prepare(function,"
                " drop_none=True))"
            )

    def function_name(self) -> str:
        return function_name(self.predicate)

    def details(self) -> str:
        return function_name(self.predicate)

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return FilterNode(upstream, self.predicate)

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        return None

    def keeps_rows_apart(self) -> bool:
        return True

    def length(self, rows: int | None) -> int | None:
        return None


_PLAIN: Final = frozenset({int, np.bool_})  # what predicates usually return, besides a bool


class FilterNode(Transform):
    """Keeps the rows for whose value a function returns a true value."""

    def __init__(self, upstream: Node, predicate: Callable[[Any], Any]) -> None:
        super().__init__(upstream)
        self._predicate = predicate
        self._answers = Answers(
            "predicate", predicate, "write a coroutine function for `prepare(..., drop_none=True)`"
        )

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        predicate, plain = self._predicate, _PLAIN
        kept = []
        try:
            for row in rows:
                answer = predicate(row[ROW_VALUE])
                if answer is True or (answer and (type(answer) in plain or self._is_yes(answer))):
                    kept.append(row)
                elif row[ROW_ORIGIN] is not None:  # rows without provenance are many
                    finish(row[ROW_ORIGIN])
        except BaseException:
            self._failed_at = (row,)
            raise
        return kept

    def _is_yes(self, answer: Any) -> bool:
        """Accept a true answer, but refuse a coroutine, which is true whatever it would return."""
        self._answers.check(answer)
        return True
