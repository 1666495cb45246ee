"""``tf.contrib``: the parts of it that queues need."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.contrib import framework, training

__all__ = ("framework", "training")

__getattr__ = names_of(__name__)
