"""Coordinated queues that keep a training step fed.

Bounded queues on NumPy arrays that block both sides; a `Coordinator` that stops all workers
together and reports what failed; and a `QueueRunner` that keeps several workers filling one queue:
TensorFlow 1's input system for today's Python. You await it in asyncio and trio. `aioqueue.sync` is
the same for threads, and you may use one queue from both at the same time.
"""

from __future__ import annotations

import typing
from os import environ as _environ

from aioqueue.base.public_names import PublicNames as _PublicNames

if typing.TYPE_CHECKING:
    from aioqueue import sync as sync
    from aioqueue.base.tracebacks import full_tracebacks
    from aioqueue.batcher.batcher import Batcher
    from aioqueue.batcher.statistics import BatcherStatistics
    from aioqueue.coordination.aio import LooperTask, QueueRunner
    from aioqueue.coordination.coordinator import Coordinator
    from aioqueue.coordination.restarts import Restart
    from aioqueue.core.attempts import QueueState, Statistics
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
        StarvedError,
        StillRunningError,
        UndeliveredError,
        WorkerDiedError,
    )
    from aioqueue.latest.latest import Latest
    from aioqueue.latest.state import Versioned
    from aioqueue.queues.aio import AsyncBatches
    from aioqueue.queues.base import AsyncQueue
    from aioqueue.queues.fifo import FIFOQueue, PaddingFIFOQueue
    from aioqueue.queues.priority import PriorityQueue
    from aioqueue.queues.shuffle import RandomShuffleQueue
    from aioqueue.sharing.connecting import connect
    from aioqueue.telemetry.explain.explain_socket import explain_on_signal
    from aioqueue.telemetry.explain.explanation import Culprit, Explanation
    from aioqueue.telemetry.explain.gather import explain
    from aioqueue.telemetry.monitor import Monitor

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
    "StarvedError",
    "Statistics",
    "StillRunningError",
    "UndeliveredError",
    "Versioned",
    "WorkerDiedError",
    "__compiled__",
    "__version__",
    "connect",
    "explain",
    "explain_on_signal",
    "full_tracebacks",
    "sync",
)

__version__ = "0.1.0"

__compiled__: bool
"""Whether the core was compiled when the package was built. It behaves the same either way."""

_names = _PublicNames(
    __name__,
    {
        "aioqueue.core.attempts": "QueueState Statistics",
        "aioqueue.batcher.batcher": "Batcher",
        "aioqueue.batcher.statistics": "BatcherStatistics",
        "aioqueue.coordination.aio": "LooperTask QueueRunner",
        "aioqueue.coordination.coordinator": "Coordinator",
        "aioqueue.coordination.restarts": "Restart",
        "aioqueue.errors": """
            AioQueueError CancelledError DataLossError DeadlineExceededError InvalidArgumentError
            ItemTimeoutError OutOfRangeError PreemptedError QueueClosedError QueueEmpty QueueFull
            StarvedError StillRunningError UndeliveredError WorkerDiedError
        """,
        "aioqueue.inputs": "",
        "aioqueue.latest.latest": "Latest",
        "aioqueue.latest.state": "Versioned",
        "aioqueue.system.locks": "__compiled__=COMPILED",
        "aioqueue.queues.aio": "AsyncBatches",
        "aioqueue.queues.base": "AsyncQueue",
        "aioqueue.queues.fifo": "FIFOQueue PaddingFIFOQueue",
        "aioqueue.queues.priority": "PriorityQueue",
        "aioqueue.queues.shuffle": "RandomShuffleQueue",
        "aioqueue.sharing.connecting": "connect",
        "aioqueue.sync": "",
        "aioqueue.telemetry.explain.explain_socket": "explain_on_signal",
        "aioqueue.telemetry.explain.explanation": "Culprit Explanation",
        "aioqueue.telemetry.monitor": "Monitor",
        "aioqueue.telemetry.explain.gather": "explain",
        "aioqueue.base.tracebacks": "full_tracebacks",
    },
)

if not typing.TYPE_CHECKING:  # type checkers would accept any misspelled name
    __getattr__ = _names.get


def __dir__() -> list[str]:
    """Return the public names, without the modules that they come from."""
    return sorted((*__all__, "inputs"))


if _environ.get("AIOQUEUE_EXPLAIN"):
    from aioqueue.telemetry.explain.explain_socket import listen_if_enabled as _listen_if_enabled

    _listen_if_enabled()
