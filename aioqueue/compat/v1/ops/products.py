"""Sums of tensors, and products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import (
    NUMBERS,
    Dims,
    OpBuilder,
    Pure,
    broadcast,
    invalid,
    merge,
)

__all__ = (
    "accumulate_n",
    "add_n",
    "matmul",
    "tensordot",
)


def add_n(inputs: Sequence[Any] | Any, name: str | None = None) -> Tensor:
    """The sum of tensors of one dtype and one shape.

    Raises:
        ValueError: there are none, or their shapes differ.
    """
    values = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if not values:
        raise ValueError(
            "Inputs must be an iterable of at least one Tensor/IndexedSlices with the same dtype"
            " and shape."
        )

    def total(*values: Any) -> Any:
        result = values[0]
        for value in values[1:]:
            if np.shape(value) != np.shape(result):
                raise invalid("Inputs to operation of type AddN must have the same size and shape.")
            result = np.add(result, value)
        return result

    with OpBuilder("AddN", name) as op:
        tensors = op.alike_list(values, "inputs")
        shape: Dims = None
        for place, tensor in enumerate(tensors):
            try:
                shape = merge(shape, tensor.shape.as_tuple())
            except ValueError as error:
                merging = f"\n\tFrom merging shape {place - 1} with other shapes."
                raise op.refuse(f"{error}{merging}") from None
        return op.output(tensors[0].dtype, shape, Pure(total))


def accumulate_n(
    inputs: Sequence[Any], shape: Any = None, tensor_dtype: Any = None, name: str | None = None
) -> Tensor:
    """The sum of tensors of one dtype and one shape; the same as `add_n`."""
    result = add_n(inputs, name or "AccumulateNV2")
    if shape is not None:
        result.set_shape(shape)
    return result


def matmul(
    a: Any,
    b: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    name: str | None = None,
) -> Tensor:
    """The product of two matrices, or of two stacks of matrices.

    Args:
        a: numbers, of rank 2 or more.
        b: numbers of the same dtype and rank.
        transpose_a: whether the last two dimensions of ``a`` are swapped first.
        transpose_b: the same for ``b``.
        adjoint_a: whether ``a`` is transposed and conjugated first.
        adjoint_b: the same for ``b``.
        a_is_sparse: whether many elements are zero; changes nothing here.
        b_is_sparse: the same for ``b``.
        name: name of the op.

    Raises:
        ValueError: the shapes do not fit, or both of transpose and adjoint are asked for.
    """
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        raise ValueError("Only one of transpose and adjoint can be True for each of a and b.")
    flips = (transpose_a or adjoint_a, transpose_b or adjoint_b)

    def product(a: Any, b: Any) -> Any:
        one, two = np.asarray(a), np.asarray(b)
        one = one.conj() if adjoint_a else one
        two = two.conj() if adjoint_b else two
        one = np.swapaxes(one, -1, -2) if flips[0] else one
        two = np.swapaxes(two, -1, -2) if flips[1] else two
        if one.shape[-1] != two.shape[-2]:
            raise invalid(f"Matrix size-incompatible: In[0]: {_sizes(one)}, In[1]: {_sizes(two)}")
        return np.matmul(one, two)

    with OpBuilder("MatMul", name) as op:
        a, b = op.alike(NUMBERS, a=a, b=b)
        one, two = a.shape.as_tuple(), b.shape.as_tuple()
        if (one is None or len(one) > 2) and (two is None or len(two) > 2):
            op.type = "BatchMatMulV2"
        for shape in (one, two):
            if shape is not None and len(shape) < 2:
                raise op.refuse(f"Shape must be rank 2 but is rank {len(shape)}")
        return op.output(a.dtype, _product_shape(op, one, two, *flips), Pure(product))


def _sizes(matrix: NDArray[Any]) -> str:
    return "[" + ",".join(map(str, matrix.shape)) + "]"


def _product_shape(op: OpBuilder, one: Dims, two: Dims, flip_a: bool, flip_b: bool) -> Dims:
    if one is None or two is None:
        return None
    rows, inner = (one[-1], one[-2]) if flip_a else (one[-2], one[-1])
    other, columns = (two[-1], two[-2]) if flip_b else (two[-2], two[-1])
    if inner is not None and other is not None and inner != other:
        raise op.refuse(f"Dimensions must be equal, but are {inner} and {other}")
    stacks = broadcast(one[:-2], two[:-2])
    assert stacks is not None
    return (*stacks, rows, columns)


def tensordot(a: Any, b: Any, axes: Any, name: str | None = None) -> Tensor:
    """The sum of products over axes of both.

    Args:
        a: numbers.
        b: numbers of the same dtype.
        axes: how many, the last ones of ``a`` with the first ones of ``b``; or two lists of axes.
        name: name of the op.
    """
    if isinstance(axes, Tensor):
        raise TypeError("tensordot: got a Tensor for axes; expected integers")
    pairs: Any = axes if np.ndim(axes) == 0 else [np.atleast_1d(one).tolist() for one in axes]

    with OpBuilder("Tensordot", name) as op:
        a, b = op.alike(NUMBERS, a=a, b=b)
        shape: Dims = None
        one, two = a.shape.as_tuple(), b.shape.as_tuple()
        if one is not None and two is not None:
            gone = (
                (range(len(one) - int(pairs), len(one)), range(int(pairs)))
                if np.ndim(pairs) == 0
                else ([i % len(one) for i in pairs[0]], [i % len(two) for i in pairs[1]])
            )
            kept = [size for i, size in enumerate(one) if i not in gone[0]]
            shape = (*kept, *(size for i, size in enumerate(two) if i not in gone[1]))
        return op.output(a.dtype, shape, Pure(lambda a, b: np.tensordot(a, b, pairs)))
