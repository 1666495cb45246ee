"""Workers that carry examples from a source to a batcher, and batch streams that can be resumed.

An `ExampleSink`, or *stage*, takes one example at a time and returns what to enqueue where. For a
plain iterable, whose ``next`` may block, a thread carries the examples. For an async iterable, or a
queue or stream that others fill, a task does: so a stop need not wait for an element that never
arrives.

`resumable` makes streams with positions. A pipeline does the work behind them.
"""

from __future__ import annotations

import threading
from collections.abc import (
    AsyncIterable,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Final, NamedTuple, Protocol, TypeGuard

import numpy as np

import aioqueue
from aioqueue import AsyncQueue, InvalidArgumentError, OutOfRangeError, QueueClosedError, sync
from aioqueue.coordination.classify import (
    Classification,
    as_failure,
    cause_of,
    classify,
)
from aioqueue.core.elements.ownership import copy_if_shared
from aioqueue.errors import describe_exception
from aioqueue.pipeline.stages.base import BaseStage
from aioqueue.pipeline.stages.prepare import Prepare
from aioqueue.pipeline.streams.stream import (
    AnyCoordinator,
    AnyQueue,
    AsyncBatchStream,
    BatchStream,
    PreparationInfo,
    resumable_stream,
)
from aioqueue.pipeline.streams.streaming import CarryStage, Streaming
from aioqueue.sources.sequences import items
from aioqueue.sources.source import Source
from aioqueue.sources.source_reader import aclose, close, failure_of_clean_up, next_of
from aioqueue.system.locks import synchronized
from aioqueue.workers.options import UnseededOptions
from aioqueue.workers.runner import prepare

Delivery = tuple[AnyQueue, Any]

_AT_ONCE: Final = 64
"""How many elements are moved from queue to queue at once, if there are enough."""


class SourceCarrier(NamedTuple):
    """The function of a worker that carries a source to a stage."""

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
        """Handle the closing of a queue that had no room. Raise `consumer_gone` to end the
        worker."""

    def is_over(self) -> bool:
        """Return whether the stage has no use for more examples."""

    def ended(self, cause: BaseException | None) -> None:
        """Clean up; nothing more will be enqueued. The argument is the failure that ended it."""


class QueueSink:
    """The stage that enqueues every example unchanged."""

    def __init__(self, queue: AnyQueue) -> None:
        self._queue = queue

    def accept(self, example: Any) -> Iterable[Delivery]:
        return ((self._queue, example),)

    def finish(self) -> Iterable[Delivery]:
        return ()

    def refused(self, queue: AnyQueue, error: QueueClosedError) -> None:
        raise consumer_gone(queue) from error.__cause__

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
        start(coord, queue, _moving(source, queue) or pump(source, QueueSink(queue)))
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


def start(
    coord: AnyCoordinator,
    queue: AnyQueue,
    carrying: SourceCarrier,
    *,
    close_op: Callable[[], object] | None = None,
    cancel_op: Callable[[], object] | None = None,
) -> None:
    """Start one worker that fills a queue. An `OutOfRangeError` ends it without a failure."""
    options: dict[str, Any] = {
        "close_op": close_op,
        "cancel_op": cancel_op,
        "source": carrying.source,
    }
    if isinstance(coord, aioqueue.Coordinator):
        runner = aioqueue.QueueRunner(queue, carrying.op, **options)
        runner._drain_source = carrying.drain or runner._drain_source
        coord.start(runner)
    else:
        blocking_runner = sync.QueueRunner(queue, carrying.op, **options)
        blocking_runner._drain_source = carrying.drain or blocking_runner._drain_source
        coord.start(blocking_runner)


def _moving(source: Any, queue: AnyQueue) -> SourceCarrier | None:
    """Return a worker that moves elements between queues of one kind, many at a time."""
    if not is_queue(source) or source.structure != queue.structure:
        return None
    if source.dtypes != queue.dtypes or source.shapes != queue.shapes:
        return None
    if source.dtypes is not None and not has_fixed_shapes(source):
        return None  # batches of such a queue would be padded, or there are none
    elements = source.aio

    async def move() -> None:
        batch = await elements.dequeue_up_to(_AT_ONCE, max_wait=0)
        try:
            await queue.aio.enqueue_many(batch, copy=False)
        except QueueClosedError as error:
            raise consumer_gone(queue) from error.__cause__

    return SourceCarrier(move, source=source)


def consumer_gone(queue: AnyQueue) -> OutOfRangeError:
    """Return the error that quietly ends a worker whose consumer has closed the queue."""
    return OutOfRangeError(f"'{queue.name}' was closed, so no more examples are needed")


def has_fixed_shapes(queue: AnyQueue) -> bool:
    """Return whether each component of the queue's elements has one fixed shape."""
    return queue.shapes is not None and not any(None in shape for shape in queue.shapes)


def pump(source: Any, stage: ExampleSink, *, closes: bool = False) -> SourceCarrier:
    """Return a worker that carries a whole source to a stage, in one call.

    Args:
        source: any iterable, async iterable, queue or stream.
        stage: the destination.
        closes: whether the source is a queue, or a stream from one, that a stop is sure to close,
            so that a thread may wait for it.

    Raises:
        InvalidArgumentError: it is not a source.
    """
    if is_queue(source):
        if closes:
            return SourceCarrier(_pump(source.sync.dequeue, stage), source=source)
        return SourceCarrier(_pump_async(source.aio.dequeue, stage), source=source)
    if isinstance(source, AsyncBatchStream | BatchStream):
        # The workers that fill the stream's queue end it.
        if closes:
            return SourceCarrier(_pump(source.sync._next, stage), _nothing)
        return SourceCarrier(_pump_async(source.aio._next, stage), _nothing)
    if isinstance(source, str | bytes):
        raise InvalidArgumentError(
            f"source: got {source!r}, a string; expected an iterable of examples. For a single"
            " example, pass [string]"
        )
    tap = _Tap()
    if isinstance(source, Iterable):
        return SourceCarrier(_pump_iterable(source, stage, tap), tap.shut)
    if isinstance(source, AsyncIterable):
        return SourceCarrier(_pump_async_iterable(source, stage, tap), tap.shut)
    raise InvalidArgumentError(
        f"source: got {source!r}; expected an iterable, an async iterable or a queue"
    )


class _Tap:
    """Whether to take more from a source."""

    __slots__ = ("is_shut",)

    def __init__(self) -> None:
        self.is_shut = False

    def shut(self) -> None:
        """Take nothing more."""
        self.is_shut = True


def _nothing() -> None:
    """Do nothing."""


def _pump(take: Callable[[], Any], stage: ExampleSink) -> Callable[[], None]:
    """Return a thread's function that carries what `take` returns until `OutOfRangeError`."""

    def pour() -> None:
        try:
            while not stage.is_over():
                try:
                    example = take()
                except OutOfRangeError:
                    for queue, element in _made(stage.finish):
                        _put(stage, queue, element)
                    raise
                for queue, element in _made(stage.accept, example):
                    _put(stage, queue, element)
            raise OutOfRangeError("no more examples are needed")
        except OutOfRangeError as end:
            stage.ended(end.__cause__)
            raise

    return pour


def _made(make: Callable[..., Iterable[Delivery]], *arguments: Any) -> Iterator[Delivery]:
    """Yield what a stage has to enqueue. Its failures do not count as the end of the source."""
    try:
        yield from make(*arguments)
    except GeneratorExit:
        raise
    except BaseException as error:
        # Nothing is awaited here, so a cancellation does not come from the calling task.
        raise as_failure(  # noqa: B904  # it carries its cause
            error, f"the stage raised {describe_exception(error)}"
        )


def _what_the_source_raised(error: BaseException) -> BaseException:
    """Return the end of a source as one exception, or its failure; keep a task's cancellation."""
    if classify(error, (OutOfRangeError,)) is Classification.END:
        end = OutOfRangeError("the source has ended")
        end.__cause__ = cause_of(error)
        return end
    if isinstance(error, Exception):
        return error
    return as_failure(error, f"the source raised {describe_exception(error)}")


def _put(stage: ExampleSink, queue: AnyQueue, element: Any) -> None:
    try:
        queue.sync.enqueue(element)
    except QueueClosedError as error:
        stage.refused(queue, error)


def _pump_iterable(source: Iterable[Any], stage: ExampleSink, tap: _Tap) -> Callable[[], None]:
    def pour() -> None:
        iterator = source.run() if isinstance(source, Source) else iter(source)

        def take() -> Any:
            if tap.is_shut:
                raise OutOfRangeError("the source is drained")
            try:
                example = next(iterator)
                return copy_if_shared(example)
            except StopIteration:
                raise OutOfRangeError("the source has ended") from None
            except BaseException as error:
                raise _what_the_source_raised(error)  # noqa: B904  # the user's own cause matters

        try:
            _pump(take, stage)()
        finally:
            try:
                close(iterator, source)
            except BaseException as error:
                raise failure_of_clean_up(error)  # noqa: B904

    return pour


def _pump_async(
    take: Callable[[], Awaitable[Any]], stage: ExampleSink
) -> Callable[[], Awaitable[None]]:
    """Return a task's function that carries what `take` returns until `OutOfRangeError`."""

    async def pour() -> None:
        try:
            while not stage.is_over():
                try:
                    example = await take()
                except OutOfRangeError:
                    for queue, element in _made(stage.finish):
                        await _put_async(stage, queue, element)
                    raise
                for queue, element in _made(stage.accept, example):
                    await _put_async(stage, queue, element)
            raise OutOfRangeError("no more examples are needed")
        except OutOfRangeError as end:
            stage.ended(end.__cause__)
            raise

    return pour


async def _put_async(stage: ExampleSink, queue: AnyQueue, element: Any) -> None:
    try:
        await queue.aio.enqueue(element)
    except QueueClosedError as error:
        stage.refused(queue, error)


def _pump_async_iterable(
    source: AsyncIterable[Any], stage: ExampleSink, tap: _Tap
) -> Callable[[], Awaitable[None]]:
    async def pour() -> None:
        iterator = aiter(source)

        async def take() -> Any:
            if tap.is_shut:
                raise OutOfRangeError("the source is drained")
            try:
                example = await next_of(iterator)
                return copy_if_shared(example)
            except StopAsyncIteration:
                raise OutOfRangeError("the source has ended") from None
            except Exception as error:  # a cancellation is not an Exception
                raise _what_the_source_raised(error)  # noqa: B904

        try:
            await _pump_async(take, stage)()
        finally:
            try:
                await aclose(iterator, source)
            except Exception as error:
                raise failure_of_clean_up(error)  # noqa: B904

    return pour


def is_queue(source: Any) -> TypeGuard[AnyQueue]:
    """Return whether a source is a queue, of either face."""
    return isinstance(source, AsyncQueue | sync.BlockingQueue)


def checked_coordinator(coord: Any) -> AnyCoordinator:
    """Check the coordinator that workers are to be started in."""
    if isinstance(coord, aioqueue.Coordinator | sync.Coordinator):
        return coord
    raise InvalidArgumentError(
        f"coord: got {coord!r}; expected an aioqueue.Coordinator, for the async face, or an"
        " aioqueue.sync.Coordinator, for the thread face"
    )


class _NoPositions:
    def __repr__(self) -> str:
        return "no positions"


NO_POSITIONS: Final[Any] = _NoPositions()
"""The value of ``resume`` if the user did not pass it."""


class Fitting:
    """Converts examples and batches as a queue with dtypes and shapes does. Thread-safe.

    Args:
        queue: an empty queue without a limit, used only for this.
    """

    def __init__(self, queue: AnyQueue) -> None:
        self._queue: sync.BlockingQueue = queue.sync
        self._lock = threading.RLock()  # each element is put in and taken out under the lock

    @synchronized
    def example(self, example: Any) -> Any:
        """Return a copy of an example with these dtypes and shapes.

        Raises:
            InvalidArgumentError: the example does not fit.
        """
        self._queue.enqueue_nowait(example)
        return self._queue.dequeue_nowait()

    @synchronized
    def batch(self, examples: list[Any]) -> Any:
        """Return a batch of examples that fit."""
        for example in examples:
            self._queue.enqueue_nowait(example)
        return self._queue.dequeue_many(len(examples))


def resumable(
    source: Any,
    stages: Sequence[BaseStage],
    *,
    coord: AnyCoordinator,
    function: Any,
    options: UnseededOptions,
    buffer_size: int,
    name: str,
    resume: Mapping[str, Any] | None,
    fitting: Fitting | None = None,
) -> AsyncBatchStream[Any] | BatchStream[Any]:
    """Make a stream that can be resumed.

    Args:
        source: what has positions.
        stages: what makes batches of examples.
        coord: starts the workers.
        function: prepares each example, if there is one.
        options: the other options of `prepare`.
        buffer_size: prepared items that may wait.
        name: the name in messages and in the names of workers.
        resume: the position to continue from; ``None`` to begin at the start.
        fitting: converts examples to dtypes and shapes.

    Raises:
        InvalidArgumentError: an argument is wrong, or the position does not fit the source.
        RuntimeError: the coordinator's block has not been entered.
    """
    known = _with_positions(source, options)
    first: BaseStage
    if function is None:
        refuse_options(options)
        first = CarryStage(buffer_size)
    else:
        first = Prepare(function, buffer_size, {"ordered": False, **options})
    pipe = Streaming(
        known,
        [first, *stages],
        coord,
        name=name,
        fit=None if fitting is None else fitting.example,
        resume=resume,
    )
    return resumable_stream(pipe, is_async=isinstance(coord, aioqueue.Coordinator))


def _with_positions(source: Any, options: Mapping[str, Any]) -> Source[Any]:
    """Return the source, if it is repeatable and so has positions.

    Raises:
        InvalidArgumentError: it has none.
    """
    if isinstance(source, Source) and source._is_repeatable and not source._is_async:
        return source
    if isinstance(source, Sequence | np.ndarray) and not isinstance(source, str | bytes):
        return items(source, 1, seed=options.get("seed"))
    if is_queue(source) or isinstance(source, AsyncBatchStream | BatchStream):
        why = (
            "which has no positions, because others may fill and read it too; expected the source"
            " that fills it, with its function as function=..."
        )
    else:
        why = (
            "which has no positions; expected a source that repeats exactly: a list, items(...), a"
            " reader of files, or a mixture of these"
        )
    raise InvalidArgumentError(f"source: got {source!r} with resume, {why}")
