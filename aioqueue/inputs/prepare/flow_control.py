"""How much a `prepare` has in flight: items taken from the source that have not yet left it.

How many items of one kind may be in preparation at a time: of one host, say, or one file.

How many items may be taken from a source together, before anybody prepares them.

Items that wait for a worker: ready ones, those to be tried again later, those put aside.
"""

from __future__ import annotations

import heapq
import reprlib
from collections import deque
from collections.abc import Callable, Hashable, Sized
from operator import itemgetter
from time import monotonic, perf_counter
from typing import Any, Final

from aioqueue.arguments import Answers, counted
from aioqueue.inputs.core.items import EpochEnd, Item
from aioqueue.meters import current_meter

__all__ = ("NOTE_OF_KEY", "InFlightWindow", "Inbox", "KeyLimit", "Pending", "ReadPace")


_WEIGHT = 1 / 16  # of the latest size in the mean


class InFlightWindow:
    """Counts what is in flight, and says whether one more item may come in.

    Bytes are those of prepared examples that wait to be enqueued. What is still being prepared is
    taken to become as large as what was prepared lately, and nothing comes in that would then be
    too much. Before there is any size to go by, as many items may come in as can be prepared at
    once: what nobody works on need not be taken yet. One item may always come in, however large,
    so nothing ever waits for itself. Not thread-safe.

    So the bytes of prepared examples are at most

    - ``limit_bytes``, or one item, if all items have one size, and as many as are prepared at once
      do not exceed it;
    - more, if those that are in preparation when sizes change turn out larger than those before
      them: by that difference, for as many as there are. There are no more of them than
      ``max_in_flight``, nor, while no size is known, than ``at_once``.

    Args:
        max_in_flight: how many items.
        limit_bytes: how many bytes; ``None`` for no bound, and then `mark_ready` need not be told.
        at_once: how many items are prepared at the same time.
    """

    __slots__ = (
        "_at_once",
        "_bytes",
        "_max_in_flight",
        "_mean",
        "_waiting",
        "ahead",
        "items",
        "limit_bytes",
    )

    def __init__(self, max_in_flight: int, limit_bytes: int | None, at_once: int) -> None:
        self.items = 0
        self.ahead: Sized = ()  # those of them that were read, and that no worker has taken yet
        self.limit_bytes = limit_bytes
        self._max_in_flight = max_in_flight
        self._at_once = at_once
        self._waiting = 0  # items that are prepared
        self._bytes = 0  # of those
        self._mean = 0.0  # 0: no size is known

    def has_room(self) -> bool:
        """Whether one more item may come in."""
        if self.items == 0:
            return True
        if self.items >= self._max_in_flight:
            return False
        if self.limit_bytes is None:
            return True
        coming = self.items - self._waiting + 1
        if not self._mean:
            return coming <= self._at_once
        return self._bytes + coming * self._mean <= self.limit_bytes

    @property
    def max_in_flight(self) -> int:
        """How many items may be in flight."""
        return self._max_in_flight

    @property
    def is_full_of_bytes(self) -> bool:
        """Whether it is ``limit_bytes`` that lets no more items in, and not ``max_in_flight``."""
        return self.limit_bytes is not None and 0 < self.items < self._max_in_flight

    @property
    def taken(self) -> int:
        """How many items workers have taken that have not yet left."""
        return max(0, self.items - len(self.ahead))

    @property
    def bytes(self) -> int:
        """Of prepared examples that wait to be enqueued."""
        return self._bytes

    @property
    def is_low(self) -> bool:
        """Whether it pays to wake someone who brings many items."""
        return self.items <= self._max_in_flight - self._max_in_flight // 4

    @property
    def mean_bytes(self) -> float:
        """How large the examples of an item are, about; 0.0 if that is not known."""
        return self._mean

    def resize(self, max_in_flight: int, at_once: int) -> None:
        """Let more items in from now on, or fewer: what is in flight stays."""
        self._max_in_flight, self._at_once = max_in_flight, at_once

    def enter(self) -> None:
        """An item comes in."""
        self.items += 1

    def enter_some(self, wanted: int) -> int:
        """Several items come in, as many as there is room for: one at least, if `has_room`.

        Only where there is no ``limit_bytes``.

        Args:
            wanted: how many at most.

        Returns:
            How many.
        """
        n = max(1, min(wanted, self._max_in_flight - self.items))
        self.items += n
        return n

    def mark_ready(self, size: int) -> bool:
        """An item has been prepared: so many bytes, or 0 if there are no examples.

        Returns:
            Whether there may be room now where there was none: this is the first size.
        """
        is_first = size > 0 and not self._mean
        self._waiting += 1
        self._bytes += size
        self._mean += (size - self._mean) * (_WEIGHT if self._mean else 1.0)
        return is_first

    def release(self, size: int) -> None:
        """A prepared item has left."""
        self.items -= 1
        self._waiting -= 1
        self._bytes -= size

    def leave(self, n: int) -> None:
        """So many prepared items have left, whose bytes nobody counts: as `release`."""
        self.items -= n

    def abort(self, n: int = 1) -> None:
        """Items that came in will never be prepared."""
        self.items -= n


