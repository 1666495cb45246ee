"""The rules of the actor, without a cluster: numbered calls, leases, silent clients."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aioqueue.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    OutOfRangeError,
    QueueClosedError,
    WorkerDiedError,
)
from aioqueue.ray.idempotent_calls import StaleCallError
from aioqueue.ray.messages import Answer
from aioqueue.ray.queue_actor import QueueActor
from aioqueue.ray.segments import Payload
from tests.ray.local_handles import LocalHandle, Records, fifo, settled


def looped(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in a loop, which has nothing left to do when it ends."""

    @functools.wraps(test)
    def run(*args: Any, **options: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **options), 60))

    return run


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
@looped
async def test_calls_are_made_in_the_order_of_their_numbers(order: Any) -> None:
    actor, description = fifo()
    producer = LocalHandle(actor, description, "p")
    puts = [producer.put(number) for number in range(4)]
    for place in order:
        puts[place].arrive()
        await settled()
    taken = LocalHandle(actor, description, "c").take(4).arrive()
    await settled()
    assert taken.got == [0, 1, 2, 3]


@pytest.mark.parametrize("copies", [1, 2, 3])
@looped
async def test_a_repeated_call_is_made_once(copies: int) -> None:
    actor, description = fifo()
    producer, consumer = LocalHandle(actor, description, "p"), LocalHandle(actor, description, "c")
    put, take = producer.put(1, 2), consumer.take(1)
    for _ in range(copies):
        put.arrive()
        take.arrive()
        await settled()
    assert actor.statistics().enqueued == 2
    assert take.got == [1]
    assert actor.leases() == 1


@looped
async def test_a_copy_that_comes_late_changes_nothing() -> None:
    """The actor forgets a result once the caller has it."""
    actor, description = fifo()
    producer = LocalHandle(actor, description, "p")
    first = producer.put(1).arrive()
    await settled()
    producer.received(first)
    second = producer.put(2).arrive()
    await settled()
    first.arrive()
    await settled()
    assert second.answer
    assert second.answer.rows == 1
    assert actor.statistics().enqueued == 2


@looped
async def test_a_failure_is_an_answer_and_the_next_call_is_made() -> None:
    actor, description = fifo()
    caller = LocalHandle(actor, description, "p").caller
    broken = actor.enqueue(caller, 0, 0, Payload([1]), 1, 8, [1, 2], False)  # too many keys
    assert isinstance((await broken).error, ValueError)
    after = await actor.enqueue(caller, 1, 0, Payload([1]), 1, 8, None, False)
    assert after.rows == 1


@looped
async def test_a_cancellation_may_come_before_its_call() -> None:
    actor, description = fifo(1)
    producer, consumer = LocalHandle(actor, description, "p"), LocalHandle(actor, description, "c")
    taken = consumer.take(1)
    taken.cancel()
    taken.arrive()
    await settled()
    assert isinstance(taken.answer and taken.answer.error, StaleCallError)
    assert actor.statistics().waiting_dequeues == 0
    full, over = producer.put(1).arrive(), producer.put(2)
    over.cancel()
    over.arrive()
    await settled()
    assert full.answer is not None
    assert isinstance(over.answer and over.answer.error, StaleCallError)
    assert actor.statistics().waiting_enqueues == 0


@pytest.mark.parametrize("moment", ["waiting", "granted", "answered"])
@looped
async def test_a_cancelled_dequeue_has_taken_nothing(moment: str) -> None:
    actor, description = fifo()
    producer, consumer = LocalHandle(actor, description, "p"), LocalHandle(actor, description, "c")
    take = consumer.take(2).arrive()
    await settled()
    if moment != "waiting":
        producer.put(1, 2).arrive()
        await (asyncio.sleep(0) if moment == "granted" else settled())
    take.cancel()
    await settled()
    assert actor.leases() == 0
    if moment == "waiting":
        producer.put(1, 2).arrive()
    other = LocalHandle(actor, description, "d").take(2).arrive()
    await settled()
    assert other.got == [1, 2]


