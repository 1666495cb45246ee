"""Producers and consumers whose calls are lost, repeated, reordered and cancelled, against lists.

In every case, each enqueued row reaches one consumer that commits it; uncommitted rows return; the
end is reported only when nothing can return. A restarted consumer gets what it has not committed
since the lease that it names, or an error.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aioqueue.errors import InvalidArgumentError, OutOfRangeError, WorkerDiedError
from aioqueue.ray.client_registry import CallerId
from aioqueue.ray.messages import Answer
from aioqueue.ray.queue_actor import QueueActor
from tests.ray.local_handles import LocalHandle, Sent, fifo, settled

SIZES = st.integers(1, 3)
CHOICES = st.integers(0, 99)


class Users(RuleBasedStateMachine):
    """A few handles at one queue, and all that their programs may do."""

    make = staticmethod(fifo)

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.names = itertools.count()
        self.rows = itertools.count()
        self.actor, self.description = self._run(self._made())
        self.producers: list[LocalHandle] = []
        self.consumers: list[LocalHandle] = []
        self.puts: list[Sent] = []
        self.takes: list[Sent] = []
        self.uses: list[tuple[Sent, list[int]]] = []  # which call says of which leases that
        self.held: dict[tuple[str, int], list[int]] = {}  # what was received, and not used
        self.used: list[int] = []
        self.used_before = 0  # of these: before the actor was made that there is
        self.used_by: dict[str, list[int]] = {}
        self.done_with: set[int] = set()  # rows
        self.add_applied_call: dict[str, int] = {}  # by life: how often it has called `task_done`
        self.is_closed = False
        self.reported: set[int] = set()  # takes whose answers were looked at
        self.committed: dict[str, int] = {}  # by consumer: the last lease that it has used
        self.assigned: dict[str, int] = {}  # and that it was given
        for name in ("", "rank 0"):
            self.producers.append(self._handle())
            self.consumers.append(self._handle(name))

    async def _made(self) -> tuple[QueueActor, Any]:
        return self.make(3)

    def _handle(self, name: str = "", after: int | None = None) -> LocalHandle:
        life = f"desk {next(self.names)}"
        return LocalHandle(self.actor, self.description, life, name, after, loop=self.loop)

    @staticmethod
    def _name(handle: LocalHandle) -> str:
        """That of a consumer which may begin anew; empty if it has one life."""
        client: str = handle.caller.client
        return "" if client == handle.life else client

    def _run(self, what: Any) -> Any:
        return self.loop.run_until_complete(what)

    def _settle(self) -> None:
        self._run(settled())

    @staticmethod
    def _one_of(things: list[Any], choice: int) -> Any:
        return things[choice % len(things)]

    @rule(choice=CHOICES, n=SIZES)
    def put(self, choice: int, n: int) -> None:
        producer: LocalHandle = self._one_of(self.producers, choice)
        self.puts.append(producer.put(*(next(self.rows) for _ in range(n))))

    @rule(choice=CHOICES, n=SIZES, up_to=st.booleans(), uses=st.booleans())
    def take(self, choice: int, n: int, up_to: bool, uses: bool) -> None:
        consumer: LocalHandle = self._one_of(self.consumers, choice)
        mine = [number for life, number in self.held if life == consumer.life] if uses else []
        for number in mine:
            self._use(consumer, number)
        self.takes.append(consumer.take(n, up_to=up_to, used=mine))
        self.uses.append((self.takes[-1], mine))
        if mine:  # else they would be used and not told so, as if the program had died there
            self._arrive_all(consumer)

    def _use(self, consumer: LocalHandle, number: int) -> None:
        rows = self.held.pop((consumer.life, number))
        self.used += rows
        self.used_by.setdefault(consumer.life, []).extend(rows)
        client = consumer.caller.client
        self.committed[client] = max(self.committed.get(client, -1), number)

    def _consumer(self, life: str) -> LocalHandle:
        return next(handle for handle in self.consumers if handle.life == life)

    def _arrive_all(self, handle: LocalHandle) -> None:
        for sent in self.takes:
            if sent.handle is handle and not sent.has_arrived:
                sent.arrive()
        self._settle()

    @rule(choice=CHOICES)
    def arrive(self, choice: int) -> None:
        """Any call, in any order; or once more."""
        calls = [call for call in self.puts + self.takes if not call.is_cancelled]
        if calls:
            self._one_of(calls, choice).arrive()
            self._settle()

    @rule(choice=CHOICES)
    def cancel(self, choice: int) -> None:
        """Cancel a call in any state before its answer arrived: not sent, waiting, granted."""
        calls = [c for c in self.puts + self.takes if c.answer is None and not c.is_cancelled]
        if calls:
            call = self._one_of(calls, choice)
            call.cancel()
            self._settle()
            call.arrive()  # it is on its way in any case
            self._settle()

    @rule(choice=CHOICES)
    def lose_the_answer(self, choice: int) -> None:
        """A consumer gives up a call, whose rows are on their way to it."""
        takes = [take for take in self.takes if id(take) in self.reported and self._has(take)]
        if takes:
            take = self._one_of(takes, choice)
            take.cancel()
            self.done_with.difference_update(self.held.pop((take.handle.life, take.number)))
            self._settle()

    def _has(self, take: Sent) -> bool:
        return (take.handle.life, take.number) in self.held

    @rule(choice=CHOICES)
    def commit(self, choice: int) -> None:
        if self.held:
            life, number = self._one_of(list(self.held), choice)
            self.actor.commit(life, [number])
            self._use(self._consumer(life), number)
            self._settle()

    @rule(choice=CHOICES, n=SIZES, again=st.booleans())
    def task_done(self, choice: int, n: int, again: bool) -> None:
        """A consumer is done with rows that it has, or has used; the call may come twice."""
        consumer: LocalHandle = self._one_of(self.consumers, choice)
        number = self.add_applied_call.get(consumer.life, 0)
        self.add_applied_call[consumer.life] = number + 1
        mine = [row for rows in self._held_by(consumer.life) for row in rows]
        mine = [*self.used_by.get(consumer.life, ()), *mine]
        unfinished = [row for row in mine if row not in self.done_with]
        for _ in range(1 + again):
            answer = self._run(self.actor.task_done(consumer.caller, number, number, n))
            assert not answer.starts
            assert isinstance(answer.error, InvalidArgumentError) is (n > len(unfinished))
        if n <= len(unfinished):
            self.done_with.update(unfinished[:n])

    def _held_by(self, life: str) -> list[list[int]]:
        return [rows for (whose, _), rows in sorted(self.held.items()) if whose == life]

    @rule(choice=CHOICES)
    def die(self, choice: int) -> None:
        """A consumer is killed; another one comes."""
        dead: LocalHandle = self._one_of(self.consumers, choice)
        self.consumers.remove(dead)
        self.consumers.append(self._handle(self._name(dead)))
        self._ends(dead)
        self._settle()

    def _ends(self, dead: LocalHandle) -> None:
        if self._name(dead):  # else it may still begin anew, and go on where it was
            self.actor.dismiss(dead.life)
        else:
            self.actor.leave(dead.caller)
        self._is_over(dead)

    def _is_over(self, dead: LocalHandle) -> None:
        """Its leases return, also elements it was done with. What it committed counts as done."""
        for rows in self._held_by(dead.life):
            self.done_with.difference_update(rows)
        self.done_with.update(self.used_by.get(dead.life, ()))
        self.held = {key: rows for key, rows in self.held.items() if key[0] != dead.life}

    @rule(after=st.integers(-1, 6))
    def restart(self, after: int) -> None:
        """A named consumer gets a new handle, with the lease at which it continues."""
        former = next(handle for handle in self.consumers if self._name(handle))
        client = former.caller.client
        committed, assigned = (of.get(client, -1) for of in (self.committed, self.assigned))
        mine = sorted(number for life, number in self.held if life == former.life)
        new = self._handle(client, None if after < 0 else after)
        agreed = self.actor.agree(new.caller)
        if after < 0 or after == committed or (after > committed and after in mine):
            assert agreed.error is None
            assert agreed.rows > assigned
            for number in mine:
                if number <= after:
                    self._use(former, number)
            self._is_over(former)
            self.consumers[self.consumers.index(former)] = new
        elif committed < after <= assigned:
            assert isinstance(agreed.error, WorkerDiedError)
        else:
            assert isinstance(agreed.error, InvalidArgumentError)
            bound = committed if after < committed else assigned
            assert f"got {after} " in str(agreed.error)
            assert f"number {bound}" in str(agreed.error) or bound < 0
        self._settle()

    @precondition(lambda self: not self.is_closed)
    @rule()
    def close(self) -> None:
        self.is_closed = True
        self.actor.close(False, None)
        self._settle()

    @invariant()
    def answers_are_right(self) -> None:
        for take in self.takes:
            if take.answer is None or id(take) in self.reported:
                continue
            self.reported.add(id(take))
            if take.answer.error is None:
                client = take.handle.caller.client
                self.assigned[client] = max(self.assigned.get(client, -1), take.number)
                if not take.is_cancelled and take.handle in self.consumers:
                    self.held[take.handle.life, take.number] = take.got
            elif isinstance(take.answer.error, OutOfRangeError):
                others = [key for key in self.held if key[0] != take.handle.life]
                assert not others, "the end was told while rows could come back"
        assert len(self._everywhere()) == len(set(self._everywhere()))
        assert self.actor.leases() == len(self.held)

    @invariant()
    def sums_agree(self) -> None:
        """What was taken counts as such when it was used: until then it may come back."""
        counts = self.actor.statistics()
        assert counts.size >= 0
        held = counts.enqueued - counts.dequeued - counts.size
        assert held == counts.granted + counts.claimed
        assert held >= sum(map(len, self.held.values()))
        assert counts.dequeued == len(self.used) - self.used_before
        entered = counts.enqueued + self.used_before
        assert counts.unfinished == entered - len(self.done_with)
        assert sum(self._rows_in(put.answer) for put in self.puts) <= entered
        assert entered <= sum(len(put.rows) for put in self.puts if put.has_arrived)

    def _everywhere(self) -> list[int]:
        return self.used + [row for rows in self.held.values() for row in rows]

    def teardown(self) -> None:
        try:
            self.all_comes_out()
        finally:
            self._run(self._end())
            self.loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def all_comes_out(self) -> None:
        """All that went in and was not used."""
        for handle in self.consumers:
            self._ends(handle)
        for put in self.puts:
            if not put.has_arrived:
                put.arrive()
        self._settle()
        self.actor.close(True, None)
        self._settle()
        entered = [row for put in self.puts for row in put.rows[: self._rows_in(put.answer)]]
        last = self._handle()
        found: list[int] = []
        while True:
            taken = last.take(1, up_to=True, used=range(len(found))).arrive()
            self._settle()
            assert taken.answer is not None
            if taken.answer.error is not None:
                break
            found += taken.got
        assert sorted(found + self.used) == sorted(entered)

    @staticmethod
    def _rows_in(answer: Answer | None) -> int:
        return 0 if answer is None else answer.rows


Users.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestUsers = pytest.mark.slow(pytest.mark.timeout(300)(Users.TestCase))


class ForgetsWhatComesBack(QueueActor):
    """Takes what a client had for used, when it leaves."""

    def leave(self, caller: CallerId) -> None:
        self.commit(caller.life, list(range(100)))
        super().leave(caller)


class MakesCallsTwice(QueueActor):
    """Ignores call numbers: treats each call as a new one."""

    count = 0

    async def enqueue(self, caller: Any, number: int, known: int, *rest: Any) -> Answer:
        self.count += 1
        life = f"{caller.life}, call {self.count}"
        return await super().enqueue(caller._replace(client=life, life=life), 0, 0, *rest)


class CountsCopies(QueueActor):
    """Treats a repeated `task_done` as a new one."""

    count = 0

    async def task_done(self, caller: Any, number: int, known: int, n: int) -> Answer:
        self.count += 1
        return await super().task_done(caller, self.count, 0, n)


class KeepsDoneWhatComesBack(QueueActor):
    """Forgets no `task_done`, though the lease of which it spoke goes back."""

    def leave(self, caller: CallerId) -> None:
        for number in self._lease_table.numbers_of(caller.life):
            self._lease_table._leases[caller.life][number].done = 0
        super().leave(caller)


@pytest.mark.parametrize(
    "kind", [ForgetsWhatComesBack, MakesCallsTwice, CountsCopies, KeepsDoneWhatComesBack]
)
def test_mistakes_are_found(kind: type[QueueActor]) -> None:
    def broken(capacity: int) -> tuple[QueueActor, Any]:
        _, description = fifo(capacity)
        return kind("desk", description), description

    users: Any = type("Broken", (Users,), {"make": staticmethod(broken)})
    with pytest.raises(AssertionError):
        for seed in range(200):
            _play(users(), random.Random(seed))


def _play(users: Users, choices: random.Random) -> None:
    """Do something 40 times, as hypothesis would, but without looking for less that fails."""
    try:
        for _ in range(40):
            if choices.random() < 0.4:
                users.arrive(choices.randrange(100))
            else:
                whats = [users.put, users.take, users.commit, users.die, users.task_done]
                what = choices.choice(whats)
                more: dict[Any, list[Any]] = {users.put: [2], users.take: [1, False, True]}
                more[users.task_done] = [1, True]
                what(choices.randrange(100), *more.get(what, []))
            users.answers_are_right()
            users.sums_agree()
    finally:
        users.teardown()
