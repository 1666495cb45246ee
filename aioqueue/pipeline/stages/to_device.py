"""`to_device`: copies the next batches to a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from aioqueue.base.arguments import checked_count
from aioqueue.core.elements.trees import mapped
from aioqueue.pipeline.batches.collation import Uncollated
from aioqueue.pipeline.batches.devices import BufferRing, Copied, DeviceCopier, Target, target_of
from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.nodes.rows import Row
from aioqueue.pipeline.nodes.state_fields import COMMON, WORKERS, Fields, NestedField, worker_fields
from aioqueue.pipeline.stages.base import BaseStage, BuildContext
from aioqueue.pipeline.stages.transform import Transform


@dataclass(frozen=True)
class ToDevice(BaseStage):
    """Copies the next batches to a device."""

    name: ClassVar[str] = "to_device"
    state_fields: ClassVar[Fields] = {**WORKERS, "arrival": NestedField(COMMON, is_node=True)}
    is_on_device: ClassVar[bool] = True
    target: Target
    buffer_size: int

    @classmethod
    def of(cls, device: Any, buffer_size: Any) -> ToDevice:
        return cls(target_of(device), checked_count(buffer_size, "buffer_size", least=1))

    def details(self) -> str:
        return f"{self.target.name}, {self.buffer_size} ahead"

    def copies(self) -> bool:
        return True

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        return None

    @classmethod
    def blank_entry(cls, arguments: Mapping[str, Any], *, is_padded: bool) -> dict[str, Any]:
        return worker_fields(super().blank_entry(arguments, is_padded=is_padded), arguments)

    def node(self, upstream: Node, building: BuildContext) -> Node:
        upstream.defer()
        copy = DeviceCopyNode(self.target.open()).copy
        # One worker with one batch in flight: so the ring of host memory has one writer, and the
        # device holds `buffer_size` batches and one more that waits for room.
        options = {"workers": 1, "ordered": True, "max_in_flight": 1}
        return DeviceArrivalNode(
            building.workers(
                upstream, copy, buffer_size=self.buffer_size, options=options, at_once=1
            )
        )


class DeviceCopyNode:
    """Makes batches in a ring of host memory, and copies them to the device. One thread calls it.

    Args:
        copier: copies to the device.
    """

    def __init__(self, copier: DeviceCopier) -> None:
        self._copier = copier
        self._ring = BufferRing(copier.slots, copier.memory)

    def copy(self, batch: Any) -> Copied:
        """Copy a batch, or begin to. Arrays that are not made yet are made in the ring."""
        slot = self._ring.next()

        def made(leaf: Any) -> Any:
            return leaf.make(slot.empty) if isinstance(leaf, Uncollated) else leaf

        copied = self._copier.copied(mapped(made, batch), slot)
        slot.keep_until(copied.wait)
        return copied


class DeviceArrivalNode(Transform):
    """Gives copied batches (`Copied`) to the consumer, whose stream waits for the copies."""

    def accept(self, rows: Sequence[Row]) -> Iterable[Row]:
        return [(value.arrived(), *where) for value, *where in rows]
