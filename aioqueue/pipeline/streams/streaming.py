"""Streams that can be resumed: nodes of a pipeline in the coordinator of a user.

`batch`, `shuffle_batch` and `bucket_by_sequence_length` return an iterator over one run of a
source. Its workers belong to the user's coordinator. If you can resume it, it consists of the same
nodes as a pipeline, so that there is only one way to resume: workers deliver items into a private
queue, and the thread or task that takes a batch draws and stacks its examples.

In a pipeline every epoch begins anew. In a stream, batches and shuffles run across the epochs of
the source, and a mixture may not even have epochs. So the nodes see the whole run as one epoch
(`WholeRun`). The epoch of an item is kept in the upper bits of its index, and is restored before
the user's function sees the item (`as_in_source`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, TypeVar

import aioqueue
from aioqueue import AsyncQueue, OutOfRangeError, sync
from aioqueue.core.elements.philox import PhiloxWords, Seed, resolve_seed
from aioqueue.items.item import (
    Delivered,
    Entry,
    EpochEnd,
    Item,
    ItemCounts,
    PlacedEntry,
    closing_run,
)
from aioqueue.items.positions import Place, misplaced, refusing_wrong_values
from aioqueue.pipeline.build import AnyRunner, Builder, WorkerStage
from aioqueue.pipeline.examples.buckets import log_skipped
from aioqueue.pipeline.examples.collation import examples_in
from aioqueue.pipeline.nodes.flow import drive, drive_async
from aioqueue.pipeline.nodes.node import Node, Taken
from aioqueue.pipeline.nodes.progress import ResumePoint
from aioqueue.pipeline.nodes.rows import END, ROW_VALUE, EpochRange, LazyRows, State
from aioqueue.pipeline.nodes.stepping import RunLock, Stepping
from aioqueue.pipeline.queue_node import QueueNode
from aioqueue.pipeline.stage_input import StageInput
from aioqueue.pipeline.stages.base import BasePipeline, BaseStage, BuildContext
from aioqueue.pipeline.stages.bucket import BucketNode
from aioqueue.pipeline.stages.prepare import Prepare
from aioqueue.pipeline.stages.shuffle import ShuffleNode
from aioqueue.pipeline.state.checkpoint import PipelinePositions, checked_standing
from aioqueue.pipeline.streams.stream import AnyCoordinator, AnyQueue, PreparationInfo
from aioqueue.sources.base import BaseSource, Scan
from aioqueue.system.forks import inherited_object, note_for_forks
from aioqueue.system.locks import call_with_lock
from aioqueue.workers.runner import prepare_items
from aioqueue.workers.statistics import BatchStatistics, BucketStatistics

T = TypeVar("T")

_BITS: Final = 128
"""How many bits the index of an item may have; the bits above hold its epoch."""
_INDEX: Final = 2**_BITS - 1


class WholeRun(BaseSource[T]):
    """A source whose only epoch is a whole run through another source. Made by `whole_run`."""

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

    @property
    def _fed_by(self) -> AsyncQueue | sync.BlockingQueue | None:
        return self._source._fed_by

    def _scan(self, epoch: int | None, after: Place) -> Scan[T]:
        return _WholeRunScan(self._source._scan(None, after))

    def _pick(self, epoch: int | None, places: Sequence[int]) -> Iterator[Entry[T]] | None:
        entries = self._source._pick(None, places)
        return None if entries is None else map(_as_one_epoch, entries)

    def ends_behind(self, items: int) -> bool:
        """Whether a run may have ended after a number of items, as far as that is known."""
        return not self._source._is_endless

    def fingerprint(self) -> dict[str, Any]:
        return {"kind": "run", "source": self._source.fingerprint()}

    def _with_seeds_of(self, fingerprint: Any) -> Self:
        theirs = fingerprint.get("source") if isinstance(fingerprint, Mapping) else None
        return type(self)(self._source._with_seeds_of(theirs))


class _WholeRunScan(Scan[T]):
    """A scan of a whole run, as one epoch."""

    __slots__ = ("_run",)

    def __init__(self, run: Scan[T]) -> None:
        self._run = run

    def entries(self) -> Iterator[Entry[T]]:
        return map(_as_one_epoch, self._run.entries())

    def placed(self) -> Iterator[PlacedEntry[T]]:
        for entry, place in self._run.placed():
            yield PlacedEntry(_as_one_epoch(entry), place)


class _SizedRun(WholeRun[T]):
    """A run whose length is known."""

    def items_per_epoch(self) -> int:
        """How many items the run has."""
        source: Any = self._source
        return len(source)

    def ends_behind(self, items: int) -> bool:
        return self.items_per_epoch() == items


def whole_run(source: BaseSource[T]) -> WholeRun[T]:
    """One run through a source as a source of one epoch; `as_in_source` converts entries back."""
    given: Any = source
    if source._is_endless:
        return WholeRun(source)
    try:
        len(given)
    except TypeError:
        return WholeRun(source)
    return _SizedRun(source)


def as_in_source(entry: Entry[T]) -> Entry[T]:
    """An entry with the epoch and index of the source itself."""
    value, _, index = entry
    return Entry(value, index >> _BITS, index & _INDEX)


def _as_one_epoch(entry: Entry[T]) -> Entry[T]:
    value, epoch, index = entry
    return Entry(value, 0, epoch << _BITS | index)


@dataclass(frozen=True)
class CarryStage(BaseStage):
    """Reads the source on a worker, for a stream without a function."""

    name: ClassVar[str] = "carry"
    buffer_size: int

    def details(self) -> str:
        return ""

    def node(self, upstream: Node, building: BuildContext) -> Node:
        options = {"workers": 1, "ordered": True}
        return building.workers(upstream, _itself, buffer_size=self.buffer_size, options=options)


@dataclass(frozen=True)
class DrawStage(BaseStage):
    """Draws rows as a full `RandomShuffleQueue` does."""

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
    """A shuffle that draws like a queue, which would hold the buffer and the newcomer."""

    def __init__(self, upstream: Node, size: int, seed: Seed) -> None:
        self._pair = resolve_seed(seed)
        super().__init__(upstream, size, 0)

    def _words_of(self, epoch: int) -> PhiloxWords:
        return PhiloxWords(self._pair)


class _RunFeeding(StageInput):
    """Gives workers the entries of the source itself, with its epochs and indices."""

    def entries(self) -> Generator[Entry[Any], None, None]:
        with closing_run(super().entries()) as entries:
            for entry in entries:
                yield as_in_source(entry)

    async def _aentries(self) -> AsyncGenerator[Entry[Any], None]:
        async with aclosing(super()._aentries()) as entries:
            async for entry in entries:
                yield as_in_source(entry)


class _RunNode(QueueNode):
    """The examples of a run, which is one epoch to the nodes whatever epochs the source has."""

    def _accept(self, items: list[Delivered], n: int = 0) -> LazyRows | None:
        return super()._accept([(0, item[1], item[2], item[3], item[4]) for item in items], n)

    def go_on(self, tally: State) -> tuple[ItemCounts, Callable[[Item], bool]]:
        counts, is_known = super().go_on(tally)
        return counts, lambda item: is_known(item._replace(epoch=0))

    @property
    def length(self) -> int | None:
        """How many items the run has; ``None`` until its end was seen, or if it began there."""
        is_seen = self._epoch or self._expected is not None
        count = self.items_of_epoch if self._epoch else self._count
        return count if is_seen and count < END else None


class _RunBuilder(Builder):
    """Makes the nodes of a stream.

    Args:
        pipeline: the description.
        coord: starts the workers.
        name: the name of the queue.
        fit: converts each example to what is delivered, or raises.
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
    """The inside of a stream that you can resume.

    Args:
        source: the source.
        stages: the stages; the first one has workers, and no other one does.
        coord: starts the workers.
        name: the name of the stream in messages, and of its workers.
        fit: converts each example to what is delivered, or raises.
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
        self._is_async: bool | None = None  # whether tasks iterate over it; None before the first
        pipeline: BasePipeline[Any] = BasePipeline(whole_run(source), tuple(stages))
        if resume is None:
            self._begin(pipeline, ResumePoint(0))
        else:
            self._begin(*_checked(pipeline, resume))

    def _was_forked(self) -> None:
        what = f"the stream '{self._name}'"
        self._turns, self._steps = inherited_object(what), inherited_object(what, self._steps)

    # Beginning.

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin behind a position, with new workers."""
        call_with_lock(self._turns.lock, self._load, state)

    def _load(self, state: Mapping[str, Any]) -> None:
        if self._is_async is not None:
            raise RuntimeError(
                "load_state_dict was called after the first batch was taken, so the workers already"
                " prepare batches from the beginning: make a new stream with resume=state"
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
        # How many batches were delivered, and how many examples were in them.
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
            OutOfRangeError: the stream has ended.
        """
        return call_with_lock(self._turns.lock, self._take)

    def _take(self) -> Any:
        self._check(is_async=False)
        try:
            return self.give(self._taken())
        except Exception:
            raise
        except BaseException:  # Ctrl-C: elements that had just left the queue are lost
            self._was_interrupted = True
            raise

    def _taken(self) -> Taken:
        node, steps = self._node, self._steps
        return steps.at_hand(node) or drive(steps.taking(node), steps.step)

    async def take_async(self) -> Any:
        """The next batch, for a task.

        Raises:
            OutOfRangeError: the stream has ended.

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
            raise TypeError(
                f"this stream was begun with `{used}`, not with `{other}`; continue with `{used}`"
            )
        if self._was_interrupted:
            raise RuntimeError(
                f"'{self._name}' was interrupted while it made a batch, so it cannot continue: make"
                " a new stream with resume=stream.state_dict()"
            )
        if self._has_ended:
            raise OutOfRangeError("the source has ended")

    def give(self, taken: Taken) -> Any:
        """Count a batch that was taken, and return it.

        Raises:
            OutOfRangeError: the end was taken.
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

    # Any thread may call the following.

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that was taken."""
        standing = self._steps.between(self._standing)
        if self._positions is None:
            self._positions = PipelinePositions(self._pipeline)
        return self._positions.behind(standing)

    def _standing(self) -> ResumePoint:
        skip, length = self._steps.skip, self._first.length
        point = ResumePoint(
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
            return point
        state = self._node.state()
        return point._replace(epoch=state["epoch"], batches=state["given"], node=state)

    def statistics(self) -> BatchStatistics | BucketStatistics:
        """The counts so far."""
        if isinstance(self._node, BucketNode):
            return self._node.statistics()
        ready = self._preparing.statistics().examples - self._given
        return BatchStatistics(self._batches, self._given, max(0, ready))

    def close(self) -> None:
        """End the stream and its workers."""
        self.queue.close(cancel_pending_enqueues=True)

    def describe(self) -> str:
        """The stages and the source, for the `repr` of the stream."""
        what = ", ".join(f"{stage.name} {stage.details()}" for stage in self._pipeline.stages[1:])
        return f"of {what} from {self._pipeline.source!r}"


def _checked(
    pipeline: BasePipeline[Any], position: Mapping[str, Any]
) -> tuple[BasePipeline[Any], ResumePoint]:
    """Check that a position belongs to a stream. Returns its pipeline, and where the run stands.

    Raises:
        InvalidArgumentError: it does not belong to it.
    """
    pipeline, standing = checked_standing(pipeline, position)
    source: Any = pipeline.source
    length = standing.length
    if length is not None and not source.ends_behind(length):
        raise misplaced(
            f"one at the end of a run of {length} items",
            f"one of a run of the same length: {source!r} ends elsewhere, or never",
        )
    return pipeline, standing


def _itself(item: Any) -> Any:
    return item
