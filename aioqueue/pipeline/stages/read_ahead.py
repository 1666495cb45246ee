"""How far the workers of a stage read ahead, by what its elements are.

An element may be an example, a window of several, or a batch. Ahead of the loop are the elements
that wait behind the workers, and those that are in flight. Examples are small, so that many of them
may be ahead: enough for two batches, and several for each worker. A batch is as large as all its
examples, so that the next one is ready, each worker makes one, and one more is on its way.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import takewhile
from math import prod
from typing import Any, Final

from aioqueue.pipeline.nodes.rows import Element
from aioqueue.pipeline.stages.base import BaseStage
from aioqueue.sources.base import BaseSource

LEAST_AHEAD: Final = 64
"""The least number of prepared examples that may wait behind a stage."""


class ElementSizes:
    """What the elements behind each stage are.

    Args:
        source: gives the first elements.
        stages: the stages behind it.
    """

    def __init__(self, source: BaseSource[Any], stages: Sequence[BaseStage]) -> None:
        self._stages = stages
        # What is in what, where batches are in batches, say: the outermost is the last.
        nested = [Element(is_batch=True)] if source._gives_batches else []
        self._behind = [_joined(nested)]
        self._taken_apart: list[int] = []  # how many elements a stage makes of one; 1 if unknown
        for stage in stages:
            outermost = nested.pop() if nested and stage.takes_apart else Element()
            self._taken_apart.append(outermost.examples)
            if stage.makes_batches() is not None and not stage.takes_apart:
                size = stage.rows_for(1)
                step = stage.rows_for(2) - size
                nested.append(Element(size, step, bool(stage.makes_batches())))
            self._behind.append(_joined(nested))

    def before(self, at: int) -> Element:
        """The elements that the stage at a place receives."""
        return self._behind[at]

    def behind(self, at: int) -> Element:
        """The elements that the stage at a place gives."""
        found = self._behind[at + 1]
        return found._replace(is_batch=found.is_batch or self._are_taken_apart(at))

    def needed(self, at: int, outputs: int) -> int:
        """How many elements of a stage become this many of those that the loop, or the next
        workers, take: at least, as far as that is known."""
        stop = at + 1 + len(self._up_to_workers(at))
        for place in range(stop - 1, at, -1):
            stage, size = self._stages[place], self._taken_apart[place]
            if not stage.takes_apart:
                outputs = stage.rows_for(outputs)
            else:
                outputs = 1 if size == 1 else -(-outputs // size)
        return min(outputs, sys.maxsize)

    def buffer_size(self, at: int) -> int:
        """How many elements may wait behind the workers of a stage."""
        element = self.behind(at)
        if element.is_batch:
            return self.needed(at, 1)
        return max(-(-LEAST_AHEAD // element.examples), self.needed(at, 2))

    def _are_taken_apart(self, at: int) -> bool:
        """Whether a later stage takes the elements of a stage apart: then its function makes
        batches of whatever it receives."""
        depth = 0
        for stage in self._up_to_workers(at):
            if stage.takes_apart and not depth:
                return True
            if stage.makes_batches() is not None:
                depth += -1 if stage.takes_apart else 1
        return False

    def _up_to_workers(self, at: int) -> list[BaseStage]:
        """The stages behind one, up to those that have workers, whose elements may be others."""
        after = self._stages[at + 1 :]
        return list(takewhile(lambda stage: stage.worker_function() is None, after))


def _joined(nested: Sequence[Element]) -> Element:
    return Element(
        prod([one.examples for one in nested]),
        prod([one.step for one in nested]),
        any(one.is_batch for one in nested),
    )
