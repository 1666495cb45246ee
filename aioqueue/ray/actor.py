"""The actor that holds a queue: an ordinary queue of handles, its leases, and the numbered calls.

It lives by itself, under a name: whoever knows that may put in and take out. Three groups of calls
have an event loop and a thread each, so a thousand producers that wait for room keep nobody from
taking out; the queue in the middle is made for many loops.
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
from aioqueue.attempts import GRANTED, PENDING, WITHDRAWN, Attempt, PutMany, Take
from aioqueue.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    WorkerDiedError,
    counted,
)
from aioqueue.ray.clients import CallerId, ClientSession
from aioqueue.ray.handles import Handle, Payload, Segment, runs_of
from aioqueue.ray.idempotent_calls import StaleCallError
from aioqueue.ray.leases import DequeueWaiter, Lease
from aioqueue.ray.ledger import pairs_of
from aioqueue.ray.messages import SMALL, Answer
from aioqueue.ray.replayable_producers import Entry, ProducerRecord
from aioqueue.ray.sessions import ActorSessions, Call, RefusedError, Wait, copied_here, wake_in

__all__ = ("QueueActor",)

_IS_AWAITED: Final = attrgetter("is_awaited")


class QueueActor(ActorSessions):
    """One queue; see `ActorSessions` for the arguments."""

    def agree(self, caller: CallerId) -> Answer:
        """Whether the queue is what a caller takes it for, and who it is.

        Returns:
            The number of its first lease: those of its former lives are not used again.
        """
        try:
            with self._lock:
                self._party(caller)
                return Answer(rows=self._book.progress(caller.client).following)
        except RefusedError as refused:
            return refused.answer

    # In.

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
        """Put the rows of a batch in: once, and in the order of the numbers.

        With an entry it is a batch of a book: once over all lives of its producer. If another batch
        of it is wanted meanwhile, it ends early: the rows that are in stay in.
        """

        async def put(party: ClientSession, go_on: Callable[[], None]) -> Answer:
            life = caller.life
            before = self._journal.answered(life, number)
            if before is not None:  # the answer was lost
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
        """A batch that comes, of which rows were given away before the actor came back."""
        key = life, number
        segment = self._awaited.come(key, payload)
        if segment is None and given:  # it has come with how its producer stands
            segment = next(
                (one for one in self._segments if (one.producer, one.number) == key), None
            )
        if segment is None:
            segment = Segment(life, number, payload, rows, row_bytes)
            self._segments.add(segment)
        return segment

    # Of producers that have a book.

    async def begin_filling(self, caller: CallerId, producer: str) -> Answer:
        """A handle puts in the batches of a book from now on, and no other one does.

        Returns:
            The number of the first batch that is not in, and those that are to be made again.
        """
        try:
            with self._lock:
                party = self._party(caller)
                filling = self._fillings.setdefault(producer, ProducerRecord())
                before = self._parties.find(filling.life)
                if before is not None and before is not party and not before.gone:
                    why = f"producer '{producer}' has begun anew, with another handle"
                    self._dismiss(before, why)
            await self._change(lambda: filling.call is None)
            with self._lock:
                self._party(caller)  # or another one has begun anew since
                filling.begin(caller.life)
                return Answer(rows=filling.next, wanted=filling.missing())
        except RefusedError as refused:
            return refused.answer

    async def end_filling(self, caller: CallerId, producer: str) -> Answer:
        """A book has come to its end: what is left of it belongs to the actor from now on.

        Returns:
            The batches that are to be made again before.
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
        except Exception as error:  # the object store is full, say
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
        """A batch of a book comes: whether rows of it are to be put in, its segment if there is
        one, and which rows are in already."""
        if entry is None:
            return True, None, set()
        producer, place = entry
        filling = self._fillings.setdefault(producer, ProducerRecord())
        if not filling.life:  # this actor has come back since it began
            filling.begin(life)
        if filling.life != life or filling.call is not None or place > filling.next:
            raise InvalidArgumentError(
                f"producer: got '{producer}', whose batch {filling.next} another call is about to"
                f" put in, and here is batch {place}; expected one that fills at a time"
            )
        before = filling.rows_of(place)
        if before is not None and before != rows:
            raise InvalidArgumentError(
                f"make_batch: got {counted(rows, 'row')} for batch {place} of producer"
                f" '{producer}', which had {before} before; expected the same batch whenever it"
                " is made"
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
        """A batch is lost; whether its producer can make it again, and will be told to."""
        for filling in self._fillings.values():
            if filling.want(segment):
                party = self._parties.find(filling.life)
                if filling.call is not None and party is not None and not party.gone:
                    # It may wait for room, which there will be when this batch has come.
                    wait = self._waits.get((filling.life, "enqueue", filling.call))
                    if wait is not None:
                        self._end_wait(wait)
                    else:
                        party.unwanted.add(("enqueue", filling.call))
                return True
        return False

    # Out.

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
        """Lease the next elements to a consumer; what it has used by now is committed first."""

        async def take(party: ClientSession, go_on: Callable[[], None]) -> Answer:
            self.commit(caller.life, used)
            life = caller.life
            with self._lock:
                takes = self._book.takes_of(life, number)  # of one whose answer was lost
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
                if used:  # it takes this answer for one that knows of them, also if this one dies
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
        """The next elements. Where some were lost, others come in their place: behind the others
        who wait, but that is all."""
        call = (party.caller.life, "dequeue", number)
        handles: list[Handle] = []
        while not handles or (len(handles) < n and not up_to):
            take = Take(n - len(handles), up_to=up_to, leased=True, expired=max_wait == 0)
            await self._begin(party, call, take, max_wait, lease=lease, go_on=go_on)
            if take.state is not GRANTED:
                raise take.error or self._why_ended(party)
            found = await self._elements(take)
            with self._lock:
                if not found and take.state is GRANTED:  # all of them are lost, and that was told
                    lease.takes.remove(take)
                    self._book.use(take)
            handles += found
        return handles

    async def _elements(self, take: Take) -> list[Handle]:
        """What a dequeue was granted, once it is here.

        Raises:
            WorkerDiedError: some of it is lost, and nobody was told so yet.
        """

        handles: list[Handle] = []
        segments: set[Segment] = set()

        def is_settled() -> bool:
            if not handles and take.state is GRANTED:  # what was granted stays the same
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
        """Batches are lost, and this is who is told."""
        for segment in segments:
            segment.is_lost = segment.is_told = True
            self._journal.note("lost", segment.producer, segment.number)
        names = ", ".join(
            f"call {segment.number} of producer {segment.producer}" for segment in segments
        )
        return WorkerDiedError(
            f"{self._description.kind} '{self._name}': elements are lost, since who has put"
            f" them in has died: those of {names or 'a batch that was found lost before'};"
            " owned=True keeps them with the queue"
        )

    # How calls are made.

    async def _once(
        self,
        caller: CallerId,
        method: str,
        number: int,
        known: int,
        make: Callable[[ClientSession, Callable[[], None]], Awaitable[Answer]],
    ) -> Answer:
        """Make a call once, in its turn; a failure is an answer, too."""
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
        except Exception as error:  # the object store is full, say
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
        """Make an attempt, and wait for its end.

        Args:
            party: whose it is.
            call: by which.
            attempt: what.
            max_wait: after how many seconds it takes what is there.
            lease: where it is entered.
            go_on: called when it has its place in line.
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
            with self._lock:  # after which it is also known what it was ended by
                del self._waits[call]
                self._book.count_wait(wait.attempt, monotonic() - wait.began if waits else 0.0)
            if timer is not None:
                timer.cancel()
        if wait.error is not None:
            raise wait.error

    # What is said of calls and leases.

    def cancel(self, what: str, caller: CallerId, number: int) -> None:
        """End a call that nobody waits for any more; what a dequeue has got goes back.

        It may come before the call does.
        """
        life = caller.life
        with self._lock, suppress(RefusedError):
            party = self._party(caller)
            turns = party.turns.get(what)
            if turns is None or not turns.has_ended(number):
                party.unwanted.add((what, number))  # so it will end before it waits
            wait = self._waits.get((life, what, number))
            if wait is not None:
                self._end_wait(wait)
            if what == "dequeue":
                self._book.give_back(life, number)
                self._tell_of_changes()

    async def use(self, life: str, numbers: list[int]) -> Answer:
        """The same as `commit`, for good: also if the actor dies."""
        self.commit(life, numbers)
        try:
            await self._journal.safe()
        except WorkerDiedError as error:
            return Answer(error)
        return Answer()

    def commit(self, life: str, numbers: list[int]) -> None:
        """A consumer has used what it got."""
        with self._lock:
            self._book.commit(life, numbers)
            self._tell_of_changes()
        self._look_for_own_ends()

    def lost(self, life: str, number: int, refs: list[Any]) -> Answer:
        """Rows of a lease are lost: who has put them in is gone, and they with it.

        The other rows of the lease go back; nobody is given the lost ones any more.
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
                return Answer(is_elsewhere=True)  # it was copied, or has come again, meanwhile
            return Answer(self._loss([one for one in found if not one.is_told]))

    # The queue as a whole.

    def close(self, cancel_pending_enqueues: bool, cause: bytes | None) -> None:
        """Let nothing more in."""
        with self._lock:
            if self._cause is None:
                self._cause = cause
            told = None if cause is None else base64.b64encode(cause).decode()
            self._journal.note("close", told)
            self._queue.close(cancel_pending_enqueues=cancel_pending_enqueues)
        self._look_for_own_ends()

    async def close_for_good(self, cancel_pending_enqueues: bool, cause: bytes | None) -> Answer:
        """The same as `close`, also if the actor dies."""
        self.close(cancel_pending_enqueues, cause)
        try:
            await self._journal.safe()
        except WorkerDiedError as error:
            return Answer(error)
        return Answer()

    async def wait_closed(self) -> None:
        """Wait until nothing more comes in."""
        await self._queue.wait_closed()

    async def drain(self, caller: CallerId, node: str | None, seconds: float | None) -> Answer:
        """Let go of what belongs to a client, or to all on a node, and wait until that is done.

        What they have put in is copied to the actor, now and from now on; for what they have taken
        out it is waited until they have used it, or lose it.
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
        except Exception as error:  # the object store is full, say
            return Answer(error)
        return Answer()

    def _check_that_it_returns(self, node: str) -> None:
        if not self._journal.starts:
            raise InvalidArgumentError(
                f"node: got {node!r}, where the actor of queue '{self._name}' itself is, which has"
                " no journal; expected another one, or a queue that was made with journal=..."
            )

    def _is_drained(self, lives: set[str], node: str | None) -> bool:
        return not (self._book.of(lives) or self._only_here(lives, node))

    def _only_here(self, lives: set[str], node: str | None) -> list[Segment]:
        """Batches that would be lost with the node of the actor: nobody elsewhere has them."""
        if node is None or node != self._node:
            return []
        staying = set(self._parties.alive()) - lives
        return [one for one in self._segments if one.producer not in staying and not one.is_lost]

    def _not_drained(self, lives: set[str], node: str | None) -> DeadlineExceededError:
        with self._lock:
            leases, batches = self._book.of(lives), len(self._only_here(lives, node))
        left = [counted(leases, "lease")] if leases else []
        left += [f"{batches} of its batches that nobody else has"] if batches else []
        return DeadlineExceededError(
            f"{self._description.kind} '{self._name}' was not drained in time: there"
            f" {'are' if batches or leases > 1 else 'is'} still {' and '.join(left) or 'nothing'}"
        )

    def statistics(self) -> aioqueue.Statistics:
        """What it has done and is doing."""
        found: aioqueue.Statistics = self._queue.statistics()
        return found

    def end(self) -> None:
        """It is going to be ended: nothing is to be left behind."""
        self._journal.end(remove=True)

    def state(self) -> str:
        """How far it is with closing: the value of a `QueueState`."""
        return str(self._machine.state.value)

    def leases(self) -> int:
        """How many leases there are that were not committed."""
        with self._lock:
            return self._book.count()
