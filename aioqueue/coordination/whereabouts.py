"""What a worker does at this moment: the place in its program where it is.

For people who wait for it to end. Both kinds of worker are asked from outside and go on meanwhile,
so what is told is where they just were.

Frames of others are looked at while no garbage is collected (`undisturbed`). In CPython 3.11 the
object of a frame is made when it is first asked for, and that may collect garbage, whose finalizers
let other threads run. If one of them leaves the very frame meanwhile, the object is of memory that
others write to, and the interpreter crashes, sooner or later. From 3.12 on garbage is collected
between two instructions only.
"""

from __future__ import annotations

import gc
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, Final, ParamSpec, TypeVar

from aioqueue.locks import holding

__all__ = ("current_frames", "is_of_a_library", "of_task", "of_thread", "undisturbed")

P = ParamSpec("P")
T = TypeVar("T")

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


_COLLECTS_ANYWHERE: Final = sys.implementation.name == "cpython" and sys.version_info < (3, 12)


class _Onlookers:
    """Who looks at frames just now. While there is anybody, no garbage is collected by itself."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._all: set[object] = set()
        self._was_enabled = False

    def come(self, one: object) -> None:
        if not self._all:
            self._was_enabled = gc.isenabled()
        self._all.add(one)
        gc.disable()

    def go(self, one: object) -> None:
        self._all.discard(one)
        if not self._all and self._was_enabled:
            gc.enable()

    def forget(self) -> None:
        """In a fork: those of other threads are not there to go."""
        self.lock = threading.RLock()
        if self._all:
            self._all.clear()
            self.go(None)


_onlookers: Final = _Onlookers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_onlookers.forget)


def undisturbed(look: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Look at frames of other threads and tasks.

    Args:
        look: what does it, in a moment.
        args: what it is called with.
        kwargs: the same, by name.
    """
    if not _COLLECTS_ANYWHERE:
        return look(*args, **kwargs)
    one = object()
    try:
        holding(_onlookers.lock, _onlookers.come, one)
        found = look(*args, **kwargs)
    finally:
        try:
            holding(_onlookers.lock, _onlookers.go, one)
        except BaseException:  # a signal handler raised, maybe before it began
            holding(_onlookers.lock, _onlookers.go, one)
            raise
    return found


def current_frames() -> Mapping[int, FrameType]:
    """Where all threads are, by their idents; of none where this Python cannot tell."""
    ask = getattr(sys, "_current_frames", None)
    return {} if ask is None else undisturbed(ask)


def of_thread(thread: threading.Thread) -> str:
    """Where a thread is: ``file:line function``; empty if that cannot be told."""
    return _told(undisturbed(_places_of, thread))


def _places_of(thread: threading.Thread) -> list[_Place]:
    frame = current_frames().get(thread.ident or 0)
    places: list[_Place] = []
    while frame is not None:
        places.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return places


def of_task(task: Any) -> str:
    """Where a task of asyncio or trio is: ``file:line function``; empty if that cannot be told."""
    get_coro = getattr(task, "get_coro", None)
    coroutine = getattr(task, "coro", None) if get_coro is None else get_coro()
    return _told(undisturbed(list, _awaits(coroutine))[::-1])


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
