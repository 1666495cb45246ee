"""Reaching an event loop from any thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from aioqueue.waiting import loaded_trio

__all__ = ("soon",)


def soon() -> Callable[[Callable[[], object]], None]:
    """What has a call made in the event loop that is running now, from any thread.

    The call is not made if the loop has ended by then.
    """
    if asyncio._get_running_loop() is not None:
        ask: Callable[..., object] = asyncio.get_running_loop().call_soon_threadsafe
    else:
        ask = loaded_trio().lowlevel.current_trio_token().run_sync_soon

    def make(call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed, or trio's run has ended
            ask(call)

    return make
