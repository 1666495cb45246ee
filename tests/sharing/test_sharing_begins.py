"""What is under way, or inside, when a queue is shared, and sharing from several threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from tests.kit.worlds import spin_until

pytestmark = pytest.mark.usefixtures("child")  # what is shared ends with each test


class Thing:
    """An object that a shared queue pickles."""

    def __eq__(self, other: object) -> bool:
        return type(other) is Thing

    __hash__ = None  # type: ignore[assignment]


# Local callers that wait while their queue is shared.


TAKES: dict[str, Callable[[Any], Any]] = {
    "dequeue": lambda queue: queue.dequeue(),
    "next": next,
    "dequeue_many": lambda queue: queue.dequeue_many(1)[0],
    "dequeue_up_to": lambda queue: queue.dequeue_up_to(1)[0],
}


@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
def test_a_thread_that_waits_already(take: Callable[[Any], Any]) -> None:
    queue = sync.FIFOQueue(5)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(take(queue)))
    thread.start()
    spin_until(lambda: queue.statistics().waiting_dequeues == 1)
    queue.share()
    queue.enqueue(Thing())
    thread.join()
    assert found == [Thing()]


async def _many(queue: Any) -> Any:
    return (await queue.dequeue_many(1))[0]


async def _pausing(queue: Any) -> Any:
    queue._budget = 0  # so that this call lets other tasks run
    return await queue.dequeue()


ASYNC_TAKES: dict[str, Callable[[Any], Any]] = {
    "dequeue": lambda queue: queue.dequeue(),
    "anext": anext,
    "dequeue_many": _many,
    "dequeue_with_pause": _pausing,
}


@pytest.mark.parametrize("take", ASYNC_TAKES.values(), ids=ASYNC_TAKES)
def test_a_task_that_waits_already(take: Callable[[Any], Any]) -> None:
    async def main() -> Any:
        queue = aioqueue.FIFOQueue[Any](5)

        async def taken() -> Any:
            return await take(queue)

        task = asyncio.create_task(taken())
        while not queue.statistics().waiting_dequeues:
            await asyncio.sleep(0)
        queue.share()
        await queue.enqueue(Thing())
        return await task

    assert asyncio.run(main()) == Thing()


def test_a_thread_that_waits_to_put_in() -> None:
    queue = sync.FIFOQueue(1)
    queue.enqueue(Thing())
    thread = threading.Thread(target=lambda: queue.enqueue(Thing()))
    thread.start()
    spin_until(lambda: queue.statistics().waiting_enqueues == 1)
    queue.share()
    assert [queue.dequeue(), queue.dequeue()] == [Thing(), Thing()]
    thread.join()