@looped
async def test_a_cancelled_enqueue_reports_how_many_rows_are_in() -> None:
    actor, description = fifo(2)
    put = LocalHandle(actor, description, "p").put(1, 2, 3).arrive()
    await settled()
    assert actor.statistics().waiting_enqueues == 1
    put.cancel()
    await settled()
    assert put.answer is not None
    assert put.answer.rows == 2
    assert isinstance(put.answer.error, StaleCallError)


@looped
async def test_bytes_are_bounded() -> None:
    """A row has 8 here."""
    description = fifo()[1]._replace(max_bytes=16)
    actor = QueueActor("desk", description)
    producer, consumer = LocalHandle(actor, description, "p"), LocalHandle(actor, description, "c")
    put = producer.put(1, 2, 3).arrive()
    await settled()
    assert (put.is_answered, actor.statistics().size) == (False, 2)
    taken = consumer.take(1).arrive()
    await settled()
    assert (taken.got, put.is_answered) == ([1], True)


@looped
async def test_leases_of_a_silent_client_return_first_and_in_order() -> None:
    actor, description = fifo()
    LocalHandle(actor, description, "p").put(*range(8)).arrive()
    silent, other = LocalHandle(actor, description, "s"), LocalHandle(actor, description, "o")
    for used in ([], [0], []):
        silent.take(2, used=used).arrive()
        await settled()
    actor.expire(0, 100)  # nothing was heard for longer than that, of anybody
    late = silent.take(1).arrive()
    taken = LocalHandle(actor, description, "n").take(6).arrive()
    await settled()
    assert taken.got == [2, 3, 4, 5, 6, 7]  # 0 and 1 were used
    assert isinstance(late.answer and late.answer.error, WorkerDiedError)
    assert "it was silent for" in str(late.answer and late.answer.error)
    assert other.life not in actor.clients()


class Life(str):
    """The name of a life, with a weak reference that shows whether it is still in use."""


@looped
async def test_a_dismissed_client_is_forgotten_after_a_while() -> None:
    actor, description = fifo()

    async def come_and_go() -> weakref.ref[Life]:
        handle = LocalHandle(actor, description, Life("gone"))
        handle.take(2).arrive()
        handle.take(9).arrive()  # which waits for ever
        await settled()
        assert actor.leases() == 1
        actor.leave(handle.caller)
        await settled()
        assert isinstance(handle.life, Life)
        return weakref.ref(handle.life)

    LocalHandle(actor, description, "p").put(*range(5)).arrive()
    dismissal = await come_and_go()
    gc.collect()
    assert dismissal() is not None  # so it can be told why it is not spoken to
    actor.expire(-1, -1)
    gc.collect()
    assert not actor.clients()
    assert dismissal() is None


@looped
async def test_leaving_ends_the_calls() -> None:
    actor, description = fifo(1)
    dismissal = LocalHandle(actor, description, "g")
    calls = [dismissal.put(1, 2).arrive(), dismissal.put(3).arrive(), dismissal.put(5)]
    late = dismissal.put(6).arrive()  # waits for the one that has not come
    await settled()
    actor.leave(dismissal.caller)
    await settled()
    assert [call.answer is not None for call in [*calls, late]] == [True, True, False, True]
    assert actor.statistics().waiting_enqueues == 0
    take = dismissal.take(1).arrive()
    await settled()
    assert isinstance(take.answer and take.answer.error, WorkerDiedError)


@looped
async def test_a_restarted_consumer_continues_at_its_lease() -> None:
    actor, description = fifo()
    LocalHandle(actor, description, "p").put(*range(6)).arrive()
    first = LocalHandle(actor, description, "one", "rank 0")
    first.take(2).arrive()
    first.take(2).arrive()
    waiting = first.take(4).arrive()
    await settled()
    again = LocalHandle(actor, description, "two", "rank 0", after=0)
    taken = again.take(4).arrive()
    await settled()
    assert taken.got == [2, 3, 4, 5]
    assert "was started again" in str(waiting.answer and waiting.answer.error)
    actor.leave(first.caller)  # its handle is collected late
    await settled()
    assert actor.leases() == 1
    old = first.take(1).arrive()
    await settled()
    assert "was started again" in str(old.answer and old.answer.error)


