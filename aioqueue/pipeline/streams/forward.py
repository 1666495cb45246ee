"""Workers that forward the examples of any source, one at a time, to an `ExampleSink`.

A sink takes an example, and returns what to enqueue where: the example itself, a batch that it
completes, or a copy for each consumer. For a plain iterable, whose ``next`` may block, a thread
forwards the examples. For an async iterable, or a queue or stream that others fill, a task does: so
a stop need not wait for an element that never arrives.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, Protocol, TypeGuard

import aioqueue
from aioqueue import AsyncQueue, InvalidArgumentError, OutOfRangeError, QueueClosedError, sync
from aioqueue.coordination.cancellations import Call
from aioqueue.coordination.classify import Classification, as_failure, cause_of, classify
from aioqueue.core.elements.ownership import copy_if_shared
from aioqueue.errors import describe_exception
from aioqueue.pipeline.stream import AnyCoordinator, AnyQueue, PreparationInfo
from aioqueue.sources.kinds.source import Source
from aioqueue.sources.source_reader import aclose, close, failure_of_clean_up, next_of
from aioqueue.sources.stream_base import BaseStream
from aioqueue.workers.options import UnseededOptions
from aioqueue.workers.runner import prepare

Delivery = tuple[AnyQueue, Any]

_AT_ONCE: Final = 64
"""How many elements are moved from queue to queue at once, if there are enough."""


class Forwarder(NamedTuple):
    """The function of a worker that forwards a source to a sink."""

    op: Callable[[], Any]
    drain: Callable[[], object] | None = None
    """Ends the source early; any thread may call it. ``None`` for a queue."""
    source: AnyQueue | None = None
    """The queue that it takes from, if it is one."""


class ExampleSink(Protocol):
    """The destination of examples. Only one worker calls it, one call at a time."""

    def accept(self, example: Any) -> Iterable[Delivery]:
        """Take an example; return what to enqueue now, and where."""

    def finish(self) -> Iterable[Delivery]:
        """End with the source; return what is left to enqueue."""

    def refused(self, queue: AnyQueue, error: QueueClosedError) -> None:
        """Handle the closing of a queue that had no room. Raise `consumer_left` to end the
        worker."""

    def is_over(self) -> bool:
        """Return whether no more examples are needed."""

    def ended(self, cause: BaseException | None) -> None:
        """Clean up; nothing more will be enqueued. The argument is the failure that ended it."""


class QueueSink:
    """The sink that enqueues every example unchanged."""

    def __init__(self, queue: AnyQueue) -> None:
        self._queue = queue

    def accept(self, example: Any) -> Iterable[Delivery]:
        return ((self._queue, example),)

    def finish(self) -> Iterable[Delivery]:
        return ()

    def refused(self, queue: AnyQueue, error: QueueClosedError) -> None:
        raise consumer_left(queue) from error.__cause__

    def is_over(self) -> bool:
        return self._queue.is_closed()

    def ended(self, cause: BaseException | None) -> None:
        """Do nothing: the runner closes the queue."""


def fill(
    queue: AnyQueue,
    source: Any,
    coord: AnyCoordinator,
    function: Callable[..., Any] | None,
    options: UnseededOptions,
) -> PreparationInfo | None:
    """Start the workers that put the examples of a source into a queue.

    Args:
        queue: receives the examples. It is closed when the source has ended.
        source: any iterable, async iterable, queue or stream.
        coord: the coordinator to start the workers in.
        function: prepares each example, if there is one; see `prepare`.
        options: what else `prepare` takes.

    Returns:
        The runner that `prepare` made, if there is a function.
    """
    if function is None:
        refuse_options(options)
        start_worker(coord, queue, _mover(source, queue) or forwarder(source, QueueSink(queue)))
        return None
    if isinstance(coord, aioqueue.Coordinator):
        runner = prepare(source, function, into=queue.aio, **options)
        coord.start(runner)
        return runner
    blocking_runner = prepare(source, function, into=queue.sync, **options)
    coord.start(blocking_runner)
    return blocking_runner


def refuse_options(options: UnseededOptions) -> None:
    """Refuse options of `prepare` if there is no function."""
    if options:
        raise InvalidArgumentError(
            f"{', '.join(options)}: got without a function; expected `function` too, because these"
            " options concern its calls"
        )


def start_worker(
    coord: AnyCoordinator,
    queue: AnyQueue,
    forwarding: Forwarder,
    *,
    close_op: Callable[[], object] | None = None,
    cancel_op: Callable[[], object] | None = None,
) -> None:
    """Start one worker that fills a queue. An `OutOfRangeError` ends it without a failure."""
    options: dict[str, Any] = {
        "close_op": close_op,
        "cancel_op": cancel_op,
        "source": forwarding.source,
    }
    op: Any = forwarding.op
    op.__name__ = queue.name  # workers are named after their function, and the user chose this name
    if isinstance(coord, aioqueue.Coordinator):
        runner = aioqueue.QueueRunner(queue, op, **options)
        runner._drain_source = forwarding.drain or runner._drain_source
        coord.start(runner)
    else:
        blocking_runner = sync.QueueRunner(queue, op, **options)
        blocking_runner._drain_source = forwarding.drain or blocking_runner._drain_source
        coord.start(blocking_runner)


def _mover(source: Any, queue: AnyQueue) -> Forwarder | None:
    """Return a worker that moves elements between queues of one kind, many at a time."""
    if not is_queue(source) or source.structure != queue.structure:
        return None
    if source.dtypes != queue.dtypes or source.shapes != queue.shapes:
        return None
    if source.dtypes is not None and not has_fixed_shapes(source):
        return None  # batches of such a queue would be padded, or there are none
    elements = source.aio

    async def move() -> None:
        batch = await elements.dequeue_up_to(_AT_ONCE, max_wait=0)  # what is there, at least one
        try:
            await queue.aio.enqueue_many(batch, copy=False)
        except QueueClosedError as error:
            raise consumer_left(queue) from error.__cause__

    return Forwarder(move, source=source)


def consumer_left(queue: AnyQueue) -> OutOfRangeError:
    """Return the error that quietly ends a worker whose consumer has closed the queue."""
    return OutOfRangeError(f"'{queue.name}' was closed, so no more examples are needed")


def has_fixed_shapes(queue: AnyQueue) -> bool:
    return queue.shapes is not None and not any(None in shape for shape in queue.shapes)


def forwarder(source: Any, sink: ExampleSink, *, closes: bool = False) -> Forwarder:
    """Return a worker that forwards a whole source to a sink, in one call.

    Args:
        source: any iterable, async iterable, queue or stream.
        sink: the destination.
        closes: whether the source is a queue, or a stream from one, that a stop is sure to close,
            so that a thread may wait for it.

    Raises:
        InvalidArgumentError: it is not a source.
    """
    if is_queue(source):
        if closes:
            return Forwarder(_forward(source.sync.dequeue, sink), source=source)
        return Forwarder(_forward_async(source.aio.dequeue, sink), source=source)
    if isinstance(source, BaseStream):
        take, take_async = source._takers()
        # Its queue is closed by its own workers, and not by ours.
        if closes:
            return Forwarder(_forward(take, sink), _no_drain)
        return Forwarder(_forward_async(take_async, sink), _no_drain)
    if isinstance(source, str | bytes):
        raise InvalidArgumentError(
            f"source: got {source!r}, a string; expected an iterable of examples. For a single"
            " example, pass [string]"
        )
    stop_flag = _StopFlag()
    if isinstance(source, Iterable):
        return Forwarder(_from_iterable(source, sink, stop_flag), stop_flag.set)
    if isinstance(source, AsyncIterable):
        return Forwarder(_from_async_iterable(source, sink, stop_flag), stop_flag.set)
    raise InvalidArgumentError(
        f"source: got {source!r}; expected an iterable, an async iterable or a queue"
    )


class _StopFlag:
    """Whether to take nothing more from a source. An attribute is read faster than an `Event`."""

    __slots__ = ("is_set",)

    def __init__(self) -> None:
        self.is_set = False

    def set(self) -> None:
        self.is_set = True


def _no_drain() -> None:
    pass


def _forward(take: Callable[[], Any], sink: ExampleSink) -> Callable[[], None]:
    """Return a thread's function that forwards what `take` returns until `OutOfRangeError`."""

    def forward() -> None:
        try:
            while not sink.is_over():
                try:
                    example = take()
                except OutOfRangeError:
                    for queue, element in _deliveries(sink.finish):
                        _put(sink, queue, element)
                    raise  # the runner closes the queue at an end, with the cause of this one
                for queue, element in _deliveries(sink.accept, example):
                    _put(sink, queue, element)
            raise OutOfRangeError("no more examples are needed")
        except OutOfRangeError as end:
            # Not after a failure: the runner closes the queue with it, and the coordinator has it.
            sink.ended(end.__cause__)
            raise

    return forward


