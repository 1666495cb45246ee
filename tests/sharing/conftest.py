"""Processes beside the tests: one that has the queues that they share, and others."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from tests.kit.owners import PROCESS_WORLDS, InAnotherProcess, Owner
from tests.kit.sharing import Child, children, sharing_ended


@pytest.fixture(scope="session")
def _owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    owner.close()


@pytest.fixture
def owner(_owner: Owner) -> Iterator[Owner]:
    """The process that has the queues; it ends after all tests."""
    yield _owner
    gc.collect()  # handles that a failure refers to
    _owner.drop()


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
