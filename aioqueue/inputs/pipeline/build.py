"""Builds the nodes, queues and workers of a pipeline from its description.

`Builder` walks over the stages once, from the source to the last one. Each stage makes its node on
top of the node before. A stage with workers cuts this chain: its workers read the nodes before it
through a `StageInput`, and the nodes after it read the queue that the workers fill.
"""

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

from aioqueue import AsyncQueue, InvalidArgumentError, sync
from aioqueue.arguments import function_name, makes_several, name_of_work
from aioqueue.inputs.core.base_source import BaseSource
from aioqueue.inputs.core.items import Quarantined
from aioqueue.inputs.core.positions import refusing_wrong_values
from aioqueue.inputs.core.ranks import EpochEntries, Rank
from aioqueue.inputs.core.shuffling import derive_seed
from aioqueue.inputs.pipeline.combining import CombiningNode, CombiningStage
from aioqueue.inputs.pipeline.description import BasePipeline, BaseStage, gives_batches
from aioqueue.inputs.pipeline.node import EpochRange, Node, State
from aioqueue.inputs.pipeline.queue_loans import RunLoans
from aioqueue.inputs.pipeline.rank_state import (
    DeliveryNode,
    ItemNames,
    RankLedger,
    RankPadding,
    RunItemNames,
    RunLedgers,
)
from aioqueue.inputs.pipeline.source_node import SourceNode, StageInput
from aioqueue.inputs.pipeline.stages import (
    Filter,
    Flat,
    MapBatches,
    Prepare,
    Read,
    Shard,
    Shuffle,
    ToDevice,
    as_pipeline,
    length_behind,
    rank_of,
)
from aioqueue.inputs.pipeline.take_skip_window import Enumerate, Skip, Take
from aioqueue.inputs.pipeline.transform_nodes import FilterNode, MakingTransform, Transform
from aioqueue.inputs.pipeline.worker_node import QueueNode
from aioqueue.inputs.prepare.introspection import NodePart
from aioqueue.inputs.prepare.runner import AsyncPrepareRunner, PrepareRunner, prepare_items
from aioqueue.inputs.statistics import StageStatistics
from aioqueue.locks import call_with_lock
from aioqueue.telemetry import Watch

PipelineT = TypeVar("PipelineT", bound=BasePipeline[Any])

_log: Final = logging.getLogger("aioqueue")

AnyRunner: TypeAlias = AsyncPrepareRunner | PrepareRunner


