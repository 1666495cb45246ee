"""What one worker does, event by event, while somebody takes a trace."""

from __future__ import annotations

from collections import deque
from typing import Any, Final, Literal, NamedTuple, TypeAlias

__all__ = ("Doing", "Event", "Ring")

Doing: TypeAlias = Literal[
    "works", "works elsewhere", "next item", "waits for data", "waits for room"
]
"""What a worker does: its function; the same in a process of its own, so that it may do something
here at the same time; it asks its source for an item; it waits at a queue to take something out,
or to put something in."""

_EVENTS: Final = 65_536
"""In one ring: the latest that many."""

_SHORTEST: Final = 2e-6
"""Seconds: what is shorter, and no work, is left out."""


class Event(NamedTuple):
    """What a worker did for a time.

    Attributes:
        doing: what it did.
        began: when, on the clock of `time.perf_counter`.
        ended: until when.
        item: index of the item that it did that for; `None` if that is not known, or it was none.
        items: for how many items.
    """

    doing: Doing
    began: float
    ended: float
    item: int | None = None
    items: int = 1


class Ring:
    """The latest events of one worker, which alone writes them. Older ones are gone."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: deque[tuple[Any, ...]] = deque(maxlen=_EVENTS)  # as `Event`, but quick

    def worked(self, began: float, ended: float, item: int | None = None) -> None:
        """It was in its function."""
        self._events.append(("works", began, ended, item))

    def worked_elsewhere(self, began: float, ended: float, items: int) -> None:
        """Its process was in its function, for so many items."""
        self._events.append(("works elsewhere", began, ended, None, items))

    def waited(self, doing: Doing, began: float, ended: float) -> None:
        """It waited, if that was no matter of microseconds."""
        if ended - began >= _SHORTEST:
            self._events.append((doing, began, ended))

    def events(self) -> list[Event]:
        """Those that it keeps; for any thread."""
        return [Event(*one) for one in self._events.copy()]  # in one step, also without the GIL
