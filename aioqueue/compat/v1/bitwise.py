"""``tf.bitwise``: the bits of integers."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops.bits import (
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    invert,
    left_shift,
    right_shift,
)

__all__ = ("bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift")

__getattr__ = names_of(__name__)
