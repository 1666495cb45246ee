"""``tf.random``: random numbers, the same as TensorFlow's for the same seeds."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.core.scopes import get_seed, set_random_seed
from aioqueue.compat.v1.ops.random import multinomial, truncated_normal
from aioqueue.compat.v1.ops.random import random_normal as normal
from aioqueue.compat.v1.ops.random import random_shuffle as shuffle
from aioqueue.compat.v1.ops.random import random_uniform as uniform

__all__ = (
    "get_seed", "multinomial", "normal", "set_random_seed", "shuffle", "truncated_normal",
    "uniform",
)  # fmt: skip

__getattr__ = names_of(__name__)
