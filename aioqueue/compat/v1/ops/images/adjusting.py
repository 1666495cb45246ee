"""Pictures brighter, with more contrast, in other colours: by a number given, or by chance.

Each is computed in floats from 0 to 1, and comes back in the picture's dtype. Where chance decides,
it draws one number by `random_uniform` with the seed given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import REALS, OpBuilder, Pure, array, dtype_hint, invalid
from aioqueue.compat.v1.ops.casting import cast
from aioqueue.compat.v1.ops.images import colours, jpeg
from aioqueue.compat.v1.ops.images.converting import converter
from aioqueue.compat.v1.ops.images.libraries import pillow
from aioqueue.compat.v1.ops.images.pictures import at_least_3d, check_3d
from aioqueue.compat.v1.ops.random import random_uniform

__all__ = (
    "adjust_brightness",
    "adjust_contrast",
    "adjust_gamma",
    "adjust_hue",
    "adjust_jpeg_quality",
    "adjust_saturation",
    "per_image_standardization",
    "random_brightness",
    "random_contrast",
    "random_hue",
    "random_jpeg_quality",
    "random_saturation",
)


def adjust_brightness(image: Any, delta: Any) -> Tensor:
    """A picture with something added to every channel.

    Args:
        image: of any shape; floats from 0 to 1, or integers.
        delta: a part of the range: 0.1 makes a uint8 picture 25.5 brighter. What leaves the range
            of an integer picture becomes its limit.
    """
    with OpBuilder("AdjustBrightness", None, "adjust_brightness") as op:
        work, there, back = _as_floats(op.tensor(image, "image", None, REALS), saturate=True)
        op.inputs.append(cast(delta, work) if dtype_hint(delta) else _number(op, delta, work))
        return _adjusted(op, lambda x, delta: back(there(x) + delta))


def adjust_gamma(image: Any, gamma: Any = 1, gain: Any = 1) -> Tensor:
    """A picture to the power of `gamma`, times `gain`.

    Args:
        image: of any shape; floats from 0 to 1, or integers.
        gamma: not negative; above 1 makes the picture darker.
        gain: a factor.

    Raises:
        ValueError: `gamma` is known to be negative.
        InvalidArgumentError: when it runs: it is.
    """
    message = "Gamma should be a non-negative real number."
    if dtype_hint(gamma) is None and not gamma >= 0:
        raise ValueError(message)
    with OpBuilder("AdjustGamma", None, "adjust_gamma") as op:
        work, there, back = _as_floats(op.tensor(image, "image", None, REALS), saturate=True)
        op.tensor(gamma, "gamma", work)
        op.tensor(gain, "gain", work)

        def adjusted(x: Any, gamma: Any, gain: Any) -> Any:
            if not gamma >= 0:
                raise invalid(f"assertion failed: [{message}]")
            # In double precision and rounded, as a good C library's function gives.
            power = there(x).astype(np.float64) ** np.float64(gamma)
            return back(gain * power.astype(work.numpy))

        return _adjusted(op, adjusted)


def adjust_contrast(images: Any, contrast_factor: Any) -> Tensor:
    """Pictures whose pixels are that many times as far from the mean of their channel.

    Args:
        images: ``[..., height, width, channels]``; floats, or integers.
        contrast_factor: above 1 for more contrast. What leaves the range of an integer picture
            becomes its limit.

    Raises:
        ValueError: there are fewer than three dimensions.
    """
    return _recoloured(
        "AdjustContrastv2", "adjust_contrast", images, contrast_factor, colours.with_contrast
    )


def adjust_hue(image: Any, delta: Any, name: str | None = None) -> Tensor:
    """Pictures whose hues are turned by a part of the circle.

    Args:
        image: ``[..., height, width, 3]``: red, green and blue; floats from 0 to 1, or integers.
        delta: from -1 to 1.
        name: name of the op.

    Raises:
        ValueError: there are fewer than three dimensions.
        InvalidArgumentError: when it runs: there are not three channels.
    """
    return _recoloured(
        "AdjustHue", "adjust_hue", image, delta, colours.with_hue_turned, name, rgb=True
    )


def adjust_saturation(image: Any, saturation_factor: Any, name: str | None = None) -> Tensor:
    """Pictures whose colours are so many times as strong, at 0 grey; see `adjust_hue`."""
    return _recoloured(
        "AdjustSaturation",
        "adjust_saturation",
        image,
        saturation_factor,
        colours.with_saturation,
        name,
        rgb=True,
    )


def _number(op: OpBuilder, number: Any, dtype: Any) -> Tensor:
    tensor = op.tensor(number, "number", dtype)
    op.inputs.pop()
    return tensor


def _as_floats(image: Tensor, *, saturate: bool) -> tuple[Any, Any, Any]:
    """The dtype to compute in, what converts pixels to it, and what converts them back."""
    is_small = image.dtype.name in ("float16", "float32")
    work = image.dtype if is_small else dtypes.float32
    return work, converter(image.dtype, work), converter(work, image.dtype, saturate=saturate)


def _adjusted(op: OpBuilder, adjust: Callable[..., Any]) -> Tensor:
    """The op: the first input's shape and dtype, and a kernel of all inputs."""
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
    """An op that computes in float32, whole pixels at a time.

    Args:
        op_type: its type.
        default: its name if none is given.
        image: the pictures.
        number: float32, what to change them by.
        adjust: makes new pixels.
        name: its name.
        rgb: whether there must be three channels, and what leaves the range wraps around.
    """
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
    """Pictures with a mean of 0 and a variance of 1, float32.

    Args:
        image: ``[..., height, width, channels]``. A picture of one colour becomes 0.

    Raises:
        ValueError: it has fewer than three dimensions, or is empty.
    """

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
    """A picture brighter or darker by at most `max_delta`; see `adjust_brightness`.

    Raises:
        ValueError: `max_delta` is negative.
    """
    _check(max_delta >= 0, "max_delta must be non-negative.")
    return adjust_brightness(image, random_uniform([], -max_delta, max_delta, seed=seed))


