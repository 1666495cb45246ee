"""Items that wait for a worker: ready ones, those to be tried again later, those put aside."""

from __future__ import annotations

import heapq
from collections import deque
from time import monotonic

from aioqueue.inputs.prepare.limits import KeyLimit, Pending

__all__ = ("Inbox",)


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
