"""Call stacks of running threads, tasks and worker processes, for people who wait for them.

All stacks are read from outside while their owners continue, so they show where an owner has just
been. Reading one stops nobody, waits for nobody, and costs those not examined nothing.
"""

from __future__ import annotations

import gc
import inspect
import linecache
import re
import threading
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, NamedTuple, TypeAlias

from aioqueue.base.tracebacks import PACKAGE_FOLDER, is_library_file
from aioqueue.telemetry.explain.frames import coroutine_of, current_frames, without_collection
from aioqueue.worlds.waker import Owner

_Place = tuple[CodeType, int]


def of_thread(thread: threading.Thread, frames: Mapping[int, FrameType] | None = None) -> str:
    """Return where a thread is: ``file:line function``; empty if unknown.

    Args:
        thread: the thread.
        frames: those of `current_frames`. To ask for them once per thread would take a time that
            grows with the square of the number of threads.
    """
    if frames is not None:
        return _format_places(without_collection(_places_of, thread, frames))
    with current_frames() as frames:
        return _format_places(without_collection(_places_of, thread, frames))


def _places_of(thread: threading.Thread, frames: Mapping[int, FrameType]) -> list[_Place]:
    places: list[_Place] = []
    frame = frames.get(thread.ident or 0)
    while frame is not None:
        places.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return places


def of_task(task: Any) -> str:
    """Return where a task of asyncio or trio is: ``file:line function``; empty if unknown."""
    get_coro = getattr(task, "get_coro", None)
    coroutine = getattr(task, "coro", None) if get_coro is None else get_coro()
    return _format_places(without_collection(list, _awaits(coroutine))[::-1])


def _awaits(awaited: Any) -> Iterator[_Place]:
    """Return the chain of what a coroutine awaits, outermost first."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None and frame.f_lineno is not None:
            yield frame.f_code, frame.f_lineno
        inner = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
        awaited = _hidden_coroutine(awaited) if inner is None and frame is None else inner


def _format_places(places: list[_Place]) -> str:
    """Return the innermost place; if it is in a library, also the user code that called it.

    For a call of ours, it is the line of the user alone: which line of ours waits helps nobody.
    """
    if not places:
        return ""
    files = [code.co_filename for code, _ in places]
    depth = next((depth for depth, file in enumerate(files) if not is_library_file(file)), None)
    if not depth:  # there is no user code, or it is the innermost place
        return _format_place(places[0])
    user_code = places[depth]
    if files[depth - 1].startswith(PACKAGE_FOLDER):
        return _format_place(user_code)
    return f"{_format_place(places[0])}, called from {_format_place(user_code)}"


def _format_place(place: _Place) -> str:
    code, line = place
    return f"{code.co_filename}:{line} {code.co_qualname}"


_MOST_AWAITS: Final = 200
"""Longest chain of awaits to follow: a broken one might be endless."""

_DUMP_LINE: Final = re.compile(r'^\s+File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
"""A line of `faulthandler` output."""


class Frame(NamedTuple):
    """A call in progress."""

    file: str
    line: int
    function: str

    @property
    def is_user_code(self) -> bool:
        """Whether it is user code rather than a library's."""
        return self.file != "<string>" and not is_library_file(self.file)

    def __str__(self) -> str:
        place = f"{self.file}:{self.line} in {self.function}"
        text = linecache.getline(self.file, self.line).strip() if self.is_user_code else ""
        return f"{place}: {text}" if text else place


Stack: TypeAlias = tuple[Frame, ...]
"""Calls, innermost first; empty if unknown."""

_OPAQUE_AWAITABLES: Final = (
    "_asend",
    "_athrow",
    "FutureIter",
    "_wrapper",
    "Clocked",
    "ObservedCoroutine",
)
"""Suffixes of type names for awaitables that do not reveal which coroutine or async generator they
run."""


