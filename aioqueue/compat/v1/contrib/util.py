"""``tf.contrib.util``: arrays as messages, and what is constant."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops.static import constant_value
from aioqueue.compat.v1.ops.tensor_messages import make_ndarray, make_tensor_proto

__all__ = ("constant_value", "make_ndarray", "make_tensor_proto")

__getattr__ = names_of(__name__)
