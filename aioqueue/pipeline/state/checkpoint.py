"""Positions of pipelines: what ``state_dict()`` returns, and what ``resume=`` takes.

A position is a document that names the pipeline (its source, and the arguments of its stages) and
holds the state behind the last batch that was delivered. A `ResumePoint` is the same state without
the pipeline, as a run uses it.

Functions have no place in a position: a run may continue after you mend one. A cache may not: see
`compared`.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import function_name
from aioqueue.base.json_files import COUNT, Schema, check_fields
from aioqueue.items.positions import (
    check_same,
    check_seal,
    fingerprint_in,
    misplaced,
    refusing_wrong_values,
    sealed,
)
from aioqueue.pipeline.nodes.deferred import plain
from aioqueue.pipeline.nodes.progress import ResumePoint
from aioqueue.pipeline.nodes.rows import State
from aioqueue.pipeline.nodes.state_fields import RANK_FIELDS, blank_read, blank_rest
from aioqueue.pipeline.stages.base import BasePipeline, BaseStage
from aioqueue.pipeline.stages.batch import Batch
from aioqueue.pipeline.stages.chain import is_elastic, sources_of
from aioqueue.pipeline.stages.shard import Shard, rank_of
from aioqueue.pipeline.state.document import (
    RUN_FIELDS,
    VERSION,
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
from aioqueue.sources.shards import Rank, entries_of

_HEAD: Final = Schema(
    {"epoch": COUNT, "batches": COUNT, "skip": COUNT, "handed": COUNT, "run": str, "stages": list},
    is_open=True,
)


def fingerprint_of(pipeline: BasePipeline[Any]) -> dict[str, Any]:
    """The fields by which a position recognises its pipeline, in plain JSON types.

    Raises:
        InvalidArgumentError: the source has no positions.
        OSError: the size of a file cannot be read.
    """
    found: dict[str, Any] = identity(_blank_part(pipeline, has_ledger=False))
    return found


def _blank(pipeline: BasePipeline[Any]) -> dict[str, Any]:
    """The document of a pipeline with empty fields; see `aioqueue.pipeline.state.document`."""
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
            f"source: got {source!r}, which has no positions; expected a source that gives the same"
            " items again, such as items(...) or a reader of files"
        )
    rank = rank_of(stages)
    return {
        "source": found,
        **blank_read(
            is_addressed=entries_of(source, rank).is_addressed,
            is_async=source._is_async,
            has_ledger=has_ledger,
            by_file=rank.by == "file",
        ),
        "stages": [
            _entry_of(stage, stages[at + 1 :], rank, has_ledger=has_ledger)
            for at, stage in enumerate(stages)
        ],
    }


def _entry_of(
    stage: BaseStage, rest: Sequence[BaseStage], rank: Rank, *, has_ledger: bool
) -> dict[str, Any]:
    """The entry of a stage in a document: what identifies the stage, and its empty fields."""
    function = _function_of(stage)
    arguments = {**stage.fingerprint(), **_size(stage, rest)}
    # Only functions of the user's skip items, so only behind these ranks may need padding.
    is_padded = rank.ranks > 1 and rank.uneven != "allow" and stage.worker_function() is not None
    others = [_blank_part(one, has_ledger=has_ledger) for one in stage.branches()]
    return {
        "kind": stage.name,
        **({} if function is None else {"function": function}),
        **arguments,
        **({"others": others} if others else {}),
        **stage.blank_entry({**arguments, "others": others}, is_padded=is_padded),
    }


def _may_skip(pipeline: BasePipeline[Any]) -> bool:
    return any(
        stage.may_skip() or any(map(_may_skip, stage.branches())) for stage in pipeline.stages
    )


def _function_of(stage: BaseStage) -> str | None:
    """The name of the user's function that a stage calls; ``None`` without one."""
    function = stage.worker_function()
    if function is not None:
        return function_name(function)
    name = stage.function_name()
    return None if name == stage.name else name


class PipelinePositions:
    """Makes the positions of one pipeline.

    It looks at the files of the pipeline once, when it is made, and not again for each position.

    Args:
        pipeline: the pipeline.

    Raises:
        InvalidArgumentError: the source has no positions.
        OSError: the size of a file cannot be read.
    """

    def __init__(self, pipeline: BasePipeline[Any]) -> None:
        # Each position is a copy of this. marshal copies faster than JSON or `deepcopy`.
        self._blank = marshal.dumps(plain(_blank(pipeline)))

    @classmethod
    def at_once(cls, pipeline: BasePipeline[Any]) -> PipelinePositions | None:
        """Make them before a run begins, if that is quick and cannot fail: for items in memory.

        Otherwise it returns ``None``: a source of files asks for their sizes, perhaps over the
        network, and a run that nobody saves should not wait for that.
        """
        is_quick = all(one._is_repeatable and one._is_in_memory for one in sources_of(pipeline))
        return cls(pipeline) if is_quick else None

    def behind(self, resume_point: ResumePoint) -> dict[str, Any]:
        """Return the position of a run, for the user to save and to resume from."""
        return _written(marshal.loads(self._blank), resume_point)


