"""Who waits: the thread or task that an attempt belongs to, noted when it goes to sleep."""

from __future__ import annotations

import threading
import weakref
from typing import Any

__all__ = ("Owner",)


class Owner:
    """A thread or a task, by name, and not kept alive by being known.

    Args:
        thing: a `threading.Thread`, or a task of asyncio or trio.
    """

    __slots__ = ("_name", "_thing")

    def __init__(self, thing: Any) -> None:
        self._thing = weakref.ref(thing)
        self._name = _name(thing)

    @property
    def name(self) -> str:
        """What it is called; once it is gone, what it was called when it was noted."""
        thing = self._thing()
        return self._name if thing is None else _name(thing)

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


def _name(thing: Any) -> str:
    name = getattr(thing, "name", None)
    return str(thing.get_name() if name is None else name)  # asyncio's tasks say it by a call
