"""The loop that goes through the same epoch again and again, where others were meant."""

from __future__ import annotations

import logging
import threading
from typing import Any, Final
from weakref import WeakKeyDictionary

from aioqueue.inputs.pipeline.build import sources_of, stages_of
from aioqueue.inputs.sources.pipeline import Pipeline
from aioqueue.locks import holding

__all__ = ("warn_if_reiterated",)

_log: Final = logging.getLogger("aioqueue")

_lock: Final = threading.RLock()  # guards _passes
_passes: Final[WeakKeyDictionary[Pipeline[Any], int]] = WeakKeyDictionary()


def warn_if_reiterated(pipeline: Pipeline[Any]) -> None:
    """Somebody iterates over a pipeline itself, which is its first epoch: the second time, say so
    in the log, unless all epochs are the same.

    Loops over loaders of other libraries get another order each time: ``for epoch in range(3): for
    batch in train: ...`` would train on the same one three times, and nobody would see it.
    """
    if holding(_lock, _counted, pipeline) == 2 and _is_random(pipeline):
        _log.warning(
            "%r is iterated over again: each time that is epoch 0, with the same order and the same"
            " random generators. Use `for epoch in pipeline.epochs(n):` for another one each time",
            pipeline,
        )


def _counted(pipeline: Pipeline[Any]) -> int:
    count = _passes[pipeline] = _passes.get(pipeline, 0) + 1
    return count


def _is_random(pipeline: Pipeline[Any]) -> bool:
    return any(source.is_shuffled for source in sources_of(pipeline)) or any(
        stage.draws() or any(map(_is_random, stage.branches())) for stage in stages_of(pipeline)
    )
