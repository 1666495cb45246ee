"""Ops that work element by element: how they are made of NumPy's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import FLOATS, NUMBERS, Elementwise, OpBuilder

__all__ = (
    "binary",
    "unary",
)


def unary(
    op_type: str,
    function: Callable[..., Any],
    x: Any,
    name: str | None,
    allowed: frozenset[str] = FLOATS,
    result: DType | None = None,
) -> Tensor:
    """An op of one tensor.

    Args:
        op_type: its type.
        function: of arrays, such as a ufunc.
        x: the tensor.
        name: its name.
        allowed: the dtypes that it takes.
        result: the dtype that it gives, if it is another one.
    """
    with OpBuilder(op_type, name) as op:
        x = op.tensor(x, "x", None, allowed)
        return op.output(result or x.dtype, x.shape.as_tuple(), Elementwise(function))


def binary(
    op_type: str,
    function: Callable[..., Any],
    x: Any,
    y: Any,
    name: str | None,
    allowed: frozenset[str] = NUMBERS,
    *,
    default: str | None = None,
    result: DType | None = None,
) -> Tensor:
    """An op of two tensors of one dtype; the arguments are those of `unary`, and a default name.

    Raises:
        TypeError: they have different dtypes.
        ValueError: their static shapes do not fit.
    """
    with OpBuilder(op_type, name, default) as op:
        x, y = op.alike(allowed, x=x, y=y)
        if x.dtype == dtypes.string:
            function = _on_objects(function)
        return op.output(result or x.dtype, op.broadcast(x, y), Elementwise(function))


def _on_objects(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` for strings, whose scalars NumPy would else cut at trailing zeros."""

    def on_objects(*values: Any) -> Any:
        return function(*(np.asarray(value, object) for value in values))

    return on_objects
