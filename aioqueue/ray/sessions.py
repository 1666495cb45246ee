"""The clients of a queue's actor: who may call, who has fallen silent, and what goes back.

This part of the actor manages clients, leases and, after a restart, awaited batches.
`aioqueue.ray.actor` makes the calls.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final, TypeAlias
from weakref import WeakSet

from aioqueue.core.attempts import PENDING, Attempt, QueueState
from aioqueue.errors import (
    DataLossError,
    InvalidArgumentError,
    OutOfRangeError,
    WorkerDiedError,
)
from aioqueue.ray.clients import CallerId, ClientSession, ClientSessions, ClientStanding
from aioqueue.ray.handles import Payload, Segment
from aioqueue.ray.idempotent_calls import StaleCallError
from aioqueue.ray.journal import NoJournal, QueueJournal
from aioqueue.ray.leases import DequeueWaiter, LeaseTable
from aioqueue.ray.ledger import QueueLedger, rows_of
from aioqueue.ray.messages import LEASE_SECONDS, Answer, Description
from aioqueue.ray.recovery import Awaited, refilled
from aioqueue.ray.replayable_producers import ProducerRecord
from aioqueue.workers.executors.ray_cluster import is_loss

_FORGOTTEN_SECONDS: Final = 600.0
"""How long a dead client is remembered, so that it can learn why it was dismissed."""

Call: TypeAlias = tuple[str, str, int]
"""A call: the life of its client, its method and its number."""


class RefusedError(Exception):
    """A call that is not made.

    Args:
        answer: the answer for its caller.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.error)
        self.answer = answer


class Wait:
    """An attempt in progress.

    Attributes:
        attempt: the attempt.
        began: when it began.
        sleeper: wakes its caller.
        error: why it was withdrawn, if the caller is to know.
    """

    __slots__ = ("attempt", "began", "error", "sleeper")

    def __init__(self, attempt: Attempt, sleeper: DequeueWaiter) -> None:
        self.attempt: Attempt = attempt
        self.began: float = monotonic()
        self.sleeper: DequeueWaiter = sleeper
        self.error: BaseException | None = None