@looped
async def test_a_consumer_that_left_may_commit_after_its_restart() -> None:
    actor, description = fifo()
    LocalHandle(actor, description, "p").put(*range(4)).arrive()
    first = LocalHandle(actor, description, "one", "rank 0")
    first.take(2).arrive()
    await settled()
    actor.leave(first.caller)
    taken = LocalHandle(actor, description, "two", "rank 0", after=0).take(2).arrive()
    await settled()
    assert taken.got == [2, 3]


@looped
async def test_a_restart_after_the_lease_expired_is_refused() -> None:
    actor, description = fifo()
    LocalHandle(actor, description, "p").put(*range(4)).arrive()
    first = LocalHandle(actor, description, "one", "rank 0")
    first.take(2).arrive()
    await settled()
    actor.expire(-1, 100)
    late = LocalHandle(actor, description, "two", "rank 0", after=0).take(2).arrive()
    await settled()
    error = late.answer and late.answer.error
    assert isinstance(error, WorkerDiedError)
    assert "but it used them up to number 0" in str(error)
    fresh = LocalHandle(actor, description, "three", "rank 0").take(4).arrive()
    await settled()
    assert fresh.got == [0, 1, 2, 3]


@looped
async def test_the_end_waits_for_what_others_have() -> None:
    actor, description = fifo()
    LocalHandle(actor, description, "p").put(1, 2).arrive()
    holder, waiter = LocalHandle(actor, description, "h"), LocalHandle(actor, description, "w")
    holder.take(1).arrive()
    holder.take(1).arrive()
    await settled()
    actor.close(False, None)
    waiting = waiter.take(1, up_to=True).arrive()
    await settled()
    assert waiting.answer is None
    actor.commit(holder.life, [0])
    await settled()
    assert waiting.answer is None
    actor.leave(holder.caller)
    await settled()
    assert waiting.got == [2]


@pytest.mark.parametrize("asked", [1, 3])
@looped
async def test_no_wait_for_own_leases(asked: int) -> None:
    actor, description = fifo()
    LocalHandle(actor, description, "p").put(*range(3)).arrive()
    holder = LocalHandle(actor, description, "h")
    holder.take(1 if asked == 3 else 3).arrive()
    await settled()
    actor.close(False, None)
    more = holder.take(asked).arrive()
    await settled()
    assert more.answer is not None
    assert isinstance(more.answer.error, OutOfRangeError)
    assert more.answer.error.remaining == (2 if asked == 3 else 0)


@looped
async def test_a_loss_is_reported_once_and_other_rows_arrive() -> None:
    actor, description = fifo()
    caller = LocalHandle(actor, description, "p").caller
    await actor.enqueue(caller, 0, 0, Payload(None, ("ref",)), 2, 8, None, False)
    LocalHandle(actor, description, "q").put(7).arrive()
    consumer = LocalHandle(actor, description, "c")
    consumer.take(3).arrive()
    await settled()
    reported = actor.lost("c", 0, ["ref"])
    assert isinstance(reported.error, WorkerDiedError)
    assert "call 0 of producer p" in str(reported.error)
    again = consumer.take(2, up_to=True, max_wait=0).arrive()
    actor.close(False, None)
    await settled()
    assert again.got == [7]
    end = consumer.take(1, used=[1]).arrive()
    await settled()
    assert isinstance(end.answer and end.answer.error, OutOfRangeError)
    assert actor.leases() == 0


