"""``tf.queue``: the four queues and their base class."""

# ruff: noqa: F403  # a module that has TensorFlow's names and no others is taken whole

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.queues.queues import *
from aioqueue.compat.v1.queues.queues import __all__ as __all__

__getattr__ = names_of(__name__)
