"""Where a pipeline's rows come from: a source itself, or a queue that workers fill."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator
from contextlib import aclosing, contextmanager
from itertools import islice
from typing import Any, Final

from aioqueue import OutOfRangeError, sync
from aioqueue.inputs.pipeline.flow import (
    Flow,
    Node,
    RunOver,
    Span,
    Taken,
    drive,
    drive_async,
    no_end,
    told_apart,
)
from aioqueue.inputs.prepare.delivery import Delivered
from aioqueue.inputs.sources.base import Entry, Source
from aioqueue.inputs.sources.epochs import EpochEntries, aclosed
from aioqueue.inputs.sources.item import EpochEnd

__all__ = ("Feeding", "QueueNode", "SourceNode")

_AT_ONCE: Final = 32
"""Items that are taken out together, if as many are there and fewer are needed."""

_SOON: Final = 0.005
"""Seconds that a consumer waits for more than one item, where it is not known how many come."""


class SourceNode(Node):
    """The entries of a source as rows, epoch after epoch.

    Args:
        source: what has them.
        span: the epochs.
    """

    def __init__(self, source: EpochEntries, span: Span) -> None:
        super().__init__(span)
        self.source = source
        self._entries: Iterator[Entry[Any]] | None = None
        self._entries_async: AsyncIterator[Entry[Any]] | None = None
        self._is_closed = False

    def take(self, n: int) -> Flow[Taken]:
        entries = yield _Entries(self, n)
        if not entries:
            end = EpochEnd(self._epoch, self._given)
            self.skip_to(self._epoch + 1)
            return end
        first = self._given
        self._given += len(entries)
        return [
            (value, number, index, 0) for number, (value, _, index) in enumerate(entries, first)
        ]

    def _skip_to(self, epoch: int) -> None:
        self._epoch, self._given = epoch, 0
        self._leave()

    def close(self) -> None:
        self._is_closed = True
        self._leave()

    def next_entries(self, n: int) -> list[Entry[Any]]:
        """The next of this epoch, up to n; none at its end."""
        self._check()
        if self._entries is None:
            self._entries = self.source.entries(self._epoch)
        return list(islice(self._entries, n))

    async def next_entries_async(self, n: int) -> list[Entry[Any]]:
        """The same, for a task. What is cancelled here has taken nothing."""
        if not self.source.blocking:
            return self.next_entries(n)
        self._check()
        if self._entries_async is None:
            self._entries_async = self.source.entries_async(self._epoch)
        entry = await anext(self._entries_async, None)
        return [] if entry is None else [entry]

    def _check(self) -> None:
        """Nobody begins again with what was let go of."""
        if self._is_closed:
            raise RunOver("the source was let go of")

    def _leave(self) -> None:
        entries, self._entries = self._entries, None
        self._entries_async = None  # which ends when it is dropped
        if isinstance(entries, Generator):
            entries.close()


class _Entries:
    """The wish for entries of a source."""

    __slots__ = ("_n", "_node")

    def __init__(self, node: SourceNode, n: int) -> None:
        self._node = node
        self._n = n

    def take(self) -> list[Entry[Any]]:
        return self._node.next_entries(self._n)

    async def take_async(self) -> list[Entry[Any]]:
        return await self._node.next_entries_async(self._n)


class QueueNode(Node):
    """The examples that workers have put into a queue, item by item, as rows.

    Where the workers do not keep the order of the source, items of a later epoch may come before
    the end of an earlier one; they are put aside. The end is known by counting: what was told to be
    the end of an epoch says how many items it has.

    Args:
        queue: of `Delivered`.
        source: what feeds the workers.
        items: how many items an epoch has, where that is known.
        is_one_to_one: whether every item is one example.
        at_once: how many items may be taken out together; ``None`` for the usual number.
    """

    def __init__(
        self,
        queue: sync.FIFOQueue,
        source: Feeding,
        *,
        items: int | None,
        is_one_to_one: bool,
        at_once: int | None = None,
    ) -> None:
        super().__init__(source.span)
        self._queue = queue
        self._source = source
        self._items = items
        self._is_one_to_one = is_one_to_one
        self._at_once = at_once or min(_AT_ONCE, queue.capacity or _AT_ONCE)
        self._later: list[Delivered] = []  # of epochs to come
        self._arrived = 0  # items of this epoch, also those without examples
        self._expected: int | None = None  # how many there are, once that was told
        self.items_of_epoch = 0
        """How many items the epoch had that has ended last, also those without examples."""

    def take(self, n: int) -> Flow[Taken]:
        while not self._ready and self._arrived != self._expected:
            self._accept((yield self._want(n)))
        if self._ready:
            return self.take_ready(n)
        end = EpochEnd(self._epoch, self._given)
        self.items_of_epoch = self._arrived
        self._go_to(self._epoch + 1)
        return end

    def _skip_to(self, epoch: int) -> None:
        self._source.skip_to(epoch)
        self._ready = deque()
        self._go_to(epoch)

    def close(self) -> None:
        """Nothing is open for it: its workers let go of what they have."""

    def _want(self, n: int) -> _Items:
        """What to wait for: all that was asked for if it is sure to come; else what is there."""
        if n < self._at_once or not self._is_one_to_one:
            return _Items(self._queue, self._at_once, 0.0)
        if self._items is None:
            return _Items(self._queue, n, _SOON)
        return _Items(self._queue, max(1, min(n, self._items - self._arrived)), None)

    def _accept(self, items: list[Delivered]) -> None:
        current, append = self._epoch, self._ready.append
        for item in items:
            epoch, number, index, examples = item
            if epoch == current:
                # Those of an item that share it count from 1; see `Row`.
                for sub, value in enumerate(examples, len(examples) != 1):
                    if isinstance(value, EpochEnd):
                        self._expected = value.count
                        break
                    append((value, number, index, sub))
                else:
                    self._arrived += 1
            elif epoch > current:
                self._later.append(item)

    def _go_to(self, epoch: int) -> None:
        self._epoch, self._given = epoch, 0
        self._arrived, self._expected = 0, None
        later, self._later = self._later, []
        self._accept(later)


class _Items:
    """The wish for items of a queue: n, or those that come in time."""

    __slots__ = ("_max_wait", "_n", "_queue")

    def __init__(self, queue: sync.FIFOQueue, n: int, max_wait: float | None) -> None:
        self._queue = queue
        self._n = n
        self._max_wait = max_wait

    def take(self) -> list[Delivered]:
        try:
            return self._queue.dequeue_up_to(self._n, self._max_wait)  # type: ignore[no-any-return]
        except OutOfRangeError as end:
            raise RunOver(str(end)) from end.__cause__

    async def take_async(self) -> list[Delivered]:
        try:
            return await self._queue.aio.dequeue_up_to(self._n, self._max_wait)  # type: ignore[no-any-return]
        except OutOfRangeError as end:
            raise RunOver(str(end)) from end.__cause__


class Feeding(Source[Any]):
    """The rows of a node as the source of a `prepare`, with the ends of epochs among them.

    Args:
        node: where the rows come from; from now on only this one takes them.
        seed: of the generators that the function is given.
        blocking: whether taking one may have to wait.
    """

    def __init__(self, node: Node, seed: int, *, blocking: bool) -> None:
        super().__init__("pipeline", seed)
        self.blocking = blocking
        self.span = node.span
        self._node = node
        self._epoch = node.span.start
        self._wanted = node.span.start  # nobody wants earlier ones

    def skip_to(self, epoch: int) -> None:
        """Nobody wants the epochs before this one any more. May be called from any thread."""
        self._wanted = max(self._wanted, epoch)

    def entries(self) -> Iterator[Entry[Any]]:
        if isinstance(self._node, SourceNode):
            yield from self._straight(self._node.source)
            return
        try:
            while not self._is_over():
                yield from self._entries_of(drive(self._node.take(_AT_ONCE)))
        finally:
            self._node.close()

    async def aentries(self) -> AsyncGenerator[Entry[Any], None]:
        if isinstance(self._node, SourceNode):
            source = self._node.source
            if not self.blocking:
                for entry in self._straight(source):
                    yield entry
                return
            async with aclosing(self._straight_async(source)) as entries:
                async for entry in entries:
                    yield entry
            return
        try:
            while not self._is_over():
                for entry in self._entries_of(await drive_async(self._node.take(_AT_ONCE))):
                    yield entry
        finally:
            self._node.close()

    def _straight(self, source: EpochEntries) -> Iterator[Entry[Any]]:
        """The entries of a source with nothing in between: without making rows of them."""
        while not self._is_over():
            epoch, count = self._epoch, 0
            with _closing(source.entries(epoch)) as entries:
                for entry in entries:
                    if self._wanted > epoch:
                        break
                    yield entry
                    count += 1
                else:
                    yield Entry(EpochEnd(epoch, count), epoch, 0)
                    self._epoch += 1

    async def _straight_async(self, source: EpochEntries) -> AsyncGenerator[Entry[Any], None]:
        """The same for tasks, of what has to be waited for."""
        while not self._is_over():
            epoch, count = self._epoch, 0
            entries = source.entries_async(epoch)
            try:
                async for entry in entries:
                    if self._wanted > epoch:
                        break
                    yield entry
                    count += 1
                else:
                    yield Entry(EpochEnd(epoch, count), epoch, 0)
                    self._epoch += 1
            except OutOfRangeError as error:
                raise no_end(error)  # noqa: B904  # it says its cause
            finally:
                await aclosed(entries)

    def _is_over(self) -> bool:
        if self._wanted > self._epoch:
            self._epoch = self._wanted
            self._node.skip_to(self._epoch)
        return self.span.stop is not None and self._epoch >= self.span.stop

    def _entries_of(self, taken: Taken) -> Iterable[Entry[Any]]:
        epoch = self._epoch
        if isinstance(taken, EpochEnd):
            self._epoch += 1
            return (Entry(taken, epoch, 0),)
        return [Entry(value, epoch, told_apart(index, sub)) for value, _, index, sub in taken]


@contextmanager
def _closing(entries: Iterator[Entry[Any]]) -> Iterator[Iterator[Entry[Any]]]:
    """Close what goes through a source when it is left: files stay open in it otherwise.

    That it runs into the end of something else is a failure, and not the end of the source.
    """
    try:
        yield entries
    except OutOfRangeError as error:
        raise no_end(error)  # noqa: B904  # it says its cause
    finally:
        if isinstance(entries, Generator):
            entries.close()
