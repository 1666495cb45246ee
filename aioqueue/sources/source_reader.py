"""Reading items from any kind of source, one at a time, in order, with their numbers."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from functools import partial
from operator import concat
from typing import Any, Final, TypeVar

from aioqueue import AsyncQueue, InvalidArgumentError, OutOfRangeError, QueueClosedError, sync
from aioqueue.base.tracebacks import FailureNote
from aioqueue.coordination.cancellations import Call, is_cancellation, running_task, shielded
from aioqueue.coordination.classify import Classification, as_failure, cause_of, classify
from aioqueue.coordination.tasks import mark_ending
from aioqueue.core.elements.ownership import copy_if_shared
from aioqueue.errors import add_note, describe_exception
from aioqueue.items.item import Item, ItemFields
from aioqueue.sources.base import BaseSource
from aioqueue.sources.stream_base import BaseStream

T = TypeVar("T")

_item: Final[Callable[[Sequence[Any]], Item]] = partial(tuple.__new__, Item)

_AHEAD: Final = 2
"""The items per worker to read ahead from an async iterable, if the workers are threads."""


SOURCE_NOTE: Final = FailureNote("in the source of a prepare", "the source failed")
"""On what a source has raised."""


class SourceReader:
    """A source, as an iterator over items and as an async one.

    Args:
        source: a `Source`, whose entries have an epoch and an index; a queue or stream of either
            face; an iterable or async iterable. All but the first are one epoch, counted from 0.

    Raises:
        InvalidArgumentError: the source is not one of these.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        self.queue: sync.BlockingQueue | None = None
        self._reader: AsyncReader | None = None
        # Use the face of a queue or stream that suits the workers, whichever the user passed.
        self._take: Callable[[int], Any] | None = None
        self._take_async: Callable[[int], Awaitable[Any]] | None = None
        self.leases: Any = None
        """What was taken from a queue and is not yet enqueued; ``None`` for another source."""
        if isinstance(source, AsyncQueue | sync.BlockingQueue):
            self.queue = source.sync
            self.leases = source._leases()
            self._take, self._take_async = self.leases.take, self.leases.take_async
        elif isinstance(source, BaseStream):
            self._take, self._take_async = _unnumbered(*source._takers())
        elif isinstance(source, str | bytes):
            raise InvalidArgumentError(
                f"source: got {source!r}, a string; expected an iterable of items. For a single"
                " item pass [string]; to find files use files(pattern)"
            )
        elif not isinstance(source, BaseSource | Iterable | AsyncIterable):
            raise InvalidArgumentError(
                f"source: got {source!r}; expected an iterable, an async iterable, a queue or a"
                " source of aioqueue.inputs"
            )

    @property
    def is_async_only(self) -> bool:
        """Whether only tasks can iterate over it."""
        return not isinstance(self.source, BaseSource | Iterable) and self._take is None

    @property
    def quota(self) -> Any:
        """How many items may be read, an `ItemQuota`; ``None`` for as many as there are."""
        return self.source._quota if isinstance(self.source, BaseSource) else None

    @property
    def is_in_memory(self) -> bool:
        """Whether taking an item is only a look-up that never waits."""
        source = self.source
        if isinstance(source, BaseSource):
            return source._is_in_memory
        return type(source) in (range, tuple)  # a list may grow during the iteration

    def items(self) -> Generator[Item, None, None]:
        """Yield items for threads, one thread at a time. The end of a queue is its
        `OutOfRangeError`, with the cause of the closing."""
        if self._take is not None:
            return _taken(self._take)
        if not isinstance(self.source, BaseSource):
            return _counted(self.source)
        items = self.items_in_memory()
        return _numbered(self.source.entries()) if items is None else _as_items(items)

    def items_in_memory(self) -> ItemsInMemory | None:
        """Return the items of a source in memory; ``None`` if it is another one."""
        if not (isinstance(self.source, BaseSource) and self.is_in_memory):
            return None
        scan = self.source._scan(None, None)
        numbered = scan.numbered()
        if numbered is not None:
            return ItemsInMemory(numbered, numbered)
        entries = scan.entries()
        joined: Any = concat  # of a number, and an entry
        return ItemsInMemory(map(joined, zip(itertools.count()), entries), entries)

    def items_without_waiting(self) -> Generator[Item, None, None] | None:
        """Return the items for tasks if none needs a wait, otherwise ``None``."""
        source = self.source
        if self._take is not None:
            return None
        if isinstance(source, BaseSource):
            return self.items() if source._never_waits else None
        return None if isinstance(source, AsyncIterable) else self.items()

    def items_async(self) -> AsyncGenerator[Item, None]:
        """Yield items for tasks, one task at a time."""
        if self._take_async is not None:
            return _taken_async(self._take_async)
        if isinstance(self.source, BaseSource):
            return _numbered_async(self.source._aentries())
        if isinstance(self.source, AsyncIterable):
            return _counted_async(self.source)
        return _in_memory(_counted(self.source))

    def async_reader(self, workers: int) -> AsyncReader:
        """Return the reader that brings an async source to threads."""
        queue = sync.FIFOQueue(_AHEAD * workers, name="aioqueue-prepare-source")
        self._reader = AsyncReader(self, queue)
        return self._reader

    def drain(self) -> bool:
        """End a source that can end by itself; return whether it can. Any thread may call it.

        A stream or queue ends when its producers do. Items that a task has read ahead of an async
        iterable must not be lost.
        """
        if self._reader is not None:
            self._reader.drain()
        return self._take is not None or self._reader is not None


