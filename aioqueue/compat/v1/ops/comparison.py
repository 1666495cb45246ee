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
from aioqueue.compat.v1.ops.elementwise import Binary, Unary, binary_op, unary_op

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


def _comparing(name: str, op_type: str, function: Callable[..., Any], symbol: str) -> Binary:
    allowed = REALS if symbol[0] in "<>" else _COMPARABLE
    doc = f"Whether ``x {symbol} y``, element by element."
    return binary_op(name, op_type, function, doc, allowed, result=dtypes.bool)


def _telling(name: str, op_type: str, function: Callable[..., Any], what: str) -> Unary:
    return unary_op(name, op_type, function, f"Whether each element is {what}.", result=dtypes.bool)


equal: Binary = _comparing("equal", "Equal", np.equal, "==")
not_equal: Binary = _comparing("not_equal", "NotEqual", np.not_equal, "!=")
less: Binary = _comparing("less", "Less", np.less, "<")
less_equal: Binary = _comparing("less_equal", "LessEqual", np.less_equal, "<=")
greater: Binary = _comparing("greater", "Greater", np.greater, ">")
greater_equal: Binary = _comparing("greater_equal", "GreaterEqual", np.greater_equal, ">=")
is_nan: Unary = _telling("is_nan", "IsNan", np.isnan, "not a number")
is_inf: Unary = _telling("is_inf", "IsInf", np.isinf, "infinite")
is_finite: Unary = _telling("is_finite", "IsFinite", np.isfinite, "a number and not infinite")


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