class Builder:
    """Makes the nodes of a pipeline, and starts the workers between them.

    The last four arguments are those of the enclosing builder, if this one builds a pipeline that
    is mixed into another. ``None`` makes new ones.

    Args:
        pipeline: the description.
        span: the epochs to deliver.
        start: starts a queue runner.
        watch: where monitors find the parts of the run.
        is_async: whether tasks use the pipeline, and not threads.
        rest: what an earlier number of ranks has left; ``None`` without such a run.
        is_named: whether a journal records the items, so that rows carry their provenance.
        books: the ledgers or item names of the run.
        making: the nodes of the run that make rows of several others.
        branch: a prefix that names this pipeline among those that are mixed together.
        names: how many queues of the run have each name.
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
        elif books is None and any(one._reads_queue for one in sources_of(pipeline)):
            books = RunLoans()
        elif books is None and is_named:
            books = RunItemNames()
        self._books = books
        self._ledger: RankLedger | ItemNames | None = None
        if self._books is None:
            self._entries = EpochEntries(pipeline.source, self._rank)
        else:
            self._entries, self._ledger = self._books.open(pipeline.source, self._rank)
        self._making: list[MakingTransform] = [] if making is None else making
        self._place = 0  # the place of the stage that is being built
        self._working: list[WorkerStage | Builder] = []
        self._branch = branch
        self._names: Counter[str] = Counter() if names is None else names
        self.parts: list[NodePart] = []
        """What monitors see of the nodes."""
        self._unread: list[NodePart] = []  # the parts behind the last stage with workers so far
        self._reads: str | None = None  # the queue that the next stage reads; None: the source

    def run(
        self,
        state: State | None = None,
        stages: Sequence[State] = (),
        layouts: Sequence[Mapping[str, Any] | None] = (),
    ) -> Node:
        """Build the nodes, restore a state, and start the workers. Returns the last node.

        Args:
            state: the state of the last node; ``None`` for the beginning.
            stages: the `tallies` of an earlier run; empty for a new run.
            layouts: the `layouts` of that run.
        """
        node = self.build()
        if isinstance(self._books, RunLedgers):
            node = DeliveryNode(node, self._books)
        if state is not None or stages or layouts:
            with refusing_wrong_values():
                if state is not None:
                    node.restore(state)
                self.go_on(stages, layouts)
        # Monitors know the parts before the workers start: the first call may be the slow one.
        self._watch.add(*(runner._stage for runner in self.runners()), *self.parts)
        for runner in self.runners():
            self.start(runner)
        return node

    def go_on(self, stages: Sequence[State], layouts: Sequence[Mapping[str, Any] | None]) -> None:
        """Continue the counts of items, and the layouts of batches, of an earlier run.

        Args:
            stages: its `tallies`; empty for none.
            layouts: its `layouts`; empty for none.
        """
        for working, tally in zip(self._all_working() if stages else (), stages, strict=True):
            working.go_on(tally)
        for node, layout in zip(self._making if layouts else (), layouts, strict=True):
            if node.collator is not None:
                node.collator.go_on(layout)

    @property
    def loans(self) -> RunLoans | None:
        """What the run takes from queues; ``None`` if it reads none."""
        return self._books if isinstance(self._books, RunLoans) else None

    def runners(self) -> list[Any]:
        """The runners of all stages with workers, also those of branches."""
        return [one for working in self._working for one in working.runners()]

    def build(self) -> Node:
        """Build the nodes without starting workers. Returns the last node."""
        node: Node = SourceNode(self._entries, self._span, self._ledger)
        self._measure(node, "source", "source", ("next_entries",))
        for place, stage in enumerate(self._stages):
            self._place = place
            node = stage.node(node, self)
            if isinstance(node, CombiningNode):
                node.stage = told_stage(stage)
                if node.measured:
                    self._measure(node, stage.function_name(), stage.name, node.measured)
            if isinstance(node, Transform) and not node.stage:
                node.stage = told_stage(stage)
                self._measure(node, stage.function_name(), stage.name, node.measured)
                if isinstance(node, MakingTransform):
                    self._note(node)
        return node

    def _measure(self, node: Node, name: str, kind: str, methods: Sequence[str]) -> None:
        """Let monitors measure the time that is spent in a node."""
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
        """A seed for the next stage of this kind; the first `prepare` uses the source's seed."""
        number = self._seen[kind]
        self._seen[kind] += 1
        seed = self._entries.source._stage_seed
        if kind == "prepare" and not number:
            return seed
        tag = int.from_bytes(kind.encode(), "little")
        return derive_seed(seed, tag + number)

    def _items_of(self, place: int) -> Callable[[int], int | None]:
        """Returns a function: how many items a stage surely receives in an epoch, or ``None``."""
        if any(isinstance(stage, Prepare) and stage.may_skip() for stage in self._stages[:place]):
            return lambda epoch: None
        # A partial and no bound method: a node keeps it, and we keep the node, so a reference back
        # to us would be a cycle.
        return partial(_length_after, self._entries, self._stages[:place])

    def largest_batch(self) -> int:
        """How many rows of this stage the later stages need for one row, up to the next workers."""
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
        fed_by = self._fed_by()
        if fed_by is not None and self.loans is None:  # which know whether it goes back instead
            runner._finishes(fed_by)
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
            return node  # only user functions skip items, so no other stage needs padding
        return RankPadding(
            node,
            lambda: node.items_of_epoch,
            keep=max(1, self.largest_batch()),
            apart=self._may_be_written_to(stage),
        )

    def _fed_by(self) -> AsyncQueue | sync.BlockingQueue | None:
        """The queue whose elements are the rows before this stage, one for one, or none."""
        before = self._stages[: self._place]
        if all(map(_keeps_rows_apart, before)):
            return self._entries.source._fed_by
        return None

    def _may_be_written_to(self, stage: BaseStage) -> bool:
        """Whether the user may have changed an example that rank padding repeats later.

        That needs two things: items of the stage may be skipped, so that others are repeated. And
        the user receives the examples themselves, and not copies that a later stage makes.
        """
        if isinstance(stage, Prepare) and not stage.may_skip():
            return False
        after = self._stages[self._place + 1 :]
        handed = next((one for one in after if not one.passes_on()), None)
        return handed is None or not handed.copies()

    def _queue_name(self, stage: BaseStage) -> str:
        """The name of the queue behind a stage, and of its workers.

        It is the name of the stage or its function; the second of one name is ``decode-2``.
        """
        function = stage.function if isinstance(stage, Prepare) else None
        name = stage.name if function is None else name_of_work(function, stage.name)
        self._names[name] += 1
        number = self._names[name]
        return name if number == 1 else f"{name}-{number}"

    def _runner(self, feeding: StageInput, function: Any, into: Any, options: Any) -> AnyRunner:
        return prepare_items(feeding, function, into=into, **options)

    def branch(self, pipeline: BasePipeline[Any]) -> Node:
        """Build a pipeline that is mixed into this one. Returns its last node."""
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
        """The name of the queue that the user's loop waits at; ``None`` without a queue."""
        return self._reads

    def tallies(self) -> list[State]:
        """The counts of items of each stage with workers, up to the last row that was used."""
        return [working.tally() for working in self._all_working()]

    def layouts(self) -> list[Any]:
        """The dtypes and shapes that the first example has fixed, for each node that makes batches
        or packed rows; empty before the first example."""
        found = [node.collator and node.collator.layout for node in self._making]
        return found if any(found) else []

    def _all_working(self) -> Iterator[WorkerStage]:
        for one in self._working:
            if isinstance(one, Builder):
                yield from one._all_working()
            else:
                yield one

    def statistics(self) -> tuple[StageStatistics, ...]:
        """The statistics of the stages with workers, in order."""
        return tuple(one for working in self._working for one in working.statistics())

    def quarantine(self) -> list[Quarantined]:
        """The damaged files that the source has left out, and the items that were skipped so far,
        stage by stage."""
        found = self._pipeline.source._damaged_files()
        return [*found, *(one for working in self._working for one in working.quarantine())]


