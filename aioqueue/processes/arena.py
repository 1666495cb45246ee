"""Memory that a worker process and its parent share: one writes arrays to it, the other reads them.

An `Arena` has no name: it is an open file that is in no directory. So it is gone when the last
process that has it open has ended, in whatever way. It cannot leak, and needs no tracker. It is
large but sparse: a page takes memory once it is written to.

The side that writes arrays also manages the space (`Allocator`): the other side reports which
arrays it has read. If both sides write, each has a part of its own. What does not fit goes through
the pipe.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from multiprocessing import reduction
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Block = tuple[int, int]
"""The place of a block in an arena: its first byte and its number of bytes."""

SMALL: Final = 8 * 1024
"""Arrays up to this many bytes go through the pipe with the rest of their example."""

_ALIGNMENT: Final = 64
_HEADER: Final = _ALIGNMENT
NO_ITEM: Final = -1
"""Means no item."""


class Arena:
    """Memory shared by two processes. It can be passed to a process that is being started.

    One thread talks to the process, and closes the memory. Any thread may at any time read what the
    process reports about itself (`item`, `seconds`, `has_begun`). If the process has ended, that is
    its last report.

    Args:
        size: its size in bytes.

    Raises:
        OSError: there is no memory, or no file descriptor left for it.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._tag: str | None = None
        self._fd: int | None = None
        if sys.platform == "win32":  # the memory has a name there, but also ends with its users
            self._tag = f"aioqueue-{os.getpid()}-{os.urandom(8).hex()}"
            self.memory = mmap.mmap(-1, size, tagname=self._tag)
        else:
            self._fd = _sparse_file(size)
            try:
                self.memory: mmap.mmap = mmap.mmap(self._fd, size)
            except BaseException:
                self.close_descriptor()
                raise
        self._numbers: memoryview[int] | list[int] = _header(self.memory)
        self.item = NO_ITEM

    @property
    def item(self) -> int:
        """The number of the item that the worker works on or has just done; -1 for none.

        When a worker has died, this item is the suspect.
        """
        return self._numbers[0]

    @item.setter
    def item(self, number: int) -> None:
        self._numbers[0] = number

    @property
    def seconds(self) -> float:
        """How many seconds ago the worker began that item."""
        return (monotonic_ns() - self._numbers[2]) / 1e9

    def begin_item(self, number: int) -> None:
        # First the time: a reader that sees the new number must not find the old time with it, by
        # which the item would seem to be slow at once.
        self._numbers[2] = monotonic_ns()  # all processes share the zero of this clock
        self._numbers[0] = number

    @property
    def has_begun(self) -> bool:
        """Whether the worker has reached its own code, after its imports."""
        return bool(self._numbers[1])

    def begin(self) -> None:
        self._numbers[1] = 1

    def views(self, blocks: Iterable[Block]) -> list[memoryview]:
        """Return views of some blocks; nothing is copied."""
        whole = memoryview(self.memory)
        return [whole[start : start + size] for start, size in blocks]

    def close_descriptor(self) -> None:
        """Drop everything but the memory, once the other process has it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        """Unmap the memory: now, or when the last view of it is dropped."""
        self.close_descriptor()
        # Do not release the views: another thread may be about to read them. A list stands for the
        # header from now on, so that the last report of the worker can still be read.
        self._numbers = list(self._numbers)
        try:
            self.memory.close()
        except BufferError:
            pass  # the last view releases it

    def __reduce__(self) -> tuple[Any, ...]:
        if sys.platform == "win32":
            return _attached, (self.size, self._tag)
        assert self._fd is not None, "handed over once already"
        return _attached, (self.size, reduction.DupFd(self._fd))


def _attached(size: int, handle: Any) -> Arena:
    arena = Arena.__new__(Arena)
    arena.size = size
    arena._tag = arena._fd = None
    if sys.platform == "win32":
        arena.memory = mmap.mmap(-1, size, tagname=handle)
    else:
        fd = handle.detach()
        try:
            arena.memory = mmap.mmap(fd, size)
        finally:
            os.close(fd)
    arena._numbers = _header(arena.memory)
    return arena


def _header(memory: mmap.mmap) -> memoryview[int]:
    return memoryview(memory)[:_HEADER].cast("q")


def _sparse_file(size: int) -> int:
    from aioqueue.system import posix  # only when used

    fd = posix.file_without_name()
    try:
        os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Allocator:
    """Manages the free space of an arena, first fit.

    Args:
        stop: the end of its part of the arena; the size of the arena if it has all.
        start: the start of that part.
    """

    def __init__(self, stop: int, start: int = _HEADER) -> None:
        self._free = [(start, stop)]  # free ranges in order; no two of them touch
        self._taken: dict[int, int] = {}

    def allocate(self, size: int) -> int | None:
        """Take a block of ``size`` bytes; return its start, or ``None`` if none is large enough."""
        # So arrays are aligned for every dtype, and none shares a cache line with another.
        size += -size % _ALIGNMENT
        for at, (start, stop) in enumerate(self._free):
            if stop - start >= size:
                if stop - start == size:
                    del self._free[at]
                else:
                    self._free[at] = (start + size, stop)
                self._taken[start] = start + size
                return start
        return None

    def free(self, starts: Iterable[int]) -> None:
        # Blocks come back in any order, since an item may wait for others before it is enqueued.
        # Ranges that touch are merged: otherwise a large array would find no place in the end.
        for start in starts:
            insort(self._free, (start, self._taken.pop(start)))
        merged = self._free[:1]
        for start, stop in self._free[1:]:
            if start == merged[-1][1]:
                merged[-1] = (merged[-1][0], stop)
            else:
                merged.append((start, stop))
        self._free = merged


class _BufferPlacer:
    """Moves large buffers from a pickle into the arena."""

    def __init__(self, arena: Arena, allocator: Allocator) -> None:
        self.blocks: list[Block] = []
        self._arena = arena
        self._allocator = allocator
        self._is_placed = False  # whether the next buffer is already in the last block

    def put(self, buffer: pickle.PickleBuffer) -> bool:
        """Move a buffer to the arena; return True to leave it in the pickle."""
        # `place` has copied this array, and pickles the copy, whose buffer comes here next.
        if self._is_placed:
            self._is_placed = False
            return False
        with buffer.raw() as raw:
            size = raw.nbytes
            start = self._allocator.allocate(size) if size > SMALL else None
            if start is None:
                return True  # small, or the arena is full: it goes through the pipe
            self._arena.memory[start : start + size] = raw
        self.blocks.append((start, size))
        return False

    def place(self, array: NDArray[Any]) -> NDArray[Any] | None:
        """Copy an array to the arena. Its own buffer is the next one that `put` gets."""
        start = self._allocator.allocate(array.nbytes)
        if start is None:
            return None
        placed: NDArray[Any] = np.ndarray(array.shape, array.dtype, self._arena.memory, start)
        placed[...] = array
        self.blocks.append((start, array.nbytes))
        self._is_placed = True
        return placed


class _GapPickler(pickle.Pickler):
    """Places arrays with gaps itself: NumPy would copy them once more to close the gaps."""

    def __init__(self, file: BytesIO, placer: _BufferPlacer) -> None:
        super().__init__(file, protocol=5, buffer_callback=placer.put)
        self._placer = placer

    def reducer_override(self, thing: Any) -> Any:
        placed = self._placer.place(thing) if _has_gaps(thing) else None
        return NotImplemented if placed is None else placed.__reduce_ex__(5)


def _has_gaps(thing: Any) -> bool:
    return (
        type(thing) is np.ndarray
        and thing.nbytes > SMALL
        and not thing.flags.forc
        and not thing.dtype.hasobject
        and _has_buffer(thing)
    )


def _has_buffer(array: Any) -> bool:
    """Return whether an array is pickled as a buffer. Dates and times are not: they go in-band."""
    try:
        memoryview(array)
    except ValueError:
        return False
    return True


def _gaps_within(examples: Iterable[Any]) -> bool:
    """Return whether a component of an example is an array with gaps."""
    for example in examples:
        kind = type(example)
        parts = example if kind is tuple else example.values() if kind is dict else (example,)
        if any(map(_has_gaps, parts)):
            return True
    return False


def pack(
    examples: tuple[Any, ...], arena: Arena, allocator: Allocator
) -> tuple[bytes, list[Block]]:
    """Pickle examples to a message. Their large parts go to the arena, to the returned blocks.

    Raises:
        Exception: they cannot be pickled; no space of the arena is taken.
    """
    placer = _BufferPlacer(arena, allocator)
    try:
        if _gaps_within(examples):
            file = BytesIO()
            _GapPickler(file, placer).dump(examples)
            return file.getvalue(), placer.blocks
        return pickle.dumps(examples, 5, buffer_callback=placer.put), placer.blocks
    except BaseException:
        # The parent never learns of these blocks, so it would never give them back.
        allocator.free(start for start, _ in placer.blocks)
        raise


def unpack(
    message: bytes,
    blocks: Sequence[Block],
    arena: Arena,
    copy: Callable[[memoryview], Any] | None = None,
) -> Any:
    """Unpickle a message. Its arrays are views of the arena, unless they are copied.

    Args:
        message: a message of `pack`.
        blocks: the blocks that `pack` returned with it.
        arena: the memory that has the blocks.
        copy: makes a private copy of each block; ``None`` for views.
    """
    if not blocks:
        return pickle.loads(message)
    views = arena.views(blocks)
    return pickle.loads(message, buffers=views if copy is None else map(copy, views))
