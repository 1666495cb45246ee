"""``tf.math``: arithmetic, reductions, comparison."""

# ruff: noqa: F403  # a module that has TensorFlow's names and no others is taken whole

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops import math as _math
from aioqueue.compat.v1.ops import reductions as _reductions
from aioqueue.compat.v1.ops.arrays import linspace
from aioqueue.compat.v1.ops.math import *
from aioqueue.compat.v1.ops.math import ceil as ceiling
from aioqueue.compat.v1.ops.math import div_no_nan as divide_no_nan
from aioqueue.compat.v1.ops.nn import softmax, top_k
from aioqueue.compat.v1.ops.reductions import *

__all__: tuple[str, ...] = ("ceiling", "divide_no_nan", "linspace", "softmax", "top_k")
__all__ += _math.__all__
__all__ += _reductions.__all__

__getattr__ = names_of(__name__)
