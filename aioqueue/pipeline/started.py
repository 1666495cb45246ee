"""`StartedPipeline`: a pipeline whose workers belong to the coordinator of the user.

`Pipeline.epochs` makes a coordinator of its own, and joins it when the loop is left.
`Pipeline.start` uses that of the user, who stops and joins it. So there is nothing to join here:
a failed worker stops the coordinator, which closes all queues of the pipeline with the failure as
the cause, and the iteration ends behind the elements that were made before.

The thread or task that takes an element makes the steps of all nodes behind the last stage with
workers. One at a time does that. Closing the queue of that stage wakes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

import aioqueue
from aioqueue import InvalidArgumentError, OutOfRangeError
from aioqueue.items.item import EpochEnd
from aioqueue.items.positions import misplaced
from aioqueue.pipeline.build import Builder
from aioqueue.pipeline.nodes.node import Taken
from aioqueue.pipeline.nodes.progress import DeliveredRows, ResumePoint, first_epoch_of
from aioqueue.pipeline.nodes.rows import ROW_VALUE, EpochRange
from aioqueue.pipeline.nodes.stepping import BegunFlow, RunLock, Stepping
from aioqueue.pipeline.stages.base import BasePipeline, BaseStage
from aioqueue.pipeline.stages.chain import _built_stages, most_empty, once_only, sources_of
from aioqueue.pipeline.state.checkpoint import (
    PipelinePositions,
    checked_resume_point,
    rest_from_epoch,
)
from aioqueue.pipeline.stream import (
    AnyCoordinator,
    AnyQueue,
    AsyncBatchStream,
    BatchStream,
    PreparationInfo,
    checked_coordinator,
    stream_of,
)
from aioqueue.system.forks import inherited_object, note_for_forks
from aioqueue.system.locks import call_with_lock
from aioqueue.workers.statistics import StageStatistics

StatisticsT = TypeVar("StatisticsT", covariant=True)


def start(
    pipeline: BasePipeline[Any],
    coord: AnyCoordinator,
    stop: int | None,
    *,
    resume: Mapping[str, Any] | None,
    name: str | None,
) -> AsyncBatchStream[tuple[StageStatistics, ...]] | BatchStream[tuple[StageStatistics, ...]]:
    """Do the work of `Pipeline.start`.

    Args:
        pipeline: the pipeline.
        coord: starts the workers.
        stop: the epoch before which to stop; ``None`` for no end.
        resume: a position to begin at.
        name: the name of the last queue; ``None`` for that of its stage.
    """
    checked_coordinator(coord)
    _check_can_start(pipeline)
    started = StartedPipeline[Any](pipeline, coord, stop, resume=resume, name=name)
    return stream_of(started, coord)


class StartedPipeline(Generic[StatisticsT]):
    """The inside of the stream that `Pipeline.start` returns.

    Args:
        pipeline: the pipeline.
        coord: starts the workers.
        stop: the epoch before which to stop; ``None`` for no end.
        resume: a position to begin at; ``None`` for the beginning.
        name: the name of the last queue; ``None`` for that of its stage.

    Raises:
        InvalidArgumentError: the position does not fit.
        RuntimeError: the coordinator's block has not been entered.
    """

    queue: AnyQueue
    examples: AnyQueue | None = None
    runner: PreparationInfo | None
    _steps: Stepping

    def __init__(
        self,
        pipeline: BasePipeline[Any],
        coord: AnyCoordinator,
        stop: int | None,
        *,
        resume: Mapping[str, Any] | None,
        name: str | None,
    ) -> None:
        self._coord = coord
        self._stop = stop
        self._name = name
        self._run_lock = RunLock()
        note_for_forks(self)
        self._was_interrupted = False
        self._is_async: bool | None = None  # whether tasks iterate over it; None before the first
        self._empty_epochs = 0  # how many in a row
        if resume is None:
            self._begin(pipeline, ResumePoint(0))
        else:
            self._begin(*self._checked(pipeline, resume))

    def _was_forked(self) -> None:
        what = f"the stream '{self.queue.name}'"
        self._run_lock, self._steps = inherited_object(what), inherited_object(what, self._steps)

    # Beginning.

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._run_lock.turn(partial(self._load, state))

    def _load(self, state: Mapping[str, Any]) -> None:
        if self._is_async is not None:
            raise RuntimeError(
                "load_state_dict was called after the first batch was taken, so the workers already"
                " prepare batches from the beginning: make a new stream with resume=state"
            )
        earlier = self._queues
        self._begin(*self._checked(self._pipeline, state))
        _close(earlier)  # last: if the coordinator starts no more workers, the stream stays usable

    def _checked(
        self, pipeline: BasePipeline[Any], position: Mapping[str, Any]
    ) -> tuple[BasePipeline[Any], ResumePoint]:
        """Check that a position belongs to the pipeline. Returns the pipeline with its seeds.

        Raises:
            InvalidArgumentError: it does not belong to it.
        """
        pipeline, point = checked_resume_point(pipeline, position)
        if self._stop is not None and point.epoch > self._stop:
            raise misplaced(f"epoch {point.epoch}", f"at most {self._stop}, where the stream ends")
        return pipeline, point

    def _builder_of(self, pipeline: BasePipeline[Any], span: EpochRange, rest: Any) -> Builder:
        coord = self._coord
        return StreamBuilder(
            pipeline,
            span,
            coord.start,
            coord._watched(),
            is_async=isinstance(coord, aioqueue.Coordinator),
            rest=rest,
            queue_name=self._name,
        )

    def _counter(self, point: ResumePoint) -> DeliveredRows:
        return DeliveredRows(point.handed, None)

    def _begin(self, pipeline: BasePipeline[Any], point: ResumePoint) -> None:
        # An iterator has one epoch. Workers must not read ahead into the second one, whose failure
        # would stop the coordinator while the first one is still in use.
        once = once_only(pipeline)
        last = self._stop if once is None else 1
        builder = self._builder_of(pipeline, EpochRange(first_epoch_of(point), last), point.rest)
        has_ended = self._stop is not None and point.epoch >= self._stop
        # Behind the end there is nothing to restore nodes to; only the counts go on.
        state = None if has_ended else point.node
        node = builder.restored(state, point.stages, point.layouts)
        working = list(builder.worker_stages())
        queues: list[AnyQueue] = [one.queue for one in working]
        if has_ended:
            _close(queues)
        else:
            builder.start_workers()
        # From here on nothing raises. What raised above has left an earlier run as it was.
        self._begin_point, self._has_ended = point, has_ended
        self._builder, self._pipeline, self._node, self._one_pass_source = (
            builder,
            pipeline,
            node,
            once,
        )
        self._delivered = self._counter(point)
        self._steps = Stepping(self._run_lock.lock, point.skip, self._delivered.add)
        self._positions: PipelinePositions | None = None
        self._queues = queues
        self.queue = queues[-1]
        preparing = [one.runner for one in working if one.stage.worker_function() is not None]
        self.runner = preparing[-1] if preparing else None

    # Taking.

    def take(self) -> Any:
        """Return the next element, in a thread.

        Raises:
            OutOfRangeError: the stream has ended.
        """
        turn = object()
        try:
            begun = call_with_lock(self._run_lock.lock, self._begin_take, turn)
            if isinstance(begun, list):  # the usual case: it was ready, and this turn is over
                return begun[0][ROW_VALUE]
            return self._finish_take(turn, begun)
        except BaseException:
            self._run_lock.end(turn)  # a handler may have raised before `_finish_take` could
            raise

    def _begin_take(self, turn: object) -> Taken | BegunFlow:
        """Take the next element if it is ready; otherwise keep the turn. The lock is held."""
        self._run_lock.wait_until_free()
        self._check(is_async=False)
        with self._noting_interrupts():
            begun = self._steps.begin_locked(self._node)
        if not isinstance(begun, list):
            self._run_lock.keep(turn)
        return begun

    def _finish_take(self, turn: object, begun: Taken | BegunFlow) -> Any:
        try:
            with self._noting_interrupts():
                while isinstance(taken := self._steps.finish(begun), EpochEnd):
                    self._end_epoch(taken)
                    begun = self._steps.begin(self._node)
                return taken[0][ROW_VALUE]
        finally:
            self._run_lock.end(turn)

    @contextmanager
    def _noting_interrupts(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            raise
        except BaseException:  # Ctrl-C: rows that had just left the queue are lost
            self._was_interrupted = True
            raise

    async def take_async(self) -> Any:
        """Return the next element, in a task.

        Raises:
            OutOfRangeError: the stream has ended.

        Cancellation:
            A cancelled call has lost nothing.
        """
        async with self._run_lock.aio:
            self._check(is_async=True)
            while True:
                taken = await self._steps.finish_async(self._steps.begin(self._node))
                if not isinstance(taken, EpochEnd):
                    return taken[0][ROW_VALUE]
                self._end_epoch(taken)

    def _check(self, *, is_async: bool) -> None:
        if self._is_async is None:
            self._is_async = is_async
        elif self._is_async is not is_async:
            used, other = ("async for", "for") if self._is_async else ("for", "async for")
            raise TypeError(
                f"this stream was begun with `{used}`, not with `{other}`; continue with `{used}`"
            )
        if self._was_interrupted:
            raise RuntimeError(
                f"'{self.queue.name}' was interrupted while it made a batch, so it cannot continue:"
                " make a new stream with resume=stream.state_dict()"
            )
        if self._has_ended:
            raise OutOfRangeError("the source has ended")

    def _end_epoch(self, end: EpochEnd) -> None:
        """Note the end of an epoch; the nodes are at the next one already.

        Raises:
            OutOfRangeError: that was the last one.
            InvalidArgumentError: there is no next one, because the source is an iterator.
            RuntimeError: empty epochs would follow each other without end.
        """
        self._empty_epochs = 0 if end.count else self._empty_epochs + 1
        if self._stop is not None and end.epoch + 1 >= self._stop:
            self._has_ended = True
            self._ended()
            raise OutOfRangeError("the source has ended")
        if self._one_pass_source is not None:
            self._has_ended = True
            raise self._one_pass_source._used_up()
        if self._stop is None and self._empty_epochs > most_empty(self._pipeline):
            self.close()
            raise RuntimeError(
                f"{self._empty_epochs} epochs in a row were empty, so epochs=None would loop for"
                " ever; expected a source with items, and stages that do not drop all of them"
                " (drop_remainder=True drops examples that do not fill a batch)"
            )

    def _ended(self) -> None:
        """Called at the end of the last epoch."""

    # Any thread may call the following.

    def state_dict(self) -> dict[str, Any]:
        point = self._steps.between(self._resume_point)
        if self._positions is None:
            self._positions = PipelinePositions(self._pipeline)
        return self._positions.behind(point)

    def _resume_point(self) -> ResumePoint:
        begun = self._begin_point
        if self._stop is not None and begun.epoch >= self._stop:
            return begun  # it has ended before it began: the nodes know nothing
        state = self._node.state()
        return ResumePoint(
            state["epoch"],
            state["given"],
            self._steps.skip,
            state,
            rest=rest_from_epoch(begun.rest, state["epoch"]),
            stages=self._builder.tallies(),
            handed=self._delivered.count,
            run=begun.run,
            layouts=self._builder.layouts(),
        )

    def statistics(self) -> StatisticsT:
        found: Any = self._builder.statistics()
        return found  # type: ignore[no-any-return]

    def close(self) -> None:
        _close(self._queues)

    def describe(self) -> str:
        return f"of {self._pipeline!r}"


class StreamBuilder(Builder):
    """Makes the nodes of a stream, and names its last queue after the stream.

    Args:
        arguments: those of `Builder`.
        queue_name: the name of the last queue; ``None`` for that of its stage.
        options: those of `Builder`.
    """

    def __init__(self, *arguments: Any, queue_name: str | None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._last_name = queue_name

    def _queue_name(self, stage: BaseStage) -> str:
        is_last = not any(one.has_workers() for one in self._stages[self._stage_index + 1 :])
        if self._last_name is not None and is_last:
            return self._last_name
        return super()._queue_name(stage)


def _check_can_start(pipeline: BasePipeline[Any]) -> None:
    """Refuse a pipeline whose elements no worker makes, or that takes from a queue on lease.

    Raises:
        InvalidArgumentError: it is one of these.
    """
    after: str | None = None
    for stage in reversed(_built_stages(pipeline)):
        if stage.has_workers():
            break
        if stage.combines:  # it takes from the queues of its branches, not from one
            after = stage.name
            break
    else:
        after = "the source"
    if after is not None:
        raise InvalidArgumentError(
            f"start: got {pipeline!r}, in which no stage behind {after} has workers; expected one,"
            " such as prepare(function) or prefetch(2)"
        )
    # What `epochs` takes from a queue and does not hand out goes back when its workers have been
    # joined. Here the user joins them, and may still take elements afterwards.
    if any(source._reads_queue for source in sources_of(pipeline)):
        raise InvalidArgumentError(
            f"start: got {pipeline!r}, which takes from a queue, and gives back what was not used;"
            " expected another source: use epochs(), or batch(queue, size, coord=coord)"
        )


def _close(queues: list[AnyQueue]) -> None:
    # All of them: a worker may wait for a row of the queue before its stage.
    for queue in reversed(queues):
        queue.close(cancel_pending_enqueues=True)
