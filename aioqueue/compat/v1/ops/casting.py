"""Other dtypes for the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import REALS, Elementwise, OpBuilder
from aioqueue.compat.v1.ops.saturating import saturating
from aioqueue.compat.v1.ops.sparse import SparseTensor

__all__ = (
    "cast",
    "saturate_cast",
    "to_double",
    "to_float",
    "to_int32",
    "to_int64",
)


def cast(x: Any, dtype: Any, name: str | None = None) -> Any:
    """``x`` as another dtype: fractions are cut off, whole numbers wrap around.

    Args:
        x: a tensor, or a sparse tensor, which stays sparse.
        dtype: the other dtype.
        name: name of the op.

    Raises:
        UnimplementedError: when it runs: strings are no numbers; see `string_to_number`.
    """
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

    def convert(x: Any) -> Any:
        return x.astype(to)

    def real_part(x: Any) -> Any:
        return x.real.astype(to)

    def refuse(x: Any) -> Any:
        raise errors.UnimplementedError(
            None, None, f"Cast {source.name} to {wanted.name} is not supported"
        )

    if dtypes.string in (source, wanted):
        return refuse
    return real_part if source.is_complex and not wanted.is_complex else convert


def saturate_cast(value: Any, dtype: Any, name: str | None = None) -> Tensor:
    """``value`` as another dtype, clipped to what that can hold."""
    wanted = dtypes.as_dtype(dtype).base_dtype
    with OpBuilder("SaturateCast", name, "saturate_cast") as op:
        tensor = op.tensor(value, "value", None, REALS)
        clipped = saturating(tensor.dtype, wanted)
        return op.output(wanted, tensor.shape.as_tuple(), Elementwise(clipped))


def to_float(x: Any, name: str = "ToFloat") -> Any:
    """``x`` as float32."""
    return cast(x, dtypes.float32, name=name)


def to_double(x: Any, name: str = "ToDouble") -> Any:
    """``x`` as float64."""
    return cast(x, dtypes.float64, name=name)


def to_int32(x: Any, name: str = "ToInt32") -> Any:
    """``x`` as int32."""
    return cast(x, dtypes.int32, name=name)


def to_int64(x: Any, name: str = "ToInt64") -> Any:
    """``x`` as int64."""
    return cast(x, dtypes.int64, name=name)
