"""Warns if you iterate over a pipeline again and get the first epoch again."""

from __future__ import annotations

import logging
import threading
from typing import Any, Final
from weakref import WeakKeyDictionary

from aioqueue.pipeline.stages.base import BasePipeline
from aioqueue.pipeline.stages.chain import sources_of
from aioqueue.system.locks import call_with_lock

_log: Final = logging.getLogger("aioqueue")

_lock: Final = threading.RLock()  # guards _passes


_passes: Final[WeakKeyDictionary[BasePipeline[Any], int]] = WeakKeyDictionary()


def warn_if_reiterated(pipeline: BasePipeline[Any]) -> None:
    """Log a warning at the second iteration over a pipeline itself, unless its epochs are equal.

    Iterating over a pipeline gives its first epoch each time. The data loaders of other libraries
    give another order each time, so users write ``for epoch in range(3): for batch in train: ...``.
    That would train three times on the same order without any sign of it.
    """
    if call_with_lock(_lock, _counted, pipeline) == 2 and _is_random(pipeline):
        _log.warning(
            "you iterate over %r again: each time you get epoch 0, with the same order and the same"
            " random generators. Use `for epoch in pipeline.epochs(n):` to get other epochs",
            pipeline,
        )


def _counted(pipeline: BasePipeline[Any]) -> int:
    count = _passes[pipeline] = _passes.get(pipeline, 0) + 1
    return count


def _is_random(pipeline: BasePipeline[Any]) -> bool:
    return any(source._is_shuffled for source in sources_of(pipeline)) or any(
        stage.is_random() or any(map(_is_random, stage.branches())) for stage in pipeline.stages
    )
