"""Pictures in other colour spaces, and in grey."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import FLOATS, REALS, Dims, OpBuilder, Pure, array, invalid
from aioqueue.compat.v1.ops.images import colours
from aioqueue.compat.v1.ops.images.converting import converter

__all__ = (
    "grayscale_to_rgb",
    "hsv_to_rgb",
    "rgb_to_grayscale",
    "rgb_to_hsv",
    "rgb_to_yiq",
    "rgb_to_yuv",
    "yiq_to_rgb",
    "yuv_to_rgb",
)


def rgb_to_grayscale(images: Any, name: str | None = None) -> Tensor:
    """The brightness of pixels, one channel: red, green and blue with the weights of TV.

    Args:
        images: ``[..., 3]``, of numbers.
        name: name of the op.

    Returns:
        ``[..., 1]`` of the same dtype.

    Raises:
        ValueError: there are known not to be three channels.
        InvalidArgumentError: when it runs: there are not.
    """
    with OpBuilder("RGBToGrayscale", name, "rgb_to_grayscale") as op:
        tensor = op.tensor(images, "images", None, REALS)
        shape = _with_channels(op, tensor, 3)
        there = converter(tensor.dtype, dtypes.float32)
        back = converter(dtypes.float32, tensor.dtype)

        def greys(pixels: Any) -> Any:
            _check_channels(pixels, 3)
            return back(colours.grey(there(pixels)))

        return op.output(tensor.dtype, shape and (*shape[:-1], 1), Pure(greys))


def grayscale_to_rgb(images: Any, name: str | None = None) -> Tensor:
    """Grey pixels with three equal channels.

    Args:
        images: ``[..., 1]``.
        name: name of the op.

    Returns:
        ``[..., 3]``.

    Raises:
        ValueError: there is known not to be one channel.
        InvalidArgumentError: when it runs: there is not.
    """
    message = "Last dimension of a grayscale image should be size 1."
    with OpBuilder("GrayscaleToRGB", name, "grayscale_to_rgb") as op:
        tensor = op.tensor(images, "images")
        shape = tensor.shape.as_tuple()
        if shape is not None and len(shape) < 2:
            raise ValueError(
                f"A grayscale image (shape {tensor.shape}) must be at least two-dimensional."
            )
        if shape is not None and shape[-1] not in (1, None):
            raise ValueError(message)

        def tripled(pixels: Any) -> Any:
            if pixels.ndim < 2 or pixels.shape[-1] != 1:
                raise invalid(message)
            return np.repeat(pixels, 3, -1)

        return op.output(tensor.dtype, shape and (*shape[:-1], 3), Pure(tripled))


def rgb_to_hsv(images: Any, name: str | None = None) -> Tensor:
    """Hue, saturation and value of pixels, each from 0 to 1.

    Args:
        images: ``[..., 3]`` floats from 0 to 1.
        name: name of the op.

    Raises:
        ValueError: there are known not to be three channels.
        InvalidArgumentError: when it runs: there are not.
    """
    return _converted("RGBToHSV", images, name, colours.hsv_from_rgb)


def hsv_to_rgb(images: Any, name: str | None = None) -> Tensor:
    """Red, green and blue of hue, saturation and value; see `rgb_to_hsv`."""
    return _converted("HSVToRGB", images, name, colours.rgb_from_hsv)


def rgb_to_yiq(images: Any) -> Tensor:
    """Pixels in the colours of NTSC; see `rgb_to_hsv`."""
    return _multiplied("RGBToYIQ", images, colours.RGB_TO_YIQ)


def yiq_to_rgb(images: Any) -> Tensor:
    """Pixels from the colours of NTSC; see `rgb_to_hsv`."""
    return _multiplied("YIQToRGB", images, colours.YIQ_TO_RGB)


def rgb_to_yuv(images: Any) -> Tensor:
    """Pixels in the colours of PAL; see `rgb_to_hsv`."""
    return _multiplied("RGBToYUV", images, colours.RGB_TO_YUV)


def yuv_to_rgb(images: Any) -> Tensor:
    """Pixels from the colours of PAL; see `rgb_to_hsv`."""
    return _multiplied("YUVToRGB", images, colours.YUV_TO_RGB)


def _multiplied(op_type: str, images: Any, matrix: Sequence[Sequence[float]]) -> Tensor:
    return _converted(op_type, images, None, lambda pixels: pixels @ np.array(matrix, pixels.dtype))


def _converted(
    op_type: str, images: Any, name: str | None, convert: Callable[[Any], Any]
) -> Tensor:
    def converted(pixels: Any) -> Any:
        pixels = array(pixels)
        _check_channels(pixels, 3)
        return convert(pixels)

    with OpBuilder(op_type, name) as op:
        tensor = op.tensor(images, "images", None, FLOATS)
        return op.output(tensor.dtype, _with_channels(op, tensor, 3), Pure(converted))


def _with_channels(op: OpBuilder, images: Tensor, channels: int) -> Dims:
    shape = images.shape.as_tuple()
    if shape is None:
        return None
    if not shape:
        raise op.refuse("Shape must be at least rank 1 but is rank 0")
    if shape[-1] not in (channels, None):
        raise op.refuse(f"Dimension must be {channels} but is {shape[-1]}")
    return (*shape[:-1], channels)


def _check_channels(pixels: Any, channels: int) -> None:
    if pixels.ndim < 1 or pixels.shape[-1] != channels:
        raise invalid(f"input must have {channels} channels but has shape {list(pixels.shape)}")
