"""From the description of a pipeline to nodes, queues and workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final, NamedTuple

from aioqueue import InvalidArgumentError, sync
from aioqueue.inputs.pipeline.feeding import Feeding
from aioqueue.inputs.pipeline.flow import Node, Span, State
from aioqueue.inputs.pipeline.nodes import QueueNode
from aioqueue.inputs.pipeline.sourcing import SourceNode
from aioqueue.inputs.pipeline.stages import (
    BaseStage,
    Mix,
    Prepare,
    Read,
    Shard,
    Take,
    ToDevice,
    as_pipeline,
)
from aioqueue.inputs.pipeline.transforms import Filling
from aioqueue.inputs.prepare.runner import AsyncPrepareRunner, PrepareRunner, prepare_items
from aioqueue.inputs.sources.base import Source
from aioqueue.inputs.sources.epochs import EpochEntries, Rank, TracedEntries
from aioqueue.inputs.sources.item import Quarantined
from aioqueue.inputs.sources.pipeline import Pipeline
from aioqueue.inputs.sources.sequences import Sequential
from aioqueue.inputs.statistics import StageStatistics

__all__ = ("Builder", "checked", "length_of", "source_of", "sources_of", "stages_of")

_GOLDEN: Final = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio: seeds that are this far apart have nothing in common."""


