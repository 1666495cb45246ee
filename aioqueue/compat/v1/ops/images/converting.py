"""Pictures of another dtype, whose range of brightness is that of the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import OpBuilder, Pure, array
from aioqueue.compat.v1.ops.casting import saturating
from aioqueue.compat.v1.ops.control import identity

__all__ = ("convert_image_dtype", "converter")

_Convert = Callable[[NDArray[Any]], NDArray[Any]]


def converter(source: DType, wanted: DType, *, saturate: bool = False) -> _Convert:
    """What converts pixels: floats go from 0 to 1, integers from 0 to the largest there is.

    Args:
        source: what the pixels are.
        wanted: what they shall be.
        saturate: whether values beyond the range become its limits, or wrap around.
    """
    if source == wanted or (source.is_floating and wanted.is_floating):
        return lambda pixels: pixels.astype(wanted.numpy, copy=False)
    if source.is_integer and wanted.is_floating:
        factor = wanted.numpy.type(1.0 / source.max)
        return lambda pixels: pixels.astype(wanted.numpy) * factor
    to_wanted = saturating(source, wanted) if saturate else _wrapping(wanted)
    if source.is_floating:
        # The half makes each integer as likely as the others.
        factor = source.numpy.type(wanted.max + 0.5)
        return lambda pixels: to_wanted(pixels * factor)
    if source.max > wanted.max:
        divisor = source.numpy.type((source.max + 1) // (wanted.max + 1))
        return lambda pixels: to_wanted(pixels // divisor)
    factor = wanted.numpy.type((wanted.max + 1) // (source.max + 1))
    return lambda pixels: to_wanted(pixels) * factor


def _wrapping(wanted: DType) -> _Convert:
    return lambda pixels: pixels.astype(wanted.numpy)


def convert_image_dtype(
    image: Any, dtype: Any, saturate: bool = False, name: str | None = None
) -> Tensor:
    """A picture of another dtype, with the values scaled from the one's range to the other's.

    Args:
        image: the pixels, of any shape; floats lie between 0 and 1.
        dtype: a dtype of floats or integers.
        saturate: whether values beyond the range become its limits, or wrap around.
        name: name of the op.

    Raises:
        AttributeError: a dtype is of neither floats nor integers.
    """
    wanted = dtypes.as_dtype(dtype).base_dtype
    if not (wanted.is_floating or wanted.is_integer):
        raise AttributeError("dtype must be either floating point or integer")
    tensor = convert_to_tensor(image, name="image")
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        raise AttributeError("image dtype must be either floating point or integer")
    if tensor.dtype == wanted:
        return identity(tensor, name)
    with OpBuilder("ConvertImage", name, "convert_image") as op:
        tensor = op.tensor(tensor, "image")
        convert = converter(tensor.dtype, wanted, saturate=saturate)
        return op.output(
            wanted, tensor.shape.as_tuple(), Pure(lambda pixels: convert(array(pixels)))
        )
