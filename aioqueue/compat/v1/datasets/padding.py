"""What the elements of a padded batch are filled up to, and with what, as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import int64, string
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape
from aioqueue.compat.v1.datasets.elements import TensorInfo

__all__ = ("padding_target", "padding_value", "shape_leaves")


def padding_target(info: TensorInfo, shape: Any) -> Tensor:
    """The sizes that a tensor is filled up to, -1 where they are those of the batch.

    Args:
        info: what is known of the tensor.
        shape: what was asked for: a shape, or an int64 vector.

    Raises:
        ValueError: the tensor has another rank, or is larger, or its rank is not known.
    """
    if isinstance(shape, Tensor):
        return shape
    sizes = as_shape([None if one == -1 else one for one in shape] if _is_listed(shape) else shape)
    if sizes.ndims is None:
        raise ValueError(f"padded_shapes: the rank of {info.shape} is not known; give its sizes")
    if info.shape.ndims not in (None, sizes.ndims) or any(
        mine is not None and theirs is not None and mine > theirs
        for mine, theirs in zip(info.shape.as_tuple() or (), sizes.as_list(), strict=False)
    ):
        raise ValueError(
            f"The padded shape {sizes} is not compatible with the shape {info.shape} of the"
            " corresponding input component."
        )
    listed = [-1 if one is None else one for one in sizes.as_list()]
    return convert_to_tensor(np.array(listed, np.int64), int64)


def _is_listed(shape: Any) -> bool:
    return isinstance(shape, list | tuple) and all(isinstance(one, int | None) for one in shape)


def padding_value(info: TensorInfo, value: Any) -> Tensor:
    """What a tensor is filled up with: zero or the empty string, if nothing was asked for.

    Raises:
        TypeError: it is of another dtype.
    """
    if value is None:
        value = b"" if info.dtype == string else np.zeros((), info.dtype.numpy)[()]
    if isinstance(value, Tensor) and value.dtype != info.dtype:
        raise TypeError(
            f"Padding value tensor ({value}) does not match output type: {info.dtype.name}"
        )
    return convert_to_tensor(value, info.dtype)


def shape_leaves(shapes: Any) -> list[Any]:
    """The leaves of a nest of shapes, in which a tuple of sizes is one shape."""
    if isinstance(shapes, TensorShape | Tensor | list) or shapes is None:
        return [shapes]
    if isinstance(shapes, Mapping):
        return [leaf for key in sorted(shapes) for leaf in shape_leaves(shapes[key])]
    if all(one is None or isinstance(one, int) for one in shapes):
        return [shapes]
    return [leaf for one in shapes for leaf in shape_leaves(one)]
