"""The actor that holds a queue: a local queue of handles, its leases, and its numbered calls.

It is a detached actor with a name; any program that knows the name can use the queue. Three groups
of calls have an event loop and a thread each, so a thousand producers that wait for room do not
block consumers. The local queue supports several event loops.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from operator import attrgetter
from time import monotonic
from typing import Any, Final

import aioqueue
from aioqueue.core.attempts import GRANTED, PENDING, WITHDRAWN, Attempt, PutMany, Take
from aioqueue.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    QueueClosedError,
    WorkerDiedError,
    counted,
)
from aioqueue.ray.actor_sessions import (
    ActorSessions,
    RefusedError,
    closing_failure,
    copy_to_actor,
    wake_in,
)
from aioqueue.ray.client_registry import CallerId, ClientSession
from aioqueue.ray.idempotent_calls import StaleCallError
from aioqueue.ray.lease_table import Lease
from aioqueue.ray.ledger import add_applied_call, pairs_of
from aioqueue.ray.messages import SMALL, Answer
from aioqueue.ray.replayable_producers import ProducerBatch, ProducerRecord
from aioqueue.ray.segments import Payload, RowHandle, Segment, runs_of
from aioqueue.ray.waits import Call, Wait

_IS_AWAITED: Final = attrgetter("is_awaited")


class QueueActor(ActorSessions):
    """The actor of one queue; see `ActorSessions` for the arguments."""

    def agree(self, caller: CallerId) -> Answer:
        """Check that the caller describes the queue as it is, and has a valid identity.

        Returns:
            The number of the caller's first lease; numbers of its former lives are not reused.
        """
        try:
            with self._lock:
                self._session_of(caller)
                return Answer(rows=self._lease_table.progress(caller.client).following)
        except RefusedError as refused:
            return refused.answer

    # Enqueues.

    async def enqueue(
        self,
        caller: CallerId,
        number: int,
        known: int,
        payload: Payload,
        rows: int,
        row_bytes: int,
        keys: list[int] | None,
        owned: bool,
        entry: ProducerBatch | None = None,
    ) -> Answer:
        """Put the rows of a batch in, exactly once, and in the order of the call numbers.

        With an entry, the batch belongs to a replayable producer, and goes in exactly once over all
        lives of that producer. The call ends early if another batch of the producer is needed
        first; the rows that are in stay in.
        """

        async def put(session: ClientSession, release_turn: Callable[[], None]) -> Answer:
            life = caller.life
            before = self._journal.answered(life, number)
            if before is not None:  # a repeated call, whose first answer was lost
                return Answer(rows=before, freed=self._journal.freed(life))
            if keys is not None and len(keys) != rows:
                raise ValueError(f"keys: got {len(keys)} for {counted(rows, 'row')}")
            # Copy without the lock: this waits for the object store. If the client is dismissed in
            # the meantime, or a lost batch is needed first, `_run_attempt` finds that under the
            # lock.
            stored = payload
            if (owned or life in self._draining) and rows * row_bytes > SMALL:
                stored = await copy_to_actor(payload)
            is_in_actor = stored is not payload or payload.columns is not None
            with self._lock:
                is_new, segment, known_rows = self._register_batch(
                    *(entry, life, number, stored, rows, is_in_actor)
                )
            # Another life of the producer has put in the rows, or this one has, in an earlier call:
            # this call brings only the elements. Nothing will release its own number, so do it now.
            if not is_new:
                return Answer(rows=rows, freed=[number], requested=self._missing(entry))
            # Before a row can be leased. If the actor died between the lease and this record, the
            # repeated enqueue would put in the leased rows once more.
            self._journal.append("put", life, number, known, rows, row_bytes, keys)
            with self._lock:
                # Consumers may have got some rows before the actor died, of an enqueue that had not
                # ended by then. The repeated call puts in only the others.
                delivered = self._awaited.partial.pop((life, number), set())
                if segment is None:
                    segment = self._segment(life, number, stored, rows, row_bytes, delivered)
                    segment.is_in_actor = is_in_actor
                if entry is not None:
                    self._producer_records[entry[0]].enter(entry[1], segment)
                self._notify_changed()
            remaining: Sequence[int] = range(rows)
            if delivered or known_rows:
                remaining = [
                    row for row in remaining if row not in delivered and row not in known_rows
                ]
            handles: list[Any] = list(map(RowHandle, repeat(segment), remaining))
            if keys is not None:
                handles = [
                    (keys[row], handle) for row, handle in zip(remaining, handles, strict=True)
                ]
            attempt = PutMany(*self._lease_table.entries(handles))
            is_postponed = False
            try:
                await self._run_attempt(
                    session, (life, "enqueue", number), attempt, release_turn=release_turn
                )
            except StaleCallError:
                # `_request_again` has cancelled the call before it had its place: a batch that
                # consumers wait for goes first. The producer repeats this one after it.
                is_postponed = entry is not None and not session.dismissal
                if not is_postponed:
                    raise
            finally:
                # Also after a failure or a cancellation: consumers may have the rows that are in.
                # This record ends the enqueue, so its other rows do not come after a restart.
                inside: Sequence[int] = remaining[: attempt.done]
                if delivered:
                    inside = sorted(delivered.union(inside))
                self._journal.append("in", life, number, pairs_of(inside))
                if entry is not None:
                    self._record_rows(entry[0], inside, rows)
            await self._journal.flushed()
            freed = self._journal.freed(life)
            if entry is not None and not session.dismissal:
                # Withdrawn by `_request_again` while it waited for room; or by the caller, which
                # only reads the number of rows from this answer.
                is_postponed = is_postponed or attempt.state is WITHDRAWN
            if is_postponed:
                rows_inside = len(known_rows.union(inside))
                return Answer(rows=rows_inside, freed=freed, requested=self._missing(entry))
            if attempt.state is WITHDRAWN:
                return Answer(self._ended_error(session), len(inside), freed=freed)
            # A producer counts whole batches, with the rows that went in in its earlier lives.
            done = rows if entry is not None and attempt.error is None else len(inside)
            requested = self._missing(entry)
            return Answer(attempt.error, done, cause=self._cause, freed=freed, requested=requested)

        return await self._call_once(caller, "enqueue", number, known, put)

    def _segment(
        self,
        life: str,
        number: int,
        payload: Payload,
        rows: int,
        row_bytes: int,
        delivered: set[int],
    ) -> Segment:
        """Return the segment of a batch. Some rows may have been delivered before a restart."""
        key = life, number
        segment = self._awaited.arrive(key, payload)
        if segment is None and delivered:  # the producer sent it when it rejoined
            segment = next(
                (one for one in self._segments if (one.producer, one.number) == key), None
            )
        if segment is None:
            segment = Segment(life, number, payload, rows, row_bytes)
            self._segments.add(segment)
        return segment

    # Replayable producers.

    async def begin_filling(self, caller: CallerId, producer: str) -> Answer:
        """Make a handle the only one that fills under a producer's name.

        Returns:
            The number of the first batch that is not in, and the batches to make again.
        """
        try:
            with self._lock:
                session = self._session_of(caller)
                record = self._producer_records.setdefault(producer, ProducerRecord())
                before = self._sessions.find(record.life)
                if before is not None and before is not session and not before.dismissal:
                    why = f"producer '{producer}' was started again, with a new handle"
                    self._dismiss(before, why)
            # The dismissed handle's enqueue is withdrawn, and ends in its own task. Only then are
            # the rows counted that it has put in.
            await self._wait_until(lambda: record.call is None)
            with self._lock:
                self._session_of(caller)  # raises if another handle has taken over in the meantime
                record.begin(caller.life)
                return Answer(rows=record.next, requested=record.missing())
        except RefusedError as refused:
            return refused.answer

    async def end_filling(self, caller: CallerId, producer: str) -> Answer:
        """End a fill; the actor takes over the batches that are left.

        Returns:
            The batches that must be made again first.
        """
        try:
            with self._lock:
                self._session_of(caller)
                record = self._producer_records.setdefault(producer, ProducerRecord())
                segments = record.outside_actor()
            for segment in segments:
                # The object has gone with its owner: request the batch while this producer is still
                # there to make it again.
                if not await self._copy_to_actor(segment):
                    with self._lock:
                        record.request_again(segment)
            return Answer(requested=self._missing((producer, 0)))
        except RefusedError as refused:
            return refused.answer
        except Exception as error:  # such as a full object store
            return Answer(error)

    def _register_batch(
        self,
        entry: ProducerBatch | None,
        life: str,
        number: int,
        payload: Payload,
        rows: int,
        is_in_actor: bool,
    ) -> tuple[bool, Segment | None, set[int]]:
        """Register a batch of a replayable producer.

        Returns whether its rows are to be put in, its segment if there is one, and the rows that
        are already in.
        """
        if entry is None:
            return True, None, set()
        producer, place = entry
        record = self._producer_records.setdefault(producer, ProducerRecord())
        if not record.life:  # the actor has restarted since the fill began
            record.begin(life)
        if record.life != life or record.call is not None or place > record.next:
            raise InvalidArgumentError(
                f"producer: got batch {place} of '{producer}' while another call puts in its batch"
                f" {record.next}; expected only one fill() at a time for each producer"
            )
        before = record.rows_of(place)
        if before is not None and before != rows:
            raise InvalidArgumentError(
                f"make_batch: got {counted(rows, 'row')} for batch {place} of producer"
                f" '{producer}', which had {before} before; expected the same batch each time"
            )
        # An earlier batch only brings its elements again; the next one puts in rows.
        segment = record.arrive(place)
        if segment is not None:
            segment.payload, segment.is_in_actor, segment.is_awaited = payload, is_in_actor, False
            self._notify_changed()
        if place == record.next:
            record.call = number
        return place == record.next, segment, set(record.inside)

    def _record_rows(self, producer: str, inside: Sequence[int], rows: int) -> None:
        with self._lock:
            record = self._producer_records[producer]
            record.note_rows(inside, rows)
            record.call = None
            inside_now = pairs_of(sorted(record.inside))
            self._journal.append("fill", producer, record.next, inside_now, record.rows)
            self._notify_changed()

    def _missing(self, entry: ProducerBatch | None) -> Sequence[int]:
        if entry is None:
            return ()
        with self._lock:
            return self._producer_records[entry[0]].missing()

    def _request_again(self, segment: Segment) -> bool:
        """Ask a producer for a lost batch; return whether it can make it again."""
        for record in self._producer_records.values():
            if record.request_again(segment):
                session = self._sessions.find(record.life)
                if record.call is not None and session is not None and not session.dismissal:
                    # The producer may wait for room, and this batch has to come first.
                    wait = self._waits.find((record.life, "enqueue", record.call))
                    if wait is not None:
                        self._waits.end(wait)
                    else:  # it has no place in the queue yet: `_run_attempt` will refuse it
                        session.cancelled_calls.add(("enqueue", record.call))
                return True
        return False

    # Dequeues.

    async def dequeue(
        self,
        caller: CallerId,
        number: int,
        known: int,
        n: int,
        up_to: bool,
        max_wait: float | None,
        used: list[int],
    ) -> Answer:
        """Lease the next elements to a consumer, after committing what it has used."""

        async def take(session: ClientSession, release_turn: Callable[[], None]) -> Answer:
            # A repeated call commits again, which changes nothing.
            self.commit(caller.life, used)
            life = caller.life
            with self._lock:
                takes = self._lease_table.takes_of(life, number)  # of a call whose answer was lost
                lease = None if takes else self._lease_table.open_lease(life, number)
            try:
                if lease is None:
                    # Leased before the actor died. It takes no place in the queue, so the next
                    # call need not wait for its elements.
                    release_turn()
                    handles = [one for take in takes for one in await self._elements(take)]
                else:
                    handles = await self._lease_rows(
                        session, number, lease, n, up_to, max_wait, release_turn
                    )
            except BaseException as error:
                # Nobody has got any of it, so the rows return to their places.
                with self._lock:
                    self._lease_table.give_back(life, number)
                if not isinstance(error, Exception):
                    raise
                if used:  # the caller relies on this commit, even if the actor dies
                    await self._journal.flushed()
                return Answer(error, cause=self._cause)
            with self._lock:
                # A cancellation or a dismissal may have given it back while its elements were on
                # their way. From here on, only the consumer or its death gives it back.
                if not self._lease_table.mark_delivered(life, number):
                    return Answer(self._ended_error(session))
            # The consumer may commit the lease to the actor that comes after this one.
            await self._journal.flushed()
            return Answer(runs=[(segment.payload, rows) for segment, rows in runs_of(handles)])

        return await self._call_once(caller, "dequeue", number, known, take)

    async def _lease_rows(
        self,
        session: ClientSession,
        number: int,
        lease: Lease,
        n: int,
        up_to: bool,
        max_wait: float | None,
        release_turn: Callable[[], None],
    ) -> list[RowHandle]:
        """Return the next elements. Lost ones are replaced by later ones."""
        call = (session.caller.life, "dequeue", number)
        handles: list[RowHandle] = []
        while not handles or (len(handles) < n and not up_to):
            take = Take(n - len(handles), up_to=up_to, leased=True, expired=max_wait == 0)
            await self._run_attempt(
                session, call, take, max_wait, lease=lease, release_turn=release_turn
            )
            if take.state is not GRANTED:
                raise self._ended_error(session) if take.error is None else take.error
            take.waits = False  # it has run on: from here the rows are on lease
            found = await self._elements(take)
            with self._lock:
                # All of them are lost, and another consumer got the error: try the next ones.
                if not found and take.state is GRANTED:
                    lease.takes.remove(take)
                    self._lease_table.commit_lost(take)
            handles += found
        return handles

    async def _elements(self, take: Take) -> list[RowHandle]:
        """Return what a dequeue was granted, once the elements have arrived.

        Raises:
            WorkerDiedError: some of them are lost, and no consumer has been informed yet.
        """

        handles: list[RowHandle] = []
        segments: set[Segment] = set()

        def is_settled() -> bool:
            if not handles and take.state is GRANTED:  # a granted dequeue does not change any more
                handles.extend(self._lease_table.all_handles_of(take))
                segments.update(handle.segment for handle in handles)
            return take.state is not GRANTED or not any(map(_IS_AWAITED, segments))

        await self._wait_until(is_settled)
        with self._lock:
            if take.state is not GRANTED:  # also between `is_settled` and here
                raise StaleCallError("given back")
            lost = [one for one in segments if one.is_lost]
            # The first consumer of a lost batch gets the error, and gives its other rows back.
            # Later ones get the rows that are left, without an error.
            unreported = [one for one in lost if not one.is_reported]
            if unreported:
                raise self._loss_error(unreported)
            return self._lease_table.handles_of(take) if lost else handles

    def _loss_error(self, segments: Sequence[Segment]) -> WorkerDiedError:
        """Return the error for lost batches, and record that a consumer was informed."""
        for segment in segments:
            segment.is_lost = segment.is_reported = True
            self._journal.append("lost", segment.producer, segment.number)
        names = ", ".join(
            f"call {segment.number} of producer {segment.producer}" for segment in segments
        )
        return WorkerDiedError(
            f"{self._description.kind} '{self._name}': elements are lost, because the program that"
            f" put them in has died: {names or 'a batch that was found lost before'}; pass"
            " owned=True to keep elements with the queue"
        )

    # Calls.

    async def _call_once(
        self,
        caller: CallerId,
        method: str,
        number: int,
        known: int,
        make: Callable[[ClientSession, Callable[[], None]], Awaitable[Answer]],
    ) -> Answer:
        """Make a call exactly once, in its turn; a failure counts as an answer."""
        try:
            with self._lock:
                session = self._session_of(caller)
                calls = session.calls_of(method, known)
            answer: Answer = await calls.call_once(number, known, partial(make, session))
            return answer
        except RefusedError as refused:
            return refused.answer
        except StaleCallError:
            return Answer(self._ended_error(session))
        except Exception as error:  # such as a full object store
            return Answer(error)

    async def _run_attempt(
        self,
        session: ClientSession,
        call: Call,
        attempt: Attempt,
        max_wait: float | None = None,
        *,
        lease: Lease | None = None,
        release_turn: Callable[[], None],
    ) -> None:
        """Start an attempt, and wait until it ends.

        Args:
            session: the client.
            call: the call.
            attempt: the attempt.
            max_wait: seconds after which it takes what is there.
            lease: the lease to enter it in.
            release_turn: called when it has its place in the queue.
        """
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        _, *what = call
        with self._lock:
            # A cancellation may overtake its call.
            if session.dismissal or tuple(what) in session.cancelled_calls:
                raise StaleCallError("cancelled")
            wait = self._waits.begin(call, attempt, partial(wake_in, loop, woken))
            if lease is not None and isinstance(attempt, Take):
                # Under the same lock as its begin: it may be granted by now, and a cancellation
                # finds granted rows only by the lease.
                lease.takes.append(attempt)
        timer = None
        if max_wait and attempt.state is PENDING:
            timer = loop.call_later(max_wait, self._expire, attempt)
        # The queue may be closed already, and this consumer may hold all that could come back.
        self._end_self_waits()
        # The attempt has its place. So the caller's next call may take the place behind it, and
        # must not wait until this one is granted.
        release_turn()
        await self._wait_for_attempt(call, wait, woken, timer)

    def _expire(self, attempt: Attempt) -> None:
        with self._lock:
            self._lease_table.expire(attempt)

    async def _wait_for_attempt(
        self, call: Call, wait: Wait, woken: asyncio.Event, timer: asyncio.TimerHandle | None
    ) -> None:
        waits = wait.attempt.state is PENDING
        try:
            while wait.attempt.state is PENDING:
                await woken.wait()
                woken.clear()
        except BaseException:
            # The task was cancelled. Rows that were granted before we woke go back.
            with self._lock:
                self._lease_table.withdraw(wait.attempt)
            raise
        finally:
            with self._lock:  # also makes the reason of its end visible
                self._waits.remove(call)
                self._lease_table.count_wait(
                    wait.attempt, monotonic() - wait.began if waits else 0.0
                )
            if timer is not None:
                timer.cancel()
        if wait.error is not None:
            raise wait.error

    # Cancellation and leases.

    def cancel(self, what: str, caller: CallerId, number: int) -> None:
        """End a call that its caller has abandoned; what a dequeue got goes back.

        It may arrive before the call itself.
        """
        life = caller.life
        with self._lock, suppress(RefusedError):
            session = self._session_of(caller)
            calls = session.calls.get(what)
            # Not for a call with a result: nothing would remove the entry again.
            if calls is None or not calls.has_ended(number):
                session.cancelled_calls.add((what, number))  # the call will end before it waits
            wait = self._waits.find((life, what, number))
            if wait is not None:
                self._waits.end(wait)
            if what == "dequeue":
                # Even if it was answered: the caller drops that answer.
                self._lease_table.give_back(life, number)
                self._notify_changed()

    async def use(self, life: str, numbers: list[int]) -> Answer:
        """Commit durably, so that it survives the death of the actor."""
        self.commit(life, numbers)
        try:
            await self._journal.flushed()
        except WorkerDiedError as error:
            return Answer(error)
        return Answer()

    def commit(self, life: str, numbers: list[int]) -> None:
        with self._lock:
            self._lease_table.commit(life, numbers)
            self._notify_changed()
        self._end_self_waits()

    async def task_done(self, caller: CallerId, number: int, known: int, n: int) -> Answer:
        """Note, once, that a consumer is done with n of the elements that it got.

        Args:
            caller: the consumer.
            number: number of this call among those of its kind.
            known: the caller has the answers of all calls below this number.
            n: how many elements.
        """
        life = caller.life
        try:
            with self._lock:
                self._session_of(caller)
                below, numbers = self._applied_task_dones.get(life, (0, set()))
                if number >= below and number not in numbers:  # else it is a copy
                    possible = self._lease_table.task_done(life, n)
                    if possible is not None:  # nothing has changed, so it is not recorded
                        return Answer(self._too_many_error(n, possible))
                    self._applied_task_dones[life] = add_applied_call(below, numbers, number, known)
                    self._journal.append("done", life, number, known, n)
            await self._journal.flushed()
        except RefusedError as refused:
            return refused.answer
        except WorkerDiedError as error:
            return Answer(error)
        return Answer()

    def _too_many_error(self, n: int, possible: int) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"task_done: got n={n} for {self._description.kind} '{self._name}', from a handle that"
            f" has {counted(possible, 'unfinished element')}; expected one call for each element"
            " that came out of it"
        )

    def lost(self, life: str, number: int, refs: list[Any]) -> Answer:
        """Record that rows of a lease are lost, since their producer has died.

        The other rows of the lease go back; the lost ones are not delivered again.
        """
        lost_refs = set(refs)
        with self._lock:
            handles = [
                handle
                for take in self._lease_table.takes_of(life, number)
                for handle in self._lease_table.all_handles_of(take)
            ]
            segments = {handle.segment for handle in handles}
            found = [one for one in segments if not lost_refs.isdisjoint(one.payload.ref)]
            # All of it: the next dequeue skips the rows of segments that are lost.
            self._lease_table.give_back(life, number)
            can_be_made_again = [one for one in found if self._request_again(one)]
            found = [one for one in found if one not in can_be_made_again]
            self._notify_changed()
            if can_be_made_again and not found:  # the repeated dequeue waits for their producer
                return Answer(must_retry=True)
            if segments and not found and not any(one.is_lost for one in segments):
                return Answer(must_retry=True)  # it was copied or sent again in the meantime
            return Answer(self._loss_error([one for one in found if not one.is_reported]))

    # The whole queue.

    def close(self, cancel_pending_enqueues: bool, cause: bytes | None) -> None:
        with self._lock:
            if self._cause is None:
                self._cause = cause
            encoded = None if cause is None else base64.b64encode(cause).decode()
            self._journal.append("close", encoded)
            failure = None if cause is None else closing_failure()
            self._queue.close(cancel_pending_enqueues=cancel_pending_enqueues, cause=failure)
        self._end_self_waits()

    async def close_for_good(self, cancel_pending_enqueues: bool, cause: bytes | None) -> Answer:
        """Like `close`, and durable: it survives the death of the actor."""
        self.close(cancel_pending_enqueues, cause)
        try:
            await self._journal.flushed()
        except WorkerDiedError as error:
            return Answer(error)
        return Answer()

    async def wait_closed(self) -> None:
        await self._queue.wait_closed()

    async def join(self) -> Answer:
        """Wait until every element is done with."""
        try:
            await self._queue.join()
        except QueueClosedError as error:
            return Answer(error, cause=self._cause)
        return Answer()

    async def drain(self, caller: CallerId, node: str | None, seconds: float | None) -> Answer:
        """Release what belongs to a client, or to all clients on a node, and wait for that.

        What they have enqueued is copied to the actor, now and from now on. For what they have
        dequeued, it waits until they commit it or lose it.
        """
        try:
            with self._lock:
                session = self._session_of(caller)
                sessions = [session] if node is None else self._sessions.on(node)
                lives = {session.caller.life for session in sessions}
                if node != self._node or node is None:
                    # Later batches are copied on arrival: they must not wait for another drain.
                    self._draining.update(lives)
            if node is not None and node == self._node:
                self._check_recoverable(node)
            else:
                await self._copy_all_to_actor(lives)
            async with asyncio.timeout(seconds):
                await self._wait_until(partial(self._is_drained, lives, node))
        except RefusedError as refused:
            return refused.answer
        except TimeoutError:
            return Answer(self._not_drained(lives, node))
        except Exception as error:  # such as a full object store
            return Answer(error)
        return Answer()

    def _check_recoverable(self, node: str) -> None:
        if not self._journal.starts:
            raise InvalidArgumentError(
                f"node: got {node!r}, the node of the actor of queue '{self._name}', which has no"
                " journal; expected another node, or a queue that you made with journal=..."
            )

    def _is_drained(self, lives: set[str], node: str | None) -> bool:
        return not (self._lease_table.count_of(lives) or self._only_on_node(lives, node))

    def _only_on_node(self, lives: set[str], node: str | None) -> list[Segment]:
        """Return the batches that would be lost with the node of the actor."""
        if node is None or node != self._node:
            return []
        staying = set(self._sessions.alive()) - lives
        return [one for one in self._segments if one.producer not in staying and not one.is_lost]

    def _not_drained(self, lives: set[str], node: str | None) -> DeadlineExceededError:
        with self._lock:
            leases, batches = (
                self._lease_table.count_of(lives),
                len(self._only_on_node(lives, node)),
            )
        left = [counted(leases, "lease")] if leases else []
        left += [f"{batches} of its batches that exist nowhere else"] if batches else []
        return DeadlineExceededError(
            f"{self._description.kind} '{self._name}' was not drained in time: there"
            f" {'are' if batches or leases > 1 else 'is'} still {' and '.join(left) or 'nothing'}"
        )

    def statistics(self) -> aioqueue.Statistics:
        found: aioqueue.Statistics = self._queue.statistics()
        return found

    def end(self) -> None:
        """Prepare for the end of the actor, and leave nothing behind."""
        self._journal.end(remove=True)

    def state(self) -> str:
        return str(self._machine.state.value)

    def leases(self) -> int:
        with self._lock:
            return self._lease_table.count()
