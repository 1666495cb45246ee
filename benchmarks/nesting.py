"""Row 49: examples that are dicts in dicts, beside the same arrays in one dict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import process_time
from typing import Any, Final

import numpy as np

from aioqueue import sync
from aioqueue.inputs import numbers
from benchmarks.harness import Comparison, Mode, Row, compare

__all__ = ("measure",)

EXAMPLES: Final = 20_000
ELEMENTS: Final = 100_000
BATCH: Final = 128

SIDES: Final = (64, 224)
"""Of the pictures: the smaller they are, the more the containers count."""

_STATE: Final = np.zeros(16, np.float32)


class Maker:
    """Makes examples of a picture, its mask and a vector.

    Args:
        side: of the picture.
        is_nested: whether they are in dicts in a dict.
    """

    def __init__(self, side: int, *, is_nested: bool) -> None:
        self._pixels = np.zeros((side, side, 3), np.uint8)
        self._mask = np.zeros((side, side), np.bool_)
        self._is_nested = is_nested

    def __call__(self, item: int) -> dict[str, Any]:
        pixels, mask, state = self._pixels.copy(), self._mask.copy(), _STATE.copy()
        if self._is_nested:
            return {"image": {"pixels": pixels, "mask": mask}, "robot": {"state": state}}
        return {"pixels": pixels, "mask": mask, "state": state}


def pipeline(function: Callable[[int], Any], count: int) -> float:
    """The processor's seconds per example: how two threads take turns is chance."""
    began = process_time()
    for _ in numbers(count).prepare(function, workers=1).batch(BATCH):
        pass
    return (process_time() - began) / count


def batches(side: int, mode: Mode) -> Comparison:
    count = mode.scaled(EXAMPLES) * SIDES[0] // side
    row = Row(
        "49",
        f"a pipeline of a picture of {side}×{side}, its mask and a vector, in dicts in a dict,"
        f" batches of {BATCH} (processor time)",
        "the same arrays in one dict",
        0.97,
    )
    nested, flat = (Maker(side, is_nested=is_nested) for is_nested in (True, False))
    return compare(
        row,
        lambda: pipeline(nested, count),
        lambda: pipeline(flat, count),
        mode,
        names=("nested", "flat"),
    )


def _moved(queue: sync.FIFOQueue[Any], example: Any, count: int) -> float:
    began = process_time()
    for _ in range(count // BATCH):
        for _ in range(BATCH):
            queue.enqueue(example)
        queue.dequeue_many(BATCH)
    return (process_time() - began) / count


def elements(mode: Mode) -> Comparison:
    """One by one into a typed queue, and out of it in batches."""
    count = mode.scaled(ELEMENTS)
    arrays = {"pixels": ("u1", (64, 64, 3)), "mask": ("?", (64, 64)), "state": ("f4", (16,))}
    dtypes, shapes = ({name: one[at] for name, one in arrays.items()} for at in (0, 1))

    def in_dicts(one: Any) -> Any:
        return {
            "image": {"pixels": one["pixels"], "mask": one["mask"]},
            "robot": {"state": one["state"]},
        }

    nested, flat = (Maker(SIDES[0], is_nested=is_nested) for is_nested in (True, False))
    alone: Any = sync.FIFOQueue(2 * BATCH, dtypes, shapes)
    together: Any = sync.FIFOQueue(2 * BATCH, in_dicts(dtypes), in_dicts(shapes))
    row = Row(
        "49",
        "the smaller ones through a typed queue (processor time)",
        "the arrays in one dict",
        0.97,
    )
    return compare(
        row,
        lambda: _moved(together, nested(0), count),
        lambda: _moved(alone, flat(0), count),
        mode,
        names=("nested", "flat"),
    )


def measure(mode: Mode) -> Iterator[Comparison]:
    """All rows of this part."""
    for side in SIDES:
        yield batches(side, mode)
    yield elements(mode)
