"""What is on its way has a bound, on both sides."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from aioqueue import sync
from aioqueue.errors import CancelledError, DeadlineExceededError, WorkerDiedError
from aioqueue.sharing import owner, queues
from tests.kit.sharing import Child
from tests.kit.worlds import spin_until

Start = Callable[..., Child]

MEBIBYTE = 1 << 20


def own(capacity: int | None, pipe: Any) -> None:
    pipe.send(sync.FIFOQueue(capacity, name="jobs").share())
    pipe.recv()


def stopped_owner(child: Start, capacity: int | None = None) -> tuple[Child, Any]:
    owning = child(own, capacity, talks=True)
    queue = owning.reported()
    queue.size()
    os.kill(owning.pid, signal.SIGSTOP)
    return owning, queue


def test_enqueues_at_an_owner_that_does_not_read(child: Start) -> None:
    """Callers beyond the bound wait before they pickle, and hear of the owner's death."""
    owning, queue = stopped_owner(child)

    async def main() -> list[Any]:
        tasks = [asyncio.ensure_future(queue.aio.enqueue(bytes(MEBIBYTE))) for _ in range(50)]
        await asyncio.sleep(0.1)
        assert queue._machine.connection().socket.outgoing_bytes <= owner.MOST_UNSENT + MEBIBYTE
        os.kill(owning.pid, signal.SIGKILL)
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert {type(one) for one in asyncio.run(main())} == {WorkerDiedError}


def test_callers_that_wait_for_room_proceed_in_their_order(child: Start) -> None:
    owning, queue = stopped_owner(child)

    async def main() -> None:
        tasks = [
            asyncio.ensure_future(queue.aio.enqueue((number, bytes(MEBIBYTE))))
            for number in range(30)
        ]
        await asyncio.sleep(0.1)
        tasks[20].cancel()  # one that waits for room: it leaves the line, and nothing else happens
        os.kill(owning.pid, signal.SIGCONT)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[20], asyncio.CancelledError)

    asyncio.run(main())
    assert [queue.dequeue()[0] for _ in range(29)] == [n for n in range(30) if n != 20]


def has_begun(machine: Any, n: int) -> bool:
    """Whether n enqueues have been sent, or wait for room."""
    return len(machine._calls) + len(machine._rooms) == n


def test_threads_that_wait_for_room(child: Start) -> None:
    owning, queue = stopped_owner(child)
    connection = queue._machine.connection()
    scope = sync.CancelScope()
    ends: list[Any] = []

    def put() -> None:
        with scope:
            try:
                queue.enqueue(bytes(MEBIBYTE))
            except CancelledError as error:
                ends.append(error)

    threads = [threading.Thread(target=put) for _ in range(8)]
    for number, thread in enumerate(threads):
        thread.start()
        # One after the other: those of one moment all see the same room.
        spin_until(partial(has_begun, queue._machine, number + 1))
    assert len(queue._machine._rooms) >= 2
    assert connection.socket.outgoing_bytes < 8 * MEBIBYTE
    with pytest.raises(DeadlineExceededError):  # it waits for room, too, and has sent nothing
        queue.enqueue(bytes(MEBIBYTE), timeout=0.01)
    waiting = len(queue._machine._rooms)
    scope.cancel()
    spin_until(lambda: len(ends) == waiting)  # the others wait for the owner's word
    os.kill(owning.pid, signal.SIGCONT)
    for thread in threads:
        thread.join()
    assert queue.size() == 8 - len(ends)


def fill_a_full_queue(queue: Any, pipe: Any) -> None:
    async def main() -> None:
        tasks = [asyncio.ensure_future(queue.aio.enqueue(bytes(MEBIBYTE))) for _ in range(60)]
        await asyncio.sleep(0.3)
        pipe.send(queue._machine._unanswered)
        await asyncio.gather(*tasks)

    asyncio.run(main())


def test_enqueues_that_wait_at_a_full_queue(child: Start) -> None:
    queue = sync.FIFOQueue(1).share()
    filling = child(fill_a_full_queue, queue, talks=True)
    assert filling.reported() <= queues.MOST_UNANSWERED + 2 * MEBIBYTE
    for _ in range(60):
        assert len(queue.dequeue()) == MEBIBYTE
    filling.result()


def take_and_stop(queue: Any, pipe: Any) -> None:
    async def main() -> None:
        tasks = [asyncio.ensure_future(queue.aio.dequeue()) for _ in range(200)]
        await asyncio.sleep(0)  # they begin
        await asyncio.sleep(0)  # what they have begun is sent when that round is over
        pipe.send("waits")
        os.kill(os.getpid(), signal.SIGSTOP)
        await asyncio.gather(*tasks)

    asyncio.run(main())


def test_answers_for_a_client_that_does_not_read(child: Start) -> None:
    """What it was granted stays where it is; the owner makes no copies of it."""
    queue = sync.FIFOQueue(None).share()
    stopped = child(take_and_stop, queue, talks=True)
    stopped.reported()
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
    spin_until(lambda: queue.statistics().waiting_dequeues == 200)
    element = os.urandom(60_000)  # small enough to go through the socket
    for _ in range(200):
        queue.enqueue(element)
    spin_until(lambda: queue.statistics().granted == 200)
    (client,) = owner.server().clients
    assert client.socket.outgoing_bytes <= owner.MOST_UNSENT + 256 * 1024
    os.kill(stopped.pid, signal.SIGCONT)
    stopped.result()
    spin_until(lambda: queue.statistics().dequeued == 200)


def wait_in_tasks(queue: Any, n: int, pipe: Any) -> Any:
    async def main() -> list[int]:
        tasks = [asyncio.ensure_future(queue.aio.dequeue()) for _ in range(n)]
        await asyncio.sleep(0)
        pipe.send(threading.active_count())
        found: list[int] = await asyncio.gather(*tasks)
        return found

    return asyncio.run(main())


def test_a_thousand_waiting_calls_take_one_thread(child: Start) -> None:
    queue = sync.FIFOQueue(None).share()
    waiting = child(wait_in_tasks, queue, 1000, talks=True)
    assert waiting.reported() == 2
    spin_until(lambda: queue.statistics().waiting_dequeues == 1000)
    queue.enqueue_many(range(1000))
    assert waiting.result() == list(range(1000))


def take_with_a_limit(queue: Any, n: int) -> None:
    for _ in range(n):
        queue.dequeue_up_to(2, max_wait=3600.0)
    for _ in range(n):  # cancelled ones, too
        with pytest.raises(DeadlineExceededError):
            queue.dequeue_up_to(2, max_wait=3600.0, timeout=0.001)


def test_a_call_that_has_ended_leaves_no_timer(child: Start) -> None:
    """Each timer would keep what its call has got for an hour."""
    queue = sync.FIFOQueue[Any](None).share()
    taking = child(take_with_a_limit, queue, 40)
    for _ in range(40):
        spin_until(lambda: queue.statistics().waiting_dequeues == 1)
        queue.enqueue_many([1, 2])
        spin_until(lambda: not queue.statistics().waiting_dequeues or not queue.size())
    taking.result()
    assert len(owner.server()._timers) <= 2
