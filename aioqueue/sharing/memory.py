"""The memory that an owner shares with one client: acknowledgements, and large arrays.

It has no name: it is an open file that is in no directory, so it ends with the last process that
has it, in whatever way. The first page is there from the start. The rest is a sparse file, made at
the first large array. Each side writes one half of it.

**The page of acknowledgements.** A caller that runs on with what it got stores the number of its
call there. That store is the hand-over: it cannot block, and the owner reads it after the client's
death. Slots are used again, so a client waits for a call that still has the slot.

**Arrays.** The side that writes allocates; the side that reads copies, and frees by a message. What
does not fit goes through the socket.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Final

from aioqueue.processes.arena import Allocator
from aioqueue.sharing import frames

SLOTS: Final = 1 << 16
"""How many calls of a client can be unsettled at the same time."""

_PAGE: Final = SLOTS * 8
_HALF: Final = 128 << 20
_SIZE: Final = _PAGE + 2 * _HALF

LARGE: Final = 64 * 1024
"""Arrays from this many bytes on go through the shared memory."""

_COUNT: Final = struct.Struct("<I")
_BLOCK: Final = struct.Struct("<QQ")
_NO_PLACE: Final = (1 << 64) - 1
"""In place of the start of a block: its bytes follow in the message."""

_MOST_AROUND: Final = 64
"""How many bytes a service writes before a body at most."""

PLAIN: Final = b"\0"
"""The first byte of a body without blocks."""
_WITH_BLOCKS: Final = 1

Parts = tuple[bytes, Sequence[Any]]
"""A pickle, and the buffers that belong to it and are outside of it."""


class SharedMemory:
    """One side's view of the memory of one connection.

    Args:
        descriptor: the file; this object closes it.
        is_owner: which side this is.
    """

    def __init__(self, descriptor: int, *, is_owner: bool) -> None:
        self._descriptor: int | None = descriptor
        self._is_owner = is_owner
        self._lock = threading.Lock()  # guards what follows; callers of any thread pack
        self._arena: mmap.mmap | None = None
        self._allocator: Allocator | None = None
        self._view: memoryview | None = None
        try:
            self._page = mmap.mmap(descriptor, _PAGE)
        except BaseException:
            os.close(descriptor)
            raise
        self._slots = memoryview(self._page).cast("q")

    # The page.

    def acknowledge(self, call: int) -> None:
        """Make the hand-over of a call: what it got is the caller's from this store on."""
        try:
            self._slots[call % SLOTS] = call
        except ValueError:
            pass  # the connection has ended: nobody reads it any more

    def is_acknowledged(self, call: int) -> bool:
        try:
            return self._slots[call % SLOTS] == call
        except ValueError:  # closed
            return False

    # Arrays.

    @property
    def is_empty(self) -> bool:
        """Whether no array of this side waits for the other one to read it."""
        return self._allocator is None or not self._allocator._taken

    def pack(self, parts: Parts) -> tuple[bytes, tuple[int, ...]]:
        """Make the body of a message; return it with the starts of the blocks it has taken."""
        data, buffers = parts
        if not buffers:
            return PLAIN + data, ()
        starts: list[int] = []
        heads: list[bytes] = [b"\1", _COUNT.pack(len(buffers))]
        inline: list[Any] = []
        try:
            for buffer in buffers:
                view = _flat(buffer)
                start = self._place(view) if view.nbytes >= LARGE else None
                if start is None:
                    inline.append(view)
                else:
                    starts.append(start)
                heads.append(_BLOCK.pack(_NO_PLACE if start is None else start, view.nbytes))
            return b"".join((*heads, _COUNT.pack(len(data)), data, *inline)), tuple(starts)
        except BaseException:
            self.free(starts)
            raise

    def _place(self, view: memoryview) -> int | None:
        """Copy a buffer to this side's half; ``None`` if there is no room."""
        size = view.nbytes
        with self._lock:
            arena = self._arena or self._open()
            if arena is None:
                return None
            assert self._allocator is not None
            start = self._allocator.allocate(size)
        if start is not None:
            assert self._view is not None
            self._view[start : start + size] = view
        return start

    def _open(self) -> mmap.mmap | None:
        """Map the file in full size. Both sides do so when they first need it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return None  # it could not be mapped before, or the connection has ended
        try:
            if os.fstat(descriptor).st_size < _SIZE:
                os.ftruncate(descriptor, _SIZE)
            self._arena = mmap.mmap(descriptor, _SIZE)
        except (OSError, ValueError):
            return None  # no memory, or no address space for it: all goes through the socket
        finally:
            os.close(descriptor)
        self._view = memoryview(self._arena)
        first = _PAGE + _HALF * self._is_owner
        self._allocator = Allocator(first + _HALF, first)
        return self._arena

    def free(self, starts: Iterable[int]) -> None:
        """Free blocks of this side that the other one has read, or will never read."""
        with self._lock:
            allocator = self._allocator
            if allocator is not None:
                known = [start for start in starts if start in allocator._taken]
                if known:
                    allocator.free(known)

    def unpack(
        self, body: memoryview, *, copies: bool = True
    ) -> tuple[memoryview, list[Any], tuple[int, ...]]:
        """Return the pickle in a message, its buffers, and the blocks to free.

        Args:
            body: the message.
            copies: whether the buffers are copies; else they are views.
        """
        if body[0] != _WITH_BLOCKS:
            return body[1:], [], ()
        (count,) = _COUNT.unpack_from(body, 1)
        at = 1 + _COUNT.size
        places: list[tuple[int, int]] = []
        for _ in range(count):
            places.append(_BLOCK.unpack_from(body, at))
            at += _BLOCK.size
        (length,) = _COUNT.unpack_from(body, at)
        at += _COUNT.size
        data = body[at : at + length]
        at += length
        buffers: list[Any] = []
        starts: list[int] = []
        for start, size in places:
            if start == _NO_PLACE:
                view = body[at : at + size]
                at += size
            else:
                view = self._block(start, size)
                starts.append(start)
            buffers.append(bytearray(view) if copies else view)
        return data, buffers, tuple(starts)

    def _block(self, start: int, size: int) -> memoryview:
        with self._lock:
            if self._arena is None and self._open() is None:
                raise MemoryError("the memory that this connection shares cannot be mapped")
        assert self._view is not None
        if start + size > _SIZE:
            raise ValueError(f"a block at {start} of {size} bytes is outside of the shared memory")
        return self._view[start : start + size]

    def close(self) -> None:
        """Unmap the memory: now, or when the last view of it is dropped."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                os.close(descriptor)
            arena, self._arena, self._allocator = self._arena, None, None
            view, self._view = self._view, None
        if view is not None:
            view.release()
        if arena is not None:
            try:
                arena.close()
            except BufferError:
                pass  # a caller is copying from it, and drops it then
        self._slots.release()
        self._page.close()


