"""Products of matrices, and of tensors over axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import (
    NUMBERS,
    Dims,
    OpBuilder,
    Pure,
    broadcast,
    invalid,
    shape_text,
)

__all__ = (
    "matmul",
)  # fmt: skip


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
    """The product of two matrices, or of two stacks of matrices."""
    for one, both in (("a", transpose_a and adjoint_a), ("b", transpose_b and adjoint_b)):
        if both:
            raise ValueError(
                f"Only one of `transpose_{one}` and `adjoint_{one}` can be True. Received"
                f" `transpose_{one}`=True, `adjoint_{one}`=True."
            )
    flips = (transpose_a or adjoint_a, transpose_b or adjoint_b)

    def product(a: Any, b: Any) -> Any:
        one, two = np.asarray(a), np.asarray(b)
        one = one.conj() if adjoint_a else one
        two = two.conj() if adjoint_b else two
        one = np.swapaxes(one, -1, -2) if flips[0] else one
        two = np.swapaxes(two, -1, -2) if flips[1] else two
        if one.shape[-1] != two.shape[-2]:
            sizes = f"In[0]: {shape_text(one.shape)}, In[1]: {shape_text(two.shape)}"
            raise invalid(f"Matrix size-incompatible: {sizes}")
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
