"""Cancel scopes of threads: a cancelled call did not happen, whichever thread cancels it."""

from __future__ import annotations

import concurrent.futures
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aioqueue import CancelledError, DeadlineExceededError, InvalidArgumentError, sync
from tests.kit.worlds import PATIENCE, press_until, spin_until, switching_often

Call = Callable[[], Any]


class Caller(threading.Thread):
    """A thread that makes one call, within scopes from the outermost to the innermost."""

    def __init__(self, call: Call, *scopes: sync.CancelScope) -> None:
        super().__init__(daemon=True)
        self.call, self.scopes = call, scopes
        self.outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.start()

    def run(self) -> None:
        for scope in self.scopes:
            scope.__enter__()
        try:
            self.outcome.set_result(self.call())
        except BaseException as error:
            self.outcome.set_exception(error)

    def error(self) -> BaseException | None:
        return self.outcome.exception(PATIENCE)


def blocked(queue: sync.FIFOQueue) -> int:
    now = queue.statistics()
    return now.waiting_enqueues + now.waiting_dequeues


def full() -> sync.FIFOQueue:
    queue = sync.FIFOQueue(2, dtypes="int64", shapes=())
    queue.enqueue_many([1, 2])
    return queue


def few() -> sync.FIFOQueue:
    queue = sync.FIFOQueue(4, dtypes="int64", shapes=())
    queue.enqueue_many([1, 2])
    return queue


CALLS: dict[str, tuple[Callable[[], sync.FIFOQueue], Callable[[sync.FIFOQueue], Any]]] = {
    "enqueue": (full, lambda queue: queue.enqueue(3)),
    "enqueue_many": (full, lambda queue: queue.enqueue_many([3, 4])),
    "dequeue": (lambda: sync.FIFOQueue(2), lambda queue: queue.dequeue()),
    "dequeue_many": (few, lambda queue: queue.dequeue_many(3)),
    "dequeue_many, with a timeout": (few, lambda queue: queue.dequeue_many(3, timeout=60)),
    "dequeue_up_to": (few, lambda queue: queue.dequeue_up_to(3)),
    "dequeue_up_to, with max_wait": (few, lambda queue: queue.dequeue_up_to(3, 60)),
    "wait_closed": (full, lambda queue: queue.wait_closed()),
    "join": (full, lambda queue: queue.join()),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("when", ["while it waits", "before"])
def test_a_cancelled_call_did_not_happen(name: str, when: str) -> None:
    make, call = CALLS[name]
    queue, scope = make(), sync.CancelScope()
    if when == "before":
        scope.cancel()
    caller = Caller(lambda: call(queue), scope)
    if when != "before":
        if name in ("wait_closed", "join"):
            spin_until(lambda: "1 call waiting" in repr(scope))
        else:
            spin_until(lambda: blocked(queue) == 1)
        scope.cancel()
    error = caller.error()
    assert isinstance(error, CancelledError)
    assert error.enqueued == 0
    assert f"{name.split(',')[0]} on FIFOQueue '{queue.name}' was cancelled" in str(error)
    assert blocked(queue) == 0
    rest = [int(queue.dequeue_nowait()) for _ in range(queue.size())]
    assert rest == ([] if name == "dequeue" else [1, 2])


def test_a_batch_leaves_its_prefix_and_reports_it() -> None:
    queue, scope = sync.FIFOQueue(2), sync.CancelScope()
    caller = Caller(lambda: queue.enqueue_many([1, 2, 3]), scope)
    spin_until(lambda: queue.size() == 2 and blocked(queue) == 1)
    scope.cancel()
    error = caller.error()
    assert isinstance(error, CancelledError)
    assert error.enqueued == 2
    assert "2 of its rows are in" in str(error)
    assert [queue.dequeue(), queue.dequeue()] == [1, 2]


def test_callers_behind_a_cancelled_one_proceed() -> None:
    queue, scope = few(), sync.CancelScope()
    big = Caller(lambda: queue.dequeue_many(5), scope)
    spin_until(lambda: blocked(queue) == 1)
    small = Caller(queue.dequeue)
    spin_until(lambda: blocked(queue) == 2)
    scope.cancel()
    assert isinstance(big.error(), CancelledError)
    assert small.outcome.result(PATIENCE) == 1


def test_one_scope_cancels_all_its_threads_and_no_other() -> None:
    queue, scope = sync.FIFOQueue(1), sync.CancelScope()
    inside = [Caller(queue.dequeue, scope) for _ in range(5)]
    outside = Caller(queue.dequeue)
    spin_until(lambda: blocked(queue) == 6)
    scope.cancel()
    assert all(isinstance(caller.error(), CancelledError) for caller in inside)
    queue.enqueue("left")
    assert outside.outcome.result(PATIENCE) == "left"


@pytest.mark.parametrize("which", [0, 1])
def test_nested_scopes_each_cancel(which: int) -> None:
    queue, scopes = sync.FIFOQueue(1), (sync.CancelScope(), sync.CancelScope())
    caller = Caller(queue.dequeue, *scopes)
    spin_until(lambda: blocked(queue) == 1)
    scopes[which].cancel()
    assert isinstance(caller.error(), CancelledError)
    assert [scope.cancelled for scope in scopes] == [which == 0, which == 1]


def test_calls_that_need_not_wait_proceed() -> None:
    queue, scope = sync.FIFOQueue(1), sync.CancelScope()
    scope.cancel()
    with scope:
        queue.enqueue(1)
        assert queue.dequeue() == 1


def test_after_it_was_left_it_does_nothing() -> None:
    queue, scope = sync.FIFOQueue(1), sync.CancelScope()
    with scope, scope:
        pass
    scope.cancel()
    with pytest.raises(DeadlineExceededError):
        queue.dequeue(timeout=0)


def test_a_deadline_holds_for_all_calls_together() -> None:
    queue = sync.FIFOQueue(1)
    with sync.CancelScope(timeout=0.01) as scope:
        for _ in range(3):
            with pytest.raises(DeadlineExceededError):
                queue.dequeue()
        with pytest.raises(DeadlineExceededError):
            queue.dequeue(timeout=60)
    assert scope.deadline is not None
    assert not scope.cancelled


def test_the_shorter_limit_counts() -> None:
    queue = sync.FIFOQueue(1)
    with sync.CancelScope(timeout=60), pytest.raises(DeadlineExceededError):
        queue.dequeue(timeout=0.001)


@pytest.mark.parametrize("timeout", [-1, "1", True, float("nan")])
def test_bad_timeouts(timeout: Any) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"timeout: got .*; expected a number of seconds"
    ):
        sync.CancelScope(timeout)


