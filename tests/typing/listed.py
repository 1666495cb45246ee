"""Queues of one dtype, in a list, in a tuple or bare; of several; and how many a checker counts."""

from __future__ import annotations

from typing import Any, assert_type

import aioqueue
from aioqueue import sync
from aioqueue.core.elements.spec import Array


def one_in_a_list() -> float:
    """A list may have one dtype or several, which no checker counts: its elements are `Any`."""
    queue = sync.FIFOQueue(4, ["float32"], [()])
    queue.enqueue_many([1.0, 2.0, 3.0])
    mean = queue.dequeue_many(2).mean()
    more = queue.dequeue() + 1.0
    assert_type(more, Any)
    return float(mean) + float(more)


def several_in_a_list() -> float:
    queue = sync.RandomShuffleQueue(8, 0, ["float32", "int64"], [(2,), ()])
    queue.enqueue(([1.0, 2.0], 3))
    values, number = queue.dequeue_many(1)
    return float(values.sum()) + float(number[0])


def counted_in_a_tuple() -> None:
    one = sync.FIFOQueue(4, ("float32",), ((),))
    one.enqueue(1.0)
    assert_type(one.dequeue_many(1), Array)
    several = sync.FIFOQueue(4, ("float32", "int64"), ((), ()))
    several.enqueue((1.0, 2))
    assert_type(several.dequeue_up_to(1), tuple[Array, ...])
    several.close()
    for batch in several.batches(2):
        assert_type(batch, tuple[Array, ...])
    bare = sync.PaddingFIFOQueue(4, "int64", (None,))
    assert_type(bare.dequeue_up_to(0), Array)


async def awaited() -> None:
    queue = aioqueue.FIFOQueue(4, ("float32", "int64"), ((), ()))
    await queue.enqueue((1.0, 2))
    assert_type(await queue.dequeue(), tuple[Any, ...])


assert one_in_a_list() == 5.5
assert several_in_a_list() == 6.0
counted_in_a_tuple()
sync.FIFOQueue(1).close()
