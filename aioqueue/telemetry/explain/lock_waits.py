"""Which threads and tasks wait for a lock of the user, found by samples of their stacks."""

from __future__ import annotations

import dis
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, Final

from aioqueue.base.tracebacks import is_library_file, is_of_aioqueue
from aioqueue.telemetry.explain.frames import coroutine_of, current_frames, without_collection
from aioqueue.telemetry.explain.stacks import awaited_frames

_LOCK_FUNCTIONS: Final = frozenset(
    ("SemLock.__enter__", "Semaphore.acquire", "Condition.__enter__", "_RLock.acquire")
)
"""Functions of the standard library that wait for a lock."""

_ASYNC_LOCK_FUNCTIONS: Final = re.compile(
    r"(Lock|Semaphore|Limiter|Condition)\.(acquire\w*|__aenter__)$"
)
"""Functions of asyncio, anyio and trio that wait for a lock."""

_MOST_WORKERS: Final = 32
"""Most workers to examine per sample, since there may be thousands of tasks."""

_MOST_LOCK_FRAMES: Final = 3


def locks_of(workers: Iterable[Any]) -> list[str | None]:
    """Return where each thread (by ident) and each task waits for a lock, as ``file:line``.

    The value is ``None`` if it seems not to wait for one. Threads and tasks that have gone are left
    out; ``0`` and ``None`` are ignored.
    """
    sampled = [worker for worker in workers if worker][:_MOST_WORKERS]
    if not sampled:
        return []
    with current_frames() as frames:
        return without_collection(_locks_of, sampled, frames)


def _locks_of(workers: Sequence[Any], frames: Mapping[int, FrameType]) -> list[str | None]:
    found: list[str | None] = []
    for worker in workers:
        if isinstance(worker, int):
            frame = frames.get(worker)
            if frame is not None:
                found.append(_lock_of(frame))
            continue
        coroutine = coroutine_of(worker)
        if getattr(coroutine, "cr_running", False):
            found.append(None)  # it runs now, so it awaits no lock
        elif coroutine is not None:
            found.append(_lock_of_task(list(awaited_frames(coroutine))))
    return found


def _lock_of_task(frames: Sequence[FrameType]) -> str | None:
    """Return the place in user code if the task awaits a library's lock."""
    is_waiting = False
    for frame in reversed(frames):
        code = frame.f_code
        if not is_library_file(code.co_filename):
            return f"{code.co_filename}:{frame.f_lineno}" if is_waiting else None
        is_waiting = is_waiting or _ASYNC_LOCK_FUNCTIONS.search(code.co_qualname) is not None
    return None


def _lock_of(innermost: FrameType) -> str | None:
    if is_of_aioqueue(innermost):
        return None  # it waits in our own code, such as at a queue
    frame: FrameType | None = innermost
    # Waits for an event use locks, too; function names tell the two apart.
    is_waiting = innermost.f_code.co_filename != threading.__file__ and _takes_lock(innermost)
    for _ in range(_MOST_LOCK_FRAMES):  # Python's locks may consist of others
        if frame is None or is_waiting:
            break
        if not is_library_file(frame.f_code.co_filename):
            return None
        is_waiting = frame.f_code.co_qualname in _LOCK_FUNCTIONS
        frame = frame.f_back
    while frame is not None and is_library_file(frame.f_code.co_filename):
        frame = frame.f_back
    if not is_waiting or frame is None:
        return None
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _takes_lock(frame: FrameType) -> bool:
    """Return whether the call in progress in a frame, of a function not in Python, takes a lock: it
    enters a ``with``, or is named ``acquire``."""
    return frame.f_lasti in _lock_calls(frame.f_code)


@lru_cache(maxsize=1024)
def _lock_calls(code: CodeType) -> frozenset[int]:
    found: set[int] = set()
    acquires: set[tuple[int | None, int | None]] = set()  # positions of calls with such a name
    is_entering = False
    # A frame shows which instruction runs, but not which C function it calls. So the code tells: a
    # call right after loading `__enter__`, or of a method that was loaded by the name `acquire`.
    # Loading a method and calling it begin at the same position of the source.
    for one in dis.get_instructions(code):
        where = (None, None) if one.positions is None else one.positions[::2]
        if one.opname == "BEFORE_WITH":  # up to Python 3.13
            found.add(one.offset)
        elif one.opname.startswith("LOAD_SPECIAL"):
            is_entering = "enter" in one.argrepr
        elif one.opname in ("LOAD_METHOD", "LOAD_ATTR") and one.argval == "acquire":
            acquires.add(where)
        elif one.opname.startswith("CALL"):
            if is_entering or where in acquires:
                found.add(one.offset)
            is_entering = False
    return frozenset(found)
