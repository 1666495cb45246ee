"""Builds the nodes, queues and workers of a pipeline from its description.

`Builder` walks over the stages once, from the source to the last one. Each stage makes its node on
top of the node before. A stage with workers cuts this chain: its workers read the nodes before it
through a `StageInput`, and the nodes after it read the queue that the workers fill.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from math import prod
from typing import Any, NamedTuple, TypeAlias

from aioqueue import AsyncQueue, sync
from aioqueue.base.arguments import function_name, name_of_work
from aioqueue.items.positions import refusing_wrong_values
from aioqueue.items.quarantined import Quarantined
from aioqueue.pipeline.delivery_node import DeliveryNode
from aioqueue.pipeline.nodes.metrics import NodePart
from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.nodes.rows import EpochRange, State
from aioqueue.pipeline.queue_loans import RunLoans
from aioqueue.pipeline.queue_node import QueueNode
from aioqueue.pipeline.source_node import SourceNode
from aioqueue.pipeline.stage_input import StageInput
from aioqueue.pipeline.stages.base import BasePipeline, BaseStage
from aioqueue.pipeline.stages.chain import ElementSizes, _built_stages, is_elastic, sources_of
from aioqueue.pipeline.stages.combining import CombiningNode
from aioqueue.pipeline.stages.filter import FilterNode
from aioqueue.pipeline.stages.lengths import length_behind
from aioqueue.pipeline.stages.shard import rank_of
from aioqueue.pipeline.stages.transform import MakingTransform, Transform
from aioqueue.pipeline.state.ranks.ledger import ItemNames, RankLedger, RunItemNames, RunLedgers
from aioqueue.pipeline.state.ranks.padding import RankPadding
from aioqueue.pipeline.whole_run import WholeRun, WholeRunInput, WholeRunNode
from aioqueue.sources.shards import EpochEntries, entries_of
from aioqueue.sources.shuffling import derive_seed
from aioqueue.telemetry import Watch
from aioqueue.workers.runner import AsyncPrepareRunner, PrepareRunner, prepare_items
from aioqueue.workers.statistics import StageStatistics

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
        has_journal: whether a journal records the items, so that rows carry their provenance.
        item_records: the ledgers or item names of the run.
        row_makers: the nodes of the run that make rows of several others.
        branch: a prefix that names this pipeline among those that are mixed together.
        queue_names: how many queues of the run have each name.
    """

    def __init__(
        self,
        pipeline: BasePipeline[Any],
        span: EpochRange,
        start: Callable[[Any], object],
        watch: Watch,
        *,
        is_async: bool,
        rest: State | None = None,
        has_journal: bool = False,
        item_records: RunLedgers | RunItemNames | None = None,
        row_makers: list[MakingTransform] | None = None,
        branch: str = "",
        queue_names: Counter[str] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._span = span
        self.start = start
        self._watch = watch
        self._is_async = is_async
        self._seed_counts: Counter[str] = Counter()
        self._stages = _built_stages(pipeline)
        self._sizes = ElementSizes(pipeline.source, self._stages)
        self._rank = rank_of(self._stages)
        if item_records is None and is_elastic(pipeline):
            item_records = RunLedgers(rest)
        elif item_records is None and any(one._reads_queue for one in sources_of(pipeline)):
            item_records = RunLoans()
        elif item_records is None and has_journal:
            item_records = RunItemNames()
        self._item_records = item_records
        self._ledger: RankLedger | ItemNames | None = None
        if self._item_records is None:
            self._entries = entries_of(pipeline.source, self._rank)
        else:
            self._entries, self._ledger = self._item_records.open(pipeline.source, self._rank)
        self._row_makers: list[MakingTransform] = [] if row_makers is None else row_makers
        self._stage_index = 0  # of the stage that is being built
        self._built_workers: list[WorkerStage | Builder] = []
        self._branch = branch
        self._queue_names: Counter[str] = Counter() if queue_names is None else queue_names
        self.parts: list[NodePart] = []
        """What monitors see of the nodes."""
        self._parts_since_queue: list[NodePart] = []  # behind the last stage with workers so far
        self._last_queue: str | None = None  # the queue that the next stage reads; None: the source

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
        node = self.restored(state, stages, layouts)
        # Monitors know the parts before the workers start: the first call may be the slow one.
        self._watch.add(*(runner._stage for runner in self.runners()), *self.parts)
        self.start_workers()
        return node

    def restored(
        self,
        state: State | None,
        stages: Sequence[State],
        layouts: Sequence[Mapping[str, Any] | None],
    ) -> Node:
        """Build the nodes and restore a state, as `run` does, without starting workers.

        Raises:
            InvalidArgumentError: the state has values that no position has.
        """
        node = self.build()
        if isinstance(self._item_records, RunLedgers):
            node = DeliveryNode(node, self._item_records)
        if state is not None or stages or layouts:
            with refusing_wrong_values():
                if state is not None:
                    node.restore(state)
                self.restore_counts(stages, layouts)
        return node

    def start_workers(self) -> None:
        for runner in self.runners():
            self.start(runner)

    def restore_counts(
        self, stages: Sequence[State], layouts: Sequence[Mapping[str, Any] | None]
    ) -> None:
        """Continue the counts of items, and the layouts of batches, of an earlier run.

        Args:
            stages: its `tallies`; empty for none.
            layouts: its `layouts`; empty for none.
        """
        for working, tally in zip(self.worker_stages() if stages else (), stages, strict=True):
            working.restore_counts(tally)
        for node, layout in zip(self._row_makers if layouts else (), layouts, strict=True):
            if node.collator is not None:
                node.collator.restore_layout(layout)

    @property
    def loans(self) -> RunLoans | None:
        """The run's leases on elements of queues; ``None`` if it reads no queue."""
        return self._item_records if isinstance(self._item_records, RunLoans) else None

    def runners(self) -> list[Any]:
        """The runners of all stages with workers, also those of branches."""
        return [one for working in self._built_workers for one in working.runners()]

    def build(self) -> Node:
        """Build the nodes without starting workers. Returns the last node."""
        node: Node = SourceNode(self._entries, self._span, self._ledger)
        node.element = self._sizes.before(0)
        self._add_part(node, "source", "source", ("next_entries",))
        for place, stage in enumerate(self._stages):
            self._stage_index = place
            node = stage.node(node, self)
            node.element = self._sizes.behind(place)
            if isinstance(node, CombiningNode):
                node.stage = stage.describe()
                if node.measured:
                    self._add_part(node, stage.function_name(), stage.name, node.measured)
            if isinstance(node, Transform) and not node.stage:
                node.stage = stage.describe()
                self._add_part(node, stage.function_name(), stage.name, node.measured)
                if isinstance(node, MakingTransform):
                    self._add_row_maker(node)
        return node

    def _add_part(self, node: Node, name: str, kind: str, methods: Sequence[str]) -> None:
        """Let monitors measure the time that is spent in a node."""
        key = f"function-{self._branch}{self._stage_index}-{kind}"
        is_sampled = isinstance(node, FilterNode | SourceNode)
        node.part = NodePart(node, key, name, kind, methods, is_sampled=is_sampled)
        self.parts.append(node.part)
        self._parts_since_queue.append(node.part)

    def _add_row_maker(self, node: MakingTransform) -> None:
        self._row_makers.append(node)
        if isinstance(self._item_records, RunLedgers):
            node.first = self._item_records.begun

    def seed(self, kind: str) -> int:
        """A seed for the next stage of this kind; the first `prepare` uses the source's seed."""
        number = self._seed_counts[kind]
        self._seed_counts[kind] += 1
        seed = self._entries.source._stage_seed
        if kind == "prepare" and not number:
            return seed
        tag = int.from_bytes(kind.encode(), "little")
        return derive_seed(seed, tag + number)

    def _items_of(self, place: int) -> Callable[[int], int | None]:
        """Returns a function: how many items a stage surely receives in an epoch, or ``None``."""
        if any(stage.may_skip() for stage in self._stages[:place]):
            return lambda epoch: None
        # A partial and no bound method: a node keeps it, and we keep the node, so a reference back
        # to us would be a cycle.
        return partial(_length_after, self._entries, self._stages[:place])

    def largest_batch(self) -> int:
        """How many rows of this stage the later stages need for one row, up to the next workers."""
        after = self._stages[self._stage_index + 1 :]
        before_workers = takewhile(lambda stage: stage.worker_function() is None, after)
        return prod(stage.rows_per_output() for stage in before_workers)

    def buffer_size(self) -> int:
        """How many rows may wait behind this stage, if it has workers."""
        return self._sizes.buffer_size(self._stage_index)

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
        stage = self._stages[self._stage_index]
        seed = options.pop("seed", self._entries.source._stage_seed)
        is_source = isinstance(upstream, SourceNode)
        # Only the first workers read entries of the source, and need its epochs and indices. Those
        # behind them read rows, which belong to epoch 0 of the run.
        of_whole_run = is_source and isinstance(self._entries.source, WholeRun)
        input_type = WholeRunInput if of_whole_run else StageInput
        node_type = WholeRunNode if of_whole_run else QueueNode
        element = self._sizes.behind(self._stage_index)
        stage_input = input_type(upstream, seed, blocking=not is_source or self._entries.blocking)
        name = self._queue_name(stage)
        queue = sync.FIFOQueue(buffer_size, name=name)
        into = queue.aio if self._is_async else queue
        runner = self._runner(
            stage_input, function, into, {**options, "item_size": element.item_size}
        )
        fed_by = self._fed_by()
        # A skipped item is done, as `task_done` counts. Loans do that, if there are some: they also
        # know whether an element goes back to its queue instead.
        if fed_by is not None and self.loans is None:
            runner._finishes(fed_by)
        work = stage.worker_function()
        called = stage.name if work is None else function_name(work)
        runner.is_part(self._watch, name, called, self._last_queue)
        # The nodes since the last queue run in these workers: what they cost is time of this stage.
        for part in self._parts_since_queue:
            part.within = name
        self._parts_since_queue = []
        self._last_queue = name
        is_one_to_one = stage.length(1) == 1
        node = node_type(
            queue,
            stage_input,
            items=self._items_of(self._stage_index),
            is_one_to_one=is_one_to_one,
            keeps_order=options["ordered"],
            # Of batches one at a time: others would wait in the node, besides those in the queue.
            at_once=1 if element.is_batch else at_once,
            output_buffer=runner.output_buffer,
            is_traced=self._item_records is not None,
        )
        node.element = element
        self._built_workers.append(WorkerStage(stage, runner, queue, node))
        if self._rank.ranks == 1 or self._rank.uneven == "allow" or stage.worker_function() is None:
            return node  # only user functions skip items, so no other stage needs padding
        return RankPadding(
            node,
            lambda: node.items_of_epoch,
            keep=max(1, self.largest_batch()),
            apart=self._may_be_written_to(stage),
        )

    def _fed_by(self) -> AsyncQueue | sync.BlockingQueue | None:
        """The queue whose elements are the rows before this stage, one for one, or none."""
        before = self._stages[: self._stage_index]
        if all(stage.keeps_rows_apart() for stage in before):
            return self._entries.source._fed_by
        return None

    def _may_be_written_to(self, stage: BaseStage) -> bool:
        """Whether the user may have changed an example that rank padding repeats later.

        That needs two things: items of the stage may be skipped, so that others are repeated. And
        the user receives the examples themselves, and not copies that a later stage makes.
        """
        if stage.worker_function() is not None and not stage.may_skip():
            return False
        after = self._stages[self._stage_index + 1 :]
        receiver = next((one for one in after if not one.is_passthrough()), None)
        return receiver is None or not receiver.copies()

    def _queue_name(self, stage: BaseStage) -> str:
        """The name of the queue behind a stage, and of its workers.

        It is the name of the stage or its function; the second of one name is ``decode-2``.
        """
        function = stage.worker_function()
        name = stage.name if function is None else name_of_work(function, stage.name)
        self._queue_names[name] += 1
        number = self._queue_names[name]
        return name if number == 1 else f"{name}-{number}"

    def _runner(self, stage_input: StageInput, function: Any, into: Any, options: Any) -> AnyRunner:
        return prepare_items(stage_input, function, into=into, **options)

    def branch(self, pipeline: BasePipeline[Any]) -> Node:
        """Build a pipeline that is mixed into this one. Returns its last node."""
        branch = f"{self._branch}{len(self._built_workers)}."
        builder = Builder(
            pipeline,
            self._span,
            self.start,
            self._watch,
            is_async=self._is_async,
            item_records=self._item_records,
            row_makers=self._row_makers,
            branch=branch,
            queue_names=self._queue_names,
        )
        self._built_workers.append(builder)
        node = builder.build()
        self.parts += builder.parts
        self._parts_since_queue += builder._parts_since_queue
        return node

    @property
    def last_queue(self) -> str | None:
        """The name of the queue that the user's loop waits at; ``None`` without a queue."""
        return self._last_queue

    def tallies(self) -> list[State]:
        """The counts of items of each stage with workers, up to the last row that was used."""
        return [working.tally() for working in self.worker_stages()]

    def layouts(self) -> list[Any]:
        """The dtypes and shapes that the first example has fixed, for each node that makes batches
        or packed rows; empty before the first example."""
        found = [node.collator and node.collator.layout for node in self._row_makers]
        return found if any(found) else []

    def worker_stages(self) -> Iterator[WorkerStage]:
        """The stages with workers, also those of branches, in the order of the stages."""
        for one in self._built_workers:
            if isinstance(one, Builder):
                yield from one.worker_stages()
            else:
                yield one

    def statistics(self) -> tuple[StageStatistics, ...]:
        return tuple(one for working in self._built_workers for one in working.statistics())

    def quarantine(self) -> list[Quarantined]:
        """The damaged files that the source has left out, and the items that were skipped so far,
        stage by stage."""
        found = self._pipeline.source._damaged_files()
        return [*found, *(one for working in self._built_workers for one in working.quarantine())]


class WorkerStage(NamedTuple):
    """A stage with workers, as it was built."""

    stage: BaseStage
    runner: AnyRunner
    queue: sync.FIFOQueue
    node: QueueNode

    def tally(self) -> State:
        return {**self.node.tally(), "quarantine": self.runner._sign}

    def restore_counts(self, tally: State) -> None:
        self.runner._restore(*self.node.restore_counts(tally), sign=tally["quarantine"])

    def runners(self) -> list[Any]:
        return [self.runner]

    def statistics(self) -> tuple[StageStatistics, ...]:
        name = self.stage.describe()
        counts = vars(self.runner.statistics())
        return (StageStatistics(name, self.queue.statistics().size, **counts),)

    def quarantine(self) -> list[Quarantined]:
        return self.runner.quarantine


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
        return length_behind(stages, entries_of(source, rank).length())
    if any(stage.branches() for stage in stages):
        return None
    ledgers = RunLedgers(rest)
    left = length_behind(stages, ledgers.open(source, rank)[0].length(epoch))
    return None if left is None else ledgers.begun(epoch) + left
