"""The world of the calling thread: an event loop of asyncio, a trio run, or neither.

In a notebook the kernel's event loop runs in the thread that executes the cells. asyncio cannot
tell a cell's plain code from a coroutine; blocking stops the loop in both cases. In a plain cell
that is what the user wants: the kernel itself waits for the cell's end before it does anything
else, `time.sleep` would do the same, and an interrupt reaches the cell as a `KeyboardInterrupt`. A
coroutine shares the loop with others and must not block it. Nor may a cell that contains an
``await``: it runs as a task, and an interrupt only asks the loop to cancel that task, which cannot
happen while the loop is blocked.

The call stack tells them apart. From the inside outwards, one of two comes first: a coroutine or
the code that runs a loop's callbacks; or the function with which a notebook runs plain cells, and
that alone (notebooks are coroutines themselves). This sees through functions, generators, magics,
and nested loops. In a notebook that is built otherwise nothing is found, and a call is refused as
in any coroutine.

`Owner` is the thread or task that an attempt belongs to, recorded when it begins to wait.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

__all__ = ("Owner", "in_event_loop", "in_task", "in_trio", "loaded_trio", "running_loop")


running_loop: Final[Callable[[], asyncio.AbstractEventLoop | None]] = asyncio._get_running_loop
"""The event loop of asyncio that runs in the calling thread, or ``None``.

`asyncio.get_running_loop` raises if no loop runs. In threads that is the usual case, and catching
it would cost time in every call. This function has an underscore because it is meant for authors of
event loops, but ``asyncio.__all__`` exports it, and its source documents it.
"""

_ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
"""Flags of code that a loop runs step by step."""

_RUNNERS: Final = {
    # Jupyter, JupyterLab, VS Code, Colab, nbconvert; and IPython in a terminal. A cell with an
    # ``await`` is run by another runner, or as a task by the kernel.
    "_pseudo_sync_runner": ("IPython.core.async_helpers", True),
    # Cells that are coroutines are tasks, which do not run inside this function.
    "evaluate_interruptible": ("marimo._runtime.runner.cell_runner", True),
    # The functions with which loops run their callbacks.
    "_run": ("asyncio.events", False),
    "unrolled_run": ("trio._core._run", False),
}
"""A function that runs user code: its module, and whether that code is a plain cell."""

_NOTEBOOKS: Final = frozenset(("IPython", "marimo"))
"""The packages of notebooks. Their own coroutines are between a cell and the code that runs it."""


def in_event_loop() -> bool:
    """Return whether blocking this thread would block a running event loop.

    In the plain code of a notebook's cell it is false, because that may block the loop.
    """
    if running_loop() is None and not in_trio():
        return False
    if sys.modules.keys().isdisjoint(_NOTEBOOKS):
        return True
    return not _in_plain_cell(sys._getframe(1))


def _in_plain_cell(frame: FrameType | None) -> bool:
    """Return whether a call comes from a plain cell, with no coroutine or callback in between."""
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
    """Return whether a task of asyncio runs in this thread: no callback, and no sleeping loop.

    A task of trio does not count: a signal handler that interrupts it must not wake that same task.
    """
    return running_loop() is not None and asyncio.current_task() is not None


def loaded_trio() -> Any:
    """Return the trio package if it has been imported; this never imports it."""
    trio = sys.modules.get("trio")
    # Another thread may be importing it just now, so no run of it exists yet.
    return trio if hasattr(trio, "lowlevel") and hasattr(trio, "Cancelled") else None


def in_trio() -> bool:
    """Return whether a trio run is active in this thread."""
    # Checked before asyncio, because a trio run may be a guest of an asyncio loop.
    if "trio" not in sys.modules:
        return False
    trio = loaded_trio()
    return trio is not None and trio.lowlevel.in_trio_run()


class Owner:
    """A thread or task, with its name. It is not kept alive.

    Args:
        thing: a `threading.Thread`, or a task of asyncio or trio.

    Attributes:
        reference: returns the thread or task; ``None`` once it is gone. (`thing` does the same; a
            caller that compares it each time it waits saves the call of a property.)
    """

    __slots__ = ("_name", "reference")

    def __init__(self, thing: Any) -> None:
        self.reference: weakref.ref[Any] = weakref.ref(thing)
        self._name = _name(thing)

    @property
    def name(self) -> str:
        """Its name; once it is gone, the name that it had when it was recorded."""
        thing = self.reference()
        return self._name if thing is None else _name(thing)

    @property
    def thing(self) -> Any:
        """The thread or task; ``None`` once it is gone."""
        return self.reference()

    @property
    def key(self) -> int:
        """An identifier, unique among living threads and tasks; 0 once it is gone."""
        thing = self.reference()
        return 0 if thing is None else id(thing)

    def has_ended(self) -> bool:
        """Whether it will never run again."""
        thing = self.reference()
        if thing is None:
            return True
        if isinstance(thing, threading.Thread):
            return not thing.is_alive()
        done = getattr(thing, "done", None)
        if done is not None:
            return bool(done())
        coroutine = getattr(thing, "coro", None)  # in trio, only a task's coroutine shows its end
        return coroutine is not None and getattr(coroutine, "cr_frame", coroutine) is None


def _name(thing: Any) -> str:
    name = getattr(thing, "name", None)
    return str(thing.get_name() if name is None else name)  # asyncio's tasks have a method for it
