"""``tf.contrib.staging``: where the next batches wait."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.queues.staging import StagingArea

__all__ = ("StagingArea",)

__getattr__ = names_of(__name__)