class AsyncReader:
    """Brings the items of an async source to threads: a task reads ahead into a queue.

    Args:
        feed: the source.
        queue: a queue of objects between the task and the threads.
    """

    def __init__(self, feed: SourceReader, queue: sync.BlockingQueue) -> None:
        self._feed = feed
        self._queue = queue
        self._is_drained = False

    async def read_source(self) -> None:
        """Read the whole source, as a task."""
        call = Call()
        items = self._feed.items_async()
        ended: BaseException | None = None
        closing: BaseException | None = None
        try:
            await self._read(items)
        except BaseException as error:
            ended = error
        if call.task is running_task():  # otherwise the event loop no longer runs us
            closing = await close_items(items)
        try:
            last = combine_errors(
                _raised(ended, closing, OutOfRangeError("the source has ended")), call
            )
            meaning = classify(last, (OutOfRangeError,), owner=call)
            if meaning is Classification.FAILURE:
                add_note(last, SOURCE_NOTE)
            causes = (cause_of(last), self._cut_short(), last)
            self._queue.close(cause=causes[meaning])
            try:
                raise last
            finally:
                del last, causes
        finally:
            del ended, closing  # their tracebacks contain this frame

    def _cut_short(self) -> BaseException | None:
        """Return why items are missing after a cancellation, unless no more are wanted."""
        if self._queue.is_closed():
            return None
        return RuntimeError("the task that reads the source of a prepare was cancelled")

    async def _read(self, items: AsyncIterator[Item]) -> None:
        while not self._is_drained:
            try:
                item = await next_of(items, Call())
            except StopAsyncIteration:
                return
            try:
                await self._queue.aio.enqueue(item)
            except QueueClosedError:
                return  # no more are wanted

    def items(self) -> Generator[Item, None, None]:
        """Yield what the task has read, for threads, one at a time."""
        while True:
            yield self._queue.dequeue()

    def drain(self) -> None:
        """End the task at its next item; the items that it has read are still delivered."""
        self._is_drained = True

    def close(self) -> None:
        self._queue.close(cancel_pending_enqueues=True)


def _taken(take: Callable[[int], Any]) -> Generator[Item, None, None]:
    for number in itertools.count():
        yield Item(number, take(number), 0, number)


async def _taken_async(take: Callable[[int], Awaitable[Any]]) -> AsyncGenerator[Item, None]:
    for number in itertools.count():
        yield Item(number, await take(number), 0, number)


def _unnumbered(
    take: Callable[[], Any], take_async: Callable[[], Awaitable[Any]]
) -> tuple[Callable[[int], Any], Callable[[int], Awaitable[Any]]]:
    return lambda _: take(), lambda _: take_async()


def _counted(values: Iterable[Any]) -> Generator[Item, None, None]:
    iterator = iter(values)
    try:
        number = 0
        for value in iterator:  # `enumerate` would keep a reference to the value
            yield Item(number, copy_if_shared(value), 0, number)
            number += 1  # noqa: SIM113
    finally:
        close(iterator, values)


def _numbered(entries: Iterator[Any]) -> Generator[Item, None, None]:
    try:
        for number, (value, epoch, index) in enumerate(entries):
            yield Item(number, value, epoch, index)
    finally:
        close(entries, None)


class ItemsInMemory(Iterator[ItemFields]):
    """The items of a source in memory, made without a step in Python for each.

    Args:
        items: the items.
        run: the source's iterator, which `close` closes.
    """

    __slots__ = ("_items", "_run")

    def __init__(self, items: Iterator[ItemFields], run: Iterator[Any]) -> None:
        self._items = items
        self._run = run

    def __iter__(self) -> Iterator[ItemFields]:
        return self._items

    def __next__(self) -> ItemFields:
        return next(self._items)

    def close(self) -> None:
        run = self._run
        self._items = self._run = iter(())  # keep nothing of the source
        close(run, None)


def _as_items(items: ItemsInMemory) -> Generator[Item, None, None]:
    try:
        yield from map(_item, items)
    finally:
        items.close()


