"""A threaded script without `finally`: four workers fill a queue for ever, and the loop just ends.

With an argument the loop fails in its third step, as the script of a busy person may.
"""

import sys

import numpy as np

from aioqueue import sync

queue = sync.RandomShuffleQueue(256, 64, ["float32", "int64"], [(8,), ()], seed=7, name="examples")
rng = np.random.default_rng(0)


def enqueue_one() -> None:
    label = int(rng.integers(2))
    queue.enqueue((np.full(8, label, np.float32), label))


coord = sync.Coordinator()
runner = sync.QueueRunner(queue, [enqueue_one] * 4)
threads = runner.create_threads(coord=coord, start=True)
right = 0
for step in range(10):
    features, labels = queue.dequeue_many(32)
    right += int((features[:, 0] == labels).sum())
    if step == 2 and sys.argv[1:]:
        raise ValueError(sys.argv[1])
print(f"right: {right} of 320")
