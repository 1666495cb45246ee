"""Coroutines that a worker makes and drops: a call of a coroutine function without `await`.

``def op(): queue.enqueue(x)`` with a queue that is awaited does nothing, again and again, and so
does ``async def op(): queue.enqueue(x)``, which besides never lets go of its event loop. Python
warns of it, where nobody may look. So the first call of every op is watched, and such an op is
refused.

The interpreter tells of a coroutine that was never awaited by one call, in the thread that drops
it: of `warnings._warn_unawaited_coroutine` (PEP 492 asks for the warning; CPython looks the
function up in `warnings` each time, so that asyncio's debug mode can say more). That call is
answered here while somebody is watching, and handed on if it concerns nobody who is. Where an
interpreter has no such function, or collects coroutines later, its warning is all there is.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from inspect import isawaitable, iscoroutine
from types import TracebackType
from typing import Any, Final

from aioqueue.coordination.outcomes import running_task
from aioqueue.locks import holding
from aioqueue.queues import QueueFace

__all__ = ("Unawaited", "call_watched", "refuse_awaitable")

_HOOK: Final = "_warn_unawaited_coroutine"

_lock = threading.RLock()  # guards the two below
_watches: dict[object, Unawaited] = {}  # by the task that is watched, or the thread's number
_python_hook: Callable[[Any], object] | None = None


class Unawaited:
    """A context in which the running task or thread is not to drop a coroutine unawaited.

    One that is dropped is noted instead of warned of; `refuse` raises it.

    Args:
        what: who is watched, for the message.
        can_await: whether it is a coroutine function, which could have awaited it.
    """

    def __init__(self, what: str, *, can_await: bool) -> None:
        self._what = what
        self._can_await = can_await
        self._made: list[str] = []
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
        holding(_lock, _end, self._key)
        if self._depth is not None:
            sys.set_coroutine_origin_tracking_depth(self._depth)

    def refuse(self) -> None:
        """Raise what was noted.

        Raises:
            TypeError: a coroutine was made and not awaited; it says what to write.
        """
        if self._made:
            raise TypeError(f"{self._what} {self._made[0]}")

    def takes(self, coroutine: Any) -> bool:
        """Note a coroutine that is being dropped, unless it is not ours; tell whether."""
        if not self._is_task and coroutine.cr_origin is None:
            return False
        self._made.append(self._told(coroutine))
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


def call_watched(what: str, call: Callable[[], Any]) -> None:
    """Call a plain function that is to await nothing, and see to it that it made nothing to await.

    Args:
        what: its name, for the message.
        call: the function.

    Raises:
        TypeError: it returned something to await, or dropped it.
    """
    with Unawaited(what, can_await=False) as unawaited:
        refuse_awaitable(what, call())
    unawaited.refuse()


def refuse_awaitable(what: str, result: object) -> None:
    """Refuse what a plain function has returned if someone would have to await it.

    Raises:
        TypeError: it must be awaited.
    """
    if not isawaitable(result):
        return
    if iscoroutine(result):
        result.close()
    raise TypeError(
        f"{what} is a plain function but returned a"
        f" {type(result).__name__}: make it a coroutine function (`async def`) to run it as a task,"
        " or enqueue with"
        " `queue.sync` to run it on a thread"
    )


def _begin(key: object, watch: Unawaited) -> None:
    global _python_hook
    _watches[key] = watch
    if _python_hook is None and hasattr(warnings, _HOOK):
        _python_hook = getattr(warnings, _HOOK)
        setattr(warnings, _HOOK, _dropped)


def _end(key: object) -> None:
    global _python_hook
    _watches.pop(key, None)
    # Left alone if somebody has put a function of theirs over ours, which may call it.
    if not _watches and _python_hook is not None and getattr(warnings, _HOOK) is _dropped:
        hook, _python_hook = _python_hook, None
        setattr(warnings, _HOOK, hook)


def _dropped(coroutine: Any) -> None:
    """The interpreter says that a coroutine goes which was never awaited."""
    task = running_task()
    watch = _watches.get(task if task is not None else threading.get_ident())
    hook = _python_hook
    if (watch is None or not watch.takes(coroutine)) and hook is not None:
        hook(coroutine)