def test_coordinators_are_waited_for_in_scopes() -> None:
    coord, scope = sync.Coordinator(), sync.CancelScope()
    caller = Caller(coord.wait_for_stop, scope)
    spin_until(lambda: "1 call waiting" in repr(scope))
    scope.cancel()
    assert isinstance(caller.error(), CancelledError)
    with sync.CancelScope(timeout=0):
        with pytest.raises(DeadlineExceededError, match="deadline of the CancelScope"):
            coord.wait_for_stop()
        assert coord.wait_for_stop(timeout=0) is False


def test_a_signal_handler_may_cancel() -> None:
    queue, scope, handled = sync.FIFOQueue(1), sync.CancelScope(), threading.Event()

    def handle(*_: object) -> None:
        scope.cancel()
        handled.set()

    before = signal.signal(signal.SIGUSR1, handle)
    try:

        def interrupt() -> None:
            spin_until(lambda: blocked(queue) == 1)
            press_until(handled)

        ringer = threading.Thread(target=interrupt)
        ringer.start()
        with scope, pytest.raises(CancelledError):
            queue.dequeue(timeout=PATIENCE)
        ringer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def _switch_often() -> Iterator[None]:
    with switching_often():
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("_switch_often")
def test_cancelling_races_with_the_grant() -> None:
    """Cancelled in the moment of being served: either the call has it all, or the queue has."""
    queue = sync.FIFOQueue(3)
    total, got, cancelled = 3000, Counter[int](), Counter[str]()
    scopes = [sync.CancelScope() for _ in range(3)]

    def consume(place: int) -> None:
        while True:
            try:
                with scopes[place]:
                    batch = queue.dequeue_many(2)
            except CancelledError:
                cancelled["calls"] += 1
                scopes[place] = sync.CancelScope()
                continue
            if -1 in batch:
                return
            got.update(batch)

    consumers = [threading.Thread(target=consume, args=(place,)) for place in range(3)]
    for consumer in consumers:
        consumer.start()
    for number in range(total):
        queue.enqueue(number, timeout=PATIENCE)
        scopes[number % 3].cancel()
    for _ in range(6):
        queue.enqueue(-1, timeout=PATIENCE)
    for consumer in consumers:
        consumer.join(PATIENCE)
    assert got == Counter(range(total))
    assert cancelled["calls"] > 0
