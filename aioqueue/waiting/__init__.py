"""Waiting: how a caller sleeps until its attempt ends, in asyncio, in trio and in a thread.

The only code that knows how a world sleeps and wakes. A new world costs one lane (`base.Lane`).
"""

from __future__ import annotations

from aioqueue.waiting.aio import current_asyncio_lane
from aioqueue.waiting.base import AsyncLane, deliver, enter, tell, withdraw_all
from aioqueue.waiting.gate import Gate
from aioqueue.waiting.running import in_event_loop, in_trio, loaded_trio
from aioqueue.waiting.scopes import CancelScope, current_scopes, least_left, unwatch, watch
from aioqueue.waiting.threads import ThreadLane

__all__ = (
    "AsyncLane",
    "CancelScope",
    "Gate",
    "ThreadLane",
    "current_lane",
    "current_scopes",
    "deliver",
    "enter",
    "in_event_loop",
    "least_left",
    "loaded_trio",
    "tell",
    "unwatch",
    "watch",
    "withdraw_all",
)


def current_lane(last: AsyncLane | None = None) -> AsyncLane:
    """The lane of the task that is running: trio's if it runs under trio, else asyncio's.

    Args:
        last: the one found the last time, which is likely to be the one again.

    Raises:
        RuntimeError: no event loop is running in this thread.
    """
    if in_trio():
        from aioqueue.waiting.trio import current_trio_lane

        return current_trio_lane()
    if last is not None and last.is_current():
        return last
    return current_asyncio_lane()
