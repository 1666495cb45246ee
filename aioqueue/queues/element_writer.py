"""`ElementWriter`: one thread enqueues many small elements, which enter the queue together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aioqueue.core.arrivals import Arrivals
from aioqueue.core.attempts import PutMany
from aioqueue.core.elements.spec import Columns
from aioqueue.core.machine import Machine
from aioqueue.worlds.waker import apply_deferred, deliver

if TYPE_CHECKING:
    from aioqueue.core.storage.columns import RowMemory


class ElementWriter:
    """Enqueues the elements of one thread together, and delays no consumer; see `Arrivals`.

    The caller writes an element with ``write(arrivals.columns, arrivals.filled, element)``, which
    raises what `enqueue` raises for a wrong one. Then it appends to ``arrivals.marks``, and counts
    the element in ``arrivals.filled``. If the marks have reached ``arrivals.limit``, or the rows
    are used up, it calls `collect`.

    Args:
        machine: that of the queue.
        complete: has the thread wait until an attempt has ended, as `enqueue` does.
        memory: memory for rows.
        write: writes an element to an index of its columns.
    """

    __slots__ = ("_complete", "_machine", "arrivals", "lost", "write")

    def __init__(
        self,
        machine: Machine,
        complete: Callable[[PutMany], None],
        memory: RowMemory,
        write: Callable[[Columns, int, Any], object],
    ) -> None:
        self._machine = machine
        self._complete = complete
        self.write: Callable[[Columns, int, Any], object] = write
        self.arrivals: Arrivals = Arrivals(
            memory.columns, memory.rows, machine.arrival_marks, memory.joined
        )
        self.lost: int = 0  # elements that the latest `collect` has not enqueued, as it has raised
        apply_deferred(machine.open_arrivals, self.arrivals)

    def collect(self) -> None:
        """Enqueue all elements that were written; wait as `enqueue` does if the queue is full.

        Raises:
            QueueClosedError: the queue was closed.
            CancelledError: the wait was cancelled. As after each exception, `lost` elements are
                not in the queue.
        """
        arrivals = self.arrivals
        wakers, start, stop = self._machine.collect(arrivals)
        if wakers:
            deliver(wakers)
        if stop > start:
            columns = arrivals.joined(arrivals.columns, start, stop)
            put = PutMany(columns, stop - start)
            try:
                self._complete(put)
            finally:
                self.lost = put.n - put.done

    def close(self) -> None:
        """Write no more. The elements were collected."""
        apply_deferred(self._machine.close_arrivals, self.arrivals)
