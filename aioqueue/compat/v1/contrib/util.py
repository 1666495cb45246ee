"""``tf.contrib.util``: what is constant."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops.static import constant_value

__all__ = ("constant_value",)

__getattr__ = names_of(__name__)