class WorkerStage(NamedTuple):
    """A stage with workers, as it was built."""

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


def _keeps_rows_apart(stage: BaseStage) -> bool:
    """Whether each row that a stage gives is one of those that it receives, or made of one alone,
    and of each at most one is."""
    if isinstance(stage, Prepare):
        return not (isinstance(stage, Flat | MapBatches) or makes_several(stage.function))
    return isinstance(stage, Read | Filter | Shuffle | Take | Skip | Enumerate)


def told_stage(stage: BaseStage) -> str:
    """A short description of a stage: its name and its most important arguments."""
    return f"{stage.name} {stage.details()}".strip()


def once_only(pipeline: BasePipeline[Any]) -> BaseSource[Any] | None:
    """The first source of a pipeline that you can iterate over only once, or ``None``."""
    source = pipeline.source
    if source._is_once:
        return source
    branches = [one for stage in pipeline.stages for one in stage.branches()]
    return next(filter(None, map(once_only, branches)), None)


def sources_of(pipeline: BasePipeline[Any]) -> list[BaseSource[Any]]:
    """All sources of a pipeline: its own, then those of the pipelines that are mixed in."""
    found = [pipeline.source]
    for stage in pipeline.stages:
        if stage.combines:
            found += [one for branch in stage.branches() for one in sources_of(branch)]
    return found


def _built_stages(pipeline: BasePipeline[Any]) -> list[BaseStage]:
    """The stages in order. If the source is an async iterable, a stage that reads it comes first.

    That stage reads in a task of its own. If the user's task read an async generator itself, a
    cancellation of that task would end the generator.
    """
    source = pipeline.source
    reading = [Read(source.name)] if source._is_async else []
    return [*reading, *pipeline.stages]


def is_elastic(pipeline: BasePipeline[Any]) -> bool:
    """Whether a run records which items were delivered, so that the number of ranks can change."""
    stages, source = pipeline.stages, pipeline.source
    return (
        source._is_repeatable
        and not (source._is_async or source._reads_queue)
        and any(isinstance(stage, Shard) for stage in stages)
        and all(stage.is_elastic() for stage in stages)
        and all(is_elastic(branch) for stage in stages for branch in stage.branches())
    )


def _length_after(entries: EpochEntries, stages: Sequence[BaseStage], epoch: int) -> int | None:
    """How many rows some stages make in an epoch; ``None`` if that is unknown."""
    return length_behind(stages, entries.length(epoch))


