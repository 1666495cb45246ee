"""What runs in the calling thread: an event loop of asyncio, a trio run, or neither.

In a notebook the kernel's event loop runs in the thread that executes the cells, and asyncio cannot
tell the plain code of a cell from a coroutine. Blocking stops that loop in both. But whoever runs a
plain cell has chosen that: the kernel itself waits for the cell's end before it does anything else,
`time.sleep` there would do the same, and an interrupt reaches the cell as a `KeyboardInterrupt`. A
coroutine, which shares the loop with others, may not do it. Nor may a cell with an ``await`` of its
own, in any of its lines: it runs as a task, and all that an interrupt does is ask the loop to
cancel that task, which cannot happen while the loop stands still.

What tells them apart is who has called us, from the inside outwards: there is a coroutine, or what
the loop makes callbacks with; or there is first what a notebook runs plain cells with, and it alone
(notebooks are written as coroutines themselves). This sees through functions, generators, magics,
and loops that were made to nest. Where a notebook is built otherwise, nothing is found, and a call
is refused as in any coroutine.

Who waits: the thread or task that an attempt belongs to, noted when it goes to sleep.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import weakref
from types import FrameType
from typing import Any, Final

__all__ = ("Owner", "in_event_loop", "in_task", "in_trio", "loaded_trio", "running_loop")


running_loop = asyncio._get_running_loop
"""The event loop of asyncio that runs in the calling thread, or ``None``.

`asyncio.get_running_loop` would have to raise and be caught where there is none, which in threads
is for every call. This one has an underscore because it is meant for those who write event loops,
but it is exported by ``asyncio.__all__`` and documented in its source.
"""

_ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
"""Marks of the code that a loop runs step by step."""

_RUNNERS: Final = {
    # Jupyter, JupyterLab, VS Code, Colab, nbconvert; and IPython in a terminal. What has an
    # ``await`` is run by another runner, or as a task by the kernel.
    "_pseudo_sync_runner": ("IPython.core.async_helpers", True),
    # The cells that are coroutines are tasks, which do not run within it.
    "evaluate_interruptible": ("marimo._runtime.runner.cell_runner", True),
    # What loops make their callbacks with.
    "_run": ("asyncio.events", False),
    "unrolled_run": ("trio._core._run", False),
}
"""A function that runs code of the user: its module, and whether what it runs is a plain cell."""

_NOTEBOOKS: Final = frozenset(("IPython", "marimo"))
"""The packages of notebooks, whose own coroutines are between a cell and what runs it."""


def in_event_loop() -> bool:
    """Whether blocking this thread would block a running event loop.

    Not in the plain code of a notebook's cell, which may block the loop that it runs in.
    """
    if running_loop() is None and not in_trio():
        return False
    if sys.modules.keys().isdisjoint(_NOTEBOOKS):
        return True
    return not _in_plain_cell(sys._getframe(1))


def _in_plain_cell(frame: FrameType | None) -> bool:
    """Whether a call comes from a plain cell, with no coroutine or callback in between."""
    while frame is not None:
        code = frame.f_code
        module, runs_cells = _RUNNERS.get(code.co_name, (None, False))
        if module is not None and module == _module(frame):
            return runs_cells
        if code.co_flags & _ASYNC and _module(frame).split(".")[0] not in _NOTEBOOKS:
            return False
        frame = frame.f_back
    return False


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def in_task() -> bool:
    """Whether a task of asyncio runs in this thread, and no callback; nor is its loop asleep.

    Tasks of trio do not count: a handler that interrupts one must not wake that very task.
    """
    return running_loop() is not None and asyncio.current_task() is not None


def loaded_trio() -> Any:
    """The trio package, if someone has imported it; it is never imported just to ask."""
    trio = sys.modules.get("trio")
    # Another thread may be importing it at this moment, so no one runs it yet.
    return trio if hasattr(trio, "lowlevel") and hasattr(trio, "Cancelled") else None


def in_trio() -> bool:
    """Whether a trio run is under way in this thread."""
    # Asked before asyncio is, since a trio run may be a guest of an asyncio loop.
    if "trio" not in sys.modules:
        return False
    trio = loaded_trio()
    return trio is not None and trio.lowlevel.in_trio_run()


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
