"""Actors and whole nodes are killed while they prepare: each item comes once, with the same bytes.

The long form, with 20 actors and 5 nodes: ``python -m tests.workers.ray.test_ray_deaths``.
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
from tests.kit import clusters
from tests.ray.marks import MARKS

pytestmark = MARKS

OPTIONS = {"num_cpus": 1, "resources": {"data": 1}}


class Made(NamedTuple):
    """An example of 150 KB, in the object store of its node, with the actor that made it."""

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


def digests(of: int, count: int) -> Iterator[bytes]:
    """Those of so many examples of an endless stream, whose epochs have ``of``, from threads."""
    queue = sync.FIFOQueue(16)
    with sync.Coordinator() as coord:
        source = numbers(of, epochs=None, seed=7)
        coord.start(prepare(source, image, into=queue, workers=2, ordered=True))
        for _ in range(count):
            yield digest(Made(*queue.dequeue()))
        coord.request_stop()


def digest(made: Made) -> bytes:
    reported = made.pixels.tobytes() + str(made.number).encode()
    return hashlib.blake2b(reported, digest_size=16).digest()


def run(head: clusters.Head, count: int, actors: int, nodes: int) -> tuple[list[bytes], int]:
    """Kill so many of both, at random moments; return the digests, and how many workers died.

    The one that it kills is at work: an example has just come from there. The stream has no end:
    it goes on until each death was noticed, however fast the others are, and for ``count``
    examples at least.
    """
    choices = random.Random(5)
    moments = choices.sample(range(20, count // 2), actors + nodes)
    doomed_nodes, doomed = set(moments[:nodes]), set(moments[nodes:])
    due_nodes, due = 0, 0
    dead: set[Any] = set()  # processes, and nodes
    found: list[bytes] = []
    with head.joined(2) as cluster:
        queue = sync.FIFOQueue(16)
        with sync.Coordinator() as coord:
            source = numbers(count, epochs=None, seed=7)
            runner = prepare(
                source, image, into=queue, where="ray", workers=3, ordered=True, ray=OPTIONS
            )
            coord.start(runner)
            while len(found) < count or runner.statistics().workers_died < actors + nodes:
                due_nodes += len(found) in doomed_nodes
                due += len(found) in doomed
                made = Made(*queue.dequeue())
                found.append(digest(made))
                if made.node in dead or made.pid in dead:
                    continue
                if due_nodes:
                    due_nodes -= 1
                    dead.add(made.node)
                    cluster.kill(made.node)
                elif due and clusters.kill(made.pid):
                    due -= 1
                    dead.add(made.pid)
            coord.request_stop()
        assert len(dead) == actors + nodes
        return found, runner.statistics().workers_died


def test_deaths_lose_nothing(ray_head: clusters.Head) -> None:
    found, died = run(ray_head, 400, actors=3, nodes=1)
    assert found == list(digests(400, len(found)))
    assert died >= 4


if __name__ == "__main__":
    began = time.monotonic()
    with clusters.head(0) as head:
        found, died = run(head, 4000, actors=20, nodes=5)
    seconds = time.monotonic() - began
    is_same = found == list(digests(4000, len(found))) and died >= 25
    print(
        f"{len(found):,} images, 20 actors and 5 nodes killed, {died} workers lost,"
        f" {seconds:.0f} s: {'the same as on threads' if is_same else 'DIFFERENT'}"
    )
    raise SystemExit(not is_same)
