"""A chain of stages: whether they fit together, their seeds, their sources, and their elements.

An element may be an example, a window of several, or a batch. That decides how far the workers of a
stage read ahead of the loop: how many elements wait behind them, and how many are in flight.
Examples are small, so that many of them may be ahead: enough for two batches, and several for each
worker. A batch is as large as all its examples, so that the next one is ready, each worker makes
one, and one more is on its way.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from itertools import takewhile
from math import prod
from typing import Any, Final, TypeVar

from aioqueue import InvalidArgumentError
from aioqueue.pipeline.nodes.rows import Element
from aioqueue.pipeline.stages.base import BasePipeline, BaseStage, gives_batches
from aioqueue.pipeline.stages.combining import CombiningStage
from aioqueue.pipeline.stages.lengths import as_pipeline
from aioqueue.pipeline.stages.read import Read
from aioqueue.pipeline.stages.shard import Shard
from aioqueue.sources.base import BaseSource
from aioqueue.sources.shards import Rank, entries_of
from aioqueue.sources.shuffling import derive_seed

PipelineT = TypeVar("PipelineT", bound=BasePipeline[Any])


_log: Final = logging.getLogger("aioqueue")

LEAST_AHEAD: Final = 64
"""The least number of prepared examples that may wait behind a stage."""


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


def most_empty(pipeline: BasePipeline[Any]) -> int:
    """How many epochs in a row may be empty although the source has items.

    One may be: all its items were skipped, or were delivered before a resume. With
    ``across_epochs`` one batch may need the examples of several epochs.
    """
    return prod(stage.rows_per_output() for stage in pipeline.stages if stage.spans_epochs())


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
    if shards and shards[0].rank.by == "file":
        entries_of(source, shards[0].rank)  # refuses a source that cannot divide files
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
    return stage.with_branches(lambda one, at: _seeded_branch(one, derive_seed(seed, at)))


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
    touching = [stage for stage in stages if not stage.may_follow_device]
    after = next((one for at, one in enumerate(touching[1:]) if touching[at].is_on_device), None)
    if after is not None:
        raise InvalidArgumentError(
            f"{after.name}: got it after `to_device`; expected it before, because stages work with"
            " arrays in host memory (only `take` and `shard` may follow, which do not touch them)"
        )


def _check_batches(source: BaseSource[Any], stages: Sequence[BaseStage]) -> None:
    """Refuse a stage that takes batches unless the source or an earlier stage makes them."""
    for at, stage in enumerate(stages):
        if stage.needs_batches and not gives_batches(source, stages[:at]):
            raise InvalidArgumentError(
                "size: got none for map_batches, and no stage before makes batches; expected how"
                " many examples make one, map_batches(function, size), or"
                " batch(size).map_batches(function); where the items of the source are batches,"
                " prepare(function)"
            )


def _sharded(stage: BaseStage, rank: Rank) -> BaseStage:
    """Return a stage before `shard` whose mixed-in pipelines are sharded for this rank, too."""

    def sharded(given: Any, number: int) -> BasePipeline[Any]:
        branch = as_pipeline(given)
        return checked(branch._made_of(branch.source, (*branch.stages, Shard(rank))))

    return stage.with_branches(sharded)


class ElementSizes:
    """What the elements behind each stage are.

    Args:
        source: gives the first elements.
        stages: the stages behind it.
    """

    def __init__(self, source: BaseSource[Any], stages: Sequence[BaseStage]) -> None:
        self._stages = stages
        # What is in what, where batches are in batches, say: the outermost is the last.
        nested = [Element(is_batch=True)] if source._gives_batches else []
        self._behind = [_joined(nested)]
        self._taken_apart: list[int] = []  # how many elements a stage makes of one; 1 if unknown
        for stage in stages:
            outermost = nested.pop() if nested and stage.takes_apart else Element()
            self._taken_apart.append(outermost.examples)
            if stage.makes_batches() is not None and not stage.takes_apart:
                size = stage.rows_for(1)
                step = stage.rows_for(2) - size
                nested.append(Element(size, step, bool(stage.makes_batches())))
            self._behind.append(_joined(nested))

    def before(self, at: int) -> Element:
        """The elements that the stage at a place receives."""
        return self._behind[at]

    def behind(self, at: int) -> Element:
        """The elements that the stage at a place gives."""
        found = self._behind[at + 1]
        return found._replace(is_batch=found.is_batch or self._are_taken_apart(at))

    def needed(self, at: int, outputs: int) -> int:
        """How many elements of a stage become this many of those that the loop, or the next
        workers, take: at least, as far as that is known."""
        stop = at + 1 + len(self._up_to_workers(at))
        for place in range(stop - 1, at, -1):
            stage, size = self._stages[place], self._taken_apart[place]
            if not stage.takes_apart:
                outputs = stage.rows_for(outputs)
            else:
                outputs = 1 if size == 1 else -(-outputs // size)
        return min(outputs, sys.maxsize)

    def buffer_size(self, at: int) -> int:
        """How many elements may wait behind the workers of a stage."""
        element = self.behind(at)
        if element.is_batch:
            return self.needed(at, 1)
        return max(-(-LEAST_AHEAD // element.examples), self.needed(at, 2))

    def _are_taken_apart(self, at: int) -> bool:
        """Whether a later stage takes the elements of a stage apart: then its function makes
        batches of whatever it receives."""
        depth = 0
        for stage in self._up_to_workers(at):
            if stage.takes_apart and not depth:
                return True
            if stage.makes_batches() is not None:
                depth += -1 if stage.takes_apart else 1
        return False

    def _up_to_workers(self, at: int) -> list[BaseStage]:
        """The stages behind one, up to those that have workers, whose elements may be others."""
        after = self._stages[at + 1 :]
        return list(takewhile(lambda stage: stage.worker_function() is None, after))


def _joined(nested: Sequence[Element]) -> Element:
    return Element(
        prod([one.examples for one in nested]),
        prod([one.step for one in nested]),
        any(one.is_batch for one in nested),
    )
