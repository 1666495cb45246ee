"""`batch` and `shuffle_batch`: examples from a source, in batches of one size."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack, overload

import aioqueue
from aioqueue import FIFOQueue, InvalidArgumentError, PaddingFIFOQueue, RandomShuffleQueue, sync
from aioqueue.base.arguments import checked_count, checked_flag, checked_seconds
from aioqueue.coordination.classify import as_failure
from aioqueue.core.elements.philox import Seed, resolve_seed
from aioqueue.core.elements.trees import mapped
from aioqueue.errors import counted, describe_exception
from aioqueue.pipeline.batches.collation import Collator, examples_in
from aioqueue.pipeline.batches.layout import Objects, checked_objects
from aioqueue.pipeline.stages.batch import Batch
from aioqueue.pipeline.stages.draw import Draw
from aioqueue.pipeline.stream import (
    AnyCoordinator,
    AnyQueue,
    AsyncBatchStream,
    BatchStream,
    PreparationInfo,
    QueuePipe,
    checked_coordinator,
    stream_of,
)
from aioqueue.pipeline.streams.forward import (
    NO_POSITIONS,
    QueueSink,
    fill,
    forwarder,
    has_fixed_shapes,
    is_queue,
    start_worker,
)
from aioqueue.pipeline.streams.resumable import Fitting, resumable
from aioqueue.system.locks import synchronized
from aioqueue.workers.options import PrepareOptions, UnseededOptions
from aioqueue.workers.statistics import BatchStatistics


class BatchPipe(QueuePipe):
    """The pipe that takes examples from a queue and makes batches of them.

    Args:
        queue: the queue of the examples.
        size: the number of examples per batch.
        drop_remainder: whether to drop a smaller last batch.
        max_wait: seconds after which to make a smaller batch.
        owns: whether the queue belongs to this pipe, and closes with it.
        runner: fills the queue, if there is a function.
        pad: whether to pad objects when they are stacked.
        objects: which values to keep as objects then.
    """

    def __init__(
        self,
        queue: AnyQueue,
        size: int,
        *,
        drop_remainder: bool,
        max_wait: float | None,
        owns: bool,
        runner: PreparationInfo | None = None,
        pad: bool = False,
        objects: Objects = False,
    ) -> None:
        self.queue: AnyQueue = queue
        self.examples: AnyQueue | None = queue
        self.runner: PreparationInfo | None = runner
        self.size: int | None = size
        self.drop_remainder = drop_remainder
        self.max_wait = max_wait
        self._owns = owns
        is_typed = queue.dtypes is not None
        self._collate = (
            None if is_typed else Collator(pad=pad, objects=objects, pad_option="dynamic_pad")
        )
        self._lock = threading.RLock()  # guards the counts
        self._batches = 0
        self._examples = 0

    def deliver(self, taken: Any) -> Any:
        """Stack the examples, if they are objects."""
        n = examples_in(taken) if self._collate is None else len(taken)
        made = taken if self._collate is None else _collated(self._collate, taken)
        self._count(n)
        return made

    @synchronized
    def _count(self, examples: int) -> None:
        self._batches += 1
        self._examples += examples

    @synchronized
    def statistics(self) -> BatchStatistics:
        return BatchStatistics(self._batches, self._examples, self.queue.size())

    def close(self) -> None:
        if self._owns:
            self.queue.close(cancel_pending_enqueues=True)

    def describe(self) -> str:
        assert self.size is not None
        return f"of {counted(self.size, 'example')} from {self.queue!r}"


def _collated(collate: Collator, examples: Any) -> Any:
    """Make a batch. Nothing is awaited meanwhile: so a cancellation that an example raises (in its
    ``__array__``, for example) is a failure, and not a cancellation of the calling task."""
    try:
        return collate(examples)
    except BaseException as error:
        failure = as_failure(error, f"an example raised {describe_exception(error)}")
        if failure is error:
            del failure  # its traceback has this frame: that would be a circle
            raise
        try:
            raise failure  # it carries its cause
        finally:
            del failure


class PrefetchedBatches(QueuePipe):
    """The pipe that returns the batches of another pipe, which a worker makes ahead.

    Args:
        maker: makes the batches, in the worker.
        queue: holds the finished batches.
    """

    def __init__(self, maker: BatchPipe, queue: FIFOQueue) -> None:
        self.queue: AnyQueue = queue
        self.examples: AnyQueue | None = maker.queue
        self.runner: PreparationInfo | None = maker.runner
        self._maker = maker
        self._lock = threading.RLock()  # guards the counts
        self._batches = 0
        self._examples = 0

    @synchronized
    def deliver(self, taken: Any) -> Any:
        self._batches += 1
        self._examples += examples_in(taken)
        return taken

    @synchronized
    def statistics(self) -> BatchStatistics:
        made = self._maker.statistics()
        ready = made.examples - self._examples
        return BatchStatistics(self._batches, self._examples, made.waiting + ready)

    def close(self) -> None:
        self.queue.close(cancel_pending_enqueues=True)
        self._maker.close()

    def describe(self) -> str:
        return f"{self._maker.describe()}, {self.queue.size()} ready"


@overload
def batch(
    source: Any,
    batch_size: int,
    *,
    coord: aioqueue.Coordinator,
    function: Callable[..., Any] | None = None,
    capacity: int | None = None,
    dtypes: Any = None,
    shapes: Any = None,
    names: Any = None,
    dynamic_pad: bool = False,
    objects: bool | str | Sequence[str] = False,
    allow_smaller_final_batch: bool = True,
    max_wait: float | None = None,
    resume: Mapping[str, Any] | None = NO_POSITIONS,
    name: str = "batch",
    **options: Unpack[PrepareOptions],
) -> AsyncBatchStream[BatchStatistics]: ...


@overload
def batch(
    source: Any,
    batch_size: int,
    *,
    coord: sync.Coordinator,
    function: Callable[..., Any] | None = None,
    capacity: int | None = None,
    dtypes: Any = None,
    shapes: Any = None,
    names: Any = None,
    dynamic_pad: bool = False,
    objects: bool | str | Sequence[str] = False,
    allow_smaller_final_batch: bool = True,
    max_wait: float | None = None,
    resume: Mapping[str, Any] | None = NO_POSITIONS,
    name: str = "batch",
    **options: Unpack[PrepareOptions],
) -> BatchStream[BatchStatistics]: ...


def batch(
    source: Any,
    batch_size: int,
    *,
    coord: AnyCoordinator,
    function: Callable[..., Any] | None = None,
    capacity: int | None = None,
    dtypes: Any = None,
    shapes: Any = None,
    names: Any = None,
    dynamic_pad: bool = False,
    objects: bool | str | Sequence[str] = False,
    allow_smaller_final_batch: bool = True,
    max_wait: float | None = None,
    resume: Mapping[str, Any] | None = NO_POSITIONS,
    name: str = "batch",
    **options: Unpack[PrepareOptions],
) -> AsyncBatchStream[BatchStatistics] | BatchStream[BatchStatistics]:
    """Make batches of examples, in the order of the source.

    The call starts workers in the coordinator, whose face decides the face of the stream. The
    workers put examples into a queue, and the stream takes them out. A source that is a queue with
    batches of its own is read directly, without a worker, unless you pass a function, a capacity or
    dtypes.

    Without dtypes, the first example decides the components of all, their dtypes and their shapes
    (see `aioqueue.pipeline.batches.collation`). An example that waits until its batch is stacked
    is copied if others may write to its memory, such as a buffer that is reused. With dtypes and
    shapes, the worker that made an example copies it into a typed queue, which rejects it if it
    does not fit.

    Args:
        source: any iterable (iterated in a thread of its own), async iterable (in a task), queue of
            either face, or other stream.
        batch_size: examples per batch, >= 1.
        coord: an `aioqueue.Coordinator` whose block has been entered, or an
            `aioqueue.sync.Coordinator`.
        function: makes an example from an item, on several workers: see `prepare`.
        capacity: examples that may wait in the queue; ``None`` for twice the batch size.
        dtypes: one dtype per component, as for `FIFOQueue`; with ``None`` the first example
            decides.
        shapes: one shape per dtype; use ``None`` for a dimension that varies and is padded.
        names: one name per component, as for `FIFOQueue`.
        dynamic_pad: pad every dimension, with zeros, to the largest size in the batch.
        objects: which values are kept as objects, as for `Pipeline.batch`; not with dtypes.
        allow_smaller_final_batch: whether the last examples make a smaller batch if they are fewer;
            otherwise they stay in the queue.
        max_wait: seconds after which to make a batch of the examples that have arrived, at least
            one. Useful for services. ``None`` waits until the batch is full.
        resume: an earlier state of the stream (`AsyncBatchStream.state_dict`) to continue from;
            ``None`` to begin at the start. The stream keeps positions only if you pass one of them.
            Then the source must be a list or a repeatable source, batches are stacked when you ask
            for them, and you may watch ``queue`` but not read it.
        name: the name in messages and in the names of workers.
        options: the other options of `prepare`: ``workers``, ``where``, ``ordered`` and so on.

    Returns:
        An `AsyncBatchStream` or a `BatchStream`: an iterator over batches with the structure of an
        example. Each component is an array of shape ``(n, *shape)``: a batch of tuples is one tuple
        of arrays, and a batch of named tuples is one of their class. With ``dtypes``, these decide
        the structure, as for a `FIFOQueue`. (`AsyncQueue.batches` returns lists of the elements as
        they are, if the queue has no dtypes.)

    Raises:
        InvalidArgumentError: any argument is not as described.
        RuntimeError: the coordinator's block has not been entered.
    """
    checked_coordinator(coord)
    batch_size = checked_count(batch_size, "batch_size", least=1)
    kept = _checked_objects(objects, dtypes)
    max_wait = _checked_wait(dynamic_pad, allow_smaller_final_batch, max_wait)
    if resume is not NO_POSITIONS:
        _refuse_wait(max_wait)
        buffer_size = 2 * batch_size
        if capacity is not None:
            buffer_size = checked_count(capacity, "capacity", least=1)
        like = _example_queue(None, dtypes, shapes, names, pad=dynamic_pad, name=name)
        fitting = None if dtypes is None else Fitting(like)
        return resumable(
            source,
            [_batch_stage(batch_size, allow_smaller_final_batch, dynamic_pad, fitting, kept)],
            coord=coord,
            function=function,
            options=options,
            buffer_size=buffer_size,
            name=name,
            resume=resume,
            fitting=fitting,
        )
    as_it_is = is_queue(source) and function is None and capacity is None and dtypes is None
    if as_it_is and not options and _can_be_batched(source, dynamic_pad):
        queue: AnyQueue = source
        runner = None
    else:
        queue = _example_queue(
            2 * batch_size if capacity is None else capacity,
            dtypes,
            shapes,
            names,
            pad=dynamic_pad,
            name=name,
        )
        runner = fill(queue, source, coord, function, options)
    pipe = BatchPipe(
        queue,
        batch_size,
        drop_remainder=not allow_smaller_final_batch,
        max_wait=max_wait,
        owns=queue is not source,
        runner=runner,
        pad=dynamic_pad,
        objects=kept,
    )
    return stream_of(pipe, coord)


@overload
def shuffle_batch(
    source: Any,
    batch_size: int,
    *,
    coord: aioqueue.Coordinator,
    min_after_dequeue: int,
    capacity: int | None = None,
    seed: Seed = None,
    function: Callable[..., Any] | None = None,
    dtypes: Any = None,
    shapes: Any = None,
    names: Any = None,
    objects: bool | str | Sequence[str] = False,
    allow_smaller_final_batch: bool = True,
    resume: Mapping[str, Any] | None = NO_POSITIONS,
    name: str = "shuffle_batch",
    **options: Unpack[UnseededOptions],
) -> AsyncBatchStream[BatchStatistics]: ...


@overload
def shuffle_batch(
    source: Any,
    batch_size: int,
    *,
    coord: sync.Coordinator,
    min_after_dequeue: int,
    capacity: int | None = None,
    seed: Seed = None,
    function: Callable[..., Any] | None = None,
    dtypes: Any = None,
    shapes: Any = None,
    names: Any = None,
    objects: bool | str | Sequence[str] = False,
    allow_smaller_final_batch: bool = True,
    resume: Mapping[str, Any] | None = NO_POSITIONS,
    name: str = "shuffle_batch",
    **options: Unpack[UnseededOptions],
) -> BatchStream[BatchStatistics]: ...


def shuffle_batch(
    source: Any,
    batch_size: int,
    *,
    coord: AnyCoordinator,
    min_after_dequeue: int,
    capacity: int | None = None,
    seed: Seed = None,
    function: Callable[..., Any] | None = None,
    dtypes: Any = None,
    shapes: Any = None,
    names: Any = None,
    objects: bool | str | Sequence[str] = False,
    allow_smaller_final_batch: bool = True,
    resume: Mapping[str, Any] | None = NO_POSITIONS,
    name: str = "shuffle_batch",
    **options: Unpack[UnseededOptions],
) -> AsyncBatchStream[BatchStatistics] | BatchStream[BatchStatistics]:
    """Make batches of examples in random order.

    Each example is drawn uniformly at random from ``min_after_dequeue + 1`` examples in a queue,
    until the source ends. One additional worker draws them and makes batches ahead, so the result
    never depends on when a consumer asks. The same seed gives the same batches if the examples come
    in the same order: without a function, with one worker, or with ``ordered=True``.

    Args:
        source: as for `batch`. A task moves the elements of a queue over.
        batch_size: examples per batch, >= 1.
        coord: as for `batch`.
        min_after_dequeue: the number of examples that stay in the queue while the source may have
            more, >= 0. A higher number shuffles better, but starts later and takes more memory.
        capacity: examples that may wait, > ``min_after_dequeue``. Those above that number wait in
            finished batches. One batch always fits. ``None`` for three batches.
        seed: as for `RandomShuffleQueue`.
        function: as for `batch`.
        dtypes: as for `batch`; ``None`` takes the dtypes of the source, if it is a queue with
            shapes.
        shapes: one shape per dtype; shuffled examples cannot be padded.
        names: one name per component, as for `FIFOQueue`.
        objects: as for `batch`.
        allow_smaller_final_batch: as for `batch`.
        resume: as for `batch`. The examples drawn are the same with and without it, except that
            without a ``seed`` they follow from the source's seed. No worker makes batches ahead,
            and the examples above ``min_after_dequeue`` wait unbatched.
        name: the name in messages and in the names of workers.
        options: the other options of `prepare`: ``workers``, ``where``, ``ordered`` and so on.

    Returns:
        An `AsyncBatchStream` or a `BatchStream`, as from `batch`.

    Raises:
        InvalidArgumentError: any argument is not as described.
        RuntimeError: the coordinator's block has not been entered.
    """
    checked_coordinator(coord)
    batch_size = checked_count(batch_size, "batch_size", least=1)
    kept = _checked_objects(objects, dtypes)
    checked_flag(allow_smaller_final_batch, "allow_smaller_final_batch")
    keep = checked_count(min_after_dequeue, "min_after_dequeue")
    ahead = 3
    if capacity is not None:
        capacity = checked_count(capacity, "capacity", least=keep + 1)
        ahead = max(1, (capacity - keep) // batch_size)
    if resume is not NO_POSITIONS:
        _check_layout(dtypes, shapes, names)
        fitting = None
        if dtypes is not None:
            fitting = Fitting(FIFOQueue(None, dtypes, shapes, names, name=name))
        stacking = _batch_stage(batch_size, allow_smaller_final_batch, False, fitting, kept)
        return resumable(
            source,
            [Draw(keep, _checked_seed(seed)), stacking],
            coord=coord,
            function=function,
            options=options,
            buffer_size=ahead * batch_size if capacity is None else max(1, capacity - keep),
            name=name,
            resume=resume,
            fitting=fitting,
        )
    if dtypes is None and function is None and is_queue(source) and has_fixed_shapes(source):
        dtypes, shapes, names = _layout_of(source)
    _check_layout(dtypes, shapes, names)
    # There is room for only one more, so that a draw's choices do not depend on relative speed.
    shuffled = _ShuffleBuffer(
        keep + 1, keep, dtypes, shapes, names, seed=seed, name=f"{name}-examples"
    )
    runner = fill(shuffled, source, coord, function, options)
    maker = BatchPipe(
        shuffled,
        batch_size,
        drop_remainder=not allow_smaller_final_batch,
        max_wait=None,
        owns=True,
        runner=runner,
        objects=kept,
    )
    ready = FIFOQueue(ahead, name=name)
    start_worker(coord, ready, forwarder(BatchStream(maker), QueueSink(ready), closes=True))
    return stream_of(PrefetchedBatches(maker, ready), coord)


class _ShuffleBuffer(RandomShuffleQueue):
    """Draws each example from the same choices, whatever the consumer's pace and the end."""

    __module__ = RandomShuffleQueue.__module__  # users see it as a RandomShuffleQueue
    _redraws = False


