"""Other dtypes and limits for the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor, named
from aioqueue.compat.v1.ops.building import REALS, Elementwise, OpBuilder, Unary, merge
from aioqueue.compat.v1.ops.sparse import SparseTensor

__all__ = (
    "cast", "clip_by_value", "saturate_cast", "to_double", "to_float", "to_int32", "to_int64",
)  # fmt: skip


def cast(x: Any, dtype: Any, name: str | None = None) -> Any:
    """``x`` as another dtype: fractions are cut off, whole numbers wrap around."""
    wanted = dtypes.as_dtype(dtype).base_dtype
    if isinstance(x, Tensor) and x.dtype == wanted:
        return x
    if isinstance(x, SparseTensor):
        return SparseTensor(x.indices, cast(x.values, wanted, name), x.dense_shape)
    with OpBuilder("Cast", name) as op:
        tensor = op.tensor(x, "x")
        if tensor.dtype == wanted:
            return tensor
        caster = _caster(tensor.dtype, wanted)
        return op.output(wanted, tensor.shape.as_tuple(), Elementwise(caster))


def _caster(source: DType, wanted: DType) -> Callable[[Any], Any]:
    to = wanted.numpy

    def refuse(x: Any) -> Any:
        raise errors.UnimplementedError(
            None, None, f"Cast {source.name} to {wanted.name} is not supported"
        )

    if dtypes.string in (source, wanted):
        return refuse
    if source.is_complex and not wanted.is_complex:
        return lambda x: x.real.astype(to)
    return lambda x: x.astype(to)


def _to(name: str, dtype: DType) -> Unary:
    default = "".join(part.capitalize() for part in name.split("_"))

    def made(x: Any, name: str | None = default) -> Any:
        return cast(x, dtype, name)

    return named(made, name, f"``x`` as {dtype.name}.")


to_float: Unary = _to("to_float", dtypes.float32)
to_double: Unary = _to("to_double", dtypes.float64)
to_int32: Unary = _to("to_int32", dtypes.int32)
to_int64: Unary = _to("to_int64", dtypes.int64)


def saturate_cast(value: Any, dtype: Any, name: str | None = None) -> Tensor:
    """``value`` as another dtype, clipped to what that can hold."""
    wanted = dtypes.as_dtype(dtype).base_dtype
    with OpBuilder("SaturateCast", name, "saturate_cast") as op:
        tensor = op.tensor(value, "value", None, REALS)
        clipped = saturating(tensor.dtype, wanted)
        return op.output(wanted, tensor.shape.as_tuple(), Elementwise(clipped))


def saturating(dtype: DType, wanted: DType) -> Callable[[Any], Any]:
    """What makes arrays of one dtype those of another, clipped to what that can hold."""
    limits = []
    for ours, theirs, inwards in ((dtype.min, wanted.min, max), (dtype.max, wanted.max, min)):
        limit = dtype.numpy.type(inwards(ours, theirs))
        if wanted.is_integer and dtype.is_floating and not wanted.min <= int(limit) <= wanted.max:
            limit = np.nextafter(limit, dtype.numpy.type(0))  # 2**31 - 1 is no float32
        limits.append(limit)
    low, high = limits
    return lambda x: np.minimum(np.maximum(x, low), high).astype(wanted.numpy)


def clip_by_value(
    t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None
) -> Tensor:
    """``t`` with elements below the minimum, or above the maximum, set to it."""

    def clip(t: Any, low: Any, high: Any) -> Any:
        return np.maximum(np.minimum(t, high), low)

    with OpBuilder("ClipByValue", name, "clip_by_value") as op:
        t, low, high = op.alike(
            REALS, t=t, clip_value_min=clip_value_min, clip_value_max=clip_value_max
        )
        shape = op.broadcast(t, low, high)
        merge(t.shape.as_tuple(), shape)
        return op.output(t.dtype, shape, Elementwise(clip))
