"""`flat`: workers call a function that gives any number of examples for each row."""

from __future__ import annotations

from aioqueue.pipeline.batches.collation import flattened
from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.stages.base import BuildContext
from aioqueue.pipeline.stages.prepare import Prepare


class Flat(Prepare):
    """Calls a function with every row, on workers, and flattens the iterables that it returns."""

    name = "flat"

    def node(self, upstream: Node, building: BuildContext) -> Node:
        flat = Prepare(flattened(self.function), self.buffer_size, self.options)
        return flat.node(upstream, building)

    def keeps_rows_apart(self) -> bool:
        return False

    def length(self, rows: int | None) -> int | None:
        return None
