"""Each test of the compat layer has a graph, and may have a session, of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import aioqueue.compat.v1 as tf

QUICK = {
    *("test_batchers", "test_coordinator", "test_main", "test_monitored", "test_patterns"),
    *("test_producers", "test_queue_runner", "test_queues", "test_scripts", "test_session"),
    *("test_variables", "test_wing"),
}
"""What the default run keeps: a script of each family, what queues and coordinators do, and
what runs fetch and patterns find."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave the rest to ``--run-slow``: nothing else in the project needs this wing."""
    if item.path.stem not in QUICK:
        item.add_marker(pytest.mark.slow, append=False)


@pytest.fixture(autouse=True)
def graph() -> Iterator[Any]:
    """A new default graph."""
    with tf.Graph().as_default() as made:
        yield made


@pytest.fixture
def sess(graph: Any) -> Iterator[Any]:
    """A session of the test's graph; the default session."""
    with tf.Session() as made:
        yield made
