"""Streams: what the batchers and `Pipeline.start` return.

A stream has two faces, an async one and a blocking one. Both share one `StreamPipe`, so that a
thread can take the batches that a coroutine leaves. There are two kinds of pipes. A `QueuePipe`
reads a queue that others may read too. A `StartedPipeline` makes the steps of nodes, and has
positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import aioqueue
from aioqueue import AsyncQueue, Coordinator, InvalidArgumentError, OutOfRangeError, sync
from aioqueue.base.hints import refuse_search
from aioqueue.base.public_names import public
from aioqueue.base.tracebacks import shorten
from aioqueue.items.quarantined import Quarantined
from aioqueue.sources.stream_base import BaseStream
from aioqueue.workers.statistics import PrepareStatistics

AnyCoordinator = Coordinator | sync.Coordinator


AnyQueue = AsyncQueue | sync.BlockingQueue


StatisticsT = TypeVar("StatisticsT", covariant=True)


class PreparationInfo(Protocol):
    """What the runner of a stream's workers knows about them."""

    @property
    def name(self) -> str: ...

    @property
    def quarantine(self) -> list[Quarantined]: ...

    def statistics(self) -> PrepareStatistics: ...


class StreamPipe(Protocol[StatisticsT]):
    """The inside of one kind of stream, which both faces share."""

    queue: AnyQueue
    """The queue that the stream reads."""

    examples: AnyQueue | None
    """The queue in which single examples wait for their batch; ``None`` without such a queue."""

    runner: PreparationInfo | None
    """The runner that prepares the examples; ``None`` without a function."""

    def take(self) -> Any:
        """Wait in a thread for the next batch."""

    async def take_async(self) -> Any:
        """Wait in a task for the next batch."""

    def statistics(self) -> StatisticsT: ...

    def close(self) -> None:
        """End the stream and its workers."""

    def describe(self) -> str:
        """The kind of the stream and its source, for its `repr`."""

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that was taken."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class QueuePipe(ABC):
    """The part that pipes share which read their batches from a queue, and so have no positions."""

    queue: AnyQueue
    examples: AnyQueue | None = None
    runner: PreparationInfo | None = None
    size: int | None = None
    """How many elements make a batch; ``None``: each element is a batch already."""
    drop_remainder: bool = False
    """Whether to drop a last batch that is smaller."""
    max_wait: float | None = None
    """Seconds after which to take a smaller batch; ``None`` for never."""

    @abstractmethod
    def deliver(self, taken: Any) -> Any:
        """Count the taken elements, and return them as the user receives them."""

    def take(self) -> Any:
        queue = self.queue.sync
        if self.size is None:
            return self.deliver(queue.dequeue())
        if self.drop_remainder:
            return self.deliver(queue.dequeue_many(self.size))
        return self.deliver(queue.dequeue_up_to(self.size, self.max_wait))

    async def take_async(self) -> Any:
        queue = self.queue.aio
        if self.size is None:
            return self.deliver(await queue.dequeue())
        if self.drop_remainder:
            return self.deliver(await queue.dequeue_many(self.size))
        return self.deliver(await queue.dequeue_up_to(self.size, self.max_wait))

    def state_dict(self) -> dict[str, Any]:
        raise self._no_positions()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        raise self._no_positions()

    def _no_positions(self) -> RuntimeError:
        return RuntimeError(
            f"{self.queue.name!r} keeps no positions: make it with resume=None, or with an earlier"
            " state, as batch(..., resume=load_position(path, default=None)) does"
        )


class Stream(BaseStream, Generic[StatisticsT]):
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

    def _takers(self) -> tuple[Callable[[], Any], Callable[[], Awaitable[Any]]]:
        return self._pipe.take, self._pipe.take_async

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
        return self._pipe.state_dict()

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
        self._pipe.load_state_dict(state)

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
            return await self._pipe.take_async()
        except OutOfRangeError as end:
            if end.__cause__ is not None:  # a failure is not an end of the iteration
                shorten(end)
                raise
            raise StopAsyncIteration from None
        except BaseException as error:
            shorten(error)
            raise


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
            return self._pipe.take()
        except OutOfRangeError as end:
            if end.__cause__ is not None:  # a failure is not an end of the iteration
                shorten(end)
                raise
            raise StopIteration from None
        except BaseException as error:
            shorten(error)
            raise


def stream_of(
    pipe: StreamPipe[StatisticsT], coord: AnyCoordinator
) -> AsyncBatchStream[StatisticsT] | BatchStream[StatisticsT]:
    """Return a stream with the face of its coordinator."""
    return (AsyncBatchStream if isinstance(coord, Coordinator) else BatchStream)(pipe)


def checked_coordinator(coord: Any) -> AnyCoordinator:
    """Check the coordinator that workers are to be started in.

    Raises:
        InvalidArgumentError: it is no such stream.
    """
    if isinstance(coord, aioqueue.Coordinator | sync.Coordinator):
        return coord
    raise InvalidArgumentError(
        f"coord: got {coord!r}; expected an aioqueue.Coordinator, for the async face, or an"
        " aioqueue.sync.Coordinator, for the thread face"
    )
