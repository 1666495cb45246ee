"""The actor that holds a queue: an ordinary queue of handles, its leases, and the numbered calls.

It lives by itself, under a name: whoever knows that may put in and take out. Three groups of calls
have an event loop and a thread each, so a thousand producers that wait for room keep nobody from
taking out; the queue in the middle is made for many loops.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import aioqueue
from aioqueue.attempts import GRANTED, PENDING, WITHDRAWN, Attempt, PutMany, QueueState, Take
from aioqueue.errors import InvalidArgumentError, OutOfRangeError, WorkerDiedError
from aioqueue.ray.handles import Handle, Payload, Run, Segment, runs_of
from aioqueue.ray.leases import Book, Lease, Sleeper
from aioqueue.ray.parties import Caller, Parties, Party
from aioqueue.ray.turns import StaleCallError

__all__ = ("LEASE_SECONDS", "SMALL", "Answer", "Description", "QueueActor", "remote_class")

SMALL: Final = 64 * 1024
"""Bytes of a batch that is kept in the memory of the actor, and not in the object store."""

LEASE_SECONDS: Final = 30.0
"""How long a client may be silent until what it has been given goes back, or its calls end."""

_FORGOTTEN_SECONDS: Final = 600.0
"""How long a client that is gone is remembered, so that it can be told."""

_CALLS: Final = 100_000
"""How many calls may wait in one group: Ray has those behind them wait before they begin."""

Call: TypeAlias = tuple[str, str, int]
"""Which life of a client calls, what, and under which number."""


class Description(NamedTuple):
    """What a queue is: all who use it must agree."""

    kind: str
    capacity: int | None
    min_after_dequeue: int
    dtypes: Any
    shapes: Any
    names: Any
    seed: Any
    max_bytes: int | None

    def handles(self, name: str) -> Any:
        """A queue of handles in its order."""
        if self.kind == "RandomShuffleQueue":
            return aioqueue.RandomShuffleQueue(
                *(self.capacity, self.min_after_dequeue),
                seed=self.seed,
                max_bytes=self.max_bytes,
                name=name,
            )
        if self.kind == "PriorityQueue":
            return aioqueue.PriorityQueue(self.capacity, max_bytes=self.max_bytes, name=name)
        return aioqueue.FIFOQueue(self.capacity, max_bytes=self.max_bytes, name=name)


class Answer(NamedTuple):
    """What becomes of a call."""

    error: BaseException | None = None
    """What it has failed by."""
    rows: int = 0
    """How many rows an enqueue has put in."""
    runs: Sequence[Run] = ()
    """What a dequeue has got."""
    cause: bytes | None = None
    """What the error comes from, as a message: its class need not exist where the actor is."""


class _RefusedError(Exception):
    """A call that is not made.

    Args:
        answer: what its caller is told.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.error)
        self.answer = answer


class _Wait:
    """An attempt in progress.

    Attributes:
        attempt: which.
        sleeper: wakes who waits for it.
        error: why it was withdrawn, if that is to be told.
    """

    __slots__ = ("attempt", "error", "sleeper")

    def __init__(self, attempt: Attempt, sleeper: Sleeper) -> None:
        self.attempt = attempt
        self.sleeper = sleeper
        self.error: BaseException | None = None


