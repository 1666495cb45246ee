"""Row 24: a `Pipeline` against the queue, runner and coordinator that one would write by hand."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from aioqueue import sync
from aioqueue.inputs import numbers, prepare
from benchmarks.harness import Comparison, Mode, Row, compare

__all__ = ("measure",)

_IMAGE = np.zeros((224, 224, 3), np.uint8)
_WORKERS = 2


def _tiny(number: int) -> np.float32:
    return np.float32(number)


def _image(number: int) -> tuple[Any, int]:
    """About 20 µs, without the GIL for most of it."""
    return _IMAGE.copy(), number


def _without_pipeline(
    function: Callable[[int], Any], count: int, size: int, dtypes: Any, shapes: Any
) -> float:
    """Seconds per example."""
    queue = sync.FIFOQueue(2 * size, dtypes, shapes)
    began = perf_counter()
    with sync.Coordinator() as coord:
        source = numbers(count, epochs=1)
        coord.start(prepare(source, function, into=queue, workers=_WORKERS, ordered=True))
        for _ in queue.batches(size):
            pass
    return (perf_counter() - began) / count


def _by_pipeline(function: Callable[[int], Any], count: int, size: int) -> float:
    began = perf_counter()
    for _ in numbers(count).prepare(function, workers=_WORKERS).batch(size):
        pass
    return (perf_counter() - began) / count


def measure(mode: Mode) -> list[Comparison]:
    """Measure all rows."""
    cases = (
        ("scalars, batches of 128", _tiny, 60_000, 128, "float32", ()),
        ("images, batches of 32", _image, 4_000, 32, ["uint8", "int64"], [(224, 224, 3), ()]),
    )
    found = []
    for title, function, many, size, dtypes, shapes in cases:
        count = mode.scaled(many)
        found.append(
            compare(
                Row("24", f"Pipeline, {title}", "the same by hand", 0.97),
                lambda f=function, n=count, s=size: _by_pipeline(f, n, s),  # type: ignore[misc]
                lambda f=function, n=count, s=size, d=dtypes, h=shapes: _without_pipeline(
                    f, n, s, d, h
                ),  # type: ignore[misc]
                mode,
                names=("Pipeline", "by hand"),
            )
        )
    return found
