"""A signal handler that raises in the middle of a call by which others are woken.

`KeyboardInterrupt` in the main thread may leave open whether such a call took effect. But if it
did, those whom it concerns are awake; if it did not, a second call wakes them. Each case is struck
at every place where Python may run a handler.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

from aioqueue import sync
from tests.storage.striking import every_strike

SLEEPERS = 3


class Waking(NamedTuple):
    """A call that wakes others, the wait that it ends, and what tells that it took effect."""

    call: Callable[[], object]
    wait: Callable[[], object]
    waiting: Callable[[], int]
    took_effect: Callable[[], bool]


def closing() -> Waking:
    queue = sync.FIFOQueue(1)
    waiting = lambda: queue.statistics().waiting_dequeues  # noqa: E731
    return Waking(queue.close, queue.dequeue, waiting, queue.is_closed)


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


WAKINGS: dict[str, Callable[[], Waking]] = {
    "close": closing,
    "publish": publishing,
    "close a Latest": ending,
}


@pytest.mark.slow(but="publish")
@pytest.mark.parametrize("name", WAKINGS)
def test_nobody_is_left_asleep(name: str) -> None:
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
            if not waking.took_effect():
                waking.call()
            for thread in threads:
                thread.join(10)
                assert not thread.is_alive()

        return waking.call, check

    assert every_strike(case) > 10
