"""Positions of pipelines: the state of the last batch that was delivered, and its pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from aioqueue import InvalidArgumentError
from aioqueue.inputs.pipeline.building import source_of, stages_of
from aioqueue.inputs.pipeline.flow import State
from aioqueue.inputs.pipeline.stages import BaseStage, Shard
from aioqueue.inputs.sources.pipeline import Pipeline
from aioqueue.inputs.sources.positions import (
    checked_place,
    fingerprint_in,
    misplaced,
    position_of,
)

__all__ = ("Standing", "checked_standing", "fingerprint_of", "position_of_pipeline")


class Standing(NamedTuple):
    """Where a run through a pipeline stands."""

    epoch: int
    batches: int = 0
    """How many of the epoch were delivered."""
    skip: int = 0
    """How many of those that come are left out."""
    node: State | None = None
    """The state of the last node; ``None`` for the beginning of the epoch."""
    stages: Sequence[Sequence[Any]] = ()
    """What has become of the items of each stage that has workers; none where no run has begun."""
    handed: int = 0
    """How many batches were handed out, over all epochs, without those that were left out."""
    run: str = ""
    """What tells the run from others in its journal, if it keeps one."""


def fingerprint_of(pipeline: Pipeline[Any]) -> dict[str, Any]:
    """What a position must have in common with a pipeline: plain JSON types by field.

    Raises:
        InvalidArgumentError: its source has no positions.
        OSError: the size of a file cannot be found out.
    """
    stages, source = stages_of(pipeline), source_of(pipeline)
    found = source.fingerprint()
    if not source.is_repeatable:
        raise InvalidArgumentError(
            f"source: got {source!r}, of which there is no position; expected one that is sure to"
            " give the same again, as items(...) and readers of files are"
        )
    return {
        "kind": "pipeline",
        "source": found,
        "stages": [
            {"stage": stage.name, **stage.fingerprint(), **_others(stage), **_size(stage, rest)}
            for stage, rest in ((one, stages[at + 1 :]) for at, one in enumerate(stages))
        ],
    }


def position_of_pipeline(fingerprint: Mapping[str, Any], standing: Standing) -> dict[str, Any]:
    """What can be kept, and gone on from."""
    return position_of(fingerprint, standing._asdict())


def checked_standing(pipeline: Pipeline[Any], position: Any) -> tuple[Pipeline[Any], Standing]:
    """Where a position stands in a pipeline, with the seed of the position where its own was drawn.

    Raises:
        InvalidArgumentError: it is no position, is damaged, or belongs to another pipeline; the
            message names the field that differs, and both values.
    """
    theirs = fingerprint_in(position).get("source")
    source = source_of(pipeline)._with_seeds_of(theirs)
    if source is not source_of(pipeline):
        pipeline = Pipeline(source, pipeline.stages)
    after = checked_place(position, fingerprint_of(pipeline))
    if not isinstance(after, Mapping) or {*after} != {*Standing._fields}:
        raise misplaced(f"after {type(after).__name__}", "what state_dict() of a pipeline has made")
    return pipeline, Standing(**after)


def _others(stage: BaseStage) -> dict[str, Any]:
    branches = stage.branches()
    return {"others": [fingerprint_of(one) for one in branches]} if branches else {}


def _size(stage: BaseStage, rest: Sequence[BaseStage]) -> dict[str, Any]:
    """How many rows one row is made of, where later stages count rows."""
    is_last = all(isinstance(one, Shard) for one in rest)
    return {} if is_last or stage.needs() == 1 else {"size": stage.needs()}
