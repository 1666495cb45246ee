"""Padded batches: what their elements are filled up to, and with what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import int64, string
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape
from aioqueue.compat.v1.datasets import nest, stages
from aioqueue.compat.v1.datasets.counts import at_least_one
from aioqueue.compat.v1.datasets.elements import DatasetRun, Elements, Start, TensorInfo
from aioqueue.compat.v1.ops.static import shape_value

__all__ = ("padded_batches", "shape_leaves")


def padded_batches(
    dataset: Elements, batch_size: Any, shapes: Any, fillers: Any, drop_remainder: bool
) -> tuple[Any, Callable[[DatasetRun], Start], list[Tensor]]:
    """What a dataset of batches is made of whose elements are filled up to one shape.

    Args:
        dataset: whose elements they are.
        batch_size: a number, or an int64 scalar.
        shapes: what each tensor is filled up to; None for the largest of the batch.
        fillers: with what; None for zeros and empty strings.
        drop_remainder: whether the last batch is left out if it is smaller.

    Returns:
        What is known of its elements, how a run through them begins, and the tensors that this
        needs.

    Raises:
        ValueError: the nesting of the shapes or values is another one.
        TypeError: a tensor is sparse, or a value is of another dtype.
    """
    infos = nest.flatten(dataset._spec)
    if any(info.is_sparse for info in infos):
        raise TypeError("Batching of padded sparse tensors is not currently supported")
    size = convert_to_tensor(batch_size, dtype=int64)
    wanted = [info.shape for info in infos] if shapes is None else shape_leaves(shapes)
    if len(wanted) != len(infos):
        raise ValueError(
            f"padded_shapes: got {len(wanted)} shapes; expected one for each of the"
            f" {len(infos)} tensors of an element"
        )
    targets = [_target(info, one) for info, one in zip(infos, wanted, strict=True)]
    given = [None] * len(infos) if fillers is None else nest.flatten(fillers)
    values = [_value(info, one) for info, one in zip(infos, given, strict=True)]
    rows = int(batch_size) if drop_remainder and not isinstance(batch_size, Tensor) else None

    def begin(run: DatasetRun) -> Start:
        start = dataset._begin(run)
        count = at_least_one(run.values[size], "Batch size must be greater than zero.")

        def stack(place: int, column: tuple[Any, ...]) -> Any:
            sizes = tuple(None if one < 0 else int(one) for one in run.values[targets[place]])
            return stages.padded(place, column, sizes, run.values[values[place]])

        return lambda: stages.Batches(start(), count, drop_remainder, stack)

    spec = [
        TensorInfo(info.dtype, TensorShape([rows]).concatenate(as_shape(shape_value(target))))
        for info, target in zip(infos, targets, strict=True)
    ]
    return nest.packed(dataset._spec, spec), begin, [size, *targets, *values]


def _target(info: TensorInfo, shape: Any) -> Tensor:
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


def _value(info: TensorInfo, value: Any) -> Tensor:
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
