"""What is under way, or inside, when a queue is shared, and sharing from several threads."""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from tests.kit.sharing import PATIENCE, Child
from tests.kit.worlds import spin_until

Start = Callable[..., Child]

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


# What is inside already. Its pickling runs code of the user.


class Heavy:
    """An object whose pickling does something else."""

    threads: list[str] = []  # noqa: RUF012
    may_continue = threading.Event()

    def __init__(self, does: str) -> None:
        self.does = does

    def __reduce__(self) -> Any:
        self.threads.append(threading.current_thread().name)
        if self.does == "wait":
            assert self.may_continue.wait(PATIENCE)
        if self.does == "exit":
            raise SystemExit(3)
        return str, ("pickled",)


KINDS: dict[str, Callable[[], Any]] = {
    "objects": lambda: sync.FIFOQueue(5),
    "priorities": lambda: sync.PriorityQueue(5),
    "components": lambda: sync.FIFOQueue(5, [object, "int64"], [(), ()]),
}


def as_element(kind: str, thing: Any) -> Any:
    return {"objects": thing, "priorities": (1, thing), "components": (thing, 1)}[kind]


def take_one(queue: Any) -> Any:
    return queue.dequeue(timeout=PATIENCE)


def take_batch(queue: Any) -> Any:
    return queue.dequeue_up_to(2, 0, timeout=PATIENCE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("take", [take_one, take_batch])
def test_an_object_that_is_slow_to_pickle_stops_no_other_caller(
    child: Start, kind: str, take: Callable[[Any], Any]
) -> None:
    Heavy.may_continue.clear()
    Heavy.threads.clear()
    queue, other = KINDS[kind](), sync.FIFOQueue[Any](5)
    queue.enqueue(as_element(kind, Heavy("wait")))
    waiting = child(take, queue.share())
    spin_until(lambda: bool(Heavy.threads))
    other.enqueue(1)
    assert child(take_one, other.share()).result() == 1  # served meanwhile
    Heavy.may_continue.set()
    assert "pickled" in repr(waiting.result())
    assert Heavy.threads == ["aioqueue-pickling"]


def test_an_object_whose_pickling_exits(child: Start) -> None:
    queue = sync.FIFOQueue[Any](5)
    queue.enqueue(Heavy("exit"))
    queue.share()
    with pytest.raises(RuntimeError, match="its pickling raised SystemExit: 3"):
        child(take_one, queue).result()
    assert queue.dequeue().does == "exit"  # it went back
    queue.enqueue("next")
    assert child(take_one, queue).result() == "next"


def test_a_call_that_ends_while_its_object_is_pickled(child: Start) -> None:
    Heavy.may_continue.clear()
    Heavy.threads.clear()
    queue = sync.FIFOQueue[Any](5)
    queue.enqueue(Heavy("wait"))
    queue.enqueue(Heavy("nothing"))
    queue.enqueue("plain")
    killed = child(take_one, queue.share())
    spin_until(lambda: bool(Heavy.threads))
    killed.kill()
    spin_until(lambda: queue.size() == 3)
    Heavy.may_continue.set()
    assert child(take_batch, queue).result() == ["pickled", "pickled"]
    assert child(take_one, queue).result() == "plain"


# Several threads.


@pytest.mark.slow
def test_several_threads_share_one_queue(child: Start) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            _share_at_once(sync.FIFOQueue[Any](3))
            _share_at_once(aioqueue.Latest[Any]())
            _share_at_once(aioqueue.Coordinator())
            _share_at_once(sync.Batcher(list))
    finally:
        sys.setswitchinterval(interval)


def _share_at_once(thing: Any) -> None:
    barrier = threading.Barrier(4)
    pickles: list[bytes] = []

    def share() -> None:
        barrier.wait()
        pickles.append(pickle.dumps(thing.share()))

    threads = [threading.Thread(target=share) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pickles) == 4
    assert len(set(pickles)) == 1
