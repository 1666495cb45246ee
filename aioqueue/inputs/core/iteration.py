"""Iteration: the streams that batchers return, and ``async for`` over sources.

A stream has two faces, an async one and a blocking one. Both share one `StreamPipe`, so that a
thread can take the batches that a coroutine leaves. The pipe knows which queue to read, how much to
take at a time, and what to make of it. The faces only wait.

``async for`` over a source in memory takes the items directly (`InMemoryIterator`). If a source may
block, a thread of its own reads ahead (`ReadAhead`). The thread puts items into a queue, which
bounds how far ahead it may be, and the task takes everything that is there. So many items share the
cost of a hand-over while the reader is ahead, and no item waits for another one while it is not.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import closing, nullcontext, suppress
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

import anyio.lowlevel

from aioqueue import (
    AsyncQueue,
    CancelledError,
    Coordinator,
    FIFOQueue,
    OutOfRangeError,
    QueueClosedError,
    sync,
)
from aioqueue.api_misuse import not_searched
from aioqueue.coordination.classify import as_failure
from aioqueue.errors import describe_exception
from aioqueue.forks import PROCESS, begun_elsewhere
from aioqueue.inputs.core.items import Quarantined
from aioqueue.inputs.statistics import PrepareStatistics
from aioqueue.public_names import public
from aioqueue.tracebacks import shorten

AnyCoordinator = Coordinator | sync.Coordinator
AnyQueue = AsyncQueue | sync.BlockingQueue
StatisticsT = TypeVar("StatisticsT", covariant=True)


class PreparationInfo(Protocol):
    """What the runner of a stream's workers knows about them."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def quarantine(self) -> list[Quarantined]:
        """The items that were skipped."""

    def statistics(self) -> PrepareStatistics:
        """The counts of items so far."""


class StreamPipe(Protocol[StatisticsT]):
    """The inside of one kind of stream, which both faces share."""

    queue: AnyQueue
    """The queue that the stream reads."""

    examples: AnyQueue | None
    """The queue in which single examples wait for their batch; ``None`` without such a queue."""

    runner: PreparationInfo | None
    """The runner that prepares the examples; ``None`` without a function."""

    size: int | None
    """How many elements make a batch; ``None``: each element is a batch already."""

    drop_remainder: bool
    """Whether to drop a last batch that is smaller."""

    max_wait: float | None
    """Seconds after which to take a smaller batch; ``None`` for never."""

    def give(self, taken: Any) -> Any:
        """Convert the taken elements to what the user receives."""

    def statistics(self) -> StatisticsT:
        """The counts so far."""

    def close(self) -> None:
        """End the stream and its workers."""

    def describe(self) -> str:
        """The kind of the stream and its source, for its `repr`."""


class ResumablePipe(StreamPipe[StatisticsT], Protocol[StatisticsT]):
    """A pipe that has positions, and takes batches itself."""

    def take(self) -> Any:
        """The next batch, for a thread."""

    async def take_async(self) -> Any:
        """The next batch, for a task."""

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that was taken."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin behind a position."""


class Stream(Generic[StatisticsT]):
    """A stream: the methods that never wait, which both faces share."""

    def __init__(self, pipe: StreamPipe[StatisticsT]) -> None:
        self._pipe = pipe

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} {self._pipe.describe()}>"

    @property
    def name(self) -> str:
        """Its name in messages and worker names, and the name of the queue that it reads."""
        return self._pipe.queue.name

    @property
    def examples(self) -> AnyQueue | None:
        """The queue in which single examples wait for their batch: that of a `batch` itself, the
        shuffled one of a `shuffle_batch`; ``None`` without such a queue."""
        return self._pipe.examples

    @property
    def runner(self) -> PreparationInfo | None:
        """The runner whose workers call the ``function``, with its statistics and its quarantine;
        ``None`` if there is no function."""
        return self._pipe.runner

    @property
    def sync(self) -> BatchStream[StatisticsT]:
        """The blocking face of the same stream, for threads."""
        return BatchStream(self._pipe)

    @property
    def aio(self) -> AsyncBatchStream[StatisticsT]:
        """The async face of the same stream, for coroutines."""
        return AsyncBatchStream(self._pipe)

    def statistics(self) -> StatisticsT:
        """The counts so far, all of one moment."""
        return self._pipe.statistics()

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that you received, from which to resume later.

        It does not contain what is in flight, which will be prepared again with the same result.
        You can call it at any time from any thread, also before the first batch and after the last.
        It stops no worker.

        Returns:
            A dict of plain JSON types. Pass it to the batcher as ``resume=``.

        Raises:
            RuntimeError: you made the stream without ``resume``; or a signal handler has
                interrupted the making of a batch, and calls this.
            OSError: the size of a file cannot be read.
        """
        raise _no_positions(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin behind a position, instead of at the beginning. It starts new workers there.

        Args:
            state: what `state_dict` returned, in this process or another.

        Raises:
            InvalidArgumentError: it is not a position, is damaged, or belongs to another stream:
                the message names the field that differs, and both values.
            RuntimeError: you have taken a batch already; or you made the stream without ``resume``;
                or its coordinator starts no more workers.
        """
        raise _no_positions(self)

    def __contains__(self, element: object) -> NoReturn:
        """Refuse ``in``: a search would use up the batches.

        Raises:
            TypeError: always.
        """
        not_searched(self)

    def close(self) -> None:
        """End the stream, and the workers that it has started.

        It returns at once. Any thread or task may call it, any number of times. You can still take
        batches that are ready; what is in flight is dropped. It does not touch a queue or stream
        that you passed as its source, nor the coordinator.
        """
        self._pipe.close()


