"""``tf.debugging``: assertions."""

# ruff: noqa: F403  # a module that has TensorFlow's names and no others is taken whole

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops import asserting as _asserting
from aioqueue.compat.v1.ops.asserting import *
from aioqueue.compat.v1.ops.asserting import verify_tensor_all_finite as assert_all_finite
from aioqueue.compat.v1.ops.effects import Assert
from aioqueue.compat.v1.ops.math import is_finite, is_inf, is_nan

__all__: tuple[str, ...] = ("Assert", "assert_all_finite", "is_finite", "is_inf", "is_nan")
__all__ += _asserting.__all__

__getattr__ = names_of(__name__)
