"""The devices that batches can be copied to, and the host buffers that are copied from.

Making a large batch in new memory forces the system to find and clear its pages first. Pinned
memory, which a device can read directly, is even more expensive to allocate. So batches are written
to a small ring of buffers. A buffer is written again only when its copy to the device has ended.

`Target` and `DeviceCopier` are the interface of a device. Only arrays of numbers are copied.
PyTorch's devices are the CPU, CUDA, and any other that it can copy to; JAX's get JAX arrays. Both
libraries are imported on first use.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.base import extras
from aioqueue.core.elements.trees import mapped
from aioqueue.errors import describe_exception

if TYPE_CHECKING:
    import jax
    import torch
    from numpy.typing import NDArray


_GROWTH: Final = 1.5
"""The least factor by which memory grows. Padded batches vary in size and slowly need more."""


class HostMemory(NamedTuple):
    """Bytes that arrays are made in."""

    array: NDArray[np.uint8]
    owner: Any = None
    """The framework's object for the same bytes."""


class Slot:
    """The buffer of one batch: memory for each of its arrays.

    Args:
        memory: allocates the given number of bytes.
    """

    def __init__(self, memory: Callable[[int], HostMemory]) -> None:
        self._memory = memory
        self._pieces: list[HostMemory] = []
        self._lent: list[NDArray[Any]] = []  # the current batch's arrays, one per piece of memory
        self._wait: Callable[[], None] | None = None

    def begin(self) -> None:
        """Wait until the buffer's last batch has been copied, then free it for the next."""
        if self._wait is not None:
            self._wait()
            self._wait = None
        self._lent.clear()

    def keep_until(self, wait: Callable[[], None] | None) -> None:
        self._wait = wait

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array to write into. If it is to hold numbers, it lies in this buffer."""
        if not is_of_numbers(dtype):
            return np.empty(shape, dtype)  # not copied to the device: the user gets it as it is
        nbytes = prod(shape) * dtype.itemsize
        array = self._piece(nbytes).array[:nbytes].view(dtype).reshape(shape)
        self._lent.append(array)
        return array

    def memory_of(self, array: NDArray[Any]) -> HostMemory | None:
        """Return the memory of an array that `empty` made; ``None`` for any other array."""
        pairs = zip(self._lent, self._pieces, strict=False)
        return next((piece for lent, piece in pairs if lent is array), None)

    def _piece(self, nbytes: int) -> HostMemory:
        place = len(self._lent)
        if place == len(self._pieces):
            self._pieces.append(self._memory(max(nbytes, 1)))
        elif (size := self._pieces[place].array.size) < nbytes:
            self._pieces[place] = self._memory(max(nbytes, int(size * _GROWTH)))
        return self._pieces[place]


class BufferRing:
    """The buffers of batches, used in rotation.

    Args:
        slots: the number of buffers.
        memory: allocates the given number of bytes.
    """

    def __init__(self, slots: int, memory: Callable[[int], HostMemory]) -> None:
        self._slots = [Slot(memory) for _ in range(slots)]
        self._turn = 0

    def next(self) -> Slot:
        """Return the next batch's buffer; wait until its last batch has been copied."""
        slot = self._slots[self._turn]
        self._turn = (self._turn + 1) % len(self._slots)
        slot.begin()
        return slot


def is_of_numbers(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype holds numbers or bools: a dtype of NumPy, or one that JAX adds."""
    return dtype.kind in "biufc" or dtype.type.__module__ == "ml_dtypes"


class Copied:
    """A batch on its device, or on the way there.

    Args:
        value: the batch, with the device's arrays.
        wait: waits until the buffer may be written again. It must not refer to the batch, which
            would otherwise stay alive until somebody waits.
    """

    def __init__(self, value: Any, wait: Callable[[], None] | None = None) -> None:
        self._value = value
        self.wait = wait

    def arrived(self) -> Any:
        """Return the batch, ready for computations in the calling thread."""
        return self._value


class DeviceCopier(ABC):
    """Copies batches to a device, one after another, in one run of a pipeline."""

    slots: ClassVar[int] = 1
    """The number of buffers: more than one if a copy overlaps with the making of a batch."""

    def memory(self, nbytes: int) -> HostMemory:
        """Allocate host memory that suits copies to this device."""
        return HostMemory(np.empty(nbytes, np.uint8))

    @abstractmethod
    def copied(self, batch: Any, slot: Slot) -> Copied:
        """Copy the arrays of a batch, or begin to.

        Args:
            batch: a tree of arrays (`aioqueue.core.elements.trees`).
            slot: the buffer that holds the arrays made for it, and room for the others.

        Raises:
            InvalidArgumentError: the framework does not have the dtype.
        """


class Target(Protocol):
    """A device that the user has chosen."""

    @property
    def name(self) -> str: ...

    def open(self) -> DeviceCopier:
        """Make a copier, in the thread whose current device counts if there are several."""


def numbers_of(leaf: Any) -> NDArray[Any] | None:
    """Return a leaf as an array of numbers in native byte order; ``None`` if it is not one."""
    if not isinstance(leaf, np.ndarray | np.generic) or not is_of_numbers(leaf.dtype):
        return None
    if type(leaf) is np.ndarray and leaf.dtype.isnative:
        return leaf  # not a view of it: a ring recognises its own arrays
    return np.asarray(leaf, leaf.dtype.newbyteorder("="))


def refused(dtype: np.dtype[Any], framework: str) -> InvalidArgumentError:
    """Return the error for a dtype that a framework does not have."""
    return InvalidArgumentError(
        f"batch: got an array of {dtype}, a dtype that {framework} does not have; convert it, for"
        " example with .astype('float32')"
    )


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
        return str(self.device)

    def open(self) -> DeviceCopier:
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
            f"to_device needs PyTorch: {extras.command_for('torch')}", name="torch"
        ) from error
    return torch


def target_of(device: Any) -> Target:
    """Return the target for a device that the user names.

    Args:
        device: a string or a ``torch.device``; a device of JAX, or a sharding.

    Raises:
        InvalidArgumentError: it is nothing of the kind, or the machine does not have it.
        ModuleNotFoundError: PyTorch is not installed; the message says how to install it.
    """
    if isinstance(device, str) or _is_instance(device, "torch", "device"):
        return TorchTarget.of(device)
    if _is_instance(device, "jax", "Device") or _is_instance(device, "jax.sharding", "Sharding"):
        return JaxTarget(device)
    raise InvalidArgumentError(
        f"device: got {device!r}; expected a string such as 'cuda', 'cuda:1' or 'cpu', a"
        " torch.device, or a device of JAX such as jax.devices()[0]"
    )


def _is_instance(thing: Any, module: str, kind: str) -> bool:
    """Return whether a thing is of a module's class, without importing that module.

    If the module is not imported, the thing cannot be of its class.
    """
    found = getattr(sys.modules.get(module), kind, None)
    return isinstance(found, type) and isinstance(thing, found)
