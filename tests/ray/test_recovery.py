"""An actor that dies at any moment, and recovers from its journal, without a cluster.

The same holds as while it lives (`tests.ray.test_queue_actor_model`): each enqueued row reaches one
consumer that commits it, even if the death loses all records that no caller has waited for.
"""

from __future__ import annotations

import itertools
import random
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule

from aioqueue.errors import DataLossError, OutOfRangeError, QueueClosedError, WorkerDiedError
from aioqueue.ray.ledger import QueueLedger
from aioqueue.ray.messages import Answer, Description
from tests.ray.local_handles import LocalHandle, Records, RestartableActor, settled
from tests.ray.test_queue_actor import looped
from tests.ray.test_queue_actor_model import CHOICES, Users

FIFO = Description("FIFOQueue", None, 0, None, None, None, None, None, "journal")


async def handles(
    *names: str, description: Description = FIFO
) -> tuple[RestartableActor, list[LocalHandle]]:
    actor = RestartableActor("desk", description, Records())
    made = [LocalHandle(actor, description, name) for name in names]
    for handle in made:
        await handle.rejoin(actor)
    return actor, made


async def died(actor: RestartableActor, *living: LocalHandle, held: Any = ()) -> RestartableActor:
    """Restart the actor. The living clients rejoin, and repeat their calls."""
    lost = [sent for handle in living for sent in handle.calls if sent.has_arrived]
    for sent in lost:
        sent.lose()
    actor = actor.restarted()
    for handle in living:
        await handle.rejoin(actor, dict(held).get(handle.life, ()))
    for sent in lost:
        if sent.answer is None:
            sent.arrive()
    await settled()
    return actor


@looped
async def test_uncommitted_batches_are_sent_again_in_order() -> None:
    actor, (one, two, consumer) = await handles("one", "two", "c")
    one.put(0, 1, 2).arrive()
    two.put(3, 4).arrive()
    await settled()
    one.put(5, 6).arrive()
    first = consumer.take(2).arrive()
    await settled()
    assert first.got == [0, 1]
    actor = await died(actor, two, one, consumer, held={"c": [0]})
    rest = consumer.take(5, used=[0]).arrive()
    await settled()
    assert rest.got == [2, 3, 4, 5, 6]
    assert actor.statistics().size == 0
    assert actor.leases() == 1


@looped
async def test_a_lease_outlives_the_actor() -> None:
    """A consumer may commit rows that it received before. Otherwise they return to the front."""
    actor, (producer, holder, loser) = await handles("p", "k", "l")
    producer.put(*range(6)).arrive()
    holder.take(2).arrive()
    await settled()
    loser.take(2).arrive()
    await settled()
    actor = await died(actor, producer, holder, loser, held={"k": [0], "l": [0]})
    assert actor.leases() == 2
    actor.commit("k", [0])
    actor.leave(loser.caller)
    rest = holder.take(4).arrive()
    await settled()
    assert rest.got == [2, 3, 4, 5]


@looped
async def test_a_report_for_an_earlier_start_is_refused() -> None:
    """Ray repeats a report without an answer, after the actor has died once more. In between,
    other calls were answered."""
    actor, (producer, consumer) = await handles("p", "c")
    before = [(handle.caller, handle.report()) for handle in (producer, consumer)]
    producer.put(0, 1).arrive()
    consumer.take(1).arrive()
    await settled()
    actor = actor.restarted()
    for caller, report in before:
        assert await actor.rejoin(caller, report) == Answer(starts=2, is_outdated=True)
    for handle, held in ((producer, []), (consumer, [0])):
        assert await handle.rejoin(actor, held) == Answer(starts=2)
    assert actor.leases() == 1
    rest = consumer.take(1, used=[0]).arrive()
    await settled()
    assert rest.got == [1]


