"""Whom the actor of a queue serves: who may call, who has fallen silent, what of theirs goes back.

The part of the actor that knows clients, leases and what is awaited of whom after it has come back;
`aioqueue.ray.actor` makes their calls.
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

from aioqueue.attempts import PENDING, Attempt, QueueState
from aioqueue.errors import (
    DataLossError,
    InvalidArgumentError,
    OutOfRangeError,
    WorkerDiedError,
)
from aioqueue.inputs.prepare.ray_cluster import is_loss
from aioqueue.ray.clients import CallerId, ClientSession, ClientSessions, ClientStanding
from aioqueue.ray.handles import Payload, Segment
from aioqueue.ray.idempotent_calls import StaleCallError
from aioqueue.ray.journal import NoJournal, QueueJournal
from aioqueue.ray.leases import DequeueWaiter, LeaseTable
from aioqueue.ray.ledger import QueueLedger, rows_of
from aioqueue.ray.messages import LEASE_SECONDS, Answer, Description
from aioqueue.ray.recovery import Awaited, refilled
from aioqueue.ray.replayable_producers import ProducerRecord

__all__ = ("ActorSessions", "Call", "RefusedError", "Wait", "copied_here", "wake_in")

_FORGOTTEN_SECONDS: Final = 600.0
"""How long a client that is gone is remembered, so that it can be told."""

Call: TypeAlias = tuple[str, str, int]
"""Which life of a client calls, what, and under which number."""


class RefusedError(Exception):
    """A call that is not made.

    Args:
        answer: what its caller is told.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.error)
        self.answer = answer


class Wait:
    """An attempt in progress.

    Attributes:
        attempt: which.
        began: when.
        sleeper: wakes who waits for it.
        error: why it was withdrawn, if that is to be told.
    """

    __slots__ = ("attempt", "began", "error", "sleeper")

    def __init__(self, attempt: Attempt, sleeper: DequeueWaiter) -> None:
        self.attempt = attempt
        self.began = monotonic()
        self.sleeper = sleeper
        self.error: BaseException | None = None


