"""`current_waker`: the waker of the task that calls."""

from __future__ import annotations

from aioqueue.worlds.asyncio import current_asyncio_waker
from aioqueue.worlds.waker import AsyncWaker, in_trio


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