def stack_of(thing: Any, frames: Mapping[int, FrameType] | None = None) -> Stack:
    """Return the stack of a thread, or of a task of asyncio or trio.

    It includes the tasks and async generators that a task awaits.

    Args:
        thing: the thread or task; any other object has no stack.
        frames: those of `current_frames`, to examine many threads at one moment.
    """
    if frames is not None:
        return without_collection(_stack_of, thing, frames)
    with current_frames() as frames:
        return without_collection(_stack_of, thing, frames)


def _stack_of(thing: Any, frames: Mapping[int, FrameType]) -> Stack:
    if isinstance(thing, threading.Thread):
        return _stack_of_frame(frames.get(thing.ident or 0))
    coroutine = coroutine_of(thing)
    if coroutine is None:
        return ()
    if getattr(coroutine, "cr_running", False):
        return _stack_of_running_task(coroutine.cr_frame, frames)
    return tuple(_frame_record(frame) for frame in reversed(list(awaited_frames(coroutine))))


def name_and_key(thing: Any) -> tuple[str, int]:
    """Return the name of a thread or a task, and a key that identifies it."""
    owner = Owner(thing)
    return owner.name, owner.key


def stack_of_dump(text: str) -> Stack:
    """Return the stack of one thread in `faulthandler` output."""
    return tuple(Frame(file, int(line), name) for file, line, name in _DUMP_LINE.findall(text))


def stack_of_traceback(traceback: TracebackType | None) -> Stack:
    """Return the stack in which an exception was raised, as far as it has propagated."""
    found: list[Frame] = []
    while traceback is not None:
        frame = _frame_record(traceback.tb_frame)
        found.append(frame._replace(line=traceback.tb_lineno or frame.line))
        traceback = traceback.tb_next
    return tuple(reversed(found))


def place_of(stack: Stack) -> Frame | None:
    """Return the place to look at first: the innermost call of user code, or else of any code."""
    return next((frame for frame in stack if frame.is_user_code), stack[0] if stack else None)


def format_stack(stack: Stack, indent: str = "") -> str:
    """Return the calls as lines in traceback order, without those of libraries."""
    shown = [frame for frame in stack if frame.is_user_code]
    place = place_of(stack)
    if place is not None and place not in shown:
        shown = [place]
    if stack and stack[0] not in shown and not stack[0].file.startswith(PACKAGE_FOLDER):
        shown.insert(0, stack[0])  # the library call that the user's code made
    return "".join(f"\n{indent}{frame}" for frame in reversed(shown))


def _stack_of_frame(frame: FrameType | None) -> Stack:
    found: list[Frame] = []
    while frame is not None:
        found.append(_frame_record(frame))
        frame = frame.f_back
    return tuple(found)


def _stack_of_running_task(outermost: FrameType | None, frames: Mapping[int, FrameType]) -> Stack:
    """Return the stack of the task that is running: its part of the stack of its loop's thread."""
    for innermost in frames.values():
        found: list[Frame] = []
        frame: FrameType | None = innermost
        while frame is not None:
            found.append(_frame_record(frame))
            if frame is outermost:
                return tuple(found)
            frame = frame.f_back
    return ()


def _frame_record(frame: FrameType) -> Frame:
    code = frame.f_code
    return Frame(code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_qualname)


def awaited_frames(awaited: Any) -> Iterator[FrameType]:
    """Return the chain of what a coroutine awaits, outermost first."""
    for _ in range(_MOST_AWAITS):
        if awaited is None:
            return
        for kind in ("cr", "ag", "gi"):
            frame = getattr(awaited, f"{kind}_frame", None)
            if frame is not None:
                yield frame
                awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
                break
        else:
            awaited = _hidden_coroutine(awaited)


def _hidden_coroutine(awaitable: Any) -> Any:
    """Return what runs behind an awaitable that hides it: a step of an async generator, or the
    iterator of a task."""
    if not type(awaitable).__name__.endswith(_OPAQUE_AWAITABLES):
        return None
    for other in gc.get_referents(awaitable):
        if inspect.isasyncgen(other) or inspect.iscoroutine(other):
            return other
        coroutine = coroutine_of(other)
        if coroutine is not None:
            return coroutine
    return None
