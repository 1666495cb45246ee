"""Event loops of asyncio, of each implementation that is installed, and what they still allow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from aioqueue.worlds.asyncio import BUDGET, current_asyncio_waker
from tests.kit.worlds import UvloopWorld

NewLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> Iterator[NewLoop]:
    """Makes event loops, which are closed in the end."""
    if request.param == "uvloop" and UvloopWorld.missing():
        pytest.skip("uvloop is not installed")
    loops: list[asyncio.AbstractEventLoop] = []

    def make() -> asyncio.AbstractEventLoop:
        if request.param == "asyncio":
            loops.append(asyncio.new_event_loop())
        else:
            import uvloop

            loops.append(uvloop.new_event_loop())
        return loops[-1]

    yield make
    for loop in loops:
        loop.close()


async def nearly_used_up() -> None:
    """Have the next call of the running loop's tasks let others run."""
    waker = current_asyncio_waker()
    await waker.pause(BUDGET)
    pause = waker.pause(BUDGET - 1)
    with pytest.raises(StopIteration):  # not yet
        pause.send(None)
