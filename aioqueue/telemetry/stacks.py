"""What a worker does at this moment: the place in its program where it is.

For people who wait for it to end. Both kinds of worker are asked from outside and go on meanwhile,
so what is told is where they just were.

Frames of others are looked at while no garbage is collected (`undisturbed`). In CPython 3.11 the
object of a frame is made when it is first asked for, and that may collect garbage, whose finalizers
let other threads run. If one of them leaves the very frame meanwhile, the object is of memory that
others write to, and the interpreter crashes, sooner or later. From 3.12 on garbage is collected
between two instructions only.

Stacks of those who go on meanwhile: threads, tasks, and worker processes by what they report.

What is told is where they just were. Nothing here stops anybody, waits, or costs those who are not
asked.
"""

from __future__ import annotations

import dis
import gc
import inspect
import linecache
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, NamedTuple, ParamSpec, TypeAlias, TypeVar

from aioqueue import locks
from aioqueue.locks import holding
from aioqueue.tracebacks import HOUSE, is_of_a_library
from aioqueue.waiting import Owner

__all__ = (
    "Frame",
    "LockLooks",
    "Stack",
    "current_frames",
    "forget_locals",
    "format_stack",
    "has_struck_ours",
    "locks_of",
    "named",
    "of_task",
    "of_thread",
    "place_of",
    "stack_of",
    "stack_of_dump",
    "stack_of_traceback",
    "undisturbed",
    "without_outermost",
)


P = ParamSpec("P")
T = TypeVar("T")

_Place = tuple[CodeType, int]

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


def _one(place: _Place) -> str:
    code, line = place
    return f"{code.co_filename}:{line} {code.co_qualname}"


_DEEPEST: Final = 200
"""Steps of a chain of awaits that are followed: a broken one might have no end."""

_SUSPENDABLE: Final = (
    inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    if sys.version_info < (3, 13)
    else 0  # to clear one that is suspended is refused
)
"""Frames that must not be cleared unless they have ended: that would close them."""

_LOCKS: Final = frozenset(
    ("SemLock.__enter__", "Semaphore.acquire", "Condition.__enter__", "_RLock.acquire")
)
"""Functions of Python's own library that wait for a lock."""

_LOCKS_OF_TASKS: Final = re.compile(r"(Lock|Semaphore|Limiter|Condition)\.(acquire\w*|__aenter__)$")
"""Functions of asyncio, anyio and trio that wait for a lock."""

_MOST_SEEN: Final = 32
"""Workers that one look sees, at most: there may be thousands of tasks."""

_LOCKS_DEEP: Final = 3

