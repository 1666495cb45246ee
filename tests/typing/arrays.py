"""Queues whose elements have dtypes: what comes out is known from how they are made."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, assert_type

import numpy as np

import aioqueue
from aioqueue import sync
from aioqueue.core.elements.spec import Array


async def train(queue: aioqueue.RandomShuffleQueue) -> float:
    """With the bare name of a class, nothing is known of its elements, and nothing is refused."""
    total = 0.0
    async for images, labels in queue.batches(4):
        total += float(images.sum()) + float(labels.sum())
    return total


async def main() -> None:
    shuffled = aioqueue.RandomShuffleQueue(
        32, 8, dtypes=("float32", np.int64), shapes=[(2, 2), ()], seed=7
    )
    await shuffled.enqueue_many((np.ones((8, 2, 2), np.float32), np.zeros(8, np.int64)))
    shuffled.close()
    assert_type(await shuffled.dequeue_many(4), tuple[Array, ...])
    assert await train(shuffled) == 16.0

    lengths = aioqueue.FIFOQueue(8, np.int32, ())
    await lengths.enqueue(3)
    await lengths.enqueue(4)
    batch = np.empty(2, np.int32)
    filled = await lengths.dequeue_many(2, out=batch)
    assert_type(filled, Array)
    assert filled.sum() == 7


def in_a_thread() -> None:
    named = sync.FIFOQueue(8, ["float32", "int64"], [(2,), ()], names=["x", "y"])
    named.enqueue({"x": [1, 2], "y": 3})
    assert_type(named.dequeue_many(1), dict[str, Array])
    named.enqueue({"x": [1, 2], "y": 3})
    assert_type(named.dequeue(), dict[str, Any])

    ragged = sync.PaddingFIFOQueue(8, "int64", (None,))
    ragged.enqueue([1, 2, 3])
    ragged.enqueue([4])
    assert ragged.dequeue_many(2).shape == (2, 3)


@dataclass
class Frame:
    pixels: Any
    label: Any


def in_containers() -> None:
    nested = sync.FIFOQueue(
        8, {"x": {"a": "f4", "b": ["i8", "i8"]}}, {"x": {"a": (), "b": [(), ()]}}
    )
    nested.enqueue({"x": {"a": 1, "b": [2, 3]}})
    assert_type(nested.dequeue_many(1), dict[str, Any])

    frames = sync.FIFOQueue(8, Frame("uint8", "int64"), Frame((2, 2), ()))
    frames.enqueue(Frame(np.zeros((2, 2), np.uint8), 1))
    frame = frames.dequeue_many(1)
    assert_type(frame, Frame)
    assert frame.pixels.shape == (1, 2, 2)

    ranked = sync.PriorityQueue(8, {"x": {"a": "f4"}}, {"x": {"a": ()}})
    ranked.enqueue((1, {"x": {"a": 2}}))
    assert ranked.dequeue()[1] == {"x": {"a": 2}}


asyncio.run(main())
in_a_thread()
in_containers()
