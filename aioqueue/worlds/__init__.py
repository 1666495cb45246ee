"""Waiting: how a caller sleeps until its attempt ends, in asyncio, in trio and in threads.

Only this package knows how a world sleeps and wakes. A new world needs one more `Waker`.
"""

from __future__ import annotations

from aioqueue.worlds.asyncio import current_asyncio_waker, is_deferred
from aioqueue.worlds.scopes import (
    CancelScope,
    Gate,
    StopScope,
    attempts_elsewhere,
    cancelled_by,
    current_scopes,
    end_joins_of,
    end_wait,
    is_stopped,
    known_stops,
    least_left,
    sleep_while_pending,
    stop_scopes,
    unwatch,
    waited_elsewhere,
    waits_elsewhere,
    waits_of_workers,
    watch,
)
from aioqueue.worlds.waker import (
    AsyncWaker,
    CallbackWaker,
    LoopOwner,
    Owner,
    ThreadWaker,
    apply_deferred,
    current_loops,
    current_worker,
    defers_ctrl_c,
    deliver,
    enter,
    in_event_loop,
    in_task,
    in_trio,
    lets_ctrl_c_in,
    loaded_trio,
    running_loop,
    withdraw_all,
)

__all__ = (
    "AsyncWaker",
    "CallbackWaker",
    "CancelScope",
    "Gate",
    "LoopOwner",
    "Owner",
    "StopScope",
    "ThreadWaker",
    "apply_deferred",
    "attempts_elsewhere",
    "cancelled_by",
    "current_loops",
    "current_scopes",
    "current_waker",
    "current_worker",
    "defers_ctrl_c",
    "deliver",
    "end_joins_of",
    "end_wait",
    "enter",
    "in_event_loop",
    "in_task",
    "in_trio",
    "is_deferred",
    "is_stopped",
    "known_stops",
    "least_left",
    "lets_ctrl_c_in",
    "loaded_trio",
    "running_loop",
    "sleep_while_pending",
    "stop_scopes",
    "unwatch",
    "waited_elsewhere",
    "waits_elsewhere",
    "waits_of_workers",
    "watch",
    "withdraw_all",
)


def current_waker(last: AsyncWaker | None = None) -> AsyncWaker:
    """Return the waker of the running task: trio's if it runs under trio, else asyncio's.

    Args:
        last: the result of the previous call, which is likely to be right again.

    Raises:
        RuntimeError: no event loop is running in this thread.
    """
    if last is not None and last.is_current():
        return last
    if in_trio():
        from aioqueue.worlds.trio import current_trio_waker

        return current_trio_waker()
    return current_asyncio_waker()