class ActorSessions:
    """The state of a queue's actor, and its clients.

    Args:
        name: name of the queue.
        description: its kind.
        journal: the journal to recover from; ``None`` if it does not recover.
        node: where it runs.
    """

    def __init__(
        self,
        name: str,
        description: Description,
        journal: QueueJournal | NoJournal | None = None,
        node: str = "",
    ) -> None:
        self._name = name
        self._description = description
        self._queue = description.handles(name)
        core = self._queue._core
        self._spec = core.spec
        self._machine = core.machine
        # The event loops of all groups take this lock, for microseconds.
        self._lock = threading.RLock()  # guards all below; taken before the machine's lock
        self._node = node
        self._journal = journal or NoJournal()
        self._book = LeaseTable(core, self._journal)
        self._parties = ClientSessions()
        self._awaited = Awaited()
        self._segments: WeakSet[Segment] = WeakSet()
        self._fillings: dict[str, ProducerRecord] = {}  # by producer name
        self._leaving: set[str] = set()  # lives being drained: their batches are copied here
        self._changed: list[
            Callable[[], object]
        ] = []  # wake calls that wait for elements, or for the end
        self._waits: dict[Call, Wait] = {}
        self._cause: bytes | None = None
        # By life, its calls of `task_done` that have taken effect: all below a number, and these.
        self._said: dict[str, tuple[int, set[int]]] = {}
        self._watching: asyncio.Task[None] | None = None
        if journal is not None:
            self._come_back(journal.ledger)

    # Recovery.

    def _come_back(self, ledger: QueueLedger) -> None:
        """Restore the state of the journal, without elements."""
        for life, client in ledger.gone.items():
            self._parties.refuse(
                CallerId(client, life, None, self._description),
                "it had ended before the actor died",
            )
        for life, client in ledger.lives.items():
            self._parties.meet(CallerId(client, life, None, self._description))
            self._book.meet(life, client)
        self._book.restore(ledger.progress)
        self._awaited, segments = refilled(self._book, ledger)
        self._segments.update(segments)
        self._book.restore_done(ledger.undone, ledger.done)
        self._said = {life: (known, set(numbers)) for life, (known, numbers) in ledger.said.items()}
        for life in self._awaited.producers() - ledger.lives.keys():
            self._give_up_batches(life)
        for producer, (following, pairs, rows) in ledger.fillings.items():
            self._fillings[producer] = ProducerRecord(following, rows_of(pairs), rows)
        if ledger.closed is not None:
            (cause,) = ledger.closed
            self._cause = None if cause is None else base64.b64decode(cause)
            self._queue.close(cause=None if cause is None else told_failure())

    async def rejoin(self, caller: CallerId, standing: ClientStanding) -> Answer:
        """Accept the report of a client after a restart, before its other calls; the journal alone
        is incomplete.

        Returns:
            How often the actor has started, and whether that is more often than the client knew.
        """
        try:
            with self._lock:
                before = self._parties.find(caller.life)
                is_met = before is not None and before.is_met
                if not is_met and max(1, standing.began) != self._journal.starts:
                    return Answer(began=self._journal.starts, is_outdated=True)
                if not is_met and not (before and before.gone):
                    self._check_held(caller, standing)
                party = self._party(caller, joins=True)
                if not party.is_met:
                    party.is_met = True
                    self._take_over(party, standing)
            await self._journal.safe()
            if standing.owned:
                await self._copy_here([caller.life])
        except RefusedError as refused:
            return refused.answer
        except Exception as error:  # such as a journal on a full disk
            return Answer(error)
        return Answer(began=self._journal.starts)

    def _check_held(self, caller: CallerId, standing: ClientStanding) -> None:
        """Check that the journal has all leases that a consumer received, which were written first.

        Raises:
            RefusedError: it does not, so it is not the latest journal.
        """
        following = self._book.progress(caller.client).following
        held = max(standing.held, default=-1)
        if held >= following:
            known = f"up to number {following - 1}" if following else "none"
            why = (
                f"the journal of queue '{self._name}' is not the latest: it has the"
                f" leases of consumer '{caller.client}' {known}, which has number"
                f" {held}; expected the file that the actor wrote last"
            )
            raise RefusedError(Answer(DataLossError(why)))

    def _take_over(self, party: ClientSession, standing: ClientStanding) -> None:
        life = party.caller.life
        party.standing = standing
        party.unwanted.update(standing.unwanted)
        for number, payload in standing.kept:
            self._awaited.come((life, number), payload)
        self._give_up_batches(life, but=standing.puts[1])
        known = {*standing.held, *standing.takes[1]}
        for number in self._book.numbers_of(life):
            if number not in known:
                self._book.give_back(life, number)
        self._tell_of_changes()

    def skip(self, caller: CallerId, what: str, number: int) -> None:
        """Record that a client has the answer of a call that it reported as unanswered."""
        with self._lock, suppress(RefusedError):
            self._party(caller).skip(what, number)

    def _give_up_batches(self, life: str, but: Iterable[int] = ()) -> None:
        """Give up the batches of a producer, since no program can send them."""
        for producer, number in self._awaited.give_up(life, but):
            self._journal.note("in", producer, number, [])
        self._tell_of_changes()

    def _tell_of_changes(self) -> None:
        changed, self._changed = self._changed, []
        for wake in changed:
            wake()

    async def _change(self, is_due: Callable[[], bool]) -> None:
        """Wait until a condition on batches or leases holds."""
        loop = asyncio.get_running_loop()
        while True:
            woken = asyncio.Event()
            with self._lock:
                if is_due():
                    return
                self._changed.append(partial(wake_in, loop, woken))
            await woken.wait()

    async def _copy_here(self, lives: Iterable[str]) -> None:
        """Copy the batches of some producers to the actor."""
        producers = set(lives)
        with self._lock:
            segments = [one for one in self._segments if one.producer in producers]
        for segment in segments:
            if segment.payload.ref and not segment.is_lost and not await self._copied_here(segment):
                segment.is_lost = True  # the consumer that dequeues it gets an error

    async def _copied_here(self, segment: Segment) -> bool:
        """Copy a batch to the actor; return whether it still existed."""
        before = segment.payload
        try:
            payload = await copied_here(before)
        except Exception as error:
            if not is_loss(error):
                raise
            return segment.payload is not before  # it has been sent again in the meantime
        with self._lock:
            if segment.payload is before:
                segment.payload, segment.is_here = payload, True
        return True

    # Callers.

    def _party(self, caller: CallerId, *, joins: bool = False) -> ClientSession:
        """Return the client of a caller, if it may call.

        Args:
            caller: the caller.
            joins: whether this is its report after a restart.

        Raises:
            RefusedError: it expects another kind of queue, was dismissed, or has to report first.
        """
        if caller.description != self._description:
            raise RefusedError(Answer(self._mistaken(caller.description)))
        with self._lock:
            # Refuse before changing any state, since a refused caller may call again.
            party = self._parties.find(caller.life)
            if party is not None:
                party.heard = monotonic()
                if party.gone:
                    raise RefusedError(Answer(self._why_ended(party)))
            if self._journal.starts and not (joins or (party and party.is_met)):
                raise RefusedError(Answer(began=self._journal.starts))
            if party is None:
                self._check_last_committed(caller)
                party = self._begin_life(caller)
            if joins:
                party.caller = caller  # which has its node
                self._journal.note("meet", caller.life, caller.client)
            return party

    def _mistaken(self, description: Description) -> InvalidArgumentError:
        """Return the error for a caller that expects a queue with another description."""
        found = zip(Description._fields, description, self._description, strict=True)
        field, theirs, ours = next(one for one in found if one[1] != one[2])
        return InvalidArgumentError(
            f"{field}: got {theirs!r} for queue '{self._name}', which was made with {ours!r};"
            " expected the same, or another name"
        )

    def _check_last_committed(self, caller: CallerId) -> None:
        """Check that a new life of a consumer can continue where it says.

        That is its last committed lease, or one that its former life still holds. Otherwise
        elements would be lost or delivered twice.

        Raises:
            RefusedError: it cannot. Its client does not change.
        """
        last_committed = caller.last_committed
        if last_committed is None:
            return
        progress = self._book.progress(caller.client)
        before = self._parties.latest(caller.client)
        has = self._book.numbers_of(before.caller.life) if before and not before.gone else ()
        if last_committed == progress.committed or (
            last_committed > progress.committed and last_committed in has
        ):
            return
        error: type[Exception] = InvalidArgumentError
        what = (
            f"last_committed: got {last_committed} for consumer '{caller.client}' of queue"
            f" '{self._name}'"
        )
        if last_committed < progress.committed:
            why = (
                f"{what}, which has committed its leases up to number {progress.committed}: the"
                f" queue does not deliver those after number {last_committed} again; expected"
                f" {progress.committed} or more. If you do not save your position after each batch,"
                " pass autocommit=False, and call commit() when you have saved it"
            )
        elif last_committed >= progress.following:
            last = progress.following - 1
            handed = f"whose last lease has number {last}" if last >= 0 else "which had no lease"
            why = f"{what}, {handed}; expected the number of one of its leases, or None"
        else:
            error = WorkerDiedError
            kept = progress.committed
            why = (
                f"consumer '{caller.client}' was silent for more than {LEASE_SECONDS:.0f} s, or"
                " restarted later than that, so its leases"
                f"{f' after number {kept}' if kept >= 0 else ''} returned to the queue; but it"
                f" used them up to number {last_committed}"
            )
        party = self._parties.refuse(caller, why, error)
        raise RefusedError(Answer(self._why_ended(party)))

    def _begin_life(self, caller: CallerId) -> ClientSession:
        """Start a new life of a client; uncommitted leases of its former life go back."""
        before = self._parties.latest(caller.client)
        if before is not None and not before.gone:
            former = before.caller.life
            if caller.last_committed is not None:
                done = [
                    one for one in self._book.numbers_of(former) if one <= caller.last_committed
                ]
                self._book.commit(former, done)
            self._dismiss(
                before, f"consumer '{caller.client}' was started again, with a new handle"
            )
        self._book.meet(caller.life, caller.client)
        return self._parties.meet(caller)

    def _why_ended(self, party: ClientSession) -> Exception:
        """Return the error for a client whose call was ended."""
        if not party.gone:
            return StaleCallError("cancelled")  # the caller knows that it cancelled
        if party.refusal is InvalidArgumentError:
            return InvalidArgumentError(party.gone)
        return WorkerDiedError(
            f"{self._description.kind} '{self._name}' does not know this handle any more:"
            f" {party.gone}; make a new one"
        )

    def _dismiss(self, party: ClientSession, why: str) -> None:
        """Dismiss a client: its calls end, and its uncommitted leases go back."""
        life = party.caller.life
        party.dismiss(why)
        self._end_calls(life)
        self._book.give_back(life)
        self._give_up_batches(life)
        self._book.leave(life)
        self._said.pop(life, None)
        self._journal.note("gone", life)
        self._leaving.discard(life)
        for filling in self._fillings.values():
            if filling.life == life:
                filling.end()
        self._look_for_own_ends()

    def _end_calls(self, life: str) -> None:
        for call, wait in list(self._waits.items()):
            if call[0] == life:
                self._end_wait(wait)

    def _end_wait(self, wait: Wait, error: Callable[[], Exception] | None = None) -> None:
        if wait.attempt.state is PENDING:
            self._book.withdraw(wait.attempt)
            wait.error = error and error()  # computes what is left, including this client's part
            wait.sleeper.wake()

    def _look_for_own_ends(self) -> None:
        """Report the end to consumers that would otherwise wait for their own leases."""
        with self._lock:
            if self._machine.state is not QueueState.CLOSED:
                return
            waits = {call: wait for call, wait in self._waits.items() if call[1] == "dequeue"}
            lives = {life for life, _, _ in waits}
            for (life, _, _), wait in waits.items():
                # Elements inside go to the first waiting call: only a sole consumer is known.
                is_alone = lives == {life} or not self._machine.size
                if is_alone and not self._book.can_come_from_others(life):
                    take: Any = wait.attempt
                    self._end_wait(wait, partial(self._own_end, take.n))

    def _own_end(self, n: int) -> OutOfRangeError:
        return OutOfRangeError(
            f"{self._description.kind} '{self._name}' is closed, and has only elements that this"
            " consumer has taken and not committed",
            queue=self._name,
            requested=n,
            remaining=self._machine.size,
        )

    # Liveness.

    async def beat(self, caller: CallerId, kept: Sequence[int] = ()) -> Answer:
        """Accept a heartbeat.

        Args:
            caller: the caller.
            kept: the enqueues whose elements it keeps in case the actor dies.

        Returns:
            Which of them it can drop; or that it must report its state.
        """
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._watch())
        try:
            with self._lock:
                if self._parties.find(caller.life) is None:
                    return (
                        Answer()
                    )  # without a call, it has not replaced the former life of its client
                self._party(caller)
        except RefusedError as refused:  # its next call reports the refusal
            return Answer(began=refused.answer.began)
        return Answer(freed=self._journal.used_of(caller.life, kept))

    def clients(self) -> list[str]:
        """Return the lives that are served."""
        with self._lock:
            return self._parties.alive()

    def leave(self, caller: CallerId) -> None:
        """End a client: its calls end, and its uncommitted leases go back.

        A named consumer keeps its leases for as long as if it had died, since it may be restarted
        and commit them.
        """
        with self._lock:
            if caller.client != caller.life:
                self._end_calls(caller.life)
                return
            try:
                party: ClientSession | None = self._party(caller)
            except RefusedError:  # a client may leave without rejoining
                party = self._parties.find(caller.life)
            if party is not None and not party.gone:
                self._dismiss(party, "its program has left")

    def dismiss(self, life: str) -> None:
        """Dismiss a client that is known to be dead, before its silence shows it."""
        with self._lock:
            party = self._parties.find(life)
            if party is not None and not party.gone:
                self._dismiss(party, "its program has died")

    def expire(self, seconds: float, forgotten: float) -> None:
        """Dismiss clients that have been silent.

        Args:
            seconds: how long they have been silent.
            forgotten: seconds after which a dismissed client is forgotten altogether.
        """
        with self._lock:
            for party in self._parties.silent(seconds):
                why = f"it was silent for {seconds:.0f} s, so it counted as dead"
                self._dismiss(party, why)
            for life in self._parties.forget(forgotten):
                self._journal.note("forgotten", life)

    async def _watch(self) -> None:
        """Look for silent clients until the actor ends."""
        while True:
            await asyncio.sleep(LEASE_SECONDS / 6)
            self.expire(LEASE_SECONDS, _FORGOTTEN_SECONDS)
            self.give_up_wanted()

    def give_up_wanted(self) -> None:
        """Give up the requested batches of producers that have not restarted for long."""
        with self._lock:
            given_up = [filling.give_up() for filling in self._fillings.values()]
            if any(given_up):
                self._tell_of_changes()


async def copied_here(payload: Payload) -> Payload:
    """Return a copy of a batch that belongs to the actor."""
    import ray

    columns = payload.columns if payload.columns is not None else await payload.ref[0]
    return Payload(None, (ray.put(columns),))


def wake_in(loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(woken.set)


def told_failure() -> RuntimeError:
    """Return what stands for the failure that closed the queue, which its users get as a message.

    The queue here must know that there was one: then it lets no `join` end well.
    """
    return RuntimeError("a failure has closed the queue")
