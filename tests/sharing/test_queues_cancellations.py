"""Calls of handles that are cancelled: each has happened, or it has not."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from aioqueue import sync
from aioqueue.core.attempts import Put
from aioqueue.errors import DeadlineExceededError, OutOfRangeError, QueueClosedError
from aioqueue.sharing import owner, queues
from aioqueue.sharing.connection import CallerWaker, SharingConnection
from aioqueue.sharing.queues import RemoteMachine, Settlement
from tests.kit.sharing import Child
from tests.kit.worlds import PATIENCE, spin_until

Start = Callable[..., Child]


def cancel_in_a_busy_loop(queue: Any, rounds: int) -> list[int]:
    async def main() -> list[int]:
        got: list[int] = []
        chance = random.Random(1)
        for _ in range(rounds):
            task = asyncio.ensure_future(queue.dequeue())
            await asyncio.sleep(0)
            # The answer comes while the loop is busy.
            time.sleep(chance.uniform(0, 0.0005))  # noqa: ASYNC251
            if chance.random() < 0.5:
                await asyncio.sleep(0)
            task.cancel()
            try:
                got.append(await task)
            except asyncio.CancelledError:
                pass
        return got

    return asyncio.run(main())


def test_no_element_is_lost_by_cancellations_of_a_busy_loop(child: Start) -> None:
    queue = sync.FIFOQueue(1000).share()
    queue.enqueue_many(range(300))
    got = child(cancel_in_a_busy_loop, queue.aio, 200).result()
    left = queue.dequeue_many(queue.size())
    assert left == sorted(left)
    assert sorted(got + left) == list(range(300))


def cancel_enqueues(queue: Any, rounds: int) -> tuple[list[int], int]:
    """Cancel enqueues around the moment when they go in; return those that say they are in."""

    async def main() -> tuple[list[int], int]:
        returned: list[int] = []
        delivered = 0
        for number in range(rounds):

            async def put(number: int = number) -> None:
                nonlocal delivered
                await queue.enqueue(number)
                returned.append(number)
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    delivered += 1
                    raise

            task = asyncio.ensure_future(put())
            await asyncio.sleep(0)
            time.sleep(number % 5 * 0.0002)  # noqa: ASYNC251
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        return returned, delivered

    return asyncio.run(main())


def test_a_cancelled_enqueue_has_put_nothing_in(child: Start) -> None:
    """If it is in already, the call returns, and the cancellation comes at the next await."""
    queue = sync.FIFOQueue(1000).share()
    returned, delivered = child(cancel_enqueues, queue.aio, 200).result()
    assert queue.dequeue_many(queue.size()) == returned
    assert delivered == len(returned)


def cancel_a_granted_dequeue(queue: Any, pipe: Any) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(queue.dequeue())
        await asyncio.sleep(0)
        pipe.send("waits")
        pipe.recv()  # the loop is blocked while the element is granted
        task.cancel()
        await asyncio.wait([task])
        pipe.send(task.cancelled())

    asyncio.run(main())


def test_no_caller_overtakes_an_element_that_goes_back(child: Start) -> None:
    """The call raises only once the owner has the element again."""
    queue = sync.FIFOQueue(10).share()
    other = child(cancel_a_granted_dequeue, queue.aio, talks=True)
    other.reported()
    spin_until(lambda: queue.statistics().waiting_dequeues == 1)
    queue.enqueue_many(["first", "second"])
    assert queue.statistics().granted == 1
    other.pipe.send("cancel")
    assert other.reported()
    assert queue.dequeue() == "first"


def time_out(queue: Any, n: int) -> list[int]:
    got: list[int] = []

    def take() -> None:
        chance = random.Random(threading.get_ident())
        while True:
            try:
                got.append(queue.dequeue(timeout=chance.uniform(0, 0.0004)))
            except DeadlineExceededError:
                pass
            except OutOfRangeError:
                return

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


def test_timeouts_lose_nothing(child: Start) -> None:
    queue = sync.FIFOQueue(10).share()
    taking = child(time_out, queue, 500)
    for number in range(500):
        queue.enqueue(number)
    queue.close()
    assert sorted(taking.result()) == list(range(500))


def time_out_while_full(queue: Any, rounds: int) -> list[int]:
    put: list[int] = []
    for number in range(rounds):
        try:
            queue.enqueue(number, timeout=number % 4 * 0.0002)
            put.append(number)
        except DeadlineExceededError as error:
            assert error.enqueued == 0
    queue.close()
    return put


def test_an_enqueue_that_times_out_is_not_in(child: Start) -> None:
    queue = sync.FIFOQueue(1).share()
    putting = child(time_out_while_full, queue, 200)
    got = list(queue)
    assert got == putting.result()


def put_a_prefix(queue: Any) -> Any:
    with pytest.raises(DeadlineExceededError) as error:
        queue.enqueue_many(range(10), timeout=0.1)

    async def cancelled() -> BaseException:
        task = asyncio.ensure_future(queue.aio.enqueue_many(range(10, 20)))
        await asyncio.wait([task], timeout=0.1)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError as error:
            return error
        raise AssertionError("it was not cancelled")

    found: Any = asyncio.run(cancelled())
    return error.value.enqueued, found.enqueued, found.__notes__


def test_a_batch_that_is_cancelled_reports_how_many_rows_are_in(child: Start) -> None:
    queue = sync.FIFOQueue(4).share()
    first, second, notes = child(put_a_prefix, queue).result()
    assert (first, second) == (4, 0)
    assert notes == ["enqueue_many: 0 of 10 rows are in the queue"]
    assert queue.dequeue_many(4) == [0, 1, 2, 3]


def close_under_a_batch(queue: Any, pipe: Any) -> Any:
    with pytest.raises(QueueClosedError) as error:
        queue.enqueue_many(range(10))
    return error.value.enqueued


def test_a_batch_whose_queue_is_closed_reports_that_too(child: Start) -> None:
    queue = sync.FIFOQueue(4).share()
    putting = child(close_under_a_batch, queue, talks=True)
    spin_until(lambda: queue.statistics().waiting_enqueues == 1)
    queue.close(cancel_pending_enqueues=True)
    assert putting.result() == 4


def cancel_large_answers(queue: Any, rounds: int) -> None:
    async def main() -> None:
        for _ in range(rounds):
            task = asyncio.ensure_future(queue.aio.dequeue())
            await asyncio.sleep(0)
            spin_until(lambda: queue.statistics().granted == 1)
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(main())
    queue.size()


def test_cancelled_answers_give_their_memory_back(child: Start) -> None:
    queue = sync.FIFOQueue(2).share()
    queue.enqueue(np.zeros(1 << 17))
    cancelling = child(cancel_large_answers, queue, 20)
    seen = []
    while cancelling.process.is_alive():
        seen += [one.memory for one in owner.server().clients if one.memory not in seen]
    cancelling.result()
    assert seen
    assert all(memory is not None and memory.is_empty for memory in seen)
    assert queue.dequeue().nbytes == 1 << 20


def expire(queue: Any) -> Any:
    return queue.dequeue_up_to(3, 0.05)


def test_max_wait(child: Start) -> None:
    queue = sync.FIFOQueue(10).share()
    queue.enqueue(1)
    assert child(expire, queue).result() == [1]


def interrupt(queue: Any, pipe: Any) -> Any:
    signal.signal(signal.SIGUSR1, signal.default_int_handler)
    pipe.send("ready")
    interrupts = 0
    got: list[int] = []
    while True:
        try:
            while True:
                got.append(queue.dequeue())
        except KeyboardInterrupt:
            interrupts += 1
        except OutOfRangeError:
            break
    return interrupts, got


@pytest.mark.slow
def test_interrupts_of_a_caller_that_reads_for_itself(child: Start) -> None:
    """A signal handler may raise anywhere in the call: the connection goes on, nobody hangs."""
    queue = sync.FIFOQueue(1000).share()
    other = child(interrupt, queue, talks=True)
    other.reported()
    chance = random.Random(2)
    for number in range(400):
        queue.enqueue(number)
        if number % 40 == 0:
            time.sleep(chance.uniform(0, 0.002))
            os.kill(other.pid, signal.SIGUSR1)
    spin_until(lambda: queue.size() == 0)
    queue.close()
    interrupts, got = other.result()
    assert interrupts
    # What an interrupt has struck after its hand-over is lost with the call, as in one process.
    assert len(set(got)) == len(got)
    assert len(got) >= 400 - interrupts


def cancel_large_enqueues(queue: Any, rounds: int) -> int:
    """Cancel and time out enqueues that wait at the owner; return how much counts as on its way."""

    async def main() -> None:
        for _ in range(rounds):
            task = asyncio.ensure_future(queue.aio.enqueue(np.zeros(1 << 17)))
            await asyncio.sleep(0)
            spin_until(lambda: queue.statistics().waiting_enqueues == 1)
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(main())
    for _ in range(rounds):
        with pytest.raises(DeadlineExceededError):
            queue.enqueue(np.zeros(1 << 17), timeout=0.001)
    unanswered: int = queue._machine._unanswered
    return unanswered


def test_cancelled_enqueues_give_their_room_back(child: Start) -> None:
    queue = sync.FIFOQueue(1).share()
    queue.enqueue(0)
    assert child(cancel_large_enqueues, queue, 5).result() == 0


def cancel_in_trio_as_it_goes_in(queue: Any, pipe: Any) -> list[str]:
    """Cancel an enqueue that is in at the owner, whose word on that comes within the abort."""
    import trio

    may_note = threading.Event()
    note_answer, withdraw = RemoteMachine.note_answer, RemoteMachine.withdraw

    def note_late(machine: Any, call: Any, kind: int, body: Any) -> bool:
        if isinstance(call.attempt, Put):
            may_note.wait()
        return note_answer(machine, call, kind, body)

    def withdraw_late(machine: Any, attempt: Any, *arguments: Any, **options: Any) -> Any:
        pipe.send("take")
        assert pipe.recv() == "taken"
        wakers = withdraw(machine, attempt, *arguments, **options)
        may_note.set()
        spin_until(lambda: machine.settlement(attempt) is None)
        return wakers

    RemoteMachine.note_answer = note_late  # type: ignore[method-assign,assignment]
    RemoteMachine.withdraw = withdraw_late  # type: ignore[method-assign,assignment]
    events: list[str] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(cancel_when_it_waits, scope)
                await queue.aio.enqueue("second")
                events.append("in")
                await trio.sleep_forever()
            events.append("cancelled")

    async def cancel_when_it_waits(scope: Any) -> None:
        spin_until(lambda: queue._machine.waiting())
        scope.cancel()

    trio.run(main)
    return events


def test_an_enqueue_in_trio_that_is_in_as_it_is_cancelled_returns(child: Start) -> None:
    pytest.importorskip("trio")
    queue = sync.FIFOQueue(1).share()
    queue.enqueue("first")
    other = child(cancel_in_trio_as_it_goes_in, queue, talks=True)
    assert other.reported() == "take"
    spin_until(lambda: queue.statistics().waiting_enqueues == 1)
    assert queue.dequeue() == "first"
    spin_until(lambda: queue.size() == 1)
    other.pipe.send("taken")
    assert other.result() == ["in", "cancelled"]
    assert queue.dequeue() == "second"


def interrupt_with_the_role(queue: Any) -> int:
    """Be interrupted by a signal handler just after the reading role was taken."""
    read = CallerWaker._read
    queue.size()

    def interrupted(waker: CallerWaker, seconds: float | None) -> bool:
        CallerWaker._read = read  # type: ignore[method-assign]
        raise KeyboardInterrupt

    CallerWaker._read = interrupted  # type: ignore[method-assign,assignment]
    with pytest.raises(KeyboardInterrupt):
        queue.dequeue()
    got: int = queue.dequeue(timeout=20)
    return got


def test_an_interrupt_just_after_the_role_was_taken(child: Start) -> None:
    queue = sync.FIFOQueue(3).share()
    other = child(interrupt_with_the_role, queue)
    queue.enqueue_many([0])
    assert other.result() == 0
    assert queue.size() == 0


class TickError(Exception):
    pass


def interrupt_a_withdrawal(queue: Any, pipe: Any, times: int = 1) -> None:
    """Be interrupted by more signal handlers, while a call that has failed is withdrawn."""
    made = queues.Settlement
    left = times

    def interrupted() -> Settlement:
        nonlocal left
        left -= 1
        if not left:
            queues.Settlement = made  # type: ignore[misc]
        raise TickError

    queues.Settlement = interrupted  # type: ignore[misc,assignment]
    with pytest.raises(TickError):
        queue.dequeue(timeout=0.01)
    pipe.send("interrupted")
    pipe.recv()


def test_an_interrupted_withdrawal_leaves_no_call_at_the_owner(child: Start) -> None:
    queue = sync.FIFOQueue(3).share()
    other = child(interrupt_a_withdrawal, queue, talks=True)
    other.reported()
    spin_until(lambda: queue.statistics().waiting_dequeues == 0)
    queue.enqueue(1)
    assert queue.dequeue(timeout=PATIENCE) == 1
    other.pipe.send("end")
    other.result()


def interrupt_each_withdrawal(queue: Any, pipe: Any) -> None:
    """Be interrupted also where the end of its frame ends the call; then make another one."""
    sys.unraisablehook = lambda _: None
    interrupt_a_withdrawal(queue, pipe, 3)
    with pytest.raises(DeadlineExceededError):
        queue.dequeue(timeout=0)
    pipe.send("called")
    pipe.recv()


def test_the_next_call_withdraws_an_interrupted_one(child: Start) -> None:
    queue = sync.FIFOQueue(3).share()
    other = child(interrupt_each_withdrawal, queue, talks=True)
    other.reported()
    assert queue.statistics().waiting_dequeues == 1
    other.pipe.send("go on")
    other.reported()
    spin_until(lambda: queue.statistics().waiting_dequeues == 0)
    other.pipe.send("end")
    other.result()


def interrupt_a_return_of_leases(queue: Any, pipe: Any) -> None:
    """Be interrupted by a signal handler before what a loop has on lease goes back."""
    loop = queue.batches(2)
    leases = loop._leases()
    for key in range(2):
        leases.take(key)
    request = SharingConnection.request

    def interrupted(*arguments: Any, **options: Any) -> Any:
        SharingConnection.request = request  # type: ignore[method-assign]
        raise TickError

    SharingConnection.request = interrupted  # type: ignore[method-assign]
    with pytest.raises(TickError):
        leases.give_back()
    pipe.send("interrupted")
    pipe.recv()
    with pytest.raises(DeadlineExceededError):
        queue.dequeue_many(9, timeout=0)
    pipe.send("called")
    pipe.recv()


def test_the_next_call_gives_leases_back(child: Start) -> None:
    queue = sync.FIFOQueue(9).share()
    queue.enqueue_many([0, 1, 2, 3, 4])
    other = child(interrupt_a_return_of_leases, queue, talks=True)
    other.reported()
    assert queue.size() == 1
    other.pipe.send("go on")
    other.reported()
    assert queue.dequeue_many(5, timeout=PATIENCE) == [0, 1, 2, 3, 4]
    other.pipe.send("end")
    other.result()


def work_under_ticks(queue: Any, seconds: float, pipe: Any) -> Any:
    """Make calls. A signal handler may interrupt each of them at any moment."""
    is_armed = False

    def tick(*_: object) -> None:
        if is_armed:
            raise TickError

    queue.size()  # connect before
    signal.signal(signal.SIGALRM, tick)
    chance, ticks, got = random.Random(3), 0, []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            is_armed = True
            signal.setitimer(signal.ITIMER_REAL, chance.random() * chance.choice([0.0002, 0.001]))
            if chance.random() < 0.5:
                got.append(queue.dequeue())
            else:
                queue.enqueue(0, timeout=0.001)
        except DeadlineExceededError:
            pass
        except TickError:
            ticks += 1
        finally:
            is_armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
    machine = queue._machine
    queue.size()
    spin_until(lambda: not machine._calls)
    pipe.send((ticks, len(got)))
    pipe.recv()


@pytest.mark.slow
def test_ticks_of_a_signal_handler_leave_no_call_behind(child: Start) -> None:
    queue = sync.FIFOQueue(20).share()
    other = child(work_under_ticks, queue, 2.0, talks=True)
    ticks, got = other.reported()
    assert ticks
    assert got
    (client,) = owner.server().clients
    spin_until(lambda: not client.calls)
    other.pipe.send("end")
    other.result()


def interrupted_at(step: int, call: Callable[[], object]) -> bool:
    """Raise as a signal handler may, where the step-th function of ours begins; return whether that
    many have begun."""
    steps = 0

    def begin_function(frame: FrameType, *_: object) -> None:
        nonlocal steps
        if "/aioqueue/" in frame.f_code.co_filename:
            steps += 1
            if steps == step:
                sys.settrace(None)
                raise TickError

    sys.settrace(begin_function)
    try:
        call()
    except TickError:
        pass
    finally:
        sys.settrace(None)
    return steps >= step


def interrupt_each_step(queue: Any) -> tuple[int, list[Any]]:
    """Interrupt each step of an enqueue and of a dequeue; return what was left of which."""
    queue.size()
    machine = queue._machine
    connection = machine.connection()
    left: list[Any] = []

    def kept() -> tuple[int, ...]:
        calls = len(machine._calls), len(connection._calls), len(connection._held)
        return machine._unanswered, *calls

    all_steps = 0
    for call in (lambda: queue.enqueue(0), queue.dequeue):
        step = 1
        while interrupted_at(step, call):
            queue.size()  # after its answer, all earlier ones are here
            if any(kept()):
                left.append((call, step, kept()))
            queue.enqueue(0)  # so that no dequeue has to wait
            step += 1
        all_steps += step
        queue.dequeue_up_to(1000, 0)
    return all_steps, left


def test_a_call_that_is_interrupted_at_any_step_leaves_nothing_behind(child: Start) -> None:
    queue = sync.FIFOQueue(1000).share()
    steps, left = child(interrupt_each_step, queue).result()
    assert steps > 100
    assert left == []