@looped
async def test_a_waiting_call_keeps_its_commit() -> None:
    """It has said so, but had no answer: the journal may have lost that."""
    actor, (producer, consumer) = await handles("p", "c")
    producer.put(0).arrive()
    consumer.take(1).arrive()
    await settled()
    waiting = consumer.take(1, used=[0]).arrive()
    await settled()
    actor = await died(actor, producer, consumer, held={"c": [0]})
    assert (actor.statistics().size, actor.leases()) == (0, 0)
    producer.put(1).arrive()
    await settled()
    assert waiting.got == [1]


@looped
async def test_a_lease_with_a_lost_answer_is_delivered_again() -> None:
    actor, (producer, consumer) = await handles("p", "c")
    producer.put(*range(4)).arrive()
    take = consumer.take(2).arrive()
    await settled()
    assert take.got == [0, 1]
    take.miss()  # its answer was on its way
    actor = await died(actor, producer, consumer)
    take.arrive()
    after = consumer.take(2).arrive()
    await settled()
    assert (take.got, after.got) == ([0, 1], [2, 3])


@looped
async def test_an_enqueue_whose_answer_was_lost_is_in_once() -> None:
    actor, (producer, consumer) = await handles("p", "c")
    put = producer.put(1, 2).arrive()
    await settled()
    put.miss()
    actor = await died(actor, producer, consumer)
    put.arrive()
    taken = consumer.take(2).arrive()
    await settled()
    assert put.answer
    assert put.answer.rows == 2
    assert taken.got == [1, 2]
    assert actor.statistics().size == 0


@looped
async def test_a_waiting_enqueue_continues_with_its_other_rows() -> None:
    actor, (producer, consumer) = await handles("p", "c", description=FIFO._replace(capacity=2))
    put = producer.put(*range(6)).arrive()
    first = consumer.take(2).arrive()
    await settled()
    assert first.got == [0, 1]
    actor = await died(actor, producer, consumer, held={"c": [0]})
    assert not put.is_answered
    assert actor.statistics().size == 2
    rest = consumer.take(4, used=[0]).arrive()
    await settled()
    assert rest.got == [2, 3, 4, 5]
    assert put.answer
    assert put.answer.rows == 6


@looped
async def test_the_end_waits_for_what_is_awaited() -> None:
    actor, (producer, consumer) = await handles("p", "c")
    producer.put(1, 2).arrive()
    await settled()
    await actor.close_for_good(False, b"why")
    actor = await died(actor, consumer)
    waiting = consumer.take(2).arrive()
    await settled()
    assert not waiting.is_answered
    await producer.rejoin(actor)
    await settled()
    assert waiting.got == [1, 2]
    late = producer.put(3).arrive()
    end = consumer.take(1, used=[0]).arrive()
    await settled()
    assert late.answer
    assert isinstance(late.answer.error, QueueClosedError)
    assert late.answer.cause == b"why"
    assert isinstance(end.answer and end.answer.error, OutOfRangeError)


@pytest.mark.parametrize("has_left", [True, False])
@looped
async def test_a_loss_after_a_restart_is_reported_once(has_left: bool) -> None:
    actor, (dismissed, producer, consumer) = await handles("gone", "p", "c")
    dismissed.put(1, 2).arrive()
    await settled()
    producer.put(3).arrive()
    if has_left:
        actor.leave(dismissed.caller)
    await settled()
    actor = await died(actor, producer, consumer)
    first = consumer.take(1).arrive()
    await settled()
    if not has_left:
        assert first.answer is None
        actor.dismiss("gone")  # nothing was heard of it
        await settled()
    reported = first.answer and first.answer.error
    assert isinstance(reported, WorkerDiedError)
    assert "call 0 of producer gone" in str(reported)
    after = consumer.take(1).arrive()
    await settled()
    assert after.got == [3]


