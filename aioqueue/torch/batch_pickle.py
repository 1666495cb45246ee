"""Batches on their way out of a worker process: tensors as plain buffers.

`prepare` takes large buffers through shared memory; how tensors are pickled otherwise would copy
them through the pipe. A parcel is the pickled structure, and the memory of what lies in it.

Tensors in shared memory, on their way to a worker process: they go by the name of that memory.

A dataset can be told something through them while its workers live, such as its epoch. PyTorch's
own way of sending them needs a parent that answers; ours are opened by where the parent has them,
so that a process which replaces a dead one is sent the same.
"""

from __future__ import annotations

import copyreg
import os
import pickle
from io import BytesIO
from typing import Any, Final, NamedTuple

import numpy as np
import torch

__all__ = ("Parcel", "SharingPickler", "is_plain", "packed", "unpacked")


_MOST_BETWEEN: Final = 4
"""How many times as much memory as its numbers need a tensor may be spread over, and keep its
strides."""


class Parcel(NamedTuple):
    """A batch without its memory, and that."""

    structure: bytes
    memory: list[Any]
    """NumPy arrays of bytes."""


def packed(batch: Any) -> Parcel:
    """A batch as it is sent."""
    file = BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    _Packer(file, protocol=5, buffer_callback=buffers.append).dump(batch)
    return Parcel(file.getvalue(), [np.frombuffer(one.raw(), np.uint8) for one in buffers])


def unpacked(parcel: Parcel) -> Any:
    """The batch; its tensors and arrays lie in the memory of the parcel."""
    return pickle.loads(parcel.structure, buffers=parcel.memory)


class _Packer(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is not torch.Tensor or not is_plain(thing):
            return NotImplemented
        if not _is_close_together(thing):
            thing = thing.contiguous()
        span = _span_of(thing)
        flat = thing.as_strided((span,), (1,)) if span else thing.reshape(-1)
        memory = flat.view(torch.uint8).numpy()
        shape, strides = tuple(thing.shape), tuple(thing.stride())
        return _tensor_of, (pickle.PickleBuffer(memory), thing.dtype, shape, strides)


def _span_of(tensor: Any) -> int:
    """How many numbers there are from the first of a tensor to its last, in memory."""
    if not tensor.numel():
        return 0
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + int(sum((size - 1) * stride for size, stride in sizes))


def _is_close_together(tensor: Any) -> bool:
    """Whether a tensor is sent with all that lies between its numbers, so that its strides stay.

    That is nothing where dimensions are in another order (``channels_last``), and less than nothing
    where one number is there several times (`expand`). A column of a large table is sent alone.
    """
    return bool(_span_of(tensor) <= _MOST_BETWEEN * tensor.numel())


def is_plain(tensor: Any) -> bool:
    """Whether a tensor is nothing but its numbers."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _tensor_of(memory: Any, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    if not memoryview(memory).nbytes:
        return torch.empty_strided(shape, strides, dtype=dtype, device="cpu")
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


def _reduced(tensor: Any) -> Any:
    is_shared = (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_leaf
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.is_shared()
        and tensor.numel()
    )
    opened = _opened_by(tensor.untyped_storage()) if is_shared else None
    if opened is None:
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    place = (tensor.dtype, tensor.storage_offset(), shape, strides)
    return _shared_tensor_of, (type(tensor), opened, place, tensor.requires_grad)


class SharingPickler(pickle.Pickler):
    """A pickler that sends tensors in shared memory as that."""

    def __init__(self, file: Any, protocol: int | None = None) -> None:
        super().__init__(file, protocol)
        self.dispatch_table = {
            **copyreg.dispatch_table,
            torch.Tensor: _reduced,
            torch.nn.Parameter: _reduced,
        }


def _opened_by(storage: Any) -> tuple[Any, ...] | None:
    """What opens a storage in another process, with its arguments; ``None`` if nothing does."""
    if torch.multiprocessing.get_sharing_strategy() == "file_system":
        return _by_name, *storage._share_filename_cpu_()
    descriptor, size = storage._share_fd_cpu_()  # which the storage has, and keeps
    path = f"/proc/{os.getpid()}/fd/{descriptor}"
    if not os.path.exists(path):  # not on Linux
        return None
    found = os.fstat(descriptor)
    return _by_path, path, (found.st_dev, found.st_ino), size


def _by_name(manager: bytes, handle: bytes, size: int) -> Any:
    return torch.UntypedStorage._new_shared_filename_cpu(manager, handle, size)


def _by_path(path: str, identity: tuple[int, int], size: int) -> Any:
    descriptor = os.open(path, os.O_RDWR)
    try:
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) != identity:
            raise RuntimeError(
                "a tensor in shared memory is gone, which the dataset had when its workers began;"
                " expected that it is kept, and written to in place"
            )
        return torch.UntypedStorage._new_shared_fd_cpu(descriptor, size)
    finally:
        os.close(descriptor)  # the storage has one of its own


def _shared_tensor_of(
    kind: type, opened: tuple[Any, ...], place: tuple[Any, ...], requires_grad: bool
) -> Any:
    open_storage, *arguments = opened
    dtype, offset, shape, strides = place
    tensor = torch.empty(0, dtype=dtype, device="cpu")
    tensor.set_(open_storage(*arguments), offset, shape, strides)
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)
