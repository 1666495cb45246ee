"""Three coroutines square numbers; the main one takes the squares out in batches.

`numbers` is closed when all are in. So a worker that finds it empty meets `OutOfRangeError`, the
normal end. When the last worker has ended, the runner closes `squares`, and the loop ends too.
"""

from __future__ import annotations

import asyncio

import aioqueue


async def main() -> None:
    numbers = aioqueue.FIFOQueue(capacity=100, dtypes="int64", shapes=())
    squares = aioqueue.FIFOQueue(capacity=8, dtypes=["int64", "int64"], shapes=[(), ()])

    async def square() -> None:
        number = await numbers.dequeue()
        await asyncio.sleep(0.01)  # a disk, a network, a model server
        await squares.enqueue((number, number * number))

    await numbers.enqueue_many(range(20))
    numbers.close()
    async with aioqueue.Coordinator() as coord:
        coord.start(aioqueue.QueueRunner(squares, [square] * 3))
        async for roots, batch in squares.batches(8):
            print(f"{len(batch)} squares: {dict(zip(roots.tolist(), batch.tolist(), strict=True))}")


if __name__ == "__main__":
    asyncio.run(main())
