"""Pictures in other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.ops.building import REALS, Dims, OpBuilder, Pure, array, invalid
from aioqueue.compat.v1.ops.images.cropping import set_among_zeros
from aioqueue.compat.v1.ops.images.pictures import (
    Size,
    check_3d,
    check_rules,
    frame,
    one_as_batch,
    positive_sizes,
)
from aioqueue.compat.v1.ops.images.resampling import (
    Grid,
    by_area,
    by_bicubic,
    by_bilinear,
    by_nearest,
)
from aioqueue.compat.v1.ops.static import shape_value

__all__ = (
    "ResizeMethod",
    "resize_area",
    "resize_bicubic",
    "resize_bilinear",
    "resize_image_with_pad",
    "resize_images",
    "resize_nearest_neighbor",
)


class ResizeMethod:
    """What `resize_images` takes as its method."""

    BILINEAR = 0
    NEAREST_NEIGHBOR = 1
    BICUBIC = 2
    AREA = 3


_Resample = Callable[[NDArray[Any], Grid, Grid], NDArray[Any]]

_METHODS: Final[dict[Any, tuple[str, _Resample]]] = {
    ResizeMethod.BILINEAR: ("ResizeBilinear", by_bilinear),
    ResizeMethod.NEAREST_NEIGHBOR: ("ResizeNearestNeighbor", by_nearest),
    ResizeMethod.BICUBIC: ("ResizeBicubic", by_bicubic),
    ResizeMethod.AREA: ("ResizeArea", by_area),
}
_NAMES: Final = {"bilinear": 0, "nearest": 1, "bicubic": 2, "area": 3}
"""What TensorFlow 2 calls them, which TensorFlow 1.15 took too."""


def resize_images(
    images: Any,
    size: Any,
    method: Any = ResizeMethod.BILINEAR,
    align_corners: bool = False,
    preserve_aspect_ratio: bool = False,
    name: str | None = None,
) -> Tensor:
    """Pictures in another size.

    Args:
        images: ``[height, width, channels]``, or a batch of such pictures.
        size: two int32, the new height and width.
        method: one of `ResizeMethod`.
        align_corners: whether the centres of the outermost pixels stay where they are.
        preserve_aspect_ratio: whether to make the largest picture within `size` that is not
            distorted.
        name: name of the op.

    Returns:
        float32, but for the nearest neighbour, and for pictures known to have the size already:
        they keep their dtype.

    Raises:
        ValueError: the rank is neither 3 nor 4, or not known; there is no such method; `size` does
            not have two elements.
        InvalidArgumentError: when it runs: a size is not positive.
    """
    with OpBuilder("Resize", name, "resize") as op:
        tensor = op.tensor(images, "images")
        shape = tensor.shape.as_tuple()
        if shape is None:
            raise ValueError("'images' contains no shape.")
        if len(shape) not in (3, 4):
            raise ValueError("'images' must have either 3 or 4 dimensions.")
        wanted = _size_tensor(op, size)
        static = _static_size(wanted)
        if preserve_aspect_ratio:
            static = _static_within(*shape[-3:-1], *static)
        elif None not in static and static == [*shape[-3:-1]]:
            return tensor
        key = _NAMES.get(method, method) if isinstance(method, str) else method
        if key not in _METHODS:
            raise ValueError(f"Resize method is not implemented: {method}")
        op_type, resample = _METHODS[key]
        if tensor.dtype.name not in REALS:
            raise TypeError(f"images: got {tensor.dtype.name}; expected numbers")

        def resized(pixels: Any, size: Any) -> Any:
            pixels, (height, width) = array(pixels), map(int, size)
            if preserve_aspect_ratio:
                height, width = _within(pixels.shape[-3], pixels.shape[-2], height, width)
            many = pixels if pixels.ndim == 4 else pixels[None]
            made = _resampled(many, height, width, resample, align_corners, False)
            return made if pixels.ndim == 4 else made[0]

        op.type = op_type
        dtype = tensor.dtype if resample is by_nearest else dtypes.float32
        return op.output(dtype, (*shape[:-3], *static, shape[-1]), Pure(resized))


def _size_tensor(op: OpBuilder, size: Any) -> Tensor:
    try:
        wanted = convert_to_tensor(size, dtype=dtypes.int32, name="size")
    except (TypeError, ValueError) as error:
        raise ValueError("'size' must be a 1-D int32 Tensor") from error
    if not wanted.shape.is_compatible_with([2]):
        raise ValueError("'size' must be a 1-D Tensor of 2 elements: new_height, new_width")
    op.inputs.append(wanted)
    return wanted


def _static_size(size: Tensor) -> list[int | None]:
    known = shape_value(size)
    return [None, None] if known is None else list(known)


def _static_within(*sizes: int | None) -> list[int | None]:
    known = [one for one in sizes if one is not None]
    return [None, None] if len(known) < len(sizes) else [*_within(*known)]


def _within(height: int, width: int, most_height: int, most_width: int) -> tuple[int, int]:
    """The largest size of a picture within another that has the same proportions."""
    f = np.float32
    factor = min(f(most_height) / f(height), f(most_width) / f(width))
    return int(np.rint(factor * f(height))), int(np.rint(factor * f(width)))


def _resampled(
    pixels: NDArray[Any],
    height: int,
    width: int,
    resample: _Resample,
    align_corners: bool,
    half_pixel_centers: bool,
) -> NDArray[Any]:
    if pixels.ndim != 4:
        raise invalid(f"input must be 4-dimensional[{','.join(map(str, pixels.shape))}]")
    if height <= 0 or width <= 0:
        raise invalid("output dimensions must be positive")
    if not all(pixels.shape[1:3]):
        raise invalid("input image must be of non-zero size")
    rows = Grid(pixels.shape[1], height, align_corners, half_pixel_centers)
    columns = Grid(pixels.shape[2], width, align_corners, half_pixel_centers)
    return resample(pixels, rows, columns)


def _resizing(
    method: int,
    images: Any,
    size: Any,
    align_corners: bool,
    half_pixel_centers: bool,
    name: str | None,
) -> Tensor:
    op_type, resample = _METHODS[method]

    def resized(pixels: Any, size: Any) -> Any:
        height, width = map(int, size)
        return _resampled(array(pixels), height, width, resample, align_corners, half_pixel_centers)

    if align_corners and half_pixel_centers:
        raise ValueError("If half_pixel_centers is True, align_corners must be False.")
    with OpBuilder(op_type, name) as op:
        tensor = op.tensor(images, "images", None, REALS)
        shape = op.rank(tensor, 4)
        assert shape is not None
        wanted = op.tensor(size, "size", dtypes.int32)
        lengths = op.rank(wanted, 1)
        if lengths not in ((None,), (2,)):
            raise op.refuse("Dimension must be 2 but is " + str(wanted.shape.as_list()[0]))
        static = _static_size(wanted)
        dtype = tensor.dtype if resample is by_nearest else dtypes.float32
        return op.output(dtype, (shape[0], *static, shape[3]), Pure(resized))


def resize_bilinear(
    images: Any,
    size: Any,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """A batch of pictures in another size, linear between four pixels.

    Args:
        images: ``[batch, height, width, channels]``.
        size: two int32, the new height and width.
        align_corners: whether the centres of the outermost pixels stay where they are.
        name: name of the op.
        half_pixel_centers: whether a pixel's place is its middle.

    Returns:
        float32.
    """
    return _resizing(0, images, size, align_corners, half_pixel_centers, name)


def resize_nearest_neighbor(
    images: Any,
    size: Any,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """A batch of pictures in another size, of the nearest pixels; see `resize_bilinear`.

    Returns:
        The dtype of the pictures.
    """
    return _resizing(1, images, size, align_corners, half_pixel_centers, name)


def resize_bicubic(
    images: Any,
    size: Any,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """A batch of pictures in another size, cubic between sixteen pixels; see `resize_bilinear`."""
    return _resizing(2, images, size, align_corners, half_pixel_centers, name)


def resize_area(
    images: Any, size: Any, align_corners: bool = False, name: str | None = None
) -> Tensor:
    """A batch of pictures in another size, of means over areas; see `resize_bilinear`."""
    return _resizing(3, images, size, align_corners, False, name)


def resize_image_with_pad(
    image: Any,
    target_height: Any,
    target_width: Any,
    method: Any = ResizeMethod.BILINEAR,
    align_corners: bool = False,
) -> Tensor:
    """A picture as large as fits into a size without distortion, with zeros beside it.

    Args:
        image: ``[height, width, channels]``, or a batch of such pictures.
        target_height: the height of the result; a number or a tensor.
        target_width: its width.
        method: one of `ResizeMethod`.
        align_corners: whether the centres of the outermost pixels stay where they are.

    Raises:
        ValueError: a size is known not to be positive.
        InvalidArgumentError: when it runs: it is not.
    """
    _, resample = _METHODS[_NAMES.get(method, method) if isinstance(method, str) else method]
    keeps = resample is by_nearest

    def fitted(pixels: Any, height: Any, width: Any) -> Any:
        pixels, height, width = array(pixels), int(height), int(width)
        check_3d(pixels)
        check_rules(positive_sizes(height, width), fixed=False)
        rows, columns, top, left = _fit(pixels.shape[-3], pixels.shape[-2], height, width)
        many = pixels if pixels.ndim == 4 else pixels[None]
        made = _resampled(many, rows, columns, resample, align_corners, False)
        padded = set_among_zeros(made, top, left, height, width)
        return padded if pixels.ndim == 4 else padded[0]

    with OpBuilder("ResizeImageWithPad", None, "resize_image_with_pad") as op:
        tensor = op.tensor(image, "image", None, REALS)
        shape: Dims = one_as_batch(tensor)
        height = Size(op, target_height, "target_height")
        width = Size(op, target_width, "target_width")
        check_rules(positive_sizes(height.fixed, width.fixed), fixed=True)
        front = () if shape is None else shape[:-3]
        sizes = (height.fixed, width.fixed)
        if None not in frame(shape)[:2]:
            sizes = (height.known, width.known)  # TensorFlow works the size out if it can
            _check_fit(shape, *sizes)
        static = (*front, *sizes, frame(shape)[2])
        return op.output(tensor.dtype if keeps else dtypes.float32, static, Pure(fitted))


def _check_fit(shape: Dims, height: int | None, width: int | None) -> None:
    """Raise ValueError if it is known that nothing is left of a picture."""
    if shape is None or not height or not width:
        return
    *front, tall, wide, channels = shape
    rows, columns, _, _ = _fit(tall or 0, wide or 0, height, width)
    if not rows or not columns:
        seen = TensorShape([*(front or (1,)), rows, columns, channels])
        raise ValueError(f"inner 3 dims of 'image.shape' must be > 0: {seen}")


def _fit(height: int, width: int, most_height: int, most_width: int) -> tuple[int, int, int, int]:
    """The size of the picture within the other, and the rows and columns before it."""
    f = np.float32
    ratio = max(f(width) / f(most_width), f(height) / f(most_height))
    rows, columns = f(height) / ratio, f(width) / ratio
    top = max(0, int(np.floor((f(most_height) - rows) / 2)))
    left = max(0, int(np.floor((f(most_width) - columns) / 2)))
    return int(np.floor(rows)), int(np.floor(columns)), top, left
