"""Devices of JAX: its arrays on whatever it runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aioqueue.inputs.devices.base import Copied, Copier, mapped, numbers_of, refused
from aioqueue.inputs.devices.ring import Slot

if TYPE_CHECKING:
    import jax

__all__ = ("JaxTarget",)


@dataclass(frozen=True)
class JaxTarget:
    """A device of JAX, or a sharding: how an array lies on several."""

    device: jax.Device | jax.sharding.Sharding

    @property
    def name(self) -> str:
        """What JAX calls it."""
        return str(self.device)

    def open(self) -> Copier:
        """Begin to copy to it."""
        return JaxCopier(self.device)


class JaxCopier(Copier):
    """Copies to devices of JAX.

    It waits for its copies, in the thread that makes batches, where nobody else waits for it.
    Later nobody could: a step that was given an array to write over it has deleted it.

    Args:
        device: where to.
    """

    def __init__(self, device: jax.Device | jax.sharding.Sharding) -> None:
        self._device = device

    def copied(self, batch: Any, slot: Slot) -> Copied:
        import jax

        arrays: list[jax.Array] = []

        def array_of(leaf: Any) -> Any:
            numbers = leaf if isinstance(leaf, jax.Array) else numbers_of(leaf)
            if numbers is None:
                return leaf
            # On a CPU, an array of JAX may else be the very memory that it was made of.
            try:
                array = jax.device_put(numbers, self._device, may_alias=False)
            except TypeError:
                raise refused(numbers.dtype, "JAX") from None
            arrays.append(array)
            return array

        value = mapped(array_of, batch)
        jax.block_until_ready(arrays)
        return Copied(value)
