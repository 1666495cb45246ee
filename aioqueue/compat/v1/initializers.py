"""``tf.initializers``: what makes the initial values of variables."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops import variable_scope as _scopes
from aioqueue.compat.v1.ops import variables as _variables
from aioqueue.compat.v1.ops.variable_scope import Initializer
from aioqueue.compat.v1.ops.variables import tables_initializer

__all__ = (
    "Initializer", "constant", "global_variables", "glorot_normal", "glorot_uniform",
    "local_variables", "ones", "random_normal", "random_uniform", "tables_initializer",
    "truncated_normal", "variables", "variance_scaling", "zeros",
)  # fmt: skip

constant = _scopes.Constant
glorot_normal = _scopes.GlorotNormal
glorot_uniform = _scopes.GlorotUniform
ones = _scopes.Ones
random_normal = _scopes.RandomNormal
random_uniform = _scopes.RandomUniform
truncated_normal = _scopes.TruncatedNormal
variance_scaling = _scopes.VarianceScaling
zeros = _scopes.Zeros

global_variables = _variables.global_variables_initializer
local_variables = _variables.local_variables_initializer
variables = _variables.variables_initializer

__getattr__ = names_of(__name__)
