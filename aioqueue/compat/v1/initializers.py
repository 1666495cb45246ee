"""``tf.initializers``: what makes the initial values of variables."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops import variables as _ops
from aioqueue.compat.v1.ops.variables import Initializer, tables_initializer

__all__ = (
    "Initializer",
    "constant",
    "global_variables",
    "glorot_normal",
    "glorot_uniform",
    "local_variables",
    "ones",
    "random_normal",
    "random_uniform",
    "tables_initializer",
    "truncated_normal",
    "variables",
    "variance_scaling",
    "zeros",
)

constant = _ops.Constant
glorot_normal = _ops.GlorotNormal
glorot_uniform = _ops.GlorotUniform
ones = _ops.Ones
random_normal = _ops.RandomNormal
random_uniform = _ops.RandomUniform
truncated_normal = _ops.TruncatedNormal
variance_scaling = _ops.VarianceScaling
zeros = _ops.Zeros

global_variables = _ops.global_variables_initializer
local_variables = _ops.local_variables_initializer
variables = _ops.variables_initializer

__getattr__ = names_of(__name__)