class QueueActor:
    """One queue.

    Args:
        name: of the queue.
        description: what it is.
    """

    def __init__(self, name: str, description: Description) -> None:
        self._name = name
        self._description = description
        self._queue = description.handles(name)
        core = self._queue._core
        self._spec = core.spec
        self._machine = core.machine
        # The loops of all groups come here. What is done within takes microseconds.
        self._lock = threading.RLock()  # guards all below; the machine's is taken within
        self._book = Book(core)
        self._parties = Parties()
        self._waits: dict[Call, _Wait] = {}
        self._expired: dict[str, int] = {}  # of clients that fell silent: their first lease then
        self._cause: bytes | None = None
        self._watching: asyncio.Task[None] | None = None

    def agree(self, caller: Caller) -> Answer:
        """Whether the queue is what a caller takes it for."""
        try:
            self._party(caller)
        except _RefusedError as refused:
            return refused.answer
        return Answer()

    # In.

    async def enqueue(
        self,
        caller: Caller,
        number: int,
        known: int,
        payload: Payload,
        rows: int,
        row_bytes: int,
        keys: list[int] | None,
        owned: bool,
    ) -> Answer:
        """Put the rows of a batch in: once, and in the order of the numbers."""

        async def put(party: Party, go_on: Callable[[], None]) -> Answer:
            nonlocal payload
            if owned and rows * row_bytes > SMALL:
                payload = Payload(None, (_ray().put(payload.columns),))
            segment = Segment(caller.life, number, payload, row_bytes)
            handles: list[Any] = [Handle(segment, row) for row in range(rows)]
            if keys is not None:
                handles = list(zip(keys, handles, strict=True))
            attempt = PutMany(*self._spec.columns(handles))
            wait = self._begin(party, (caller.life, "enqueue", number), attempt)
            go_on()  # it has its place in line
            await wait
            if attempt.state is WITHDRAWN:
                return Answer(self._why_ended(party), attempt.done)
            return Answer(attempt.error, attempt.done, cause=self._cause)

        return await self._once(caller, "enqueue", number, known, put)

    # Out.

    async def dequeue(
        self,
        caller: Caller,
        number: int,
        known: int,
        n: int,
        up_to: bool,
        max_wait: float | None,
        used: list[int],
    ) -> Answer:
        """Lease the next elements to a consumer; what it has used by now is committed first."""

        async def take(party: Party, go_on: Callable[[], None]) -> Answer:
            self.commit(caller.life, used)
            life = caller.life
            with self._lock:
                lease = self._book.open(life, number)
            try:
                handles = await self._leased(party, number, lease, n, up_to, max_wait, go_on)
            except BaseException as error:
                with self._lock:
                    self._book.give_back(life, number)
                if not isinstance(error, Exception):
                    raise
                return Answer(error, cause=self._cause)
            with self._lock:
                if not self._book.hand_over(life, number):
                    return Answer(self._why_ended(party))
            return Answer(runs=[(segment.payload, rows) for segment, rows in runs_of(handles)])

        return await self._once(caller, "dequeue", number, known, take)

    async def _leased(
        self,
        party: Party,
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
            with self._lock:
                wait = self._begin(party, call, take, max_wait)
                lease.takes.append(take)
            go_on()  # it has its place in line
            await wait
            if take.state is not GRANTED:
                raise take.error or self._why_ended(party)
            with self._lock:
                found = self._book.handles_of(take)
                if not found:  # all of them are lost, and that was told
                    lease.takes.remove(take)
                    self._book.use(take)
            handles += found
        return handles

    # How calls are made.

    async def _once(
        self,
        caller: Caller,
        method: str,
        number: int,
        known: int,
        make: Callable[[Party, Callable[[], None]], Awaitable[Answer]],
    ) -> Answer:
        """Make a call once, in its turn; a failure is an answer, too."""
        try:
            with self._lock:
                party = self._party(caller)
                turns = party.turns_of(method, known)
            answer: Answer = await turns.once(number, known, partial(make, party))
            return answer
        except _RefusedError as refused:
            return refused.answer
        except StaleCallError:
            return Answer(self._why_ended(party))
        except Exception as error:  # the object store is full, say
            return Answer(error)

    def _begin(
        self, party: Party, call: Call, attempt: Attempt, max_wait: float | None = None
    ) -> Coroutine[Any, Any, None]:
        """Begin an attempt, which has its place in line by then; returns what waits for its end."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        wait = _Wait(attempt, Sleeper(partial(loop.call_soon_threadsafe, woken.set)))
        _, *what = call
        with self._lock:
            if party.gone or tuple(what) in party.unwanted:
                raise StaleCallError("cancelled")
            self._waits[call] = wait
            self._book.begin(attempt, wait.sleeper)
        timer = None
        if max_wait and attempt.state is PENDING:
            timer = loop.call_later(max_wait, self._expire, attempt)
        self._look_for_own_ends()
        return self._until(call, wait, woken, timer)

    def _expire(self, attempt: Attempt) -> None:
        with self._lock:
            self._book.expire(attempt)

    async def _until(
        self, call: Call, wait: _Wait, woken: asyncio.Event, timer: asyncio.TimerHandle | None
    ) -> None:
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
            if timer is not None:
                timer.cancel()
        if wait.error is not None:
            raise wait.error

    def _end_wait(self, wait: _Wait, error: Callable[[], Exception] | None = None) -> None:
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

    # Who calls.

    def _party(self, caller: Caller) -> Party:
        """Who calls, if it may.

        Raises:
            _RefusedError: it takes this for another queue, or is not spoken to any more.
        """
        for field, theirs, ours in zip(
            Description._fields, caller.description, self._description, strict=True
        ):
            if theirs != ours:
                raise _RefusedError(
                    Answer(
                        InvalidArgumentError(
                            f"{field}: got {theirs!r} for queue '{self._name}', which was made with"
                            f" {ours!r}; expected the same, or another name"
                        )
                    )
                )
        with self._lock:
            party, before = self._parties.meet(caller)
            if party.gone:
                raise _RefusedError(Answer(self._why_ended(party)))
            if before is not None:
                self._begin_anew(before, caller)
            self._see_what_expired(party)
            return party

    def _begin_anew(self, before: Party, caller: Caller) -> None:
        """A consumer has a new life: what its former one had not used goes back."""
        if before.gone:
            return
        former = before.caller.life
        if caller.after is not None:
            done = [number for number in self._book.numbers_of(former) if number <= caller.after]
            self._book.commit(former, done)
        self._dismiss(before, f"consumer '{caller.client}' has begun anew, with another handle")

    def _see_what_expired(self, party: Party) -> None:
        """Refuse who says that it has used what was given to others since."""
        client, after = party.caller.client, party.caller.after
        first = self._expired.pop(client, None)
        if first is None or after is None or after < first:
            return
        party.gone = (
            f"consumer '{client}' was silent for more than {LEASE_SECONDS:.0f} s, and what it had"
            f" by its leases from number {first} on was given back; but it has used them up to"
            f" number {after}"
        )
        raise _RefusedError(Answer(self._why_ended(party)))

    def _why_ended(self, party: Party) -> Exception:
        """What a client is told whose call was ended."""
        if not party.gone:
            return StaleCallError("cancelled")  # and so it knows that
        return WorkerDiedError(
            f"{self._description.kind} '{self._name}' does not know this handle any more:"
            f" {party.gone}; make another one"
        )

    def _dismiss(self, party: Party, why: str) -> list[int]:
        """Speak to a client no more: its calls end, and what it has not used goes back.

        Returns:
            The leases that it had.
        """
        party.dismiss(why)
        self._end_calls(party.caller.life)
        handed = self._book.give_back(party.caller.life)
        self._look_for_own_ends()
        return handed

    def _end_calls(self, life: str) -> None:
        for call, wait in list(self._waits.items()):
            if call[0] == life:
                self._end_wait(wait)

    # What is said of calls and leases.

    def cancel(self, what: str, caller: Caller, number: int) -> None:
        """End a call that nobody waits for any more; what a dequeue has got goes back.

        It may come before the call does.
        """
        life = caller.life
        with self._lock, suppress(_RefusedError):
            party = self._party(caller)
            turns = party.turns.get(what)
            if turns is None or not turns.has_ended(number):
                party.unwanted.add((what, number))  # so it will end before it waits
            wait = self._waits.get((life, what, number))
            if wait is not None:
                self._end_wait(wait)
            if what == "dequeue":
                self._book.give_back(life, number)

    def commit(self, life: str, numbers: list[int]) -> None:
        """A consumer has used what it got."""
        with self._lock:
            self._book.commit(life, numbers)
        self._look_for_own_ends()

    def lost(self, life: str, number: int, refs: list[Any]) -> Answer:
        """Rows of a lease are lost: who has put them in is gone, and they with it.

        The other rows of the lease go back; nobody is given the lost ones any more.
        """
        gone = set(refs)
        segments: dict[int, Segment] = {}
        with self._lock:
            for take in self._book.takes_of(life, number):
                for handle in self._book.handles_of(take):
                    if handle.segment.payload.ref and handle.segment.payload.ref[0] in gone:
                        segments[id(handle.segment)] = handle.segment
            for segment in segments.values():
                segment.is_lost = True
            self._book.give_back(life, number)
        names = ", ".join(
            f"call {segment.number} of producer {segment.producer}" for segment in segments.values()
        )
        return Answer(
            WorkerDiedError(
                f"{self._description.kind} '{self._name}': elements are lost, since who has put"
                f" them in has died: those of {names or 'a batch that was found lost before'};"
                " owned=True keeps them with the queue"
            )
        )

    async def beat(self, caller: Caller) -> None:
        """A client is alive."""
        with suppress(_RefusedError):  # it is told so when it asks for something
            self._party(caller)
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._watch())

    def clients(self) -> list[str]:
        """The lives that are taken to be going on."""
        with self._lock:
            return self._parties.alive()

    def leave(self, caller: Caller) -> None:
        """A client ends: its calls end, and what it has not used goes back.

        What a consumer with a name of its own has stays with it for as long as if it had died: it
        may be started again, and say what it has used.
        """
        with self._lock, suppress(_RefusedError):
            if caller.client != caller.life:
                self._end_calls(caller.life)
            else:
                self._dismiss(self._party(caller), "it was given up")

    def dismiss(self, life: str) -> None:
        """A client is known to be dead: sooner than by its silence."""
        with self._lock:
            party = self._parties.find(life)
            if party is not None and not party.gone:
                self._give_up(party, "it was taken to be dead")

    def expire(self, seconds: float, forgotten: float) -> None:
        """Give back what clients have of which nothing was heard for so long.

        Args:
            seconds: how long.
            forgotten: after how many seconds it is not even known any more that they were there.
        """
        with self._lock:
            for party in self._parties.silent(seconds):
                why = f"nothing was heard of it for {seconds:.0f} s, so it was taken to be dead"
                self._give_up(party, why)
            self._parties.forget(forgotten)

    def _give_up(self, party: Party, why: str) -> None:
        """Give back what a client has, and remember that, if it may begin anew."""
        handed = self._dismiss(party, why)
        if handed and party.has_name:
            self._expired[party.caller.client] = handed[0]

    async def _watch(self) -> None:
        """Look for clients that are silent, until the actor ends."""
        while True:
            await asyncio.sleep(LEASE_SECONDS / 6)
            self.expire(LEASE_SECONDS, _FORGOTTEN_SECONDS)

    # The queue as a whole.

    def close(self, cancel_pending_enqueues: bool, cause: bytes | None) -> None:
        """Let nothing more in."""
        with self._lock:
            if self._cause is None:
                self._cause = cause
            self._queue.close(cancel_pending_enqueues=cancel_pending_enqueues)
        self._look_for_own_ends()

    async def wait_closed(self) -> None:
        """Wait until nothing more comes in."""
        await self._queue.wait_closed()

    def statistics(self) -> aioqueue.Statistics:
        """What it has done and is doing."""
        found: aioqueue.Statistics = self._queue.statistics()
        return found

    def state(self) -> str:
        """How far it is with closing: the value of a `QueueState`."""
        return str(self._machine.state.value)

    def leases(self) -> int:
        """How many leases there are that were not committed."""
        with self._lock:
            return self._book.count()


@functools.cache
def remote_class() -> Any:
    """The class of the actors, as Ray wants it."""
    ray = _ray()

    def group(name: str, method: Any) -> Any:
        return ray.method(concurrency_group=name)(method)

    class Remote(QueueActor):
        enqueue = group("in", QueueActor.enqueue)
        dequeue = group("out", QueueActor.dequeue)
        wait_closed = group("end", QueueActor.wait_closed)

    Remote.__name__ = Remote.__qualname__ = QueueActor.__name__
    return ray.remote(concurrency_groups={"in": _CALLS, "out": _CALLS, "end": _CALLS})(Remote)


def _ray() -> Any:
    import ray

    return ray
