"""Asynchronous reinforcement learning: the queue between generation and training.

`RolloutQueue` has the story. Nothing here needs an extra.
"""

from __future__ import annotations

import typing as _typing

from aioqueue.base.public_names import PublicNames as _PublicNames

if _typing.TYPE_CHECKING:
    from aioqueue.errors import (
        InvalidArgumentError,
        ItemTimeoutError,
        OutOfRangeError,
        StarvedError,
        WorkerDiedError,
    )
    from aioqueue.rl.collector import RolloutCollector
    from aioqueue.rl.queue import BlockingRolloutQueue, RolloutQueue
    from aioqueue.rl.rollout import Batch, Group, Publication, Rollout
    from aioqueue.rl.statistics import RolloutStatistics
    from aioqueue.workers.options import Retry

__all__ = (
    "Batch",
    "BlockingRolloutQueue",
    "Group",
    "InvalidArgumentError",
    "ItemTimeoutError",
    "OutOfRangeError",
    "Publication",
    "Retry",
    "Rollout",
    "RolloutCollector",
    "RolloutQueue",
    "RolloutStatistics",
    "StarvedError",
    "WorkerDiedError",
)

_names = _PublicNames(
    __name__,
    {
        "aioqueue.errors": """
            InvalidArgumentError ItemTimeoutError OutOfRangeError StarvedError WorkerDiedError
        """,
        "aioqueue.rl.collector": "RolloutCollector",
        "aioqueue.rl.queue": "BlockingRolloutQueue RolloutQueue",
        "aioqueue.rl.rollout": "Batch Group Publication Rollout",
        "aioqueue.rl.statistics": "RolloutStatistics",
        "aioqueue.workers.options": "Retry",
    },
    hints="rollouts",
)

if not _typing.TYPE_CHECKING:
    __getattr__ = _names.get


def __dir__() -> list[str]:
    """Return the public names, without the modules that define them."""
    return sorted(__all__)