@looped
async def test_a_client_may_leave_without_a_report() -> None:
    """Otherwise consumers would wait for its batches until its lease expires."""
    actor, (dismissed, consumer) = await handles("gone", "c")
    dismissed.put(1, 2).arrive()
    await settled()
    actor = await died(actor, consumer)
    waiting = consumer.take(1).arrive()
    await settled()
    assert not waiting.is_answered
    actor.leave(dismissed.caller)
    await settled()
    assert isinstance(waiting.answer and waiting.answer.error, WorkerDiedError)


@looped
async def test_more_comes_back_than_fits() -> None:
    """A consumer had given back what it had, while others had filled the room that it left."""
    description = FIFO._replace(max_bytes=16)  # a row has 8
    actor, (producer, dismissed, consumer) = await handles(
        "p", "gone", "c", description=description
    )
    producer.put(0, 1).arrive()
    dismissed.take(2).arrive()
    await settled()
    producer.put(2, 3).arrive()
    await settled()
    actor.leave(dismissed.caller)
    await actor.records.flushed()
    actor = await died(actor, producer, consumer)
    late = producer.put(4).arrive()
    await settled()
    assert (actor.statistics().size, late.is_answered) == (4, False)
    rest = consumer.take(5).arrive()
    await settled()
    assert rest.got == [0, 1, 2, 3, 4]


@looped
async def test_priorities_and_shuffles_come_back() -> None:
    for kind, keys in (("PriorityQueue", [2, 1, 3, 0]), ("RandomShuffleQueue", None)):
        description = FIFO._replace(kind=kind, min_after_dequeue=0 if keys else 1, seed=3)
        actor, (producer, consumer) = await handles("p", "c", description=description)
        put = producer.put(*"abcd")
        caller, (_, payload) = producer.caller, producer.kept[0]
        put.call = partial(actor.enqueue, caller, 0, 0, payload, 4, 8, keys, False)
        put.arrive()
        first = consumer.take(2).arrive()
        await settled()
        actor = await died(actor, producer, consumer, held={"c": [0]})
        actor.close(False, None)
        rest = consumer.take(2).arrive()
        await settled()
        assert sorted(first.got + rest.got) == list("abcd")
        if keys:
            assert (first.got, rest.got) == (["d", "b"], ["a", "c"])


@looped
async def test_saved_lease_numbers_give_each_element_once() -> None:
    actor, (producer,) = await handles("p")
    producer.put(*range(6)).arrive()
    first = LocalHandle(actor, FIFO, "one", "rank 0")
    await first.rejoin(actor)
    for _ in range(2):
        first.take(2).arrive()
    await settled()
    actor = await died(actor, producer)  # and the consumer with it
    again = LocalHandle(actor, FIFO, "two", "rank 0", after=0)
    await again.rejoin(actor)
    taken = again.take(4).arrive()
    await settled()
    assert taken.got == [2, 3, 4, 5]
    counts = actor.statistics()
    assert (counts.enqueued, counts.size, counts.dequeued) == (6, 0, 2)
    assert actor.leases() == 1  # which has the rest


@looped
async def test_a_client_without_a_report_is_asked_for_one() -> None:
    actor, (producer,) = await handles("p")
    actor = actor.restarted()
    producer.actor = actor
    put = producer.put(1).arrive()
    await settled()
    assert put.answer == Answer(starts=2)
    assert (await actor.heartbeat(producer.caller)).starts == 2
    assert (await producer.rejoin(actor)).starts == 2


@pytest.mark.parametrize("is_first", [True, False])
@looped
async def test_an_answer_in_flight_blocks_no_call(is_first: bool) -> None:
    """The answer arrives after the report that called it unanswered: the call is not repeated."""
    actor, (producer, consumer) = await handles("p", "c")
    put, take = producer.put(1).arrive(), consumer.take(1).arrive()
    await settled()
    for sent in (put, take):
        sent.miss()
    actor = actor.restarted()
    for handle in (producer, consumer):
        await handle.rejoin(actor)
    if is_first:
        actor.skip(producer.caller, "enqueue", put.number)
        actor.skip(consumer.caller, "dequeue", take.number)
    after = producer.put(2).arrive()
    taken = consumer.take(1).arrive()
    await settled()
    if not is_first:
        assert not taken.is_answered
        actor.skip(producer.caller, "enqueue", put.number)
        actor.skip(consumer.caller, "dequeue", take.number)
        await settled()
    assert after.is_answered
    assert taken.got == [2]


