"""Bounds for actors: bytes in flight, and bytes in a chunk. No cluster is needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from aioqueue import sync
from aioqueue.inputs import numbers, prepare
from aioqueue.workers.executors import ray as ray_executor
from aioqueue.workers.executors import ray_actor
from aioqueue.workers.executors.process_child import Sent
from tests.kit.clusters import PATIENCE
from tests.workers.ray.test_ray_every_call import Cluster, in_place_of_ray

COUNT, SIZE, FIT = 40, 1000, 4
"""How many items there are, how many bytes each has, and how many of them are within the bound."""

calls = threading.Semaphore(0)
"""Counts calls of the function below."""


def noted(number: int) -> Any:
    calls.release()
    return np.full(SIZE, number, "uint8")


def test_no_more_is_prepared_than_has_room_in_bytes() -> None:
    into = sync.FIFOQueue(1)
    found = []
    with in_place_of_ray(Cluster({})), sync.Coordinator() as coord:
        source = numbers(COUNT, epochs=1)
        options: Any = {
            "workers": 2,
            "max_in_flight": COUNT,
            "limit_bytes": FIT * SIZE,
            "ordered": True,
        }
        coord.start(prepare(source, noted, into=into, where="ray", **options))
        for _ in range(1 + FIT):  # one in the queue
            assert calls.acquire(timeout=PATIENCE)
        for number in range(COUNT):
            assert not calls.acquire(blocking=False)
            found.append(into.dequeue()[0])
            if number + 1 + FIT < COUNT:
                assert calls.acquire(timeout=PATIENCE)
    assert found == list(range(COUNT))


@pytest.mark.parametrize(("few_bytes", "expected"), [(10 * SIZE, 4), (2.5 * SIZE, 2), (10, 1)])
def test_some_large_items_are_sent_together_if_they_are_not_too_large(
    few_bytes: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_executor, "_CHUNK_BYTES", SIZE)  # so one is as large as many may be
    monkeypatch.setattr(ray_executor, "_FEW_BYTES", few_bytes)
    monkeypatch.setattr(ray_executor, "_CHUNK_SECONDS", 1e9)  # however slow the machine is
    monkeypatch.setattr(ray_executor, "_SLOW", 1e9)
    prepare_chunk = ray_actor.ItemActor.prepare
    sizes: list[int] = []

    def counting(actor: ray_actor.ItemActor, chunk: list[Sent]) -> ray_actor.ActorReport:
        sizes.append(len(chunk))
        return prepare_chunk(actor, chunk)

    monkeypatch.setattr(ray_actor.ItemActor, "prepare", counting)
    all_taken.clear()
    into = sync.FIFOQueue(COUNT)
    with in_place_of_ray(Cluster({})), sync.Coordinator() as coord:
        coord.start(
            prepare(
                taken(), when_all_are_taken, into=into, where="ray", workers=1, max_in_flight=COUNT
            )
        )
        found = [each[0] for each in into]
    assert found == list(range(COUNT))
    assert sum(sizes) == COUNT
    assert max(sizes) == expected


all_taken = threading.Event()
"""Whether all items below are taken from their source."""


def taken() -> Iterator[int]:
    yield from range(COUNT)
    all_taken.set()


def when_all_are_taken(number: int) -> Any:
    if number == 1:  # after the first one it is known how large they are, and the others come in
        assert all_taken.wait(PATIENCE)
    return np.full(SIZE, number, "uint8")