def random_contrast(image: Any, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """Pictures with a contrast between `lower` and `upper` times theirs; see `adjust_contrast`.

    Raises:
        ValueError: `lower` is negative, or `upper` no larger.
    """
    _check_range(lower, upper)
    return adjust_contrast(image, random_uniform([], lower, upper, seed=seed))


def random_hue(image: Any, max_delta: float, seed: int | None = None) -> Tensor:
    """Pictures with hues turned by at most `max_delta`; see `adjust_hue`.

    Raises:
        ValueError: `max_delta` is not between 0 and 0.5.
    """
    _check(max_delta <= 0.5, "max_delta must be <= 0.5.")
    _check(max_delta >= 0, "max_delta must be non-negative.")
    return adjust_hue(image, random_uniform([], -max_delta, max_delta, seed=seed))


def random_saturation(image: Any, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """Pictures with colours between `lower` and `upper` times as strong; see `adjust_saturation`.

    Raises:
        ValueError: `lower` is negative, or `upper` no larger.
    """
    _check_range(lower, upper)
    return adjust_saturation(image, random_uniform([], lower, upper, seed=seed))


def _check_range(lower: float, upper: float) -> None:
    _check(upper > lower, "upper must be > lower.")
    _check(lower >= 0, "lower must be non-negative.")


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def adjust_jpeg_quality(
    image: Any, jpeg_quality: Any, dct_method: str = "", name: str | None = None
) -> Tensor:
    """A picture with the faults that JPEG of a quality brings.

    Args:
        image: ``[height, width, channels]``, with 1 or 3 channels; floats from 0 to 1, or integers.
        jpeg_quality: int32, from 0 to 100.
        dct_method: how it is decoded; see `decode_jpeg`.
        name: name of the op.

    Returns:
        The dtype of the picture.

    Raises:
        ValueError: there are not three dimensions.
        InvalidArgumentError: when it runs: the quality or the number of channels is another.
    """
    pillow()
    with OpBuilder("AdjustJpegQuality", name, "adjust_jpeg_quality") as op:
        tensor = op.tensor(image, "image", None, REALS)
        shape = op.rank(tensor, 3)
        assert shape is not None
        op.rank(op.tensor(jpeg_quality, "quality", dtypes.int32), 0)
        there = converter(tensor.dtype, dtypes.uint8, saturate=True)
        back = converter(dtypes.uint8, tensor.dtype, saturate=True)
        encode = jpeg.Encoding()
        decode = jpeg.Decoding(fast=dct_method != "INTEGER_ACCURATE")

        def adjusted(pixels: Any, quality: Any) -> Any:
            if pixels.shape[2] not in (1, 3):
                raise invalid(f"image must have 1 or 3 channels, but has {pixels.shape[2]}")
            if not 0 <= quality <= 100:
                raise invalid(f"quality must be in [0,100], got {quality}")
            return back(decode(encode(there(pixels), int(quality))))

        return op.output(tensor.dtype, (None, None, shape[2]), Pure(adjusted))


def random_jpeg_quality(
    image: Any, min_jpeg_quality: int, max_jpeg_quality: int, seed: int | None = None
) -> Tensor:
    """A picture with the faults of a JPEG quality between two; see `adjust_jpeg_quality`.

    Raises:
        ValueError: a quality is not from 0 to 100, or the first is not below the second.
    """
    _check(
        0 <= min_jpeg_quality <= 100 and 0 <= max_jpeg_quality <= 100,
        "jpeg encoding range must be between 0 and 100.",
    )
    _check(
        min_jpeg_quality < max_jpeg_quality,
        "`min_jpeg_quality` must be less than `max_jpeg_quality`.",
    )
    quality = random_uniform([], min_jpeg_quality, max_jpeg_quality, seed=seed, dtype=dtypes.int32)
    return adjust_jpeg_quality(image, quality)
