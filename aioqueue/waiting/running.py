"""What runs in the calling thread: an event loop of asyncio, a trio run, or neither."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

__all__ = ("in_event_loop", "in_trio", "loaded_trio", "running_loop")

running_loop = asyncio._get_running_loop
"""The event loop of asyncio that runs in the calling thread, or ``None``.

`asyncio.get_running_loop` would have to raise and be caught where there is none, which in threads
is for every call. This one has an underscore because it is meant for those who write event loops,
but it is exported by ``asyncio.__all__`` and documented in its source.
"""


def in_event_loop() -> bool:
    """Whether blocking this thread would block a running event loop."""
    return running_loop() is not None or in_trio()


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