_IN_DUMP: Final = re.compile(r'^\s+File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
"""A line of what `faulthandler` writes."""


class Frame(NamedTuple):
    """One call that has not ended."""

    file: str
    line: int
    function: str

    @property
    def is_own(self) -> bool:
        """Whether it is the user's code, and no library's."""
        return self.file != "<string>" and not is_of_a_library(self.file)

    def __str__(self) -> str:
        place = f"{self.file}:{self.line} in {self.function}"
        text = linecache.getline(self.file, self.line).strip() if self.is_own else ""
        return f"{place}: {text}" if text else place


Stack: TypeAlias = tuple[Frame, ...]
"""Calls, innermost first; empty if that cannot be told."""

_RUN_OTHERS: Final = ("_asend", "_athrow", "FutureIter", "_wrapper", "Clocked")
"""How the names of types end that run a coroutine or an async generator, and do not say which."""


def stack_of(thing: Any, frames: Mapping[int, FrameType] | None = None) -> Stack:
    """The stack of a thread, or of a task of asyncio or trio.

    A task that awaits another one, or an async generator, is followed into that.

    Args:
        thing: which; anything else has none.
        frames: `current_frames`, to ask for many threads at one moment.
    """
    return undisturbed(_stack_of, thing, current_frames() if frames is None else frames)


def _stack_of(thing: Any, known: Mapping[int, FrameType]) -> Stack:
    if isinstance(thing, threading.Thread):
        return _of_frame(known.get(thing.ident or 0))
    coroutine = _coroutine_of(thing)
    if coroutine is None:
        return ()
    if getattr(coroutine, "cr_running", False):
        return _of_running(coroutine.cr_frame, known)
    return tuple(_framed(frame) for frame in reversed(list(_awaited_by(coroutine))))


def named(thing: Any) -> tuple[str, int]:
    """The name of a thread or a task, and the key that tells it from others."""
    owner = Owner(thing)
    return owner.name, owner.key


class LockLooks:
    """What looks at the stacks of workers have found, of which some may wait for a lock.

    Attributes:
        looks: how often a worker was seen,
        in_line: and how often it was seen to wait for a lock.
        lock: where that was, last: ``file:line``; ``None`` if it was not seen.
    """

    def __init__(self) -> None:
        self.looks = self.in_line = 0
        self.lock: str | None = None

    def see(self, workers: Iterable[Any]) -> None:
        """Look at some: threads, by their idents, and tasks. ``0`` and ``None`` are left out."""
        found = locks_of([worker for worker in workers if worker][:_MOST_SEEN])
        self.looks += len(found)
        waiting = [place for place in found if place is not None]
        if waiting:
            self.in_line += len(waiting)
            self.lock = waiting[-1]


def locks_of(workers: Sequence[Any]) -> list[str | None]:
    """Of each thread (by its ident) and each task the place where it waits for a lock, as
    ``file:line``; ``None`` if it does not, as far as one can see. Those that are not there are left
    out."""
    return undisturbed(_locks_of, workers, current_frames()) if workers else []


def _locks_of(workers: Sequence[Any], known: Mapping[int, FrameType]) -> list[str | None]:
    found: list[str | None] = []
    for worker in workers:
        if isinstance(worker, int):
            frame = known.get(worker)
            if frame is not None:
                found.append(_lock_of(frame))
            continue
        coroutine = _coroutine_of(worker)
        if getattr(coroutine, "cr_running", False):
            found.append(None)
        elif coroutine is not None:
            found.append(_lock_of_task(list(_awaited_by(coroutine))))
    return found


def _lock_of_task(frames: Sequence[FrameType]) -> str | None:
    """The place in the user's code, if a library's lock is what it awaits."""
    is_waiting = False
    for frame in reversed(frames):
        code = frame.f_code
        if not is_of_a_library(code.co_filename):
            return f"{code.co_filename}:{frame.f_lineno}" if is_waiting else None
        is_waiting = is_waiting or _LOCKS_OF_TASKS.search(code.co_qualname) is not None
    return None


def _lock_of(innermost: FrameType) -> str | None:
    if _is_ours(innermost):
        return None  # it waits in a call of ours, at a queue, say
    frame: FrameType | None = innermost
    # There, waits for an event are made of locks, too: its functions are told by their names.
    is_waiting = innermost.f_code.co_filename != threading.__file__ and _takes_lock(innermost)
    for _ in range(_LOCKS_DEEP):  # those of Python's own that are made of others
        if frame is None or is_waiting:
            break
        if not is_of_a_library(frame.f_code.co_filename):
            return None
        is_waiting = frame.f_code.co_qualname in _LOCKS
        frame = frame.f_back
    while frame is not None and is_of_a_library(frame.f_code.co_filename):
        frame = frame.f_back
    if not is_waiting or frame is None:
        return None
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def has_struck_ours() -> bool:
    """Whether a finalizer runs, and has interrupted code of ours, which may hold locks: as it does
    where garbage is collected meanwhile.

    What is left by a user is dropped in the user's code, or by a generator of ours that is closed.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame) and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    if frame is None or not _is_ours(frame):
        return False
    while frame is not None and is_of_a_library(frame.f_code.co_filename):
        code = frame.f_code
        is_told = code.co_name == "__del__" or code.co_flags & inspect.CO_GENERATOR
        if _is_ours(frame) and (code.co_filename == locks.__file__ or not is_told):
            return True
        frame = frame.f_back
    return False


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(HOUSE + os.sep)


def _takes_lock(frame: FrameType) -> bool:
    """Whether the call that goes on in a frame, of no function in Python, is one for a lock: it
    enters a ``with``, or is named ``acquire``."""
    return frame.f_lasti in _lock_calls(frame.f_code)


@lru_cache(maxsize=1024)
def _lock_calls(code: CodeType) -> frozenset[int]:
    found: set[int] = set()
    begins: set[tuple[int | None, int | None]] = set()  # where calls named so stand
    is_entering = False
    for one in dis.get_instructions(code):
        where = (None, None) if one.positions is None else one.positions[::2]
        if one.opname == "BEFORE_WITH":  # until Python 3.13
            found.add(one.offset)
        elif one.opname.startswith("LOAD_SPECIAL"):
            is_entering = "enter" in one.argrepr
        elif one.opname in ("LOAD_METHOD", "LOAD_ATTR") and one.argval == "acquire":
            begins.add(where)
        elif one.opname.startswith("CALL"):
            if is_entering or where in begins:
                found.add(one.offset)
            is_entering = False
    return frozenset(found)


def stack_of_dump(text: str) -> Stack:
    """The stack in what `faulthandler` has written of one thread."""
    return tuple(Frame(file, int(line), name) for file, line, name in _IN_DUMP.findall(text))


def stack_of_traceback(traceback: TracebackType | None) -> Stack:
    """The stack in which an exception was raised, as far as it has come up from there."""
    found: list[Frame] = []
    while traceback is not None:
        frame = _framed(traceback.tb_frame)
        found.append(frame._replace(line=traceback.tb_lineno or frame.line))
        traceback = traceback.tb_next
    return tuple(reversed(found))


def place_of(stack: Stack) -> Frame | None:
    """Where to look first: the innermost call of the user's own; or of all, if none is."""
    return next((frame for frame in stack if frame.is_own), stack[0] if stack else None)


def format_stack(stack: Stack, indent: str = "") -> str:
    """The calls as lines, innermost last, as tracebacks have them, without those that are ours."""
    ours = [frame for frame in stack if frame.is_own]
    place = place_of(stack)
    if place is not None and place not in ours:
        ours = [place]
    if stack and stack[0] not in ours and not stack[0].file.startswith(HOUSE):
        ours.insert(0, stack[0])  # what of a library the user's code has called
    return "".join(f"\n{indent}{frame}" for frame in reversed(ours))


def forget_locals(failure: BaseException) -> None:
    """Clear the local variables of our own functions in the traceback of a failure.

    They lead to queues, coordinators and items, and some of those to the failure: all of it would
    live until the garbage collector runs. The traceback stays, and so do the locals of other code.

    Args:
        failure: of workers that have all ended, or a group of such.
    """
    seen: set[int] = set()
    pending: list[tuple[BaseException | None, bool]] = [(failure, True)]
    while pending:
        error, has_ended = pending.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        if isinstance(error, BaseExceptionGroup):
            pending.extend((one, has_ended) for one in error.exceptions)
        # These may be failures of others, who may still be at work.
        pending += [(error.__cause__, False), (error.__context__, False)]
        traceback = error.__traceback__
        while traceback is not None:
            _clear(traceback.tb_frame, has_ended=has_ended)
            traceback = traceback.tb_next


def without_outermost(failure: Exception) -> Exception:
    """A failure whose traceback does not begin with the frame that has caught it.

    For a coroutine that waits while its failure is reported: `forget_locals` would end it.
    """
    traceback = failure.__traceback__
    return failure.with_traceback(None if traceback is None else traceback.tb_next)


def _clear(frame: FrameType, *, has_ended: bool) -> None:
    if _is_ours(frame) and (has_ended or not frame.f_code.co_flags & _SUSPENDABLE):
        with suppress(RuntimeError):  # it runs
            frame.clear()


def _of_frame(frame: FrameType | None) -> Stack:
    found: list[Frame] = []
    while frame is not None:
        found.append(_framed(frame))
        frame = frame.f_back
    return tuple(found)


def _of_running(outermost: FrameType | None, known: Mapping[int, FrameType]) -> Stack:
    """The stack of a task that runs just now: what is its own of that of its loop's thread."""
    for innermost in known.values():
        found: list[Frame] = []
        frame: FrameType | None = innermost
        while frame is not None:
            found.append(_framed(frame))
            if frame is outermost:
                return tuple(found)
            frame = frame.f_back
    return ()


def _framed(frame: FrameType) -> Frame:
    code = frame.f_code
    return Frame(code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_qualname)


def _coroutine_of(task: Any) -> Any:
    get_coro = getattr(task, "get_coro", None)
    return getattr(task, "coro", None) if get_coro is None else get_coro()


def _awaited_by(awaited: Any) -> Iterator[FrameType]:
    """What a coroutine awaits, and what that awaits, and so on, outermost first."""
    for _ in range(_DEEPEST):
        if awaited is None:
            return
        for kind in ("cr", "ag", "gi"):
            frame = getattr(awaited, f"{kind}_frame", None)
            if frame is not None:
                yield frame
                awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
                break
        else:
            awaited = _behind(awaited)


def _behind(awaitable: Any) -> Any:
    """What runs behind an awaitable that does not say so: a step of an async generator, or the
    iterator of a task."""
    if not type(awaitable).__name__.endswith(_RUN_OTHERS):
        return None
    for other in gc.get_referents(awaitable):
        if inspect.isasyncgen(other) or inspect.iscoroutine(other):
            return other
        coroutine = _coroutine_of(other)
        if coroutine is not None:
            return coroutine
    return None
