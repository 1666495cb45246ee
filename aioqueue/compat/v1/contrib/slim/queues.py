"""``slim.queues``: queue runners for the time of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.coordination.coordinator import Coordinator
from aioqueue.compat.v1.coordination.runners import start_queue_runners

__all__ = ("NestedQueueRunnerError", "QueueRunners")


class NestedQueueRunnerError(Exception):
    """Kept for scripts that catch it: blocks may be nested here."""


@contextmanager
def QueueRunners(session: Any) -> Iterator[None]:  # noqa: N802  # TensorFlow's name
    """Run the graph's queue runners within the block; stop and join their threads at its end.

    Args:
        session: in which they run.
    """
    coord = Coordinator()
    threads = start_queue_runners(sess=session, coord=coord, daemon=True, start=True)
    try:
        yield
    finally:
        coord.request_stop()
        coord.join(threads, stop_grace_period_secs=120)


__getattr__ = names_of(__name__)
