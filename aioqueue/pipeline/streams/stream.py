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

from collections.abc import Mapping
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from aioqueue import (
    AsyncQueue,
    Coordinator,
    OutOfRangeError,
    sync,
)
from aioqueue.base.hints import refuse_search
from aioqueue.base.public_names import public
from aioqueue.base.tracebacks import shorten
from aioqueue.items.quarantined import Quarantined
from aioqueue.workers.statistics import PrepareStatistics

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
        refuse_search(self)

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