NOTE_OF_KEY: Final = "while getting its key for concurrency_key"
"""Said of a failure, so that nobody looks for it in the function."""

_NO_KEY: Final[Any] = object()


class Pending:
    """An item that is to be prepared, and what it has been through.

    Attributes:
        item: which one.
        failures: how often its preparation has failed.
        deaths: how many processes have died of it.
        key: what its limit goes by, once that is known.
        has_place: whether it counts among those of its key that are in preparation.
    """

    __slots__ = ("deaths", "failures", "has_place", "item", "key")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.failures = 0
        self.deaths = 0
        self.key: Hashable = _NO_KEY
        self.has_place = False

    @property
    def has_key(self) -> bool:
        """Whether its key is known."""
        return self.key is not _NO_KEY


class KeyLimit:
    """Gives items their places among those of the same key, and puts aside those that get none.

    A place that is given back goes to the item of that key which was put aside first, before any
    that comes later; so keys do not starve each other, and items of one key keep their order.
    Nothing is kept of a key without items. Not thread-safe, but for `note_key`, and what tells
    how it is.

    Args:
        key_of: gives the key of an item's value.
        max_per_key: how many items of one key may have a place at the same time.
    """

    def __init__(self, key_of: Callable[[Any], Hashable], max_per_key: int) -> None:
        self._key_of = key_of
        self._answers = Answers("concurrency_key", key_of, "have it return the key itself")
        self.max_per_key = max_per_key
        self._inside: dict[Hashable, int] = {}
        self._aside: dict[Hashable, deque[Pending]] = {}
        self._waiting = 0  # workers that have nothing to do
        self._short = (0.0, 0.0)  # seconds in which one waited beside items; since when, or 0

    def note_key(self, pending: Pending) -> None:
        """Ask for the key of an item, if it is not known.

        Raises:
            BaseException: what the function has raised.
            TypeError: the key cannot be hashed, or would have to be awaited.
        """
        if not pending.has_key:
            value = pending.item.value
            began = perf_counter()
            key = None if isinstance(value, EpochEnd) else self._key_of(value)
            meter = current_meter.get()
            if meter is not None:
                meter.asked_for_key(perf_counter() - began)
            self._answers.check(key)
            hash(key)
            pending.key = key

    def admit(self, pending: Pending) -> bool:
        """Give an item its place; or put it aside, if there is none."""
        if pending.has_place:
            return True
        inside = self._inside.get(pending.key, 0)
        if inside >= self.max_per_key:
            self._aside.setdefault(pending.key, deque()).append(pending)
            self._note()
            return False
        self._inside[pending.key] = inside + 1
        pending.has_place = True
        return True

    def told(self) -> list[str]:
        """Which keys have all their places taken while others wait for one, in words."""
        return [
            f"concurrency_key: all {self.max_per_key} of key {key!r} are in preparation,"
            f" {counted(len(aside), 'item')} put aside"
            for key, aside in list(self._aside.items())
        ]

    def waits(self, more: int) -> None:
        """So many more workers wait for something to do; or fewer, if it is negative."""
        self._waiting += more
        self._note()

    def _note(self) -> None:
        """Items are put aside, and a worker could prepare one; or that has ended."""
        is_short = bool(self._waiting and self._aside)
        seconds, since = self._short
        if is_short != bool(since):
            now = perf_counter()
            self._short = (seconds, now) if is_short else (seconds + now - since, 0.0)

    def seconds_short(self, now: float) -> float:
        """Seconds in which a worker waited beside items that were put aside, with what goes on."""
        seconds, since = self._short
        return seconds + (max(0.0, now - since) if since else 0.0)

    def fullest(self) -> str | None:
        """The key of which most items are put aside, in a few letters; ``None`` if none are."""
        aside = [(len(pendings), key) for key, pendings in list(self._aside.items())]
        return reprlib.repr(max(aside, key=itemgetter(0))[1]) if aside else None

    def give_back(self, pending: Pending) -> Pending | None:
        """An item is not in preparation any more, if it was.

        Returns:
            The one that has its place now, and was put aside before.
        """
        if not pending.has_place:
            return None
        pending.has_place = False
        key = pending.key
        aside = self._aside.get(key)
        if aside is None:
            inside = self._inside.pop(key) - 1
            if inside:
                self._inside[key] = inside
            return None
        heir = aside.popleft()
        if not aside:
            del self._aside[key]
            self._note()
        heir.has_place = True
        return heir


