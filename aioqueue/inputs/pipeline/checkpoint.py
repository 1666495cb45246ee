"""Positions of pipelines: the state of the last batch that was delivered, and its pipeline."""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aioqueue import InvalidArgumentError
from aioqueue.arguments import function_name
from aioqueue.documents import COUNT, Schema, check_fields
from aioqueue.inputs.core.positions import (
    check_same,
    check_seal,
    fingerprint_in,
    misplaced,
    refusing_wrong_values,
    sealed,
)
from aioqueue.inputs.core.ranks import EpochEntries, Rank
from aioqueue.inputs.pipeline.build import is_elastic
from aioqueue.inputs.pipeline.checkpoint_state import plain
from aioqueue.inputs.pipeline.description import BasePipeline, BaseStage
from aioqueue.inputs.pipeline.node import State
from aioqueue.inputs.pipeline.stages import Batch, Prepare, Shard, rank_of
from aioqueue.inputs.pipeline.state_document import (
    RANK_FIELDS,
    RUN_FIELDS,
    blank_entry,
    blank_read,
    blank_rest,
    check_values,
    cleared,
    identity,
    node_in,
    read_layouts,
    read_rest,
    read_tallies,
    shard_in,
    write_layouts,
    write_node,
    write_rest,
    write_tallies,
)

__all__ = (
    "PipelinePositions",
    "ResumePoint",
    "checked_standing",
    "fingerprint_of",
    "first_epoch_of",
    "identity_in",
    "is_merged",
    "merged_position",
    "of_any_rank",
    "rest_from",
    "standing_in",
)


