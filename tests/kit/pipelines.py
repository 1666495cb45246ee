"""Coordinators and streams, used in the same words in every world."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aioqueue
from aioqueue import OutOfRangeError, sync
from tests.kit.worlds import ThreadWorld, World

__all__ = (
    "OUTSIDE",
    "StreamEndedError",
    "coordinated",
    "failures_of",
    "joined",
    "rest",
    "rest_until_failure",
    "take",
)

OUTSIDE = (ExceptionGroup, BaseExceptionGroup)


class StreamEndedError(Exception):
    """There is nothing more to take from a stream."""


@asynccontextmanager
async def coordinated(world: World, **options: Any) -> AsyncIterator[Any]:
    """The block of a coordinator of the face that fits the world."""
    if isinstance(world, ThreadWorld):
        with sync.Coordinator(**options) as blocking:
            yield blocking
    else:
        async with aioqueue.Coordinator(**options) as coord:
            yield coord


async def joined(coord: Any) -> None:
    """Wait until all workers have ended, without a stop: raises what failed."""
    if isinstance(coord, sync.Coordinator):
        coord.join(stop_grace_period=5)
    else:
        await coord.join(stop_grace_period=5)


async def take(stream: Any) -> Any:
    """The next of a stream of either face.

    Raises:
        StreamEndedError: there is none.
    """
    try:
        if hasattr(stream, "__next__"):
            return next(stream)
        return await anext(stream)
    except (StopIteration, StopAsyncIteration):
        raise StreamEndedError from None


async def rest(stream: Any) -> list[Any]:
    """All that is still to come."""
    taken = []
    while True:
        try:
            taken.append(await take(stream))
        except StreamEndedError:
            return taken


async def rest_until_failure(stream: Any) -> list[Any]:
    """All remaining batches of a stream that a failure ends. The stream has to report it."""
    taken = []
    while True:
        try:
            taken.append(await take(stream))
        except OutOfRangeError as end:
            assert end.__cause__ is not None
            return taken


def failures_of(group: BaseExceptionGroup[Any]) -> list[str]:
    """What the members of a group say."""
    return [f"{type(error).__name__}: {error}" for error in group.exceptions]
