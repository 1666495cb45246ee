"""Numbers about pictures: how much neighbours differ, and how alike two pictures are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import NUMBERS, REALS, OpBuilder, Pure
from aioqueue.compat.v1.ops.images.converting import converter

__all__ = ("image_gradients", "psnr", "total_variation")


_SIGNED: Final = frozenset(one for one in REALS if not one.startswith("uint"))


def total_variation(images: Any, name: str | None = None) -> Tensor:
    """The sum of the absolute differences of neighbouring pixels: how noisy a picture is.

    Args:
        images: ``[height, width, channels]``, or a batch of such pictures.
        name: name of the op.

    Returns:
        A number, or one per picture, of the dtype of the pictures.

    Raises:
        ValueError: there are neither three nor four dimensions.
    """

    def variation(pixels: Any) -> Any:
        sums = [
            np.abs(np.diff(pixels, axis=axis)).sum((-3, -2, -1), pixels.dtype) for axis in (-3, -2)
        ]
        return sums[0] + sums[1]

    with OpBuilder("TotalVariation", name, "total_variation") as op:
        tensor = op.tensor(images, "images", None, _SIGNED)
        shape = tensor.shape.as_tuple()
        if shape is None or len(shape) not in (3, 4):
            raise ValueError("'images' must be either 3 or 4-dimensional.")
        return op.output(tensor.dtype, shape[:-3], Pure(variation))


def image_gradients(image: Any) -> tuple[Tensor, Tensor]:
    """How much pixels differ from the one below and from the one on the right.

    Args:
        image: ``[batch, height, width, channels]``.

    Returns:
        Two tensors of that shape, ``(dy, dx)``; the last row, or column, is 0.

    Raises:
        ValueError: there are not four dimensions.
    """

    def gradients(pixels: Any) -> Any:
        return tuple(_steps(pixels, axis) for axis in (1, 2))

    with OpBuilder("ImageGradients", None, "image_gradients") as op:
        tensor = op.tensor(image, "image", None, NUMBERS)
        shape = tensor.shape.as_tuple()
        if shape is None or len(shape) != 4:
            raise ValueError(
                f"image_gradients expects a 4D tensor [batch_size, h, w, d], not {tensor.shape}."
            )
        dy, dx = op.outputs([(tensor.dtype, shape)] * 2, Pure(gradients))
        return dy, dx


def _steps(pixels: NDArray[Any], axis: int) -> NDArray[Any]:
    steps = np.zeros_like(pixels)
    inner = (slice(None),) * axis
    steps[(*inner, slice(None, -1))] = np.diff(pixels, axis=axis)
    return steps


def psnr(a: Any, b: Any, max_val: Any, name: str | None = None) -> Tensor:
    """The ratio of the largest signal to the noise between pictures, in decibels.

    Args:
        a: ``[..., height, width, channels]``, of numbers.
        b: the same of the dtype of `a`; the dimensions in front are broadcast.
        max_val: the largest value that a pixel can have.
        name: name of the op.

    Returns:
        float32, one number per picture.

    Raises:
        ValueError: the shapes are known not to fit.
    """
    with OpBuilder("PSNR", name) as op:
        first, second = op.alike(REALS, a=a, b=b)
        shape = op.broadcast(first, second)
        to_floats: Callable[[Any], Any] = converter(first.dtype, dtypes.float32)
        largest = to_floats(np.asarray(max_val).astype(first.dtype.numpy))
        factor = np.float32(10 / np.log(10))

        def ratio(one: Any, other: Any) -> Any:
            error = np.square(to_floats(one) - to_floats(other)).mean((-3, -2, -1))
            signal = np.float32(20) * np.log(largest) / np.log(np.float32(10))
            return (signal - factor * np.log(error)).astype(np.float32)

        if shape is not None and len(shape) < 3:
            raise op.refuse(f"Shape must be at least rank 3 but is rank {len(shape)}")
        return op.output(dtypes.float32, shape and shape[:-3], Pure(ratio))