class Builder:
    """Makes the nodes of a pipeline, and starts the workers between them.

    Args:
        pipeline: the description.
        span: the epochs to go through.
        start: starts a queue runner.
        is_async: whether it runs for tasks.
        traces: where somebody keeps a journal: the sources so far, to which its own are added.
    """

    def __init__(
        self,
        pipeline: Pipeline[Any],
        span: Span,
        start: Callable[[Any], object],
        *,
        is_async: bool,
        traces: list[Source[Any]] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._span = span
        self._start = start
        self._is_async = is_async
        self._seen: Counter[str] = Counter()
        self._stages = _built_stages(pipeline)
        self._rank = _rank_of(self._stages)
        self._traces = traces
        self._entries = self._entries_of(source_of(pipeline))
        self._place = 0  # of the stage that is being built
        self._working: list[_Working | Builder] = []

    def run(self, state: State | None = None, stages: Sequence[Sequence[Any]] = ()) -> Node:
        """Build it, go to a state, and start the workers; returns where its rows come from.

        Args:
            state: of the last node; ``None`` for the beginning.
            stages: what `tallies` of an earlier run gave; none for one that begins.
        """
        node = self.build()
        if state is not None:
            node.restore(state)
        for working, tally in zip(self._all_working() if stages else (), stages, strict=True):
            working.go_on(tally)
        for runner in self.runners():
            self._start(runner)
        return node

    def runners(self) -> list[Any]:
        """All that prepare, those of branches as well."""
        return [one for working in self._working for one in working.runners()]

    def build(self) -> Node:
        """Build it; returns where its rows come from."""
        node: Node = SourceNode(self._entries, self._span)
        for place, stage in enumerate(self._stages):
            self._place = place
            node = stage.node(node, self)
        return node

    def seed(self, kind: str) -> int:
        """A seed for the next stage of this kind; the first `prepare` has that of the source."""
        number = self._seen[kind]
        self._seen[kind] += 1
        seed = self._entries.source.seed
        if kind == "prepare" and not number:
            return seed
        tag = int.from_bytes(kind.encode(), "little")
        return (seed + (tag + number) * _GOLDEN) % 2**63

    def length(self) -> int | None:
        """How many rows come in to this stage per epoch, where that is known."""
        return _length(self._entries.length(), self._stages[: self._place])

    def largest_batch(self) -> int:
        """How many rows of this stage one row may need of those after it, up to more workers."""
        after = self._stages[self._place + 1 :]
        stop = next((at for at, stage in enumerate(after) if isinstance(stage, Prepare)), None)
        return prod(stage.needs() for stage in after[:stop])

    def workers(
        self,
        upstream: Node,
        function: Callable[..., Any],
        *,
        ahead: int,
        options: dict[str, Any],
        at_once: int | None = None,
    ) -> Node:
        """Start workers that prepare the rows of a node."""
        stage = self._stages[self._place]
        seed = options.pop("seed", self._entries.source.seed)
        is_source = isinstance(upstream, SourceNode)
        feeding = Feeding(upstream, seed, blocking=not is_source or self._entries.blocking)
        queue = sync.FIFOQueue(ahead, name=f"pipeline-{stage.name}-{self._place}")
        into = queue.aio if self._is_async else queue
        runner = prepare_items(feeding, function, into=into, **options)
        is_one_to_one = stage.length(1) == 1
        node = QueueNode(
            queue,
            feeding,
            items=self.length(),
            is_one_to_one=is_one_to_one,
            keeps_order=options["ordered"],
            at_once=at_once,
        )
        self._working.append(_Working(stage, runner, queue, node))
        if self._rank.ranks == 1 or self._rank.uneven == "allow" or not isinstance(stage, Prepare):
            return node  # only functions of the user skip items
        return Filling(node, lambda: node.items_of_epoch, keep=max(1, self.largest_batch()))

    def branch(self, pipeline: Pipeline[Any]) -> Node:
        """Build another pipeline beside this one."""
        builder = Builder(
            pipeline, self._span, self._start, is_async=self._is_async, traces=self._traces
        )
        self._working.append(builder)
        return builder.build()

    def _entries_of(self, source: Source[Any]) -> EpochEntries:
        if self._traces is None:
            return EpochEntries(source, self._rank)
        self._traces.append(source)
        return TracedEntries(source, self._rank, len(self._traces) - 1)

    def tallies(self) -> list[list[Any]]:
        """What has become of the items of each stage that has workers, as far as they were used."""
        return [working.tally() for working in self._all_working()]

    def _all_working(self) -> Iterator[_Working]:
        for one in self._working:
            if isinstance(one, Builder):
                yield from one._all_working()
            else:
                yield one

    def statistics(self) -> tuple[StageStatistics, ...]:
        """What the stages that have workers have done so far, in order."""
        return tuple(one for working in self._working for one in working.statistics())

    def quarantine(self) -> list[Quarantined]:
        """What was skipped so far, by stages."""
        return [one for working in self._working for one in working.quarantine()]


class _Working(NamedTuple):
    """A stage that has workers."""

    stage: BaseStage
    runner: AsyncPrepareRunner | PrepareRunner
    queue: sync.FIFOQueue
    node: QueueNode

    def tally(self) -> list[Any]:
        return [*self.node.tally(), self.runner._sign]

    def go_on(self, tally: Sequence[Any]) -> None:
        *arrived, sign = tally
        self.runner._go_on(*self.node.go_on(arrived), sign=sign)

    def runners(self) -> list[Any]:
        return [self.runner]

    def statistics(self) -> tuple[StageStatistics, ...]:
        name = f"{self.stage.name} {self.stage.details()}"
        counts = vars(self.runner.statistics())
        return (StageStatistics(name.strip(), self.queue.statistics().size, **counts),)

    def quarantine(self) -> list[Quarantined]:
        return self.runner.quarantine


def source_of(pipeline: Pipeline[Any]) -> Source[Any]:
    """Where the items of a pipeline come from."""
    source: Any = pipeline.source
    return source  # type: ignore[no-any-return]


def sources_of(pipeline: Pipeline[Any]) -> list[Source[Any]]:
    """All sources of a pipeline: its own, and then those of what is mixed in, in order."""
    found = [source_of(pipeline)]
    for stage in stages_of(pipeline):
        found += [one for branch in stage.branches() for one in sources_of(branch)]
    return found


def stages_of(pipeline: Pipeline[Any]) -> list[BaseStage]:
    """The stages of a pipeline."""
    stages: Any = pipeline.stages
    return list(stages)


def _built_stages(pipeline: Pipeline[Any]) -> list[BaseStage]:
    """What is done, in order: that of an async iterable begins with reading it.

    That takes a task of its own: a cancellation of whoever asks for a row would end a generator.
    """
    source = source_of(pipeline)
    reading = [Read(source.name)] if source.is_async else []
    return [*reading, *stages_of(pipeline)]


def _rank_of(stages: Sequence[BaseStage]) -> Rank:
    """Which part of the source is gone through."""
    return next((stage.rank for stage in stages if isinstance(stage, Shard)), Rank())


def length_of(pipeline: Pipeline[Any]) -> int | None:
    """How much an epoch of a pipeline gives, where that is known."""
    stages = stages_of(pipeline)
    return _length(EpochEntries(source_of(pipeline), _rank_of(stages)).length(), stages)


def checked(pipeline: Pipeline[Any]) -> Pipeline[Any]:
    """Check that source and stages fit together.

    Raises:
        InvalidArgumentError: they do not.
    """
    source, stages = source_of(pipeline), stages_of(pipeline)
    if not isinstance(source, Source):
        raise InvalidArgumentError(f"source: got {source!r}; expected one of aioqueue.inputs")
    if isinstance(source, Sequential) and source.epochs not in (None, 1):
        raise InvalidArgumentError(
            f"epochs: got {source.epochs} for {source.name}, which a pipeline begins with; expected"
            " none: the epochs of a pipeline are said last, with .epochs(...)"
        )
    _check_after_device(stages)
    shards = [stage for stage in stages if isinstance(stage, Shard)]
    if len(shards) > 1:
        raise InvalidArgumentError("shard: got it twice; expected one rank per pipeline")
    if shards and stages[-1] is shards[0]:
        stages = [_sharded(stage, shards[0].rank) for stage in stages]
        pipeline = Pipeline(source, tuple(stages))
    if shards and shards[0].rank.uneven != "allow" and shards[0].rank.ranks > 1:
        for stage in stages:
            if stage.depends_on_data():
                raise InvalidArgumentError(
                    f"shard: got uneven={shards[0].rank.uneven!r} with the stage"
                    f" `{stage.name}`, whose number of rows depends on the data, so that ranks"
                    " cannot be made equal; expected uneven='allow', and a loop in which all ranks"
                    " agree on the number of steps"
                )
    return pipeline


def _check_after_device(stages: Sequence[BaseStage]) -> None:
    names = [stage.name for stage in stages if not isinstance(stage, Take | Shard)]
    if ToDevice.name in names[:-1]:
        after = names[names.index(ToDevice.name) + 1]
        raise InvalidArgumentError(
            f"{after}: got it after `to_device`; expected before, since stages work with arrays of"
            " the host (`take` and `shard` may follow, which only count)"
        )


def _sharded(stage: BaseStage, rank: Rank) -> BaseStage:
    """A stage that comes before a shard: what was mixed in is gone through by one rank as well."""
    if not isinstance(stage, Mix):
        return stage
    return replace(
        stage,
        others=tuple(
            as_pipeline(other).shard(rank.rank, rank.ranks, uneven=rank.uneven)
            for other in stage.others
        ),
    )


def _length(rows: int | None, stages: Sequence[BaseStage]) -> int | None:
    for stage in stages:
        rows = stage.length(rows)
    return rows
