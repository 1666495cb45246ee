"""Memory that a worker process and its parent write arrays to, for the other one to read.

An `Arena` has no name: it is an open file that no directory lists, so it is gone when the last
process that has it open has ended, however that ended. Nothing can be left behind, and nobody has
to track it. It is large but sparse: pages take memory when they are first written to.

Who places arrays is told by the other side which ones have been read; so it alone keeps book
(`Allocator`). If both do, each has its part. What finds no place goes through the pipe.
"""

from __future__ import annotations

import mmap
import os
import pickle
import secrets
import sys
import tempfile
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from multiprocessing import reduction
from time import monotonic_ns
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ("NONE", "Allocator", "Arena", "Block", "pack", "unpack")

Block = tuple[int, int]
"""Where something lies in an arena: its first byte, and how many there are."""

SMALL: Final = 8 * 1024
"""Bytes up to which an array goes through the pipe with the rest of its example."""

_ALIGNMENT: Final = 64
_HEADER: Final = _ALIGNMENT
NONE: Final = -1
"""Stands for no item."""


class Arena:
    """Memory shared by two processes. It can be handed to a process that is being started.

    One thread talks to the process, and closes the memory. What the process says of itself (`item`,
    `seconds`, `has_begun`) is for any thread, at any time: of one that has ended, its last word.

    Args:
        size: how many bytes it has.

    Raises:
        OSError: there is no memory, or no file descriptor left for it.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._tag: str | None = None
        self._fd: int | None = None
        if sys.platform == "win32":  # there such memory has a name, but ends with its users too
            self._tag = f"aioqueue-{os.getpid()}-{secrets.token_hex(8)}"
            self.memory = mmap.mmap(-1, size, tagname=self._tag)
        else:
            self._fd = _sparse_file(size)
            try:
                self.memory = mmap.mmap(self._fd, size)
            except BaseException:
                self.handed_over()
                raise
        self._numbers: memoryview[int] | list[int] = _header(self.memory)
        self.item = NONE

    @property
    def item(self) -> int:
        """The number of what the worker works on, or has just done; -1 for nothing.

        When a worker has died, this tells what it died of.
        """
        return self._numbers[0]

    @item.setter
    def item(self, number: int) -> None:
        self._numbers[0] = number

    @property
    def seconds(self) -> float:
        """How long ago the worker has begun with that item."""
        return (monotonic_ns() - self._numbers[2]) / 1e9

    def take(self, number: int) -> None:
        """Note that the worker begins with an item."""
        self._numbers[2] = monotonic_ns()  # whose zero is the same for all processes
        self._numbers[0] = number

    @property
    def has_begun(self) -> bool:
        """Whether the worker has come to its own work: it has imported what it had to."""
        return bool(self._numbers[1])

    def begin(self) -> None:
        """Note that the worker has come to its own work."""
        self._numbers[1] = 1

    def views(self, blocks: Iterable[Block]) -> list[memoryview]:
        """What lies in some blocks, not copied."""
        whole = memoryview(self.memory)
        return [whole[start : start + size] for start, size in blocks]

    def handed_over(self) -> None:
        """The other process has it: from now on there is only the memory to keep."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        """Give the memory up; as soon as nobody looks at it any more, if somebody does now."""
        self.handed_over()
        # Not released: another thread may be about to look at them. What they lie in goes with the
        # last one that does.
        self._numbers = list(self._numbers)
        try:
            self.memory.close()
        except BufferError:
            pass  # the last view of it will

    def __reduce__(self) -> tuple[Any, ...]:
        if sys.platform == "win32":
            return _attached, (self.size, self._tag)
        assert self._fd is not None, "handed over once already"
        return _attached, (self.size, reduction.DupFd(self._fd))


def _attached(size: int, handle: Any) -> Arena:
    """The arena as the other process sees it."""
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
    if sys.platform == "linux":
        fd = os.memfd_create("aioqueue")
    else:
        with tempfile.TemporaryFile(prefix="aioqueue-") as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Allocator:
    """Keeps book of the free places of an arena: the first one that is large enough is taken.

    Args:
        stop: where what it may give out ends: as many bytes as the arena has, if it has all.
        start: where that begins.
    """

    def __init__(self, stop: int, start: int = _HEADER) -> None:
        self._free = [(start, stop)]  # ranges, in order, with something taken between any two
        self._taken: dict[int, int] = {}

    def take(self, size: int) -> int | None:
        """Take a place of so many bytes; ``None`` if there is none."""
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

    def give_back(self, starts: Iterable[int]) -> None:
        """Places are free again."""
        for start in starts:
            insort(self._free, (start, self._taken.pop(start)))
        merged = self._free[:1]
        for start, stop in self._free[1:]:
            if start == merged[-1][1]:
                merged[-1] = (merged[-1][0], stop)
            else:
                merged.append((start, stop))
        self._free = merged


class _Aside:
    """Takes large buffers out of what is pickled, and puts them into the arena."""

    def __init__(self, arena: Arena, allocator: Allocator) -> None:
        self.blocks: list[Block] = []
        self._arena = arena
        self._allocator = allocator
        self._is_placed = False  # the next buffer is the last block already

    def put(self, buffer: pickle.PickleBuffer) -> bool:
        """Put a buffer aside; true leaves it where it is."""
        if self._is_placed:
            self._is_placed = False
            return False
        with buffer.raw() as raw:
            size = raw.nbytes
            start = self._allocator.take(size) if size > SMALL else None
            if start is None:
                return True
            self._arena.memory[start : start + size] = raw
        self.blocks.append((start, size))
        return False

    def place(self, array: NDArray[Any]) -> NDArray[Any] | None:
        """Copy an array to the arena; its own buffer comes next."""
        start = self._allocator.take(array.nbytes)
        if start is None:
            return None
        placed: NDArray[Any] = np.ndarray(array.shape, array.dtype, self._arena.memory, start)
        placed[...] = array
        self.blocks.append((start, array.nbytes))
        self._is_placed = True
        return placed


class _GapPickler(pickle.Pickler):
    """Places arrays with gaps itself; NumPy would copy them once more to close the gaps."""

    def __init__(self, file: BytesIO, aside: _Aside) -> None:
        super().__init__(file, protocol=5, buffer_callback=aside.put)
        self._aside = aside

    def reducer_override(self, thing: Any) -> Any:
        placed = self._aside.place(thing) if _has_gaps(thing) else None
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
    """Whether an array is pickled as a buffer; dates and times, which have none, go in-band."""
    try:
        memoryview(array)
    except ValueError:
        return False
    return True


def _gaps_within(examples: Iterable[Any]) -> bool:
    """Whether a component of an example is an array with gaps."""
    for example in examples:
        kind = type(example)
        parts = example if kind is tuple else example.values() if kind is dict else (example,)
        if any(map(_has_gaps, parts)):
            return True
    return False


def pack(
    examples: tuple[Any, ...], arena: Arena, allocator: Allocator
) -> tuple[bytes, list[Block]]:
    """Make a message of examples: what is large lies in the arena, where the blocks say.

    Raises:
        Exception: they cannot be pickled; nothing is taken of the arena.
    """
    aside = _Aside(arena, allocator)
    try:
        if _gaps_within(examples):
            file = BytesIO()
            _GapPickler(file, aside).dump(examples)
            return file.getvalue(), aside.blocks
        return pickle.dumps(examples, 5, buffer_callback=aside.put), aside.blocks
    except BaseException:
        allocator.give_back(start for start, _ in aside.blocks)
        raise


def unpack(
    message: bytes,
    blocks: Sequence[Block],
    arena: Arena,
    copy: Callable[[memoryview], Any] | None = None,
) -> Any:
    """The thing itself; arrays in it are views of the arena, unless they are copied.

    Args:
        message: what `pack` has made, as are the blocks.
        blocks: where its large parts lie.
        arena: the memory in which they do.
        copy: makes a private copy of each; ``None`` leaves them where they are.
    """
    if not blocks:
        return pickle.loads(message)
    views = arena.views(blocks)
    return pickle.loads(message, buffers=views if copy is None else map(copy, views))
