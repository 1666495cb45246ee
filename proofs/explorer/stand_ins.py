"""What stands around an explored machine: its lock and its storages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from aioqueue.core.elements.spec import Columns
from aioqueue.core.storage.objects import ObjectStorage
from aioqueue.core.storage.protocol import Held
from aioqueue.system.locks import NOT_HELD


class ViolationError(AssertionError):
    """The machine and the rules disagree; the message tells the events that lead there."""


class FakeLock:
    """A lock for one thread, which costs nothing and knows whether it is held."""

    __slots__ = ("depth",)

    def __init__(self) -> None:
        self.depth = 0

    def acquire(self, blocking: bool = True, /) -> bool:
        self.depth += 1
        return True

    def release(self) -> None:
        if not self.depth:
            raise RuntimeError(*NOT_HELD)
        self.depth -= 1

    def _is_owned(self) -> bool:
        return self.depth > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *args: object) -> None:
        self.depth -= 1


def weight_of(row: int) -> int:
    """The last digit of a row says how many bytes it is taken to have."""
    return row % 10


class PlainStorage(ObjectStorage):
    """First in, first out; it counts bytes as naively as can be."""

    @property
    def weight(self) -> int:
        back = [row for _, row in self.returned]
        return sum(map(weight_of, [*back, *self]))

    def weight_of(self, row: int) -> int:
        return weight_of(row)

    def weights(self, columns: Columns, start: int, stop: int) -> Iterator[int]:
        return map(weight_of, columns[start:stop])


class EagerStorage(PlainStorage):
    """First in, first out, but informed of every row that comes, as a shuffle buffer is."""

    eager = True

    def claim(self, n: int) -> None:
        if n > self.size:
            raise ViolationError(f"claimed {n} rows of {self.size}")


class WholeStorage(PlainStorage):
    """First in, first out, but a batch may not take rows early, as from a heap."""

    progressive = False


class LendingStorage(PlainStorage):
    """First in, first out; batches are copied by their owners, as in blocks and on shelves.

    It notes what is being copied: memory that was reserved and not given back, or given back twice,
    is found, and so are claimed rows that were released too early, or never.
    """

    def __init__(self) -> None:
        super().__init__()
        self.staged: dict[int, int] = {}  # batches not all in, by first row: how many rows are
        self.claimed: set[int] = set()  # rows in the hands of batches

    def is_large(self, n: int) -> bool:
        return True

    def fill(self, reserved: Any, columns: Columns, n: int) -> Columns:
        self.staged[columns[0]] = 0
        return columns

    def put_many(self, columns: Columns, start: int, stop: int) -> None:
        if self.staged.get(columns[0]) != start:
            raise ViolationError("a batch goes in that has no memory, or in another order")
        self.staged[columns[0]] = stop
        if stop == len(columns):
            del self.staged[columns[0]]
        super().put_many(columns, start, stop)

    def discard(self, columns: Columns, start: int) -> None:
        if self.staged.pop(columns[0], None) != start:
            raise ViolationError("memory was given back twice, or under rows that are in")

    def hold(self, held: Held, n: int) -> None:
        super().hold(held, n)
        self.claimed.update(held.parts)

    def hold_one(self, held: Held) -> None:
        super().hold_one(held)
        self.claimed.difference_update(held.parts)

    def restore(self, held: Held) -> None:
        self.claimed.difference_update(held.parts)
        super().restore(held)

    def free(self, held: Held) -> None:
        if not self.claimed.issuperset(held.parts):
            raise ViolationError("rows were let go of twice")
        self.claimed.difference_update(held.parts)
        super().free(held)


STORAGES: Final = {
    "fifo": PlainStorage,
    "eager": EagerStorage,
    "whole": WholeStorage,
    "lending": LendingStorage,
}
