"""What monitors see of pipelines: one watch for each, to which all its runs come."""

from __future__ import annotations

import threading
from typing import Any, Final
from weakref import WeakKeyDictionary

from aioqueue.inputs.sources.pipeline import Pipeline
from aioqueue.locks import holding
from aioqueue.telemetry import Watch

__all__ = ("watch_of",)

_lock: Final = threading.RLock()  # guards _watches
_watches: Final[WeakKeyDictionary[Pipeline[Any], Watch]] = WeakKeyDictionary()


def watch_of(pipeline: Pipeline[Any]) -> Watch:
    """The watch of a pipeline, as long as that lives."""
    return holding(_lock, _watch_of, pipeline)


def _watch_of(pipeline: Pipeline[Any]) -> Watch:
    watch = _watches.get(pipeline)
    if watch is None:
        watch = _watches[pipeline] = Watch(comes_again=True)
    return watch
