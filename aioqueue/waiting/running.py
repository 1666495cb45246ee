"""What runs in the calling thread: an event loop of asyncio, a trio run, or neither.

In a notebook the kernel's event loop runs in the thread that executes the cells, and asyncio cannot
tell the plain code of a cell from a coroutine. Blocking stops that loop in both. But whoever runs a
plain cell has chosen that: the kernel itself waits for the cell's end before it does anything else,
`time.sleep` there would do the same, and an interrupt reaches the cell as a `KeyboardInterrupt`. A
coroutine, which shares the loop with others, may not do it. Nor may a cell with an ``await`` of its
own, which is one: there an interrupt only asks to cancel the cell's task, which cannot happen while
its loop stands still.

What tells them apart is who has called us, from the inside outwards: first of all a coroutine or
what the loop makes callbacks with; or first of all the function by which a notebook executes a
cell. This sees through functions, generators, magics, and loops that were made to nest.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from types import FrameType
from typing import Any, Final

__all__ = ("in_event_loop", "in_trio", "loaded_trio")

_ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
"""Marks of the code that a loop runs step by step."""

_CALLBACKS: Final = {"_run": "asyncio.events", "unrolled_run": "trio._core._run"}
"""By what a loop makes its callbacks: the function, and its module."""

_CELLS: Final = {
    "run_code": "IPython.core.interactiveshell",  # Jupyter, JupyterLab, VS Code, Colab, terminals
    "execute_cell": "marimo._runtime",
    "execute_cell_async": "marimo._runtime",
}
"""By what a notebook executes a cell, whose own code it calls next: the function, and the module or
the package of it."""


def in_event_loop() -> bool:
    """Whether blocking this thread would block a running event loop.

    Not in the plain code of a notebook's cell, which may block the loop that it runs in.
    """
    if asyncio._get_running_loop() is None and not in_trio():
        return False
    return not _in_plain_cell(sys._getframe(1))


def _in_plain_cell(frame: FrameType | None) -> bool:
    """Whether a call comes from the code of a cell, with no coroutine or callback in between."""
    while frame is not None:
        # A cell is executed by what is a coroutine itself, so that is asked first.
        if _is_one_of(_CELLS, frame):
            return True
        if frame.f_code.co_flags & _ASYNC or _is_one_of(_CALLBACKS, frame):
            return False
        frame = frame.f_back
    return False


def _is_one_of(functions: dict[str, str], frame: FrameType) -> bool:
    module = functions.get(frame.f_code.co_name)
    if module is None:
        return False
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and (name == module or name.startswith(f"{module}."))


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