def _written(document: dict[str, Any], resume_point: ResumePoint) -> dict[str, Any]:
    """Write the position of a run into the empty document of its pipeline."""
    document["epoch"], document["batches"] = resume_point.epoch, resume_point.batches
    document["skip"], document["handed"] = resume_point.skip, resume_point.handed
    document["run"] = resume_point.run
    if "length" in document:
        document["length"], document["examples"] = resume_point.length, resume_point.examples
    if resume_point.node is not None:
        write_node(document, resume_point.node)
    write_tallies(document, resume_point.stages)
    write_layouts(document, resume_point.layouts)
    write_rest(document, resume_point.rest)
    try:
        return sealed(document, VERSION)
    except TypeError:  # ints of NumPy, which are rare: converting every document would be slow
        return sealed(plain(document), VERSION)


def merged_position(position: Mapping[str, Any], resume_point: ResumePoint) -> dict[str, Any]:
    """A position from which any rank of any number can resume.

    Args:
        position: the position of one of the earlier ranks, which names the pipeline.
        resume_point: where the new ranks begin.
    """
    header = ("format", "version", "checksum")
    document = {key: value for key, value in position.items() if key not in header}
    document["rest"] = blank_rest()
    return _written(without_rank(cleared(document)), resume_point)


def identity_in(position: Any) -> dict[str, Any]:
    """The part of a position that identifies its pipeline.

    Raises:
        InvalidArgumentError: it is not a position of a pipeline, or has another version.
    """
    fingerprint_in(position, VERSION)
    if "stages" not in position:
        raise misplaced("one of a source", "one that state_dict() of a pipeline has made")
    found: dict[str, Any] = identity(position)
    return found


def checked_resume_point(
    pipeline: BasePipeline[Any], position: Any
) -> tuple[BasePipeline[Any], ResumePoint]:
    """Check that a position belongs to a pipeline. Returns the pipeline, and where the run stands.

    A source without a seed draws one. The returned pipeline has the seeds of the position in their
    place, so that it gives the same order as the earlier run.

    Raises:
        InvalidArgumentError: it is not a position, is damaged, or belongs to another pipeline; the
            message names the field that differs, and both values.
    """
    theirs = identity_in(position)
    # Before the comparison, because a seed that the source has drawn itself would differ.
    source = pipeline.source._with_seeds_of(theirs["source"])
    if source is not pipeline.source:
        pipeline = pipeline._made_of(source, pipeline.stages)
    ours = plain(fingerprint_of(pipeline))
    check_same(theirs, without_rank(ours) if is_merged(theirs) else ours, "")
    return pipeline, resume_point_in(position)


def resume_point_in(position: Mapping[str, Any]) -> ResumePoint:
    """Read from a position where its run stands.

    Raises:
        InvalidArgumentError: the position is damaged, or has values that no position has.
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


def rest_from_epoch(rest: State | None, epoch: int) -> State | None:
    """Return the part of a rest that concerns this epoch and later ones; ``None`` without one."""
    epochs = {at: one for at, one in rest["epochs"].items() if int(at) >= epoch} if rest else {}
    return {**rest, "epochs": epochs} if rest and epochs else None


def without_rank(fingerprint: Any) -> Any:
    """A fingerprint without the rank, the number of ranks and the size of batches.

    A merged position belongs to pipelines of any rank, so these fields must not be compared.
    """
    if isinstance(fingerprint, Mapping):
        kind = fingerprint.get("kind")
        of_any = {"rank": None, "ranks": None} if kind == Shard.name else {}
        without = {"size"} if kind == Batch.name else set()
        return {
            key: without_rank(one) for key, one in fingerprint.items() if key not in without
        } | of_any
    if isinstance(fingerprint, list | tuple):
        return [without_rank(one) for one in fingerprint]
    return fingerprint


def is_merged(fingerprint: Any) -> bool:
    """Whether a position with this fingerprint was merged, so that any rank can resume from it."""
    shard = shard_in(fingerprint)
    return shard is not None and shard.get("rank") is None


def _size(stage: BaseStage, rest: Sequence[BaseStage]) -> dict[str, Any]:
    """The size of batches, if a later stage counts them; else it may change at a resume."""
    is_last = all(isinstance(one, Shard) for one in rest)
    return {} if is_last or stage.rows_per_output() == 1 else {"size": stage.rows_per_output()}
