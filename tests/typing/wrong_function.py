"""Gives `prepare` a function that is not for the items of its source; forgets to return."""

from __future__ import annotations

import aioqueue
from aioqueue import inputs, sync


def shout(text: str) -> str:
    return text.upper()


def start(coord: sync.Coordinator, queue: sync.FIFOQueue[str]) -> None:
    coord.start(inputs.prepare(inputs.items(["a", "b"]), shout, into=queue))
    coord.start(inputs.prepare(inputs.numbers(3), shout, into=queue))  # WRONG
    coord.start(inputs.prepare(inputs.items(["a"]), shout, into=queue, worker=2))  # WRONG


async def first(queue: aioqueue.FIFOQueue[str]) -> str:
    async with aioqueue.Coordinator():
        return await queue.dequeue()


async def length(queue: aioqueue.FIFOQueue[str]) -> int:
    async with aioqueue.Coordinator():
        return await queue.dequeue()  # WRONG
