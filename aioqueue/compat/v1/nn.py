"""``tf.nn``: the few functions of it that are plain arithmetic."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops.math import sigmoid, tanh
from aioqueue.compat.v1.ops.nn import relu, softmax, top_k

__all__ = ("relu", "sigmoid", "softmax", "tanh", "top_k")

__getattr__ = names_of(__name__)
