"""The clients of a queue's actor, and the state that each reports when the actor restarts.

A handle in a program is one *life* of a client. Most clients have a single life; a named consumer
can be restarted, and continues where its former life ended.

A client's state consists of the numbers of its calls, which of them are unanswered, the elements
that it has enqueued and that nobody has committed yet, and its leases.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, NamedTuple

from aioqueue.ray.idempotent_calls import NumberedCalls
from aioqueue.ray.segments import Payload


class CallerId(NamedTuple):
    """The identity of a caller."""

    client: str
    """The client; a named consumer has the same name in every life."""
    life: str
    """The life of this client."""
    last_committed: int | None
    """The last lease that its former life is known to have used."""
    description: Any
    """The kind of queue that it expects."""
    node: str = ""
    """The node where it runs."""


class ClientReport(NamedTuple):
    """The state that a client reports to an actor that has restarted."""

    starts: int = 0
    """How often the actor had started then, as far as known; 0 before the first call.

    Ray repeats an unanswered call even if the actor has restarted once more. Then this report lacks
    what the client has enqueued and dequeued in between.
    """
    enqueues: tuple[int, list[int]] = (0, [])
    """The number of its next enqueue, and its unanswered enqueues."""
    dequeues: tuple[int, list[int]] = (0, [])
    """The number of its next dequeue, and its unanswered dequeues."""
    kept: Sequence[tuple[int, Any]] = ()
    """Batches that it may have to send again: numbers and payloads."""
    owned: bool = False
    """Whether its batches are to belong to the actor."""
    held: Sequence[int] = ()
    """Leases that it has received, and may still commit."""
    cancelled_calls: Sequence[tuple[str, int]] = ()
    """Cancelled calls without an answer: method and number."""


class ClientSession:
    """One life of a client.

    Attributes:
        caller: its identity.
        last_heard: when it last called.
        dismissal: why it was dismissed; empty while it is served.
        refusal: the type of the error by which it was refused, if it was never served.
        has_rejoined: whether it has reported its state to a restarted actor.
        report: that report, if there is one.
        calls: its numbered calls, by method.
        cancelled_calls: calls that were cancelled before they arrived: method and number.
    """

    __slots__ = (
        *("caller", "dismissal", "last_heard", "has_rejoined", "refusal"),
        *("report", "calls", "cancelled_calls"),
    )

    def __init__(self, caller: CallerId) -> None:
        self.caller = caller
        self.last_heard: float = monotonic()
        self.dismissal: str = ""
        self.refusal: type[Exception] | None = None
        self.has_rejoined = False
        self.report: ClientReport | None = None
        self.calls: dict[str, NumberedCalls[Any]] = {}
        self.cancelled_calls: set[tuple[str, int]] = set()

    def calls_of(self, method: str, known: int) -> NumberedCalls[Any]:
        """Return the calls of a method; the first one to make is the first unanswered one."""
        calls = self.calls.get(method)
        if calls is None:
            calls = self.calls[method] = self._new_calls(method, known)
        self.cancelled_calls = {
            (what, number)
            for what, number in self.cancelled_calls
            if what != method or number >= known
        }
        return calls

    def skip(self, method: str, number: int) -> None:
        """Record that an announced call will not come."""
        calls = self.calls.get(method)
        if calls is not None:
            calls.skip(number)
        elif self.report is not None:
            report = self.report
            _, unanswered = report.enqueues if method == "enqueue" else report.dequeues
            if number in unanswered:
                unanswered.remove(number)

    def _new_calls(self, method: str, known: int) -> NumberedCalls[Any]:
        report = self.report or ClientReport()
        following, unanswered = report.enqueues if method == "enqueue" else report.dequeues
        if not following:  # it had made no call by then
            return NumberedCalls(known)
        first = min(unanswered, default=following)
        return NumberedCalls(first, set(range(first, following)) - set(unanswered))

    def dismiss(self, why: str) -> None:
        """Stop serving it; later calls get the reason."""
        self.dismissal = why
        self.cancelled_calls.clear()
        calls, self.calls = self.calls, {}
        for each in calls.values():
            each.abandon()


class ClientSessions:
    """All lives of all clients. Used under the lock of the actor."""

    def __init__(self) -> None:
        self._lives: dict[str, ClientSession] = {}
        self._latest: dict[str, ClientSession] = {}  # by client

    def find(self, life: str) -> ClientSession | None:
        return self._lives.get(life)

    def latest(self, client: str) -> ClientSession | None:
        return self._latest.get(client)

    def add(self, caller: CallerId) -> ClientSession:
        session = self._lives[caller.life] = self._latest[caller.client] = ClientSession(caller)
        return session

    def refuse(
        self, caller: CallerId, why: str, error: type[Exception] | None = None
    ) -> ClientSession:
        """Refuse a life for good; the latest life of its client does not change."""
        session = self._lives[caller.life] = ClientSession(caller)
        session.dismissal, session.refusal = why, error
        return session

    def alive(self) -> list[str]:
        return [life for life, session in self._lives.items() if not session.dismissal]

    def on(self, node: str) -> list[ClientSession]:
        alive = (session for session in self._lives.values() if not session.dismissal)
        return [session for session in alive if session.caller.node == node]

    def silent(self, seconds: float) -> Iterator[ClientSession]:
        before = monotonic() - seconds
        return iter([p for p in self._lives.values() if not p.dismissal and p.last_heard < before])

    def forget(self, seconds: float) -> list[str]:
        """Forget dismissed lives that have been silent for a given time; return them."""
        before = monotonic() - seconds
        forgotten = [p for p in self._lives.values() if p.dismissal and p.last_heard < before]
        for session in forgotten:
            del self._lives[session.caller.life]
            if self._latest.get(session.caller.client) is session:
                del self._latest[session.caller.client]
        return [session.caller.life for session in forgotten]


class CallNumbers:
    """Numbers the calls of one client, and records their answers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0
        self._open: set[int] = set()
        self._reported_open: set[int] = set()  # reported as unanswered

    def start_at(self, first: int) -> None:
        """Set the number of the first call, before there is one."""
        with self._lock:
            self._next = first

    def begin(self, call: Callable[[int, int], Any]) -> tuple[int, Any]:
        """Make the next call with its number, and the number below which all calls are answered."""
        with self._lock:  # under the lock, so that calls leave in the order of their numbers
            number = self._next
            reference = call(number, min(self._open, default=number))
            # Increment last: an element that cannot be pickled must leave no gap in the numbers.
            self._next += 1
            self._open.add(number)
            return number, reference

    def repeat(self, number: int, call: Callable[[int, int], Any]) -> Any:
        with self._lock:
            return call(number, min(self._open, default=number))

    def end(self, number: int) -> bool:
        """Record that a call was answered.

        Returns:
            Whether a restarted actor has a report that calls it unanswered, because the answer was
            on its way at that moment.
        """
        with self._lock:
            self._open.discard(number)
            return number in self._reported_open

    def report(self) -> tuple[int, list[int]]:
        """Return the next number, and the unanswered calls, for a report."""
        with self._lock:
            self._reported_open = set(self._open)
            return self._next, sorted(self._open)


