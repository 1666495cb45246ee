"""Coordinators of the face that fits a world, and threads to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import aioqueue
from tests.kit.coordinators import AwaitedCoordinator, Make, Thread
from tests.kit.worlds import PATIENCE, ThreadWorld, World


@pytest.fixture
def make(world: World) -> Make:
    """Makes coordinators of the face that fits the world."""
    return AwaitedCoordinator if isinstance(world, ThreadWorld) else aioqueue.Coordinator


@pytest.fixture
def thread() -> Iterator[Callable[..., Thread]]:
    """Starts threads that run until they are released, or until the test ends."""
    threads: list[Thread] = []

    def start(name: str = "worker", last: Callable[[], object] = lambda: None) -> Thread:
        threads.append(Thread(name, last))
        threads[-1].start()
        return threads[-1]

    yield start
    for one in threads:
        one.release()
        one.join(PATIENCE)
        assert not one.is_alive()
