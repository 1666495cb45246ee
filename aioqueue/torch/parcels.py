"""Batches on their way out of a worker process: tensors as plain buffers.

`prepare` takes large buffers through shared memory; how tensors are pickled otherwise would copy
them through the pipe. A parcel is the pickled structure, and the memory of what lies in it.
"""

from __future__ import annotations

import pickle
from io import BytesIO
from typing import Any, Final, NamedTuple

import numpy as np
import torch

__all__ = ("Parcel", "is_plain", "packed", "unpacked")


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
