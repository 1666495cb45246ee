"""Coroutines and plain code mixed up: what to write instead.

Python refuses most of it by itself, but does not know of the other face, which a newcomer has not
met yet.

Coroutines that a worker makes and drops: a call of a coroutine function without `await`.

``def op(): queue.enqueue(x)`` with a queue that is awaited does nothing, again and again, and so
does ``async def op(): queue.enqueue(x)``, which besides never lets go of its event loop. Python
warns of it, where nobody may look. So the first call of every op is watched, and such an op is
refused.

The interpreter tells of a coroutine that was never awaited by one call, in the thread that drops
it: of `warnings._warn_unawaited_coroutine` (PEP 492 asks for the warning; CPython looks the
function up in `warnings` each time, so that asyncio's debug mode can say more). That call is
answered here while somebody is watching, and handed on if it concerns nobody who is, or if what is
watched ends by an exception, since then nobody tells of it. Where an interpreter has no such
function, or collects coroutines later, its warning is all there is.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
import warnings
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any, Final, NoReturn

from aioqueue.arguments import function_name, makes_several, refuse_awaitable
from aioqueue.coordination.classify import add_note, describe_exception, running_task
from aioqueue.errors import InvalidArgumentError, exception_text
from aioqueue.locks import holding
from aioqueue.queues import QueueFace

__all__ = (
    "Unawaited",
    "add_advice",
    "call_watched",
    "cannot_start",
    "described",
    "refusal",
    "refuse_generators",
    "refuse_result",
)


_QUEUE: Final = r"'?(FIFO|RandomShuffle|PaddingFIFO|Priority)Queue'?"

_ADVICE: Final = (
    (
        r"can't be (used in 'await' expression|awaited)",
        "if this is the result of a method of a blocking queue or coordinator: those are not"
        " awaited, and block their thread; write `await queue.aio.dequeue()`, with the async face",
    ),
    (
        rf"'async for' requires an object with __aiter__ method, got ({_QUEUE}|Batches)$",
        "a queue of aioqueue.sync is for plain loops; write `async for element in queue.aio`",
    ),
    (
        rf"({_QUEUE}|'AsyncBatches') object is not (iterable|an iterator)",
        "an async queue is for coroutines; write `async for element in queue` there,"
        " or `for element in queue.sync` in a thread",
    ),
)
"""What Python says, and what to write instead."""


def add_advice(error: BaseException) -> None:
    """Say on an exception that Python raises where the two faces are mixed up what to write.

    A note, and no methods that raise something better: a queue with an ``__aiter__`` of any kind is
    an async iterable to whoever asks.
    """
    if type(error) is TypeError:
        for pattern, advice in _ADVICE:
            if re.search(pattern, exception_text(error)):
                add_note(error, advice)


def refusal(message: str) -> Callable[..., NoReturn]:
    """A method that says that it is not there, and what to write instead."""

    def refuse(self: object, *arguments: object) -> NoReturn:
        raise TypeError(message)

    return refuse


def described(given: Any) -> str:
    """What was given as an argument. A coroutine is closed, as nobody is going to await it."""
    if not inspect.iscoroutine(given):
        return repr(given)
    given.close()
    return f"the coroutine that the call {given.__name__}() has returned"


def refuse_generators(target: Any) -> None:
    """Refuse a looper's target of which a call runs nothing.

    Raises:
        InvalidArgumentError: it is a generator function of either kind.
    """
    if makes_several(target):
        raise InvalidArgumentError(
            f"target: got the generator function {function_name(target)!r}, of which a call runs"
            " nothing; expected a function that does one step per call"
        )


def cannot_start(worker: Any, parameter: str, *, in_threads: bool) -> InvalidArgumentError:
    """The error of a `Coordinator.start` that was given something it cannot start.

    Args:
        worker: what it was given. A coroutine is closed: nobody will await it.
        parameter: the name of that parameter.
        in_threads: whether it is the coordinator of `aioqueue.sync`.
    """
    expected = (
        "an aioqueue.sync.QueueRunner" if in_threads else "an aioqueue.QueueRunner or LooperTask"
    )
    got = described(worker)
    advice = _advice(worker, in_threads=in_threads)
    return InvalidArgumentError(f"{parameter}: got {got}; expected {expected}{advice}")


def _advice(worker: Any, *, in_threads: bool) -> str:
    package = "aioqueue.sync" if in_threads else "aioqueue"
    looper = (
        "`sync.LooperThread.loop(coord, seconds, function)`"
        if in_threads
        else "`coord.start(aioqueue.LooperTask(seconds, function))`"
    )
    if _is_looper_thread(worker):
        starts_itself = ": a LooperThread starts itself, with"
        if in_threads:
            return f"{starts_itself} {looper}"
        return f": write {looper}; a LooperThread is for `aioqueue.sync`"
    if isinstance(worker, threading.Thread):
        return ": start a thread by itself, `thread.start()`, and then `coord.register(thread)`"
    if hasattr(worker, "add_done_callback"):
        return ": a task or future runs already; `coord.register(task)` lets the join wait for it"
    if "LooperTask" in (getattr(worker, "__name__", ""), type(worker).__name__):
        return f": write {looper}"
    if isinstance(worker, type) and worker.__name__ == "QueueRunner":
        return f": this is a class; write `coord.start({package}.QueueRunner(queue, [function]))`"
    if hasattr(worker, "enqueue_ops"):
        other = "coord.aio" if in_threads else "coord.sync"
        return (
            f": this one is for the other kind of coordinator; write {package}.QueueRunner,"
            f" or `{other}.start(runner)`"
        )
    if callable(worker) or inspect.iscoroutine(worker):
        return (
            f": write `coord.start({package}.QueueRunner(queue, [function]))` if the function"
            f" enqueues, or {looper} to call it again and again"
        )
    return ""


def _is_looper_thread(worker: Any) -> bool:
    kind = worker if isinstance(worker, type) else type(worker)
    return issubclass(kind, threading.Thread) and hasattr(kind, "run_loop")


_HOOK: Final = "_warn_unawaited_coroutine"

_lock = threading.RLock()  # guards the two below
_watches: dict[object, Unawaited] = {}  # by the task that is watched, or the thread's number
_python_hook: Callable[[Any], object] | None = None


class Unawaited:
    """A context in which the running task or thread is not to drop a coroutine unawaited.

    One that is dropped is noted instead of warned of; `refuse` raises it. If the context is left by
    an exception, Python warns of it after all.

    Args:
        what: who is watched, for the message.
        can_await: whether it is a coroutine function, which could have awaited it.
        at_once: told of the first one when it is dropped, and then `refuse` raises nothing: for
            what may go on for ever. Called amid the code that is watched, so it may not wait.
    """

    def __init__(
        self,
        what: str,
        *,
        can_await: bool,
        at_once: Callable[[TypeError], object] | None = None,
    ) -> None:
        self._what = what
        self._can_await = can_await
        self._at_once = at_once
        self._error: TypeError | None = None
        self._is_told = False  # the first one, at once; nothing is noted any more
        # One of each function, however many it drops. They are kept alive, since Python's warning
        # tells where they were made.
        self._dropped: dict[CodeType, Any] = {}
        self._key: object = None
        self._is_task = False
        self._depth: int | None = None

    def __enter__(self) -> Unawaited:
        task = running_task()
        self._is_task = task is not None
        self._key = task if task is not None else threading.get_ident()
        if not self._is_task:
            # A coroutine made by this thread knows its origin from here on. Without one it is
            # somebody else's, which the garbage collector has come upon just now.
            self._depth = sys.get_coroutine_origin_tracking_depth()
            sys.set_coroutine_origin_tracking_depth(max(1, self._depth))
        holding(_lock, _begin, self._key, self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        hook = holding(_lock, _end, self._key)
        if self._depth is not None:
            sys.set_coroutine_origin_tracking_depth(self._depth)
        dropped, self._dropped = self._dropped, {}
        if error is not None and hook is not None:
            for coroutine in dropped.values():
                try:
                    hook(coroutine)
                except Exception as warning:  # they are errors, by a filter of the user's
                    add_note(error, describe_exception(warning))

    def refuse(self) -> None:
        """Raise what was noted.

        Raises:
            TypeError: a coroutine was made and not awaited; it says what to write.
        """
        error, self._error = self._error, None
        if error is None:
            return
        try:
            raise error
        finally:
            del error  # which has this frame in its traceback

    def takes(self, coroutine: Any) -> bool:
        """Note a coroutine that is being dropped, unless it is not ours; tell whether."""
        if not self._is_task and coroutine.cr_origin is None:
            return False
        if self._is_told:
            return True
        error = self._error or TypeError(f"{self._what} {self._told(coroutine)}")
        if self._at_once is None:
            self._error = error
            self._dropped.setdefault(coroutine.cr_code, coroutine)
        else:
            self._is_told = True
            self._at_once(error)
        return True

    def _told(self, coroutine: Any) -> str:
        called = coroutine.__name__
        owner = None if coroutine.cr_frame is None else coroutine.cr_frame.f_locals.get("self")
        if not isinstance(owner, QueueFace):
            fix = "await it" if self._can_await else "make this a coroutine function and await it"
            return f"called the coroutine function {called!r} and did not await it: {fix}"
        told = f"called `{called}` of the async {type(owner).__name__} '{owner.name}'"
        if self._can_await:
            return f"{told} without `await`: write `await queue.{called}(...)`"
        return (
            f"is a plain function, but {told}, which must be awaited: write `async def` and"
            f" `await queue.{called}(...)` to run it as a task,"
            f" or `queue.sync.{called}(...)` to run it on a thread"
        )


def call_watched(
    what: str, call: Callable[[], Any], at_once: Callable[[TypeError], object] | None = None
) -> None:
    """Call a plain function that is to await nothing, and see to it that it made nothing to await.

    Args:
        what: its name, for the message.
        call: the function.
        at_once: see `Unawaited`.

    Raises:
        TypeError: it returned something to await, or dropped it.
    """
    with Unawaited(what, can_await=False, at_once=at_once) as unawaited:
        refuse_result(what, call())
    unawaited.refuse()


def refuse_result(what: str, result: object) -> None:
    """Refuse what a plain op has returned if someone would have to await it.

    Raises:
        TypeError: it must be awaited.
    """
    refuse_awaitable(
        what,
        result,
        "make it a coroutine function (`async def`) to run it as a task, or enqueue with"
        " `queue.sync` to run it on a thread",
    )


def _begin(key: object, watch: Unawaited) -> None:
    global _python_hook
    _watches[key] = watch
    if _python_hook is None and hasattr(warnings, _HOOK):
        _python_hook = getattr(warnings, _HOOK)
        setattr(warnings, _HOOK, _dropped)


def _end(key: object) -> Callable[[Any], object] | None:
    """Returns what Python's warning comes from."""
    global _python_hook
    _watches.pop(key, None)
    python_hook = _python_hook
    # Left alone if somebody has put a function of theirs over ours, which may call it.
    if not _watches and _python_hook is not None and getattr(warnings, _HOOK) is _dropped:
        hook, _python_hook = _python_hook, None
        setattr(warnings, _HOOK, hook)
    return python_hook


def _dropped(coroutine: Any) -> None:
    """The interpreter says that a coroutine goes which was never awaited."""
    task = running_task()
    watch = _watches.get(task if task is not None else threading.get_ident())
    hook = _python_hook
    if (watch is None or not watch.takes(coroutine)) and hook is not None:
        hook(coroutine)
