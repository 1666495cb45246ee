"""Collates the samples of a batch, in memory that is reused or returned to the system.

**Memory.** If one thread allocates a batch and another frees it, the C library's allocator keeps
the memory in fragments between small live objects. So a process keeps the memory of dropped
batches, and more of it with more workers. A separate memory mapping is returned as a whole. Mapped
memory is new, though, and the system must clear every page before use. So a new batch gets the
memory of a dropped one.

**Collation.** `torch.utils.data.default_collate` gets all samples of a batch and copies them, so
every large sample is in memory twice. Here a large sample is copied to its place in the batch at
once, and its memory is reused for the next sample, in a warm cache. The batches equal those of
`default_collate`, which is called for everything small or unusual, and for a place where a later
sample does not fit the earlier ones.
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

_MAPPED: Final = 2**20
"""Batches of at least this many bytes get a mapping of their own."""

_SMALL_TOTAL: Final = 2**25
"""Fewer bytes of batches than this are not worth returning."""

_HUGE: Final = 2**21
"""Bytes of a huge page. A block that begins within one starts with hundreds of small pages."""

_PRIVATE: Final[dict[str, Any]] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
)


class BatchMemory:
    """Allocates the workers' batches. Thread-safe, and safe against finalizers at any point.

    A dropped batch leaves its memory to the next one. An exception is when there are more batches
    than one per worker and one in use: then the consumer is the slow part, and nothing waits for
    memory.

    Args:
        workers: how many make batches at the same time.
    """

    def __init__(self, workers: int = 1) -> None:
        self._batches = workers + 1
        self._used: set[int] = set()  # blocks in use by batches
        self._spare: deque[mmap.mmap] = deque()  # dropping a batch puts its block here
        self._releases_spare = False

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialized tensor on the CPU.

        Raises:
            RuntimeError: there is not enough memory.
        """
        size = prod(shape) * dtype.itemsize
        if size < _MAPPED:
            return torch.empty(shape, dtype=dtype, device="cpu")
        self._releases_spare = False
        block = self._spare_block(size) or _new_mapping(size)
        self._used.add(id(block))
        # The tensor's storage, shared by all its views, keeps the array alive, which keeps the
        # mapping alive.
        array = np.frombuffer(block, np.uint8, size, _first_huge_page(block))
        weakref.finalize(array, self._dropped, block, size).atexit = False
        return torch.from_numpy(array).view(dtype).reshape(shape)

    def release_spare(self) -> None:
        """Release spare memory until the next batch."""
        self._releases_spare = True
        self._spare.clear()

    def _spare_block(self, size: int) -> mmap.mmap | None:
        """Return a spare block of this size, if there is one; release those of other sizes."""
        with suppress(IndexError):
            while True:
                block = self._spare.pop()
                if len(block) == size + _HUGE:
                    return block
        return None

    def _dropped(self, block: mmap.mmap, size: int) -> None:
        self._used.discard(id(block))
        limit = max(self._batches, _SMALL_TOTAL // size)
        if not self._releases_spare and len(self._used) + len(self._spare) < limit:
            self._spare.append(block)


def _new_mapping(size: int) -> mmap.mmap:
    """Return a block with room for this many bytes, wherever a huge page begins in it."""
    try:
        block = mmap.mmap(-1, size + _HUGE, **_PRIVATE)
    except (OSError, OverflowError) as error:
        raise RuntimeError(f"no memory for {size} bytes") from error
    whole = size - size % _HUGE  # the last part would not fill a huge page
    if whole and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # the kernel may not support it
            block.madvise(mmap.MADV_HUGEPAGE, _first_huge_page(block), whole)  # fewer page faults
    return block


def _first_huge_page(block: mmap.mmap) -> int:
    """Return where the first huge page begins in a block. (Untouched pages take no memory.)"""
    return -np.frombuffer(block, np.uint8).ctypes.data % _HUGE


_LARGE: Final = 2**14
"""Bytes of one sample from which on copying it early pays off."""

_MODULES: Final = {"torch.utils.data._utils.collate", "aioqueue.torch.worker_info"}
"""Modules whose objects `default_collate` handles in a known way."""


class Gathering(Protocol):
    """The samples of one batch, as they arrive."""

    def add(self, sample: Any) -> None: ...

    def batch(self) -> Any: ...


def gathering_for(collate_fn: Callable[[Any], Any], index: Any, memory: BatchMemory) -> Gathering:
    """Return the object that collects the samples of a batch.

    Args:
        collate_fn: makes a batch from a list of samples.
        index: what the sampler yielded: one index per sample.
        memory: allocates batches of large samples.
    """
    if collate_fn is default_collate and isinstance(index, Sized) and _is_default_collation():
        return _Field(len(index), memory)
    return _CollectedSamples(collate_fn)


def _is_default_collation() -> bool:
    """Return whether `default_collate` has its original functions for all types."""
    return all(one.__module__ in _MODULES for one in default_collate_fn_map.values())


class _CollectedSamples:
    """Samples that are kept until the last has arrived."""

    def __init__(self, collate_fn: Callable[[Any], Any]) -> None:
        self._collate_fn = collate_fn
        self._samples: list[Any] = []

    def add(self, sample: Any) -> None:
        self._samples.append(sample)

    def batch(self) -> Any:
        return self._collate_fn(self._samples)


class _Column(Protocol):
    """The values of all samples in one place."""

    def fits(self, value: Any) -> bool:
        """Accept a further value, unless it is of another kind."""

    def values(self) -> Iterable[Any]: ...

    def collated(self, many: Callable[[Iterable[Any]], Any]) -> Any:
        """Return the result of `default_collate` for the values, as a list or a tuple."""


class _Field:
    """A place in a sample, or the whole sample, with its values so far.

    Args:
        size: the expected number of samples; there may be fewer.
        memory: allocates large batches.
    """

    def __init__(self, size: int, memory: BatchMemory) -> None:
        self._size = size
        self._memory = memory
        self._column: _Column | None = None

    def add(self, sample: Any) -> None:
        if self._column is None:
            self._column = _column_for(sample, self._size, self._memory)
        if not self._column.fits(sample):
            self._column = _PlainValues([*self._column.values(), sample])

    def batch(self) -> Any:
        return self.collated(list)

    def values(self) -> Iterable[Any]:
        return () if self._column is None else self._column.values()

    def collated(self, many: Callable[[Iterable[Any]], Any]) -> Any:
        # `default_collate` raises the right error for no samples.
        return default_collate(many(())) if self._column is None else self._column.collated(many)


def _column_for(first: Any, size: int, memory: BatchMemory) -> _Column:
    if type(first) in (tuple, list, dict) and first:
        return _Structure(first, size, memory)
    tensor = _as_tensor(first)
    if tensor is not None and tensor.nbytes >= _LARGE:
        try:
            return _TensorRows(type(first), memory.empty((size, *tensor.shape), tensor.dtype))
        except RuntimeError:  # no memory for all of them, but there may be fewer
            pass
    return _PlainValues([])


class _PlainValues:
    """Any values, unchanged."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def fits(self, value: Any) -> bool:
        self._values.append(value)
        return True

    def values(self) -> Iterable[Any]:
        return self._values

    def collated(self, many: Callable[[Iterable[Any]], Any]) -> Any:
        return default_collate(many(self._values))


class _TensorRows:
    """Large tensors or arrays of one dtype and shape, as rows of the batch."""

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
        return self._rows[: self._count].clone()  # a copy, so that the unused rows are freed


class _Structure:
    """Tuples, lists or dicts with the same places."""

    def __init__(self, first: Any, size: int, memory: BatchMemory) -> None:
        self._kind = type(first)
        self._fields = {key: _Field(size, memory) for key in _keys(first)}

    def fits(self, value: Any) -> bool:
        if type(value) is not self._kind or _keys(value) != self._fields.keys():
            return False
        for key, field in self._fields.items():
            field.add(value[key])
        return True

    def values(self) -> Iterable[Any]:
        rows = zip(*[field.values() for field in self._fields.values()], strict=True)
        if self._kind is dict:
            return [dict(zip(self._fields, row, strict=True)) for row in rows]
        return map(self._kind, rows)

    def collated(self, many: Callable[[Iterable[Any]], Any]) -> Any:
        if self._kind is dict:
            return {key: field.collated(list) for key, field in self._fields.items()}
        return [field.collated(tuple) for field in self._fields.values()]


def _keys(value: Any) -> Any:
    """Return the places of a tuple, a list or a dict."""
    return value.keys() if isinstance(value, dict) else dict.fromkeys(range(len(value))).keys()


def _as_tensor(value: Any) -> torch.Tensor | None:
    """Return a tensor, or an array as one, if stacking rows gives the same as `torch.stack`."""
    if type(value) is np.ndarray:
        if not value.flags.writeable:
            return None  # PyTorch warns about such arrays
        try:
            value = torch.as_tensor(value)
        except (TypeError, ValueError):
            return None  # PyTorch raises the reason
    if type(value) is not torch.Tensor or not is_plain(value):
        return None
    # With more dimensions, `torch.stack` may keep a memory format such as channels last.
    return value if value.dim() <= 3 or value.is_contiguous() else None