def _deliveries(make: Callable[..., Iterable[Delivery]], *arguments: Any) -> Iterator[Delivery]:
    """Yield what a sink has to enqueue. Its failures do not count as the end of the source."""
    try:
        yield from make(*arguments)
    except GeneratorExit:
        raise
    except BaseException as error:
        # Nothing is awaited here, so a cancellation does not come from the calling task.
        raise as_failure(  # noqa: B904  # it carries its cause
            error, f"the stage raised {describe_exception(error)}"
        )


def _failure_or_end(error: BaseException) -> BaseException:
    """Return the end of a source as one exception, or its failure; keep a task's cancellation."""
    if classify(error, (OutOfRangeError,)) is Classification.END:
        end = OutOfRangeError("the source has ended")
        end.__cause__ = cause_of(error)
        return end
    if isinstance(error, Exception):
        return error
    return as_failure(error, f"the source raised {describe_exception(error)}")


def _put(sink: ExampleSink, queue: AnyQueue, element: Any) -> None:
    try:
        queue.sync.enqueue(element)
    except QueueClosedError as error:
        sink.refused(queue, error)


def _from_iterable(
    source: Iterable[Any], sink: ExampleSink, stop_flag: _StopFlag
) -> Callable[[], None]:
    def forward() -> None:
        iterator = source.run() if isinstance(source, Source) else iter(source)

        def take() -> Any:
            if stop_flag.is_set:
                raise OutOfRangeError("the source is drained")
            # An iterator may fill one buffer again and again, and this example waits for its batch.
            try:
                example = next(iterator)
                return copy_if_shared(example)
            except StopIteration:
                raise OutOfRangeError("the source has ended") from None
            except BaseException as error:
                raise _failure_or_end(error)  # noqa: B904  # the user's own cause matters

        try:
            _forward(take, sink)()
        finally:
            try:
                close(iterator, source)
            except BaseException as error:
                raise failure_of_clean_up(error)  # noqa: B904

    return forward


