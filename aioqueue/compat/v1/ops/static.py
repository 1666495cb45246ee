"""What is known while a graph is built: the values of constants, and of shapes in part.

``tf.reshape(x, tf.stack([tf.shape(x)[0], 3]))`` has the static shape ``[?, 3]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import Dims, Pure, array

_DEEPEST = 64


def constant_value(tensor: Any, partial: bool = False) -> Any:
    """The value that a tensor always has; None if it is not known yet, even in part."""
    found = _fold(tensor, {}, 0) if isinstance(tensor, Tensor) else None
    return None if found is None else array(found)


def _fold(tensor: Tensor, done: dict[Any, Any], depth: int) -> Any:
    op = tensor.op
    # Each op is run once: of `x = x + x`, 60 times over, there would be 2 ** 60 ways down.
    if op in done:
        results = done[op]
    else:
        results = done[op] = _results(op, done, depth)
    return None if results is None else results[tensor.value_index]


def _results(op: Any, done: dict[Any, Any], depth: int) -> Any:
    """The values of a pure op's outputs if all its inputs are known; else None."""
    if op.type == "Const":
        return (op.get_attr("value"),)
    if op.type in ("Shape", "ShapeN", "Size", "Rank"):
        return _shape_results(op)
    # Python's own recursion ends before a graph does.
    if not isinstance(op.kernel, Pure) or depth > _DEEPEST:
        return None
    values = [_fold(one, done, depth + 1) for one in op.inputs]
    if any(value is None for value in values):
        return None
    try:
        result = op.kernel(None, *values)
    except Exception:
        return None  # it fails when it runs, where the error belongs
    return result if len(op.outputs) > 1 else (result,)


def _shape_results(op: Any) -> Any:
    """Shapes are known where the input's shape is, even if its value is not."""
    shapes = [one.shape for one in op.inputs]
    if op.type == "Rank":
        return None if shapes[0].ndims is None else (np.int32(shapes[0].ndims),)
    if not all(shape.is_fully_defined() for shape in shapes):
        return None
    dtype = op.outputs[0].dtype.numpy
    if op.type == "Size":
        return (dtype.type(shapes[0].num_elements()),)
    return tuple(np.array(shape.as_list(), dtype) for shape in shapes)


def shape_value(tensor: Tensor) -> Dims:
    """The static shape that a one-dimensional integer tensor stands for; -1 is unknown."""
    known = _partial(tensor, 0)
    if known is not None:
        return tuple(None if size is None or size < 0 else size for size in known)
    length = tensor.shape.as_tuple()
    return (None,) * length[0] if length is not None and length and length[0] is not None else None


def _partial(tensor: Tensor, depth: int) -> list[int | None] | None:
    """The elements of a vector, or of a scalar as a list of one, None for those not known."""
    value = constant_value(tensor)
    if value is not None:
        return value.ravel().tolist() if value.dtype.kind in "iu" else None
    op = tensor.op
    if depth > _DEEPEST:
        return None
    if op.type == "Shape":
        shape = op.inputs[0].shape
        return None if shape.ndims is None else shape.as_list()
    if op.type == "Pack":
        parts = [_partial(one, depth + 1) for one in op.inputs]
        return [part[0] if part else None for part in parts]
    if op.type == "ConcatV2":
        lists = [_partial(one, depth + 1) for one in op.inputs[:-1]]
        return None if None in lists else [one for part in lists for one in part or ()]
    if op.type == "Cast":
        return _partial(op.inputs[0], depth + 1)
    if op.type == "StridedSlice":
        return _sliced(op, depth)
    return None


def _sliced(op: Any, depth: int) -> list[int | None] | None:
    index = op.get_attr("index")
    whole = _partial(op.inputs[0], depth + 1)
    if whole is None or index is None or len(index) != 1:
        return None
    if isinstance(index[0], slice):
        return whole[index[0]]
    if isinstance(index[0], int) and -len(whole) <= index[0] < len(whole):
        return [whole[index[0]]]
    return None
