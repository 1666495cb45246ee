"""Coordinated queues that keep a training step fed.

Bounded queues on NumPy arrays that block both sides; a `Coordinator` that stops all workers
together and reports what failed; and a `QueueRunner` that keeps several workers filling one queue:
TensorFlow 1's input system for today's Python. You await it in asyncio and trio. `aioqueue.sync` is
the same for threads, and you may use one queue from both at the same time.
"""

from __future__ import annotations

import typing

from aioqueue import sync
from aioqueue.attempts import QueueState, Statistics
from aioqueue.batching.batcher import Batcher
from aioqueue.batching.batcher_statistics import BatcherStatistics
from aioqueue.coordination.aio import LooperTask, QueueRunner
from aioqueue.coordination.faces import Coordinator
from aioqueue.coordination.restarts import Restart
from aioqueue.display_text import keep_to_lines as _keep_to_lines
from aioqueue.errors import (
    AioQueueError,
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    InvalidArgumentError,
    ItemTimeoutError,
    OutOfRangeError,
    PreemptedError,
    QueueClosedError,
    QueueEmpty,
    QueueFull,
    StillRunningError,
    UndeliveredError,
    WorkerDiedError,
)
from aioqueue.gil_lock import COMPILED as _COMPILED
from aioqueue.latest.core import Versioned
from aioqueue.latest.faces import Latest
from aioqueue.migration_hints import hint_keywords as _hint_keywords
from aioqueue.migration_hints import hint_methods as _hint_methods
from aioqueue.migration_hints import no_name as _no_name
from aioqueue.queues.aio import AsyncBatches
from aioqueue.queues.faces import AsyncQueue
from aioqueue.queues.fifo import FIFOQueue
from aioqueue.queues.padding import PaddingFIFOQueue
from aioqueue.queues.priority import PriorityQueue
from aioqueue.queues.shuffle import RandomShuffleQueue
from aioqueue.telemetry.explain_socket import explain_on_signal
from aioqueue.telemetry.explain_socket import prepare_as_asked as _prepare_as_asked
from aioqueue.telemetry.explanation import Culprit, Explanation
from aioqueue.telemetry.monitor import Monitor
from aioqueue.telemetry.wait_graph import explain
from aioqueue.tracebacks import full_tracebacks
from aioqueue.tracebacks import show_sources as _show_sources

__all__ = (
    "AioQueueError",
    "AsyncBatches",
    "AsyncQueue",
    "Batcher",
    "BatcherStatistics",
    "CancelledError",
    "Coordinator",
    "Culprit",
    "DataLossError",
    "DeadlineExceededError",
    "Explanation",
    "FIFOQueue",
    "InvalidArgumentError",
    "ItemTimeoutError",
    "Latest",
    "LooperTask",
    "Monitor",
    "OutOfRangeError",
    "PaddingFIFOQueue",
    "PreemptedError",
    "PriorityQueue",
    "QueueClosedError",
    "QueueEmpty",
    "QueueFull",
    "QueueRunner",
    "QueueState",
    "RandomShuffleQueue",
    "Restart",
    "Statistics",
    "StillRunningError",
    "UndeliveredError",
    "Versioned",
    "WorkerDiedError",
    "__compiled__",
    "__version__",
    "explain",
    "explain_on_signal",
    "full_tracebacks",
    "sync",
)

__version__ = "0.1.0"

__compiled__: bool = _COMPILED
"""Whether the core was compiled when the package was built. It behaves the same either way."""

for _name in ("aioqueue", "aioqueue.compat"):
    _keep_to_lines(_name)

for _name in __all__:
    # Tracebacks and reprs show the public path.
    if isinstance(globals()[_name], type):
        globals()[_name].__module__ = __name__
del _name

_hint_keywords((FIFOQueue, RandomShuffleQueue, PaddingFIFOQueue, PriorityQueue), "queues")
for _cls in (AsyncQueue, sync.BlockingQueue):
    _hint_methods(_cls, "queues", ("batches", "close"))
_hint_keywords((Coordinator, QueueRunner, LooperTask, Restart), "coordinators")
_hint_keywords((Batcher,), "batchers")
del _cls

_prepare_as_asked()
if __compiled__:
    _show_sources()

if not typing.TYPE_CHECKING:  # type checkers would accept any misspelled name

    def __getattr__(name: str) -> typing.Any:
        """Import `aioqueue.inputs` at its first use: the queues do not need it."""
        if name != "inputs":
            _no_name(__name__, name)
        import importlib

        return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    """Return the public names, without the modules that they come from."""
    return sorted((*__all__, "inputs"))