def _forward_async(
    take: Callable[[], Awaitable[Any]], sink: ExampleSink
) -> Callable[[], Awaitable[None]]:
    """Return a task's function that forwards what `take` returns until `OutOfRangeError`."""

    async def forward() -> None:
        try:
            while not sink.is_over():
                try:
                    example = await take()
                except OutOfRangeError:
                    for queue, element in _deliveries(sink.finish):
                        await _put_async(sink, queue, element)
                    raise
                for queue, element in _deliveries(sink.accept, example):
                    await _put_async(sink, queue, element)
            raise OutOfRangeError("no more examples are needed")
        except OutOfRangeError as end:
            sink.ended(end.__cause__)
            raise

    return forward


async def _put_async(sink: ExampleSink, queue: AnyQueue, element: Any) -> None:
    try:
        await queue.aio.enqueue(element)
    except QueueClosedError as error:
        sink.refused(queue, error)


def _from_async_iterable(
    source: AsyncIterable[Any], sink: ExampleSink, stop_flag: _StopFlag
) -> Callable[[], Awaitable[None]]:
    async def forward() -> None:
        iterator = aiter(source)

        async def take() -> Any:
            if stop_flag.is_set:
                raise OutOfRangeError("the source is drained")
            try:
                example = await next_of(iterator, Call())
                return copy_if_shared(example)
            except StopAsyncIteration:
                raise OutOfRangeError("the source has ended") from None
            except Exception as error:  # a cancellation is not an Exception
                raise _failure_or_end(error)  # noqa: B904

        try:
            await _forward_async(take, sink)()
        finally:
            try:
                await aclose(iterator, source)
            except Exception as error:
                raise failure_of_clean_up(error)  # noqa: B904

    return forward


def is_queue(source: Any) -> TypeGuard[AnyQueue]:
    return isinstance(source, AsyncQueue | sync.BlockingQueue)


class _NoPositions:
    def __repr__(self) -> str:
        return "no positions"


NO_POSITIONS: Final[Any] = _NoPositions()
"""The value of ``resume`` if the user did not pass it."""