def _batch_stage(
    size: int, keeps_rest: bool, pad: bool, fitting: Fitting | None, objects: Objects
) -> Batch:
    collate = None if fitting is None else fitting.batch
    pads = pad and collate is None  # `collate` pads by itself
    return Batch(size, not keeps_rest, pads, 0, collate, False, objects)


def _checked_objects(objects: Any, dtypes: Any) -> Objects:
    if objects and dtypes is not None:
        raise InvalidArgumentError(
            f"objects: got {objects!r} with dtypes; expected False, and the dtype `object` for"
            " objects"
        )
    return checked_objects(objects)


def _checked_seed(seed: Seed) -> Seed:
    if seed is not None:
        resolve_seed(seed)
    return seed


def _refuse_wait(max_wait: float | None) -> None:
    if max_wait is not None:
        raise InvalidArgumentError(
            f"max_wait: got {max_wait!r} with resume; expected None, because the ends of the"
            " batches would depend on the clock"
        )


def _example_queue(
    capacity: int | None, dtypes: Any, shapes: Any, names: Any, *, pad: bool, name: str
) -> AnyQueue:
    """Make a queue for examples: of objects, unless dtypes are given."""
    _check_layout(dtypes, shapes, names)
    queue: AnyQueue = FIFOQueue(capacity, name=name)
    if dtypes is not None:
        queue = PaddingFIFOQueue(capacity, dtypes, shapes, names, name=name)
        varies = any(None in shape for shape in queue.shapes or ())
        if pad and not varies:
            raise InvalidArgumentError(
                f"dynamic_pad: got True with the shapes {shapes!r}; expected None for each"
                " dimension that varies"
            )
        if not varies:
            queue = FIFOQueue(capacity, dtypes, shapes, names, name=name)
    return queue


