"""How much a `prepare` has in flight: items taken from the source that have not yet left it."""

from __future__ import annotations

from collections.abc import Sized

__all__ = ("Window",)

_WEIGHT = 1 / 16  # of the latest size in the mean


class Window:
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
      them: by that difference, for as many as there are. There are no more of them than ``limit``,
      nor, while no size is known, than ``at_once``.

    Args:
        limit: how many items.
        limit_bytes: how many bytes; ``None`` for no bound, and then `mark_ready` need not be told.
        at_once: how many items are prepared at the same time.
    """

    __slots__ = (
        "_at_once",
        "_bytes",
        "_limit",
        "_mean",
        "_waiting",
        "ahead",
        "items",
        "limit_bytes",
    )

    def __init__(self, limit: int, limit_bytes: int | None, at_once: int) -> None:
        self.items = 0
        self.ahead: Sized = ()  # those of them that were read, and that no worker has taken yet
        self.limit_bytes = limit_bytes
        self._limit = limit
        self._at_once = at_once
        self._waiting = 0  # items that are prepared
        self._bytes = 0  # of those
        self._mean = 0.0  # 0: no size is known

    def has_room(self) -> bool:
        """Whether one more item may come in."""
        if self.items == 0:
            return True
        if self.items >= self._limit:
            return False
        if self.limit_bytes is None:
            return True
        coming = self.items - self._waiting + 1
        if not self._mean:
            return coming <= self._at_once
        return self._bytes + coming * self._mean <= self.limit_bytes

    @property
    def limit(self) -> int:
        """How many items may be in flight."""
        return self._limit

    @property
    def is_full_of_bytes(self) -> bool:
        """Whether it is ``limit_bytes`` that lets no more items in, and not ``limit``."""
        return self.limit_bytes is not None and 0 < self.items < self._limit

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
        return self.items <= self._limit - self._limit // 4

    @property
    def mean_bytes(self) -> float:
        """How large the examples of an item are, about; 0.0 if that is not known."""
        return self._mean

    def resize(self, limit: int, at_once: int) -> None:
        """Let more items in from now on, or fewer: what is in flight stays."""
        self._limit, self._at_once = limit, at_once

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
        n = max(1, min(wanted, self._limit - self.items))
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
