"""Pipelines that run: stages become nodes, queues and workers, and epochs are gone through.

What can be said of a pipeline is in `aioqueue.inputs.sources.pipeline`; this is what runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from aioqueue import InvalidArgumentError
from aioqueue.inputs.pipeline import streaming
from aioqueue.inputs.pipeline.build import checked, length_of, sources_of
from aioqueue.inputs.pipeline.checkpoint import ResumePoint, checked_standing
from aioqueue.inputs.pipeline.diagram import svg, text
from aioqueue.inputs.pipeline.epochs import Epoch, Epochs
from aioqueue.inputs.pipeline.inspection import watch_of
from aioqueue.inputs.pipeline.node import BaseStage, EpochRange
from aioqueue.inputs.pipeline.reiteration import warn_if_reiterated
from aioqueue.inputs.pipeline.stages import STAGES
from aioqueue.inputs.sources.engine import register
from aioqueue.inputs.sources.pipeline import Pipeline
from aioqueue.inputs.sources.source import Source
from aioqueue.telemetry import Watch

__all__ = ("Epoch", "Epochs")

T = TypeVar("T")


class _Engine:
    """What sources and pipelines are told to ask."""

    def stage(self, kind: str, *arguments: Any) -> BaseStage:
        return (STAGES | streaming.STAGES)[kind](*arguments)

    def checked(self, pipeline: Pipeline[Any]) -> Pipeline[Any]:
        return checked(pipeline)

    def epochs(
        self,
        pipeline: Pipeline[T],
        start: int,
        stop: int | None,
        resume: Any,
        watchdog: float | None,
        journal: Any,
    ) -> Epochs[T]:
        if start and resume is not None:
            raise InvalidArgumentError(
                f"start: got {start} beside resume; expected one of both: a position has the epoch"
                " to go on in, and the count is that of all epochs from 0 on"
            )
        return Epochs(pipeline, EpochRange(start, stop), resume, watchdog, journal)

    def single(self, pipeline: Pipeline[T]) -> Epoch[T]:
        warn_if_reiterated(pipeline)
        return Epoch(pipeline, ResumePoint(0), watch_of(pipeline))

    def resumed(self, pipeline: Pipeline[T], state: Any) -> Epoch[T]:
        return Epoch(*checked_standing(pipeline, state), watch_of(pipeline))

    def watch(self, pipeline: Pipeline[Any]) -> Watch:
        return watch_of(pipeline)

    def stream(
        self,
        source: Any,
        stages: Any,
        coord: Any,
        *,
        name: str,
        fit: Callable[[Any], Any] | None,
        resume: Mapping[str, Any] | None,
    ) -> streaming.Streaming:
        return streaming.Streaming(source, stages, coord, name=name, fit=fit, resume=resume)

    def length(self, pipeline: Pipeline[Any]) -> int | None:
        return length_of(pipeline)

    def sources(self, pipeline: Pipeline[Any]) -> list[Source[Any]]:
        return sources_of(pipeline)

    def text(self, pipeline: Pipeline[Any]) -> str:
        return text(pipeline)

    def svg(self, pipeline: Pipeline[Any]) -> str:
        return svg(pipeline)


register(_Engine())