@looped
async def test_the_end_is_reported_if_all_is_lost() -> None:
    actor, description = fifo()
    caller = LocalHandle(actor, description, "p").caller
    await actor.enqueue(caller, 0, 0, Payload(None, ("ref",)), 2, 8, None, False)
    actor.close(False, None)
    consumer, other = LocalHandle(actor, description, "c"), LocalHandle(actor, description, "o")
    consumer.take(2).arrive()
    await settled()
    waiting = other.take(1).arrive()
    actor.lost("c", 0, ["ref"])
    await settled()
    assert isinstance(waiting.answer and waiting.answer.error, OutOfRangeError)
    assert actor.statistics().size == 0


@looped
async def test_closing_sends_its_cause_as_it_came() -> None:
    """Its class need not exist where the actor is."""
    actor, description = fifo(1)
    producer = LocalHandle(actor, description, "p")
    blocked = producer.put(1, 2).arrive()
    await settled()
    actor.close(True, b"first")
    actor.close(True, b"second")
    await settled()
    assert blocked.answer is not None
    assert isinstance(blocked.answer.error, QueueClosedError)
    assert blocked.answer.cause == b"first"
    assert blocked.answer.rows == 1


@looped
async def test_another_description_makes_no_client() -> None:
    actor, description = fifo(3)
    other = LocalHandle(actor, description._replace(capacity=4), "o")
    put = other.put(1).arrive()
    await actor.heartbeat(other.caller)
    await settled()
    assert isinstance(put.answer and put.answer.error, InvalidArgumentError)
    assert "capacity: got 4" in str(put.answer and put.answer.error)
    assert actor.clients() == []


@looped
async def test_draining_waits_until_what_was_taken_is_used() -> None:
    actor, description = fifo()
    LocalHandle(actor, description, "p").put(1, 2).arrive()
    consumer, other = LocalHandle(actor, description, "c"), LocalHandle(actor, description, "o")
    consumer.take(1).arrive()
    other.take(1).arrive()
    await settled()
    late = await actor.drain(consumer.caller, None, 0)
    assert isinstance(late.error, DeadlineExceededError)
    assert "there is still 1 lease" in str(late.error)
    draining = asyncio.ensure_future(actor.drain(consumer.caller, None, None))
    await settled()
    assert not draining.done()
    actor.commit("c", [0])
    assert await draining == Answer()
    assert actor.leases() == 1


@looped
async def test_a_node_is_drained_of_all_its_handles() -> None:
    actor, description = fifo()
    LocalHandle(actor, description, "p").put(1, 2).arrive()
    here, there = LocalHandle(actor, description, "h"), LocalHandle(actor, description, "t")
    for handle, node in ((here, "north"), (there, "south")):
        handle.caller = handle.caller._replace(node=node)
        handle.take(1).arrive()
        await settled()
    draining = asyncio.ensure_future(actor.drain(here.caller, "south", None))
    await settled()
    assert not draining.done()
    actor.leave(there.caller)
    assert await draining == Answer()
    assert actor.leases() == 1


@looped
async def test_the_node_of_the_actor_needs_a_journal() -> None:
    actor = QueueActor("desk", fifo()[1], node="north")
    handle = LocalHandle(actor, fifo()[1], "d")
    answer = await actor.drain(handle.caller, "north", None)
    assert isinstance(answer.error, InvalidArgumentError)
    assert "journal" in str(answer.error)
    kept = fifo()[1]._replace(journal="journal")
    actor = QueueActor("desk", kept, Records(), node="north")
    dismissal, staying, consumer = (
        LocalHandle(actor, kept, name) for name in ("gone", "staying", "c")
    )
    for one in (dismissal, staying, consumer):
        await one.rejoin(actor)
    dismissal.put(1).arrive()
    await settled()
    staying.put(2).arrive()
    await settled()
    actor.leave(dismissal.caller)
    draining = asyncio.ensure_future(actor.drain(staying.caller, "north", None))
    await settled()
    assert not draining.done()  # nobody else has what that one put in
    consumer.take(1).arrive()
    await settled()
    actor.commit("c", [0])
    assert await draining == Answer()
    assert actor.statistics().size == 1
