"""Who waits: the thread or task that an attempt belongs to, noted when it goes to sleep."""

from __future__ import annotations

import threading
import weakref
from typing import Any

__all__ = ("Owner", "current_thread_owner")


class Owner:
    """A thread or a task, by name, and not kept alive by being known.

    Args:
        thing: a `threading.Thread`, or a task of asyncio or trio.
        name: what it is called.
    """

    __slots__ = ("_thing", "name")

    def __init__(self, thing: Any, name: str) -> None:
        self._thing = weakref.ref(thing)
        self.name = name

    @property
    def thing(self) -> Any:
        """The thread or task; ``None`` once it is gone."""
        return self._thing()

    @property
    def key(self) -> int:
        """Tells it from all others that there are at a time; 0 once it is gone."""
        thing = self._thing()
        return 0 if thing is None else id(thing)

    def has_ended(self) -> bool:
        """Whether it will never do anything again."""
        thing = self._thing()
        if thing is None:
            return True
        if isinstance(thing, threading.Thread):
            return not thing.is_alive()
        done = getattr(thing, "done", None)
        if done is not None:
            return bool(done())
        coroutine = getattr(thing, "coro", None)  # trio's tasks say it by their coroutine alone
        return coroutine is not None and getattr(coroutine, "cr_frame", coroutine) is None


def current_thread_owner() -> Owner:
    """The calling thread."""
    thread = threading.current_thread()
    return Owner(thread, thread.name)