@public("aioqueue.inputs")
class AsyncBatchStream(Stream[StatisticsT]):
    """An async iterator over batches; made by the batchers with an `aioqueue.Coordinator`.

    Any number of tasks may iterate over it; each batch goes to one of them. A cancelled
    ``__anext__`` leaves every element where it was, and you can continue to iterate. It ends when
    nothing is left after the end of the source or a requested stop. After a failure, which the
    coordinator reports, it raises `OutOfRangeError` with the failure as its cause.
    """

    @property
    def queue(self) -> AsyncQueue:
        """The queue that it reads."""
        return self._pipe.queue.aio

    async def aclose(self) -> None:
        """Do what `close` does, for `contextlib.aclosing`.

        Cancellation:
            It does not wait, and so cannot be cancelled.
        """
        self._pipe.close()

    def __aiter__(self) -> AsyncBatchStream[StatisticsT]:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._next()
        except OutOfRangeError as end:
            if end.__cause__ is not None:  # a failure is not an end of the iteration
                shorten(end)
                raise
            raise StopAsyncIteration from None
        except BaseException as error:
            shorten(error)
            raise

    async def _next(self) -> Any:
        pipe, queue = self._pipe, self.queue
        if pipe.size is None:
            return pipe.give(await queue.dequeue())
        if pipe.drop_remainder:
            return pipe.give(await queue.dequeue_many(pipe.size))
        return pipe.give(await queue.dequeue_up_to(pipe.size, pipe.max_wait))


@public("aioqueue.inputs")
class BatchStream(Stream[StatisticsT]):
    """An iterator over batches; made by the batchers with an `aioqueue.sync.Coordinator`.

    Any number of threads may iterate over it; each batch goes to one of them. It ends when nothing
    is left after the end of the source or a requested stop. After a failure, which the coordinator
    reports, it raises `OutOfRangeError` with the failure as its cause.
    """

    @property
    def queue(self) -> sync.BlockingQueue:
        """The queue that it reads."""
        return self._pipe.queue.sync

    def __iter__(self) -> BatchStream[StatisticsT]:
        return self

    def __next__(self) -> Any:
        try:
            return self._next()
        except OutOfRangeError as end:
            if end.__cause__ is not None:  # a failure is not an end of the iteration
                shorten(end)
                raise
            raise StopIteration from None
        except BaseException as error:
            shorten(error)
            raise

    def _next(self) -> Any:
        pipe, queue = self._pipe, self.queue
        if pipe.size is None:
            return pipe.give(queue.dequeue())
        if pipe.drop_remainder:
            return pipe.give(queue.dequeue_many(pipe.size))
        return pipe.give(queue.dequeue_up_to(pipe.size, pipe.max_wait))


class _Resumable(Stream[StatisticsT]):
    """A stream that has positions."""

    _pipe: ResumablePipe[StatisticsT]

    @property
    def sync(self) -> BatchStream[StatisticsT]:
        return _ResumableBatchStream(self._pipe)

    @property
    def aio(self) -> AsyncBatchStream[StatisticsT]:
        return _ResumableAsyncBatchStream(self._pipe)

    def state_dict(self) -> dict[str, Any]:
        return self._pipe.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._pipe.load_state_dict(state)


class _ResumableAsyncBatchStream(_Resumable[StatisticsT], AsyncBatchStream[StatisticsT]):
    __module__ = "aioqueue.inputs"  # its `repr` shows the public name
    __qualname__ = "AsyncBatchStream"

    async def _next(self) -> Any:
        return await self._pipe.take_async()


class _ResumableBatchStream(_Resumable[StatisticsT], BatchStream[StatisticsT]):
    __module__ = "aioqueue.inputs"
    __qualname__ = "BatchStream"

    def _next(self) -> Any:
        return self._pipe.take()


def resumable_stream(
    pipe: ResumablePipe[StatisticsT], *, is_async: bool
) -> AsyncBatchStream[StatisticsT] | BatchStream[StatisticsT]:
    """One face of a stream that you can resume."""
    kind = _ResumableAsyncBatchStream if is_async else _ResumableBatchStream
    return kind(pipe)


def _no_positions(stream: Stream[Any]) -> RuntimeError:
    return RuntimeError(
        f"{stream.name!r} keeps no positions: make it with resume=None, or with an earlier state,"
        " as batch(..., resume=load_position(path, default=None)) does"
    )


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
            raise begun_elsewhere(f"reading ahead in {self._name}")
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
    """The body of the thread."""
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
    """Log a failure that nobody will take any more, unless the other side has logged it."""
    with suppress(IndexError):
        _log.error("a source that was left has failed", exc_info=untold.pop())


def _as_itself(error: BaseException) -> BaseException:
    """The exception, wrapped if a task would take it for the end of the iterator or of itself.

    (The caller distinguishes the errors of a closed queue.)
    """
    if isinstance(error, OutOfRangeError | QueueClosedError):
        return error
    return as_failure(error, f"the source raised {describe_exception(error)}")
