"""`DeliveryNode`: the last node of a rank. It records what the user receives."""

from __future__ import annotations

from collections.abc import Sequence

from aioqueue.items.item import EpochEnd
from aioqueue.pipeline.batches.batch_shape import BatchShape
from aioqueue.pipeline.nodes.flow import Flow
from aioqueue.pipeline.nodes.node import Node, Taken
from aioqueue.pipeline.nodes.rows import Id, Row, State, WantedRows
from aioqueue.pipeline.state.ranks.ledger import RunLedgers


class DeliveryNode(Node):
    """The last node of a rank. It records in the ledgers what the user receives.

    Args:
        upstream: the node before.
        ledgers: the ledgers of the run.
    """

    def __init__(self, upstream: Node, ledgers: RunLedgers) -> None:
        super().__init__(upstream.span)
        self.is_ordered: bool = upstream.is_ordered
        self._upstream = upstream
        self._ledgers = ledgers

    @property
    def batch_shape(self) -> BatchShape | None:
        return self._upstream.batch_shape

    def take(self, n: int) -> Flow[Taken]:
        taken = yield from self._upstream.take(n)
        self._ledgers.deliver(taken)  # in the same step, so that no state can be taken in between
        if isinstance(taken, EpochEnd):
            self._epoch = taken.epoch + 1
        return taken

    def take_ready(self, n: int) -> list[Row]:
        rows = self._upstream.take_ready(n)
        if rows:
            self._ledgers.deliver(rows)
        return rows

    def _skip_to(self, epoch: int) -> None:
        self._upstream.skip_to(epoch)
        self._ledgers.go_to(epoch)
        self._epoch = epoch

    @property
    def given(self) -> tuple[int, int]:
        epoch, given = self._upstream.given
        return epoch, self._ledgers.begun(epoch) + given

    def state(self, held: Sequence[Id] = ()) -> State:
        upstream = self._upstream.state(held)
        epoch = upstream["epoch"]
        return {
            "epoch": epoch,
            "given": self._ledgers.begun(epoch) + upstream["given"],
            "upstream": upstream,
            **self._ledgers.state(epoch),
        }

    def restore(self, state: State, wanted: WantedRows | None = None) -> None:
        self._epoch = state["epoch"]
        self._ledgers.restore(self._epoch, state)
        self._upstream.restore(state["upstream"], wanted)

    def close(self) -> None:
        self._upstream.close()
