"""Pictures brighter, with more contrast, in other colours, other colour spaces and other dtypes.

Computed in floats from 0 to 1, in TensorFlow's order. A. R. Smith, "Color gamut transform pairs",
SIGGRAPH 1978, has hue, saturation and value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import (
    FLOATS,
    REALS,
    Dims,
    OpBuilder,
    Pure,
    array,
    dtype_hint,
    invalid,
)
from aioqueue.compat.v1.ops.casting import cast, saturating
from aioqueue.compat.v1.ops.control import identity
from aioqueue.compat.v1.ops.images.pictures import at_least_3d, check_3d
from aioqueue.compat.v1.ops.random import random_uniform

__all__ = (
    "adjust_brightness", "adjust_contrast", "adjust_hue", "adjust_saturation",
    "convert_image_dtype", "grayscale_to_rgb", "hsv_to_rgb", "per_image_standardization",
    "random_brightness", "random_contrast", "random_hue", "random_saturation", "rgb_to_grayscale",
    "rgb_to_hsv",
)  # fmt: skip

_Convert = Callable[[NDArray[Any]], NDArray[Any]]


def converter(source: DType, wanted: DType, *, saturate: bool = False) -> _Convert:
    """What converts pixels: floats go from 0 to 1, integers from 0 to the largest there is."""
    if source == wanted or (source.is_floating and wanted.is_floating):
        return lambda pixels: pixels.astype(wanted.numpy, copy=False)
    if source.is_integer and wanted.is_floating:
        factor = wanted.numpy.type(1.0 / source.max)
        return lambda pixels: pixels.astype(wanted.numpy) * factor
    to_wanted: _Convert = lambda pixels: pixels.astype(wanted.numpy)  # noqa: E731
    if saturate:
        to_wanted = saturating(source, wanted)
    if source.is_floating:
        # The half makes each integer as likely as the others.
        factor = source.numpy.type(wanted.max + 0.5)
        return lambda pixels: to_wanted(pixels * factor)
    if source.max > wanted.max:
        divisor = source.numpy.type((source.max + 1) // (wanted.max + 1))
        return lambda pixels: to_wanted(pixels // divisor)
    factor = wanted.numpy.type((wanted.max + 1) // (source.max + 1))
    return lambda pixels: to_wanted(pixels) * factor


def convert_image_dtype(
    image: Any, dtype: Any, saturate: bool = False, name: str | None = None
) -> Tensor:
    """A picture of another dtype, with the values scaled from the one's range to the other's."""
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


Pixels = NDArray[Any]
Floats = NDArray[np.float32]


def grey(pixels: Floats) -> Floats:
    red, green, blue = (np.float32(one) for one in (0.2989, 0.587, 0.114))
    total: Floats = pixels[..., 0] * red + pixels[..., 1] * green
    return (total + pixels[..., 2] * blue)[..., None]


def hsv_from_rgb(pixels: Pixels) -> Pixels:
    one = pixels.dtype.type
    red, green, blue = pixels[..., 0], pixels[..., 1], pixels[..., 2]
    value = pixels.max(-1)
    span = value - pixels.min(-1)
    saturation = np.where(value > 0, span / value, one(0))
    part = (one(1) / span) * (one(1) / one(6))
    hue = np.where(
        red == value,
        part * (green - blue),
        np.where(
            green == value,
            part * (blue - red) + one(2) / one(6),
            part * (red - green) + one(4) / one(6),
        ),
    )
    hue = np.where(span > 0, hue, one(0))
    hue = np.where(hue < 0, hue + one(1), hue)
    return np.stack((hue, saturation, value), axis=-1)


def rgb_from_hsv(pixels: Pixels) -> Pixels:
    one = pixels.dtype.type
    hue, saturation, value = pixels[..., 0] * one(6), pixels[..., 1], pixels[..., 2]
    shares = (
        np.abs(hue - one(3)) - one(1),
        one(2) - np.abs(hue - one(2)),
        one(2) - np.abs(hue - one(4)),
    )
    rest = one(1) - saturation
    channels = [(rest + saturation * np.clip(one_, 0, 1)) * value for one_ in shares]
    return np.stack(channels, axis=-1)


def with_contrast(pixels: Floats, factor: np.float32) -> Floats:
    height, width, channels = pixels.shape[-3:]
    flat = pixels.reshape(-1, height * width, channels)
    mean = _folded_sum(flat) * (np.float32(1) / np.float32(height * width))
    made = flat - mean[:, None]
    made *= factor
    made += mean[:, None]
    return made.reshape(pixels.shape)


def _folded_sum(rows: Floats) -> Floats:
    """Sums over the second axis, of its halves again and again: so TensorFlow rounds."""
    total = rows
    while total.shape[1] > 1:
        right = total.shape[1] // 2
        left = total.shape[1] - right
        folded = total[:, left:] + total[:, :right]
        total = np.concatenate((folded, total[:, right:left]), axis=1)
    return total[:, 0]


_ORDER: Final = np.array(
    [[2, 1, 0], [1, 2, 0], [0, 2, 1], [0, 1, 2], [1, 0, 2], [2, 0, 1], [0, 0, 0]], np.intp
)
"""For each sixth of the circle of hues, and behind the last, whether red, green and blue are least
(0), between or largest (2)."""


def with_hue_turned(pixels: Floats, delta: np.float32) -> Floats:
    f = np.float32
    red, green, blue = pixels[..., 0], pixels[..., 1], pixels[..., 2]
    least, largest = pixels.min(-1), pixels.max(-1)
    span = largest - least
    is_less = red < green
    sixth = np.where(
        is_less,
        np.where(blue < red, 1, np.where(blue > green, 3, 2)),
        np.where(blue < green, 0, np.where(blue > red, 4, 5)),
    )
    between = np.where(
        is_less,
        np.where(blue < red, red, np.where(blue > green, green, blue)),
        np.where(blue < green, green, np.where(blue > red, red, blue)),
    )
    part = (between - least) / span
    hue = sixth.astype(f) + np.where(sixth % 2 == 0, part, f(1) - part)
    hue = np.where(span == 0, f(0), hue) + delta * f(6)
    hue = _within_circle(hue)
    sixth = hue.astype(np.intp)
    part = hue - sixth.astype(f)
    part = np.where(sixth % 2 == 0, part, f(1) - part)
    levels = np.stack((least, least + part * span, largest), axis=-1)
    made: Floats = np.take_along_axis(levels, _ORDER[np.minimum(sixth, 5)], -1)
    return made


def _within_circle(hue: Floats) -> Floats:
    whole = np.float32(6)
    while (low := hue < 0).any():
        hue = np.where(low, hue + whole, hue)
    while (high := hue >= whole).any():
        hue = np.where(high, hue - whole, hue)
    return hue


def with_saturation(pixels: Floats, factor: np.float32) -> Floats:
    f = np.float32
    red, green, blue = pixels[..., 0], pixels[..., 1], pixels[..., 2]
    value = pixels.max(-1)
    span = value - pixels.min(-1)
    saturation = np.where(value > 0, span / value, f(0))
    part = f(1) / (f(6) * span)
    hue = np.where(
        red == value,
        part * (green - blue),
        np.where(
            green == value,
            # The offsets are double in TensorFlow, and so are these sums before they are rounded.
            ((part * (blue - red)).astype(np.float64) + 2.0 / 6.0).astype(f),
            ((part * (red - green)).astype(np.float64) + 4.0 / 6.0).astype(f),
        ),
    )
    hue = np.where(span <= 0, f(0), hue)
    hue = np.where(hue < 0, hue + f(1), hue)
    saturation = np.minimum(f(1), np.maximum(f(0), saturation * factor))
    return _rgb_of(hue, saturation, value)


def _rgb_of(hue: Pixels, saturation: Pixels, value: Pixels) -> Floats:
    f = np.float32
    chroma = saturation * value
    rest = value - chroma
    turned = hue * f(6)
    sixth = np.clip(np.trunc(turned), 0, 6).astype(np.intp)
    odd = np.fmod(turned, f(2))
    between = chroma * (f(1) - np.abs(odd - f(1)))
    levels = np.stack((np.zeros_like(chroma), between, chroma), axis=-1)
    made: Floats = np.take_along_axis(levels, _ORDER[sixth], -1) + rest[..., None]
    return made


def rgb_to_grayscale(images: Any, name: str | None = None) -> Tensor:
    """The brightness of pixels, one channel: red, green and blue with the weights of TV."""
    with OpBuilder("RGBToGrayscale", name, "rgb_to_grayscale") as op:
        tensor = op.tensor(images, "images", None, REALS)
        shape = _with_channels(op, tensor, 3)
        there = converter(tensor.dtype, dtypes.float32)
        back = converter(dtypes.float32, tensor.dtype)

        def greys(pixels: Any) -> Any:
            _check_channels(pixels, 3)
            return back(grey(there(pixels)))

        return op.output(tensor.dtype, shape and (*shape[:-1], 1), Pure(greys))


def grayscale_to_rgb(images: Any, name: str | None = None) -> Tensor:
    """Grey pixels with three equal channels."""
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
    """Hue, saturation and value of pixels, each from 0 to 1."""
    return _converted("RGBToHSV", images, name, hsv_from_rgb)


def hsv_to_rgb(images: Any, name: str | None = None) -> Tensor:
    """Red, green and blue of hue, saturation and value; see `rgb_to_hsv`."""
    return _converted("HSVToRGB", images, name, rgb_from_hsv)


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


def adjust_brightness(image: Any, delta: Any) -> Tensor:
    """A picture with something added to every channel."""
    with OpBuilder("AdjustBrightness", None, "adjust_brightness") as op:
        work, there, back = _as_floats(op.tensor(image, "image", None, REALS), saturate=True)
        if dtype_hint(delta):
            op.inputs.append(cast(delta, work))
        else:
            op.tensor(delta, "number", work)
        return _adjusted(op, lambda x, delta: back(there(x) + delta))


def adjust_contrast(images: Any, contrast_factor: Any) -> Tensor:
    """Pictures whose pixels are that many times as far from the mean of their channel."""
    kind = ("AdjustContrastv2", "adjust_contrast")
    return _recoloured(*kind, images, contrast_factor, with_contrast)


def adjust_hue(image: Any, delta: Any, name: str | None = None) -> Tensor:
    """Pictures whose hues are turned by a part of the circle."""
    return _recoloured("AdjustHue", "adjust_hue", image, delta, with_hue_turned, name, rgb=True)


def adjust_saturation(image: Any, saturation_factor: Any, name: str | None = None) -> Tensor:
    """Pictures whose colours are so many times as strong, at 0 grey; see `adjust_hue`."""
    kind = ("AdjustSaturation", "adjust_saturation")
    return _recoloured(*kind, image, saturation_factor, with_saturation, name, rgb=True)


def _as_floats(image: Tensor, *, saturate: bool) -> tuple[Any, Any, Any]:
    """The dtype to compute in, what converts pixels to it, and what converts them back."""
    is_small = image.dtype.name in ("float16", "float32")
    work = image.dtype if is_small else dtypes.float32
    return work, converter(image.dtype, work), converter(work, image.dtype, saturate=saturate)


def _adjusted(op: OpBuilder, adjust: Callable[..., Any]) -> Tensor:
    image = op.inputs[0]

    def adjusted(pixels: Any, *numbers: Any) -> Any:
        return adjust(array(pixels), *numbers)

    return op.output(image.dtype, image.shape.as_tuple(), Pure(adjusted))


def _recoloured(
    op_type: str,
    default: str,
    image: Any,
    number: Any,
    adjust: Callable[[Any, Any], Any],
    name: str | None = None,
    *,
    rgb: bool = False,
) -> Tensor:
    """An op that computes in float32, whole pixels at a time."""
    with OpBuilder(op_type, name, default) as op:
        tensor = op.tensor(image, "images", None, REALS)
        rank = tensor.shape.ndims
        if rank is not None and rank < 3:
            raise op.refuse(f"Shape must be at least rank 3 but is rank {rank}")
        op.rank(op.tensor(number, "number", dtypes.float32), 0)
        _, there, back = _as_floats(tensor, saturate=not rgb)

        def adjusted(pixels: Any, number: Any) -> Any:
            if pixels.ndim < 3:
                raise invalid(f"input must be at least 3-D, got shape{list(pixels.shape)}")
            if rgb and pixels.shape[-1] != 3:
                found = pixels.shape[-1]
                raise invalid(f"input must have 3 channels but instead has {found} channels.")
            floats = there(pixels).astype(np.float32, copy=False)
            return back(adjust(floats, number)) if pixels.size else pixels

        return _adjusted(op, adjusted)


def per_image_standardization(image: Any) -> Tensor:
    """Pictures with a mean of 0 and a variance of 1, float32."""

    def standardised(pixels: Any) -> Any:
        check_3d(pixels)
        pixels = pixels.astype(np.float32)
        axes = (-3, -2, -1)
        # In double precision, which the sums of large pictures need.
        pixels -= pixels.mean(axes, np.float64, keepdims=True).astype(np.float32)
        spread = np.sqrt(np.square(pixels, dtype=np.float64).mean(axes, keepdims=True))
        count = np.prod(pixels.shape[-3:], dtype=np.float64)
        pixels /= np.maximum(spread, 1 / np.sqrt(count)).astype(np.float32)
        return pixels

    with OpBuilder("PerImageStandardization", None, "per_image_standardization") as op:
        tensor = op.tensor(image, "image", None, REALS)
        return op.output(dtypes.float32, at_least_3d(tensor), Pure(standardised))


def random_brightness(image: Any, max_delta: float, seed: int | None = None) -> Tensor:
    """A picture brighter or darker by at most `max_delta`; see `adjust_brightness`."""
    _check(max_delta >= 0, "max_delta must be non-negative.")
    return adjust_brightness(image, random_uniform([], -max_delta, max_delta, seed=seed))


def random_contrast(image: Any, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """Pictures with a contrast between `lower` and `upper` times theirs."""
    _check_range(lower, upper)
    return adjust_contrast(image, random_uniform([], lower, upper, seed=seed))


def random_hue(image: Any, max_delta: float, seed: int | None = None) -> Tensor:
    """Pictures with hues turned by at most `max_delta`; see `adjust_hue`."""
    _check(max_delta <= 0.5, "max_delta must be <= 0.5.")
    _check(max_delta >= 0, "max_delta must be non-negative.")
    return adjust_hue(image, random_uniform([], -max_delta, max_delta, seed=seed))


def random_saturation(image: Any, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """Pictures with colours between `lower` and `upper` times as strong."""
    _check_range(lower, upper)
    return adjust_saturation(image, random_uniform([], lower, upper, seed=seed))


def _check_range(lower: float, upper: float) -> None:
    _check(upper > lower, "upper must be > lower.")
    _check(lower >= 0, "lower must be non-negative.")


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