def _layout_of(queue: AnyQueue) -> tuple[Any, Any, Any]:
    """Return the arguments ``dtypes``, ``shapes`` and ``names`` that make a queue like this one."""
    dtypes, shapes, structure = queue.dtypes, queue.shapes, queue.structure
    if dtypes is None or shapes is None or queue.names is not None or isinstance(structure, int):
        return dtypes, shapes, queue.names

    def in_places(listed: Sequence[Any]) -> Any:
        return mapped(lambda index: None if index is None else listed[index], structure)

    return in_places(dtypes), in_places(shapes), None


def _check_layout(dtypes: Any, shapes: Any, names: Any) -> None:
    if dtypes is None and (shapes is not None or names is not None):
        raise InvalidArgumentError(
            "dtypes: got None, with shapes or names; expected both dtypes and shapes, or neither:"
            " then the first example decides"
        )
    if dtypes is not None and shapes is None:
        raise InvalidArgumentError(
            "shapes: got None, with dtypes; expected one shape per dtype, or neither: then the"
            " first example decides"
        )


def _checked_wait(pad: bool, smaller: bool, max_wait: float | None) -> float | None:
    checked_flag(pad, "dynamic_pad")
    checked_flag(smaller, "allow_smaller_final_batch")
    if max_wait is None:
        return None
    seconds = checked_seconds(max_wait, "max_wait", otherwise=", or None")
    if not smaller:
        raise InvalidArgumentError(
            f"max_wait: got {max_wait!r} with allow_smaller_final_batch=False; expected None, or"
            " True: a batch that is made early may be smaller"
        )
    return seconds


def _can_be_batched(queue: AnyQueue, pad: bool) -> bool:
    """Return whether the queue's own batches have the right form."""
    if queue.dtypes is None:
        return True
    return queue.shapes is not None and not (pad and has_fixed_shapes(queue))
