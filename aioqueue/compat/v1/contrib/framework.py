"""``tf.contrib.framework``: the global step, under its old names."""

from __future__ import annotations

from aioqueue.compat.v1 import nest
from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops.sparse import is_tensor
from aioqueue.compat.v1.ops.variables import (
    assert_global_step,
    create_global_step,
    get_global_step,
    get_or_create_global_step,
)

__all__ = (
    "assert_global_step",
    "create_global_step",
    "get_global_step",
    "get_or_create_global_step",
    "is_tensor",
    "nest",
)

__getattr__ = names_of(__name__)
