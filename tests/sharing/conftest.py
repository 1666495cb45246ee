"""Fixtures of the tests of what processes share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.kit.sharing import Child, children, sharing_ended


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Starts processes that call a function; see `tests.kit.sharing.Child`."""
    with sharing_ended(), children() as start:
        yield start
