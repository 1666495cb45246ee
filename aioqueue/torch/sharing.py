"""Tensors in shared memory, on their way to a worker process: they go by the name of that memory.

A dataset can be told something through them while its workers live, such as its epoch. PyTorch's
own way of sending them needs a parent that answers; ours are opened by where the parent has them,
so that a process which replaces a dead one is sent the same.
"""

from __future__ import annotations

import copyreg
import os
import pickle
from typing import Any

import torch

__all__ = ("SharingPickler",)


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
    return _tensor_of, (type(tensor), opened, place, tensor.requires_grad)


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


def _tensor_of(
    kind: type, opened: tuple[Any, ...], place: tuple[Any, ...], requires_grad: bool
) -> Any:
    open_storage, *arguments = opened
    dtype, offset, shape, strides = place
    tensor = torch.empty(0, dtype=dtype, device="cpu")
    tensor.set_(open_storage(*arguments), offset, shape, strides)
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)
