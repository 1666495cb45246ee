"""Parts of pictures, and pictures within larger ones that are 0 around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import Dims, OpBuilder, Pure, array
from aioqueue.compat.v1.ops.images.pictures import (
    Rule,
    Size,
    at_least_3d,
    check_3d,
    check_rules,
    frame,
    one_as_batch,
    positive_sizes,
    rule,
)
from aioqueue.compat.v1.ops.static import constant_value

__all__ = (
    "central_crop",
    "crop_to_bounding_box",
    "pad_to_bounding_box",
    "resize_image_with_crop_or_pad",
    "set_among_zeros",
)


Frame = tuple[int | None, int | None, int | None]


def crop_to_bounding_box(
    image: Any, offset_height: Any, offset_width: Any, target_height: Any, target_width: Any
) -> Tensor:
    """The part of a picture that begins at an offset.

    Args:
        image: ``[height, width, channels]``, or a batch of such pictures.
        offset_height: how many rows to leave out above; as the others, a number or a tensor.
        offset_width: how many columns to leave out on the left.
        target_height: how many rows to keep.
        target_width: how many columns to keep.

    Raises:
        ValueError: the part is known not to lie within the picture.
        InvalidArgumentError: when it runs: it does not.
    """
    with OpBuilder("CropToBoundingBox", None, "crop_to_bounding_box") as op:
        tensor, shape, block = _with_block(
            op, image, offset_height, offset_width, target_height, target_width
        )
        check_rules(_cropping(frame(shape), [one.fixed for one in block]), fixed=True)
        return op.output(
            tensor.dtype, _resized(shape, block[2].known, block[3].known), Pure(_cropped)
        )


def pad_to_bounding_box(
    image: Any, offset_height: Any, offset_width: Any, target_height: Any, target_width: Any
) -> Tensor:
    """A picture with zeros around it.

    Args:
        image: ``[height, width, channels]``, or a batch of such pictures.
        offset_height: how many rows to add above; as the others, a number or a tensor.
        offset_width: how many columns to add on the left.
        target_height: how many rows there shall be.
        target_width: how many columns there shall be.

    Raises:
        ValueError: the picture is known not to fit.
        InvalidArgumentError: when it runs: it does not.
    """
    with OpBuilder("PadToBoundingBox", None, "pad_to_bounding_box") as op:
        tensor, shape, block = _with_block(
            op, image, offset_height, offset_width, target_height, target_width
        )
        check_rules(_padding(frame(shape), [one.fixed for one in block]), fixed=True)
        return op.output(
            tensor.dtype, _resized(shape, *_static_sizes(frame(shape), block)), Pure(_padded)
        )


def resize_image_with_crop_or_pad(image: Any, target_height: Any, target_width: Any) -> Tensor:
    """A picture cut, or set among zeros, to a size, evenly on both sides.

    Args:
        image: ``[height, width, channels]``, or a batch of such pictures.
        target_height: how many rows there shall be; a number or a tensor.
        target_width: how many columns.

    Raises:
        ValueError: a size is known not to be positive.
        InvalidArgumentError: when it runs: it is not.
    """
    with OpBuilder("ResizeImageWithCropOrPad", None, "resize_image_with_crop_or_pad") as op:
        tensor = op.tensor(image, "image")
        shape = one_as_batch(tensor)
        height = Size(op, target_height, "target_height")
        width = Size(op, target_width, "target_width")
        check_rules(positive_sizes(height.fixed, width.fixed), fixed=True)
        return op.output(
            tensor.dtype, _resized(shape, height.fixed, width.fixed), Pure(_cropped_or_padded)
        )


def central_crop(image: Any, central_fraction: Any) -> Tensor:
    """The middle of a picture.

    Args:
        image: ``[height, width, channels]``, or a batch of such pictures, of known rank.
        central_fraction: how much of its height and width to keep, more than 0 and at most 1.

    Raises:
        ValueError: the fraction is known to be another, or the rank is not known.
        InvalidArgumentError: when it runs: the fraction is another.
    """
    with OpBuilder("CentralCrop", None, "central_crop") as op:
        tensor = op.tensor(image, "image")
        is_tensor = isinstance(central_fraction, Tensor)
        fraction = constant_value(central_fraction) if is_tensor else central_fraction
        check_rules([(None if fraction is None else 0 < fraction <= 1, _FRACTION)], fixed=True)
        if fraction is not None and fraction == 1:
            return tensor
        shape = at_least_3d(tensor)
        if shape is None or len(shape) > 4:
            raise ValueError(
                "`image` should either be a Tensor with rank = 3 or rank = 4. Had rank ="
                f" {tensor.shape.ndims}."
            )
        given = central_fraction if is_tensor else np.float64(central_fraction)
        op.inputs.append(convert_to_tensor(given, name="central_fraction"))
        static = None if fraction is None else float(fraction)
        height, width = (_middle_size(size, static) for size in shape[-3:-1])
        return op.output(tensor.dtype, (*shape[:-3], height, width, shape[-1]), Pure(_central_part))


_FRACTION = "central_fraction must be within (0, 1]"


def _middle_size(size: int | None, fraction: float | None) -> int | None:
    if size is None or fraction is None:
        return None
    return size - 2 * _margin(size, fraction)


def _margin(size: int, fraction: float) -> int:
    return int((size - size * fraction) / 2)


def _central_part(pixels: Any, fraction: Any) -> Any:
    check_3d(pixels)
    fraction = float(fraction)
    check_rules([(0 < fraction <= 1, _FRACTION)], fixed=False)
    top, left = (_margin(size, fraction) for size in pixels.shape[-3:-1])
    return pixels[..., top : pixels.shape[-3] - top, left : pixels.shape[-2] - left, :]


def _with_block(
    op: OpBuilder, image: Any, top: Any, left: Any, height: Any, width: Any
) -> tuple[Tensor, Dims, tuple[Size, Size, Size, Size]]:
    """The picture, its static shape, and where the block lies that an op is about."""
    tensor = op.tensor(image, "image")
    shape = one_as_batch(tensor)
    return (
        tensor,
        shape,
        (
            Size(op, top, "offset_height"),
            Size(op, left, "offset_width"),
            Size(op, height, "target_height"),
            Size(op, width, "target_width"),
        ),
    )


def _static_sizes(whole: Frame, block: Sequence[Size]) -> list[int | None]:
    """The size of a padded picture, as TensorFlow knows it: from tensors if all else is known."""
    return [
        size.fixed if extent is None else size.known
        for size, extent in zip(block[2:], whole, strict=False)
    ]


def _resized(shape: Dims, height: int | None, width: int | None) -> Dims:
    """The static shape with another height and width; of a picture if the rank is not known."""
    front: tuple[int | None, ...] = () if shape is None else shape[:-3]
    return (*front, height, width, frame(shape)[2])


Block = list[int | None]
"""Offsets from above and from the left, and a height and a width."""


def _cropping(whole: Frame, block: Block) -> Iterator[Rule]:
    """What must hold of a part of a picture."""
    top, left, height, width = block
    yield rule(lambda one: one >= 0, "offset_width must be >= 0.", left)
    yield rule(lambda one: one >= 0, "offset_height must be >= 0.", top)
    yield from positive_sizes(height, width)
    yield rule(_covers, "width must be >= target + offset.", whole[1], left, width)
    yield rule(_covers, "height must be >= target + offset.", whole[0], top, height)


def _padding(whole: Frame, block: Block) -> Iterator[Rule]:
    """What must hold of a picture within a larger one."""
    top, left, height, width = block
    yield rule(lambda one: one >= 0, "offset_height must be >= 0", top)
    yield rule(lambda one: one >= 0, "offset_width must be >= 0", left)
    yield rule(_covers, "width must be <= target - offset", width, left, whole[1])
    yield rule(_covers, "height must be <= target - offset", height, top, whole[0])


def _covers(whole: int, offset: int, size: int) -> bool:
    return whole >= offset + size


def _cropped(pixels: Any, *block: Any) -> Any:
    pixels, sizes = array(pixels), [int(one) for one in block]
    check_3d(pixels)
    check_rules(_cropping(pixels.shape[-3:], [*sizes]), fixed=False)
    top, left, height, width = sizes
    return pixels[..., top : top + height, left : left + width, :]


def _padded(pixels: Any, *block: Any) -> Any:
    pixels, sizes = array(pixels), [int(one) for one in block]
    check_3d(pixels)
    check_rules(_padding(pixels.shape[-3:], [*sizes]), fixed=False)
    top, left, height, width = sizes
    return set_among_zeros(pixels, top, left, height, width)


def set_among_zeros(
    pixels: NDArray[Any], top: int, left: int, height: int, width: int
) -> NDArray[Any]:
    """Pixels at a place of a larger picture."""
    whole = np.zeros((*pixels.shape[:-3], height, width, pixels.shape[-1]), pixels.dtype)
    whole[..., top : top + pixels.shape[-3], left : left + pixels.shape[-2], :] = pixels
    return whole


def _cropped_or_padded(pixels: Any, height: Any, width: Any) -> Any:
    pixels, height, width = array(pixels), int(height), int(width)
    check_3d(pixels)
    check_rules(positive_sizes(height, width), fixed=False)
    inside, (rows, columns) = pixels, pixels.shape[-3:-1]
    if rows > height:
        first = (rows - height) // 2
        inside = inside[..., first : first + height, :, :]
    if columns > width:
        first = (columns - width) // 2
        inside = inside[..., first : first + width, :]
    if rows >= height and columns >= width:
        return inside
    return set_among_zeros(
        inside, max((height - rows) // 2, 0), max((width - columns) // 2, 0), height, width
    )
