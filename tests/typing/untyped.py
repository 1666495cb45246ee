"""Priorities; queues of whatever comes, without a word about types; and TensorFlow 1's names."""

from __future__ import annotations

import asyncio
from typing import Any, assert_type

import aioqueue
import aioqueue.compat.v1 as tf
from aioqueue import sync


class Job:
    def __init__(self, name: str) -> None:
        self.name = name


async def first(queue: aioqueue.PriorityQueue[tuple[int, Job]]) -> str:
    priority, job = await queue.dequeue()
    assert_type(priority, int)
    return job.name


async def main() -> None:
    jobs = aioqueue.PriorityQueue[tuple[int, Job]](8)
    await jobs.enqueue((2, Job("later")))
    await jobs.enqueue((1, Job("now")))
    assert await first(jobs) == "now"

    weighted = sync.PriorityQueue(8, "float32", ())
    weighted.enqueue((1, 0.5))
    priorities, weights = weighted.dequeue_many(1)
    assert len(priorities) == len(weights) == 1

    anything = aioqueue.FIFOQueue(8)
    await anything.enqueue("text")
    await anything.enqueue_many([1, None, 2.5])
    assert_type(await anything.dequeue(), Any)
    for element in await anything.dequeue_many(3):
        print(element)


def legacy() -> None:
    queue: Any = tf.FIFOQueue(4, [tf.int32], shapes=[[]])
    enqueue = queue.enqueue_many([[1, 2, 3]])
    with tf.Session() as session:
        session.run(enqueue)
        assert session.run(queue.dequeue()) == 1


asyncio.run(main())
legacy()
