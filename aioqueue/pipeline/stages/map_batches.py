"""`map_batches`: workers call a function for each batch."""

from __future__ import annotations

from aioqueue.pipeline.stages.prepare import Prepare


class MapBatches(Prepare):
    """Calls a function with every batch, on workers."""

    name = "map_batches"
    needs_batches = True

    def keeps_rows_apart(self) -> bool:
        return False
