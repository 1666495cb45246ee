"""How examples get from a source into a stage, and which worker carries them.

A *stage* takes examples one at a time and says what is to be enqueued where. Here is what carries
them to it: a thread of its own for a plain iterable, whose ``next`` may block; a task for an async
iterable, and for a queue or stream that somebody else fills, so that a stop need not wait for an
element which never comes.

Batchers whose streams can be resumed: what they ask of the pipeline, which does the work.
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
    describe_exception,
)
from aioqueue.inputs.core.iteration import (
    AnyCoordinator,
    AnyQueue,
    AsyncBatchStream,
    BatchStream,
    PreparationInfo,
    resumable_stream,
)
from aioqueue.inputs.options import UnseededOptions
from aioqueue.inputs.ownership import private
from aioqueue.inputs.pipeline.description import BaseStage
from aioqueue.inputs.pipeline.stages import Prepare
from aioqueue.inputs.pipeline.streaming import CarryStage, Streaming
from aioqueue.inputs.prepare.runner import prepare
from aioqueue.inputs.prepare.source_reader import aclose, close, failure_of_clean_up, next_of
from aioqueue.inputs.sources.sequences import items
from aioqueue.inputs.sources.source import Source
from aioqueue.locks import guarded

__all__ = (
    "NO_POSITIONS",
    "ExampleSink",
    "Fitting",
    "QueueSink",
    "SourceCarrier",
    "checked_coordinator",
    "consumer_gone",
    "fill",
    "has_fixed_shapes",
    "is_queue",
    "pump",
    "refuse_options",
    "resumable",
    "start",
)


Delivery = tuple[AnyQueue, Any]

_AT_ONCE: Final = 64
"""Elements that are moved from queue to queue together, if as many are there."""


class SourceCarrier(NamedTuple):
    """What a worker does that carries a source to where it is to go."""

    op: Callable[[], Any]
    drain: Callable[[], object] | None = None
    """Lets the source end; any thread may ask. ``None`` for a queue."""
    source: AnyQueue | None = None
    """The queue that it is taken from, if it is one."""


class ExampleSink(Protocol):
    """What examples are carried to. One worker calls it, and no two at once."""

    def accept(self, example: Any) -> Iterable[Delivery]:
        """Take one more example; return what is now to be enqueued, and where."""

    def finish(self) -> Iterable[Delivery]:
        """The source has ended; return what is left to be enqueued."""

    def refused(self, queue: AnyQueue, error: QueueClosedError) -> None:
        """A queue was closed before something could be put in. Raise `consumer_gone` to end
        here."""

    def is_over(self) -> bool:
        """Whether more examples are of no use."""

    def ended(self, cause: BaseException | None) -> None:
        """Nothing more will be enqueued; the failure is the one that ended the source."""


class QueueSink:
    """The stage that enqueues every example as it is."""

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
        """The runner closes the queue."""


def fill(
    queue: AnyQueue,
    source: Any,
    coord: AnyCoordinator,
    function: Callable[..., Any] | None,
    options: UnseededOptions,
) -> PreparationInfo | None:
    """Start the workers that put the examples of a source into a queue.

    Args:
        queue: it is closed when the source has ended.
        source: any iterable, async iterable, queue or stream.
        coord: what they are started in.
        function: prepares each example, if there is one; see `prepare`.
        options: what else `prepare` takes.

    Returns:
        The runner that `prepare` has made, if there is a function.
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
    """There is no function that options could be about."""
    if options:
        raise InvalidArgumentError(
            f"{', '.join(options)}: got without a function; expected `function`, whose calls"
            " this is about"
        )


def start(
    coord: AnyCoordinator,
    queue: AnyQueue,
    carrying: SourceCarrier,
    *,
    close_op: Callable[[], object] | None = None,
    cancel_op: Callable[[], object] | None = None,
) -> None:
    """Start one worker that fills a queue. It ends quietly by an `OutOfRangeError`."""
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
    """What a worker does that moves elements between queues of one kind, as many as are there."""
    if not is_queue(source) or source.names != queue.names:
        return None
    if source.dtypes != queue.dtypes or source.shapes != queue.shapes:
        return None
    if source.dtypes is not None and not has_fixed_shapes(source):
        return None  # its batches would be padded, or cannot be taken
    elements = source.aio

    async def move() -> None:
        batch = await elements.dequeue_up_to(_AT_ONCE, max_wait=0)
        try:
            await queue.aio.enqueue_many(batch, copy=False)
        except QueueClosedError as error:
            raise consumer_gone(queue) from error.__cause__

    return SourceCarrier(move, source=source)


def consumer_gone(queue: AnyQueue) -> OutOfRangeError:
    """What ends a worker quietly when what it fills was closed: its consumer has left."""
    return OutOfRangeError(f"'{queue.name}' was closed, so no more examples are needed")


def has_fixed_shapes(queue: AnyQueue) -> bool:
    """Whether the elements of a queue are arrays of one shape per component."""
    return queue.shapes is not None and not any(None in shape for shape in queue.shapes)


