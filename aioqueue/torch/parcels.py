"""Batches on their way out of a worker process: tensors as plain buffers.

`prepare` takes large buffers through shared memory; how tensors are pickled otherwise would copy
them through the pipe. A parcel is the pickled structure, and the memory of what lies in it.
"""

from __future__ import annotations

import pickle
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import torch

__all__ = ("Parcel", "is_plain", "packed", "unpacked")


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
        memory = thing.contiguous().reshape(-1).view(torch.uint8).numpy()
        return _tensor_of, (pickle.PickleBuffer(memory), thing.dtype, tuple(thing.shape))


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


def _tensor_of(memory: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    if not memoryview(memory).nbytes:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(memory, dtype=dtype).reshape(shape)
