"""Coordinators of the face that fits a world, and threads to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import aioqueue
from tests.kit.coordinators import AwaitedCoordinator, Make, Thread, threads
from tests.kit.worlds import ThreadWorld, World


@pytest.fixture
def make(world: World) -> Make:
    """Makes coordinators of the face that fits the world."""
    return AwaitedCoordinator if isinstance(world, ThreadWorld) else aioqueue.Coordinator


@pytest.fixture
def thread() -> Iterator[Callable[..., Thread]]:
    """Starts threads that run until they are released, or until the test ends."""
    with threads() as start:
        yield start
