"""Batchers whose streams can be resumed: what they ask of the pipeline, which does the work."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

import aioqueue
from aioqueue import InvalidArgumentError, sync
from aioqueue.inputs.batches.pump import AnyCoordinator, is_queue, refuse_options
from aioqueue.inputs.options import UnseededOptions
from aioqueue.inputs.sources.base import Source
from aioqueue.inputs.sources.engine import engine
from aioqueue.inputs.sources.sequences import items
from aioqueue.inputs.sources.streams import (
    AnyQueue,
    AsyncBatchStream,
    BatchStream,
    resumable_stream,
)
from aioqueue.locks import guarded

__all__ = ("NO_POSITIONS", "Fitting", "resumable")


class _NoPositions:
    def __repr__(self) -> str:
        return "no positions"


NO_POSITIONS: Final[Any] = _NoPositions()
"""In the place of ``resume``: nothing was said of it."""


class Fitting:
    """Makes of examples and batches what a queue with dtypes and shapes makes of them. Thread-safe.

    Args:
        queue: an empty one without a limit, for this alone.
    """

    def __init__(self, queue: AnyQueue) -> None:
        self._queue: sync.BlockingQueue = queue.sync
        self._lock = threading.RLock()  # what is put in is taken out at once

    @guarded
    def example(self, example: Any) -> Any:
        """A copy with these dtypes and shapes.

        Raises:
            InvalidArgumentError: it does not fit.
        """
        self._queue.enqueue_nowait(example)
        return self._queue.dequeue_nowait()

    @guarded
    def batch(self, examples: list[Any]) -> Any:
        """Examples that fit, as a batch."""
        for example in examples:
            self._queue.enqueue_nowait(example)
        return self._queue.dequeue_many(len(examples))


def resumable(
    source: Any,
    kinds: Sequence[tuple[Any, ...]],
    *,
    coord: AnyCoordinator,
    function: Any,
    options: UnseededOptions,
    ahead: int,
    name: str,
    resume: Mapping[str, Any] | None,
    fitting: Fitting | None = None,
) -> AsyncBatchStream[Any] | BatchStream[Any]:
    """A stream that can be resumed.

    Args:
        source: what has positions.
        kinds: the stages that make batches of examples: each its kind, and its arguments.
        coord: starts the workers.
        function: prepares each example, if there is one.
        options: what else `prepare` takes.
        ahead: how many prepared items may wait.
        name: what messages and worker names call it.
        resume: where to begin; ``None`` for the beginning.
        fitting: makes examples fit dtypes and shapes.

    Raises:
        InvalidArgumentError: an argument is wrong, or the position does not fit.
        RuntimeError: the coordinator's block has not been entered.
    """
    known = _with_positions(source, options)
    makes = engine().stage
    if function is None:
        refuse_options(options)
        first = makes("carry", ahead)
    else:
        first = makes("prepare", function, ahead, {"ordered": False, **options})
    pipe = engine().stream(
        known,
        [first, *(makes(*kind) for kind in kinds)],
        coord,
        name=name,
        fit=None if fitting is None else fitting.example,
        resume=resume,
    )
    return resumable_stream(pipe, is_async=isinstance(coord, aioqueue.Coordinator))


def _with_positions(source: Any, options: Mapping[str, Any]) -> Source[Any]:
    """The source, if it can be gone through again, and so has positions.

    Raises:
        InvalidArgumentError: it has none.
    """
    if isinstance(source, Source) and source.is_repeatable and not source.is_async:
        return source
    if isinstance(source, Sequence | np.ndarray) and not isinstance(source, str | bytes):
        return items(source, 1, seed=options.get("seed"))
    if is_queue(source) or isinstance(source, AsyncBatchStream | BatchStream):
        why = (
            "whose elements do not say where they come from, and which others may fill and read;"
            " expected what fills it: the source, and its function as function=..."
        )
    else:
        why = (
            "of which there is no position; expected what is sure to give the same again: a list,"
            " items(...), a reader of files, or a mixture of such"
        )
    raise InvalidArgumentError(f"source: got {source!r} with resume, {why}")
