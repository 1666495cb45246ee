"""``tf.nest``: nested lists, tuples and dicts of tensors."""

# ruff: noqa: F403  # a module that has TensorFlow's names and no others is taken whole

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.core.nest import *
from aioqueue.compat.v1.core.nest import __all__ as __all__

__getattr__ = names_of(__name__)
