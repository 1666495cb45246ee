"""The books about worker processes: what each has, how much it is sent, what its death means.

Nothing here talks to a process, or waits. So what is decided about them is decided, and tested,
without any.
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
"""How many processes may die of one item."""

_MOST_ITEMS: Final = 64
_CHUNK_SECONDS: Final = 0.01
"""How much work a chunk aims to be."""

_WEIGHT: Final = 0.2
"""Of the latest report in what an item is taken to last."""

_LONG: Final = 0.02
"""Seconds that an item may take for others to be sent ahead of its end."""


class SendPace:
    """How long an item takes, by what processes report, and so how many to send at a time.

    Args:
        chunk_seconds: how much work a chunk aims to be.
        long: seconds that an item may take for others to be sent ahead of its end.
    """

    def __init__(self, chunk_seconds: float = _CHUNK_SECONDS, long: float = _LONG) -> None:
        self._chunk_seconds = chunk_seconds
        self._long = long
        self._seconds = 0.0  # that one item takes, about; 0: unknown

    def note(self, seconds: float, items: int) -> None:
        """So many items, one at least, have taken so many seconds."""
        each = max(1e-6, seconds / items)
        self._seconds += (each - self._seconds) * (_WEIGHT if self._seconds else 1.0)

    def chunk(self) -> tuple[int, int]:
        """How many items to send at a time, and how many a process may have left by then.

        None, if they take long: an item that is sent ahead waits for the one before it, though
        another process may have nothing to do.
        """
        if not 0 < self._seconds < self._long:
            return 1, 0
        size = max(1, min(_MOST_ITEMS, int(self._chunk_seconds / self._seconds)))
        return size, size


class Loss(NamedTuple):
    """What a process has left undone that has died."""

    to_do: list[Pending]
    """What is to be prepared again, in the order in which it was sent."""
    given_up: Pending | None
    """The item that too many processes have died of, this one included."""


class Assignments:
    """What one process has. Kept by the thread that talks to it; only `release_of` is for others.

    Attributes:
        is_ready: it has said so.
        has_begun: it had come to its own work when it died.
        was_of_use: something has come from it, or it tells which item to blame.
        overdue: why it is killed, and the number of the item that has taken too long.
    """

    def __init__(self) -> None:
        self.is_ready = False
        self.has_begun = False
        self.was_of_use = False
        self.overdue: tuple[int, ItemTimeoutError] | None = None
        self._pending: dict[int, Pending] = {}  # what it has to prepare, by number
        self._freed: deque[int] = deque()  # places in the arena that it may use again

    def __len__(self) -> int:
        """How many items it has to prepare."""
        return len(self._pending)

    def find(self, number: int) -> Pending | None:
        """An item that it has to prepare, for any thread to look at; ``None`` if it has not."""
        return self._pending.get(number)

    def enter(self, pending: Pending) -> Sent:
        """It is going to be sent an item.

        Returns:
            The item as it is sent.

        Raises:
            Exception: the item cannot be pickled. Then it is not in the books.
        """
        number, value, epoch, index = pending.item
        pickled = pickle.dumps(value, 5)
        self._pending[number] = pending
        return number, epoch, index, pickled

    def message(self, chunk: list[Sent]) -> bytes:
        """What it is sent: a chunk of items, and the places that have become free by now."""
        freed = [self._freed.popleft() for _ in range(len(self._freed))]
        return pickle.dumps((freed, chunk), 5)

    def take_off(self, number: int) -> Pending:
        """The outcome of an item has come."""
        self.was_of_use = True
        return self._pending.pop(number)

    def release_of(self, blocks: Sequence[Block]) -> Callable[[], None] | None:
        """What lets it use places again when they have been read; ``None`` if there are none.

        May be called in any thread.
        """
        return partial(self._freed.extend, [start for start, _ in blocks]) if blocks else None

    def cut_short(self) -> tuple[Pending, ItemTimeoutError] | None:
        """It was killed for an item that has taken too long: that is taken off, and returned with
        its failure; ``None`` if not, or if the item was done all the same."""
        if self.overdue is None:
            return None
        self.was_of_use = True
        number, error = self.overdue
        pending = self._pending.pop(number, None)
        return None if pending is None else (pending, error)

    def lost(self, number: int) -> Loss:
        """It has died, while it prepared an item of this number, or had just done that, or none.

        All that it had is taken off.
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
