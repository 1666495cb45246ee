"""One cluster for all tests of this folder, and queues that are deleted after each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import clusters


@pytest.fixture(scope="package")
def cluster() -> Iterator[Any]:
    with clusters.one_node() as ray:
        yield ray


_numbers = itertools.count()


@pytest.fixture
def make(cluster: Any) -> Iterator[Callable[..., Any]]:
    """Makes queues with names of their own."""
    made = []

    def queue(kind: str, *args: Any, **options: Any) -> Any:
        import aioqueue.ray

        name = options.pop("name", f"test {next(_numbers)}")
        found = getattr(aioqueue.ray, kind)(name, *args, **options)
        made.append(found)
        return found

    yield queue
    for one in made:
        one.sync.delete()
