"""Call stacks of running threads, tasks and worker processes, for people who wait for them.

All stacks are read from outside while their owners continue, so they show where an owner has just
been. Reading one stops nobody, waits for nobody, and costs those not examined nothing.

Frames of other threads are read while garbage collection is off (`undisturbed`). In CPython 3.11,
the first access creates the frame object, which may trigger a collection, whose finalizers let
other threads run. If such a thread leaves that very frame, the object refers to memory that others
overwrite, and the interpreter crashes sooner or later. Since 3.12, garbage is collected only
between two instructions.
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

from aioqueue.base.tracebacks import PACKAGE_FOLDER, is_library_file
from aioqueue.system import locks
from aioqueue.system.locks import call_with_lock
from aioqueue.worlds.waker import Owner

P = ParamSpec("P")
T = TypeVar("T")

_Place = tuple[CodeType, int]

_COLLECTS_ANYWHERE: Final = sys.implementation.name == "cpython" and sys.version_info < (3, 12)


class _Onlookers:
    """Counts the threads that read frames now. While there is one, automatic collection is off."""

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
        """Forget the other threads in a fork, where they do not exist."""
        self.lock = threading.RLock()
        if self._all:
            self._all.clear()
            self.go(None)


_onlookers: Final = _Onlookers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_onlookers.forget)


def undisturbed(look: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Read frames of other threads and tasks safely.

    Args:
        look: reads them, quickly.
        args: positional arguments for it.
        kwargs: keyword arguments for it.
    """
    if not _COLLECTS_ANYWHERE:
        return look(*args, **kwargs)
    one = object()
    try:
        call_with_lock(_onlookers.lock, _onlookers.come, one)
        found = look(*args, **kwargs)
    finally:
        try:
            call_with_lock(_onlookers.lock, _onlookers.go, one)
        except BaseException:  # a signal handler raised, perhaps before `look` began
            call_with_lock(_onlookers.lock, _onlookers.go, one)
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
        self._frames: dict[int, FrameType] = {} if ask is None else undisturbed(ask)
        return self._frames

    def __exit__(self, *_: object) -> None:
        self._frames.clear()


def of_thread(thread: threading.Thread) -> str:
    """Return where a thread is: ``file:line function``; empty if unknown."""
    return _format_places(undisturbed(_places_of, thread))


def _places_of(thread: threading.Thread) -> list[_Place]:
    places: list[_Place] = []
    with current_frames() as frames:
        frame = frames.get(thread.ident or 0)
        while frame is not None:
            places.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
    return places


def of_task(task: Any) -> str:
    """Return where a task of asyncio or trio is: ``file:line function``; empty if unknown."""
    get_coro = getattr(task, "get_coro", None)
    coroutine = getattr(task, "coro", None) if get_coro is None else get_coro()
    return _format_places(undisturbed(list, _awaits(coroutine))[::-1])


def _awaits(awaited: Any) -> Iterator[_Place]:
    """Return the chain of what a coroutine awaits, outermost first."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None and frame.f_lineno is not None:
            yield frame.f_code, frame.f_lineno
        inner = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
        awaited = _behind(awaited) if inner is None and frame is None else inner


def _format_places(places: list[_Place]) -> str:
    """Return the innermost place; if it is in a library, also the user code that called it."""
    if not places:
        return ""
    own = next((place for place in places if not is_library_file(place[0].co_filename)), None)
    if own is None or own is places[0]:
        return _one(places[0])
    return f"{_one(places[0])}, called from {_one(own)}"


def _one(place: _Place) -> str:
    code, line = place
    return f"{code.co_filename}:{line} {code.co_qualname}"


_DEEPEST: Final = 200
"""Longest chain of awaits to follow: a broken one might be endless."""

_SUSPENDABLE: Final = (
    inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    if sys.version_info < (3, 13)
    else 0  # a suspended frame refuses to be cleared
)
"""Kinds of frames to clear only after they have ended, since clearing would close them."""

_LOCKS: Final = frozenset(
    ("SemLock.__enter__", "Semaphore.acquire", "Condition.__enter__", "_RLock.acquire")
)
"""Functions of the standard library that wait for a lock."""

_LOCKS_OF_TASKS: Final = re.compile(r"(Lock|Semaphore|Limiter|Condition)\.(acquire\w*|__aenter__)$")
"""Functions of asyncio, anyio and trio that wait for a lock."""

_MOST_SEEN: Final = 32
"""Most workers to examine per sample, since there may be thousands of tasks."""

_LOCKS_DEEP: Final = 3

_IN_DUMP: Final = re.compile(r'^\s+File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
"""A line of `faulthandler` output."""


class Frame(NamedTuple):
    """A call in progress."""

    file: str
    line: int
    function: str

    @property
    def is_own(self) -> bool:
        """Whether it is user code rather than a library's."""
        return self.file != "<string>" and not is_library_file(self.file)

    def __str__(self) -> str:
        place = f"{self.file}:{self.line} in {self.function}"
        text = linecache.getline(self.file, self.line).strip() if self.is_own else ""
        return f"{place}: {text}" if text else place


Stack: TypeAlias = tuple[Frame, ...]
"""Calls, innermost first; empty if unknown."""

_RUN_OTHERS: Final = ("_asend", "_athrow", "FutureIter", "_wrapper", "Clocked", "ObservedCoroutine")
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
        return undisturbed(_stack_of, thing, frames)
    with current_frames() as known:
        return undisturbed(_stack_of, thing, known)


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
    """Return the name of a thread or a task, and a key that identifies it."""
    owner = Owner(thing)
    return owner.name, owner.key


