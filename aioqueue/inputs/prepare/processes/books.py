"""The books about worker processes: what each has, how much it is sent, what its death means.

Nothing here talks to a process, or waits. So what is decided about them is decided, and tested,
without any.
"""

from __future__ import annotations

import pickle
import signal
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from aioqueue.inputs.prepare.limits import Pending
from aioqueue.inputs.prepare.processes.arena import Block
from aioqueue.inputs.prepare.processes.child import Sent
from aioqueue.inputs.prepare.processes.start import imports_main
from aioqueue.inputs.sources.item import Item

__all__ = ("Books", "Loss", "Pace", "Succession", "how_it_ended", "why_not_begun")

MOST_DEATHS: Final = 3
"""How many processes may die of one item."""

MOST_IN_VAIN: Final = 10
"""How many processes in a row may die that nothing has come from."""

_MOST_ITEMS: Final = 64
_CHUNK_SECONDS: Final = 0.01
"""How much work a chunk aims to be."""

_WEIGHT: Final = 0.2
"""Of the latest report in what an item is taken to last."""

_LONG: Final = 0.02
"""Seconds that an item may take for others to be sent ahead of its end."""

_SEE_OUTPUT: Final = ": its error output says more"
_GUARD: Final = (
    ". Processes import the main module of the program: if that starts"
    ' work when it is imported, put that under `if __name__ == "__main__":`'
)


class Pace:
    """How long an item takes, by what processes report, and so how many to send at a time."""

    def __init__(self) -> None:
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
        if not 0 < self._seconds < _LONG:
            return 1, 0
        size = max(1, min(_MOST_ITEMS, int(_CHUNK_SECONDS / self._seconds)))
        return size, size


class Loss(NamedTuple):
    """What a process has left undone that has died."""

    to_do: list[Pending]
    """What is to be prepared again, in the order in which it was sent."""
    given_up: Pending | None
    """The item that too many processes have died of, this one included."""


class Books:
    """What one process has. Kept by the thread that talks to it; only `release_of` is for others.

    Attributes:
        is_ready: it has said so.
        has_begun: it had come to its own work when it died.
        was_of_use: something has come from it, or it tells which item to blame.
    """

    def __init__(self) -> None:
        self.is_ready = False
        self.has_begun = False
        self.was_of_use = False
        self._pending: dict[int, Pending] = {}  # what it has to prepare, by number
        self._freed: deque[int] = deque()  # places in the arena that it may use again

    def __len__(self) -> int:
        """How many items it has to prepare."""
        return len(self._pending)

    def item(self, number: int) -> Item | None:
        """An item that it has, by its number. May be asked for in any thread."""
        pending = self._pending.get(number)
        return None if pending is None else pending.item

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


class Succession:
    """Whether a process that has died is replaced, by what became of those in its place before."""

    def __init__(self) -> None:
        self._in_vain = 0  # in a row

    def why_the_last(self, name: str, books: Books, exitcode: int) -> str | None:
        """Why there is to be no other, in words; ``None`` if there is.

        One that was killed says nothing about the next one, unless that happens to all of them. One
        that has ended by itself before it was ready would do so again.
        """
        self._in_vain = 0 if books.was_of_use else self._in_vain + 1
        ended = f"worker process {name} {how_it_ended(exitcode)}"
        if exitcode >= 0 and not books.is_ready:
            why = _SEE_OUTPUT if books.has_begun else why_not_begun()
            return f"{ended} while it started{why}"
        if self._in_vain < MOST_IN_VAIN:
            return None
        when = "before it had done anything" if books.is_ready else "while it started"
        return f"{ended} {when}, as did {self._in_vain - 1} before it"


def why_not_begun() -> str:
    """Why a process may have ended by itself before it came to its own work, in words."""
    return _SEE_OUTPUT + (_GUARD if imports_main() else "")


def how_it_ended(exitcode: int) -> str:
    """How a process has ended, in words."""
    if exitcode >= 0:
        return f"has ended with exit code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
