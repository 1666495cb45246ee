"""The plain arithmetic of `tf.nn`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import FLOATS, REALS, OpBuilder, Pure, elementwise, invalid
from aioqueue.compat.v1.ops.static import constant_value


def relu(features: Any, name: str | None = None) -> Tensor:
    """``max(features, 0)``."""

    def cut(x: Any) -> Any:
        return np.maximum(x, x.dtype.type(0))

    return elementwise("Relu", cut, name, REALS, {"x": features})


def softmax(logits: Any, axis: int = -1, name: str | None = None) -> Tensor:
    """``exp(logits)`` divided by its sum along `axis`."""

    def normalised(x: Any) -> Any:
        powers = np.exp(np.subtract(x, np.max(x, axis=axis, keepdims=True)))
        return np.true_divide(powers, np.sum(powers, axis=axis, keepdims=True))

    return elementwise("Softmax", normalised, name, FLOATS, {"x": logits})


class TopKV2(NamedTuple):
    values: Tensor
    indices: Tensor


def top_k(input: Any, k: Any = 1, sorted: bool = True, name: str | None = None) -> TopKV2:
    """The `k` largest elements along the last axis, and their indices; of equal ones the first."""

    def largest(x: Any, k: Any) -> Any:
        x, count = np.asarray(x), int(k)
        if x.ndim < 1 or x.shape[-1] < count:
            had = x.shape[-1] if x.ndim else 0
            raise invalid(f"input must have at least k columns. Had {had}, needed {count}")
        # Sorted from the end: equal elements keep their order.
        backwards = np.argsort(np.flip(x, -1), axis=-1, kind="stable")
        order = (x.shape[-1] - 1 - np.flip(backwards, -1))[..., :count]
        return np.take_along_axis(x, order, -1), order.astype(np.int32)

    with OpBuilder("TopKV2", name) as op:
        tensor = op.tensor(input, "input", None, REALS)
        known = constant_value(op.tensor(k, "k", dtypes.int32))
        shape = tensor.shape.as_tuple()
        if shape is not None:
            size = None if known is None else int(known)
            if size is not None and shape[-1] is not None and shape[-1] < size:
                raise op.refuse(f"input must have last dimension >= k = {size} but is {shape[-1]}")
            shape = (*shape[:-1], size)
        return TopKV2(*op.outputs([(tensor.dtype, shape), (dtypes.int32, shape)], Pure(largest)))
