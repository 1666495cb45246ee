"""`bucket_by_sequence_length`: batches of examples of similar length, to save padding.

One worker sorts examples into buckets by length, and makes a padded batch of a bucket as soon as it
is full. Khomenko et al., "Accelerating recurrent neural network training using sequence bucketing
and multi-GPU data parallelization" (2016), measure what that is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Unpack, overload

import aioqueue
from aioqueue import FIFOQueue, QueueClosedError, sync
from aioqueue.base.arguments import checked_count, checked_flag
from aioqueue.errors import counted
from aioqueue.pipeline.batches.buckets import Buckets, TooLong, checked_buckets, log_skipped
from aioqueue.pipeline.stages.bucket import Bucket
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
    Delivery,
    consumer_left,
    fill,
    forwarder,
    start_worker,
)
from aioqueue.pipeline.streams.resumable import resumable
from aioqueue.workers.options import PrepareOptions
from aioqueue.workers.statistics import BucketStatistics

_EXAMPLES_AHEAD: Final = 64
"""The number of prepared examples that may wait to be sorted."""


class BucketPipe(QueuePipe):
    """The sink that sorts examples into buckets, and the pipe that returns their batches.

    Args:
        queue: receives finished batches.
        examples: the queue of prepared examples, which closes with the stream; ``None`` without
            such a queue.
        runner: fills that queue.
        buckets: sorts the examples.
        keep_remainder: whether the examples that are left in the buckets at the end make batches.
    """

    def __init__(
        self,
        queue: FIFOQueue,
        examples: FIFOQueue | None,
        runner: PreparationInfo | None,
        buckets: Buckets,
        *,
        keep_remainder: bool,
    ) -> None:
        self.queue: AnyQueue = queue
        self.runner = runner
        self.examples: AnyQueue | None = examples
        self._buckets = buckets
        self._keep_remainder = keep_remainder

    # The sink.

    def accept(self, example: Any) -> Iterable[Delivery]:
        """Sort one example; return the batches that it completes: none, one or two."""
        for batch in self._buckets.add(example):
            yield self.queue, batch

    def finish(self) -> Iterable[Delivery]:
        """Return the examples that are left in the buckets as batches, the shortest first."""
        if self._keep_remainder:
            for batch in self._buckets.rest():
                yield self.queue, batch

    def refused(self, queue: AnyQueue, error: QueueClosedError) -> None:
        raise consumer_left(queue) from error.__cause__

    def is_over(self) -> bool:
        return self.queue.is_closed()

    def ended(self, cause: BaseException | None) -> None:
        """Log what was skipped. The runner closes the queue."""
        log_skipped(self.queue.name, self._buckets.statistics())

    # The pipe.

    def deliver(self, taken: Any) -> Any:
        return taken

    def statistics(self) -> BucketStatistics:
        return self._buckets.statistics()

    def close(self) -> None:
        for queue in (self.queue, self.examples):
            if queue is not None:
                queue.close(cancel_pending_enqueues=True)

    def describe(self) -> str:
        limit = self._buckets.limit
        what = (
            f"at most {counted(limit.budget or 0, 'element')}"
            if limit.sizes is None
            else f"{'/'.join(map(str, limit.sizes))} examples"
        )
        buckets = f"{counted(limit.buckets, 'bucket')} {list(limit.boundaries)}"
        return f"of {what} in {buckets} from {self.queue!r}"


@overload
def bucket_by_sequence_length(
    source: Any,
    boundaries: Sequence[int],
    batch_size: int | Sequence[int] | None = None,
    *,
    coord: aioqueue.Coordinator,
    tokens_per_batch: int | None = None,
    function: Callable[..., Any] | None = None,
    length: Callable[[Any], int] | None = None,
    padding_value: Any = 0,
    pad_to_boundary: bool = False,
    on_too_long: TooLong = "fail",
    objects: bool | str | Sequence[str] = False,
    allow_smaller_final_batch: bool = True,
    capacity: int = 4,
    resume: Mapping[str, Any] | None = NO_POSITIONS,
    name: str = "buckets",
    **options: Unpack[PrepareOptions],
) -> AsyncBatchStream[BucketStatistics]: ...


@overload
def bucket_by_sequence_length(
    source: Any,
    boundaries: Sequence[int],
    batch_size: int | Sequence[int] | None = None,
    *,
    coord: sync.Coordinator,
    tokens_per_batch: int | None = None,
    function: Callable[..., Any] | None = None,
    length: Callable[[Any], int] | None = None,
    padding_value: Any = 0,
    pad_to_boundary: bool = False,
    on_too_long: TooLong = "fail",
    objects: bool | str | Sequence[str] = False,
    allow_smaller_final_batch: bool = True,
    capacity: int = 4,
    resume: Mapping[str, Any] | None = NO_POSITIONS,
    name: str = "buckets",
    **options: Unpack[PrepareOptions],
) -> BatchStream[BucketStatistics]: ...


def bucket_by_sequence_length(
    source: Any,
    boundaries: Sequence[int],
    batch_size: int | Sequence[int] | None = None,
    *,
    coord: AnyCoordinator,
    tokens_per_batch: int | None = None,
    function: Callable[..., Any] | None = None,
    length: Callable[[Any], int] | None = None,
    padding_value: Any = 0,
    pad_to_boundary: bool = False,
    on_too_long: TooLong = "fail",
    objects: bool | str | Sequence[str] = False,
    allow_smaller_final_batch: bool = True,
    capacity: int = 4,
    resume: Mapping[str, Any] | None = NO_POSITIONS,
    name: str = "buckets",
    **options: Unpack[PrepareOptions],
) -> AsyncBatchStream[BucketStatistics] | BatchStream[BucketStatistics]:
    """Make batches of examples of similar length, padded to the longest in the batch.

    Bucket 0 takes lengths below ``boundaries[0]``. Bucket k takes lengths from
    ``boundaries[k - 1]`` to below ``boundaries[k]``, and the last bucket takes all others. As soon
    as a bucket is full, its examples are padded and returned as a batch. Padding follows the
    values, in every dimension that differs.

    Set the size of batches with either ``batch_size`` or ``tokens_per_batch``. The order of the
    batches follows from the order of the examples.

    Args:
        source: as for `batch`.
        boundaries: ascending ints >= 1.
        batch_size: examples per batch: one int, or one per bucket.
        coord: as for `batch`.
        tokens_per_batch: the largest size of a batch, in rows times padded length. So batches of
            short examples have more rows.
        function: as for `batch`.
        length: returns the length of an example; ``None`` takes the size of axis 0 of the first
            component that has one.
        padding_value: the number to pad with, or one per component, in a tuple or dict like the
            example. Strings are padded with empty strings.
        pad_to_boundary: pad to the longest length of the bucket, ``boundaries[k] - 1``, so that
            there are only as many shapes as buckets (for compilers such as XLA). Then the last
            bucket ends at the last boundary.
        on_too_long: what to do with an example longer than ``tokens_per_batch``, or than the last
            boundary allows if you pad to boundaries: ``"fail"``, or ``"skip"`` it. The statistics
            count skipped examples, and so does the log at the end.
        objects: as for `batch`.
        allow_smaller_final_batch: whether the examples that are left in the buckets at the end make
            smaller batches; otherwise they are dropped.
        capacity: batches that may wait.
        resume: as for `batch`. Then no batches wait; for each, up to 64 examples wait instead.
        name: the name in messages and in the names of workers.
        options: the other options of `prepare`: ``workers``, ``where``, ``ordered`` and so on.

    Returns:
        An `AsyncBatchStream` or a `BatchStream` of pairs ``(lengths, batch)``. ``lengths`` is an
        int64 array of shape ``(n,)``. ``batch`` has the structure of an example, with an array of
        shape ``(n, longest, ...)`` per component.

    Raises:
        InvalidArgumentError: any argument is not as described.
        RuntimeError: the coordinator's block has not been entered.
    """
    checked_coordinator(coord)
    buckets = checked_buckets(
        boundaries,
        batch_size,
        tokens_per_batch,
        length=length,
        padding_value=padding_value,
        pad_to_boundary=pad_to_boundary,
        on_too_long=on_too_long,
        objects=objects,
    )
    checked_flag(allow_smaller_final_batch, "allow_smaller_final_batch")
    capacity = checked_count(capacity, "capacity", least=1)
    if resume is not NO_POSITIONS:
        sorting = Bucket(
            boundaries,
            batch_size,
            tokens_per_batch,
            length,
            padding_value,
            pad_to_boundary,
            on_too_long,
            not allow_smaller_final_batch,
            objects,
        )
        return resumable(
            source,
            [sorting],
            coord=coord,
            function=function,
            options=options,
            buffer_size=_EXAMPLES_AHEAD * capacity,
            name=name,
            resume=resume,
        )
    queue = FIFOQueue(capacity, name=name)
    examples: FIFOQueue | None = None
    runner = None
    if function is not None or options:
        examples = FIFOQueue(_EXAMPLES_AHEAD, name=f"{name}-examples")
        runner = fill(examples, source, coord, function, options)
    pipe = BucketPipe(
        queue,
        examples,
        runner,
        buckets,
        keep_remainder=allow_smaller_final_batch,
    )
    if examples is None:
        forwarding = forwarder(source, pipe)
    else:
        forwarding = forwarder(examples, pipe, closes=True)
    start_worker(coord, queue, forwarding)
    return stream_of(pipe, coord)
