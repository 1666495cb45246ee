"""Queues that are deleted after each test, each in its own actor or in a shared one."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_numbers = itertools.count()


@contextmanager
def _making(end: Callable[[Any], object]) -> Iterator[Callable[..., Any]]:
    """Makes queues, with names of their own if they are given none; and how each is ended."""
    import aioqueue.ray

    made = []

    def queue(kind: str, *args: Any, name: str | None = None, **options: Any) -> Any:
        name = name or f"test {next(_numbers)}"
        made.append(getattr(aioqueue.ray, kind)(name, *args, **options))
        return made[-1]

    yield queue
    for one in made:
        end(one)


@pytest.fixture(autouse=True)
def release_handles() -> Iterator[None]:
    """What a failure that was caught still refers to, and the threads of that, end with a test."""
    yield
    gc.collect()


@pytest.fixture
def make(cluster: Any) -> Iterator[Callable[..., Any]]:
    """Makes queues whose actors may die."""
    with _making(lambda queue: queue.sync.delete()) as queue:
        yield queue


@pytest.fixture(scope="session")
def shared_actor(cluster: Any) -> Iterator[Any]:
    """An actor for many queues: see `tests.ray.cluster.shared_actor`."""
    from tests.ray.cluster.shared_actor import shared_actor_of

    actor = shared_actor_of(cluster)
    yield actor
    cluster.kill(actor)


@pytest.fixture
def share(shared_actor: Any, cluster: Any, monkeypatch: Any) -> Iterator[Callable[..., Any]]:
    """Makes queues that share one actor: sooner, where nothing has to die."""
    import aioqueue.ray.queues
    from tests.ray.cluster.shared_actor import Builder

    monkeypatch.setattr(aioqueue.ray.queues, "remote_class", lambda: Builder(cluster, shared_actor))

    def end(queue: Any) -> None:
        queue._client.leave()
        cluster.get(shared_actor.remove.remote(queue.name))

    with _making(end) as queue:
        yield queue
