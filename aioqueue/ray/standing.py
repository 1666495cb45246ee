"""How a program stands with a queue on a cluster: what it tells an actor that has come back.

The numbers of its calls, and which of them have no answer; the elements that it has put in and that
have not been used; the leases that it has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from aioqueue.ray.handles import Payload
from aioqueue.ray.parties import Standing

__all__ = ("Numbers", "Standings")


class Numbers:
    """Numbers of the calls of one client, and which of their answers it has. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0
        self._open: set[int] = set()
        self._told: set[int] = set()  # to be without an answer

    def start_at(self, first: int) -> None:
        """The number of the first call, before there is one."""
        with self._lock:
            self._next = first

    def begin(self, call: Callable[[int, int], Any]) -> tuple[int, Any]:
        """Make the next call: it is given its number, and below which all have been answered."""
        with self._lock:  # so calls leave in the order of their numbers
            number = self._next
            reference = call(number, min(self._open, default=number))
            # Not before: an element that cannot be pickled must leave no gap that others wait at.
            self._next += 1
            self._open.add(number)
            return number, reference

    def again(self, number: int, call: Callable[[int, int], Any]) -> Any:
        """Make a call again that has had no answer."""
        with self._lock:
            return call(number, min(self._open, default=number))

    def end(self, number: int) -> bool:
        """A call has been answered.

        Returns:
            Whether an actor that came back was told that it has not: its answer was on its way.
        """
        with self._lock:
            self._open.discard(number)
            return number in self._told

    def told(self) -> tuple[int, list[int]]:
        """The next number, and the calls that have no answer."""
        with self._lock:
            self._told = set(self._open)
            return self._next, sorted(self._open)


class Standings:
    """How one handle stands. Thread-safe.

    Args:
        cloudpickle: Ray's.
        keeps: whether elements are kept until they have been used: the actor comes back.
        owned: whether what is put in is to belong to the actor.
    """

    def __init__(self, cloudpickle: Any, *, keeps: bool, owned: bool) -> None:
        self.puts = Numbers()
        self.takes = Numbers()
        self.keeps = keeps
        self._owned = owned
        self._cloudpickle = cloudpickle
        self._lock = threading.Lock()  # guards all below
        self._kept: dict[int, bytes | Payload] = {}
        self._held: set[int] = set()
        self._unwanted: set[tuple[str, int]] = set()

    def copied(self, payload: Payload) -> bytes | Payload:
        """A batch as it can be kept, whatever becomes of the caller's own."""
        return payload if payload.columns is None else bytes(self._cloudpickle.dumps(payload))

    def keep(self, number: int, copy: bytes | Payload) -> None:
        """A batch may have to be put in again."""
        with self._lock:
            self._kept[number] = copy

    def forget(self, numbers: Iterable[int]) -> None:
        """Nothing of these batches is left."""
        with self._lock:
            for number in numbers:
                self._kept.pop(number, None)

    def kept(self) -> list[int]:
        """The batches that are kept."""
        with self._lock:
            return list(self._kept)

    def hold(self, number: int) -> None:
        """A lease was handed over."""
        with self._lock:
            self._held.add(number)

    def use(self, numbers: Iterable[int]) -> None:
        """Leases were committed, and the actor has said so."""
        with self._lock:
            self._held.difference_update(numbers)

    @contextmanager
    def unwanted(self, what: str, number: int) -> Iterator[None]:
        """Nobody waits for a call any more, but for its answer."""
        with self._lock:
            self._unwanted.add((what, number))
        try:
            yield
        finally:
            with self._lock:
                self._unwanted.discard((what, number))

    def told(self, began: int) -> Standing:
        """All of it, as the actor is told that has started so often."""
        puts, takes = self.puts.told(), self.takes.told()
        with self._lock:
            kept = sorted(self._kept.items(), key=lambda item: item[0])
            held, unwanted = sorted(self._held), sorted(self._unwanted)
        loads = self._cloudpickle.loads
        payloads = [(number, loads(it) if isinstance(it, bytes) else it) for number, it in kept]
        return Standing(began, puts, takes, payloads, self._owned, held, unwanted)
