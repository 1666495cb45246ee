"""`ElementWriter`: one thread enqueues many small elements, which enter the queue together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aioqueue.core.arrivals import Arrivals
from aioqueue.core.attempts import PutMany
from aioqueue.core.machine import Machine
from aioqueue.worlds.waker import apply_deferred, deliver

if TYPE_CHECKING:
    from aioqueue.core.elements.element_spec import ElementSpec
    from aioqueue.core.storage.columns import RowPacking


class ElementWriter:
    """Enqueues the elements of one thread together with those of others, and delays no consumer.

    The caller writes an element with `write_usual`, and if that returns false, with `write`. Then
    it compares the number of ``arrivals.rows`` with ``arrivals.limit``, and calls `collect` if it
    is not below; see `Arrivals`.

    Args:
        machine: that of the queue.
        complete: has the thread wait until an attempt has ended, as `enqueue` does.
        spec: that of the queue.
        packing: how its rows are packed.

    Attributes:
        arrivals: those of the queue.
        write_usual: writes an element that needs no conversion; returns whether it is one.
        lost: elements that the latest `collect` has not enqueued, as it has raised.
    """

    __slots__ = ("_complete", "_machine", "_packing", "_spec", "arrivals", "lost", "write_usual")

    def __init__(
        self,
        machine: Machine,
        complete: Callable[[PutMany], None],
        spec: ElementSpec,
        packing: RowPacking,
    ) -> None:
        self._machine = machine
        self._complete = complete
        self._spec = spec
        self._packing = packing
        self.arrivals: Arrivals = machine.prepare_arrivals(packing.joined, packing.most)
        self.write_usual: Callable[[Any], bool] = spec.usual_element_writer(
            packing.is_number, self.arrivals.rows.append
        )
        self.lost: int = 0
        apply_deferred(machine.open_arrivals, self)

    def write(self, element: Any) -> None:
        """Write any element.

        Raises:
            InvalidArgumentError: it is wrong, as for `enqueue`. Nothing was written.
        """
        self.arrivals.rows.append(self._packing.packed(self._spec.row(element)))

    def collect(self) -> None:
        """Enqueue all elements that were written; wait as `enqueue` does if the queue is full.

        Those of other threads are among them: it is one queue, and one of the threads waits.

        Raises:
            QueueClosedError: the queue was closed.
            CancelledError: the wait was cancelled. As after each exception, `lost` elements are
                not in the queue.
        """
        wakers, rest = self._machine.collect()
        if wakers:
            deliver(wakers)
        if rest:
            self.lost = len(rest)
            put = PutMany(self._packing.joined(rest), len(rest))
            try:
                self._complete(put)
            finally:
                self.lost = put.n - put.done

    def close(self) -> None:
        """Write no more. The elements were collected."""
        apply_deferred(self._machine.close_arrivals, self)
