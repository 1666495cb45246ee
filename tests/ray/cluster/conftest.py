"""Queues that are deleted after each test: with actors of their own, or in one that they share."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

_numbers = itertools.count()


def _new(kind: str, *args: Any, name: str | None = None, **options: Any) -> Any:
    """A queue, with a name of its own if it has none."""
    import aioqueue.ray

    name = name or f"test {next(_numbers)}"
    return getattr(aioqueue.ray, kind)(name, *args, **options)


@pytest.fixture(autouse=True)
def handles_are_let_go() -> Iterator[None]:
    """What a failure that was caught still refers to, and the threads of that, end with a test."""
    yield
    gc.collect()


@pytest.fixture
def make(cluster: Any) -> Iterator[Callable[..., Any]]:
    """Makes queues whose actors may die."""
    made = []

    def queue(*args: Any, **options: Any) -> Any:
        made.append(_new(*args, **options))
        return made[-1]

    yield queue
    for one in made:
        one.sync.delete()


@pytest.fixture(scope="session")
def street(cluster: Any) -> Iterator[Any]:
    """An actor for many queues: see `tests.ray.cluster.street`."""
    from tests.ray.cluster.street import street_of

    actor = street_of(cluster)
    yield actor
    cluster.kill(actor)


@pytest.fixture
def share(street: Any, cluster: Any, monkeypatch: Any) -> Iterator[Callable[..., Any]]:
    """Makes queues that share one actor: sooner, where nothing has to die."""
    import aioqueue.ray.queues
    from tests.ray.cluster.street import Builder

    monkeypatch.setattr(aioqueue.ray.queues, "remote_class", lambda: Builder(cluster, street))
    made = []

    def queue(*args: Any, **options: Any) -> Any:
        made.append(_new(*args, **options))
        return made[-1]

    yield queue
    for one in made:
        one._client.leave()
        cluster.get(street.pull_down.remote(one.name))
