"""Callbacks at the end of a queue, for code without a thread or task to wait in."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from aioqueue import sync
from tests.kit.worlds import core_of, spin_until, waiting


class Calls:
    """Counts calls, and notes the thread of the last one."""

    def __init__(self) -> None:
        self.count = 0
        self.thread: threading.Thread | None = None

    def __call__(self) -> None:
        self.count += 1
        self.thread = threading.current_thread()


def test_in_the_thread_that_closes_it() -> None:
    queue, calls = sync.FIFOQueue(3), Calls()
    core_of(queue).call_when_closed(calls)
    assert calls.count == 0
    closer = threading.Thread(target=queue.close)
    closer.start()
    closer.join()
    assert calls.count == 1
    assert calls.thread is closer


def test_now_if_it_is_closed() -> None:
    queue, calls = sync.FIFOQueue(3), Calls()
    queue.close()
    core_of(queue).call_when_closed(calls)
    assert calls.count == 1


def test_not_while_something_may_still_come_in() -> None:
    queue, calls = sync.FIFOQueue(1), Calls()
    queue.enqueue(1)
    core_of(queue).call_when_closed(calls)
    thread = threading.Thread(target=queue.enqueue, args=(2,))
    thread.start()
    spin_until(lambda: waiting(queue) == 1)
    queue.close()
    assert calls.count == 0
    assert queue.dequeue() == 1
    thread.join()
    assert calls.count == 1
    assert queue.dequeue() == 2


def test_without_a_lock_held() -> None:
    """So it may use the queue, and close another one."""
    queue, other = sync.FIFOQueue(3), sync.FIFOQueue(3)
    sizes: list[int] = []
    queue.enqueue(1)
    core_of(queue).call_when_closed(lambda: sizes.append(queue.size()))
    core_of(queue).call_when_closed(other.close)
    queue.close()
    assert sizes == [1]
    assert other.is_closed()


@pytest.mark.parametrize("times", [1, 2])
def test_forgotten(times: int) -> None:
    queue, calls = sync.FIFOQueue(3), Calls()
    forget = core_of(queue).call_when_closed(calls)
    kept, (waker,) = weakref.ref(calls), core_of(queue).blocked_wakers
    for _ in range(times):
        forget()
    assert not core_of(queue).blocked_wakers
    assert core_of(queue).machine.attempts_in(waker) == []
    queue.close()
    assert calls.count == 0
    del calls, forget
    gc.collect()
    assert kept() is None


def test_forgotten_after_the_end() -> None:
    queue, calls = sync.FIFOQueue(3), Calls()
    forget = core_of(queue).call_when_closed(calls)
    queue.close()
    forget()
    assert calls.count == 1
    assert not core_of(queue).blocked_wakers


def test_again_when_all_are_woken() -> None:
    """As after a Ctrl-C between the close and its wakes."""
    queue, calls = sync.FIFOQueue(3), Calls()
    core_of(queue).call_when_closed(calls)
    core_of(queue).wake_all()
    assert calls.count == 0
    core_of(queue).machine.close()  # whose wakes are lost
    assert calls.count == 0
    core_of(queue).wake_all()
    assert calls.count == 1
