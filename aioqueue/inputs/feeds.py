"""Taking items from whatever a source is, one at a time, in order, with their numbers."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any, Final

from aioqueue import AsyncQueue, InvalidArgumentError, OutOfRangeError, QueueClosedError, sync
from aioqueue.inputs.calls import Item
from aioqueue.inputs.sources import Source

__all__ = ("Crossing", "Feed")

_AHEAD: Final = 2
"""How many items per worker are read ahead of an async iterable, for workers that are threads."""


class Feed:
    """A source, as an iterator over items and as an async one.

    Args:
        source: a `Source`, whose entries say their epoch and index; a queue of either face; an
            iterable or async iterable. All but the first are one epoch, counted from 0.

    Raises:
        InvalidArgumentError: it is none of these.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        self.queue: sync.BlockingQueue[Any] | None = None
        if isinstance(source, AsyncQueue | sync.BlockingQueue):
            self.queue = source.sync
        elif not isinstance(source, Source | Iterable | AsyncIterable):
            raise InvalidArgumentError(
                f"source: got {source!r}; expected an iterable, an async iterable, a queue or a"
                " source of aioqueue.inputs"
            )

    @property
    def is_async_only(self) -> bool:
        """Whether it can be iterated by tasks only."""
        return not isinstance(self.source, Source | Iterable) and self.queue is None

    def items(self) -> Iterator[Item]:
        """For threads, which take turns: a queue is waited for, and its end comes as
        `OutOfRangeError`, with what closed it."""
        if self.queue is not None:
            return _dequeued(self.queue)
        if isinstance(self.source, Source):
            return _numbered(self.source.entries())
        return _counted(self.source)

    def items_async(self) -> AsyncIterator[Item]:
        """For tasks, which take turns."""
        if self.queue is not None:
            return _dequeued_async(self.queue.aio)
        if isinstance(self.source, Source):
            return _numbered_async(self.source.aentries())
        if isinstance(self.source, AsyncIterable):
            return _counted_async(self.source)
        return _at_hand(_counted(self.source))

    def crossing(self, workers: int) -> Crossing:
        """The way from an async source to threads."""
        return Crossing(self, sync.FIFOQueue(_AHEAD * workers, name="aioqueue-prepare-source"))


class Crossing:
    """Brings the items of an async source to threads: a task reads ahead into a queue.

    Args:
        feed: the source.
        queue: of objects; what lies between the task and the threads.
    """

    def __init__(self, feed: Feed, queue: sync.BlockingQueue[Any]) -> None:
        self._feed = feed
        self._queue = queue

    async def read_source(self) -> None:
        """Read the whole source: to be run as a task."""
        try:
            async for item in self._feed.items_async():
                await self._queue.aio.enqueue(item)
        except QueueClosedError:
            pass  # nobody wants more
        except Exception as error:
            error.add_note("in the source of a prepare")
            self._queue.close(cause=error)
            raise
        finally:
            self._queue.close()
        raise OutOfRangeError("the source has ended")

    def items(self) -> Iterator[Item]:
        """What the task has read, for threads, which take turns."""
        while True:
            yield self._queue.dequeue()

    def close(self) -> None:
        """Let the task end."""
        self._queue.close(cancel_pending_enqueues=True)


def _dequeued(queue: sync.BlockingQueue[Any]) -> Iterator[Item]:
    for number in itertools.count():
        yield Item(number, queue.dequeue(), 0, number)


async def _dequeued_async(queue: AsyncQueue[Any]) -> AsyncIterator[Item]:
    for number in itertools.count():
        yield Item(number, await queue.dequeue(), 0, number)


def _counted(values: Iterable[Any]) -> Iterator[Item]:
    iterator = iter(values)
    try:
        for number, value in enumerate(iterator):
            yield Item(number, value, 0, number)
    finally:
        if iterator is not values or inspect.isgenerator(values):
            getattr(iterator, "close", bool)()  # nobody else is going on with it


def _numbered(entries: Iterator[Any]) -> Iterator[Item]:
    try:
        for number, (value, epoch, index) in enumerate(entries):
            yield Item(number, value, epoch, index)
    finally:
        getattr(entries, "close", bool)()


async def _counted_async(values: AsyncIterable[Any]) -> AsyncIterator[Item]:
    iterator = aiter(values)
    number = 0
    try:
        async for value in iterator:
            yield Item(number, value, 0, number)
            number += 1
    finally:
        if iterator is not values or inspect.isasyncgen(values):
            await _aclose(iterator)


async def _numbered_async(entries: AsyncIterator[Any]) -> AsyncIterator[Item]:
    number = 0
    try:
        async for value, epoch, index in entries:
            yield Item(number, value, epoch, index)
            number += 1
    finally:
        await _aclose(entries)


async def _at_hand(items: Iterator[Item]) -> AsyncIterator[Item]:
    for item in items:
        yield item


async def _aclose(iterator: AsyncIterator[Any]) -> None:
    aclose = getattr(iterator, "aclose", None)
    if aclose is not None:
        await aclose()
