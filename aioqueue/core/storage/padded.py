"""Rows of different shapes: a batch pads them to the largest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aioqueue.core.elements.component import Component
from aioqueue.core.elements.spec import Columns
from aioqueue.core.storage.objects import ObjectStorage
from aioqueue.core.storage.protocol import Held


class PaddedStorage(ObjectStorage):
    """A FIFO of rows whose batches are padded, per component, to the largest size in the batch.

    The padding is at the high end of each varying dimension: zeros, ``False`` or empty strings. The
    caller that takes the batch pads it, without the machine's lock.

    Args:
        components: the components of a row.
    """

    def __init__(self, components: tuple[Component, ...]) -> None:
        super().__init__()
        self._components = components

    def is_large(self, n: int) -> bool:
        return True  # padding is slow and may fail: never do it under the lock

    def columns(self, held: Held) -> Columns:
        return padded(self._components, held.parts)

    def empty(self) -> Columns:
        return padded(self._components, ())


def padded(components: tuple[Component, ...], rows: Sequence[Any]) -> Columns:
    """Make columns of rows; each component is padded to the largest size among them."""
    return [
        _pad(component, [row[index] for row in rows]) for index, component in enumerate(components)
    ]


def _pad(component: Component, values: list[Any]) -> np.ndarray[Any, Any]:
    """Stack values of one component whose shapes differ in the dimensions declared ``None``.

    Returns:
        An array of shape ``(len(values), *sizes)``. A fixed size is the component's; a varying one
        is the largest among the values (0 if there are none).
    """
    assert component.shape is not None
    sizes = [
        max((value.shape[axis] for value in values), default=0) if size is None else size
        for axis, size in enumerate(component.shape)
    ]
    shape = (len(values), *sizes)
    if component.text is not None:
        batch = np.full(shape, component.text(), dtype=object)
    else:
        batch = np.zeros(shape, dtype=component.dtype)
    for index, value in enumerate(values):
        if component.scalar:
            batch[index] = value
        else:
            region: tuple[int | slice, ...] = (index, *(slice(size) for size in value.shape))
            batch[region] = value
    return batch
