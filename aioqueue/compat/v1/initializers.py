"""``tf.initializers``: what makes the initial values of variables."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops import initializers, initializing
from aioqueue.compat.v1.ops.initializers import Initializer

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

constant = initializers.Constant
glorot_normal = initializers.GlorotNormal
glorot_uniform = initializers.GlorotUniform
ones = initializers.Ones
random_normal = initializers.RandomNormal
random_uniform = initializers.RandomUniform
truncated_normal = initializers.TruncatedNormal
variance_scaling = initializers.VarianceScaling
zeros = initializers.Zeros

global_variables = initializing.global_variables_initializer
local_variables = initializing.local_variables_initializer
tables_initializer = initializing.tables_initializer
variables = initializing.variables_initializer

__getattr__ = names_of(__name__)
