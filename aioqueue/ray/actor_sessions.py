"""The clients of a queue's actor: who may call, who has fallen silent, and what goes back.

This part of the actor manages clients, leases and, after a restart, awaited batches.
`aioqueue.ray.queue_actor` makes the calls.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Final
from weakref import WeakSet

from aioqueue.errors import DataLossError, InvalidArgumentError, WorkerDiedError
from aioqueue.ray.client_registry import CallerId, ClientReport, ClientSession, ClientSessions
from aioqueue.ray.idempotent_calls import StaleCallError
from aioqueue.ray.journal import NoJournal, QueueJournal
from aioqueue.ray.leases import ActorLeases
from aioqueue.ray.ledger import QueueLedger, rows_of
from aioqueue.ray.messages import LEASE_SECONDS, Answer, Description
from aioqueue.ray.recovery import Awaited, restore_queue
from aioqueue.ray.replayable_producers import ProducerRecord
from aioqueue.ray.segments import Payload, Segment
from aioqueue.ray.waits import WaitTable
from aioqueue.workers.executors.ray_cluster import is_loss

_FORGOTTEN_SECONDS: Final = 600.0
"""How long a dead client is remembered, so that it can learn why it was dismissed."""


class RefusedError(Exception):
    """A call that is not made.

    Args:
        answer: the answer for its caller.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.error)
        self.answer = answer


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
        self._lease_table = ActorLeases(core, self._journal)
        self._waits = WaitTable(core, self._lease_table, (description.kind, name))
        self._sessions = ClientSessions()
        self._awaited = Awaited()
        self._segments: WeakSet[Segment] = WeakSet()
        self._producer_records: dict[str, ProducerRecord] = {}  # by producer name
        self._draining: set[str] = set()  # lives being drained: their batches are copied here
        self._change_wakers: list[
            Callable[[], object]
        ] = []  # wake calls that wait for elements, or for the end
        self._cause: bytes | None = None
        # By life, its calls of `task_done` that have taken effect: all below a number, and these.
        self._applied_task_dones: dict[str, tuple[int, set[int]]] = {}
        self._watching: asyncio.Task[None] | None = None
        if journal is not None:
            self._restore(journal.ledger)

    # Recovery.

    def _restore(self, ledger: QueueLedger) -> None:
        """Restore the state of the journal, without elements."""
        for life, client in ledger.dismissed.items():
            self._sessions.refuse(
                CallerId(client, life, None, self._description),
                "it had ended before the actor died",
            )
        for life, client in ledger.lives.items():
            self._sessions.add(CallerId(client, life, None, self._description))
            self._lease_table.add_life(life, client)
        self._lease_table.restore(ledger.progress)
        self._awaited, segments = restore_queue(self._lease_table, ledger)
        self._segments.update(segments)
        self._lease_table.restore_done(ledger.unfinished, ledger.done)
        self._applied_task_dones = {
            life: (known, set(numbers))
            for life, (known, numbers) in ledger.applied_task_dones.items()
        }
        # No program of that life can rejoin and send them.
        for life in self._awaited.producers() - ledger.lives.keys():
            self._give_up_batches(life)
        for producer, (following, pairs, rows) in ledger.producer_progress.items():
            self._producer_records[producer] = ProducerRecord(following, rows_of(pairs), rows)
        if ledger.closed is not None:
            (cause,) = ledger.closed
            self._cause = None if cause is None else base64.b64decode(cause)
            self._queue.close(cause=None if cause is None else closing_failure())

    async def rejoin(self, caller: CallerId, report: ClientReport) -> Answer:
        """Accept the report of a client after a restart, before its other calls; the journal alone
        is incomplete.

        Returns:
            How often the actor has started, and whether that is more often than the client knew.
        """
        try:
            with self._lock:
                before = self._sessions.find(caller.life)
                has_rejoined = before is not None and before.has_rejoined
                # Ray repeats an unanswered call. So this report may have been made for an earlier
                # start, and lack what the client has done since: have it make another.
                if not has_rejoined and max(1, report.starts) != self._journal.starts:
                    return Answer(starts=self._journal.starts, is_outdated=True)
                # Before `_session_of`, which may replace the client's former life: an outdated
                # journal must be refused without a change.
                if not has_rejoined and not (before and before.dismissal):
                    self._check_held(caller, report)
                session = self._session_of(caller, joins=True)
                if not session.has_rejoined:
                    session.has_rejoined = True
                    self._apply_report(session, report)
            await self._journal.flushed()
            # The actor's copies died with it, and the kept ones belong to the producer.
            if report.owned:
                await self._copy_all_to_actor([caller.life])
        except RefusedError as refused:
            return refused.answer
        except Exception as error:  # such as a journal on a full disk
            return Answer(error)
        return Answer(starts=self._journal.starts)

    def _check_held(self, caller: CallerId, report: ClientReport) -> None:
        """Check that the journal has all leases that a consumer received, which were written first.

        Raises:
            RefusedError: it does not, so it is not the latest journal.
        """
        following = self._lease_table.progress(caller.client).following
        held = max(report.held, default=-1)
        if held >= following:
            known = f"up to number {following - 1}" if following else "none"
            why = (
                f"the journal of queue '{self._name}' is not the latest: it has the"
                f" leases of consumer '{caller.client}' {known}, which has number"
                f" {held}; expected the file that the actor wrote last"
            )
            raise RefusedError(Answer(DataLossError(why)))

    def _apply_report(self, session: ClientSession, report: ClientReport) -> None:
        life = session.caller.life
        session.report = report
        session.cancelled_calls.update(report.cancelled_calls)
        for number, payload in report.kept:
            self._awaited.arrive((life, number), payload)
        # It has sent all that it keeps. Only the enqueues that it will repeat can bring more.
        self._give_up_batches(life, except_calls=report.enqueues[1])
        # It neither holds the other leases nor waits for them: it has cancelled their dequeues, and
        # the cancellations died with the actor.
        known = {*report.held, *report.dequeues[1]}
        for number in self._lease_table.numbers_of(life):
            if number not in known:
                self._lease_table.give_back(life, number)
        self._notify_changed()

    def skip(self, caller: CallerId, what: str, number: int) -> None:
        """Record that a client has the answer of a call that it reported as unanswered."""
        with self._lock, suppress(RefusedError):
            self._session_of(caller).skip(what, number)

    def _give_up_batches(self, life: str, except_calls: Iterable[int] = ()) -> None:
        """Give up the batches of a producer, since no program can send them."""
        for producer, number in self._awaited.give_up(life, except_calls):
            self._journal.append("in", producer, number, [])
        self._notify_changed()

    def _notify_changed(self) -> None:
        changed, self._change_wakers = self._change_wakers, []
        for wake in changed:
            wake()

    async def _wait_until(self, is_due: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            woken = asyncio.Event()
            with self._lock:
                if is_due():
                    return
                self._change_wakers.append(partial(wake_in, loop, woken))
            await woken.wait()

    async def _copy_all_to_actor(self, lives: Iterable[str]) -> None:
        producers = set(lives)
        with self._lock:
            segments = [one for one in self._segments if one.producer in producers]
        for segment in segments:
            if (
                segment.payload.ref
                and not segment.is_lost
                and not await self._copy_to_actor(segment)
            ):
                segment.is_lost = True  # the consumer that dequeues it gets an error

    async def _copy_to_actor(self, segment: Segment) -> bool:
        """Copy a batch to the actor; return whether it still existed."""
        before = segment.payload
        try:
            payload = await copy_to_actor(before)
        except Exception as error:
            if not is_loss(error):
                raise
            return segment.payload is not before  # it has been sent again in the meantime
        with self._lock:
            # Otherwise the producer has sent the batch again while we waited.
            if segment.payload is before:
                segment.payload, segment.is_in_actor = payload, True
        return True

    # Callers.

    def _session_of(self, caller: CallerId, *, joins: bool = False) -> ClientSession:
        """Return the client of a caller, if it may call.

        Args:
            caller: the caller.
            joins: whether this is its report after a restart.

        Raises:
            RefusedError: it expects another kind of queue, was dismissed, or has to report first.
        """
        if caller.description != self._description:
            raise RefusedError(Answer(self._description_error(caller.description)))
        with self._lock:
            # Refuse before changing any state, since a refused caller may call again.
            session = self._sessions.find(caller.life)
            if session is not None:
                session.last_heard = monotonic()
                if session.dismissal:
                    raise RefusedError(Answer(self._ended_error(session)))
            if self._journal.starts and not (joins or (session and session.has_rejoined)):
                raise RefusedError(Answer(starts=self._journal.starts))
            if session is None:
                self._check_last_committed(caller)
                session = self._begin_life(caller)
            if joins:
                session.caller = caller  # which has its node
                self._journal.append("meet", caller.life, caller.client)
            return session

    def _description_error(self, description: Description) -> InvalidArgumentError:
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
        progress = self._lease_table.progress(caller.client)
        before = self._sessions.latest(caller.client)
        has = (
            self._lease_table.numbers_of(before.caller.life)
            if before and not before.dismissal
            else ()
        )
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
            hint = f"whose last lease has number {last}" if last >= 0 else "which had no lease"
            why = f"{what}, {hint}; expected the number of one of its leases, or None"
        else:
            error = WorkerDiedError
            kept = progress.committed
            why = (
                f"consumer '{caller.client}' was silent for more than {LEASE_SECONDS:.0f} s, or"
                " restarted later than that, so its leases"
                f"{f' after number {kept}' if kept >= 0 else ''} returned to the queue; but it"
                f" used them up to number {last_committed}"
            )
        session = self._sessions.refuse(caller, why, error)
        raise RefusedError(Answer(self._ended_error(session)))

    def _begin_life(self, caller: CallerId) -> ClientSession:
        """Start a new life of a client; uncommitted leases of its former life go back."""
        before = self._sessions.latest(caller.client)
        if before is not None and not before.dismissal:
            former = before.caller.life
            if caller.last_committed is not None:
                done = [
                    one
                    for one in self._lease_table.numbers_of(former)
                    if one <= caller.last_committed
                ]
                self._lease_table.commit(former, done)
            self._dismiss(
                before, f"consumer '{caller.client}' was started again, with a new handle"
            )
        self._lease_table.add_life(caller.life, caller.client)
        return self._sessions.add(caller)

    def _ended_error(self, session: ClientSession) -> Exception:
        if not session.dismissal:
            return StaleCallError("cancelled")  # the caller knows that it cancelled
        if session.refusal is InvalidArgumentError:
            return InvalidArgumentError(session.dismissal)
        return WorkerDiedError(
            f"{self._description.kind} '{self._name}' does not know this handle any more:"
            f" {session.dismissal}; make a new one"
        )

    def _dismiss(self, session: ClientSession, why: str) -> None:
        """Dismiss a client: its calls end, and its uncommitted leases go back."""
        life = session.caller.life
        session.dismiss(why)
        self._waits.end_client(life)
        self._give_up_batches(life)
        self._lease_table.remove_life(life)
        self._applied_task_dones.pop(life, None)
        self._journal.append("gone", life)
        self._draining.discard(life)
        # The producer's next life may make these batches again: consumers wait some time for it.
        for record in self._producer_records.values():
            if record.life == life:
                record.end()
        self._end_self_waits()

    def _end_self_waits(self) -> None:
        with self._lock:
            self._waits.end_self_waits()

    # Liveness.

    async def heartbeat(self, caller: CallerId, kept: Sequence[int] = ()) -> Answer:
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
                if self._sessions.find(caller.life) is None:
                    # Without a call, it has not replaced the former life of its client.
                    return Answer()
                self._session_of(caller)
        except RefusedError as refused:  # its next call reports the refusal
            return Answer(starts=refused.answer.starts)
        return Answer(freed=self._journal.droppable_of(caller.life, kept))

    def clients(self) -> list[str]:
        with self._lock:
            return self._sessions.alive()

    def leave(self, caller: CallerId) -> None:
        """End a client: its calls end, and its uncommitted leases go back.

        A named consumer keeps its leases for as long as if it had died, since it may be restarted
        and commit them.
        """
        with self._lock:
            if caller.client != caller.life:
                self._waits.end_calls_of(caller.life)
                return
            try:
                session: ClientSession | None = self._session_of(caller)
            except RefusedError:  # a client may leave without rejoining
                session = self._sessions.find(caller.life)
            if session is not None and not session.dismissal:
                self._dismiss(session, "its program has left")

    def dismiss(self, life: str) -> None:
        """Dismiss a client that is known to be dead, before its silence shows it."""
        with self._lock:
            session = self._sessions.find(life)
            if session is not None and not session.dismissal:
                self._dismiss(session, "its program has died")

    def expire(self, seconds: float, forgotten: float) -> None:
        """Dismiss clients that have been silent.

        Args:
            seconds: how long they have been silent.
            forgotten: seconds after which a dismissed client is forgotten altogether.
        """
        with self._lock:
            for session in self._sessions.silent(seconds):
                why = f"it was silent for {seconds:.0f} s, so it counted as dead"
                self._dismiss(session, why)
            for life in self._sessions.forget(forgotten):
                self._journal.append("forgotten", life)

    async def _watch(self) -> None:
        """Look for silent clients until the actor ends."""
        while True:
            await asyncio.sleep(LEASE_SECONDS / 6)
            self.expire(LEASE_SECONDS, _FORGOTTEN_SECONDS)
            self.give_up_requested()

    def give_up_requested(self) -> None:
        """Give up the requested batches of producers that have not restarted for long."""
        with self._lock:
            given_up = [record.give_up() for record in self._producer_records.values()]
            if any(given_up):
                self._notify_changed()


async def copy_to_actor(payload: Payload) -> Payload:
    import ray

    columns = payload.columns if payload.columns is not None else await payload.ref[0]
    return Payload(None, (ray.put(columns),))


def wake_in(loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(woken.set)


def closing_failure() -> RuntimeError:
    """Return what stands for the failure that closed the queue, which its users get as a message.

    The queue here must know that there was one: then it lets no `join` end well.
    """
    return RuntimeError("a failure has closed the queue")
