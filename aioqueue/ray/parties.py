"""Who uses a queue: the clients that an actor has heard of, which may fall silent, or begin anew.

A handle in some program is one *life* of a client. Nearly all clients have one only; a consumer
with a name of its own may be started again, and then goes on where its former life has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any, NamedTuple

from aioqueue.ray.turns import Turns

__all__ = ("Caller", "Parties", "Party", "Standing")


class Caller(NamedTuple):
    """Who calls."""

    client: str
    """What it calls itself: as a consumer, the same name in every life."""
    life: str
    """Which of those that have had this name, one after another."""
    after: int | None
    """The last lease that the one before is known to have used."""
    description: Any
    """What it takes the queue to be."""
    node: str = ""
    """Where it runs."""


class Standing(NamedTuple):
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


class Party:
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

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.heard = monotonic()
        self.gone = ""
        self.refusal: type[Exception] | None = None
        self.is_met = False
        self.standing: Standing | None = None
        self.turns: dict[str, Turns[Any]] = {}
        self.unwanted: set[tuple[str, int]] = set()

    def turns_of(self, method: str, known: int) -> Turns[Any]:
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

    def _turns(self, method: str, known: int) -> Turns[Any]:
        standing = self.standing or Standing()
        following, unanswered = standing.puts if method == "enqueue" else standing.takes
        if not following:  # it had asked for nothing by then
            return Turns(known)
        first = min(unanswered, default=following)
        return Turns(first, set(range(first, following)) - set(unanswered))

    def dismiss(self, why: str) -> None:
        """Speak to it no more, but to say why."""
        self.gone = why
        self.unwanted.clear()
        turns, self.turns = self.turns, {}
        for each in turns.values():
            each.abandon()


class Parties:
    """All of them. Used under the lock of the actor."""

    def __init__(self) -> None:
        self._lives: dict[str, Party] = {}
        self._latest: dict[str, Party] = {}  # of each client

    def find(self, life: str) -> Party | None:
        """A life that was heard of."""
        return self._lives.get(life)

    def latest(self, client: str) -> Party | None:
        """The life that a client has, or had last."""
        return self._latest.get(client)

    def meet(self, caller: Caller) -> Party:
        """A client has a new life."""
        party = self._lives[caller.life] = self._latest[caller.client] = Party(caller)
        return party

    def refuse(self, caller: Caller, why: str, error: type[Exception] | None = None) -> Party:
        """A life is not spoken to, now and from now on; that of its client stays what it is."""
        party = self._lives[caller.life] = Party(caller)
        party.gone, party.refusal = why, error
        return party

    def alive(self) -> list[str]:
        """The lives that are spoken to."""
        return [life for life, party in self._lives.items() if not party.gone]

    def on(self, node: str) -> list[Party]:
        """Those that are spoken to, on a node."""
        alive = (party for party in self._lives.values() if not party.gone)
        return [party for party in alive if party.caller.node == node]

    def silent(self, seconds: float) -> Iterator[Party]:
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
