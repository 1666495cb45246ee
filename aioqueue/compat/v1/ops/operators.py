"""What Python's operators do with tensors and variables: each makes an op.

They are given their functions when this module is imported, which the package does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aioqueue.compat.v1.core.graph import Operators, Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.ops import bits, comparison, indexing, math, numpy_protocol, products

__all__ = ()

_Function = Callable[..., Tensor]


def _apply(function: _Function, name: str | None, x: Any, y: Any) -> Tensor:
    """The op of a binary operator; sparse tensors and the like get their turn.

    Args:
        function: makes it.
        name: what the op is called; the function's default if None.
        x: the left operand.
        y: the right operand.
    """
    if _knows_better(x, y):
        return NotImplemented  # type: ignore[no-any-return]
    if name is None:
        return function(x, y)
    with name_scope(None, name) as scope:
        return function(x, y, name=scope)


def _knows_better(x: Any, y: Any) -> bool:
    """Whether one operand is a type of its own that handles tensors itself."""
    mine = Operators.__array_priority__
    return any(
        not isinstance(one, Operators) and getattr(one, "__array_priority__", 0) > mine
        for one in (x, y)
    )


def _override_both_sides(name: str, function: _Function, op_name: str | None) -> None:
    """Register a binary operator, from the left and from the right."""

    def from_left(self: Any, other: Any) -> Tensor:
        return _apply(function, op_name, self, other)

    def from_right(self: Any, other: Any) -> Tensor:
        return _apply(function, op_name, other, self)

    Operators._override_operator(f"__{name}__", from_left)
    Operators._override_operator(f"__r{name}__", from_right)


def _override_comparison(name: str, function: _Function) -> None:
    def compare(self: Any, other: Any) -> Tensor:
        return _apply(function, None, self, other)

    Operators._override_operator(f"__{name}__", compare)


def _of_booleans_or_bits(logical: _Function, bitwise: _Function) -> _Function:
    """``&``, ``|`` and ``^``: of booleans, or of the bits of integers."""

    def function(x: Any, y: Any, name: str | None = None) -> Tensor:
        tensor: Any = x if isinstance(x, Operators) else y
        return (logical if tensor.dtype.is_bool else bitwise)(x, y, name=name)

    return function


def _invert(tensor: Any) -> Tensor:
    return comparison.logical_not(tensor) if tensor.dtype.is_bool else bits.invert(tensor)


def _negative(tensor: Any) -> Tensor:
    return math.negative(tensor)


def _abs(tensor: Any) -> Tensor:
    return math.abs(tensor)


def _apply_ufunc(self: Any, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
    return numpy_protocol.apply_ufunc(ufunc, method, inputs, kwargs)


def _apply_function(self: Any, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    return numpy_protocol.apply_function(function, args, kwargs)


for _name, _function, _op_name in (
    ("add", math.add, "add"),
    ("sub", math.subtract, "sub"),
    ("mul", math.multiply, "mul"),
    ("truediv", math.truediv, "truediv"),
    ("floordiv", math.floordiv, "floordiv"),
    ("mod", math.mod, "mod"),
    ("pow", math.pow, "pow"),
    ("matmul", products.matmul, "matmul"),
    ("and", _of_booleans_or_bits(comparison.logical_and, bits.bitwise_and), "and"),
    ("or", _of_booleans_or_bits(comparison.logical_or, bits.bitwise_or), "or"),
    ("xor", _of_booleans_or_bits(comparison.logical_xor, bits.bitwise_xor), "xor"),
):
    _override_both_sides(_name, _function, _op_name)
_override_comparison("lt", comparison.less)
_override_comparison("le", comparison.less_equal)
_override_comparison("gt", comparison.greater)
_override_comparison("ge", comparison.greater_equal)
Operators._override_operator("__getitem__", indexing.item)
Operators._override_operator("__invert__", _invert)
Operators._override_operator("__neg__", _negative)
Operators._override_operator("__abs__", _abs)
Operators._override_operator("__array_ufunc__", _apply_ufunc)
Operators._override_operator("__array_function__", _apply_function)
