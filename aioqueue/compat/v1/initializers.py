"""``tf.initializers``: what makes the initial values of variables."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops.variables import Constant as constant
from aioqueue.compat.v1.ops.variables import GlorotNormal as glorot_normal
from aioqueue.compat.v1.ops.variables import GlorotUniform as glorot_uniform
from aioqueue.compat.v1.ops.variables import Initializer, tables_initializer
from aioqueue.compat.v1.ops.variables import Ones as ones
from aioqueue.compat.v1.ops.variables import RandomNormal as random_normal
from aioqueue.compat.v1.ops.variables import RandomUniform as random_uniform
from aioqueue.compat.v1.ops.variables import TruncatedNormal as truncated_normal
from aioqueue.compat.v1.ops.variables import VarianceScaling as variance_scaling
from aioqueue.compat.v1.ops.variables import Zeros as zeros
from aioqueue.compat.v1.ops.variables import global_variables_initializer as global_variables
from aioqueue.compat.v1.ops.variables import local_variables_initializer as local_variables
from aioqueue.compat.v1.ops.variables import variables_initializer as variables

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

__getattr__ = names_of(__name__)
