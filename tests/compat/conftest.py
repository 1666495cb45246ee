"""Each test of the compat layer has a graph, and may have a session, of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import aioqueue.compat.v1 as tf


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
