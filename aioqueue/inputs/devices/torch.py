"""Devices of PyTorch: tensors on the CPU, on CUDA, and on any other device that it can copy to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.coordination.classify import describe_exception
from aioqueue.inputs.devices.target import (
    Copied,
    DeviceCopier,
    HostMemory,
    Slot,
    mapped,
    numbers_of,
    refused,
)

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

__all__ = ("CudaCopier", "TorchCopier", "TorchTarget")


@dataclass(frozen=True)
class TorchTarget:
    """A device of PyTorch."""

    device: torch.device

    @classmethod
    def of(cls, device: Any) -> TorchTarget:
        """Return the target for a string or a ``torch.device``.

        Raises:
            InvalidArgumentError: there is no such device.
            ModuleNotFoundError: PyTorch is not installed.
        """
        torch = _torch()
        try:
            found = torch.device(device)
        except RuntimeError as error:
            raise InvalidArgumentError(
                f"device: got {device!r}; expected one of PyTorch's, such as 'cuda', 'cuda:1' or"
                " 'cpu'"
            ) from error
        if found.type == "cuda":
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if (found.index or 0) >= count:
                raise InvalidArgumentError(
                    f"device: got {device!r}; expected one that is there: PyTorch"
                    f" {torch.__version__} finds {count} CUDA devices on this machine"
                )
        elif found.type != "cpu":
            try:
                torch.empty(0, device=found)
            except Exception as error:  # RuntimeError, NotImplementedError, AssertionError, ...
                raise InvalidArgumentError(
                    f"device: got {device!r}; expected one that is there: PyTorch"
                    f" {torch.__version__} cannot use it here "
                    f" ({describe_exception(error).splitlines()[0]:.120})"
                ) from error
        return cls(found)

    @property
    def name(self) -> str:
        """PyTorch's name for it."""
        return str(self.device)

    def open(self) -> DeviceCopier:
        """Make a copier. ``"cuda"`` is the calling thread's current CUDA device."""
        return CudaCopier(self.device) if self.device.type == "cuda" else TorchCopier(self.device)


class TorchCopier(DeviceCopier):
    """Copies to devices where the call returns when the copy has ended.

    Args:
        device: the target device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def copied(self, batch: Any, slot: Slot) -> Copied:
        return Copied(mapped(self._tensor, batch))

    def _tensor(self, leaf: Any) -> Any:
        torch = _torch()
        numbers = numbers_of(leaf)
        if numbers is None:
            return leaf.to(self._device, copy=True) if isinstance(leaf, torch.Tensor) else leaf
        tensor = torch.empty(numbers.shape, dtype=_dtype_of(numbers.dtype))
        # NumPy makes the copy: it takes any strides and does not warn about read-only arrays.
        np.copyto(tensor.numpy(), numbers)
        return tensor.to(self._device)  # on the CPU, the tensor itself


class CudaCopier(DeviceCopier):
    """Copies to CUDA from pinned memory, on its own stream, without waiting for the copies.

    Args:
        device: the target device; without an index, the calling thread's current one.
    """

    slots: ClassVar[int] = 2

    def __init__(self, device: torch.device) -> None:
        torch = _torch()
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self._device)

    def memory(self, nbytes: int) -> HostMemory:
        torch = _torch()
        with torch.cuda.device(self._device):  # otherwise a context would be made on device 0
            tensor = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        return HostMemory(tensor.numpy(), tensor)

    def copied(self, batch: Any, slot: Slot) -> Copied:
        torch = _torch()
        tensors: list[Any] = []
        with torch.cuda.stream(self._stream):
            value = mapped(partial(self._tensor, slot, tensors), batch)
            event = torch.cuda.Event(blocking=True)  # waiting for it takes no processor time
            event.record(self._stream)
        return _OnCuda(value, tensors, event, self._device)

    def _tensor(self, slot: Slot, tensors: list[torch.Tensor], leaf: Any) -> Any:
        torch = _torch()
        numbers = numbers_of(leaf)
        if numbers is not None:
            host = _pinned(numbers, slot)
        elif isinstance(leaf, torch.Tensor):
            host = leaf
        else:
            return leaf
        # If the memory is not pinned, the call returns when all has been read.
        tensor = host.to(self._device, non_blocking=True, copy=True)
        tensors.append(tensor)
        return tensor


class _OnCuda(Copied):
    """A batch that is being copied to CUDA.

    Args:
        value: the batch.
        tensors: the tensors that are being copied.
        event: occurs when the copies have ended.
        device: the target device.
    """

    def __init__(
        self,
        value: Any,
        tensors: list[torch.Tensor],
        event: torch.cuda.Event,
        device: torch.device,
    ) -> None:
        super().__init__(value, event.synchronize)
        self._tensors = tensors
        self._event = event
        self._device = device

    def arrived(self) -> Any:
        stream = _torch().cuda.current_stream(self._device)
        stream.wait_event(self._event)  # the device waits; the thread continues
        for tensor in self._tensors:
            # Another stream allocated it, and could otherwise reuse its memory too early.
            tensor.record_stream(stream)
        return self._value


def _pinned(numbers: NDArray[Any], slot: Slot) -> torch.Tensor:
    """Return an array as a tensor in pinned memory, copied there unless it was made there."""
    memory = slot.memory_of(numbers)
    if memory is None:
        array = slot.empty(numbers.shape, numbers.dtype)
        np.copyto(array, numbers)
        memory = slot.memory_of(array)
        assert memory is not None
    # A view of the pinned allocation, not of NumPy's array, so that PyTorch keeps the memory until
    # the copy has ended, even if nothing else refers to it.
    of_bytes: torch.Tensor = memory.owner[: numbers.nbytes]
    return of_bytes.view(_dtype_of(numbers.dtype)).view(numbers.shape)


@cache
def _dtype_of(dtype: np.dtype[Any]) -> torch.dtype:
    """Return PyTorch's dtype for a dtype of NumPy.

    Raises:
        InvalidArgumentError: PyTorch has none.
    """
    # Compare kind and size: NumPy may have two dtypes for the same, and PyTorch knows one of them.
    try:
        alike = np.dtype(f"{dtype.kind}{dtype.itemsize}")
        return _torch().from_numpy(np.empty(0, alike)).dtype
    except TypeError:
        raise refused(dtype, "PyTorch") from None


def _torch() -> Any:
    """Import PyTorch.

    Raises:
        ModuleNotFoundError: it is not installed; the message says how to install it.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "to_device needs PyTorch: pip install 'aioqueue[torch]'", name="torch"
        ) from error
    return torch