async def _counted_async(values: AsyncIterable[Any]) -> AsyncGenerator[Item, None]:
    iterator = aiter(values)
    number = 0
    try:
        async for value in iterator:
            yield Item(number, copy_if_shared(value), 0, number)
            number += 1
    finally:
        await aclose(iterator, values)


async def _numbered_async(entries: AsyncIterator[Any]) -> AsyncGenerator[Item, None]:
    number = 0
    try:
        async for value, epoch, index in entries:
            yield Item(number, value, epoch, index)
            number += 1
    finally:
        await aclose(entries, None)


async def _in_memory(items: Generator[Item, None, None]) -> AsyncGenerator[Item, None]:
    try:
        for item in items:
            yield item
    finally:
        items.close()


async def next_of(iterator: AsyncIterator[T], call: Call) -> T:
    """Return the next item of an async iterator. A cancellation that arose inside is a failure.

    Args:
        iterator: the iterator.
        call: the call of the task, which this renews: earlier cancellations do not count.

    Raises:
        StopAsyncIteration: the iterator has ended.
        RuntimeError: the iterator awaited something that was cancelled or closed.
    """
    if call.requests() != call.known:
        call.renew()
    try:
        return await anext(iterator)
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        raise _raised_in_source(error, call)  # noqa: B904  # it carries its cause


def next_without_waiting(iterator: Iterator[T]) -> T:
    """Return the next item of an iterator that needs no wait.

    Raises:
        StopAsyncIteration: the iterator has ended.
        RuntimeError: as for `next_of`; or the iterator has raised it.
    """
    try:
        return next(iterator)
    except StopIteration:
        raise StopAsyncIteration from None
    except StopAsyncIteration as error:
        raise RuntimeError("the source raised StopAsyncIteration") from error
    except Exception:
        raise
    except BaseException as error:
        raise _raised_in_source(error, Call())  # noqa: B904  # as above


def _raised_in_source(error: BaseException, owner: Call) -> BaseException:
    """Return the unusual exception of a source in the form in which the task must raise it."""
    if classify(error, owner=owner) is Classification.STOP:
        return error
    if is_cancellation(error):
        failure = RuntimeError("what the source awaited was cancelled")
        failure.__cause__ = error
        return failure
    return as_failure(error, f"the source raised {describe_exception(error)}")


async def close_items(
    items: AsyncGenerator[Any, None] | Generator[Any, None, None] | None,
) -> BaseException | None:
    """Close the items of a source, even in a cancelled task; return what fails in that."""
    call = Call()
    mark_ending(call.task)
    # What is raised is judged within the shelter: a stop that is on its way to this worker cannot
    # have raised it there.
    with shielded():
        try:
            if isinstance(items, Generator):
                items.close()
            elif items is not None:
                await items.aclose()
        except BaseException as error:
            if classify(error, owner=call) is Classification.STOP:
                return error
            return failure_of_clean_up(error)
    return None


def failure_of_clean_up(error: BaseException) -> BaseException:
    """Return the failure of a source's clean-up, which cannot count as its end."""
    what = f"the clean-up of the source raised {describe_exception(error)}"
    failure = as_failure(error, what)
    add_note(failure, SOURCE_NOTE)
    return failure


def _raised(*errors: BaseException | None) -> list[BaseException]:
    return [error for error in errors if error is not None]


def combine_errors(errors: list[BaseException], owner: Call | None = None) -> BaseException:
    """Return what ends a worker after several errors: all failures, the stop, or the end.

    Args:
        errors: the errors.
        owner: the call that is the worker's whole work, if it is a task.
    """
    found = [classify(error, (OutOfRangeError,), owner=owner) for error in errors]
    failures = [
        error
        for error, meaning in zip(errors, found, strict=True)
        if meaning is Classification.FAILURE
    ]
    if len(failures) > 1:
        return BaseExceptionGroup("several failures of one worker", failures)
    return errors[found.index(max(found))]


def close(iterator: Iterator[Any], source: Any) -> None:
    """Close the iterator of a source, if it can be closed and has no other user.

    A source that is its own iterator, such as an open file, belongs to its owner. A generator is
    closed, because it would keep the files open that it has not read to the end.
    """
    if iterator is not source or inspect.isgenerator(source):
        getattr(iterator, "close", bool)()


async def aclose(iterator: AsyncIterator[Any], source: Any) -> None:
    """Do the same for an async iterator, completely, even in a cancelled task."""
    close = getattr(iterator, "aclose", None)
    if close is not None and (iterator is not source or inspect.isasyncgen(source)):
        if running_task() is None:
            return  # its event loop was closed: this code runs outside of it, and can await nothing
        with shielded():
            await close()
