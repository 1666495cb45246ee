"""The TensorFlow 1 names of the queue system, on NumPy: ``import aioqueue.compat.v1 as tf``.

Scripts that feed their training from TensorFlow's queues run with another import line, or none at
all: ``python -m aioqueue.compat.v1 script.py``. Operations are deferred as they were, and a session
runs them; TensorFlow is not needed. A name that is not here raises an error which says why, and
which names are near it.
"""

# ruff: noqa: F403  # a module that has TensorFlow's names and no others is taken whole

from __future__ import annotations

import builtins as _builtins

from aioqueue.compat.v1 import (
    app,
    compat,
    contrib,
    data,
    debugging,
    dtypes,
    errors,
    flags,
    gfile,
    image,
    initializers,
    io,
    logging,
    lookup,
    math,
    nest,
    nn,
    python_io,
    queue,
    random,
    sparse,
    strings,
    summary,
    train,
)
from aioqueue.compat.v1 import core as _core
from aioqueue.compat.v1 import ops as _ops
from aioqueue.compat.v1 import parsing as _parsing
from aioqueue.compat.v1 import readers as _readers
from aioqueue.compat.v1 import session as _session
from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.core.convert import *
from aioqueue.compat.v1.core.default_graph import *
from aioqueue.compat.v1.core.dtypes import *
from aioqueue.compat.v1.core.graph import *
from aioqueue.compat.v1.core.scopes import *
from aioqueue.compat.v1.core.shapes import *
from aioqueue.compat.v1.errors import OpError
from aioqueue.compat.v1.ops import operators as _operators  # noqa: F401  # tensors get theirs
from aioqueue.compat.v1.ops.arrays import *
from aioqueue.compat.v1.ops.asserting import *
from aioqueue.compat.v1.ops.asserting import verify_tensor_all_finite
from aioqueue.compat.v1.ops.casting import *
from aioqueue.compat.v1.ops.control import *
from aioqueue.compat.v1.ops.control import tuple_ as tuple
from aioqueue.compat.v1.ops.effects import *
from aioqueue.compat.v1.ops.files import *
from aioqueue.compat.v1.ops.indexing import *
from aioqueue.compat.v1.ops.indexing import where as select
from aioqueue.compat.v1.ops.math import *
from aioqueue.compat.v1.ops.math import div, div_no_nan, floor_div, mul, neg, realdiv, sub
from aioqueue.compat.v1.ops.products import *
from aioqueue.compat.v1.ops.random import *
from aioqueue.compat.v1.ops.reductions import *
from aioqueue.compat.v1.ops.reductions import arg_max, arg_min, reduce_join
from aioqueue.compat.v1.ops.serializing import *
from aioqueue.compat.v1.ops.sparse import *
from aioqueue.compat.v1.ops.static import constant_value as get_static_value
from aioqueue.compat.v1.ops.text import *
from aioqueue.compat.v1.ops.variable_scope import *
from aioqueue.compat.v1.ops.variables import *
from aioqueue.compat.v1.parsing.parsing import *
from aioqueue.compat.v1.protos import SUMMARY_MESSAGES as _MESSAGES
from aioqueue.compat.v1.protos import summary_classes as _summary_classes
from aioqueue.compat.v1.queue import *
from aioqueue.compat.v1.readers.readers import *
from aioqueue.compat.v1.session.config import *
from aioqueue.compat.v1.session.session import *
from aioqueue.compat.v1.summaries.ops import (
    audio_summary,
    histogram_summary,
    image_summary,
    merge_all_summaries,
    merge_summary,
    scalar_summary,
)

__all__: _builtins.tuple[str, ...] = (
    "VERSION", "OpError", "__version__", "app", "arg_max", "arg_min", "audio_summary", "compat",
    "constant_initializer", "contrib", "data", "debugging", "div", "div_no_nan", "dtypes", "errors",
    "flags", "floor_div", "get_static_value", "gfile", "glorot_normal_initializer",
    "glorot_uniform_initializer", "histogram_summary", "image", "image_summary", "initializers",
    "io", "logging", "lookup", "math", "merge_all_summaries", "merge_summary", "mul", "neg", "nest",
    "newaxis", "nn", "ones_initializer", "python_io", "queue", "random",
    "random_normal_initializer", "random_uniform_initializer", "realdiv", "reduce_join",
    "scalar_summary", "select", "sparse", "strings", "sub", "summary", "train",
    "truncated_normal_initializer", "tuple", "variance_scaling_initializer",
    "verify_tensor_all_finite", "zeros_initializer",
)  # fmt: skip
__all__ += _core.convert.__all__
__all__ += _core.default_graph.__all__
__all__ += _core.dtypes.__all__
__all__ += _core.graph.__all__
__all__ += _core.scopes.__all__
__all__ += _core.shapes.__all__
__all__ += _ops.arrays.__all__
__all__ += _ops.asserting.__all__
__all__ += _ops.casting.__all__
__all__ += _ops.control.__all__
__all__ += _ops.effects.__all__
__all__ += _ops.files.__all__
__all__ += _ops.indexing.__all__
__all__ += _ops.math.__all__
__all__ += _ops.products.__all__
__all__ += _ops.random.__all__
__all__ += _ops.reductions.__all__
__all__ += _ops.serializing.__all__
__all__ += _ops.sparse.__all__
__all__ += _ops.text.__all__
__all__ += _ops.variable_scope.__all__
__all__ += _ops.variables.__all__
__all__ += _parsing.parsing.__all__
__all__ += _readers.readers.__all__
__all__ += _session.config.__all__
__all__ += _session.session.__all__
__all__ += queue.__all__

__version__ = "1.15.0"
"""The version of TensorFlow whose names these are: scripts compare it."""

VERSION = __version__

newaxis = None
"""A new axis in an index: ``x[:, tf.newaxis]``."""

constant_initializer = initializers.constant
glorot_normal_initializer = initializers.glorot_normal
glorot_uniform_initializer = initializers.glorot_uniform
ones_initializer = initializers.ones
random_normal_initializer = initializers.random_normal
random_uniform_initializer = initializers.random_uniform
truncated_normal_initializer = initializers.truncated_normal
variance_scaling_initializer = initializers.variance_scaling
zeros_initializer = initializers.zeros

# They need protobuf, an extra, and are made when they are asked for.
_DEFERRED = {name: lambda name=name: _summary_classes()[name] for name in _MESSAGES}

__getattr__ = names_of(__name__, deferred=_DEFERRED)


def __dir__() -> list[str]:
    """The public names, those among them that are made when they are asked for."""
    return sorted({*__all__, *_DEFERRED})