_CHEAP: Final = 5e-5
"""Seconds that a worker may need for an item."""

_AHEAD: Final = 5e-4
"""Seconds in which those that were taken together are to be prepared, about."""

_MOST: Final = 64


class ReadPace:
    """How many items are taken together: one, and more and more while they go quickly.

    How quickly they go is seen from when the next ones are asked for, and all that may keep them
    counts: the function, the queue, other threads. Not thread-safe.
    """

    __slots__ = ("_n", "_since")

    def __init__(self) -> None:
        self._n = 1
        self._since = 0.0

    @property
    def is_quick(self) -> bool:
        """Whether items go so quickly that several were taken together the last time."""
        return self._n > 1

    def next(self, workers: int) -> int:
        """All that were taken are in preparation: how many to take now.

        Args:
            workers: how many prepare them.
        """
        now = perf_counter()
        each = max(1e-9, now - self._since) / self._n
        self._since = now
        if each * workers > _CHEAP:
            self._n = 1
        else:
            self._n = max(1, min(2 * self._n, int(_AHEAD / each), _MOST))
        return self._n


class Inbox:
    """Items between the source and the workers. Not thread-safe.

    Args:
        limit: gives out places; ``None`` if there are any number.
    """

    def __init__(self, limit: KeyLimit | None = None) -> None:
        self._limit = limit
        self._ready: deque[Pending] = deque()
        self._later: list[tuple[float, int, Pending]] = []  # a heap: when, number

    def put(self, pending: Pending) -> None:
        """One has come from the source."""
        self._ready.append(pending)

    def put_back(self, pendings: list[Pending]) -> None:
        """Items that were sent out before; they go first."""
        self._ready.extendleft(reversed(pendings))

    def put_off(self, pending: Pending, seconds: float) -> None:
        """One is to be tried again when some time has passed."""
        heapq.heappush(self._later, (monotonic() + seconds, pending.item.number, pending))

    def take(self, n: int) -> list[Pending]:
        """Up to n items, the ones put off first if their time has come."""
        now = monotonic()
        pendings: list[Pending] = []
        while self._later and self._later[0][0] <= now and len(pendings) < n:
            pendings.append(heapq.heappop(self._later)[2])
        while self._ready and len(pendings) < n:
            pendings.append(self._ready.popleft())
        return pendings

    def seconds(self) -> float | None:
        """How long to wait for the next that was put off; ``None`` if there is none."""
        return max(0.0, self._later[0][0] - monotonic()) if self._later else None

    def share(self, workers: int) -> int:
        """How many each worker can have of what is ready."""
        return -(-len(self._ready) // workers)

    def admit(self, pending: Pending) -> bool:
        """Whether one that was taken may be prepared now; else it is put aside, for `give_back`."""
        return self._limit is None or self._limit.admit(pending)

    def give_back(self, pending: Pending) -> bool:
        """One is not in preparation any more; tell whether another may be, which goes first."""
        heir = None if self._limit is None else self._limit.give_back(pending)
        if heir is None:
            return False
        self._ready.appendleft(heir)
        return True
