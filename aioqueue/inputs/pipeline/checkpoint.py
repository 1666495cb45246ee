"""Positions of pipelines: the state of the last batch that was delivered, and its pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aioqueue import InvalidArgumentError
from aioqueue.inputs.core.positions import (
    Positions,
    checked_place,
    fingerprint_in,
    misplaced,
)
from aioqueue.inputs.pipeline.checkpoint_state import as_text
from aioqueue.inputs.pipeline.description import BasePipeline, BaseStage
from aioqueue.inputs.pipeline.node import State
from aioqueue.inputs.pipeline.stages import Batch, Shard

__all__ = (
    "PipelinePositions",
    "ResumePoint",
    "checked_standing",
    "fields_of",
    "fingerprint_of",
    "first_epoch_of",
    "is_merged",
    "of_any_rank",
    "rest_from",
    "shard_in",
    "standing_of",
)


class ResumePoint(NamedTuple):
    """Where a run through a pipeline stands."""

    epoch: int
    batches: int = 0
    """How many of the epoch were delivered."""
    skip: int = 0
    """How many of those that come are left out."""
    node: State | None = None
    """The state of the last node; ``None`` for the beginning of the epoch."""
    rest: State | None = None
    """What another number of ranks has left, as `merge_positions` tells: ``total``, how many
    batches were handed out by then, and ``epochs``, by number. ``None`` if none were there."""
    stages: Sequence[Sequence[Any]] = ()
    """What has become of the items of each stage that has workers; none where no run has begun."""
    handed: int = 0
    """How many batches were handed out, over all epochs, without those that were left out."""
    run: str = ""
    """What tells the run from others in its journal, if it keeps one."""
    layouts: Sequence[Sequence[Any] | None] = ()
    """What the first example has decided that came to each stage which makes batches or rows; none
    where nothing is decided."""


_LATER: Final = ResumePoint._fields[4:]
"""What positions have only if it says something."""


def fingerprint_of(pipeline: BasePipeline[Any]) -> dict[str, Any]:
    """What a position must have in common with a pipeline: plain JSON types by field.

    Raises:
        InvalidArgumentError: its source has no positions.
        OSError: the size of a file cannot be found out.
    """
    stages, source = pipeline.stages, pipeline.source
    found = source.fingerprint()
    if not source._is_repeatable:
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


class PipelinePositions(Positions):
    """The positions in a pipeline, at each of which its files are not looked at again.

    Args:
        pipeline: which.

    Raises:
        InvalidArgumentError: its source has no positions.
        OSError: the size of a file cannot be found out.
    """

    def __init__(self, pipeline: BasePipeline[Any]) -> None:
        super().__init__(fingerprint_of(pipeline))

    def behind(self, standing: ResumePoint) -> dict[str, Any]:
        """What can be kept, and gone on from."""
        return self.at_text(as_text(fields_of(standing)))


def fields_of(standing: ResumePoint) -> dict[str, Any]:
    """What a position has of where a run stands, without what says nothing."""
    epoch, batches, skip, node, *later = standing
    said = {name: value for name, value in zip(_LATER, later, strict=True) if value}
    return {"epoch": epoch, "batches": batches, "skip": skip, "node": node, **said}


def checked_standing(
    pipeline: BasePipeline[Any], position: Any
) -> tuple[BasePipeline[Any], ResumePoint]:
    """Where a position stands in a pipeline, with the seed of the position where its own was drawn.

    Raises:
        InvalidArgumentError: it is no position, is damaged, or belongs to another pipeline; the
            message names the field that differs, and both values.
    """
    theirs = fingerprint_in(position).get("source")
    source = pipeline.source._with_seeds_of(theirs)
    if source is not pipeline.source:
        pipeline = pipeline._made_of(source, pipeline.stages)
    ours = fingerprint_of(pipeline)
    after = checked_place(
        position, of_any_rank(ours) if is_merged(fingerprint_in(position)) else ours
    )
    return pipeline, standing_of(after)


def standing_of(after: Any) -> ResumePoint:
    """What a position has of where a run stands.

    Raises:
        InvalidArgumentError: it is not that of a pipeline.
    """
    fields = {*after} if isinstance(after, Mapping) else set()
    if not {*ResumePoint._fields} - {*_LATER} <= fields <= {*ResumePoint._fields}:
        raise misplaced(f"after {type(after).__name__}", "what state_dict() of a pipeline has made")
    return ResumePoint(**after)


def first_epoch_of(standing: ResumePoint) -> int:
    """The first epoch that a node has to be at when a run goes on.

    A node that has to give again what is held goes back, perhaps to an earlier epoch than the one
    in which the run stands: by a state, or by its absence to the beginning of an epoch.
    """
    return min(_epochs_in(standing.node), default=standing.epoch)


def _epochs_in(state: Any) -> Iterator[int]:
    """The epochs of all nodes in a state."""
    if isinstance(state, Mapping):
        if "epoch" in state:
            yield state["epoch"]
        for part in state.values():
            yield from _epochs_in(part)
    elif isinstance(state, list):
        for part in state:
            yield from _epochs_in(part)


def rest_from(rest: State | None, epoch: int) -> State | None:
    """What of a rest concerns an epoch and those after it."""
    epochs = {at: one for at, one in rest["epochs"].items() if int(at) >= epoch} if rest else {}
    return {**rest, "epochs": epochs} if rest and epochs else None


def of_any_rank(fingerprint: Any) -> Any:
    """The fingerprint of a pipeline for any rank of any number, with batches of any size."""
    if isinstance(fingerprint, Mapping):
        stage = fingerprint.get("stage")
        of_any = {"rank": None, "ranks": None} if stage == Shard.name else {}
        without = {"size"} if stage == Batch.name else set()
        return {
            key: of_any_rank(one) for key, one in fingerprint.items() if key not in without
        } | of_any
    if isinstance(fingerprint, list | tuple):
        return [of_any_rank(one) for one in fingerprint]
    return fingerprint


def shard_in(fingerprint: Any) -> Mapping[str, Any] | None:
    """What the fingerprint of a pipeline says of its rank; ``None`` if it has no ranks."""
    stages = fingerprint.get("stages") if isinstance(fingerprint, Mapping) else None
    for stage in stages if isinstance(stages, list | tuple) else ():
        if isinstance(stage, Mapping) and stage.get("stage") == Shard.name:
            return stage
    return None


def is_merged(fingerprint: Any) -> bool:
    """Whether any rank of any number may go on from a position with this fingerprint."""
    shard = shard_in(fingerprint)
    return shard is not None and shard.get("rank") is None


def _others(stage: BaseStage) -> dict[str, Any]:
    branches = stage.branches()
    return {"others": [fingerprint_of(one) for one in branches]} if branches else {}


def _size(stage: BaseStage, rest: Sequence[BaseStage]) -> dict[str, Any]:
    """How many rows one row is made of, where later stages count rows."""
    is_last = all(isinstance(one, Shard) for one in rest)
    return {} if is_last or stage.needs() == 1 else {"size": stage.needs()}
