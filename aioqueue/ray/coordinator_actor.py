"""The actor of a cluster's coordinator: the register of its programs, as coroutines."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection
from time import monotonic
from typing import Any, Final, TypeVar

from aioqueue.ray.messages import LEASE_SECONDS
from aioqueue.remote.members import ActiveWorker, MemberRegister, News, ProgramReport

T = TypeVar("T")

_MAX_CALLS: Final = 100_000
"""Most calls that may wait for news."""


class CoordinatorActor:
    """One coordinator of a cluster. All its calls run in one event loop.

    Args:
        name: name of the coordinator.
    """

    def __init__(self, name: str) -> None:
        self._register = MemberRegister(f"coordinator '{name}'", _dumps(), _loads())
        self._heard: dict[str, float] = {}  # when each program last reported
        self._watching: asyncio.Task[None] | None = None

    async def report(self, report: ProgramReport) -> News:
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._watch())
        self._heard[report.life] = monotonic()
        return self._register.report(report)

    async def leave(self, report: ProgramReport) -> None:
        self._heard.pop(report.life, None)
        self._register.leave(report)

    async def clear(self, run: int) -> int:
        return self._register.clear(run)

    async def news(self, life: str, run: int, seen: int, is_stopped: bool) -> News:
        return await _answer(
            functools.partial(self._register.news, life, run, seen, is_stopped),
        )

    async def other_workers(self, life: str) -> list[ActiveWorker]:
        return self._register.other_workers(life)

    async def wait_ended(self, keys: Collection[str]) -> list[str]:
        return await _answer(functools.partial(self._register.wait_ended, keys))

    async def place_of(self, key: str) -> str:
        return self._register.place_of(key)

    # For observers.

    async def joining(self) -> int:
        return self._register.joining()

    async def programs(self) -> int:
        return self._register.programs()

    # Liveness.

    async def expire(self, seconds: float) -> None:
        """Treat programs that have been silent for a given time as dead."""
        before = monotonic() - seconds
        silent = [life for life, heard in self._heard.items() if heard < before]
        for life in silent:
            del self._heard[life]
        self._register.end(
            silent,
            lambda place: f"{place} was silent for {seconds:.0f} s",
            died="must have died",
        )

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / 6)
            await self.expire(LEASE_SECONDS)


async def _answer(request: Callable[[Callable[[T], object]], None]) -> T:
    """Return what a request is answered with, now or later, in this event loop."""
    answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def answer(value: T) -> None:
        if not answered.done():  # else its caller has been cancelled
            answered.set_result(value)

    request(answer)
    return await answered


@functools.cache
def remote_class() -> Any:
    import ray

    return ray.remote(max_concurrency=_MAX_CALLS)(CoordinatorActor)


def _dumps() -> Callable[[Any], bytes]:
    from ray import cloudpickle

    dumps: Callable[[Any], bytes] = cloudpickle.dumps
    return dumps


def _loads() -> Callable[[bytes], Any]:
    from ray import cloudpickle

    loads: Callable[[bytes], Any] = cloudpickle.loads
    return loads
