"""Reads the frames of other threads and tasks while they run.

Frames of other threads are read while garbage collection is off (`without_collection`). In CPython
3.11, the first access creates the frame object, which may trigger a collection, whose finalizers
let other threads run. If such a thread leaves that very frame, the object refers to memory that
others overwrite, and the interpreter crashes sooner or later. Since 3.12, garbage is collected only
between two instructions.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final, ParamSpec, TypeVar

from aioqueue.system.locks import call_with_lock

P = ParamSpec("P")
T = TypeVar("T")

_COLLECTS_ANYWHERE: Final = sys.implementation.name == "cpython" and sys.version_info < (3, 12)


class _FrameReaders:
    """Counts the threads that read frames now. While there is one, automatic collection is off."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._all: set[object] = set()
        self._was_enabled = False

    def enter(self, reader: object) -> None:
        if not self._all:
            self._was_enabled = gc.isenabled()
        self._all.add(reader)
        gc.disable()

    def leave(self, reader: object) -> None:
        self._all.discard(reader)
        if not self._all and self._was_enabled:
            gc.enable()

    def forget(self) -> None:
        """Forget the other threads in a fork, where they do not exist."""
        self.lock = threading.RLock()  # a thread that the fork lacks may hold the old one
        if self._all:
            self._all.clear()
            self.leave(None)


_frame_readers: Final = _FrameReaders()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_frame_readers.forget)


def without_collection(read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Read frames of other threads and tasks safely.

    Args:
        read: reads them, quickly.
        args: positional arguments for it.
        kwargs: keyword arguments for it.
    """
    if not _COLLECTS_ANYWHERE:
        return read(*args, **kwargs)
    reader = object()
    try:
        call_with_lock(_frame_readers.lock, _frame_readers.enter, reader)
        found = read(*args, **kwargs)
    finally:
        try:
            call_with_lock(_frame_readers.lock, _frame_readers.leave, reader)
        except BaseException:
            # A signal handler raised in the call above, perhaps before it left. Leaving twice does
            # no harm; not leaving would switch off garbage collection for good.
            call_with_lock(_frame_readers.lock, _frame_readers.leave, reader)
            raise
    return found


class current_frames:  # noqa: N801 - read as a call: `with current_frames() as frames`
    """The frame of each thread, by its ident; none if this Python does not provide them.

    They are gone after the block: one of them is this thread's own, which refers to all of them.
    That cycle would keep what any thread works with alive until the garbage collector runs.
    (No generator: a frame that has yielded does not lead to its caller.)
    """

    def __enter__(self) -> Mapping[int, FrameType]:
        ask = getattr(sys, "_current_frames", None)
        self._frames: dict[int, FrameType] = {} if ask is None else without_collection(ask)
        return self._frames

    def __exit__(self, *_: object) -> None:
        self._frames.clear()


def coroutine_of(task: Any) -> Any:
    """Return the coroutine of a task of asyncio or trio; ``None`` for anything else."""
    get_coro = getattr(task, "get_coro", None)
    return getattr(task, "coro", None) if get_coro is None else get_coro()
