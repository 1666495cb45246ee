"""Rows of varying shape, first in, first out, padded to one shape when they leave as a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aioqueue.elements import Columns, Component
from aioqueue.storage.objects import ObjectStorage
from aioqueue.storage.protocol import Held

__all__ = ("PaddedStorage", "padded")


class PaddedStorage(ObjectStorage):
    """A FIFO of rows whose batches are padded, per component, to the largest size in the batch.

    Padding goes at the high end of each varying dimension: zeros, ``False`` or empty strings. It is
    done by the caller that takes the batch, without the machine's lock.

    Args:
        components: the components of a row.
    """

    def __init__(self, components: tuple[Component, ...]) -> None:
        super().__init__()
        self._components = components

    def is_large(self, n: int) -> bool:
        return True  # padding takes its time, and may fail: never under the lock

    def columns(self, held: Held) -> Columns:
        return padded(self._components, held.parts)

    def empty(self) -> Columns:
        return padded(self._components, ())


def padded(components: tuple[Component, ...], rows: Sequence[Any]) -> Columns:
    """Rows as columns, each component padded to the largest size among them."""
    return [
        _pad(component, [row[index] for row in rows]) for index, component in enumerate(components)
    ]


def _pad(component: Component, values: list[Any]) -> np.ndarray[Any, Any]:
    """Stack values of one component, of shapes that differ where its shape says ``None``.

    Returns:
        An array of shape ``(len(values), *sizes)``, where a fixed size is the component's and a
        varying one the largest among the values (0 where there are none).
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
