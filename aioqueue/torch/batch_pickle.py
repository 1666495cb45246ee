"""Pickling for worker processes: batches as plain buffers, and tensors in shared memory by name.

`prepare` sends large buffers through shared memory, while PyTorch's own pickling of tensors would
copy them through the pipe. A parcel consists of the pickled structure, and of the memory of its
arrays.

Tensors in shared memory go to a worker process by the name of that memory. So a program can pass
values to a dataset while its workers run, such as the epoch. PyTorch's own way needs a parent that
answers. Here, a process opens the memory through the parent's file descriptor, so the replacement
of a dead process can do so, too.
"""

from __future__ import annotations

import copyreg
import os
import pickle
from io import BytesIO
from typing import Any, Final, NamedTuple

import numpy as np
import torch

_MOST_BETWEEN: Final = 4
"""A tensor keeps its strides if its memory spans at most this many times the size of its
numbers."""


class Parcel(NamedTuple):
    """A batch without its memory, and that memory."""

    structure: bytes
    memory: list[Any]
    """NumPy arrays of bytes."""


def packed(batch: Any) -> Parcel:
    """Return a batch in the form that is sent."""
    file = BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    _Packer(file, protocol=5, buffer_callback=buffers.append).dump(batch)
    return Parcel(file.getvalue(), [np.frombuffer(one.raw(), np.uint8) for one in buffers])


def unpacked(parcel: Parcel) -> Any:
    """Return the batch; its tensors and arrays use the memory of the parcel."""
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
    """Return how many numbers the memory of a tensor spans, from its first to its last."""
    if not tensor.numel():
        return 0
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + int(sum((size - 1) * stride for size, stride in sizes))


def _is_close_together(tensor: Any) -> bool:
    """Return whether to send a tensor with everything between its numbers, so that it keeps its
    strides.

    Permuted dimensions (``channels_last``) leave nothing in between; repeated numbers (`expand`)
    span less than their size. A column of a large table is sent without the rest.
    """
    return bool(_span_of(tensor) <= _MOST_BETWEEN * tensor.numel())


def is_plain(tensor: Any) -> bool:
    """Return whether a tensor is nothing but its numbers."""
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
    """A pickler that sends tensors in shared memory by the name of that memory."""

    dispatch_table: dict[Any, Any]

    def __init__(self, file: Any, protocol: int | None = None) -> None:
        super().__init__(file, protocol)
        self.dispatch_table = {
            **copyreg.dispatch_table,
            torch.Tensor: _reduced,
            torch.nn.Parameter: _reduced,
        }


def _opened_by(storage: Any) -> tuple[Any, ...] | None:
    """Return the function and arguments that open a storage in another process; ``None`` if none
    do."""
    if torch.multiprocessing.get_sharing_strategy() == "file_system":
        return _by_name, *storage._share_filename_cpu_()
    descriptor, size = storage._share_fd_cpu_()  # the storage owns and keeps it
    path = f"/proc/{os.getpid()}/fd/{descriptor}"
    if not os.path.exists(path):  # only Linux has it
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
                "the dataset has lost a tensor in shared memory that it had when workers started;"
                " expected the program to keep the tensor, and to write to it in place"
            )
        return torch.UntypedStorage._new_shared_fd_cpu(descriptor, size)
    finally:
        os.close(descriptor)  # the storage has its own copy


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
