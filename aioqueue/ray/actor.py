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
from aioqueue.ray.clients import CallerId, ClientSession
from aioqueue.ray.handles import Handle, Payload, Segment, runs_of
from aioqueue.ray.idempotent_calls import StaleCallError
from aioqueue.ray.leases import DequeueWaiter, Lease
from aioqueue.ray.ledger import pairs_of, said
from aioqueue.ray.messages import SMALL, Answer
from aioqueue.ray.replayable_producers import Entry, ProducerRecord
from aioqueue.ray.sessions import (
    ActorSessions,
    Call,
    RefusedError,
    Wait,
    copied_here,
    told_failure,
    wake_in,
)

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
                self._party(caller)
                return Answer(rows=self._book.progress(caller.client).following)
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
        entry: Entry | None = None,
    ) -> Answer:
        """Put the rows of a batch in, exactly once, and in the order of the call numbers.

        With an entry, the batch belongs to a replayable producer, and goes in exactly once over all
        lives of that producer. The call ends early if another batch of the producer is needed
        first; the rows that are in stay in.
        """

        async def put(party: ClientSession, go_on: Callable[[], None]) -> Answer:
            life = caller.life
            before = self._journal.answered(life, number)
            if before is not None:  # a repeated call, whose first answer was lost
                return Answer(rows=before, freed=self._journal.freed(life))
            if keys is not None and len(keys) != rows:
                raise ValueError(f"keys: got {len(keys)} for {counted(rows, 'row')}")
            there = payload
            if (owned or life in self._leaving) and rows * row_bytes > SMALL:
                there = await copied_here(payload)
            is_here = there is not payload or payload.columns is not None
            with self._lock:
                is_new, segment, known_rows = self._entered(
                    *(entry, life, number, there, rows, is_here)
                )
            if not is_new:
                return Answer(rows=rows, freed=[number], wanted=self._missing(entry))
            self._journal.note("put", life, number, known, rows, row_bytes, keys)
            with self._lock:
                given = self._awaited.partial.pop((life, number), set())
                if segment is None:
                    segment = self._segment(life, number, there, rows, row_bytes, given)
                    segment.is_here = is_here
                if entry is not None:
                    self._fillings[entry[0]].enter(entry[1], segment)
                self._tell_of_changes()
            to_come: Sequence[int] = range(rows)
            if given or known_rows:
                to_come = [row for row in to_come if row not in given and row not in known_rows]
            handles: list[Any] = list(map(Handle, repeat(segment), to_come))
            if keys is not None:
                handles = [
                    (keys[row], handle) for row, handle in zip(to_come, handles, strict=True)
                ]
            attempt = PutMany(*self._book.entries(handles))
            is_put_off = False
            try:
                await self._begin(party, (life, "enqueue", number), attempt, go_on=go_on)
            except StaleCallError:
                is_put_off = entry is not None and not party.gone
                if not is_put_off:
                    raise
            finally:
                inside: Sequence[int] = to_come[: attempt.done]
                if given:
                    inside = sorted(given.union(inside))
                self._journal.note("in", life, number, pairs_of(inside))
                if entry is not None:
                    self._note_rows(entry[0], inside, rows)
            await self._journal.safe()
            freed = self._journal.freed(life)
            if entry is not None and not party.gone:
                is_put_off = is_put_off or attempt.state is WITHDRAWN
            if is_put_off:
                there_are = len(known_rows.union(inside))
                return Answer(rows=there_are, freed=freed, wanted=self._missing(entry))
            if attempt.state is WITHDRAWN:
                return Answer(self._why_ended(party), len(inside), freed=freed)
            done = rows if entry is not None and attempt.error is None else len(inside)
            wanted = self._missing(entry)
            return Answer(attempt.error, done, cause=self._cause, freed=freed, wanted=wanted)

        return await self._once(caller, "enqueue", number, known, put)

    def _segment(
        self,
        life: str,
        number: int,
        payload: Payload,
        rows: int,
        row_bytes: int,
        given: set[int],
    ) -> Segment:
        """Return the segment of a batch. Some rows may have been delivered before a restart."""
        key = life, number
        segment = self._awaited.come(key, payload)
        if segment is None and given:  # the producer sent it when it rejoined
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
                party = self._party(caller)
                filling = self._fillings.setdefault(producer, ProducerRecord())
                before = self._parties.find(filling.life)
                if before is not None and before is not party and not before.gone:
                    why = f"producer '{producer}' was started again, with a new handle"
                    self._dismiss(before, why)
            await self._change(lambda: filling.call is None)
            with self._lock:
                self._party(caller)  # raises if another handle has taken over in the meantime
                filling.begin(caller.life)
                return Answer(rows=filling.next, wanted=filling.missing())
        except RefusedError as refused:
            return refused.answer

    async def end_filling(self, caller: CallerId, producer: str) -> Answer:
        """End a fill; the actor takes over the batches that are left.

        Returns:
            The batches that must be made again first.
        """
        try:
            with self._lock:
                self._party(caller)
                filling = self._fillings.setdefault(producer, ProducerRecord())
                segments = filling.elsewhere()
            for segment in segments:
                if not await self._copied_here(segment):
                    with self._lock:
                        filling.want(segment)
            return Answer(wanted=self._missing((producer, 0)))
        except RefusedError as refused:
            return refused.answer
        except Exception as error:  # such as a full object store
            return Answer(error)

    def _entered(
        self,
        entry: Entry | None,
        life: str,
        number: int,
        payload: Payload,
        rows: int,
        is_here: bool,
    ) -> tuple[bool, Segment | None, set[int]]:
        """Register a batch of a replayable producer.

        Returns whether its rows are to be put in, its segment if there is one, and the rows that
        are already in.
        """
        if entry is None:
            return True, None, set()
        producer, place = entry
        filling = self._fillings.setdefault(producer, ProducerRecord())
        if not filling.life:  # the actor has restarted since the fill began
            filling.begin(life)
        if filling.life != life or filling.call is not None or place > filling.next:
            raise InvalidArgumentError(
                f"producer: got batch {place} of '{producer}' while another call puts in its batch"
                f" {filling.next}; expected only one fill() at a time for each producer"
            )
        before = filling.rows_of(place)
        if before is not None and before != rows:
            raise InvalidArgumentError(
                f"make_batch: got {counted(rows, 'row')} for batch {place} of producer"
                f" '{producer}', which had {before} before; expected the same batch each time"
            )
        segment = filling.come(place)
        if segment is not None:
            segment.payload, segment.is_here, segment.is_awaited = payload, is_here, False
            self._tell_of_changes()
        if place == filling.next:
            filling.call = number
        return place == filling.next, segment, set(filling.inside)

    def _note_rows(self, producer: str, inside: Sequence[int], rows: int) -> None:
        with self._lock:
            filling = self._fillings[producer]
            filling.note_rows(inside, rows)
            filling.call = None
            inside_now = pairs_of(sorted(filling.inside))
            self._journal.note("fill", producer, filling.next, inside_now, filling.rows)
            self._tell_of_changes()

    def _missing(self, entry: Entry | None) -> Sequence[int]:
        if entry is None:
            return ()
        with self._lock:
            return self._fillings[entry[0]].missing()

    def _want(self, segment: Segment) -> bool:
        """Ask a producer for a lost batch; return whether it can make it again."""
        for filling in self._fillings.values():
            if filling.want(segment):
                party = self._parties.find(filling.life)
                if filling.call is not None and party is not None and not party.gone:
                    # The producer may wait for room, and this batch has to come first.
                    wait = self._waits.get((filling.life, "enqueue", filling.call))
                    if wait is not None:
                        self._end_wait(wait)
                    else:
                        party.unwanted.add(("enqueue", filling.call))
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

        async def take(party: ClientSession, go_on: Callable[[], None]) -> Answer:
            self.commit(caller.life, used)
            life = caller.life
            with self._lock:
                takes = self._book.takes_of(life, number)  # of a call whose answer was lost
                lease = None if takes else self._book.open(life, number)
            try:
                if lease is None:
                    go_on()
                    handles = [one for take in takes for one in await self._elements(take)]
                else:
                    handles = await self._leased(party, number, lease, n, up_to, max_wait, go_on)
            except BaseException as error:
                with self._lock:
                    self._book.give_back(life, number)
                if not isinstance(error, Exception):
                    raise
                if used:  # the caller relies on this commit, even if the actor dies
                    await self._journal.safe()
                return Answer(error, cause=self._cause)
            with self._lock:
                if not self._book.hand_over(life, number):
                    return Answer(self._why_ended(party))
            await self._journal.safe()
            return Answer(runs=[(segment.payload, rows) for segment, rows in runs_of(handles)])

        return await self._once(caller, "dequeue", number, known, take)

    async def _leased(
        self,
        party: ClientSession,
        number: int,
        lease: Lease,
        n: int,
        up_to: bool,
        max_wait: float | None,
        go_on: Callable[[], None],
    ) -> list[Handle]:
        """Return the next elements. Lost ones are replaced by others from the end of the line."""
        call = (party.caller.life, "dequeue", number)
        handles: list[Handle] = []
        while not handles or (len(handles) < n and not up_to):
            take = Take(n - len(handles), up_to=up_to, leased=True, expired=max_wait == 0)
            await self._begin(party, call, take, max_wait, lease=lease, go_on=go_on)
            if take.state is not GRANTED:
                raise self._why_ended(party) if take.error is None else take.error
            take.waits = False  # it has run on: from here the rows are on lease
            found = await self._elements(take)
            with self._lock:
                if (
                    not found and take.state is GRANTED
                ):  # all of them are lost, and the loss was reported
                    lease.takes.remove(take)
                    self._book.lose(take)
            handles += found
        return handles

    async def _elements(self, take: Take) -> list[Handle]:
        """Return what a dequeue was granted, once the elements have arrived.

        Raises:
            WorkerDiedError: some of them are lost, and no consumer has been informed yet.
        """

        handles: list[Handle] = []
        segments: set[Segment] = set()

        def is_settled() -> bool:
            if not handles and take.state is GRANTED:  # a granted dequeue does not change any more
                handles.extend(self._book.all_handles_of(take))
                segments.update(handle.segment for handle in handles)
            return take.state is not GRANTED or not any(map(_IS_AWAITED, segments))

        await self._change(is_settled)
        with self._lock:
            if take.state is not GRANTED:
                raise StaleCallError("given back")
            lost = [one for one in segments if one.is_lost]
            told_anew = [one for one in lost if not one.is_told]
            if told_anew:
                raise self._loss(told_anew)
            return self._book.handles_of(take) if lost else handles

    def _loss(self, segments: Sequence[Segment]) -> WorkerDiedError:
        """Return the error for lost batches, and record that a consumer was informed."""
        for segment in segments:
            segment.is_lost = segment.is_told = True
            self._journal.note("lost", segment.producer, segment.number)
        names = ", ".join(
            f"call {segment.number} of producer {segment.producer}" for segment in segments
        )
        return WorkerDiedError(
            f"{self._description.kind} '{self._name}': elements are lost, because the program that"
            f" put them in has died: {names or 'a batch that was found lost before'}; pass"
            " owned=True to keep elements with the queue"
        )

    # Calls.

    async def _once(
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
                party = self._party(caller)
                turns = party.turns_of(method, known)
            answer: Answer = await turns.once(number, known, partial(make, party))
            return answer
        except RefusedError as refused:
            return refused.answer
        except StaleCallError:
            return Answer(self._why_ended(party))
        except Exception as error:  # such as a full object store
            return Answer(error)

    async def _begin(
        self,
        party: ClientSession,
        call: Call,
        attempt: Attempt,
        max_wait: float | None = None,
        *,
        lease: Lease | None = None,
        go_on: Callable[[], None],
    ) -> None:
        """Start an attempt, and wait until it ends.

        Args:
            party: the client.
            call: the call.
            attempt: the attempt.
            max_wait: seconds after which it takes what is there.
            lease: the lease to enter it in.
            go_on: called when it has its place in the queue.
        """
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        wait = Wait(attempt, DequeueWaiter(partial(wake_in, loop, woken)))
        _, *what = call
        with self._lock:
            if party.gone or tuple(what) in party.unwanted:
                raise StaleCallError("cancelled")
            self._waits[call] = wait
            self._book.begin(attempt, wait.sleeper)
            if lease is not None and isinstance(attempt, Take):
                lease.takes.append(attempt)
        timer = None
        if max_wait and attempt.state is PENDING:
            timer = loop.call_later(max_wait, self._expire, attempt)
        self._look_for_own_ends()
        go_on()
        await self._until(call, wait, woken, timer)

    def _expire(self, attempt: Attempt) -> None:
        with self._lock:
            self._book.expire(attempt)

    async def _until(
        self, call: Call, wait: Wait, woken: asyncio.Event, timer: asyncio.TimerHandle | None
    ) -> None:
        waits = wait.attempt.state is PENDING
        try:
            while wait.attempt.state is PENDING:
                await woken.wait()
                woken.clear()
        except BaseException:
            with self._lock:
                self._book.withdraw(wait.attempt)
            raise
        finally:
            with self._lock:  # also makes the reason of its end visible
                del self._waits[call]
                self._book.count_wait(wait.attempt, monotonic() - wait.began if waits else 0.0)
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
            party = self._party(caller)
            turns = party.turns.get(what)
            if turns is None or not turns.has_ended(number):
                party.unwanted.add((what, number))  # the call will end before it waits
            wait = self._waits.get((life, what, number))
            if wait is not None:
                self._end_wait(wait)
            if what == "dequeue":
                self._book.give_back(life, number)
                self._tell_of_changes()

    async def use(self, life: str, numbers: list[int]) -> Answer:
        """Commit durably, so that it survives the death of the actor."""
        self.commit(life, numbers)
        try:
            await self._journal.safe()
        except WorkerDiedError as error:
            return Answer(error)
        return Answer()

    def commit(self, life: str, numbers: list[int]) -> None:
        """Record that a consumer has used what it got."""
        with self._lock:
            self._book.commit(life, numbers)
            self._tell_of_changes()
        self._look_for_own_ends()

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
                self._party(caller)
                below, numbers = self._said.get(life, (0, set()))
                if number >= below and number not in numbers:  # else it is a copy
                    possible = self._book.task_done(life, n)
                    if possible is not None:
                        return Answer(self._too_many(n, possible))
                    self._said[life] = said(below, numbers, number, known)
                    self._journal.note("done", life, number, known, n)
            await self._journal.safe()
        except RefusedError as refused:
            return refused.answer
        except WorkerDiedError as error:
            return Answer(error)
        return Answer()

    def _too_many(self, n: int, possible: int) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"task_done: got n={n} for {self._description.kind} '{self._name}', from a handle that"
            f" has {counted(possible, 'unfinished element')}; expected one call for each element"
            " that came out of it"
        )

    def lost(self, life: str, number: int, refs: list[Any]) -> Answer:
        """Record that rows of a lease are lost, since their producer has died.

        The other rows of the lease go back; the lost ones are not delivered again.
        """
        gone = set(refs)
        with self._lock:
            handles = [
                handle
                for take in self._book.takes_of(life, number)
                for handle in self._book.all_handles_of(take)
            ]
            segments = {handle.segment for handle in handles}
            found = [one for one in segments if not gone.isdisjoint(one.payload.ref)]
            self._book.give_back(life, number)
            is_wanted = [one for one in found if self._want(one)]
            found = [one for one in found if one not in is_wanted]
            self._tell_of_changes()
            if is_wanted and not found:
                return Answer(is_elsewhere=True)
            if segments and not found and not any(one.is_lost for one in segments):
                return Answer(is_elsewhere=True)  # it was copied or sent again in the meantime
            return Answer(self._loss([one for one in found if not one.is_told]))

    # The whole queue.

    def close(self, cancel_pending_enqueues: bool, cause: bytes | None) -> None:
        """Close the queue for enqueues."""
        with self._lock:
            if self._cause is None:
                self._cause = cause
            told = None if cause is None else base64.b64encode(cause).decode()
            self._journal.note("close", told)
            failure = None if cause is None else told_failure()
            self._queue.close(cancel_pending_enqueues=cancel_pending_enqueues, cause=failure)
        self._look_for_own_ends()

    async def close_for_good(self, cancel_pending_enqueues: bool, cause: bytes | None) -> Answer:
        """Like `close`, and durable: it survives the death of the actor."""
        self.close(cancel_pending_enqueues, cause)
        try:
            await self._journal.safe()
        except WorkerDiedError as error:
            return Answer(error)
        return Answer()

    async def wait_closed(self) -> None:
        """Wait until the queue is closed."""
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
                party = self._party(caller)
                parties = [party] if node is None else self._parties.on(node)
                lives = {party.caller.life for party in parties}
                if node != self._node or node is None:
                    self._leaving.update(lives)
            if node is not None and node == self._node:
                self._check_that_it_returns(node)
            else:
                await self._copy_here(lives)
            async with asyncio.timeout(seconds):
                await self._change(partial(self._is_drained, lives, node))
        except RefusedError as refused:
            return refused.answer
        except TimeoutError:
            return Answer(self._not_drained(lives, node))
        except Exception as error:  # such as a full object store
            return Answer(error)
        return Answer()

    def _check_that_it_returns(self, node: str) -> None:
        if not self._journal.starts:
            raise InvalidArgumentError(
                f"node: got {node!r}, the node of the actor of queue '{self._name}', which has no"
                " journal; expected another node, or a queue that you made with journal=..."
            )

    def _is_drained(self, lives: set[str], node: str | None) -> bool:
        return not (self._book.of(lives) or self._only_here(lives, node))

    def _only_here(self, lives: set[str], node: str | None) -> list[Segment]:
        """Return the batches that would be lost with the node of the actor."""
        if node is None or node != self._node:
            return []
        staying = set(self._parties.alive()) - lives
        return [one for one in self._segments if one.producer not in staying and not one.is_lost]

    def _not_drained(self, lives: set[str], node: str | None) -> DeadlineExceededError:
        with self._lock:
            leases, batches = self._book.of(lives), len(self._only_here(lives, node))
        left = [counted(leases, "lease")] if leases else []
        left += [f"{batches} of its batches that exist nowhere else"] if batches else []
        return DeadlineExceededError(
            f"{self._description.kind} '{self._name}' was not drained in time: there"
            f" {'are' if batches or leases > 1 else 'is'} still {' and '.join(left) or 'nothing'}"
        )

    def statistics(self) -> aioqueue.Statistics:
        """Return counts and current state."""
        found: aioqueue.Statistics = self._queue.statistics()
        return found

    def end(self) -> None:
        """Prepare for the end of the actor, and leave nothing behind."""
        self._journal.end(remove=True)

    def state(self) -> str:
        """Return the value of the queue's `QueueState`."""
        return str(self._machine.state.value)

    def leases(self) -> int:
        """Return the number of uncommitted leases."""
        with self._lock:
            return self._book.count()