def length_of(pipeline: BasePipeline[Any], rest: State | None = None, epoch: int = 0) -> int | None:
    """How many rows an epoch of a pipeline has; ``None`` if that is unknown.

    Args:
        pipeline: the pipeline.
        rest: what an earlier number of ranks has left.
        epoch: the number of the epoch.
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
    """How many epochs in a row may be empty although the source has items.

    One may be: all its items were skipped, or were delivered before a resume. With
    ``across_epochs`` one batch may need the examples of several epochs.
    """
    return prod(stage.needs() for stage in pipeline.stages if stage.goes_on())


def checked(pipeline: PipelineT) -> PipelineT:
    """Check that source and stages fit together. Returns the pipeline with all seeds filled in.

    Raises:
        InvalidArgumentError: they do not fit.
    """
    source, stages = pipeline.source, pipeline.stages
    refusal = source._without_epochs()
    if refusal is not None:
        raise refusal
    for one in sources_of(pipeline):
        _check_repeats(one)
    stages = tuple(_seeded(stage, source) for stage in stages)
    pipeline = pipeline._made_of(source, stages)
    _check_after_device(stages)
    _check_batches(source, stages)
    shards = [stage for stage in stages if isinstance(stage, Shard)]
    if len(shards) > 1:
        raise InvalidArgumentError("shard: got it twice; expected one rank per pipeline")
    if shards and stages[-1] is shards[0]:
        if shards[0].rank.ranks > 1 and source._has_drawn_seed and not source._has_own_order:
            _log.warning(
                "shard: %r has no seed, so each rank draws its own: the random generators of items"
                " differ between ranks, and you cannot merge the positions of these ranks to change"
                " their number. Pass the same seed on all ranks, such as seed=0",
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
                    f" `{stage.name}`, whose number of rows depends on the data, so ranks cannot"
                    " have equal numbers of batches; expected uneven='allow', and a loop in which"
                    " all ranks agree on the number of steps"
                )
    return pipeline


def _check_repeats(source: BaseSource[Any]) -> None:
    """Refuse a source with ``epochs=``: the pipeline decides how many epochs there are."""
    if source._epochs_per_run not in (None, 1):
        raise InvalidArgumentError(
            f"epochs: got {source._epochs_per_run} for {source.name}, the source of a pipeline;"
            " expected no epochs= there: call .epochs(n) on the pipeline instead. To repeat a small"
            " corpus within one epoch, repeat the source, as in small.repeat(3)"
        )
    for part in source._inner_sources:
        _check_repeats(part)


def _seeded(stage: BaseStage, source: BaseSource[Any]) -> BaseStage:
    """Give the sources of other pipelines that have no seed one: derived from the seed of the
    stage, or from the seed of the main source."""
    if not isinstance(stage, CombiningStage):
        return stage
    if stage.own_seed is None and source._has_drawn_seed:
        return stage
    seed = source.seed if stage.own_seed is None else int(stage.own_seed)
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
    """Refuse sources whose order differs between ranks: their shards would overlap, and would
    leave items out."""
    for source in sources_of(pipeline):
        if source._has_own_order:
            raise InvalidArgumentError(
                f"seed: got none for {source.name!r}, so each rank would draw an order of its own;"
                " expected the same seed on all ranks: otherwise their shards overlap, and leave"
                " items out"
            )


def _check_after_device(stages: Sequence[BaseStage]) -> None:
    names = [stage.name for stage in stages if not isinstance(stage, Take | Shard)]
    if ToDevice.name in names[:-1]:
        after = names[names.index(ToDevice.name) + 1]
        raise InvalidArgumentError(
            f"{after}: got it after `to_device`; expected it before, because stages work with"
            " arrays in host memory (only `take` and `shard` may follow, which do not touch them)"
        )


def _check_batches(source: BaseSource[Any], stages: Sequence[BaseStage]) -> None:
    """What is called with batches comes behind what makes some."""
    for at, stage in enumerate(stages):
        if isinstance(stage, MapBatches) and not gives_batches(source, stages[:at]):
            raise InvalidArgumentError(
                "size: got none for map_batches, and no stage before makes batches; expected how"
                " many examples make one, map_batches(function, size), or"
                " batch(size).map_batches(function); where the items of the source are batches,"
                " prepare(function)"
            )


def _sharded(stage: BaseStage, rank: Rank) -> BaseStage:
    """A stage before `shard`: the pipelines that it brings in are sharded for this rank, too."""
    if not isinstance(stage, CombiningStage):
        return stage
    others = [
        checked(one._made_of(one.source, (*one.stages, Shard(rank)))) for one in stage.branches()
    ]
    return replace(stage, others=tuple(others))


_lock: Final = threading.RLock()  # guards _passes
_passes: Final[WeakKeyDictionary[BasePipeline[Any], int]] = WeakKeyDictionary()


def warn_if_reiterated(pipeline: BasePipeline[Any]) -> None:
    """Log a warning at the second iteration over a pipeline itself, unless its epochs are equal.

    Iterating over a pipeline gives its first epoch each time. The data loaders of other libraries
    give another order each time, so users write ``for epoch in range(3): for batch in train: ...``.
    That would train three times on the same order without any sign of it.
    """
    if call_with_lock(_lock, _counted, pipeline) == 2 and _is_random(pipeline):
        _log.warning(
            "you iterate over %r again: each time you get epoch 0, with the same order and the same"
            " random generators. Use `for epoch in pipeline.epochs(n):` to get other epochs",
            pipeline,
        )


def _counted(pipeline: BasePipeline[Any]) -> int:
    count = _passes[pipeline] = _passes.get(pipeline, 0) + 1
    return count


def _is_random(pipeline: BasePipeline[Any]) -> bool:
    return any(source._is_shuffled for source in sources_of(pipeline)) or any(
        stage.draws() or any(map(_is_random, stage.branches())) for stage in pipeline.stages
    )
