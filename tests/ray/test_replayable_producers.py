"""Replayable producers: each batch once over all their lives; lost batches are made again.

There is no cluster: the tests send what programs would send.
"""

from __future__ import annotations

from typing import Any

import pytest

from aioqueue.errors import InvalidArgumentError, WorkerDiedError
from aioqueue.ray import actor_sessions, replayable_producers
from aioqueue.ray.messages import Answer, Description
from aioqueue.ray.segments import Payload
from tests.ray.local_handles import LocalHandle, Records, RestartableActor, Sent, fifo, settled
from tests.ray.test_queue_actor import looped

FIFO = Description("FIFOQueue", None, 0, None, None, None, None, None, "journal")
BOOK = "shard 3"


def entered(handle: LocalHandle, place: int, *rows: Any, ref: str = "") -> Sent:
    """Enqueue a batch of a replayable producer, with a reference if it is in the object store."""
    payload = Payload(None, (ref,)) if ref else Payload(list(rows))
    return handle.made(
        "enqueue",
        lambda number, known: handle.actor.enqueue(
            handle.caller, number, known, payload, len(rows), 8, None, False, (BOOK, place)
        ),
    )[1].arrive()


async def begun(handle: LocalHandle) -> Answer:
    """The handle fills from now on."""
    answer = await handle.actor.begin_filling(handle.caller, BOOK)
    assert answer.error is None
    return answer


async def opened(*names: str, capacity: int | None = None) -> tuple[Any, ...]:
    """A queue, and handles of it, of which the first fills."""
    actor, description = fifo(capacity)
    handles = [LocalHandle(actor, description, name) for name in names]
    assert (await begun(handles[0])).rows == 0
    return actor, *handles


def answer_of(sent: Sent) -> Answer:
    assert sent.answer is not None
    assert sent.answer.error is None
    return sent.answer


@looped
async def test_each_batch_is_in_once_over_all_lives() -> None:
    _, first, second, consumer = await opened("one", "two", "c")
    for place in range(2):
        entered(first, place, 2 * place, 2 * place + 1)
        await settled()
    assert (await begun(second)).rows == 2
    again, third = entered(second, 1, 2, 3), entered(second, 2, 4, 5)
    await settled()
    assert answer_of(again).rows == answer_of(third).rows == 2
    taken = consumer.take(6).arrive()
    await settled()
    assert taken.got == list(range(6))


@pytest.mark.parametrize("rows", [3, 4, 6])
@looped
async def test_a_different_batch_of_the_same_number_is_refused(rows: int) -> None:
    """The rows that are in are those of the one before: it would never be in as a whole, or lack
    some. Nothing changes by that."""
    actor, first, second, consumer = await opened("one", "two", "c", capacity=3)
    entered(first, 0, *range(5))
    await settled()
    assert (await begun(second)).rows == 0
    other = entered(second, 0, *range(rows))
    await settled()
    reported = other.answer and other.answer.error
    assert isinstance(reported, InvalidArgumentError)
    expected = f"got {rows} rows for batch 0 of producer '{BOOK}', which had 5 before"
    assert f"make_batch: {expected}" in str(reported)
    entered(second, 0, *range(5))
    taken = consumer.take(5).arrive()
    await settled()
    assert taken.got == list(range(5))
    assert actor.statistics().waiting_enqueues == 0


@looped
async def test_it_is_also_known_by_an_actor_that_has_come_back() -> None:
    actor = RestartableActor("desk", FIFO._replace(capacity=3), Records())
    producer = LocalHandle(actor, FIFO._replace(capacity=3), "one")
    await producer.rejoin(actor)
    await begun(producer)
    entered(producer, 0, *range(5))
    await settled()
    actor.dismiss(producer.life)
    await settled()
    actor = actor.restarted()
    producer = LocalHandle(actor, FIFO._replace(capacity=3), "two")
    await producer.rejoin(actor)
    await begun(producer)
    other = entered(producer, 0, *range(4))
    await settled()
    assert "had 5 before" in str(other.answer and other.answer.error)


@looped
async def test_a_partly_enqueued_batch_is_completed() -> None:
    actor, first, second, consumer = await opened("one", "two", "c", capacity=3)
    entered(first, 0, *range(5))
    await settled()
    assert actor.statistics().size == 3
    assert (await begun(second)).rows == 0
    entered(second, 0, *range(5))
    taken = consumer.take(5).arrive()
    await settled()
    assert taken.got == list(range(5))
    assert actor.statistics().enqueued == 5


@looped
async def test_lost_batches_are_requested_from_the_next_life() -> None:
    actor, first, second, consumer = await opened("one", "two", "c")
    entered(first, 0, 0, 1, ref="gone")
    await settled()
    consumer.take(2).arrive()
    await settled()
    actor.dismiss("one")
    assert actor.lost("c", 0, ["gone"]).must_retry
    taken = consumer.take(2).arrive()
    await settled()
    assert not taken.is_answered
    assert await begun(second) == Answer(rows=1, requested=[0])
    again = entered(second, 0, 0, 1)
    await settled()
    assert answer_of(again).requested == []
    assert taken.got == [0, 1]
    assert actor.statistics().enqueued == 2