def packed(memory: SharedMemory | None, parts: Parts) -> tuple[bytes, tuple[int, ...]]:
    """Make the body of a message; return it with the starts of the blocks it has taken.

    Args:
        memory: where its arrays go; ``None``: into the body.
        parts: what it says.

    Raises:
        InvalidArgumentError: it would be too long. No block is taken.
    """
    frames.check_length(len(parts[0]) + _MOST_AROUND)  # before a second copy is made
    body, starts = (inline(parts), ()) if memory is None else memory.pack(parts)
    if len(body) + _MOST_AROUND > frames.LONGEST:
        if memory is not None:
            memory.free(starts)
        frames.check_length(len(body) + _MOST_AROUND)
    return body, starts


def starts_as_bytes(starts: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(starts)}Q", *starts)


def starts_of(body: memoryview) -> tuple[int, ...]:
    return struct.unpack(f"<{len(body) // 8}Q", body)


def bytes_of(parts: Parts) -> int:
    return len(parts[0]) + sum(_flat(buffer).nbytes for buffer in parts[1])


def inline(parts: Parts) -> bytes:
    """Make the body of a message with all buffers in it."""
    data, buffers = parts
    if not buffers:
        return PLAIN + data
    views = [_flat(buffer) for buffer in buffers]
    heads = [_BLOCK.pack(_NO_PLACE, view.nbytes) for view in views]
    return b"".join((b"\1", _COUNT.pack(len(views)), *heads, _COUNT.pack(len(data)), data, *views))


def _flat(buffer: Any) -> memoryview:
    view = memoryview(buffer)
    if view.ndim != 1 or view.itemsize != 1:
        return pickle.PickleBuffer(buffer).raw()
    return view


def blocks_of(body: memoryview) -> tuple[int, ...]:
    """Return the blocks of shared memory that a message refers to."""
    if len(body) < 1 + _COUNT.size or body[0] != _WITH_BLOCKS:
        return ()
    (count,) = _COUNT.unpack_from(body, 1)
    at = 1 + _COUNT.size
    places = [_BLOCK.unpack_from(body, at + _BLOCK.size * index) for index in range(count)]
    return tuple(start for start, _ in places if start != _NO_PLACE)


def new_file() -> int:
    """Return the descriptor of a new file for the memory of a connection."""
    from aioqueue.system import posix  # only when used

    descriptor = posix.file_without_name()
    try:
        os.ftruncate(descriptor, _PAGE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