_HEAD: Final = Schema(
    {"epoch": COUNT, "batches": COUNT, "skip": COUNT, "handed": COUNT, "run": str, "stages": list},
    is_open=True,
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
    stages: Sequence[State] = ()
    """What has become of the items of each stage that has workers; none where no run has begun."""
    handed: int = 0
    """How many batches were handed out, over all epochs, without those that were left out."""
    run: str = ""
    """What tells the run from others in its journal, if it keeps one."""
    layouts: Sequence[Mapping[str, Any] | None] = ()
    """What the first example has decided that came to each stage which makes batches or rows; none
    where nothing is decided."""
    length: int | None = None
    """How many items the run of a stream has, if its end has been seen."""
    examples: int = 0
    """How many examples a stream has handed out."""


def fingerprint_of(pipeline: BasePipeline[Any]) -> dict[str, Any]:
    """What a position must have in common with a pipeline: plain JSON types by field.

    Raises:
        InvalidArgumentError: its source has no positions.
        OSError: the size of a file cannot be found out.
    """
    found: dict[str, Any] = identity(_blank_part(pipeline, has_ledger=False))
    return found


def _blank(pipeline: BasePipeline[Any]) -> dict[str, Any]:
    """The document of a pipeline, with empty fields: see `state_document`."""
    has_ledger = is_elastic(pipeline)
    part = _blank_part(pipeline, has_ledger=has_ledger)
    document = {"epoch": 0, "batches": 0, "skip": 0, "handed": 0, "run": ""}
    if _may_skip(pipeline):
        document["quarantine"] = None
    if part["source"].get("kind") == "run":
        document |= dict.fromkeys(RUN_FIELDS)
    shard = shard_in(part)
    if shard is not None:
        document["rest"] = blank_rest()
        if has_ledger:
            shard.update(dict.fromkeys(RANK_FIELDS))  # type: ignore[attr-defined]  # a dict
    return document | part


def _blank_part(pipeline: BasePipeline[Any], *, has_ledger: bool) -> dict[str, Any]:
    stages, source = pipeline.stages, pipeline.source
    found = source.fingerprint()
    if not source._is_repeatable:
        raise InvalidArgumentError(
            f"source: got {source!r}, of which there is no position; expected one that is sure to"
            " give the same again, as items(...) and readers of files are"
        )
    rank = rank_of(stages)
    return {
        "source": found,
        **blank_read(
            is_addressed=EpochEntries(source, rank).is_addressed,
            is_async=source._is_async,
            has_ledger=has_ledger,
        ),
        "stages": [
            _entry_of(stage, stages[at + 1 :], rank, has_ledger=has_ledger)
            for at, stage in enumerate(stages)
        ],
    }


def _entry_of(
    stage: BaseStage, rest: Sequence[BaseStage], rank: Rank, *, has_ledger: bool
) -> dict[str, Any]:
    """What identifies a stage, and its empty fields."""
    function = _function_of(stage)
    arguments = {**stage.fingerprint(), **_size(stage, rest)}
    is_padded = rank.ranks > 1 and rank.uneven != "allow" and isinstance(stage, Prepare)
    others = [_blank_part(one, has_ledger=has_ledger) for one in stage.branches()]
    return {
        "kind": stage.name,
        **({} if function is None else {"function": function}),
        **arguments,
        **({"others": others} if others else {}),
        **blank_entry(stage.name, arguments, is_padded=is_padded),
    }


def _may_skip(pipeline: BasePipeline[Any]) -> bool:
    """Whether items may be left out that have failed."""
    return any(
        (isinstance(stage, Prepare) and stage.may_skip()) or any(map(_may_skip, stage.branches()))
        for stage in pipeline.stages
    )


def _function_of(stage: BaseStage) -> str | None:
    """The name of the user's function that a stage calls, which people know it by."""
    if isinstance(stage, Prepare):
        return function_name(stage.function)
    name = stage.function_name()
    return None if name == stage.name else name


class PipelinePositions:
    """The positions in a pipeline, at each of which its files are not looked at again.

    Args:
        pipeline: which.

    Raises:
        InvalidArgumentError: its source has no positions.
        OSError: the size of a file cannot be found out.
    """

    def __init__(self, pipeline: BasePipeline[Any]) -> None:
        self._blank = marshal.dumps(plain(_blank(pipeline)))  # copied sooner than JSON is read

    def behind(self, standing: ResumePoint) -> dict[str, Any]:
        """What can be kept, and gone on from."""
        return _written(marshal.loads(self._blank), standing)


def _written(document: dict[str, Any], standing: ResumePoint) -> dict[str, Any]:
    """The position of where a run stands, in the empty document of its pipeline."""
    document["epoch"], document["batches"] = standing.epoch, standing.batches
    document["skip"], document["handed"] = standing.skip, standing.handed
    document["run"] = standing.run
    if "length" in document:
        document["length"], document["examples"] = standing.length, standing.examples
    if standing.node is not None:
        write_node(document, standing.node)
    write_tallies(document, standing.stages)
    write_layouts(document, standing.layouts)
    write_rest(document, standing.rest)
    try:
        return sealed(document)
    except TypeError:  # ints of NumPy
        return sealed(plain(document))


def merged_position(position: Mapping[str, Any], standing: ResumePoint) -> dict[str, Any]:
    """The position of any rank of any number, from that of one of them."""
    header = ("format", "version", "checksum")
    document = {key: value for key, value in position.items() if key not in header}
    document["rest"] = blank_rest()
    return _written(of_any_rank(cleared(document)), standing)


def identity_in(position: Any) -> dict[str, Any]:
    """What identifies the pipeline of a position.

    Raises:
        InvalidArgumentError: it is no position of a pipeline, or one of another version.
    """
    fingerprint_in(position)
    if "stages" not in position:
        raise misplaced("one of a source", "one that state_dict() of a pipeline has made")
    found: dict[str, Any] = identity(position)
    return found


def checked_standing(
    pipeline: BasePipeline[Any], position: Any
) -> tuple[BasePipeline[Any], ResumePoint]:
    """Where a position stands in a pipeline, with the seed of the position where its own was drawn.

    Raises:
        InvalidArgumentError: it is no position, is damaged, or belongs to another pipeline; the
            message names the field that differs, and both values.
    """
    theirs = identity_in(position)
    source = pipeline.source._with_seeds_of(theirs["source"])
    if source is not pipeline.source:
        pipeline = pipeline._made_of(source, pipeline.stages)
    ours = plain(fingerprint_of(pipeline))
    check_same(theirs, of_any_rank(ours) if is_merged(theirs) else ours, "")
    return pipeline, standing_in(position)


def standing_in(position: Mapping[str, Any]) -> ResumePoint:
    """Where a run stands, from a position of its pipeline.

    Raises:
        InvalidArgumentError: it is damaged, or has values that no position has.
    """
    check_seal(position)
    document: Any = plain(position)
    with refusing_wrong_values():
        check_fields(document, _HEAD)
        check_values(document)
        return ResumePoint(
            document["epoch"],
            document["batches"],
            document["skip"],
            node_in(document),
            rest=read_rest(document),
            stages=read_tallies(document),
            handed=document["handed"],
            run=document["run"],
            layouts=read_layouts(document),
            length=document.get("length"),
            examples=document.get("examples") or 0,
        )


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
        kind = fingerprint.get("kind")
        of_any = {"rank": None, "ranks": None} if kind == Shard.name else {}
        without = {"size"} if kind == Batch.name else set()
        return {
            key: of_any_rank(one) for key, one in fingerprint.items() if key not in without
        } | of_any
    if isinstance(fingerprint, list | tuple):
        return [of_any_rank(one) for one in fingerprint]
    return fingerprint


def is_merged(fingerprint: Any) -> bool:
    """Whether any rank of any number may go on from a position with this fingerprint."""
    shard = shard_in(fingerprint)
    return shard is not None and shard.get("rank") is None


def _size(stage: BaseStage, rest: Sequence[BaseStage]) -> dict[str, Any]:
    """How many rows one row is made of, where later stages count rows."""
    is_last = all(isinstance(one, Shard) for one in rest)
    return {} if is_last or stage.needs() == 1 else {"size": stage.needs()}