@looped
async def test_batches_of_a_former_life_are_requested_at_once() -> None:
    _, first, second = await opened("one", "two")
    entered(first, 0, 0, 1, ref="gone")
    entered(first, 1, 2, 3)  # which is with the queue
    await settled()
    assert (await begun(second)).requested == [0]


@looped
async def test_a_producer_that_waits_for_room_learns_of_a_requested_batch() -> None:
    """Else it would wait for its consumers, and they for it."""
    actor, producer, consumer = await opened("p", "c", capacity=2)
    entered(producer, 0, 0, 1, ref="gone")
    await settled()
    consumer.take(2).arrive()
    await settled()
    blocked = entered(producer, 1, *range(2, 6))
    await settled()
    assert not blocked.is_answered
    assert actor.lost("c", 0, ["gone"]).must_retry
    await settled()
    answer = answer_of(blocked)
    assert answer.requested == [0]
    assert answer.rows < 4
    entered(producer, 0, 0, 1)
    entered(producer, 1, *range(2, 6))
    taken = consumer.take(6).arrive()
    await settled()
    assert taken.got == list(range(6))


@looped
async def test_what_is_left_at_the_end_is_copied_to_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor, producer, consumer, other = await opened("p", "c", "two")
    for place in range(3):
        entered(producer, place, 2 * place, 2 * place + 1, ref=f"there {place}")
        await settled()
    consumer.take(2).arrive()
    consumer.take(1, used=[0]).arrive()
    await settled()
    copied = []

    async def copy_to_actor(payload: Payload) -> Payload:
        copied.append(payload.ref)
        return Payload(None, ("here",))

    monkeypatch.setattr(actor_sessions, "copy_to_actor", copy_to_actor)
    assert (await actor.end_filling(producer.caller, BOOK)).requested == []
    assert copied == [("there 1",), ("there 2",)]
    assert actor.lost("c", 1, ["there 1"]).must_retry
    assert await begun(other) == Answer(rows=3, requested=[])


@looped
async def test_lost_batches_are_requested_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor, producer = await opened("p")
    entered(producer, 0, 0, 1, ref="gone")
    await settled()

    async def copy_to_actor(payload: Payload) -> Payload:
        raise LookupError("gone")

    monkeypatch.setattr(actor_sessions, "copy_to_actor", copy_to_actor)
    monkeypatch.setattr(actor_sessions, "is_loss", lambda error: isinstance(error, LookupError))
    assert (await actor.end_filling(producer.caller, BOOK)).requested == [0]
    entered(producer, 0, 0, 1)
    await settled()
    assert (await actor.end_filling(producer.caller, BOOK)).requested == []


@looped
async def test_a_producer_that_never_comes_back_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor, producer, consumer, other = await opened("p", "c", "two")
    entered(producer, 0, 0, 1, ref="gone")
    await settled()
    consumer.take(2).arrive()
    await settled()
    actor.lost("c", 0, ["gone"])
    taken = consumer.take(2).arrive()
    actor.give_up_requested()
    await settled()
    assert not taken.is_answered  # it lives
    actor.dismiss("p")
    actor.give_up_requested()
    await settled()
    assert not taken.is_answered  # it may come back
    monkeypatch.setattr(replayable_producers, "RETURN_SECONDS", 0.0)
    actor.give_up_requested()
    await settled()
    assert taken.answer is not None
    assert isinstance(taken.answer.error, WorkerDiedError)
    assert "call 0 of producer p" in str(taken.answer.error)
    assert await begun(other) == Answer(rows=1, requested=[])


@looped
async def test_the_former_handle_may_not_continue() -> None:
    actor, first, second = await opened("one", "two")
    await begun(second)
    late = entered(first, 0, 1)
    await settled()
    assert isinstance(late.answer and late.answer.error, WorkerDiedError)
    reported = await actor.end_filling(first.caller, BOOK)
    assert "producer 'shard 3' was started again" in str(reported.error)
    assert actor.statistics().size == 0


@looped
async def test_one_fills_at_a_time() -> None:
    _, producer, consumer = await opened("p", "c", capacity=1)
    entered(producer, 0, 0, 1)
    second = entered(producer, 0, 0, 1)
    await settled()
    assert isinstance(second.answer and second.answer.error, InvalidArgumentError)
    taken = consumer.take(2).arrive()
    await settled()
    assert taken.got == [0, 1]


@looped
async def test_a_restarted_actor_knows_the_progress_of_producers() -> None:
    actor = RestartableActor("desk", FIFO, Records())
    producer = LocalHandle(actor, FIFO, "one")
    await producer.rejoin(actor)
    await begun(producer)
    for place in range(2):
        entered(producer, place, 2 * place, 2 * place + 1)
        await settled()
    written = list(actor.records.ledger.records())
    actor = actor.restarted()
    assert written.count(["fill", BOOK, 2, [], 0]) == 1
    other = LocalHandle(actor, FIFO, "two")
    await other.rejoin(actor)
    assert (await begun(other)).rows == 2
