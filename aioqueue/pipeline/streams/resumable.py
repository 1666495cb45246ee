"""Streams of `batch`, `shuffle_batch` and `bucket_by_sequence_length` that you can resume.

Each is a started pipeline over the `WholeRun` of its source: its workers read or prepare examples,
and its last stage makes batches of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import aioqueue
from aioqueue import InvalidArgumentError, sync
from aioqueue.items.positions import misplaced
from aioqueue.pipeline.batches.buckets import log_skipped
from aioqueue.pipeline.batches.collation import examples_in
from aioqueue.pipeline.build import AnyRunner, Builder
from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.nodes.progress import DeliveredRows, ResumePoint
from aioqueue.pipeline.nodes.rows import ROW_VALUE, EpochRange, Row
from aioqueue.pipeline.stage_input import StageInput
from aioqueue.pipeline.stages.base import BasePipeline, BaseStage
from aioqueue.pipeline.stages.bucket import BucketNode
from aioqueue.pipeline.stages.carry import Carry
from aioqueue.pipeline.stages.prepare import Prepare
from aioqueue.pipeline.started import StartedPipeline, StreamBuilder
from aioqueue.pipeline.stream import (
    AnyCoordinator,
    AnyQueue,
    AsyncBatchStream,
    BatchStream,
    stream_of,
)
from aioqueue.pipeline.streams.forward import is_queue, refuse_options
from aioqueue.pipeline.whole_run import WholeRunNode, whole_run
from aioqueue.sources.kinds.sequences import items
from aioqueue.sources.kinds.source import Source
from aioqueue.sources.stream_base import BaseStream
from aioqueue.system.locks import synchronized
from aioqueue.workers.options import UnseededOptions
from aioqueue.workers.runner import prepare_items
from aioqueue.workers.statistics import BatchStatistics, BucketStatistics


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
    repeatable = _with_positions(source, options)
    first: BaseStage
    if function is None:
        refuse_options(options)
        first = Carry(buffer_size)
    else:
        first = Prepare(function, buffer_size, {"ordered": False, **options})
    pipeline: BasePipeline[Any] = BasePipeline(whole_run(repeatable), (first, *stages))
    fit = None if fitting is None else fitting.example
    pipe = _ExampleRun(pipeline, coord, resume=resume, name=name, fit=fit)
    return stream_of(pipe, coord)


class _ExampleRun(StartedPipeline[BatchStatistics | BucketStatistics]):
    """A started pipeline with the statistics, the name and the positions of a batch stream."""

    _delivered: _DeliveredExamples

    def __init__(
        self,
        pipeline: BasePipeline[Any],
        coord: AnyCoordinator,
        *,
        resume: Mapping[str, Any] | None,
        name: str,
        fit: Callable[[Any], Any] | None,
    ) -> None:
        self._fit = fit
        super().__init__(pipeline, coord, 1, resume=resume, name=name)

    def _checked(
        self, pipeline: BasePipeline[Any], position: Mapping[str, Any]
    ) -> tuple[BasePipeline[Any], ResumePoint]:
        pipeline, point = super()._checked(pipeline, position)
        source: Any = pipeline.source
        # The number of epochs is not compared, so a longer run may continue a shorter one. But not
        # once workers have seen the end of the shorter one: they would have to prepare more.
        if point.length is not None and not source.may_end_after(point.length):
            raise misplaced(
                f"one at the end of a run of {point.length} items",
                f"one of a run of the same length: {source!r} ends elsewhere, or never",
            )
        return pipeline, point

    def _builder_of(self, pipeline: BasePipeline[Any], span: EpochRange, rest: Any) -> Builder:
        coord = self._coord
        return _ExampleBuilder(
            pipeline,
            span,
            coord.start,
            coord._watched(),
            is_async=isinstance(coord, aioqueue.Coordinator),
            rest=rest,
            queue_name=self._name,
            fit=self._fit,
        )

    def _counter(self, point: ResumePoint) -> _DeliveredExamples:
        return _DeliveredExamples(point.handed, point.examples)

    def _begin(self, pipeline: BasePipeline[Any], point: ResumePoint) -> None:
        super()._begin(pipeline, point)
        self.examples = self.queue
        (self._workers,) = self._builder.worker_stages()

    def _ended(self) -> None:
        statistics = self.statistics()
        if isinstance(statistics, BucketStatistics):
            log_skipped(self.queue.name, statistics)

    def _resume_point(self) -> ResumePoint:
        node = self._workers.node
        assert isinstance(node, WholeRunNode)
        length = self._begin_point.length
        if length is None:
            length = node.length
        point = super()._resume_point()
        if self._has_ended:  # the end of a run says it all: no state of a node belongs to it
            point = ResumePoint(
                1, 0, point.skip, stages=point.stages, handed=point.handed, layouts=point.layouts
            )
        return point._replace(length=length, examples=self._delivered.examples)

    def statistics(self) -> BatchStatistics | BucketStatistics:
        if isinstance(self._node, BucketNode):
            return self._node.statistics()
        delivered = self._delivered
        waiting = self._workers.runner.statistics().examples - delivered.examples
        return BatchStatistics(delivered.count, delivered.examples, max(0, waiting))

    def describe(self) -> str:
        what = ", ".join(f"{stage.name} {stage.details()}" for stage in self._pipeline.stages[1:])
        return f"of {what} from {self._pipeline.source!r}"


class _DeliveredExamples(DeliveredRows):
    """Counts the batches that the user receives, and the examples in them."""

    def __init__(self, batches: int, examples: int) -> None:
        super().__init__(batches, None)
        self.examples = examples

    def add(self, node: Node, rows: Sequence[Row]) -> None:
        super().add(node, rows)
        for row in rows:
            self.examples += examples_in(row[ROW_VALUE])


class _ExampleBuilder(StreamBuilder):
    """Makes the nodes of a batch stream. Its workers convert each example to the given dtypes."""

    def __init__(self, *arguments: Any, fit: Callable[[Any], Any] | None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._fit = fit

    def _runner(self, feeding: StageInput, function: Any, into: Any, options: Any) -> AnyRunner:
        return prepare_items(feeding, function, into=into, fit=self._fit, **options)


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
        for example in examples:
            self._queue.enqueue_nowait(example)
        return self._queue.dequeue_many(len(examples))


def _with_positions(source: Any, options: Mapping[str, Any]) -> Source[Any]:
    """Return the source, if it is repeatable and so has positions.

    Raises:
        InvalidArgumentError: it has none.
    """
    if isinstance(source, Source) and source._is_repeatable and not source._is_async:
        return source
    if isinstance(source, Sequence | np.ndarray) and not isinstance(source, str | bytes):
        return items(source, 1, seed=options.get("seed"))
    if is_queue(source) or isinstance(source, BaseStream):
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
