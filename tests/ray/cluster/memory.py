"""Committed elements are freed: many batches leave no more in the object store than few do.

Run it by hand with a number of batches. It needs grpcio, to ask Ray for the size of its store::

    python -m tests.ray.cluster.memory 100000
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from tests.kit import clusters

T = TypeVar("T")

ROW = 25_000  # float64s, so that a batch of four is 800 KB: in a store of 200 MB
PUT, TAKEN = 4, 5
"""How many rows go in, and come out, at a time."""
IN_FLIGHT = 4
"""How many calls of each side do not wait for each other."""


def store() -> Any:
    """What Ray says of its object store."""
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    return get_memory_info_reply(get_state_from_address(None)).store_stats


async def some_at_once(call: Callable[[T], Awaitable[object]], arguments: Iterable[T]) -> None:
    """Make calls, in order, with as many in flight as may be."""
    left = iter(arguments)

    async def one_after_another() -> None:
        for argument in left:
            await call(argument)

    await asyncio.gather(*(one_after_another() for _ in range(IN_FLIGHT)))


async def pass_through(queue: Any, count: int) -> None:
    """Put batches in, and take them out in other sizes: in order, and each row once."""

    async def put(number: int) -> None:
        await queue.enqueue_many(np.full((PUT, ROW), number))

    async def take(first: int) -> None:
        rows = range(first, min(first + TAKEN, count * PUT))
        found = await queue.dequeue_many(len(rows))
        assert found[:, 0].tolist() == [row // PUT for row in rows]

    await asyncio.gather(
        some_at_once(put, range(count)), some_at_once(take, range(0, count * PUT, TAKEN))
    )


if __name__ == "__main__":
    import aioqueue.ray

    count = int(sys.argv[1]) // 10
    with clusters.one_node():
        queue = aioqueue.ray.FIFOQueue("flat", 4 * PUT * IN_FLIGHT, "float64", [(ROW,)])
        for part in range(1, 11):
            asyncio.run(pass_through(queue, count))
            found = store()
            used, spilled = found.object_store_bytes_used, found.spilled_bytes_total
            print(
                f"{part * count:,} batches: {found.num_local_objects} objects,"
                f" {used / 2**20:.1f} MiB, {spilled / 2**20:.1f} MiB spilled",
                flush=True,
            )
