"""A signal handler that raises in the middle of a call by which others are woken.

`KeyboardInterrupt` in the main thread may leave open whether such a call took effect. But if it
did, those that it concerns are awake; if it did not, a second call wakes them. Each case is struck
at every place where Python may run a handler.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

from aioqueue import QueueEmpty, sync
from tests.kit.striking import interrupted_everywhere

SLEEPERS = 3


class Waking(NamedTuple):
    """A call that wakes others, the wait that it ends, and a check that it took effect."""

    call: Callable[[], object]
    wait: Callable[[], object]
    waiting: Callable[[], int]
    took_effect: Callable[[], bool]
    times: int = 1
    """How many calls wake all."""


def closing() -> Waking:
    queue = sync.FIFOQueue(1)
    waiting = lambda: queue.statistics().waiting_dequeues  # noqa: E731
    return Waking(queue.close, queue.dequeue, waiting, queue.is_closed)


def cancelling() -> Waking:
    queue = sync.FIFOQueue(1)
    queue.enqueue(0)
    waiting = lambda: queue.statistics().waiting_enqueues  # noqa: E731
    return Waking(
        lambda: queue.close(cancel_pending_enqueues=True),
        lambda: queue.enqueue(1),
        waiting,
        queue.is_closed,
    )


def stopping() -> Waking:
    coord = sync.Coordinator()
    waiting = lambda: len(coord._core.stopped._waiting)  # noqa: E731
    return Waking(coord.request_stop, coord.wait_for_stop, waiting, coord.should_stop)


def leaving_a_scope() -> Waking:
    queue, scope = sync.FIFOQueue(1), sync.CancelScope()

    def wait() -> None:
        with scope:
            queue.dequeue()

    waiting = lambda: queue.statistics().waiting_dequeues  # noqa: E731
    return Waking(scope.cancel, wait, waiting, lambda: scope.cancelled)


def publishing() -> Waking:
    latest = sync.Latest[int]()
    took_effect = lambda: latest.version > 0  # noqa: E731
    return Waking(
        lambda: latest.publish(1), latest.get, lambda: len(latest._core._pending()), took_effect
    )


def ending() -> Waking:
    latest = sync.Latest[int]()
    waiting = lambda: len(latest._core._pending())  # noqa: E731
    return Waking(latest.close, latest.get, waiting, latest.is_closed)


def enqueueing(kind: Callable[[], Any]) -> Waking:
    queue = kind()
    waiting = lambda: queue.statistics().waiting_dequeues  # noqa: E731
    return Waking(lambda: queue.enqueue_nowait(1), queue.dequeue, waiting, lambda: False, SLEEPERS)


def dequeueing() -> Waking:
    queue = sync.FIFOQueue(1)
    queue.enqueue(0)

    def call() -> None:
        with suppress(QueueEmpty):  # a place may have been lost in the first call
            queue.dequeue_nowait()

    waiting = lambda: queue.statistics().waiting_enqueues  # noqa: E731
    return Waking(call, lambda: queue.enqueue(1), waiting, lambda: False, 2 * SLEEPERS)


WAKINGS: dict[str, Callable[[], Waking]] = {
    "close": closing,
    "close and cancel": cancelling,
    "request_stop": stopping,
    "cancel a scope": leaving_a_scope,
    "enqueue": lambda: enqueueing(lambda: sync.FIFOQueue(9)),
    "enqueue numbers": lambda: enqueueing(lambda: sync.FIFOQueue(9, "int64", ())),
    "dequeue": dequeueing,
    "publish": publishing,
    "close a Latest": ending,
}


@pytest.mark.slow(but="publish")
@pytest.mark.parametrize("name", WAKINGS)
def test_no_sleeper_is_left_asleep(name: str) -> None:
    def case() -> tuple[Callable[[], Any], Callable[[], None]]:
        waking = WAKINGS[name]()

        def sleep() -> None:
            with suppress(Exception):
                waking.wait()

        threads = [threading.Thread(target=sleep, daemon=True) for _ in range(SLEEPERS)]
        for thread in threads:
            thread.start()
        while waking.waiting() < SLEEPERS:
            threading.Event().wait(1e-5)

        def check() -> None:
            for _ in range(waking.times):
                if not waking.took_effect():
                    waking.call()
            for thread in threads:
                thread.join(10)
                assert not thread.is_alive()

        return waking.call, check

    assert interrupted_everywhere(case) > 10
