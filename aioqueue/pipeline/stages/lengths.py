"""How many rows a pipeline makes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aioqueue import InvalidArgumentError
from aioqueue.pipeline.stages.base import BasePipeline, BaseStage
from aioqueue.pipeline.stages.shard import rank_of
from aioqueue.sources.base import BaseSource
from aioqueue.sources.shards import entries_of


def as_pipeline(given: Any) -> BasePipeline[Any]:
    """Return a pipeline as it is, and a source as a pipeline without stages.

    Raises:
        InvalidArgumentError: the value is neither.
    """
    if isinstance(given, BasePipeline):
        return given
    if isinstance(given, BaseSource):
        return BasePipeline(given)
    raise InvalidArgumentError(
        f"others: got {given!r}; expected pipelines, or sources of aioqueue.inputs"
    )


def length_behind(stages: Iterable[BaseStage], rows: int | None) -> int | None:
    """How many rows some stages make of a number of rows; ``None`` if that is unknown."""
    for stage in stages:
        rows = stage.length(rows)
    return rows


def length_of_source(given: Any) -> int | None:
    """How many rows an epoch of a pipeline or source has, where that is known."""
    pipeline = as_pipeline(given)
    entries = entries_of(pipeline.source, rank_of(pipeline.stages))
    return length_behind(pipeline.stages, entries.length())
