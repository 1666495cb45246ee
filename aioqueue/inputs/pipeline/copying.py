"""Batches on their way to a device: made and copied on one side, given to the user on the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from aioqueue.inputs.batches.collating import Uncollated
from aioqueue.inputs.devices.base import Copied, Copier, mapped
from aioqueue.inputs.devices.ring import Ring
from aioqueue.inputs.pipeline.flow import Row
from aioqueue.inputs.pipeline.transforms import Transform

__all__ = ("Arriving", "Copying")


class Copying:
    """Makes batches in a ring of memory, and copies them from there. One thread calls it.

    Args:
        copier: copies to the device.
    """

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._ring = Ring(copier.slots, copier.memory)

    def copy(self, batch: Any) -> Copied:
        """Copy a batch, or begin to; what is not yet collated is made for that."""
        slot = self._ring.next()

        def made(leaf: Any) -> Any:
            return leaf.make(slot.empty) if isinstance(leaf, Uncollated) else leaf

        copied = self._copier.copied(mapped(made, batch), slot)
        slot.keep_until(copied.wait)
        return copied


class Arriving(Transform):
    """Rows that are `Copied`, handed to whoever computes with them."""

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        return [(value.arrived(), *where) for value, *where in rows]
