"""Actors and whole nodes are killed while they prepare: each item comes once, with the same bytes.

The long form, with 20 actors and 5 nodes: ``python -m tests.inputs.prepare.ray.test_deaths``.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from aioqueue import sync
from aioqueue.inputs import numbers, prepare
from tests import clusters
from tests.ray.marks import MARKS

pytestmark = MARKS

OPTIONS = {"num_cpus": 1, "resources": {"data": 1}}


class Made(NamedTuple):
    """One of 150 KB, which lies in the object store of the node; and who has made it, where."""

    pixels: np.ndarray[Any, Any]
    number: int
    pid: int
    node: str


def image(number: int, rng: np.random.Generator) -> Made:
    time.sleep(0.005)
    return Made(rng.integers(0, 255, 150_000, np.uint8), number, os.getpid(), _node())


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else "here"


def digests(count: int) -> Iterator[bytes]:
    """Those of all examples, prepared on threads."""
    queue = sync.FIFOQueue(16)
    with sync.Coordinator() as coord:
        source = numbers(count, epochs=1, seed=7)
        coord.start(prepare(source, image, into=queue, workers=2, ordered=True))
        for _ in range(count):
            yield digest(Made(*queue.dequeue()))


def digest(made: Made) -> bytes:
    told = made.pixels.tobytes() + str(made.number).encode()
    return hashlib.blake2b(told, digest_size=16).digest()


def run(head: clusters.Head, count: int, actors: int, nodes: int) -> tuple[list[bytes], int]:
    """Kill so many of both, at random moments; return the digests, and how many workers died.

    Whom it kills is at work: an example has just come from there, and there are many more to come.
    So each of them is a death that has to be noticed.
    """
    choices = random.Random(5)
    moments = choices.sample(range(20, count // 2), actors + nodes)
    doomed_nodes, doomed = set(moments[:nodes]), set(moments[nodes:])
    due_nodes, due = 0, 0
    dead: set[Any] = set()  # processes, and nodes
    found = []
    with head.joined(2) as cluster:
        queue = sync.FIFOQueue(16)
        with sync.Coordinator() as coord:
            source = numbers(count, epochs=1, seed=7)
            runner = prepare(
                source, image, into=queue, where="ray", workers=3, ordered=True, ray=OPTIONS
            )
            coord.start(runner)
            for place in range(count):
                made = Made(*queue.dequeue())
                found.append(digest(made))
                due_nodes += place in doomed_nodes
                due += place in doomed
                if made.node in dead or made.pid in dead:
                    continue
                if due_nodes:
                    due_nodes -= 1
                    dead.add(made.node)
                    cluster.kill(made.node)
                elif due and clusters.kill(made.pid):
                    due -= 1
                    dead.add(made.pid)
        assert not due
        assert not due_nodes
        return found, runner.statistics().workers_died


def test_deaths_lose_nothing(ray_head: clusters.Head) -> None:
    count = 400
    found, died = run(ray_head, count, actors=3, nodes=1)
    assert found == list(digests(count))
    assert died >= 4


if __name__ == "__main__":
    began = time.monotonic()
    with clusters.head(0) as head:
        found, died = run(head, 4000, actors=20, nodes=5)
    seconds = time.monotonic() - began
    is_same = found == list(digests(4000)) and died >= 25
    print(
        f"4,000 images, 20 actors and 5 nodes killed, {died} workers lost,"
        f" {seconds:.0f} s: {'the same as on threads' if is_same else 'DIFFERENT'}"
    )
    raise SystemExit(not is_same)
