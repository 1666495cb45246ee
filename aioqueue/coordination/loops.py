"""Event loops: reaching one from any thread, and having one in a thread of its own."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import anyio

from aioqueue.waiting import loaded_trio, running_loop

__all__ = ("loop_of_its_own", "soon")

_BACKEND: Final = "anyio._backends._asyncio"  # imported by `anyio.run`


def soon() -> Callable[[Callable[[], object]], None]:
    """What has a call made in the event loop that is running now, from any thread.

    The call is not made if the loop has ended by then.
    """
    if running_loop() is not None:
        ask: Callable[..., object] = asyncio.get_running_loop().call_soon_threadsafe
    else:
        ask = loaded_trio().lowlevel.current_trio_token().run_sync_soon

    def make(call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed, or trio's run has ended
            ask(call)

    return make


def loop_of_its_own(body: Callable[..., Awaitable[object]], *args: object) -> Callable[[], Any]:
    """What a thread is to call that is about to be started, and has an event loop (uvloop, where it
    is installed).

    What that needs is imported here, by the thread that starts it. CPython forgets of a Ctrl-C that
    ends the program if another thread just then runs the code of a module; the exit status would
    be 1, and not that of a signal.

    Args:
        body: what the loop runs.
        args: what it is called with.
    """
    has_uvloop = importlib.util.find_spec("uvloop") is not None
    for needed in (_BACKEND, *(["uvloop"] if has_uvloop else [])):
        with suppress(ImportError):  # then it is imported, or missed, when the loop begins
            importlib.import_module(needed)
    return partial(anyio.run, body, *args, backend_options={"use_uvloop": has_uvloop})
