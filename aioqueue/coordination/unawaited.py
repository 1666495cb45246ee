"""Coroutines that a worker makes and drops: a call of a coroutine function without `await`.

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

import sys
import threading
import warnings
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any, Final

from aioqueue.coordination.outcomes import add_note, running_task, told
from aioqueue.functions import refuse_awaitable
from aioqueue.locks import holding
from aioqueue.queues import QueueFace

__all__ = ("Unawaited", "call_watched", "refuse_result")

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
                    add_note(error, told(warning))

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
    unawaited = Unawaited(what, can_await=False, at_once=at_once)
    try:
        with unawaited:
            refuse_result(what, call())
        unawaited.refuse()
    finally:
        del call, at_once, unawaited  # a failure has this frame, and is had by what is to be told


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
