"""From the description of a pipeline to nodes, queues and workers."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from aioqueue import InvalidArgumentError, sync
from aioqueue.arguments import function_name, name_of_work
from aioqueue.inputs.core.base_source import BaseSource
from aioqueue.inputs.core.items import Quarantined
from aioqueue.inputs.core.ranks import EpochEntries, Rank
from aioqueue.inputs.core.shuffling import derive_seed
from aioqueue.inputs.pipeline.description import BasePipeline, BaseStage
from aioqueue.inputs.pipeline.inspection import NodePart
from aioqueue.inputs.pipeline.node import EpochRange, Node, State
from aioqueue.inputs.pipeline.rank_state import (
    DeliveryNode,
    ItemNames,
    RankLedger,
    RankPadding,
    RunItemNames,
    RunLedgers,
)
from aioqueue.inputs.pipeline.source_node import SourceNode
from aioqueue.inputs.pipeline.stage_input import StageInput
from aioqueue.inputs.pipeline.stages import (
    Mix,
    Prepare,
    Read,
    Shard,
    Take,
    ToDevice,
    as_pipeline,
    length_behind,
    rank_of,
)
from aioqueue.inputs.pipeline.transform_nodes import FilterNode, MakingTransform, Transform
from aioqueue.inputs.pipeline.worker_node import QueueNode
from aioqueue.inputs.prepare.runner import AsyncPrepareRunner, PrepareRunner, prepare_items
from aioqueue.inputs.statistics import StageStatistics
from aioqueue.locks import holding
from aioqueue.telemetry import Watch

__all__ = (
    "AnyRunner",
    "Builder",
    "WorkerStage",
    "checked",
    "is_elastic",
    "length_of",
    "most_empty",
    "once_only",
    "sources_of",
    "told_stage",
    "warn_if_reiterated",
)

PipelineT = TypeVar("PipelineT", bound=BasePipeline[Any])

_log: Final = logging.getLogger("aioqueue")

AnyRunner: TypeAlias = AsyncPrepareRunner | PrepareRunner


class Builder:
    """Makes the nodes of a pipeline, and starts the workers between them.

    Args:
        pipeline: the description.
        span: the epochs to go through.
        start: starts a queue runner.
        watch: what monitors see of it.
        is_async: whether it runs for tasks.
        rest: what another number of ranks has left; ``None`` if none were there.
        is_named: whether somebody keeps a journal of the items.
        books: of the run that it is a part of; ``None`` for those of its own.
        making: the nodes of that run that make rows of several others; the same.
        branch: names a pipeline that is built beside another, among all of them.
        names: how many queues of that run have each name; the same.
    """

    _feeding = StageInput
    _queue_node = QueueNode

    def __init__(
        self,
        pipeline: BasePipeline[Any],
        span: EpochRange,
        start: Callable[[Any], object],
        watch: Watch,
        *,
        is_async: bool,
        rest: State | None = None,
        is_named: bool = False,
        books: RunLedgers | RunItemNames | None = None,
        making: list[MakingTransform] | None = None,
        branch: str = "",
        names: Counter[str] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._span = span
        self.start = start
        self._watch = watch
        self._is_async = is_async
        self._seen: Counter[str] = Counter()
        self._stages = _built_stages(pipeline)
        self._rank = rank_of(self._stages)
        if books is None and is_elastic(pipeline):
            books = RunLedgers(rest)
        elif books is None and is_named:
            books = RunItemNames()
        self._books = books
        self._ledger: RankLedger | ItemNames | None = None
        if self._books is None:
            self._entries = EpochEntries(pipeline.source, self._rank)
        else:
            self._entries, self._ledger = self._books.open(pipeline.source, self._rank)
        self._making: list[MakingTransform] = [] if making is None else making
        self._place = 0  # of the stage that is being built
        self._working: list[WorkerStage | Builder] = []
        self._branch = branch
        self._names: Counter[str] = Counter() if names is None else names
        self.parts: list[NodePart] = []
        """What monitors see of the nodes."""
        self._unread: list[NodePart] = []  # those that no stage with workers takes from
        self._reads: str | None = None  # name of the queue that rows come from at that place

    def run(
        self,
        state: State | None = None,
        stages: Sequence[State] = (),
        layouts: Sequence[Mapping[str, Any] | None] = (),
    ) -> Node:
        """Build it, go to a state, and start the workers; returns where its rows come from.

        Args:
            state: of the last node; ``None`` for the beginning.
            stages: what `tallies` of an earlier run gave; none for one that begins.
            layouts: what its `layouts` gave.
        """
        node = self.build()
        if isinstance(self._books, RunLedgers):
            node = DeliveryNode(node, self._books)
        if state is not None:
            node.restore(state)
        self.go_on(stages, layouts)
        # Before they start: the first call may be the one that takes long.
        self._watch.add(*(runner._stage for runner in self.runners()), *self.parts)
        for runner in self.runners():
            self.start(runner)
        return node

    def go_on(self, stages: Sequence[State], layouts: Sequence[Mapping[str, Any] | None]) -> None:
        """Begin with what has become of items in an earlier run, and with what it has decided; with
        nothing, if it has kept none."""
        for working, tally in zip(self._all_working() if stages else (), stages, strict=True):
            working.go_on(tally)
        for node, layout in zip(self._making if layouts else (), layouts, strict=True):
            if node.collator is not None:
                node.collator.go_on(layout)

    def runners(self) -> list[Any]:
        """All that prepare, those of branches as well."""
        return [one for working in self._working for one in working.runners()]

    def build(self) -> Node:
        """Build it; returns where its rows come from."""
        node: Node = SourceNode(self._entries, self._span, self._ledger)
        self._measure(node, "source", "source", ("next_entries",))
        for place, stage in enumerate(self._stages):
            self._place = place
            node = stage.node(node, self)
            if isinstance(node, Transform) and not node.stage:
                node.stage = told_stage(stage)
                self._measure(node, stage.function_name(), stage.name, node.measured)
                if isinstance(node, MakingTransform):
                    self._note(node)
        return node

    def _measure(self, node: Node, name: str, kind: str, methods: Sequence[str]) -> None:
        """Let monitors see what is spent in a node."""
        key = f"function-{self._branch}{self._place}-{kind}"
        is_sampled = isinstance(node, FilterNode | SourceNode)
        node.part = NodePart(node, key, name, kind, methods, is_sampled=is_sampled)
        self.parts.append(node.part)
        self._unread.append(node.part)

    def _note(self, node: MakingTransform) -> None:
        self._making.append(node)
        if isinstance(self._books, RunLedgers):
            node.first = self._books.begun

    def seed(self, kind: str) -> int:
        """A seed for the next stage of this kind; the first `prepare` has that of the source."""
        number = self._seen[kind]
        self._seen[kind] += 1
        seed = self._entries.source._stage_seed
        if kind == "prepare" and not number:
            return seed
        tag = int.from_bytes(kind.encode(), "little")
        return derive_seed(seed, tag + number)

    def length_before(self, place: int, epoch: int) -> int | None:
        """How many rows come in to a stage in an epoch, where that is known."""
        return _length_after(self._entries, self._stages[:place], epoch)

    def _items_of(self, place: int) -> Callable[[int], int | None]:
        """Tells how many items are sure to come to a stage in an epoch, where that is known."""
        if any(isinstance(stage, Prepare) and stage.may_skip() for stage in self._stages[:place]):
            return lambda epoch: None
        # It goes to a node that we keep, so it does not keep us.
        return partial(_length_after, self._entries, self._stages[:place])

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
        buffer_size: int,
        options: dict[str, Any],
        at_once: int | None = None,
    ) -> Node:
        """Start workers that prepare the rows of a node."""
        stage = self._stages[self._place]
        seed = options.pop("seed", self._entries.source._stage_seed)
        is_source = isinstance(upstream, SourceNode)
        feeding = self._feeding(upstream, seed, blocking=not is_source or self._entries.blocking)
        name = self._queue_name(stage)
        queue = sync.FIFOQueue(buffer_size, name=name)
        into = queue.aio if self._is_async else queue
        runner = self._runner(feeding, function, into, options)
        called = function_name(stage.function) if isinstance(stage, Prepare) else stage.name
        runner.is_part(self._watch, name, called, self._reads)
        for part in self._unread:
            part.within = name
        self._unread = []
        self._reads = name
        is_one_to_one = stage.length(1) == 1
        node = self._queue_node(
            queue,
            feeding,
            items=self._items_of(self._place),
            is_one_to_one=is_one_to_one,
            keeps_order=options["ordered"],
            at_once=at_once,
            line=runner.line,
            is_traced=self._books is not None,
        )
        self._working.append(WorkerStage(stage, runner, queue, node))
        if self._rank.ranks == 1 or self._rank.uneven == "allow" or not isinstance(stage, Prepare):
            return node  # only functions of the user skip items
        return RankPadding(
            node,
            lambda: node.items_of_epoch,
            keep=max(1, self.largest_batch()),
            apart=self._may_be_written_to(stage),
        )

    def _may_be_written_to(self, stage: BaseStage) -> bool:
        """Whether some of a stage's items may be skipped, so that others come again, and somebody
        is given those as they are: only a stage that copies them comes before that."""
        if isinstance(stage, Prepare) and not stage.may_skip():
            return False
        after = self._stages[self._place + 1 :]
        handed = next((one for one in after if not one.passes_on()), None)
        return handed is None or not handed.copies()

    def _queue_name(self, stage: BaseStage) -> str:
        """What the queue behind a stage is called, and its workers: as that; the second one of a
        name is ``decode-2``."""
        function = stage.function if isinstance(stage, Prepare) else None
        name = stage.name if function is None else name_of_work(function, stage.name)
        self._names[name] += 1
        number = self._names[name]
        return name if number == 1 else f"{name}-{number}"

    def _runner(self, feeding: StageInput, function: Any, into: Any, options: Any) -> AnyRunner:
        return prepare_items(feeding, function, into=into, **options)

    def branch(self, pipeline: BasePipeline[Any]) -> Node:
        """Build another pipeline beside this one."""
        branch = f"{self._branch}{len(self._working)}."
        builder = Builder(
            pipeline,
            self._span,
            self.start,
            self._watch,
            is_async=self._is_async,
            books=self._books,
            making=self._making,
            branch=branch,
            names=self._names,
        )
        self._working.append(builder)
        node = builder.build()
        self.parts += builder.parts
        self._unread += builder._unread
        return node

    @property
    def last_queue(self) -> str | None:
        """Name of the queue that whoever goes through the pipeline waits at, if there is one."""
        return self._reads

    def tallies(self) -> list[State]:
        """What has become of the items of each stage that has workers, as far as they were used."""
        return [working.tally() for working in self._all_working()]

    def layouts(self) -> list[Any]:
        """What the first example has decided that came to each node which makes rows of several
        others; nothing if none has."""
        found = [node.collator and node.collator.layout for node in self._making]
        return found if any(found) else []

    def _all_working(self) -> Iterator[WorkerStage]:
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


class WorkerStage(NamedTuple):
    """A stage that has workers."""

    stage: BaseStage
    runner: AnyRunner
    queue: sync.FIFOQueue
    node: QueueNode

    def tally(self) -> State:
        return {**self.node.tally(), "quarantine": self.runner._sign}

    def go_on(self, tally: State) -> None:
        self.runner._go_on(*self.node.go_on(tally), sign=tally["quarantine"])

    def runners(self) -> list[Any]:
        return [self.runner]

    def statistics(self) -> tuple[StageStatistics, ...]:
        name = told_stage(self.stage)
        counts = vars(self.runner.statistics())
        return (StageStatistics(name, self.queue.statistics().size, **counts),)

    def quarantine(self) -> list[Quarantined]:
        return self.runner.quarantine


def told_stage(stage: BaseStage) -> str:
    """What a stage is, in few words."""
    return f"{stage.name} {stage.details()}".strip()


def once_only(pipeline: BasePipeline[Any]) -> BaseSource[Any] | None:
    """A source of a pipeline that can be gone through once, if it has one."""
    source = pipeline.source
    if source._is_once:
        return source
    branches = [one for stage in pipeline.stages for one in stage.branches()]
    return next(filter(None, map(once_only, branches)), None)


def sources_of(pipeline: BasePipeline[Any]) -> list[BaseSource[Any]]:
    """All sources of a pipeline: its own, and then those of what is mixed in, in order."""
    found = [pipeline.source]
    for stage in pipeline.stages:
        found += [one for branch in stage.branches() for one in sources_of(branch)]
    return found


def _built_stages(pipeline: BasePipeline[Any]) -> list[BaseStage]:
    """What is done, in order: that of an async iterable begins with reading it.

    That takes a task of its own: a cancellation of whoever asks for a row would end a generator.
    """
    source = pipeline.source
    reading = [Read(source.name)] if source._is_async else []
    return [*reading, *pipeline.stages]


def is_elastic(pipeline: BasePipeline[Any]) -> bool:
    """Whether it is written down which items were delivered: of a rank, if there can be others."""
    stages, source = pipeline.stages, pipeline.source
    return (
        source._is_repeatable
        and not source._is_async
        and any(isinstance(stage, Shard) for stage in stages)
        and all(stage.is_elastic() for stage in stages)
        and all(is_elastic(branch) for stage in stages for branch in stage.branches())
    )


def _length_after(entries: EpochEntries, stages: Sequence[BaseStage], epoch: int) -> int | None:
    """How many rows come out of some stages in an epoch, where that is known."""
    return length_behind(stages, entries.length(epoch))


def length_of(pipeline: BasePipeline[Any], rest: State | None = None, epoch: int = 0) -> int | None:
    """How much an epoch of a pipeline gives, where that is known.

    Args:
        pipeline: that makes it.
        rest: what another number of ranks has left.
        epoch: which.
    """
    stages, source, rank = pipeline.stages, pipeline.source, rank_of(pipeline.stages)
    if rest is None or str(epoch) not in rest["epochs"]:
        return length_behind(stages, EpochEntries(source, rank).length())
    if any(stage.branches() for stage in stages):
        return None
    books = RunLedgers(rest)
    left = length_behind(stages, books.open(source, rank)[0].length(epoch))
    return None if left is None else books.begun(epoch) + left


def most_empty(pipeline: BasePipeline[Any]) -> int:
    """How many epochs in a row may give nothing where there are items: one whose items are skipped
    or are gone; or as many as a batch is collected over."""
    return prod(stage.needs() for stage in pipeline.stages if stage.goes_on())


def checked(pipeline: PipelineT) -> PipelineT:
    """Check that source and stages fit together.

    Raises:
        InvalidArgumentError: they do not.
    """
    source, stages = pipeline.source, pipeline.stages
    if not isinstance(source, BaseSource):
        raise InvalidArgumentError(f"source: got {source!r}; expected one of aioqueue.inputs")
    refusal = source._without_epochs()
    if refusal is not None:
        raise refusal
    for one in sources_of(pipeline):
        _check_repeats(one)
    stages = tuple(_seeded(stage, source) for stage in stages)
    pipeline = pipeline._made_of(source, stages)
    _check_after_device(stages)
    shards = [stage for stage in stages if isinstance(stage, Shard)]
    if len(shards) > 1:
        raise InvalidArgumentError("shard: got it twice; expected one rank per pipeline")
    if shards and stages[-1] is shards[0]:
        if shards[0].rank.ranks > 1 and source._has_drawn_seed and not source._has_own_order:
            _log.warning(
                "shard: %r has no seed, so that each rank draws one: the generators of items differ"
                " from rank to rank, and the positions of these ranks cannot be merged for another"
                " number of them. Give it one, the same on all ranks, as by seed=0",
                source,
            )
        stages = tuple(_sharded(stage, shards[0].rank) for stage in stages)
        pipeline = pipeline._made_of(source, stages)
    if shards and shards[0].rank.ranks > 1:
        _check_common_order(pipeline)
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


def _check_repeats(source: BaseSource[Any]) -> None:
    """How often a run goes through a source means nothing to epochs, which are no runs."""
    if source._epochs_per_run not in (None, 1):
        raise InvalidArgumentError(
            f"epochs: got {source._epochs_per_run} for {source.name}, which a pipeline begins with;"
            " expected none: the epochs of a pipeline are said last, with .epochs(...). To have a"
            " small corpus several times within one epoch, mix it in several times, as by"
            " mix([small, small, large]), or name its paths or items several times"
        )
    for part in source._inner_sources:
        _check_repeats(part)


def _seeded(stage: BaseStage, source: BaseSource[Any]) -> BaseStage:
    """A stage whose sources have no seed takes them from its own, or from that of the source."""
    if not isinstance(stage, Mix) or (stage.seed is None and source._has_drawn_seed):
        return stage
    seed = source.seed if stage.seed is None else int(stage.seed)
    others = enumerate(stage.others, 1)
    return replace(
        stage, others=tuple(_seeded_branch(one, derive_seed(seed, at)) for at, one in others)
    )


def _seeded_branch(given: Any, seed: int) -> Any:
    branch = as_pipeline(given)
    source = branch.source
    if not source._has_drawn_seed:
        return given
    return checked(branch._made_of(source._seeded_by(seed), branch.stages))


def _check_common_order(pipeline: BasePipeline[Any]) -> None:
    """The parts of different orders would overlap, and leave items out."""
    for source in sources_of(pipeline):
        if source._has_own_order:
            raise InvalidArgumentError(
                f"seed: got none for {source!r}, whose order is drawn anew in the program of each"
                " rank; expected one, the same on all ranks: their parts would overlap, and leave"
                " items out"
            )


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
    branches = map(as_pipeline, stage.others)
    others = [checked(one._made_of(one.source, (*one.stages, Shard(rank)))) for one in branches]
    return replace(stage, others=tuple(others))


_lock: Final = threading.RLock()  # guards _passes
_passes: Final[WeakKeyDictionary[BasePipeline[Any], int]] = WeakKeyDictionary()


def warn_if_reiterated(pipeline: BasePipeline[Any]) -> None:
    """Somebody iterates over a pipeline itself, which is its first epoch: the second time, say so
    in the log, unless all epochs are the same.

    Loops over loaders of other libraries get another order each time: ``for epoch in range(3): for
    batch in train: ...`` would train on the same one three times, and nobody would see it.
    """
    if holding(_lock, _counted, pipeline) == 2 and _is_random(pipeline):
        _log.warning(
            "%r is iterated over again: each time that is epoch 0, with the same order and the same"
            " random generators. Use `for epoch in pipeline.epochs(n):` for another one each time",
            pipeline,
        )


def _counted(pipeline: BasePipeline[Any]) -> int:
    count = _passes[pipeline] = _passes.get(pipeline, 0) + 1
    return count


def _is_random(pipeline: BasePipeline[Any]) -> bool:
    return any(source._is_shuffled for source in sources_of(pipeline)) or any(
        stage.draws() or any(map(_is_random, stage.branches())) for stage in pipeline.stages
    )
