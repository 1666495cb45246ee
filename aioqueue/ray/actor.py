"""The actor that holds a queue: an ordinary queue of handles, its leases, and the numbered calls.

It lives by itself, under a name: whoever knows that may put in and take out. Three groups of calls
have an event loop and a thread each, so a thousand producers that wait for room keep nobody from
taking out; the queue in the middle is made for many loops.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple, TypeAlias

import aioqueue
from aioqueue.attempts import PENDING, WITHDRAWN, Attempt, PutMany, QueueState, Take
from aioqueue.errors import InvalidArgumentError, OutOfRangeError, WorkerDiedError
from aioqueue.ray.handles import Handle, Payload, Run, Segment, runs_of
from aioqueue.ray.leases import Book, Lease, Sleeper
from aioqueue.ray.turns import Turns

__all__ = ("SMALL", "Answer", "Caller", "Description", "QueueActor", "remote_class")

SMALL: Final = 64 * 1024
"""Bytes of a batch that is kept in the memory of the actor, and not in the object store."""

LEASE_SECONDS: Final = 30.0
"""How long a client may be silent until what it has been given goes back, or its calls end."""


Call: TypeAlias = tuple[str, str, int]
"""What was called, by which client, under which number."""


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

    def handles(self) -> Any:
        """A queue of handles in its order."""
        bounds = {"max_bytes": self.max_bytes, "name": self.kind}
        if self.kind == "RandomShuffleQueue":
            return aioqueue.RandomShuffleQueue(
                self.capacity, self.min_after_dequeue, seed=self.seed, **bounds
            )
        if self.kind == "PriorityQueue":
            return aioqueue.PriorityQueue(self.capacity, **bounds)
        return aioqueue.FIFOQueue(self.capacity, **bounds)


class Caller(NamedTuple):
    """Who calls."""

    client: str
    life: str
    """Which of those that have had this name, one after another."""
    after: int | None
    """The last lease that the one before is known to have used."""
    description: Description
    """What it takes the queue to be."""


class Answer(NamedTuple):
    """What becomes of a call."""

    error: BaseException | None = None
    """What it has failed by."""
    rows: int = 0
    """How many rows an enqueue has put in."""
    runs: Sequence[Run] = ()
    """What a dequeue has got."""


class QueueActor:
    """One queue.

    Args:
        name: of the queue.
        description: what it is.
    """

    def __init__(self, name: str, description: Description) -> None:
        self._name = name
        self._description = description
        self._queue = description.handles()
        self._queue._core.name = name
        self._core = self._queue._core
        self._machine = self._core.machine
        self._book = Book(self._core)
        self._producers: dict[str, Turns[Answer]] = {}
        self._consumers: dict[str, Turns[Answer]] = {}
        self._lives: dict[str, str] = {}  # of consumers, the one that is going on
        self._waiting: dict[Call, tuple[Attempt, Sleeper]] = {}
        self._heard: dict[str, float] = {}  # clients, and when from them last
        self._watching: asyncio.Task[None] | None = None

    def agree(self, caller: Caller) -> Answer:
        """Whether the queue is what a caller takes it for."""
        return self._refusal(caller) or Answer()

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
        refusal = self._refusal(caller)
        if refusal is not None:
            return refusal
        producer = caller.client
        turns = self._producers.setdefault(caller.life, Turns())
        made = await turns.begin(number, known)
        if made is not None:
            return await asyncio.shield(made)
        if owned and rows * row_bytes > SMALL:
            payload = Payload(None, (_ray().put(payload.columns),))
        segment = Segment(producer, number, payload, row_bytes)
        handles: list[Any] = [Handle(segment, row) for row in range(rows)]
        if keys is not None:
            handles = list(zip(keys, handles, strict=True))
        columns, n = self._core.spec.columns(handles)
        put = PutMany(columns, n)
        waiting = self._begun(put, ("enqueue", producer, number))
        turns.go_on(number)  # it has its place in line
        await waiting
        return turns.end(number, Answer(put.error, put.done))

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
        refusal = self._refusal(caller)
        if refusal is not None:
            return refusal
        consumer = caller.client
        turns = self._turns_of(caller)
        self.commit(consumer, used)
        made = await turns.begin(number, known)
        if made is not None:
            return await asyncio.shield(made)
        call = ("dequeue", consumer, number)
        take = Take(n, up_to=up_to, leased=True, expired=max_wait == 0)
        waiting = self._begun(take, call, max_wait)
        turns.go_on(number)  # it has its place in line
        try:
            answer = await self._leased(take, waiting, call, n, up_to)
        finally:
            self._book.ended(consumer, number)
        return turns.end(number, answer)

    async def _leased(
        self, take: Take, waiting: Coroutine[Any, Any, None], call: Call, n: int, up_to: bool
    ) -> Answer:
        await waiting
        if take.error is not None or take.state is WITHDRAWN:
            return Answer(take.error or self._own_end(take))
        lease = Lease()
        lease.takes.append(take)
        handles = self._book.handles_of(take)
        while len(handles) < take.held.count or (len(handles) < n and not up_to):
            # Some were lost, and others come in their place; behind the others, but that is all.
            more = Take(n - len(handles), up_to=up_to, leased=True, expired=up_to and bool(handles))
            await self._begun(more, call)
            if more.error is not None or more.state is WITHDRAWN:
                break
            lease.takes.append(more)
            handles += self._book.handles_of(more)
            if up_to and handles:
                break
        _, consumer, number = call
        self._book.enter(consumer, number, lease)
        return Answer(runs=[(segment.payload, rows) for segment, rows in runs_of(handles)])

    def _begun(
        self, attempt: Attempt, call: Call, max_wait: float | None = None
    ) -> Coroutine[Any, Any, None]:
        """Begin an attempt, which has its place in line by then; returns what waits for its end."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        sleeper = Sleeper(partial(loop.call_soon_threadsafe, woken.set))
        self._waiting[call] = (attempt, sleeper)
        self._book.begin(attempt, sleeper)
        timer = None
        if max_wait and attempt.state is PENDING:
            timer = loop.call_later(max_wait, self._book.expire, attempt)
        self._look_for_own_ends()
        return self._until(attempt, call, woken, timer)

    async def _until(
        self,
        attempt: Attempt,
        call: Call,
        woken: asyncio.Event,
        timer: asyncio.TimerHandle | None,
    ) -> None:
        try:
            while attempt.state is PENDING:
                await woken.wait()
                woken.clear()
        except BaseException:
            self._book.withdraw(attempt)
            raise
        finally:
            del self._waiting[call]
            if timer is not None:
                timer.cancel()

    def _refusal(self, caller: Caller) -> Answer | None:
        """The answer to who takes this for another queue."""
        for field, theirs, ours in zip(
            Description._fields, caller.description, self._description, strict=True
        ):
            if theirs != ours:
                return Answer(
                    InvalidArgumentError(
                        f"{field}: got {theirs!r} for queue '{self._name}', which was made with"
                        f" {ours!r}; expected the same, or another name"
                    )
                )
        return None

    def _turns_of(self, caller: Caller) -> Turns[Answer]:
        """The calls of a consumer; of one that begins anew, what it had before goes back."""
        consumer, life, after, _ = caller
        if self._lives.get(consumer) != life:
            self._lives[consumer] = life
            if after is not None:
                held = self._book.numbers_of(consumer)
                self._book.commit(consumer, [number for number in held if number <= after])
            self._book.give_back(consumer)
            self._consumers[consumer] = Turns(0 if after is None else after + 1)
        return self._consumers[consumer]

    def _look_for_own_ends(self) -> None:
        """Tell consumers the end that would else wait for what they have themselves."""
        if self._machine.state is not QueueState.CLOSED or self._machine.size:
            return
        for (what, consumer, _), (attempt, sleeper) in list(self._waiting.items()):
            if what == "dequeue" and self._book.are_all_of(consumer):
                self._end_wait(attempt, sleeper)

    def _end_wait(self, attempt: Attempt, sleeper: Sleeper) -> None:
        if attempt.state is PENDING:
            self._book.withdraw(attempt)
            sleeper.wake()

    def _own_end(self, take: Take) -> OutOfRangeError:
        return OutOfRangeError(
            f"{self._description.kind} '{self._name}' is closed and has no elements but those that"
            " this consumer has not committed",
            queue=self._name,
            requested=take.n,
        )

    # What is said of calls and leases.

    def cancel(self, what: str, client: str, number: int) -> None:
        """End a call that nobody waits for any more; what a dequeue has got goes back."""
        attempt, sleeper = self._waiting.get((what, client, number), (None, None))
        if attempt is not None and sleeper is not None:
            self._end_wait(attempt, sleeper)
        if what == "dequeue":
            self._book.cancel(client, number)

    def commit(self, consumer: str, numbers: list[int]) -> None:
        """A consumer has used what it got."""
        self._book.commit(consumer, numbers)
        self._look_for_own_ends()

    def lost(self, consumer: str, number: int, refs: list[Any]) -> Answer:
        """Rows of a lease are lost: who has put them in is gone, and they with it.

        The other rows of the lease go back; nobody is given the lost ones any more.
        """
        gone = set(refs)
        segments: dict[int, Segment] = {}
        for take in self._book.takes_of(consumer, number):
            for handle in self._book.handles_of(take):
                if handle.segment.payload.ref and handle.segment.payload.ref[0] in gone:
                    segments[id(handle.segment)] = handle.segment
        for segment in segments.values():
            segment.is_lost = True
        self._book.give_back(consumer, lambda other: other != number)
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

    async def beat(self, client: str) -> None:
        """A client is alive."""
        self._heard[client] = monotonic()
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._watch())

    def clients(self) -> list[str]:
        """Who is known to be alive, or was lately."""
        return list(self._heard)

    def leave(self, client: str) -> None:
        """A client ends: what it has not used goes back, and its calls end."""
        self._heard.pop(client, None)
        for (_, who, _), (attempt, sleeper) in list(self._waiting.items()):
            if who == client:
                self._end_wait(attempt, sleeper)
        self._book.give_back(client)
        self._look_for_own_ends()

    async def _watch(self) -> None:
        """Give back what clients have that are silent for too long, until the actor ends."""
        while True:
            await asyncio.sleep(LEASE_SECONDS / 6)
            silent = monotonic() - LEASE_SECONDS
            for client in [one for one, heard in self._heard.items() if heard < silent]:
                self.leave(client)

    # The queue as a whole.

    def close(self, cancel_pending_enqueues: bool, cause: BaseException | None) -> None:
        """Let nothing more in."""
        self._queue.close(cancel_pending_enqueues=cancel_pending_enqueues, cause=cause)
        self._look_for_own_ends()

    async def wait_closed(self) -> None:
        """Wait until nothing more comes in."""
        await self._queue.wait_closed()

    def statistics(self) -> aioqueue.Statistics:
        """What it has done and is doing."""
        return self._queue.statistics()

    def state(self) -> str:
        """How far it is with closing: the value of a `QueueState`."""
        return str(self._machine.state.value)

    def leases(self) -> int:
        """How many leases there are that were not committed."""
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

    Remote.__name__ = Remote.__qualname__ = QueueActor.__name__
    return ray.remote(concurrency_groups={"in": 1000, "out": 1000})(Remote)


def _ray() -> Any:
    import ray

    return ray
