"""Row 26: batches by `to_device`, against the same loop that copies each of them once.

On the CPU, since there is one everywhere. A batch of the pipeline is the caller's own, but so that
it can be used again, or pinned, someone has to copy it: that is what is compared. Alone, the loop
does nothing else; beside a step, it computes for about as long as a batch takes, without the GIL.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import numpy as np

from aioqueue.inputs import numbers
from benchmarks.harness import Comparison, Mode, Row, compare, installed

__all__ = ("measure",)

_IMAGE = np.zeros((224, 224, 3), np.uint8)
_SIZE = 64


def _image(number: int) -> tuple[Any, int]:
    return _IMAGE, number


def _pipeline(batches: int) -> Any:
    return numbers(_SIZE * batches).prepare(_image, workers=1).batch(_SIZE)


def _tensors(batches: int) -> Iterator[tuple[Any, Any]]:
    """Batches, each copied once, as one would without `to_device`."""
    import torch

    for images, labels in _pipeline(batches):
        yield torch.from_numpy(images).clone(), torch.from_numpy(labels).clone()


def _seconds(loop: Any, batches: int, work: int) -> float:
    """Seconds per batch.

    Args:
        loop: the batches.
        batches: how many.
        work: how often the step goes through the images.
    """
    began = perf_counter()
    for images, _ in loop:
        for _ in range(work):
            images.max()
    return (perf_counter() - began) / batches


def measure(mode: Mode) -> list[Comparison]:
    """Measure all rows, if PyTorch is there."""
    if not installed("torch"):
        return []
    import torch

    torch.set_num_threads(1)  # for the step: the other core is for the workers
    batches = 8 if mode.quick else 40
    found = []
    for title, work in (("alone", 0), ("beside a step", 4)):
        found.append(
            compare(
                Row("26", f'to_device("cpu"), {title}, {_SIZE} images', "copying once", 1.0),
                lambda w=work: _seconds(_pipeline(batches).to_device("cpu"), batches, w),  # type: ignore[misc]
                lambda w=work: _seconds(_tensors(batches), batches, w),  # type: ignore[misc]
                mode,
                names=("to_device", "copying"),
                show=lambda seconds: f"{seconds * 1e3:.2f} ms a batch",
            )
        )
    return found
