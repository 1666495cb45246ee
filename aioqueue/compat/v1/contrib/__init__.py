"""``tf.contrib``: the parts of it that queues need."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.contrib import data, framework, lookup, slim, staging, training, util

__all__ = ("data", "framework", "lookup", "slim", "staging", "training", "util")

__getattr__ = names_of(__name__)
