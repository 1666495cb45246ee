"""Three threads square numbers; the main one takes the squares out in batches.

The classic style: make threads, start them, ask `should_stop`, and at the end stop and join.
"""

from __future__ import annotations

import time

from aioqueue import sync

numbers = sync.FIFOQueue(capacity=100, dtypes="int64", shapes=())
squares = sync.FIFOQueue(capacity=8, dtypes=["int64", "int64"], shapes=[(), ()])


def square() -> None:
    number = numbers.dequeue()  # OutOfRangeError, the normal end, when there are no more
    time.sleep(0.01)  # a disk, a network, a decoder
    squares.enqueue((number, number * number))


def main() -> None:
    numbers.enqueue_many(range(20))
    numbers.close()
    coord = sync.Coordinator()
    threads = sync.QueueRunner(squares, [square] * 3).create_threads(coord=coord, start=True)
    try:
        for roots, batch in squares.batches(8):
            print(f"{len(batch)} squares: {dict(zip(roots.tolist(), batch.tolist(), strict=True))}")
    finally:
        coord.request_stop()
        coord.join(threads)


if __name__ == "__main__":
    main()
