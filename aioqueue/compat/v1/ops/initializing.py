"""Giving variables their initial values, and asking which have none yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.default_graph import op
from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.core.scopes import GraphKeys, control_dependencies, get_collection
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.ops.control import group, no_op
from aioqueue.compat.v1.ops.variables import (
    global_variables,
    local_variables,
    variable_cell,
    variable_op,
)

__all__ = (
    "global_variables_initializer",
    "initialize_all_tables",
    "initialize_all_variables",
    "initialize_local_variables",
    "initialize_variables",
    "local_variables_initializer",
    "report_uninitialized_variables",
    "tables_initializer",
    "variables_initializer",
)


def report_uninitialized_variables(
    var_list: Sequence[Any] | None = None, name: str = "report_uninitialized_variables"
) -> Tensor:
    """A vector of strings: the names of the variables that have no value in the session.

    Args:
        var_list: the variables; None for all global and local ones.
        name: of the operation.
    """
    variables = [*global_variables(), *local_variables()] if var_list is None else var_list
    operations = [variable_op(one) for one in variables]

    def kernel(step: Any) -> Any:
        missing = [one.name.encode() for one in operations if not variable_cell(step, one).is_set]
        found = np.empty(len(missing), dtype=object)
        found[:] = missing
        return found

    outputs = [(dtypes.string, TensorShape([None]))]
    return op("ReportUninitializedVariables", (), outputs, kernel, name=name).outputs[0]


def variables_initializer(var_list: Sequence[Any], name: str = "init") -> Operation:
    """An operation that gives variables their initial values.

    Args:
        var_list: the variables.
        name: of the operation.
    """
    with control_dependencies(None):
        return group(*[one.initializer for one in var_list], name=name)


def global_variables_initializer() -> Operation:
    """An operation that gives all global variables their initial values."""
    return variables_initializer(global_variables())


def local_variables_initializer() -> Operation:
    """An operation that gives all local variables, such as epoch counters, their initial values."""
    return variables_initializer(local_variables())


def tables_initializer(name: str = "init_all_tables") -> Operation:
    """An operation that fills all lookup tables.

    Args:
        name: of the operation.
    """
    found = get_collection(GraphKeys.TABLE_INITIALIZERS)
    return group(*found, name=name) if found else no_op(name)


def initialize_variables(var_list: Sequence[Any], name: str = "init") -> Operation:
    """The old name of `variables_initializer`."""
    return variables_initializer(var_list, name)


def initialize_all_variables() -> Operation:
    """The old name of `global_variables_initializer`."""
    return global_variables_initializer()


def initialize_local_variables() -> Operation:
    """The old name of `local_variables_initializer`."""
    return local_variables_initializer()


def initialize_all_tables(name: str = "init_all_tables") -> Operation:
    """The old name of `tables_initializer`."""
    return tables_initializer(name)
