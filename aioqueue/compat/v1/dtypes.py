"""``tf.dtypes``: the types of tensors' elements."""

# ruff: noqa: F403  # a module that has TensorFlow's names and no others is taken whole

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.core import dtypes as _dtypes
from aioqueue.compat.v1.core.dtypes import *
from aioqueue.compat.v1.ops.casting import cast, saturate_cast
from aioqueue.compat.v1.ops.text import as_string

__all__: tuple[str, ...] = ("as_string", "cast", "saturate_cast")
__all__ += _dtypes.__all__

__getattr__ = names_of(__name__)
