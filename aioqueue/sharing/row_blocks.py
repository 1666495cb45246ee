"""Rows that clients read where the owner keeps them: blocks of a queue in shared memory.

The memory belongs to the owner's process, which alone writes it; clients map it for reading. A
dequeue of large rows is answered with their places. Its caller copies them out before it makes the
hand-over, and until then the owner holds them: nothing is written over them. So a row is copied
twice on its way, in and out, and its pages are warm, since a queue uses its blocks again.

It has no name: it is an open file that is in no directory. It is large but sparse. What a block
took goes back to the system when its queue drops it.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any, Final

from aioqueue.core.elements.spec import Columns
from aioqueue.processes.arena import Allocator
from aioqueue.system.locks import call_with_lock, is_held_here, machine_lock

if TYPE_CHECKING:
    from aioqueue.core.elements.component import Component

SIZE: Final = 1 << 30
"""How many bytes of rows the queues of one process keep in it. The others are in private memory,
and go through the memory of each connection."""

_ALIGNMENT: Final = 64
_PAGE: Final = max(mmap.PAGESIZE, 4096)

ROWS: Final = b"\2"
"""The first byte of a body that says where rows are."""

_PART: Final = struct.Struct("<QIII")
"""The place of a block, how many rows it has, and which of them: from one up to another."""


class _Place:
    """Where a block begins. The memory is free when nothing refers to this any more."""

    __slots__ = ("_blocks", "start")

    def __init__(self, blocks: RowBlocks, start: int) -> None:
        self._blocks = blocks
        self.start = start

    def __del__(self) -> None:
        self._blocks.note_unused(self.start)


class RowBlocks:
    """The owner's side: makes blocks for its queues.

    Args:
        call_soon: has a call made by a thread of ours; a finalizer may use it.

    Attributes:
        descriptor: the file, for each client.

    Raises:
        OSError: there is no descriptor left for it.
    """

    def __init__(self, call_soon: Callable[[Callable[[], object]], object]) -> None:
        from aioqueue.system import posix  # only when used

        self._call_soon = call_soon
        self._pid = os.getpid()
        self.descriptor: int = posix.file_without_name()
        self._lock = machine_lock()  # guards the memory and the allocator
        self._memory: mmap.mmap | None = None
        self._allocator = Allocator(SIZE, 0)
        self._unused: deque[int] = deque()
        self._is_closed = False

    def block(self, components: Sequence[Component], n: int) -> tuple[Columns, Any] | None:
        """Make a block for some rows; return its columns, and its place. ``None``: no room."""
        if is_held_here(self._lock):
            return None  # a finalizer, or a signal handler, in the middle of this
        return call_with_lock(self._lock, self._block, components, n)

    def _block(self, components: Sequence[Component], n: int) -> tuple[Columns, Any] | None:
        self._free_unused()
        memory = self._memory or self._open()
        if memory is None:
            return None
        offsets, size = _layout(components, n)
        start = self._allocator.allocate(size)
        if start is None:
            return None
        return _columns(memory, components, n, start, offsets), _Place(self, start)

    def _open(self) -> mmap.mmap | None:
        if self._is_closed:
            return None
        try:
            os.ftruncate(self.descriptor, SIZE)
            self._memory = mmap.mmap(self.descriptor, SIZE)
        except (OSError, ValueError):
            self._is_closed = True  # no address space for it: rows stay in private memory
        return self._memory

    def note_unused(self, start: int) -> None:
        """Note that a block has been dropped. Any finalizer may call this."""
        if os.getpid() == self._pid:  # a fork drops its copy of a block that the owner still has
            self._unused.append(start)
            self._call_soon(self.free_unused)

    def free_unused(self) -> None:
        """Give the memory of dropped blocks back to the system."""
        if not is_held_here(self._lock):
            call_with_lock(self._lock, self._free_unused)

    def _free_unused(self) -> None:
        while self._unused:
            start = self._unused.popleft()
            size = self._allocator._taken[start] - start
            with suppress(AttributeError, OSError, ValueError):  # not every system can
                assert self._memory is not None
                self._memory.madvise(mmap.MADV_REMOVE, start, size)
            self._allocator.free((start,))

    def close(self) -> None:
        """Close the file. Rows stay where they are, in this process."""
        self._is_closed = True
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class MappedRows:
    """A client's side: reads rows in the blocks of an owner.

    Args:
        descriptor: the file; this object closes it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = machine_lock()
        self._memory: mmap.mmap | None = None
        self._known: dict[tuple[int, int, int], Columns] = {}

    def parts(
        self, thing: int, components: Sequence[Component], body: memoryview
    ) -> list[tuple[Columns, int, int]]:
        """Return where the rows of an answer are: columns, and which rows of them.

        Raises:
            MemoryError: the memory cannot be mapped.
        """
        memory = self._memory
        if memory is None:
            memory = call_with_lock(self._lock, self._open)
        known, found = self._known, []
        for at in range(len(ROWS), len(body), _PART.size):
            place, rows, start, stop = _PART.unpack_from(body, at)
            columns = known.get((thing, place, rows))
            if columns is None:
                if len(known) >= _MOST_KNOWN:
                    known.clear()
                offsets, _ = _layout(components, rows)
                columns = _columns(memory, components, rows, place, offsets)
                known[thing, place, rows] = columns
            found.append((columns, start, stop))
        return found

    def _open(self) -> mmap.mmap:
        if self._memory is None:
            try:
                if self._descriptor < 0:
                    raise ValueError("the connection has ended")
                self._memory = mmap.mmap(self._descriptor, SIZE, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise MemoryError(
                    f"the memory in which the owner keeps its rows cannot be mapped: {error}"
                ) from None
        return self._memory

    def close(self) -> None:
        """Unmap the memory: now, or when the last caller has copied from it."""
        self._known.clear()
        self._memory = None
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


_MOST_KNOWN: Final = 256
"""Of how many blocks a client keeps the columns."""


def answer_of(parts: Sequence[tuple[Any, int, int, int]]) -> bytes:
    """Make an answer that says where rows are."""
    return ROWS + b"".join(
        [_PART.pack(place.start, rows, start, stop) for place, rows, start, stop in parts]
    )


def _layout(components: Sequence[Component], n: int) -> tuple[list[int], int]:
    """Return where the columns of a block begin, and how many bytes it takes, in whole pages."""
    offsets, size = [], 0
    for component in components:
        offsets.append(size)
        shape: Any = component.shape
        size += n * prod(shape) * component.dtype.itemsize
        size += -size % _ALIGNMENT
    return offsets, max(_PAGE, size + -size % _PAGE)


def _columns(
    memory: mmap.mmap, components: Sequence[Component], n: int, start: int, offsets: list[int]
) -> Columns:
    import numpy as np  # only when used

    return [
        np.ndarray((n, *component.shape), component.dtype, memory, start + offset)  # type: ignore[misc]
        for component, offset in zip(components, offsets, strict=True)
    ]
