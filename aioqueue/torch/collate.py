"""Memory for large batches, which goes back to the system when batches are dropped.

What one thread allocates and another frees stays with the allocator of the C library, in pieces
between what is small and lives on: so a process keeps the memory of batches that are long gone, and
more of it the more workers there are. What is mapped by itself is given back as a whole.

Mapped memory is new, though: the system has to clear it, page by page, before it can be written. So
where a new batch is begun for each that is dropped, the new one gets the memory of the old one.

Batches that are written while their samples come, not when the last one has come.

`torch.utils.data.default_collate` is given all samples of a batch, and copies them: there, memory
has each large sample twice while a batch is made. Here a large one goes to its place in the batch
at once, and its memory is free for the next one, which is then written to a warm cache.

The batches are those of `default_collate`. It is called for all that is small or unusual; and for
everything that a place has had, where a later sample does not fit the ones before.
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sized
from contextlib import suppress
from math import prod
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from aioqueue.torch.batch_pickle import is_plain

__all__ = ("BatchMemory", "Gathering", "gathering_for")


_MAPPED: Final = 2**20
"""Bytes from which on memory is mapped by itself."""

_FEW: Final = 2**25
"""Bytes of batches that are too little to be given back."""

_HUGE: Final = 2**21
"""Bytes of a huge page. Memory that begins in the middle of one begins with hundreds of small."""

_PRIVATE: Final[dict[str, Any]] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
)


class BatchMemory:
    """Where workers make their batches. Thread-safe, and a finalizer may strike anywhere in it.

    A batch that is dropped leaves its memory to the next one, unless there are more batches than
    one for each worker and one that is looked at: then the consumer is who is slow, and nobody
    waits for memory.

    Args:
        workers: how many make batches in it at the same time.
    """

    def __init__(self, workers: int = 1) -> None:
        self._batches = workers + 1
        self._used: set[int] = set()  # which blocks are those of batches
        self._spare: deque[mmap.mmap] = deque()  # whoever drops a batch puts its block there
        self._is_resting = False

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor on the CPU whose numbers mean nothing yet.

        Raises:
            RuntimeError: there is no room for it.
        """
        size = prod(shape) * dtype.itemsize
        if size < _MAPPED:
            return torch.empty(shape, dtype=dtype, device="cpu")
        self._is_resting = False
        block = self._used_before(size) or _mapped(size)
        self._used.add(id(block))
        # The storage of the tensor, which all of its views have, keeps the array, and that the
        # mapping.
        array = np.frombuffer(block, np.uint8, size, _first_in(block))
        weakref.finalize(array, self._dropped, block, size).atexit = False
        return torch.from_numpy(array).view(dtype).reshape(shape)

    def rest(self) -> None:
        """Keep nothing until there is a batch to be made again."""
        self._is_resting = True
        self._spare.clear()

    def _used_before(self, size: int) -> mmap.mmap | None:
        """A spare block, if there is one of this size; those of another one are let go of."""
        with suppress(IndexError):
            while True:
                block = self._spare.pop()
                if len(block) == size + _HUGE:
                    return block
        return None

    def _dropped(self, block: mmap.mmap, size: int) -> None:
        self._used.discard(id(block))
        most = max(self._batches, _FEW // size)
        if not self._is_resting and len(self._used) + len(self._spare) < most:
            self._spare.append(block)


def _mapped(size: int) -> mmap.mmap:
    """A block with room for so many bytes, wherever a huge page begins in it."""
    try:
        block = mmap.mmap(-1, size + _HUGE, **_PRIVATE)
    except (OSError, OverflowError) as error:
        raise RuntimeError(f"no memory for {size} bytes") from error
    whole = size - size % _HUGE  # none of which would be there for what is behind the end
    if whole and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel may have none
            block.madvise(mmap.MADV_HUGEPAGE, _first_in(block), whole)  # so it comes in few pieces
    return block


def _first_in(block: mmap.mmap) -> int:
    """Where the first huge page begins in a block. (What is not touched takes no memory.)"""
    return -np.frombuffer(block, np.uint8).ctypes.data % _HUGE


_LARGE: Final = 2**14
"""Bytes of one sample: less is copied as quickly all at once, and takes little memory twice."""

_MODULES: Final = {"torch.utils.data._utils.collate", "aioqueue.torch.worker_info"}
"""Those whose functions do what `default_collate` is known to do."""


class Gathering(Protocol):
    """The samples of one batch, while they come."""

    def add(self, sample: Any) -> None:
        """Take the next sample."""

    def batch(self) -> Any:
        """What becomes of them."""


def gathering_for(collate_fn: Callable[[Any], Any], index: Any, memory: BatchMemory) -> Gathering:
    """What is to take the samples of a batch.

    Args:
        collate_fn: makes a batch of a list of samples.
        index: what the sampler has given: one index for each sample.
        memory: where batches of large samples are made.
    """
    if collate_fn is default_collate and isinstance(index, Sized) and _is_pytorchs_own():
        return _Place(len(index), memory)
    return _Kept(collate_fn)


def _is_pytorchs_own() -> bool:
    """Whether nobody has told `default_collate` to do something else for some type."""
    return all(one.__module__ in _MODULES for one in default_collate_fn_map.values())


class _Kept:
    """Samples that are kept until the last has come."""

    def __init__(self, collate_fn: Callable[[Any], Any]) -> None:
        self._collate_fn = collate_fn
        self._samples: list[Any] = []

    def add(self, sample: Any) -> None:
        self._samples.append(sample)

    def batch(self) -> Any:
        return self._collate_fn(self._samples)


class _Column(Protocol):
    """What the samples of a batch have had in one place."""

    def fits(self, value: Any) -> bool:
        """Take what one more has there, unless it is another kind of thing."""

    def values(self) -> Iterable[Any]:
        """What each has had."""

    def collated(self, many: Callable[[Iterable[Any]], Any]) -> Any:
        """What `default_collate` makes of them, given as a list or a tuple."""


class _Place:
    """A place of a sample, or all of it, with what the samples have had there so far.

    Args:
        size: how many samples are to come; there may be fewer.
        memory: where large ones go.
    """

    def __init__(self, size: int, memory: BatchMemory) -> None:
        self._size = size
        self._memory = memory
        self._column: _Column | None = None

    def add(self, sample: Any) -> None:
        if self._column is None:
            self._column = _column_for(sample, self._size, self._memory)
        if not self._column.fits(sample):
            self._column = _Values([*self._column.values(), sample])

    def batch(self) -> Any:
        return self.collated(list)

    def values(self) -> Iterable[Any]:
        return () if self._column is None else self._column.values()

    def collated(self, many: Callable[[Iterable[Any]], Any]) -> Any:
        # Of no samples at all `default_collate` knows what to say.
        return default_collate(many(())) if self._column is None else self._column.collated(many)


def _column_for(first: Any, size: int, memory: BatchMemory) -> _Column:
    if type(first) in (tuple, list, dict) and first:
        return _Parts(first, size, memory)
    tensor = _as_tensor(first)
    if tensor is not None and tensor.nbytes >= _LARGE:
        try:
            return _Block(type(first), memory.empty((size, *tensor.shape), tensor.dtype))
        except RuntimeError:  # there is no room for so many; but perhaps fewer come
            pass
    return _Values([])


class _Values:
    """Whatever it is, as it is."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def fits(self, value: Any) -> bool:
        self._values.append(value)
        return True

    def values(self) -> Iterable[Any]:
        return self._values

    def collated(self, many: Callable[[Iterable[Any]], Any]) -> Any:
        return default_collate(many(self._values))


class _Block:
    """Large tensors, or arrays, of one dtype and shape: rows of what is to be handed out."""

    def __init__(self, kind: type, rows: torch.Tensor) -> None:
        self._kind = kind
        self._rows = rows
        self._count = 0

    def fits(self, value: Any) -> bool:
        tensor = _as_tensor(value) if type(value) is self._kind else None
        rows = self._rows
        if tensor is None or (tensor.dtype, tensor.shape) != (rows.dtype, rows.shape[1:]):
            return False
        rows[self._count].copy_(tensor)
        self._count += 1
        return True

    def values(self) -> Iterable[Any]:
        rows = self._rows[: self._count]
        return list(rows.numpy() if self._kind is np.ndarray else rows)

    def collated(self, many: Callable[[Iterable[Any]], Any]) -> Any:
        if self._count == len(self._rows):
            return self._rows
        return self._rows[: self._count].clone()  # which does not keep the rest


class _Parts:
    """Tuples, lists or dicts, which have the same places."""

    def __init__(self, first: Any, size: int, memory: BatchMemory) -> None:
        self._kind = type(first)
        self._places = {key: _Place(size, memory) for key in _keys(first)}

    def fits(self, value: Any) -> bool:
        if type(value) is not self._kind or _keys(value) != self._places.keys():
            return False
        for key, place in self._places.items():
            place.add(value[key])
        return True

    def values(self) -> Iterable[Any]:
        rows = zip(*[place.values() for place in self._places.values()], strict=True)
        if self._kind is dict:
            return [dict(zip(self._places, row, strict=True)) for row in rows]
        return map(self._kind, rows)

    def collated(self, many: Callable[[Iterable[Any]], Any]) -> Any:
        if self._kind is dict:
            return {key: place.collated(list) for key, place in self._places.items()}
        return [place.collated(tuple) for place in self._places.values()]


def _keys(value: Any) -> Any:
    """The places of a tuple, a list or a dict."""
    return value.keys() if isinstance(value, dict) else dict.fromkeys(range(len(value))).keys()


def _as_tensor(value: Any) -> torch.Tensor | None:
    """A tensor, or an array as one, if rows of a batch become the same as by `torch.stack`."""
    if type(value) is np.ndarray:
        if not value.flags.writeable:
            return None  # PyTorch has something to say about that
        try:
            value = torch.as_tensor(value)
        except (TypeError, ValueError):
            return None  # it will say why
    if type(value) is not torch.Tensor or not is_plain(value):
        return None
    # Of more dimensions `torch.stack` may keep another order in memory, such as channels last.
    return value if value.dim() <= 3 or value.is_contiguous() else None
