"""Processes beside the tests: one that has the queues that they share, and others."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.kit.owners import PROCESS_WORLDS, InAnotherProcess, Owner
from tests.kit.sharing import Child, children, sharing_ended
from tests.kit.worlds import spin_until


@pytest.fixture(scope="session")
def _owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    owner.close()


@pytest.fixture
def owner(_owner: Owner) -> Iterator[Owner]:
    """The process that has the queues; it ends after all tests."""
    yield _owner
    with suppress(AssertionError):  # `no_thread_is_left` reports what a failed test keeps
        spin_until(is_no_coordinator_left)
    _owner.drop()


def is_no_coordinator_left() -> bool:
    """Whether the handles of coordinators have ended; else, collect those in reference cycles."""
    threads = [one for one in threading.enumerate() if one.name == "aioqueue-shared-coordinator"]
    gc.collect()
    return not threads


@pytest.fixture(params=PROCESS_WORLDS, ids=lambda world: world.name)
def process_world(request: pytest.FixtureRequest, owner: Owner) -> InAnotherProcess:
    """Each world in turn, with queues of another process."""
    kind_of_world: type[InAnotherProcess] = request.param
    if kind_of_world.missing():
        pytest.skip(kind_of_world.missing())
    world = kind_of_world()
    world.owner = owner
    return world


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Starts processes that call a function; see `tests.kit.sharing.Child`."""
    with sharing_ended(), children() as start:
        yield start