def pump(source: Any, stage: ExampleSink, *, closes: bool = False) -> SourceCarrier:
    """What a worker does that carries a source to a stage, all of it in one call.

    Args:
        source: any iterable, async iterable, queue or stream.
        stage: where to.
        closes: whether the source is a queue, or a stream from one, that is sure to be closed at a
            stop, so that a thread may wait for it.

    Raises:
        InvalidArgumentError: the source is none.
    """
    if is_queue(source):
        if closes:
            return SourceCarrier(_pump(source.sync.dequeue, stage), source=source)
        return SourceCarrier(_pump_async(source.aio.dequeue, stage), source=source)
    if isinstance(source, AsyncBatchStream | BatchStream):
        # Whoever fills what it takes from ends it.
        if closes:
            return SourceCarrier(_pump(source.sync._next, stage), _nothing)
        return SourceCarrier(_pump_async(source.aio._next, stage), _nothing)
    if isinstance(source, str | bytes):
        raise InvalidArgumentError(
            f"source: got {source!r}; expected an iterable of examples, which a string is not"
            " meant to be: [string], if it is"
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
    """Whether more is taken from a source."""

    __slots__ = ("is_shut",)

    def __init__(self) -> None:
        self.is_shut = False

    def shut(self) -> None:
        """Take no more."""
        self.is_shut = True


def _nothing() -> None:
    """There is nothing to be done."""


def _pump(take: Callable[[], Any], stage: ExampleSink) -> Callable[[], None]:
    """Carry on a thread what `take` gives until it raises `OutOfRangeError`."""

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
    """What a stage has to deliver. A failure of it, or of a function that it calls, is no end."""
    try:
        yield from make(*arguments)
    except GeneratorExit:
        raise
    except BaseException as error:
        # Nothing is awaited in there, so a cancellation is none of the task that calls.
        raise as_failure(  # noqa: B904  # it says its cause
            error, f"the stage raised {describe_exception(error)}"
        )


def _what_the_source_raised(error: BaseException) -> BaseException:
    """The end of a source as one exception, or its failure; the cancellation of a task as it is."""
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
                return private(example)
            except StopIteration:
                raise OutOfRangeError("the source has ended") from None
            except BaseException as error:
                raise _what_the_source_raised(error)  # noqa: B904  # the cause is the user's affair

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
    """Carry in a task what `take` gives until it raises `OutOfRangeError`."""

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
                return private(example)
            except StopAsyncIteration:
                raise OutOfRangeError("the source has ended") from None
            except Exception as error:  # cancellations have been told apart
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
    """Whether a source is a queue, by either face."""
    return isinstance(source, AsyncQueue | sync.BlockingQueue)


def checked_coordinator(coord: Any) -> AnyCoordinator:
    """Check what workers are to be started in."""
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
"""In the place of ``resume``: nothing was said of it."""


class Fitting:
    """Makes of examples and batches what a queue with dtypes and shapes makes of them. Thread-safe.

    Args:
        queue: an empty one without a limit, for this alone.
    """

    def __init__(self, queue: AnyQueue) -> None:
        self._queue: sync.BlockingQueue = queue.sync
        self._lock = threading.RLock()  # what is put in is taken out at once

    @guarded
    def example(self, example: Any) -> Any:
        """A copy with these dtypes and shapes.

        Raises:
            InvalidArgumentError: it does not fit.
        """
        self._queue.enqueue_nowait(example)
        return self._queue.dequeue_nowait()

    @guarded
    def batch(self, examples: list[Any]) -> Any:
        """Examples that fit, as a batch."""
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
    """A stream that can be resumed.

    Args:
        source: what has positions.
        stages: what makes batches of examples.
        coord: starts the workers.
        function: prepares each example, if there is one.
        options: what else `prepare` takes.
        buffer_size: how many prepared items may wait.
        name: what messages and worker names call it.
        resume: where to begin; ``None`` for the beginning.
        fitting: makes examples fit dtypes and shapes.

    Raises:
        InvalidArgumentError: an argument is wrong, or the position does not fit.
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
    """The source, if it can be gone through again, and so has positions.

    Raises:
        InvalidArgumentError: it has none.
    """
    if isinstance(source, Source) and source._is_repeatable and not source._is_async:
        return source
    if isinstance(source, Sequence | np.ndarray) and not isinstance(source, str | bytes):
        return items(source, 1, seed=options.get("seed"))
    if is_queue(source) or isinstance(source, AsyncBatchStream | BatchStream):
        why = (
            "whose elements do not say where they come from, and which others may fill and read;"
            " expected what fills it: the source, and its function as function=..."
        )
    else:
        why = (
            "of which there is no position; expected what is sure to give the same again: a list,"
            " items(...), a reader of files, or a mixture of such"
        )
    raise InvalidArgumentError(f"source: got {source!r} with resume, {why}")
