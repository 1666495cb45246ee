"""What a worker does at this moment: the place in its program where it is.

For people who wait for it to end. Both kinds of worker are asked from outside and go on meanwhile,
so what is told is where they just were.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from types import CodeType
from typing import Any, Final

__all__ = ("is_of_a_library", "of_task", "of_thread")

_Place = tuple[CodeType, int]

_LIBRARIES: Final = tuple(
    f"{os.path.normcase(folder)}{os.sep}"
    for folder in dict.fromkeys(
        [
            sysconfig.get_path("stdlib"),
            sysconfig.get_path("platstdlib"),
            sysconfig.get_path("purelib"),
            sysconfig.get_path("platlib"),
            os.path.dirname(os.path.dirname(__file__)),
        ]
    )
)
"""Where files lie that are not the user's own."""


def of_thread(thread: threading.Thread) -> str:
    """Where a thread is: ``file:line function``; empty if that cannot be told."""
    ask = getattr(sys, "_current_frames", None)  # not every Python has it
    frame = None if ask is None or thread.ident is None else ask().get(thread.ident)
    places: list[_Place] = []
    while frame is not None:
        places.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return _told(places)


def of_task(task: Any) -> str:
    """Where a task of asyncio or trio is: ``file:line function``; empty if that cannot be told."""
    get_coro = getattr(task, "get_coro", None)
    coroutine = getattr(task, "coro", None) if get_coro is None else get_coro()
    return _told(list(_awaits(coroutine))[::-1])


def _awaits(awaited: Any) -> Iterator[_Place]:
    """What a coroutine awaits, and what that awaits, and so on, outermost first."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None and frame.f_lineno is not None:
            yield frame.f_code, frame.f_lineno
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)


def _told(places: list[_Place]) -> str:
    """The innermost place; and if that is in a library, who has called it."""
    if not places:
        return ""
    own = next((place for place in places if not is_of_a_library(place[0].co_filename)), None)
    if own is None or own is places[0]:
        return _one(places[0])
    return f"{_one(places[0])}, called from {_one(own)}"


def is_of_a_library(name: str) -> bool:
    """Whether a file, by the name that its code has, is not the user's own."""
    return name.startswith("<frozen") or os.path.normcase(name).startswith(_LIBRARIES)


def _one(place: _Place) -> str:
    code, line = place
    return f"{code.co_filename}:{line} {code.co_qualname}"
