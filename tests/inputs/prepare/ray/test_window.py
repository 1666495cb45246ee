"""What is in flight from actors is bounded in bytes, as from threads. No cluster is needed."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from aioqueue import sync
from aioqueue.inputs import numbers, prepare
from tests.clusters import PATIENCE
from tests.inputs.prepare.ray.test_every_call import Cluster, in_place_of_ray

COUNT, SIZE, FIT = 40, 1000, 4
"""How many items there are, how many bytes each has, and how many of them are within the bound."""

calls = threading.Semaphore(0)
"""Of the function below: actors are threads."""


def noted(number: int) -> Any:
    calls.release()
    return np.full(SIZE, number, "uint8")


def test_no_more_is_prepared_than_has_room_in_bytes() -> None:
    into = sync.FIFOQueue(1)
    found = []
    with in_place_of_ray(Cluster({})), sync.Coordinator() as coord:
        source = numbers(COUNT, epochs=1)
        options: Any = {"workers": 2, "limit": COUNT, "limit_bytes": FIT * SIZE, "ordered": True}
        coord.start(prepare(source, noted, into=into, where="ray", **options))
        for _ in range(1 + FIT):  # one in the queue
            assert calls.acquire(timeout=PATIENCE)
        for number in range(COUNT):
            assert not calls.acquire(blocking=False)
            found.append(into.dequeue()[0])
            if number + 1 + FIT < COUNT:
                assert calls.acquire(timeout=PATIENCE)
    assert found == list(range(COUNT))
