"""Takes the batches of queues with dtypes, and of pipelines, for what they are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aioqueue
from aioqueue import inputs, sync


@dataclass
class Frame:
    pixels: Any


def frame(number: int) -> Frame:
    return Frame([number])


def train() -> None:
    for batch in inputs.numbers(4).prepare(frame).batch(2):
        print(batch.pixels.shape)
        print(batch.label)  # WRONG
    for pair in inputs.arrays(([1, 2], [3, 4])).batch(2):
        print(pair["x"])  # WRONG
    inputs.numbers(4).flat(frame)  # WRONG


async def step() -> None:
    one = aioqueue.FIFOQueue(8, "float32", (2,))
    batch = await one.dequeue_many(4)
    print(batch.mean())
    batch.append(1)  # WRONG

    two = aioqueue.FIFOQueue(8, ("float32", "int64"), [(2,), ()])
    images, labels = await two.dequeue_many(4)
    print(images.shape, labels.shape)
    print((await two.dequeue_many(4)).shape)  # WRONG


def step_in_thread() -> None:
    named = sync.FIFOQueue(8, ["float32", "int64"], [(2,), ()], names=["x", "y"])
    print(named.dequeue_many(4)["x"].shape)
    print(named.dequeue_many(4)[0])  # WRONG
    objects = sync.FIFOQueue[str](8)
    print(objects.dequeue_many(4).mean())  # WRONG
