"""Who uses a queue: the clients that an actor has heard of, which may fall silent, or begin anew.

A handle in some program is one *life* of a client. Nearly all clients have one only; a consumer
with a name of its own may be started again, and then goes on where its former life has ended.

How a program stands with a queue on a cluster: what it tells an actor that has come back.

The numbers of its calls, and which of them have no answer; the elements that it has put in and that
have not been used; the leases that it has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, NamedTuple

from aioqueue.ray.handles import Payload
from aioqueue.ray.idempotent_calls import NumberedCalls

__all__ = (
    "CallNumbers",
    "CallerId",
    "ClientSession",
    "ClientSessions",
    "ClientStanding",
    "HandleState",
)


class CallerId(NamedTuple):
    """Who calls."""

    client: str
    """What it calls itself: as a consumer, the same name in every life."""
    life: str
    """Which of those that have had this name, one after another."""
    last_committed: int | None
    """The last lease that the one before is known to have used."""
    description: Any
    """What it takes the queue to be."""
    node: str = ""
    """Where it runs."""


class ClientStanding(NamedTuple):
    """What a client tells an actor that has come back."""

    began: int = 0
    """How often the actor had started then, as far as is known; 0 if nothing was asked of it yet.
    Ray makes a call again that had no answer, though the actor has come back once more by then, and
    what the client has put in and got in between is not in it."""
    puts: tuple[int, list[int]] = (0, [])
    """The number of its next enqueue; and of those that have no answer."""
    takes: tuple[int, list[int]] = (0, [])
    """The same of its dequeues."""
    kept: Sequence[tuple[int, Any]] = ()
    """What it has put in and may have to put in again: numbers, and payloads."""
    owned: bool = False
    """Whether what it puts in is to belong to the actor."""
    held: Sequence[int] = ()
    """The leases that it has been given, and may still commit."""
    unwanted: Sequence[tuple[str, int]] = ()
    """The calls that it has cancelled, and that have no answer: method and number."""


class ClientSession:
    """One life of a client.

    Attributes:
        caller: who it is.
        heard: when from it last.
        gone: why it is not spoken to any more; empty while it is.
        refusal: with what it was refused, if it was never spoken to: the error, but for its words.
        is_met: whether it has told an actor that has come back how it stands.
        standing: what it has told, if it has.
        turns: its calls, by the method that it calls.
        unwanted: calls that were cancelled before they came: method and number.
    """

    __slots__ = (
        *("caller", "gone", "heard", "is_met", "refusal"),
        *("standing", "turns", "unwanted"),
    )

    def __init__(self, caller: CallerId) -> None:
        self.caller = caller
        self.heard = monotonic()
        self.gone = ""
        self.refusal: type[Exception] | None = None
        self.is_met = False
        self.standing: ClientStanding | None = None
        self.turns: dict[str, NumberedCalls[Any]] = {}
        self.unwanted: set[tuple[str, int]] = set()

    def turns_of(self, method: str, known: int) -> NumberedCalls[Any]:
        """The calls of a method; the first to be made is the first that has no answer yet."""
        turns = self.turns.get(method)
        if turns is None:
            turns = self.turns[method] = self._turns(method, known)
        self.unwanted = {
            (what, number) for what, number in self.unwanted if what != method or number >= known
        }
        return turns

    def skip(self, method: str, number: int) -> None:
        """A call will not come again, though it was said that it might."""
        turns = self.turns.get(method)
        if turns is not None:
            turns.skip(number)
        elif self.standing is not None:
            standing = self.standing
            _, unanswered = standing.puts if method == "enqueue" else standing.takes
            if number in unanswered:
                unanswered.remove(number)

    def _turns(self, method: str, known: int) -> NumberedCalls[Any]:
        standing = self.standing or ClientStanding()
        following, unanswered = standing.puts if method == "enqueue" else standing.takes
        if not following:  # it had asked for nothing by then
            return NumberedCalls(known)
        first = min(unanswered, default=following)
        return NumberedCalls(first, set(range(first, following)) - set(unanswered))

    def dismiss(self, why: str) -> None:
        """Speak to it no more, but to say why."""
        self.gone = why
        self.unwanted.clear()
        turns, self.turns = self.turns, {}
        for each in turns.values():
            each.abandon()


class ClientSessions:
    """All of them. Used under the lock of the actor."""

    def __init__(self) -> None:
        self._lives: dict[str, ClientSession] = {}
        self._latest: dict[str, ClientSession] = {}  # of each client

    def find(self, life: str) -> ClientSession | None:
        """A life that was heard of."""
        return self._lives.get(life)

    def latest(self, client: str) -> ClientSession | None:
        """The life that a client has, or had last."""
        return self._latest.get(client)

    def meet(self, caller: CallerId) -> ClientSession:
        """A client has a new life."""
        party = self._lives[caller.life] = self._latest[caller.client] = ClientSession(caller)
        return party

    def refuse(
        self, caller: CallerId, why: str, error: type[Exception] | None = None
    ) -> ClientSession:
        """A life is not spoken to, now and from now on; that of its client stays what it is."""
        party = self._lives[caller.life] = ClientSession(caller)
        party.gone, party.refusal = why, error
        return party

    def alive(self) -> list[str]:
        """The lives that are spoken to."""
        return [life for life, party in self._lives.items() if not party.gone]

    def on(self, node: str) -> list[ClientSession]:
        """Those that are spoken to, on a node."""
        alive = (party for party in self._lives.values() if not party.gone)
        return [party for party in alive if party.caller.node == node]

    def silent(self, seconds: float) -> Iterator[ClientSession]:
        """Those that are spoken to, and were not heard of for so long."""
        before = monotonic() - seconds
        return iter([p for p in self._lives.values() if not p.gone and p.heard < before])

    def forget(self, seconds: float) -> list[str]:
        """Forget those that are gone, and were not heard of for so long; returns their lives."""
        before = monotonic() - seconds
        forgotten = [p for p in self._lives.values() if p.gone and p.heard < before]
        for party in forgotten:
            del self._lives[party.caller.life]
            if self._latest.get(party.caller.client) is party:
                del self._latest[party.caller.client]
        return [party.caller.life for party in forgotten]


class CallNumbers:
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


class HandleState:
    """How one handle stands. Thread-safe.

    Args:
        cloudpickle: Ray's.
        keeps: whether elements are kept until they have been used: the actor comes back.
        owned: whether what is put in is to belong to the actor.
    """

    def __init__(self, cloudpickle: Any, *, keeps: bool, owned: bool) -> None:
        self.puts = CallNumbers()
        self.takes = CallNumbers()
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

    def told(self, began: int) -> ClientStanding:
        """All of it, as the actor is told that has started so often."""
        puts, takes = self.puts.told(), self.takes.told()
        with self._lock:
            kept = sorted(self._kept.items(), key=lambda item: item[0])
            held, unwanted = sorted(self._held), sorted(self._unwanted)
        loads = self._cloudpickle.loads
        payloads = [(number, loads(it) if isinstance(it, bytes) else it) for number, it in kept]
        return ClientStanding(began, puts, takes, payloads, self._owned, held, unwanted)