def locks_of(workers: Iterable[Any]) -> list[str | None]:
    """Return where each thread (by ident) and each task waits for a lock, as ``file:line``.

    The value is ``None`` if it seems not to wait for one. Threads and tasks that have gone are left
    out; ``0`` and ``None`` are ignored.
    """
    some = [worker for worker in workers if worker][:_MOST_SEEN]
    if not some:
        return []
    with current_frames() as frames:
        return undisturbed(_locks_of, some, frames)


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
    """Return the place in user code if the task awaits a library's lock."""
    is_waiting = False
    for frame in reversed(frames):
        code = frame.f_code
        if not is_library_file(code.co_filename):
            return f"{code.co_filename}:{frame.f_lineno}" if is_waiting else None
        is_waiting = is_waiting or _LOCKS_OF_TASKS.search(code.co_qualname) is not None
    return None


def _lock_of(innermost: FrameType) -> str | None:
    if _is_ours(innermost):
        return None  # it waits in our own code, such as at a queue
    frame: FrameType | None = innermost
    # Waits for an event use locks, too; function names tell the two apart.
    is_waiting = innermost.f_code.co_filename != threading.__file__ and _takes_lock(innermost)
    for _ in range(_LOCKS_DEEP):  # Python's locks may consist of others
        if frame is None or is_waiting:
            break
        if not is_library_file(frame.f_code.co_filename):
            return None
        is_waiting = frame.f_code.co_qualname in _LOCKS
        frame = frame.f_back
    while frame is not None and is_library_file(frame.f_code.co_filename):
        frame = frame.f_back
    if not is_waiting or frame is None:
        return None
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def has_struck_ours() -> bool:
    """Return whether a finalizer has interrupted our own code, which may hold locks.

    That happens when garbage is collected in the middle of it. An object that a user drops is
    finalized in user code, or in a generator of ours that is being closed.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame) and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    if frame is None or not _is_ours(frame):
        return False
    while frame is not None and is_library_file(frame.f_code.co_filename):
        code = frame.f_code
        is_expected = code.co_name == "__del__" or code.co_flags & inspect.CO_GENERATOR
        if _is_ours(frame) and (code.co_filename == locks.__file__ or not is_expected):
            return True
        frame = frame.f_back
    return False


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(PACKAGE_FOLDER + os.sep)


def _takes_lock(frame: FrameType) -> bool:
    """Return whether the call in progress in a frame, of a function not in Python, takes a lock: it
    enters a ``with``, or is named ``acquire``."""
    return frame.f_lasti in _lock_calls(frame.f_code)


@lru_cache(maxsize=1024)
def _lock_calls(code: CodeType) -> frozenset[int]:
    found: set[int] = set()
    begins: set[tuple[int | None, int | None]] = set()  # positions of calls with such a name
    is_entering = False
    for one in dis.get_instructions(code):
        where = (None, None) if one.positions is None else one.positions[::2]
        if one.opname == "BEFORE_WITH":  # up to Python 3.13
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
    """Return the stack of one thread in `faulthandler` output."""
    return tuple(Frame(file, int(line), name) for file, line, name in _IN_DUMP.findall(text))


def stack_of_traceback(traceback: TracebackType | None) -> Stack:
    """Return the stack in which an exception was raised, as far as it has propagated."""
    found: list[Frame] = []
    while traceback is not None:
        frame = _framed(traceback.tb_frame)
        found.append(frame._replace(line=traceback.tb_lineno or frame.line))
        traceback = traceback.tb_next
    return tuple(reversed(found))


def place_of(stack: Stack) -> Frame | None:
    """Return the place to look at first: the innermost call of user code, or else of any code."""
    return next((frame for frame in stack if frame.is_own), stack[0] if stack else None)


def format_stack(stack: Stack, indent: str = "") -> str:
    """Return the calls as lines in traceback order, without our own."""
    ours = [frame for frame in stack if frame.is_own]
    place = place_of(stack)
    if place is not None and place not in ours:
        ours = [place]
    if stack and stack[0] not in ours and not stack[0].file.startswith(PACKAGE_FOLDER):
        ours.insert(0, stack[0])  # the library call that the user's code made
    return "".join(f"\n{indent}{frame}" for frame in reversed(ours))


def forget_locals(failure: BaseException) -> None:
    """Clear the local variables of our own functions in the traceback of a failure.

    They refer to queues, coordinators and items, and some of those refer to the failure. Such a
    cycle would live until the garbage collector runs. The traceback itself stays, and so do the
    locals of other code.

    Args:
        failure: the failure of workers that have all ended, or a group of such failures.
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
        # Causes may belong to workers that still run.
        pending += [(error.__cause__, False), (error.__context__, False)]
        traceback = error.__traceback__
        while traceback is not None:
            _clear(traceback.tb_frame, has_ended=has_ended)
            traceback = traceback.tb_next


def without_outermost(failure: Exception) -> Exception:
    """Return the failure with a traceback that does not begin at the frame that caught it.

    A coroutine may wait while its failure is reported; `forget_locals` would end that coroutine.
    """
    traceback = failure.__traceback__
    return failure.with_traceback(None if traceback is None else traceback.tb_next)


def _clear(frame: FrameType, *, has_ended: bool) -> None:
    if _is_ours(frame) and (has_ended or not frame.f_code.co_flags & _SUSPENDABLE):
        with suppress(RuntimeError):  # a running frame cannot be cleared
            frame.clear()


def _of_frame(frame: FrameType | None) -> Stack:
    found: list[Frame] = []
    while frame is not None:
        found.append(_framed(frame))
        frame = frame.f_back
    return tuple(found)


def _of_running(outermost: FrameType | None, known: Mapping[int, FrameType]) -> Stack:
    """Return the stack of the task that is running: its part of the stack of its loop's thread."""
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
    """Return the chain of what a coroutine awaits, outermost first."""
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
    """Return what runs behind an awaitable that hides it: a step of an async generator, or the
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