class ActorSessions:
    """The state of the actor of a queue, and the clients that it serves.

    Args:
        name: of the queue.
        description: what it is.
        journal: from which it comes back; ``None`` if it does not.
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
        # The loops of all groups come here. What is done within takes microseconds.
        self._lock = threading.RLock()  # guards all below; the machine's is taken within
        self._node = node
        self._journal = journal or NoJournal()
        self._book = LeaseTable(core, self._journal)
        self._parties = ClientSessions()
        self._awaited = Awaited()
        self._segments: WeakSet[Segment] = WeakSet()
        self._fillings: dict[str, ProducerRecord] = {}  # by the name of the producer
        self._leaving: set[str] = set()  # lives that are drained: what they put in is copied here
        self._changed: list[Callable[[], object]] = []  # wake who waits for elements, or the end
        self._waits: dict[Call, Wait] = {}
        self._cause: bytes | None = None
        self._watching: asyncio.Task[None] | None = None
        if journal is not None:
            self._come_back(journal.ledger)

    # Coming back.

    def _come_back(self, ledger: QueueLedger) -> None:
        """Be what the journal says, but for the elements."""
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
        for life in self._awaited.producers() - ledger.lives.keys():
            self._give_up_batches(life)
        for producer, (following, pairs, rows) in ledger.fillings.items():
            self._fillings[producer] = ProducerRecord(following, rows_of(pairs), rows)
        if ledger.closed is not None:
            (cause,) = ledger.closed
            self._cause = None if cause is None else base64.b64decode(cause)
            self._queue.close()

    async def rejoin(self, caller: CallerId, standing: ClientStanding) -> Answer:
        """A client says how it stands, before all else: the journal does not know it all.

        Returns:
            How often the actor has started; and whether that is more often than the client knew.
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
        except Exception as error:  # the journal cannot be written, or the object store is full
            return Answer(error)
        return Answer(began=self._journal.starts)

    def _check_held(self, caller: CallerId, standing: ClientStanding) -> None:
        """See that the journal knows all that a consumer was told, which was written before.

        Raises:
            RefusedError: it does not, so it is not the one that the actor has written last.
        """
        following = self._book.progress(caller.client).following
        held = max(standing.held, default=-1)
        if held >= following:
            known = f"up to number {following - 1}" if following else "none"
            why = (
                f"the journal of queue '{self._name}' is older than what it has handed out: it"
                f" knows of the leases of consumer '{caller.client}' {known}, which has number"
                f" {held}; expected the file that the actor has written last"
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
        """A client has got the answer of a call, after it had said that it had not."""
        with self._lock, suppress(RefusedError):
            self._party(caller).skip(what, number)

    def _give_up_batches(self, life: str, but: Iterable[int] = ()) -> None:
        """What a producer had put in, or was about to, comes from nowhere any more."""
        for producer, number in self._awaited.give_up(life, but):
            self._journal.note("in", producer, number, [])
        self._tell_of_changes()

    def _tell_of_changes(self) -> None:
        changed, self._changed = self._changed, []
        for wake in changed:
            wake()

    async def _change(self, is_due: Callable[[], bool]) -> None:
        """Wait until something holds of batches or leases."""
        loop = asyncio.get_running_loop()
        while True:
            woken = asyncio.Event()
            with self._lock:
                if is_due():
                    return
                self._changed.append(partial(wake_in, loop, woken))
            await woken.wait()

    async def _copy_here(self, lives: Iterable[str]) -> None:
        """Batches that belong to some producers belong to the actor from now on."""
        producers = set(lives)
        with self._lock:
            segments = [one for one in self._segments if one.producer in producers]
        for segment in segments:
            if segment.payload.ref and not segment.is_lost and not await self._copied_here(segment):
                segment.is_lost = True  # and so whoever takes it is told

    async def _copied_here(self, segment: Segment) -> bool:
        """Have a batch belong to the actor; whether it was still there."""
        before = segment.payload
        try:
            payload = await copied_here(before)
        except Exception as error:
            if not is_loss(error):
                raise
            return segment.payload is not before  # it has come again meanwhile
        with self._lock:
            if segment.payload is before:
                segment.payload, segment.is_here = payload, True
        return True

    # Who calls.

    def _party(self, caller: CallerId, *, joins: bool = False) -> ClientSession:
        """Who calls, if it may.

        Args:
            caller: that.
            joins: whether it says how it stands.

        Raises:
            RefusedError: it takes this for another queue, or is not spoken to any more; or it has
                to say first how it stands.
        """
        if caller.description != self._description:
            raise RefusedError(Answer(self._mistaken(caller.description)))
        with self._lock:
            # All that refuses comes before anything changes: it may be refused once, and called
            # again after that.
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
                party.caller = caller  # with its node
                self._journal.note("meet", caller.life, caller.client)
            return party

    def _mistaken(self, description: Description) -> InvalidArgumentError:
        """A caller takes the queue for one that has been described otherwise."""
        found = zip(Description._fields, description, self._description, strict=True)
        field, theirs, ours = next(one for one in found if one[1] != one[2])
        return InvalidArgumentError(
            f"{field}: got {theirs!r} for queue '{self._name}', which was made with {ours!r};"
            " expected the same, or another name"
        )

    def _check_last_committed(self, caller: CallerId) -> None:
        """See that a new life of a consumer can go on where it says.

        That is the last lease that was committed, or one that its former life still has: what lies
        between the two would be lost, or come twice.

        Raises:
            RefusedError: it cannot. Its client is as before.
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
                f"{what}, which has committed its leases up to number {progress.committed}: what"
                f" it had got after number {last_committed} does not come again; expected"
                f" {progress.committed} or more. Where positions are not saved after each batch,"
                " use autocommit=False, and commit() when one is saved"
            )
        elif last_committed >= progress.following:
            last = progress.following - 1
            handed = f"whose last lease has number {last}" if last >= 0 else "which had no lease"
            why = f"{what}, {handed}; expected the number of a lease that it was given, or None"
        else:
            error = WorkerDiedError
            kept = progress.committed
            why = (
                f"consumer '{caller.client}' was silent for more than {LEASE_SECONDS:.0f} s, or had"
                f" begun anew before them, so what it had by its leases"
                f"{f' after number {kept}' if kept >= 0 else ''} was given back; but it has used"
                f" them up to number {last_committed}"
            )
        party = self._parties.refuse(caller, why, error)
        raise RefusedError(Answer(self._why_ended(party)))

    def _begin_life(self, caller: CallerId) -> ClientSession:
        """A client has a new life: what its former one had not used goes back."""
        before = self._parties.latest(caller.client)
        if before is not None and not before.gone:
            former = before.caller.life
            if caller.last_committed is not None:
                done = [
                    one for one in self._book.numbers_of(former) if one <= caller.last_committed
                ]
                self._book.commit(former, done)
            self._dismiss(before, f"consumer '{caller.client}' has begun anew, with another handle")
        self._book.meet(caller.life, caller.client)
        return self._parties.meet(caller)

    def _why_ended(self, party: ClientSession) -> Exception:
        """What a client is told whose call was ended."""
        if not party.gone:
            return StaleCallError("cancelled")  # and so it knows that
        if party.refusal is InvalidArgumentError:
            return InvalidArgumentError(party.gone)
        return WorkerDiedError(
            f"{self._description.kind} '{self._name}' does not know this handle any more:"
            f" {party.gone}; make another one"
        )

    def _dismiss(self, party: ClientSession, why: str) -> None:
        """Speak to a client no more: its calls end, and what it has not used goes back."""
        life = party.caller.life
        party.dismiss(why)
        self._end_calls(life)
        self._book.give_back(life)
        self._give_up_batches(life)
        self._book.leave(life)
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
            wait.error = error and error()  # which tells what is left, also by this one
            wait.sleeper.wake()

    def _look_for_own_ends(self) -> None:
        """Tell consumers the end that would else wait for what they have themselves."""
        with self._lock:
            if self._machine.state is not QueueState.CLOSED:
                return
            waits = {call: wait for call, wait in self._waits.items() if call[1] == "dequeue"}
            lives = {life for life, _, _ in waits}
            for (life, _, _), wait in waits.items():
                # What is inside is for whoever is first in line; and that is known of one only.
                is_alone = lives == {life} or not self._machine.size
                if is_alone and not self._book.can_come_from_others(life):
                    take: Any = wait.attempt
                    self._end_wait(wait, partial(self._own_end, take.n))

    def _own_end(self, n: int) -> OutOfRangeError:
        return OutOfRangeError(
            f"{self._description.kind} '{self._name}' is closed and has no elements but those that"
            " this consumer has not committed",
            queue=self._name,
            requested=n,
            remaining=self._machine.size,
        )

    # Who is there, and who is not any more.

    async def beat(self, caller: CallerId, kept: Sequence[int] = ()) -> Answer:
        """A client is alive.

        Args:
            caller: that.
            kept: the enqueues whose elements it keeps, in case the actor dies.

        Returns:
            Which of them nobody needs any more; or that it has to say how it stands.
        """
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._watch())
        try:
            with self._lock:
                if self._parties.find(caller.life) is None:
                    return Answer()  # it has asked for nothing: so far its client has another life
                self._party(caller)
        except RefusedError as refused:  # it is told so when it asks for something
            return Answer(began=refused.answer.began)
        return Answer(freed=self._journal.used_of(caller.life, kept))

    def clients(self) -> list[str]:
        """The lives that are taken to be going on."""
        with self._lock:
            return self._parties.alive()

    def leave(self, caller: CallerId) -> None:
        """A client ends: its calls end, and what it has not used goes back.

        What a consumer with a name of its own has stays with it for as long as if it had died: it
        may be started again, and say what it has used.
        """
        with self._lock:
            if caller.client != caller.life:
                self._end_calls(caller.life)
                return
            try:
                party: ClientSession | None = self._party(caller)
            except RefusedError:  # who ends need not say before how it stands
                party = self._parties.find(caller.life)
            if party is not None and not party.gone:
                self._dismiss(party, "it was given up")

    def dismiss(self, life: str) -> None:
        """A client is known to be dead: sooner than by its silence."""
        with self._lock:
            party = self._parties.find(life)
            if party is not None and not party.gone:
                self._dismiss(party, "it was taken to be dead")

    def expire(self, seconds: float, forgotten: float) -> None:
        """Give back what clients have of which nothing was heard for so long.

        Args:
            seconds: how long.
            forgotten: after how many seconds it is not even known any more that they were there.
        """
        with self._lock:
            for party in self._parties.silent(seconds):
                why = f"nothing was heard of it for {seconds:.0f} s, so it was taken to be dead"
                self._dismiss(party, why)
            for life in self._parties.forget(forgotten):
                self._journal.note("forgotten", life)

    async def _watch(self) -> None:
        """Look for clients that are silent, until the actor ends."""
        while True:
            await asyncio.sleep(LEASE_SECONDS / 6)
            self.expire(LEASE_SECONDS, _FORGOTTEN_SECONDS)
            self.give_up_wanted()

    def give_up_wanted(self) -> None:
        """What producers could make again that have not begun anew for long is lost."""
        with self._lock:
            given_up = [filling.give_up() for filling in self._fillings.values()]
            if any(given_up):
                self._tell_of_changes()


async def copied_here(payload: Payload) -> Payload:
    """A copy of a batch that belongs to the actor."""
    import ray

    columns = payload.columns if payload.columns is not None else await payload.ref[0]
    return Payload(None, (ray.put(columns),))


def wake_in(loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
    with suppress(RuntimeError):  # that loop has ended
        loop.call_soon_threadsafe(woken.set)
