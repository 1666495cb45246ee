"""Ops that work element by element: how they are made of NumPy's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor, named
from aioqueue.compat.v1.ops.building import FLOATS, NUMBERS, Elementwise, OpBuilder

__all__ = ("Binary", "Unary", "binary", "binary_op", "unary", "unary_op")


class Unary(Protocol):
    """What makes an op of one tensor."""

    def __call__(self, x: Any, name: str | None = None) -> Tensor:
        """The op's output."""


class Binary(Protocol):
    """What makes an op of two tensors."""

    def __call__(self, x: Any, y: Any, name: str | None = None) -> Tensor:
        """The op's output."""


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


def unary_op(
    name: str,
    op_type: str,
    function: Callable[..., Any],
    doc: str,
    allowed: frozenset[str] = FLOATS,
    result: DType | None = None,
) -> Unary:
    """What makes an op of one tensor; the arguments are those of `unary`.

    Args:
        name: its name in TensorFlow.
        op_type: the op's type.
        function: of arrays.
        doc: what it says of itself.
        allowed: the dtypes that it takes.
        result: the dtype that it gives.
    """

    def made(x: Any, name: str | None = None) -> Tensor:
        return unary(op_type, function, x, name, allowed, result)

    return named(made, name, doc)


def binary_op(
    name: str,
    op_type: str,
    function: Callable[..., Any],
    doc: str,
    allowed: frozenset[str] = NUMBERS,
    *,
    default: str | None = None,
    result: DType | None = None,
) -> Binary:
    """What makes an op of two tensors; the arguments are those of `unary_op` and `binary`."""

    def made(x: Any, y: Any, name: str | None = None) -> Tensor:
        return binary(op_type, function, x, y, name, allowed, default=default, result=result)

    return named(made, name, doc)


def _on_objects(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` for strings, whose scalars NumPy would else cut at trailing zeros."""

    def on_objects(*values: Any) -> Any:
        return function(*(np.asarray(value, object) for value in values))

    return on_objects
