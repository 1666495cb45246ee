"""Gives stages functions for other items, and takes batches for what they are not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aioqueue import inputs, sync


def shout(text: str) -> str:
    return text.upper()


def noisy(text: str, rng: np.random.Generator) -> str:
    return text + str(rng.random())


def pair(number: int) -> tuple[npt.NDArray[np.float32], int]:
    return np.zeros(2, np.float32), number


source = inputs.numbers(3)
source.prepare(shout)  # WRONG
source.prepare(noisy)  # WRONG
source.prepare(pair).prepare(shout)  # WRONG
inputs.read_lines("file").prepare(pair)  # WRONG
inputs.read_lines("file").prepare(noisy).prepare(shout)

for batch in source.prepare(pair).batch(2):
    print(batch.shape)  # WRONG
for array in source.batch(2):
    print(array["x"].shape, array.shape)
    array.append(1)  # WRONG

two = sync.FIFOQueue(8, ("float32", "int64"), [(2,), ()])
print(two.dequeue_many(4).shape)  # WRONG
one = sync.FIFOQueue(8, ("float32",), [(2,)])
one.dequeue_many(4).append(1)  # WRONG
