"""Iterating over a source by ``async for``: what lies in memory, and what is read ahead.

What would block an event loop is iterated on a thread of its own.

The thread puts what it reads into a queue of objects, which bounds how far ahead it may be; the
task takes everything that is there each time it comes. So the price of a crossing between the two
is shared by many items while the reader is ahead, and no item waits for a second one while it is
not.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Awaitable, Generator, Iterator
from contextlib import closing, suppress
from typing import Final, Generic, TypeVar

import anyio.lowlevel

from aioqueue import FIFOQueue, OutOfRangeError, QueueClosedError, sync
from aioqueue.coordination.outcomes import as_failure, told
from aioqueue.forks import PROCESS, begun_elsewhere

__all__ = ("AtHand", "ReadAhead")

_log: Final = logging.getLogger("aioqueue")

T = TypeVar("T")


_TURN: Final = 64
"""Items that are taken from memory before other tasks have a turn."""


class AtHand(Generic[T]):
    """An async iterator over what is in memory. Now and then it lets other tasks run.

    A cancelled ``__anext__`` loses nothing.

    Args:
        iterator: what has the items.
    """

    __slots__ = ("_iterator", "_taken")

    def __init__(self, iterator: Iterator[T]) -> None:
        self._iterator = iterator
        self._taken = 0

    def __aiter__(self) -> AtHand[T]:
        return self

    async def __anext__(self) -> T:
        self._taken += 1
        if not self._taken % _TURN:
            await anyio.lowlevel.checkpoint()  # before the next item, which would be lost with it
        try:
            return next(self._iterator)
        except StopIteration:
            raise StopAsyncIteration from None
        except StopAsyncIteration as error:  # which is no end of a plain iterator
            raise RuntimeError(f"the source raised {told(error)}") from error


class ReadAhead(Generic[T]):
    """An async iterator over what a thread reads ahead. For tasks of one event loop.

    The thread starts with the first item that is asked for. It ends, and closes its files, when
    everything has been read, when reading fails, after `aclose`, and when the iterator is dropped
    (as by ``break``): at once if it waits for room, else after the call that it is in.

    A cancelled ``__anext__`` loses nothing: iteration can go on after it. What fails after it was
    closed or dropped, a clean-up say, is told by the log.

    Args:
        bursts: what is read, in lists of one item or more, handed over as they come.
        ahead: how many items the thread may be ahead, >= 1.
        name: what the thread is named after.
    """

    __slots__ = ("__weakref__", "_reading")

    def __init__(self, bursts: Generator[list[T], None, None], *, ahead: int, name: str) -> None:
        self._reading = _Reading(bursts, ahead, name)

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
    """The next item. The iterator lives while it is waited for, as by ``await anext(aiter(x))``,
    and not after: a traceback through this must not keep it, and so its thread."""
    try:
        return await held[0]._reading.next()
    finally:
        held.clear()


class _Reading(Generic[T]):
    """One run of a thread, and what has come from it but has not been handed out."""

    __slots__ = (
        "_ahead",
        "_bursts",
        "_items",
        "_name",
        "_over",
        "_process",
        "_queue",
        "_started",
        "_untold",
    )

    def __init__(self, bursts: Generator[list[T], None, None], ahead: int, name: str) -> None:
        self._bursts = bursts
        self._ahead = ahead
        self._name = name
        self._queue = FIFOQueue(ahead, name=name)
        self._items: deque[T] = deque()
        self._started = False
        self._over = False
        self._process = PROCESS.number
        self._untold: list[BaseException] = []  # its failure; whoever takes it out tells it

    async def next(self) -> T:
        if self._process != PROCESS.number and self._started:
            raise begun_elsewhere(f"reading ahead in {self._name}")
        while not self._items:
            # Several tasks may wait here: each adds what it was given to what is there.
            self._items.extend(await self._more())
        return self._items.popleft()

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
        # Failed or not, it is over; a failure is raised once, as from a generator.
        was_over, self._over = self._over, True
        if failure is None or was_over:
            raise StopAsyncIteration
        self._untold.clear()
        raise failure

    def _start(self) -> None:
        thread = threading.Thread(
            target=_read,
            args=(self._bursts, self._queue.sync, self._untold),
            name=f"aioqueue-read-{self._name}",
            daemon=True,
        )
        try:
            thread.start()
        finally:  # Ctrl-C may strike when it runs already; and if it does not, nobody is to wait
            self._started = thread.ident is not None

    def close(self) -> None:
        self._over = True
        self._items.clear()
        self._queue.close(cancel_pending_enqueues=True)
        _log_failure(self._untold)


def _read(
    bursts: Generator[list[T], None, None], queue: sync.FIFOQueue, untold: list[BaseException]
) -> None:
    """What the thread does."""
    failure: BaseException | None = None
    try:
        with closing(bursts):  # files are closed before anybody is told that all is over
            for burst in bursts:
                try:
                    queue.enqueue_many(burst)
                except QueueClosedError:  # nobody wants it any more
                    break
    except BaseException as error:
        failure = _as_itself(error)
        untold.append(failure)
    if queue.is_closed():
        _log_failure(untold)
    queue.close(cause=failure)


def _log_failure(untold: list[BaseException]) -> None:
    """Tell a failure that nobody asks for any more, unless the other side has done so."""
    with suppress(IndexError):
        _log.error("a source that was left has failed", exc_info=untold.pop())


def _as_itself(error: BaseException) -> BaseException:
    """What was raised, so that no task takes it for the end of the iterator, or for its own end.

    (What a queue raises that is closed is told apart by whoever asks.)
    """
    if isinstance(error, OutOfRangeError | QueueClosedError):
        return error
    return as_failure(error, f"the source raised {told(error)}")
