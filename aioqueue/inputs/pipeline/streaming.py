"""One run through a source, with all of its epochs, as a source of one epoch.

What goes on for several epochs of a `pipeline` begins anew in each. A stream that is made by hand
does not: batches and shuffles know no borders between the epochs of its source, which may even be
those of a mixture, and have none. So to the nodes the whole run is one epoch, and the epoch of an
item is kept in its index, from which it is taken before anybody sees it.

Streams that are made by hand and can be resumed: nodes of a pipeline, in a user's coordinator.

What `batch`, `shuffle_batch` and `bucket_by_sequence_length` make is an iterator over one run of
a source, whose workers belong to the user's coordinator. Where it is to be resumed, the same nodes
do it that do it in a pipeline, so that there is one bookkeeping: workers deliver items as a whole
into a queue that nobody else fills or reads, and whoever takes a batch draws and stacks it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, TypeVar

import aioqueue
from aioqueue import OutOfRangeError
from aioqueue.forks import note_for_forks, refusing
from aioqueue.inputs.collation.buckets import log_skipped
from aioqueue.inputs.collation.stack import examples_in
from aioqueue.inputs.core.base_source import BaseSource
from aioqueue.inputs.core.items import Entry, EpochEnd, Item, PlacedEntry, closing_run
from aioqueue.inputs.core.iteration import AnyCoordinator, AnyQueue, PreparationInfo
from aioqueue.inputs.core.positions import Place, misplaced, refusing_wrong_values
from aioqueue.inputs.pipeline.build import AnyRunner, Builder, WorkerStage
from aioqueue.inputs.pipeline.checkpoint import (
    PipelinePositions,
    ResumePoint,
    checked_standing,
)
from aioqueue.inputs.pipeline.description import BasePipeline, BaseStage, BuildContext
from aioqueue.inputs.pipeline.node import (
    END,
    ROW_VALUE,
    EpochRange,
    LazyRows,
    Node,
    State,
    Taken,
    drive,
    drive_async,
)
from aioqueue.inputs.pipeline.run_lock import RunLock, Stepping
from aioqueue.inputs.pipeline.sequence_nodes import BucketNode
from aioqueue.inputs.pipeline.stage_input import StageInput
from aioqueue.inputs.pipeline.stages import Prepare
from aioqueue.inputs.pipeline.transform_nodes import ShuffleNode
from aioqueue.inputs.pipeline.worker_node import QueueNode
from aioqueue.inputs.prepare.prepared_items import Delivered, ItemCounts
from aioqueue.inputs.prepare.runner import prepare_items
from aioqueue.inputs.statistics import BatchStatistics, BucketStatistics
from aioqueue.locks import holding
from aioqueue.philox import PhiloxWords, Seed, resolve_seed

__all__ = (
    "CarryStage",
    "DrawStage",
    "Streaming",
    "WholeRun",
    "as_in_source",
    "whole_run",
)


T = TypeVar("T")

_BITS: Final = 128
"""How large the index of an item may be, as its generator takes it."""
_INDEX: Final = 2**_BITS - 1


class WholeRun(BaseSource[T]):
    """A source whose epoch 0 is a run through another one. See `whole_run`, which makes it."""

    def __init__(self, source: BaseSource[T]) -> None:
        super().__init__(source.name, source.seed)
        self.blocking: bool = source.blocking
        self._is_repeatable = source._is_repeatable
        self._ahead = source._ahead
        self._source = source

    def __repr__(self) -> str:
        return repr(self._source)

    @property
    def _is_in_memory(self) -> bool:
        return self._source._is_in_memory

    def entries(self) -> Iterator[Entry[T]]:
        return map(_as_one_epoch, self._source.entries())

    def _placed_epoch(self, epoch: int, after: Place = None) -> Iterator[PlacedEntry[T]]:
        for entry, place in self._source.placed_after(after):
            yield PlacedEntry(_as_one_epoch(entry), place)

    def _picked(self, epoch: int, places: Sequence[int]) -> Iterator[Entry[T]] | None:
        entries = self._source._picked_from_run(places)
        return None if entries is None else map(_as_one_epoch, entries)

    def ends_behind(self, items: int) -> bool:
        """Whether a run that has ended after so many items ends there, as far as that is known."""
        return not self._source._is_endless

    def fingerprint(self) -> dict[str, Any]:
        return {"kind": "run", "source": self._source.fingerprint()}

    def _with_seeds_of(self, fingerprint: Any) -> Self:
        theirs = fingerprint.get("source") if isinstance(fingerprint, Mapping) else None
        return type(self)(self._source._with_seeds_of(theirs))


class _SizedRun(WholeRun[T]):
    """One whose length is known."""

    def items_per_epoch(self) -> int:
        """How many items the run has."""
        source: Any = self._source
        return len(source)

    def ends_behind(self, items: int) -> bool:
        return self.items_per_epoch() == items


def whole_run(source: BaseSource[T]) -> WholeRun[T]:
    """One run through a source as a source of one epoch; `as_in_source` undoes it, by entries."""
    given: Any = source
    if source._is_endless:
        return WholeRun(source)
    try:
        len(given)
    except TypeError:
        return WholeRun(source)
    return _SizedRun(source)


def as_in_source(entry: Entry[T]) -> Entry[T]:
    """An entry as the source itself has it."""
    value, _, index = entry
    return Entry(value, index >> _BITS, index & _INDEX)


def _as_one_epoch(entry: Entry[T]) -> Entry[T]:
    value, epoch, index = entry
    return Entry(value, 0, epoch << _BITS | index)


@dataclass(frozen=True)
class CarryStage(BaseStage):
    """Takes items from the source on a worker, where no function is called."""

    name: ClassVar[str] = "carry"
    buffer_size: int

    def details(self) -> str:
        return ""

    def node(self, upstream: Node, building: BuildContext) -> Node:
        options = {"workers": 1, "ordered": True}
        return building.workers(upstream, _itself, buffer_size=self.buffer_size, options=options)


@dataclass(frozen=True)
class DrawStage(BaseStage):
    """Draws rows as a `RandomShuffleQueue` does that is kept full."""

    name: ClassVar[str] = "draw"
    min_after_dequeue: int
    seed: Seed

    def details(self) -> str:
        return f"from {self.min_after_dequeue + 1}"

    def node(self, upstream: Node, building: BuildContext) -> Node:
        seed = building.seed("shuffle")
        return _Drawing(upstream, self.min_after_dequeue, seed if self.seed is None else self.seed)

    def fingerprint(self) -> dict[str, Any]:
        pair = None if self.seed is None else list(resolve_seed(self.seed))
        return {"min_after_dequeue": self.min_after_dequeue, "seed": pair}


class _Drawing(ShuffleNode):
    """Its buffer and the newcomer are what the queue holds: so it draws what the queue would."""

    def __init__(self, upstream: Node, size: int, seed: Seed) -> None:
        self._pair = resolve_seed(seed)
        super().__init__(upstream, size, 0)

    def _words_of(self, epoch: int) -> PhiloxWords:
        return PhiloxWords(self._pair)


class _RunFeeding(StageInput):
    """Feeds workers with entries as the source itself has them."""

    def entries(self) -> Generator[Entry[Any], None, None]:
        with closing_run(super().entries()) as entries:
            for entry in entries:
                yield as_in_source(entry)

    async def _aentries(self) -> AsyncGenerator[Entry[Any], None]:
        async with aclosing(super()._aentries()) as entries:
            async for entry in entries:
                yield as_in_source(entry)


class _RunNode(QueueNode):
    """The examples of a run that is one epoch to the nodes, whatever epochs the source has."""

    def _accept(self, items: list[Delivered], n: int = 0) -> LazyRows | None:
        return super()._accept([(0, item[1], item[2], item[3], item[4]) for item in items], n)

    def go_on(self, tally: State) -> tuple[ItemCounts, Callable[[Item], bool]]:
        counts, is_known = super().go_on(tally)
        return counts, lambda item: is_known(item._replace(epoch=0))

    @property
    def length(self) -> int | None:
        """How many items the run has, once its end has been seen from before it."""
        is_seen = self._epoch or self._expected is not None
        count = self.items_of_epoch if self._epoch else self._count
        return count if is_seen and count < END else None


class _RunBuilder(Builder):
    """Makes the nodes of one run.

    Args:
        pipeline: the description.
        coord: starts the workers.
        name: of the queue.
        fit: makes of every example what is delivered, or refuses it.
    """

    _feeding = _RunFeeding
    _queue_node = _RunNode

    first: _RunNode
    """The node that workers feed."""

    def __init__(
        self,
        pipeline: BasePipeline[Any],
        coord: AnyCoordinator,
        name: str,
        fit: Callable[[Any], Any] | None,
    ) -> None:
        is_async = isinstance(coord, aioqueue.Coordinator)
        super().__init__(
            pipeline, EpochRange(0, 1), coord.start, coord._watched(), is_async=is_async
        )
        self._name = name
        self._fit = fit

    @property
    def working(self) -> WorkerStage:
        """The stage that has workers."""
        (working,) = self._working
        assert isinstance(working, WorkerStage)
        return working

    def workers(self, *arguments: Any, **options: Any) -> Node:
        node = super().workers(*arguments, **options)
        assert isinstance(node, _RunNode)
        self.first = node
        return node

    def _queue_name(self, stage: BaseStage) -> str:
        return self._name

    def _runner(self, feeding: StageInput, function: Any, into: Any, options: Any) -> AnyRunner:
        return prepare_items(feeding, function, into=into, fit=self._fit, **options)


class Streaming:
    """The pipe of a stream that can be resumed.

    Args:
        source: what is gone through.
        stages: what is done with its items; one of them, the first, has workers.
        coord: starts the workers.
        name: what messages and worker names call it.
        fit: makes of every example what is delivered, or refuses it.
        resume: a position to begin at.

    Raises:
        InvalidArgumentError: the position does not fit.
        RuntimeError: the coordinator's block has not been entered.
    """

    size: int | None = None
    drop_remainder = False
    max_wait: float | None = None
    queue: AnyQueue
    examples: AnyQueue | None
    runner: PreparationInfo | None

    def __init__(
        self,
        source: BaseSource[Any],
        stages: Sequence[BaseStage],
        coord: AnyCoordinator,
        *,
        name: str,
        fit: Callable[[Any], Any] | None,
        resume: Mapping[str, Any] | None,
    ) -> None:
        self._coord = coord
        self._name = name
        self._fit = fit
        self._steps = Stepping()
        self._turns = RunLock()
        note_for_forks(self)
        self._was_interrupted = False
        self._is_async: bool | None = None  # by which face it is gone through
        pipeline: BasePipeline[Any] = BasePipeline(whole_run(source), tuple(stages))
        if resume is None:
            self._begin(pipeline, ResumePoint(0))
        else:
            self._begin(*_checked(pipeline, resume))

    def _was_forked(self) -> None:
        what = f"the stream '{self._name}'"
        self._turns, self._steps = refusing(what), refusing(what, self._steps)

    # Beginning.

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin behind a position, with other workers."""
        holding(self._turns.lock, self._load, state)

    def _load(self, state: Mapping[str, Any]) -> None:
        if self._is_async is not None:
            raise RuntimeError(
                "a state was loaded after the first batch was asked for, so batches from the"
                " beginning are under way: make a new stream with it, by resume=state"
            )
        earlier = self.queue
        self._begin(*_checked(self._pipeline, state))
        earlier.close(cancel_pending_enqueues=True)

    def _begin(self, pipeline: BasePipeline[Any], standing: ResumePoint) -> None:
        builder = _RunBuilder(pipeline, self._coord, self._name, self._fit)
        node, working = builder.build(), builder.working
        has_ended = bool(standing.epoch)
        if has_ended:
            working.queue.close()
        with refusing_wrong_values():
            if standing.node is not None and not has_ended:
                node.restore(standing.node)
            builder.go_on(standing.stages, standing.layouts)
        if not has_ended:
            builder.start(working.runner)
        # What was handed out, and the examples in that.
        self._batches, self._given = standing.handed, standing.examples
        self._builder = builder
        self._pipeline, self._node, self._first = pipeline, node, builder.first
        self._positions: PipelinePositions | None = None
        self._length, self._has_ended = standing.length, has_ended
        self._steps.skip = standing.skip
        self._preparing = working.runner
        self.queue = self.examples = working.queue
        self.runner = working.runner if isinstance(working.stage, Prepare) else None

    # Taking.

    def take(self) -> Any:
        """The next batch, for a thread.

        Raises:
            OutOfRangeError: there is none.
        """
        return holding(self._turns.lock, self._take)

    def _take(self) -> Any:
        self._check(is_async=False)
        try:
            return self.give(self._taken())
        except Exception:
            raise
        except BaseException:  # Ctrl-C: what had just come out of the queue is lost
            self._was_interrupted = True
            raise

    def _taken(self) -> Taken:
        node, steps = self._node, self._steps
        return steps.at_hand(node) or drive(steps.taking(node), steps.step)

    async def take_async(self) -> Any:
        """The same for a task.

        Raises:
            OutOfRangeError: there is none.

        Cancellation:
            A cancelled call has lost nothing.
        """
        async with self._turns.aio:
            self._check(is_async=True)
            taken = await drive_async(self._steps.taking(self._node), self._steps.step)
            return self.give(taken)

    def _check(self, *, is_async: bool) -> None:
        if self._is_async is None:
            self._is_async = is_async
        elif self._is_async is not is_async:
            used, other = ("async for", "for") if self._is_async else ("for", "async for")
            raise TypeError(f"this stream was begun with `{used}`, not `{other}`; go on with that")
        if self._was_interrupted:
            raise RuntimeError(
                f"'{self._name}' was interrupted while a batch was made, so nothing more can be"
                " taken: make a new stream, with resume=stream.state_dict()"
            )
        if self._has_ended:
            raise OutOfRangeError("the source has ended")

    def give(self, taken: Taken) -> Any:
        """The batch in what was taken, which is counted.

        Raises:
            OutOfRangeError: it is the end.
        """
        if isinstance(taken, EpochEnd):
            self._has_ended = True
            statistics = self.statistics()
            if isinstance(statistics, BucketStatistics):
                log_skipped(self._name, statistics)
            raise OutOfRangeError("the source has ended")
        batch = taken[0][ROW_VALUE]
        self._batches += 1
        self._given += examples_in(batch)
        return batch

    # What any thread may ask.

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that was taken."""
        standing = self._steps.between(self._standing)
        if self._positions is None:
            self._positions = PipelinePositions(self._pipeline)
        return self._positions.behind(standing)

    def _standing(self) -> ResumePoint:
        skip, length = self._steps.skip, self._first.length
        told = ResumePoint(
            1,
            0,
            skip,
            stages=self._builder.tallies(),
            handed=self._batches,
            layouts=self._builder.layouts(),
            length=self._length if length is None else length,
            examples=self._given,
        )
        if self._has_ended:
            return told
        state = self._node.state()
        return told._replace(epoch=state["epoch"], batches=state["given"], node=state)

    def statistics(self) -> BatchStatistics | BucketStatistics:
        """What it has done so far."""
        if isinstance(self._node, BucketNode):
            return self._node.statistics()
        ready = self._preparing.statistics().examples - self._given
        return BatchStatistics(self._batches, self._given, max(0, ready))

    def close(self) -> None:
        """End it and its workers."""
        self.queue.close(cancel_pending_enqueues=True)

    def describe(self) -> str:
        """What kind of stream it is, and of what."""
        what = ", ".join(f"{stage.name} {stage.details()}" for stage in self._pipeline.stages[1:])
        return f"of {what} from {self._pipeline.source!r}"


def _checked(
    pipeline: BasePipeline[Any], position: Mapping[str, Any]
) -> tuple[BasePipeline[Any], ResumePoint]:
    """Where a position stands in a run.

    Raises:
        InvalidArgumentError: it does not belong to it.
    """
    pipeline, standing = checked_standing(pipeline, position)
    source: Any = pipeline.source
    length = standing.length
    if length is not None and not source.ends_behind(length):
        raise misplaced(
            f"one at the end of a run of {length} items",
            f"an end there, beyond which {source!r} goes on",
        )
    return pipeline, standing


def _itself(item: Any) -> Any:
    return item
