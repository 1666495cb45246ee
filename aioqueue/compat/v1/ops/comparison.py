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
from aioqueue.compat.v1.ops.elementwise import binary, unary

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


def _compare(
    op_type: str, function: Callable[..., Any], x: Any, y: Any, name: str | None
) -> Tensor:
    allowed = _COMPARABLE if op_type in ("Equal", "NotEqual") else REALS
    return binary(op_type, function, x, y, name, allowed, result=dtypes.bool)


def equal(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Whether ``x == y``, element by element."""
    return _compare("Equal", np.equal, x, y, name)


def not_equal(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Whether ``x != y``, element by element."""
    return _compare("NotEqual", np.not_equal, x, y, name)


def less(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Whether ``x < y``, element by element."""
    return _compare("Less", np.less, x, y, name)


def less_equal(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Whether ``x <= y``, element by element."""
    return _compare("LessEqual", np.less_equal, x, y, name)


def greater(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Whether ``x > y``, element by element."""
    return _compare("Greater", np.greater, x, y, name)


def greater_equal(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Whether ``x >= y``, element by element."""
    return _compare("GreaterEqual", np.greater_equal, x, y, name)


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


def is_nan(x: Any, name: str | None = None) -> Tensor:
    """Whether each element is not a number."""
    return unary("IsNan", np.isnan, x, name, result=dtypes.bool)


def is_inf(x: Any, name: str | None = None) -> Tensor:
    """Whether each element is infinite."""
    return unary("IsInf", np.isinf, x, name, result=dtypes.bool)


def is_finite(x: Any, name: str | None = None) -> Tensor:
    """Whether each element is a number and not infinite."""
    return unary("IsFinite", np.isfinite, x, name, result=dtypes.bool)
