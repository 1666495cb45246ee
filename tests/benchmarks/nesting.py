"""Row 49: examples that are dicts in dicts, beside the same arrays in one dict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import process_time
from typing import Any, Final

import numpy as np

from aioqueue import sync
from aioqueue.inputs import numbers
from tests.benchmarks.harness import Comparison, Mode, Row, compare

__all__ = ("measure",)

EXAMPLES: Final = 20_000
ELEMENTS: Final = 100_000
BATCH: Final = 128

_PIXELS: Final = np.zeros((64, 64, 3), np.uint8)
_MASK: Final = np.zeros((64, 64), np.bool_)
_STATE: Final = np.zeros(16, np.float32)


def flat(item: int) -> dict[str, Any]:
    return {"pixels": _PIXELS.copy(), "mask": _MASK.copy(), "state": _STATE.copy()}


def nested(item: int) -> dict[str, Any]:
    image = {"pixels": _PIXELS.copy(), "mask": _MASK.copy()}
    return {"image": image, "robot": {"state": _STATE.copy()}}


def pipeline(function: Callable[[int], Any], count: int) -> float:
    """The processor's seconds per example: how two threads take turns is chance."""
    began = process_time()
    for _ in numbers(count).prepare(function, workers=1).batch(BATCH):
        pass
    return (process_time() - began) / count


def batches(mode: Mode) -> Comparison:
    count = mode.scaled(EXAMPLES)
    row = Row(
        "49",
        f"a pipeline of three arrays in dicts in a dict, batches of {BATCH} (processor time)",
        "the same arrays in one dict",
        0.97,
    )
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

    alone: Any = sync.FIFOQueue(2 * BATCH, dtypes, shapes)
    together: Any = sync.FIFOQueue(2 * BATCH, in_dicts(dtypes), in_dicts(shapes))
    row = Row(
        "49", "the same through a typed queue (processor time)", "the arrays in one dict", 0.97
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
    yield batches(mode)
    yield elements(mode)