@looped
async def test_producers_learn_which_batches_to_drop() -> None:
    actor, (producer, consumer) = await handles("p", "c")
    for number in range(3):
        producer.put(number).arrive()
    await settled()
    consumer.take(2).arrive()
    await settled()
    actor.commit("c", [0])
    put = producer.put(3).arrive()
    await settled()
    assert put.answer
    assert put.answer.freed == [0, 1]
    assert (await actor.heartbeat(producer.caller, [0, 1, 2, 3])).freed == [0, 1]


@looped
async def test_a_failed_call_keeps_its_commit() -> None:
    """Its answer is the end; the consumer then takes it for known what it has used by it."""
    actor, (producer, consumer) = await handles("p", "c")
    producer.put(0).arrive()
    consumer.take(1).arrive()
    await settled()
    await actor.close_for_good(False, None)
    end = consumer.take(1, used=[0]).arrive()
    await settled()
    assert isinstance(end.answer and end.answer.error, OutOfRangeError)
    actor = await died(actor, producer, consumer)
    assert (actor.statistics().size, actor.leases()) == (0, 0)


@looped
async def test_a_dismissed_client_stays_dismissed_after_a_restart() -> None:
    """Otherwise the refused handle would take the name from the current one."""
    actor, (producer,) = await handles("p")
    producer.put(*range(4)).arrive()
    former, new = (LocalHandle(actor, FIFO, life, "rank 0") for life in ("one", "two"))
    for handle in (former, new):
        await handle.rejoin(actor)
        handle.take(1).arrive()
        await settled()
    for _ in range(2):  # also from what is written of it in short
        actor = await died(actor, producer, new, held={"two": [1]})
        assert "does not know this handle any more" in str((await former.rejoin(actor)).error)
    after = new.take(3, used=[1]).arrive()
    await settled()
    assert after.got == [1, 2, 3]


@looped
async def test_a_journal_older_than_a_delivered_lease_is_refused() -> None:
    """The file was replaced by an old copy."""
    actor, (producer, consumer) = await handles("p", "c")
    producer.put(*range(4)).arrive()
    consumer.take(1).arrive()
    await settled()
    old = Records(actor.records)
    for _ in range(2):
        consumer.take(1).arrive()
        await settled()
    consumer.actor = actor = RestartableActor("desk", FIFO, old)
    reported = (await consumer.rejoin(actor, [0, 1, 2])).error
    assert isinstance(reported, DataLossError)
    assert "leases of consumer 'c' up to number 0, which has number 2" in str(reported)
    assert (await consumer.rejoin(actor, [0])).error is None


@looped
async def test_a_restarted_consumer_keeps_its_leases_until_they_expire() -> None:
    """With a journal its first call is refused, since it has to report its state first."""
    actor, (producer,) = await handles("p")
    producer.put(*range(6)).arrive()
    first = LocalHandle(actor, FIFO, "one", "rank 0")
    await first.rejoin(actor)
    first.take(2).arrive()
    first.take(2).arrive()
    await settled()
    again = LocalHandle(actor, FIFO, "two", "rank 0", after=0)
    assert actor.agree(again.caller).starts
    assert actor.leases() == 2  # nothing has changed by that
    assert (await again.rejoin(actor)).error is None
    taken = again.take(2).arrive()
    await settled()
    assert (taken.number, taken.got) == (2, [2, 3])


