"""A crawler on a simulated queue: pages lead to pages, and `join` ends when all are fetched.

A program or the actor is killed at each moment of a run. In every case, a consumer that calls
`task_done` fetches each page, and the join ends after the last one, and not earlier.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from aioqueue.errors import InvalidArgumentError, OutOfRangeError, QueueClosedError, WorkerDiedError
from tests.ray.local_handles import LocalHandle, fifo, settled
from tests.ray.simulation import Killed, Program, Wire
from tests.ray.test_queue_actor import looped
from tests.ray.test_queue_calls_killed import VICTIMS, Faults

SITE: Mapping[int, list[int]] = {
    page: [link for link in (2 * page, 2 * page + 1) if link < 8] for page in range(1, 8)
}


class Spider:
    """A program that waits for the end, and a consumer that fetches pages.

    Attributes:
        fetched: the pages, once for each time.
        early: whether the join ended while a page was missing.
    """

    wire: Wire

    def __init__(self, **options: Any) -> None:
        self.fetched: list[int] = []
        self.early = False
        self.is_over = False
        self._options = options

    def go(self, faults: Faults) -> Spider:
        asyncio.run(self._go(faults))
        return self

    async def _go(self, faults: Faults) -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            self.wire = Wire(monkeypatch, faults)
            try:
                async with asyncio.timeout(60), asyncio.TaskGroup() as both:
                    both.create_task(self._wait(Program(self.wire, "producer")))
                    both.create_task(self._live())
            finally:
                await self.wire.end()

    def _open(self, program: Program) -> Any:
        return program.open(None, journal="/journal", **self._options)

    async def _wait(self, program: Program) -> None:
        queue = self._open(program)
        await queue.enqueue(1)
        await queue.join()
        self.early = set(self.fetched) != set(SITE)
        self.is_over = True
        await queue.close()

    async def _live(self) -> None:
        while True:
            program = Program(self.wire, "consumer")
            try:
                await self._fetch(program)
                return
            except Killed:
                self.wire.notice(program)
            finally:
                program.kill()

    async def _fetch(self, program: Program) -> None:
        queue = self._open(program)
        while True:
            try:
                page = await queue.dequeue()
            except OutOfRangeError:
                assert self.is_over
                return
            if SITE[page]:
                await queue.enqueue_many(SITE[page])
            self.fetched.append(page)
            await queue.task_done()


def each_moment(victim: str, **options: Any) -> Iterator[Spider]:
    for moment in itertools.count(1):
        spider = Spider(**options).go({moment: VICTIMS[victim]})
        yield spider
        if len(spider.wire.moments) < moment:
            return


@pytest.mark.slow(but="actor")
@pytest.mark.parametrize("victim", ["actor", "consumer"])
def test_the_join_ends_after_all_pages_despite_any_death(victim: str) -> None:
    deaths = 0
    for spider in each_moment(victim, owned=victim == "consumer"):
        assert set(spider.fetched) == set(SITE)
        assert not spider.early
        deaths += spider.wire.deaths
    assert deaths >= 20


@looped
async def test_what_goes_back_is_not_done() -> None:
    actor, description = fifo()
    handles = [LocalHandle(actor, description, name) for name in ("p", "c", "d")]
    producer, consumer, other = handles
    producer.put(1, 2, 3).arrive()
    consumer.take(2).arrive()
    await settled()
    assert (await actor.task_done(consumer.caller, 0, 0, 2)).error is None
    assert actor.statistics().unfinished == 1
    actor.leave(consumer.caller)
    assert actor.statistics().unfinished == 3
    join = asyncio.ensure_future(actor.join())
    other.take(3).arrive()
    await settled()
    too_many = (await actor.task_done(other.caller, 0, 0, 4)).error
    assert isinstance(too_many, InvalidArgumentError)
    assert "got n=4" in str(too_many)
    assert "3 unfinished elements" in str(too_many)
    assert not join.done()
    assert (await actor.task_done(other.caller, 1, 1, 3)).error is None
    assert (await join).error is None


@looped
async def test_task_done_needs_a_dequeued_element() -> None:
    actor, description = fifo()
    producer, consumer = (LocalHandle(actor, description, name) for name in ("p", "c"))
    producer.put(1).arrive()
    consumer.take(1).arrive()
    await settled()
    assert isinstance((await actor.task_done(producer.caller, 0, 0, 1)).error, ValueError)
    assert (await actor.task_done(consumer.caller, 0, 0, 1)).error is None


@looped
async def test_a_failure_ends_each_join_with_its_cause() -> None:
    actor, description = fifo()
    LocalHandle(actor, description, "p").put(1).arrive()
    await settled()
    joins = [asyncio.ensure_future(actor.join()) for _ in range(2)]
    await settled()
    actor.close(False, None)
    await settled()
    assert not any(join.done() for join in joins)  # consumers go on
    actor.close(False, b"why")
    for answer in [await join for join in joins]:
        assert isinstance(answer.error, QueueClosedError)
        assert answer.cause == b"why"
    assert joins[0].result().error is not joins[1].result().error
    assert isinstance((await actor.join()).error, QueueClosedError)


@looped
async def test_a_lost_element_is_done_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """No consumer gets a lost element, so none could call `task_done` for it."""
    actor, description = fifo()
    producer, consumer = (LocalHandle(actor, description, name) for name in ("p", "c"))
    producer.put(1).arrive()
    await settled()
    for segment in actor._segments:
        segment.is_lost = True
    reported = consumer.take(1).arrive()
    await settled()
    assert isinstance(reported.answer and reported.answer.error, WorkerDiedError)
    waiting = consumer.take(1).arrive()
    await settled()
    assert not waiting.is_answered
    assert (await actor.join()).error is None
