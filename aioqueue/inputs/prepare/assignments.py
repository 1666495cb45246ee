"""Which items each worker process has, how many to send it, and what its death means for them.

Nothing here talks to a process or waits, so you can test these decisions without processes.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from aioqueue import ItemTimeoutError
from aioqueue.inputs.prepare.flow_control import Pending
from aioqueue.inputs.prepare.worker_process import Sent
from aioqueue.processes.arena import Block

__all__ = ("Assignments", "Loss", "SendPace")

MOST_DEATHS: Final = 3
"""The number of processes that may die of one item."""

_MOST_ITEMS: Final = 64
_CHUNK_SECONDS: Final = 0.01
"""The seconds of work that a chunk should take."""

_WEIGHT: Final = 0.2
"""The weight of the latest report in the estimated seconds per item."""

_LONG: Final = 0.02
"""If items take longer than this many seconds, none are sent ahead."""


class SendPace:
    """Estimates the seconds per item from processes' reports, and so how many to send at a time.

    Args:
        chunk_seconds: the seconds of work that a chunk should take.
        long: if items take longer than this many seconds, none are sent ahead.
    """

    def __init__(self, chunk_seconds: float = _CHUNK_SECONDS, long: float = _LONG) -> None:
        self._chunk_seconds = chunk_seconds
        self._long = long
        self._seconds = 0.0  # the estimate per item; 0: unknown

    def note(self, seconds: float, items: int) -> None:
        """Note that this many items (at least one) took this many seconds."""
        each = max(1e-6, seconds / items)
        self._seconds += (each - self._seconds) * (_WEIGHT if self._seconds else 1.0)

    def chunk(self) -> tuple[int, int]:
        """Return how many items to send at a time, and the backlog at which to send more.

        The backlog is 0 if items are slow: an item that is sent ahead waits for the one before it,
        even if another process is idle.
        """
        if not 0 < self._seconds < self._long:
            return 1, 0
        size = max(1, min(_MOST_ITEMS, int(self._chunk_seconds / self._seconds)))
        return size, size


class Loss(NamedTuple):
    """The unfinished work of a dead process."""

    to_do: list[Pending]
    """The items to prepare again, in the order in which they were sent."""
    given_up: Pending | None
    """The item that has killed too many processes, this one included."""


class Assignments:
    """The items of one process. The thread that talks to the process owns them; only the callbacks
    of `release_of` run in other threads.

    Attributes:
        is_ready: the process has reported that it is ready.
        has_begun: it had reached its own code when it died.
        was_of_use: it has returned something, or shows which item to blame.
        overdue: why it is being killed, and the number of the item that took too long.
    """

    def __init__(self) -> None:
        self.is_ready = False
        self.has_begun = False
        self.was_of_use: bool = False
        self.overdue: tuple[int, ItemTimeoutError] | None = None
        self._pending: dict[int, Pending] = {}  # its items, by number
        self._freed: deque[int] = deque()  # places in the arena that it may reuse

    def __len__(self) -> int:
        """The number of items that it has to prepare."""
        return len(self._pending)

    def find(self, number: int) -> Pending | None:
        """Return one of its items by number, or ``None``. Any thread may call it."""
        return self._pending.get(number)

    def enter(self, pending: Pending) -> Sent:
        """Register an item that is about to be sent.

        Returns:
            The item in the form to send.

        Raises:
            Exception: the item cannot be pickled. Then it is not registered.
        """
        number, value, epoch, index = pending.item
        pickled = pickle.dumps(value, 5)
        self._pending[number] = pending
        return number, epoch, index, pickled

    def message(self, chunk: list[Sent]) -> bytes:
        """Return the message with a chunk of items, and the places that were freed meanwhile."""
        freed = [self._freed.popleft() for _ in range(len(self._freed))]
        return pickle.dumps((freed, chunk), 5)

    def take_off(self, number: int) -> Pending:
        """Remove an item whose outcome has arrived."""
        self.was_of_use = True
        return self._pending.pop(number)

    def release_of(self, blocks: Sequence[Block]) -> Callable[[], None] | None:
        """Return a callback that frees places once they were read; ``None`` if there are none.

        Any thread may call it.
        """
        return partial(self._freed.extend, [start for start, _ in blocks]) if blocks else None

    def cut_short(self) -> tuple[Pending, ItemTimeoutError] | None:
        """If the process was killed for a slow item, remove that item and return it with its
        failure; ``None`` if it was not killed for one, or if the item was done after all."""
        if self.overdue is None:
            return None
        self.was_of_use = True
        number, error = self.overdue
        pending = self._pending.pop(number, None)
        return None if pending is None else (pending, error)

    def lost(self, number: int) -> Loss:
        """Remove all items of the process, which died at this item, just after it, or at none.

        The number is that of the item that it prepared last.
        """
        culprit = self._pending.get(number)
        to_do = list(self._pending.values())
        self._pending.clear()
        if culprit is None:
            return Loss(to_do, None)
        self.was_of_use = True
        culprit.deaths += 1
        if culprit.deaths < MOST_DEATHS:
            return Loss(to_do, None)
        to_do.remove(culprit)
        return Loss(to_do, culprit)