class HandleState:
    """The state of one handle. Thread-safe.

    Args:
        cloudpickle: Ray's module.
        keeps: whether to keep elements until they are committed, since the actor can restart.
        owned: whether its batches are to belong to the actor.
    """

    def __init__(self, cloudpickle: Any, *, keeps: bool, owned: bool) -> None:
        self.enqueues: CallNumbers = CallNumbers()
        self.dequeues: CallNumbers = CallNumbers()
        self.keeps = keeps
        self._owned = owned
        self._cloudpickle = cloudpickle
        self._lock = threading.Lock()  # guards all below
        self._kept: dict[int, bytes | Payload] = {}
        self._held: set[int] = set()
        self._cancelled_calls: set[tuple[str, int]] = set()

    def copied(self, payload: Payload) -> bytes | Payload:
        """Return a copy of a batch that the caller cannot change."""
        if payload.columns is None or type(payload.columns) is bytes:
            return payload
        return bytes(self._cloudpickle.dumps(payload))

    def keep(self, number: int, copy: bytes | Payload) -> None:
        with self._lock:
            self._kept[number] = copy

    def forget(self, numbers: Iterable[int]) -> None:
        with self._lock:
            for number in numbers:
                self._kept.pop(number, None)

    def kept(self) -> list[int]:
        with self._lock:
            return list(self._kept)

    def hold(self, number: int) -> None:
        with self._lock:
            self._held.add(number)

    def use(self, numbers: Iterable[int]) -> None:
        """Record that the actor has confirmed the commit of leases."""
        with self._lock:
            self._held.difference_update(numbers)

    @contextmanager
    def cancelled_calls(self, what: str, number: int) -> Iterator[None]:
        """Record that a call was cancelled, until its answer arrives."""
        with self._lock:
            self._cancelled_calls.add((what, number))
        try:
            yield
        finally:
            with self._lock:
                self._cancelled_calls.discard((what, number))

    def report(self, starts: int) -> ClientReport:
        """Return the whole state, for an actor with this start count."""
        # First the calls, then what is held: a lease that arrives in between is in both, and so the
        # actor does not give it back.
        enqueues, dequeues = self.enqueues.report(), self.dequeues.report()
        with self._lock:
            kept = sorted(self._kept.items(), key=lambda item: item[0])
            held, cancelled_calls = sorted(self._held), sorted(self._cancelled_calls)
        loads = self._cloudpickle.loads
        payloads = [(number, loads(it) if isinstance(it, bytes) else it) for number, it in kept]
        return ClientReport(
            starts, enqueues, dequeues, payloads, self._owned, held, cancelled_calls
        )
