"""Reads sources ahead, in one thread, for loops that must not wait for them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import closing, nullcontext, suppress
from typing import Final, Generic, TypeVar

import anyio.lowlevel

from aioqueue import CancelledError, FIFOQueue, OutOfRangeError, QueueClosedError, sync
from aioqueue.coordination.classify import as_failure
from aioqueue.errors import describe_exception
from aioqueue.system.forks import PROCESS, inherited_error

_log: Final = logging.getLogger("aioqueue")


T = TypeVar("T")


_TURN: Final = 64
"""How many items to take from memory before other tasks get a turn."""


class InMemoryIterator(Generic[T]):
    """An async iterator over items in memory. Now and then it lets other tasks run.

    A cancelled ``__anext__`` loses nothing.

    Args:
        iterator: gives the items.
    """

    __slots__ = ("_iterator", "_taken")

    def __init__(self, iterator: Iterator[T]) -> None:
        self._iterator = iterator
        self._taken = 0

    def __aiter__(self) -> InMemoryIterator[T]:
        return self

    async def __anext__(self) -> T:
        self._taken += 1
        if not self._taken % _TURN:
            await (
                anyio.lowlevel.checkpoint()
            )  # before taking an item, which a cancellation would lose
        try:
            return next(self._iterator)
        except StopIteration:
            raise StopAsyncIteration from None
        except StopAsyncIteration as error:  # a plain iterator does not end with this
            raise RuntimeError(f"the source raised {describe_exception(error)}") from error


class ReadAhead(Generic[T]):
    """An async iterator over items that a thread reads ahead. For tasks of one event loop.

    The thread starts with the first item that is asked for. It ends, and closes its files, when
    everything has been read, when reading fails, after `aclose`, and when the iterator is dropped
    (as by ``break``): at once if it waits for room, else after the call that it is in.

    A cancelled ``__anext__`` loses nothing, and you can continue to iterate. The log reports a
    failure after the iterator was closed or dropped, such as one of a clean-up.

    Args:
        bursts: gives the items in lists of one or more, as they become available.
        ahead: how many items the thread may be ahead, >= 1.
        name: what the thread is named after.
        scope: the calls of ours in which reading may wait for long; it is cancelled at the end.
        left: called at the end, too, to end any other wait.
    """

    __slots__ = ("__weakref__", "_reading")

    def __init__(
        self,
        bursts: Generator[list[T], None, None],
        *,
        ahead: int,
        name: str,
        scope: sync.CancelScope | None = None,
        left: Callable[[], object] | None = None,
    ) -> None:
        self._reading = _Reading(bursts, ahead, name, scope, left)

    def __aiter__(self) -> ReadAhead[T]:
        return self

    def __anext__(self) -> Awaitable[T]:
        return _step([self])

    async def aclose(self) -> None:
        """Stop reading; iteration is over."""
        self._reading.close()

    def __del__(self) -> None:
        self._reading.close()


async def _step(held: list[ReadAhead[T]]) -> T:
    """The next item. The iterator lives while a caller waits, as in ``await anext(aiter(x))``, but
    no longer: a traceback through this frame must not keep it, and with it its thread, alive."""
    try:
        return await held[0]._reading.next()
    finally:
        held.clear()


class _Reading(Generic[T]):
    """One run of a reading thread, and the items from it that nobody has taken yet."""

    __slots__ = (
        "_ahead",
        "_bursts",
        "_items",
        "_left",
        "_name",
        "_over",
        "_process",
        "_queue",
        "_scope",
        "_started",
        "_untold",
    )

    def __init__(
        self,
        bursts: Generator[list[T], None, None],
        ahead: int,
        name: str,
        scope: sync.CancelScope | None,
        left: Callable[[], object] | None,
    ) -> None:
        self._bursts = bursts
        self._left = left
        self._ahead = ahead
        self._name = name
        self._queue = FIFOQueue(ahead, name=name)
        self._scope = scope
        self._items: deque[T] = deque()
        self._started = False
        self._over = False
        self._process = PROCESS.number
        self._untold: list[BaseException] = []  # its failure; the caller that takes it raises it

    async def next(self) -> T:
        if self._process != PROCESS.number and self._started:
            raise inherited_error(f"reading ahead in {self._name}")
        try:
            while not self._items:
                # Several tasks may wait here: each adds the items that it gets to the common list.
                self._items.extend(await self._more())
            return self._items.popleft()
        except BaseException:
            del self  # a circle: queue -> failure -> traceback -> this frame -> queue
            raise

    async def _more(self) -> list[T]:
        if self._over:
            raise StopAsyncIteration
        if not self._started:
            self._start()
        try:
            items: list[T] = await self._queue.dequeue_up_to(self._ahead, max_wait=0)
        except OutOfRangeError as end:
            failure = end.__cause__
        else:
            return items
        # It is over, with or without a failure. A failure is raised once, as from a generator.
        was_over, self._over = self._over, True
        if failure is None or was_over:
            raise StopAsyncIteration
        self._untold.clear()
        try:
            raise failure
        finally:
            del failure, self  # a circle, as in `next`

    def _start(self) -> None:
        thread = threading.Thread(
            target=_read,
            args=(self._bursts, self._queue.sync, self._scope, self._untold),
            name=f"aioqueue-read-{self._name}",
            daemon=True,
        )
        try:
            thread.start()
        finally:  # Ctrl-C may strike when the thread runs already; if it does not, nobody must wait
            self._started = thread.ident is not None

    def close(self) -> None:
        self._over = True
        self._items.clear()
        self._queue.close(cancel_pending_enqueues=True)
        if self._scope is not None:
            self._scope.cancel()
        if self._left is not None:
            self._left()
        _log_failure(self._untold)


def _read(
    bursts: Generator[list[T], None, None],
    queue: sync.FIFOQueue,
    scope: sync.CancelScope | None,
    untold: list[BaseException],
) -> None:
    failure: BaseException | None = None
    try:
        # Files are closed before the consumer sees the end, and in no scope that is cancelled.
        with closing(bursts), scope or nullcontext():
            for burst in bursts:
                try:
                    queue.enqueue_many(burst)
                except QueueClosedError:  # the iterator was closed
                    break
    except BaseException as error:
        if scope is None or not (isinstance(error, CancelledError) and scope.cancelled):
            failure = _as_itself(error)
            untold.append(failure)
    try:
        if queue.is_closed():
            _log_failure(untold)
        queue.close(cause=failure)
    finally:
        del failure, queue, untold  # a circle: queue -> failure -> traceback -> this frame -> queue


def _log_failure(untold: list[BaseException]) -> None:
    """Log a failure that nobody will receive, unless the other side has logged it."""
    with suppress(IndexError):
        _log.error("a source that was left has failed", exc_info=untold.pop())


def _as_itself(error: BaseException) -> BaseException:
    """The exception, wrapped if a task would take it for the end of the iterator or of itself.

    (The caller distinguishes the errors of a closed queue.)
    """
    if isinstance(error, OutOfRangeError | QueueClosedError):
        return error
    return as_failure(error, f"the source raised {describe_exception(error)}")
