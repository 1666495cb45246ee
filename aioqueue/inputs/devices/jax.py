"""Devices of JAX: copies batches to them as JAX arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aioqueue.inputs.devices.target import Copied, DeviceCopier, Slot, mapped, numbers_of, refused

if TYPE_CHECKING:
    import jax
    from numpy.typing import NDArray

__all__ = ("JaxCopier", "JaxTarget")

_APART: Final = frozenset({"cuda", "gpu", "rocm", "tpu"})
"""Platforms with their own memory, where an array is always a copy."""

_ALIGNMENT: Final = 64
"""Alignment in bytes. On the CPU, JAX uses host memory with this alignment without a copy."""


@dataclass(frozen=True)
class JaxTarget:
    """A device of JAX, or a sharding, which lays an array out on several devices."""

    device: jax.Device | jax.sharding.Sharding

    @property
    def name(self) -> str:
        """JAX's name for it."""
        return str(self.device)

    def open(self) -> DeviceCopier:
        """Make a copier."""
        return JaxCopier(self.device)


class JaxCopier(DeviceCopier):
    """Copies to devices of JAX.

    It waits for its copies in the thread that makes batches, where the wait delays no one. A later
    wait would be impossible: a step with donated arrays has deleted them by then.

    Args:
        device: the target device.
    """

    def __init__(self, device: jax.Device | jax.sharding.Sharding) -> None:
        self._device = device
        devices = getattr(device, "device_set", None) or {device}
        self._is_apart = all(one.platform in _APART for one in devices)

    def copied(self, batch: Any, slot: Slot) -> Copied:
        import jax

        arrays: list[jax.Array] = []

        def array_of(leaf: Any) -> Any:
            numbers = leaf if isinstance(leaf, jax.Array) else self._own(numbers_of(leaf))
            if numbers is None:
                return leaf
            try:
                array = jax.device_put(numbers, self._device, may_alias=False)
            except TypeError:
                raise refused(numbers.dtype, "JAX") from None
            arrays.append(array)
            return array

        value = mapped(array_of, batch)
        jax.block_until_ready(arrays)
        return Copied(value)

    def _own(self, numbers: NDArray[Any] | None) -> NDArray[Any] | None:
        """Return memory that JAX may keep.

        ``may_alias=False`` does not help, because it concerns JAX's arrays only: on the CPU, JAX
        may adopt a NumPy array without a copy in any case.
        """
        if numbers is None or self._is_apart:
            return numbers
        memory = np.empty(numbers.nbytes + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        of_bytes = memory[start : start + numbers.nbytes]
        own: NDArray[Any] = of_bytes.view(numbers.dtype).reshape(numbers.shape)
        np.copyto(own, numbers)
        return own