@pytest.mark.parametrize("moment", range(12))
@looped
async def test_the_ledger_in_short_is_the_same(moment: int) -> None:
    actor, (producer, consumer) = await handles("p", "c", description=FIFO._replace(capacity=3))
    choices = random.Random(moment)
    numbers, add_applied_call = itertools.count(), itertools.count()
    for _ in range(30):
        what = choices.randrange(4)
        if what == 0:
            producer.put(*(next(numbers) for _ in range(choices.randint(1, 3)))).arrive()
        elif what == 1:
            consumer.take(choices.randint(1, 3)).arrive()
        elif what == 2:
            actor.commit("c", [choices.randrange(10)])
        else:
            number = next(add_applied_call)
            await actor.task_done(consumer.caller, number, number, choices.randint(1, 3))
        await settled()
    ledger = actor.records.ledger
    again = QueueLedger()
    for record in ledger.records():
        again.apply(record)
    assert list(again.records()) == list(ledger.records())
    assert again.leased() == ledger.leased()


class UsersOfOneThatDies(Users):
    """The same, and the actor dies at any moment."""

    async def _made(self) -> tuple[RestartableActor, Any]:
        description = FIFO._replace(capacity=3)
        return RestartableActor("desk", description, Records()), description

    def _handle(self, name: str = "", after: int | None = None) -> LocalHandle:
        handle = super()._handle(name, after)
        self._run(handle.rejoin(self.actor))
        return handle

    @rule(choice=CHOICES)
    def commit(self, choice: int) -> None:
        """Commit durably: a death may lose records that no caller waits for."""
        if self.held:
            life, number = self._one_of(list(self.held), choice)
            self._run(self.actor.use(life, [number]))
            self._use(self._consumer(life), number)
            self._settle()

    @rule()
    def the_actor_dies(self) -> None:
        living = self.producers + self.consumers
        held: dict[str, list[int]] = {}
        for life, number in self.held:
            held.setdefault(life, []).append(number)
        for take, numbers in self.uses:
            if take.answer is None:  # a program has them until the actor has said that it knows
                held.setdefault(take.handle.life, []).extend(numbers)
        self.actor = self._run(died(self.actor, *living, held=held))
        # But for what was used by calls that had no answer yet: they say so again.
        self.used_before = len(self.used) - self.actor.statistics().dequeued
        for life in set(self.actor.clients()) - {handle.life for handle in living}:
            self.actor.dismiss(life)
        self._settle()

    @rule()
    def close(self) -> None:
        self.is_closed = True
        self._run(self.actor.close_for_good(False, None))
        self._settle()


UsersOfOneThatDies.TestCase.settings = settings(
    max_examples=50,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestUsersOfOneThatDies = pytest.mark.slow(pytest.mark.timeout(300)(UsersOfOneThatDies.TestCase))


@pytest.mark.parametrize("what", ["lease", "used", "in", "put", "done"])
def test_what_is_not_in_the_journal_is_missed(what: str) -> None:
    """The search above can fail: it finds each kind of record that is left out."""

    class Forgetful(Records):
        def append(self, *record: object) -> None:
            if record[0] != what:
                super().append(*record)

    class Broken(UsersOfOneThatDies):
        async def _made(self) -> tuple[RestartableActor, Any]:
            description = FIFO._replace(capacity=3)
            return RestartableActor("desk", description, Forgetful()), description

    with pytest.raises(AssertionError):
        for seed in range(100):
            _play(Broken(), random.Random(seed))


def _play(users: UsersOfOneThatDies, choices: random.Random) -> None:
    try:
        for _ in range(40):
            choice = choices.randrange(100)
            what = choices.randrange(7)
            if what == 0:
                users.put(choice, 2)
            elif what == 1:
                users.take(choice, 1, False, choice % 2 == 0)
            elif what == 2:
                users.commit(choice)
            elif what == 3:
                users.the_actor_dies()
            elif what == 4:
                users.task_done(choice, 1, choice % 2 == 0)
            else:
                users.arrive(choice)
            users.answers_are_right()
            users.sums_agree()
    finally:
        users.teardown()
