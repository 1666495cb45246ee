"""Streams: what batchers return, an iterator over ready batches, in two faces.

A `Pipe` knows what is special: which queue is read, how much is taken from it at a time, and what
has to be done with that. The faces only wait. Both faces of a stream share one pipe, so that a
thread may take what a coroutine leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from aioqueue import AsyncQueue, OutOfRangeError, sync
from aioqueue.elsewhere import not_searched
from aioqueue.inputs.sources.item import Quarantined
from aioqueue.inputs.statistics import PrepareStatistics

__all__ = (
    "AnyQueue",
    "AsyncBatchStream",
    "BatchStream",
    "Pipe",
    "Preparing",
    "ResumablePipe",
    "Stream",
    "resumable_stream",
)

AnyQueue = AsyncQueue | sync.BlockingQueue
StatisticsT = TypeVar("StatisticsT", covariant=True)


class Preparing(Protocol):
    """What is told of the workers that make a stream's examples, by whatever runs them."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def quarantine(self) -> list[Quarantined]:
        """The items that were skipped."""

    def statistics(self) -> PrepareStatistics:
        """What has become of the items so far."""


class Pipe(Protocol[StatisticsT]):
    """What one kind of stream does, whichever face it is seen by."""

    queue: AnyQueue
    """What is read."""

    examples: AnyQueue | None
    """Where single examples wait for their batch, if they do so in a queue."""

    runner: Preparing | None
    """What prepares the examples, if they are prepared."""

    size: int | None
    """How many elements are taken at a time; ``None`` takes one, as an element and not as a
    batch."""

    drop_remainder: bool
    """Whether fewer elements than that are not taken at all."""

    max_wait: float | None
    """Seconds after which fewer elements are taken."""

    def give(self, taken: Any) -> Any:
        """Make what was taken what the user gets."""

    def statistics(self) -> StatisticsT:
        """What it has done so far."""

    def close(self) -> None:
        """End it and what fills it."""

    def describe(self) -> str:
        """What kind of stream it is, and of what."""


class ResumablePipe(Pipe[StatisticsT], Protocol[StatisticsT]):
    """A pipe that knows where it is, and takes batches by itself."""

    def take(self) -> Any:
        """The next batch, for a thread."""

    async def take_async(self) -> Any:
        """The same for a task."""

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that was taken."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin behind a position."""


class Stream(Generic[StatisticsT]):
    """A stream as one world sees it: here, all that never waits."""

    def __init__(self, pipe: Pipe[StatisticsT]) -> None:
        self._pipe = pipe

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} {self._pipe.describe()}>"

    @property
    def name(self) -> str:
        """What messages and worker names call it, and the queue that it reads."""
        return self._pipe.queue.name

    @property
    def examples(self) -> AnyQueue | None:
        """The queue in which single examples wait for their batch: that of a `batch` itself, the
        shuffled one of a `shuffle_batch`; ``None`` where there is none."""
        return self._pipe.examples

    @property
    def runner(self) -> Preparing | None:
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
        """What it has done so far, all of one moment."""
        return self._pipe.statistics()

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that was handed out, to go on from another time.

        What is under way is not in it: it will be prepared again, and become the same. It may be
        called at any time by any thread, before the first batch and after the last, and stops no
        worker.

        Returns:
            A dict of plain JSON types: what ``resume=`` of the batchers takes.

        Raises:
            RuntimeError: the stream was made without ``resume``; or it has no position just now, as
                when a signal handler asks that has interrupted the making of a batch.
            OSError: the size of a file cannot be found out.
        """
        raise _no_positions(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on behind a position, instead of at the beginning: other workers are started there.

        Args:
            state: what `state_dict` gave, in this process or another.

        Raises:
            InvalidArgumentError: it is no position, is damaged, or belongs to another stream: the
                message names the field that differs, and both values.
            RuntimeError: the first batch was asked for already; or the stream was made without
                ``resume``; or its coordinator starts nothing here any more.
        """
        raise _no_positions(self)

    def __contains__(self, element: object) -> NoReturn:
        """Refuse to be searched, which would use up what is iterated.

        Raises:
            TypeError: always.
        """
        not_searched(self)

    def close(self) -> None:
        """Leave: end the stream, and the workers that it has started.

        Returns at once; any thread or task may call it, any number of times. Batches that are ready
        can still be taken; what is on its way is dropped. A queue or stream that it was given as
        its source stays as it is, and so does the coordinator.
        """
        self._pipe.close()


class AsyncBatchStream(Stream[StatisticsT]):
    """An async iterator over batches; made by the batchers with an `aioqueue.Coordinator`.

    Any number of tasks may iterate over it; each batch goes to one of them. A cancelled
    ``__anext__`` leaves every element where it was, and iteration can go on after it. It ends when
    the source has ended, or a stop was requested, and nothing is left. After a failure, which the
    coordinator reports, it raises `OutOfRangeError` with that as its cause.
    """

    @property
    def queue(self) -> AsyncQueue:
        """The queue that it reads."""
        return self._pipe.queue.aio

    async def aclose(self) -> None:
        """The same as `close`, for `contextlib.aclosing`.

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
            if end.__cause__ is not None:  # a failure is no end
                raise
            raise StopAsyncIteration from None

    async def _next(self) -> Any:
        pipe, queue = self._pipe, self.queue
        if pipe.size is None:
            return pipe.give(await queue.dequeue())
        if pipe.drop_remainder:
            return pipe.give(await queue.dequeue_many(pipe.size))
        return pipe.give(await queue.dequeue_up_to(pipe.size, pipe.max_wait))


class BatchStream(Stream[StatisticsT]):
    """An iterator over batches; made by the batchers with an `aioqueue.sync.Coordinator`.

    Any number of threads may iterate over it; each batch goes to one of them. It ends when the
    source has ended, or a stop was requested, and nothing is left. After a failure, which the
    coordinator reports, it raises `OutOfRangeError` with that as its cause.
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
            if end.__cause__ is not None:  # a failure is no end
                raise
            raise StopIteration from None

    def _next(self) -> Any:
        pipe, queue = self._pipe, self.queue
        if pipe.size is None:
            return pipe.give(queue.dequeue())
        if pipe.drop_remainder:
            return pipe.give(queue.dequeue_many(pipe.size))
        return pipe.give(queue.dequeue_up_to(pipe.size, pipe.max_wait))


class _Resumable(Stream[StatisticsT]):
    """A stream of which there are positions."""

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
    __module__ = "aioqueue.inputs"  # what it shows of itself is what it is to users
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
    """A stream that can be resumed, by one of its faces."""
    kind = _ResumableAsyncBatchStream if is_async else _ResumableBatchStream
    return kind(pipe)


def _no_positions(stream: Stream[Any]) -> RuntimeError:
    return RuntimeError(
        f"{stream.name!r} keeps no positions: make it with resume=None, or with an earlier state,"
        " as batch(..., resume=load_position(path, default=None)) does"
    )
