"""Comparison and logic, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import (
    NUMBERS,
    REALS,
    Elementwise,
    OpBuilder,
    dtype_hint,
)
from aioqueue.compat.v1.ops.elementwise import binary_op, unary_op

__all__ = (
    "equal",
    "greater",
    "greater_equal",
    "is_finite",
    "is_inf",
    "is_nan",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
)


_BOOLS = frozenset(("bool",))
_COMPARABLE = NUMBERS | {"bool", "string"}


equal = binary_op(
    "equal",
    "Equal",
    np.equal,
    "Whether ``x == y``, element by element.",
    _COMPARABLE,
    result=dtypes.bool,
)
not_equal = binary_op(
    "not_equal",
    "NotEqual",
    np.not_equal,
    "Whether ``x != y``, element by element.",
    _COMPARABLE,
    result=dtypes.bool,
)
less = binary_op(
    "less", "Less", np.less, "Whether ``x < y``, element by element.", REALS, result=dtypes.bool
)
less_equal = binary_op(
    "less_equal",
    "LessEqual",
    np.less_equal,
    "Whether ``x <= y``, element by element.",
    REALS,
    result=dtypes.bool,
)
greater = binary_op(
    "greater",
    "Greater",
    np.greater,
    "Whether ``x > y``, element by element.",
    REALS,
    result=dtypes.bool,
)
greater_equal = binary_op(
    "greater_equal",
    "GreaterEqual",
    np.greater_equal,
    "Whether ``x >= y``, element by element.",
    REALS,
    result=dtypes.bool,
)


def logical_and(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Whether both are true, element by element."""
    return _logical("LogicalAnd", np.logical_and, name, x=x, y=y)


def logical_or(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Whether either is true, element by element."""
    return _logical("LogicalOr", np.logical_or, name, x=x, y=y)


def logical_xor(x: Any, y: Any, name: str = "LogicalXor") -> Tensor:
    """Whether just one is true, element by element."""
    # Of four ops, as in TensorFlow, whose names errors and later ops show.
    return logical_and(logical_or(x, y), logical_not(logical_and(x, y)), name)


def logical_not(x: Any, name: str | None = None) -> Tensor:
    """Whether it is false, element by element."""
    return _logical("LogicalNot", np.logical_not, name, x=x)


def _logical(op_type: str, function: Callable[..., Any], name: str | None, **values: Any) -> Tensor:
    with OpBuilder(op_type, name) as op:
        for argument, value in values.items():
            op.tensor(value, argument, None if dtype_hint(value) else dtypes.bool, _BOOLS)
        return op.output(dtypes.bool, op.broadcast(*op.inputs), Elementwise(function))


is_nan = unary_op(
    "is_nan", "IsNan", np.isnan, "Whether each element is not a number.", result=dtypes.bool
)
is_inf = unary_op(
    "is_inf", "IsInf", np.isinf, "Whether each element is infinite.", result=dtypes.bool
)
is_finite = unary_op(
    "is_finite",
    "IsFinite",
    np.isfinite,
    "Whether each element is a number and not infinite.",
    result=dtypes.bool,
)
