"""Pictures cut, set among zeros, resized, mirrored, turned and transposed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.graph import Tensor, named
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.ops import arrays
from aioqueue.compat.v1.ops.building import REALS, Dims, OpBuilder, Pure, array, invalid
from aioqueue.compat.v1.ops.images import pictures
from aioqueue.compat.v1.ops.random import random_uniform
from aioqueue.compat.v1.ops.static import constant_value, shape_value

__all__ = (
    "ResizeMethod", "central_crop", "crop_to_bounding_box", "flip_left_right", "flip_up_down",
    "pad_to_bounding_box", "random_flip_left_right", "random_flip_up_down", "resize_area",
    "resize_bicubic", "resize_bilinear", "resize_image_with_crop_or_pad", "resize_image_with_pad",
    "resize_images", "resize_nearest_neighbor", "rot90",
)  # fmt: skip

Pixels = NDArray[Any]
Frame = tuple[int | None, int | None, int | None]
Block = list[int | None]  # offsets from above and from the left, and a height and a width


def crop_to_bounding_box(
    image: Any, offset_height: Any, offset_width: Any, target_height: Any, target_width: Any
) -> Tensor:
    """The part of a picture that begins at an offset."""

    def part(pixels: Pixels, top: int, left: int, height: int, width: int) -> Pixels:
        return pixels[..., top : top + height, left : left + width, :]

    def known(whole: Frame, sizes: Sequence[pictures.Size]) -> list[int | None]:
        return [one.known for one in sizes]

    block = (offset_height, offset_width, target_height, target_width)
    return _placed(
        "CropToBoundingBox", "crop_to_bounding_box", image, block, _cropping, known, part
    )


def pad_to_bounding_box(
    image: Any, offset_height: Any, offset_width: Any, target_height: Any, target_width: Any
) -> Tensor:
    """A picture with zeros around it."""

    def static(whole: Frame, sizes: Sequence[pictures.Size]) -> list[int | None]:
        # TensorFlow knows what tensors hold if it knows all else.
        pairs = zip(sizes, whole, strict=False)
        return [size.fixed if extent is None else size.known for size, extent in pairs]

    block = (offset_height, offset_width, target_height, target_width)
    return _placed(
        "PadToBoundingBox", "pad_to_bounding_box", image, block, _padding, static, set_among_zeros
    )


def resize_image_with_crop_or_pad(image: Any, target_height: Any, target_width: Any) -> Tensor:
    """A picture cut, or set among zeros, to a size, evenly on both sides."""
    return _placed(
        "ResizeImageWithCropOrPad",
        "resize_image_with_crop_or_pad",
        image,
        (target_height, target_width),
        lambda whole, block: pictures.positive_sizes(*block),
        lambda whole, sizes: [one.fixed for one in sizes],
        _cropped_or_padded,
    )


def _placed(
    op_type: str,
    default: str,
    image: Any,
    block: Sequence[Any],
    rules: Callable[[Frame, Block], Iterator[pictures.Rule]],
    static: Callable[[Frame, Sequence[pictures.Size]], Sequence[int | None]],
    change: Callable[..., Pixels],
) -> Tensor:
    """An op of a picture and a block of it: two offsets, if there are any, and two sizes."""

    def changed(pixels: Any, *block: Any) -> Pixels:
        pixels, numbers = pictures.check_3d(pixels), [int(one) for one in block]
        pictures.check_rules(rules(pixels.shape[-3:], [*numbers]), fixed=False)
        return change(pixels, *numbers)

    with OpBuilder(op_type, None, default) as op:
        tensor = op.tensor(image, "image")
        shape = pictures.one_as_batch(tensor)
        names = ("offset_height", "offset_width", "target_height", "target_width")[-len(block) :]
        sizes = [pictures.Size(op, one, name) for one, name in zip(block, names, strict=True)]
        pictures.check_rules(rules(pictures.frame(shape), [one.fixed for one in sizes]), fixed=True)
        height, width = static(pictures.frame(shape), sizes[-2:])
        front: tuple[int | None, ...] = () if shape is None else shape[:-3]
        return op.output(
            tensor.dtype, (*front, height, width, pictures.frame(shape)[2]), Pure(changed)
        )


def central_crop(image: Any, central_fraction: Any) -> Tensor:
    """The middle of a picture."""
    with OpBuilder("CentralCrop", None, "central_crop") as op:
        tensor = op.tensor(image, "image")
        is_tensor = isinstance(central_fraction, Tensor)
        fraction = constant_value(central_fraction) if is_tensor else central_fraction
        pictures.check_rules(
            [(None if fraction is None else 0 < fraction <= 1, _FRACTION)], fixed=True
        )
        if fraction is not None and fraction == 1:
            return tensor
        shape = pictures.at_least_3d(tensor)
        if shape is None or len(shape) > 4:
            raise ValueError(
                "`image` should either be a Tensor with rank = 3 or rank = 4. Had rank ="
                f" {tensor.shape.ndims}."
            )
        given = central_fraction if is_tensor else np.float64(central_fraction)
        op.inputs.append(convert_to_tensor(given, name="central_fraction"))
        static = None if fraction is None else float(fraction)
        height, width = (
            None if one is None or static is None else one - 2 * _margin(one, static)
            for one in shape[-3:-1]
        )
        return op.output(tensor.dtype, (*shape[:-3], height, width, shape[-1]), Pure(_central_part))


_FRACTION = "central_fraction must be within (0, 1]"


def _margin(size: int, fraction: float) -> int:
    return int((size - size * fraction) / 2)


def _central_part(pixels: Any, fraction: Any) -> Any:
    pixels, fraction = pictures.check_3d(pixels), float(fraction)
    pictures.check_rules([(0 < fraction <= 1, _FRACTION)], fixed=False)
    top, left = (_margin(size, fraction) for size in pixels.shape[-3:-1])
    return pixels[..., top : pixels.shape[-3] - top, left : pixels.shape[-2] - left, :]


def _cropping(whole: Frame, block: Block) -> Iterator[pictures.Rule]:
    top, left, height, width = block
    yield pictures.rule(lambda one: one >= 0, "offset_width must be >= 0.", left)
    yield pictures.rule(lambda one: one >= 0, "offset_height must be >= 0.", top)
    yield from pictures.positive_sizes(height, width)
    yield pictures.rule(_covers, "width must be >= target + offset.", whole[1], left, width)
    yield pictures.rule(_covers, "height must be >= target + offset.", whole[0], top, height)


def _padding(whole: Frame, block: Block) -> Iterator[pictures.Rule]:
    top, left, height, width = block
    yield pictures.rule(lambda one: one >= 0, "offset_height must be >= 0", top)
    yield pictures.rule(lambda one: one >= 0, "offset_width must be >= 0", left)
    yield pictures.rule(_covers, "width must be <= target - offset", width, left, whole[1])
    yield pictures.rule(_covers, "height must be <= target - offset", height, top, whole[0])


def _covers(whole: int, offset: int, size: int) -> bool:
    return whole >= offset + size


def set_among_zeros(pixels: Pixels, top: int, left: int, height: int, width: int) -> Pixels:
    whole = np.zeros((*pixels.shape[:-3], height, width, pixels.shape[-1]), pixels.dtype)
    whole[..., top : top + pixels.shape[-3], left : left + pixels.shape[-2], :] = pixels
    return whole


def _cropped_or_padded(pixels: Pixels, height: int, width: int) -> Pixels:
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


# The four methods compute in float32 and in TensorFlow's order, so that the results are its own bit
# for bit but where it contracts a product and a sum into one operation. R. G. Keys, "Cubic
# convolution interpolation for digital image processing", IEEE Transactions on Acoustics, Speech,
# and Signal Processing, 1981, has the cubic weights.
Floats = NDArray[np.float32]
Places = NDArray[np.intp]
_TABLE: Final = 1024  # steps between two pixels for which cubic weights are in the table


@dataclass(frozen=True)
class Grid:
    """Where the pixels of an axis of the result lie on the axis of the picture."""

    size: int
    wanted: int
    align_corners: bool = False
    half_pixel_centers: bool = False

    @property
    def scale(self) -> np.float32:
        if self.align_corners and self.wanted > 1:
            return np.float32(self.size - 1) / np.float32(self.wanted - 1)
        return np.float32(self.size) / np.float32(self.wanted)

    def edges(self) -> Floats:
        return np.arange(self.wanted + 1, dtype=np.float32) * self.scale

    def places(self) -> Floats:
        steps = np.arange(self.wanted, dtype=np.float32)
        if self.half_pixel_centers:
            return (steps + np.float32(0.5)) * self.scale - np.float32(0.5)
        return steps * self.scale

    def nearest(self) -> Places:
        steps = np.arange(self.wanted, dtype=np.float32)
        if self.half_pixel_centers:
            steps += np.float32(0.5)
        places = steps * self.scale
        # Halves are rounded away from zero, and no place is negative.
        rounded = np.trunc(places + np.float32(0.5)) if self.align_corners else np.floor(places)
        return self._bounded(rounded.astype(np.intp))

    def between(self) -> tuple[Places, Places, Floats]:
        """The pixels on both sides of each place, and how far it is from the first."""
        places = self.places()
        below = np.floor(places)
        lower = np.maximum(below.astype(np.intp), 0)
        upper = np.minimum(np.ceil(places).astype(np.intp), self.size - 1)
        return lower, upper, places - below

    def cubic(self) -> tuple[list[Places], list[Floats]]:
        """Four pixels around each place, and their weights."""
        places = self.places()
        below = np.floor(places)
        step = np.rint((places - below) * np.float32(_TABLE)).astype(np.intp)
        near, far = _cubic_table(-0.5 if self.half_pixel_centers else -0.75)
        first = below.astype(np.intp) - 1
        wanted = [first + offset for offset in range(4)]
        pixels = [self._bounded(one) for one in wanted]
        weights = [far[step], near[step], near[_TABLE - step], far[_TABLE - step]]
        if self.half_pixel_centers:
            weights = _without_outside(weights, wanted, pixels)
        return pixels, weights

    def areas(self) -> list[tuple[Places, Floats]]:
        """The pixels that each one of the result covers, and how much of them, one by one."""
        edges = self.edges()
        begin, end = edges[:-1], edges[1:]
        first, last = np.floor(begin).astype(np.intp), np.ceil(end).astype(np.intp)
        return [
            (self._bounded(first + offset), self._covered(first + offset, begin, end, last))
            for offset in range(int((last - first).max(initial=1)))
        ]

    def _covered(self, pixel: Places, begin: Floats, end: Floats, last: Places) -> Floats:
        after = pixel + 1
        whole_beyond = after > end
        from_left = np.where(whole_beyond, self.scale, (after - begin).astype(np.float32))
        from_start = np.where(whole_beyond, (end - pixel).astype(np.float32), np.float32(1))
        covered = np.where(pixel < begin, from_left, from_start)
        return np.where(pixel < last, covered, np.float32(0)).astype(np.float32)

    def _bounded(self, pixels: Places) -> Places:
        return np.clip(pixels, 0, self.size - 1)


@cache
def _cubic_table(a: float) -> tuple[Floats, Floats]:
    """Weights of pixels less than one pixel away, and of those one further."""
    near = np.arange(_TABLE + 1) / _TABLE
    near32 = near.astype(np.float32).astype(np.float64)
    far = (near32 + 1.0).astype(np.float32).astype(np.float64)
    return (
        (((a + 2) * near32 - (a + 3)) * near32 * near32 + 1).astype(np.float32),
        (((a * far - 5 * a) * far + 8 * a) * far - 4 * a).astype(np.float32),
    )


def _without_outside(
    weights: list[Floats], wanted: list[Places], pixels: list[Places]
) -> list[Floats]:
    """The weights without those of pixels that lie outside, and the rest as parts of 1."""
    inside = [
        np.where(place == pixel, weight, np.float32(0))
        for weight, place, pixel in zip(weights, wanted, pixels, strict=True)
    ]
    total = inside[0] + inside[1] + inside[2] + inside[3]
    is_some = np.abs(total) >= np.float32(1000) * np.finfo(np.float32).tiny
    factor = np.where(is_some, np.float32(1) / np.where(is_some, total, 1), np.float32(1))
    return [weight * factor for weight in inside]


def lerp(first: Floats, second: Floats, part: Any) -> Floats:
    """What lies between two values. Changes `second`, which becomes the result."""
    second -= first
    second *= part
    second += first
    return second


def by_nearest(pixels: Pixels, rows: Grid, columns: Grid) -> Pixels:
    return pixels.take(rows.nearest(), 1).take(columns.nearest(), 2)


def by_bilinear(pixels: Pixels, rows: Grid, columns: Grid) -> Floats:
    if (rows.size, columns.size) == (rows.wanted, columns.wanted):
        return pixels.astype(np.float32)
    above, below, down = rows.between()
    left, right, across = columns.between()
    used, where = np.unique(np.concatenate((above, below)), return_inverse=True)
    lines = pixels.take(used, 1).astype(np.float32)
    lines = lerp(lines.take(left, 2), lines.take(right, 2), across[:, None])
    top, bottom = lines.take(where[: len(above)], 1), lines.take(where[len(above) :], 1)
    return lerp(top, bottom, down[:, None, None])


def by_bicubic(pixels: Pixels, rows: Grid, columns: Grid) -> Floats:
    pixels = pixels.astype(np.float32)
    lines = _weighted(pixels, rows.cubic(), 1)
    return _weighted(lines, columns.cubic(), 2)


def _weighted(pixels: Floats, taps: tuple[list[Places], list[Floats]], axis: int) -> Floats:
    places, weights = taps
    total: Floats | None = None
    for place, weight in zip(places, weights, strict=True):
        part = pixels.take(place, axis)
        part *= weight[:, None, None] if axis == 1 else weight[:, None]
        total = part if total is None else np.add(total, part, out=total)
    assert total is not None
    return total


def by_area(pixels: Pixels, rows: Grid, columns: Grid) -> Floats:
    pixels = pixels.astype(np.float32)
    lines = _weighted(pixels, _taps(columns), 2)
    total = _weighted(lines, _taps(rows), 1)
    # TensorFlow takes the reciprocal in double precision.
    total *= np.float32(np.float64(1) / np.float64(rows.scale * columns.scale))
    return total


def _taps(grid: Grid) -> tuple[list[Places], list[Floats]]:
    areas = grid.areas()
    return [places for places, _ in areas], [weights for _, weights in areas]


class ResizeMethod:
    """What `resize_images` takes as its method."""

    BILINEAR = 0
    NEAREST_NEIGHBOR = 1
    BICUBIC = 2
    AREA = 3


_Resample = Callable[[Pixels, Grid, Grid], Pixels]
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
    """Pictures in another size."""
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
            made = _resampled(many, (height, width), resample, align_corners)
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


def _resampled(pixels: Pixels, size: tuple[int, int], resample: _Resample, *how: bool) -> Pixels:
    height, width = size
    if pixels.ndim != 4:
        raise invalid(f"input must be 4-dimensional[{','.join(map(str, pixels.shape))}]")
    if height <= 0 or width <= 0:
        raise invalid("output dimensions must be positive")
    if not all(pixels.shape[1:3]):
        raise invalid("input image must be of non-zero size")
    rows, columns = Grid(pixels.shape[1], height, *how), Grid(pixels.shape[2], width, *how)
    return resample(pixels, rows, columns)


def _resizing(name: str, method: int, how: str) -> Callable[..., Tensor]:
    op_type, resample = _METHODS[method]

    def resize(
        images: Any,
        size: Any,
        align_corners: bool = False,
        name: str | None = None,
        half_pixel_centers: bool = False,
    ) -> Tensor:
        def resized(pixels: Any, size: Any) -> Any:
            wanted = int(size[0]), int(size[1])
            return _resampled(array(pixels), wanted, resample, align_corners, half_pixel_centers)

        if align_corners and half_pixel_centers:
            raise ValueError("If half_pixel_centers is True, align_corners must be False.")
        with OpBuilder(op_type, name) as op:
            tensor = op.tensor(images, "images", None, REALS)
            shape = op.rank(tensor, 4)
            wanted = op.tensor(size, "size", dtypes.int32)
            lengths = op.rank(wanted, 1)
            if lengths not in ((None,), (2,)):
                raise op.refuse("Dimension must be 2 but is " + str(wanted.shape.as_list()[0]))
            static = _static_size(wanted)
            dtype = tensor.dtype if resample is by_nearest else dtypes.float32
            return op.output(dtype, (shape[0], *static, shape[3]), Pure(resized))

    return named(resize, name, f"A batch of pictures in another size, {how}.")


_Resize = Callable[..., Tensor]
resize_bilinear: _Resize = _resizing("resize_bilinear", 0, "linear between four pixels")
resize_nearest_neighbor: _Resize = _resizing("resize_nearest_neighbor", 1, "of the nearest pixels")
resize_bicubic: _Resize = _resizing("resize_bicubic", 2, "cubic between sixteen pixels")
resize_area: _Resize = _resizing("resize_area", 3, "of means over areas")


def resize_image_with_pad(
    image: Any,
    target_height: Any,
    target_width: Any,
    method: Any = ResizeMethod.BILINEAR,
    align_corners: bool = False,
) -> Tensor:
    """A picture as large as fits into a size without distortion, with zeros beside it."""
    _, resample = _METHODS[_NAMES.get(method, method) if isinstance(method, str) else method]
    keeps = resample is by_nearest

    def fitted(pixels: Any, height: Any, width: Any) -> Any:
        pixels, height, width = pictures.check_3d(pixels), int(height), int(width)
        pictures.check_rules(pictures.positive_sizes(height, width), fixed=False)
        rows, columns, top, left = _fit(pixels.shape[-3], pixels.shape[-2], height, width)
        many = pixels if pixels.ndim == 4 else pixels[None]
        made = _resampled(many, (rows, columns), resample, align_corners)
        padded = set_among_zeros(made, top, left, height, width)
        return padded if pixels.ndim == 4 else padded[0]

    with OpBuilder("ResizeImageWithPad", None, "resize_image_with_pad") as op:
        tensor = op.tensor(image, "image", None, REALS)
        shape: Dims = pictures.one_as_batch(tensor)
        height = pictures.Size(op, target_height, "target_height")
        width = pictures.Size(op, target_width, "target_width")
        pictures.check_rules(pictures.positive_sizes(height.fixed, width.fixed), fixed=True)
        front = () if shape is None else shape[:-3]
        sizes = (height.fixed, width.fixed)
        if None not in pictures.frame(shape)[:2]:
            sizes = (height.known, width.known)  # TensorFlow works the size out if it can
            _check_fit(shape, *sizes)
        static = (*front, *sizes, pictures.frame(shape)[2])
        return op.output(tensor.dtype if keeps else dtypes.float32, static, Pure(fitted))


def _check_fit(shape: Dims, height: int | None, width: int | None) -> None:
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


_HEIGHT, _WIDTH = -3, -2


def rot90(image: Any, k: Any = 1, name: str | None = None) -> Tensor:
    """A picture, or each of a batch, turned left by right angles."""

    def turned(pixels: Any, k: Any) -> Any:
        return np.rot90(pictures.check_3d(pixels), int(k) % 4, (_HEIGHT, _WIDTH))

    with OpBuilder("Rot90", name, "rot90") as op:
        tensor = op.tensor(image, "image")
        shape = pictures.one_or_many(tensor)
        op.rank(op.tensor(k, "k", dtypes.int32), 0)
        if shape is not None and shape[_HEIGHT] != shape[_WIDTH]:
            shape = (*shape[:-3], None, None, shape[-1])
        return op.output(tensor.dtype, shape, Pure(turned))


def _flip(axis: int, name: str, what: str) -> Callable[[Any], Tensor]:
    def flip(image: Any) -> Tensor:
        with OpBuilder("Turn", None, name) as op:
            tensor = op.tensor(image, "image")
            kernel = Pure(lambda pixels: np.flip(pictures.check_3d(pixels), axis))
            return op.output(tensor.dtype, pictures.one_or_many(tensor), kernel)

    return named(flip, name, f"A picture, or each of a batch, with its {what} in reversed order.")


flip_left_right: Callable[[Any], Tensor] = _flip(_WIDTH, "flip_left_right", "columns")
flip_up_down: Callable[[Any], Tensor] = _flip(_HEIGHT, "flip_up_down", "rows")


def _perhaps(axis: int, name: str, how: str) -> Callable[..., Tensor]:
    def flipped(pixels: Any, chances: Any) -> Any:
        pixels = pictures.check_3d(pixels)
        if pixels.ndim == 3:
            return np.flip(pixels, axis) if chances < 0.5 else pixels
        # TensorFlow rounds the numbers of a batch, so that it is the other half that turns.
        turns = (chances > 0.5).reshape(-1, 1, 1, 1)
        return np.where(turns, np.flip(pixels, axis), pixels)

    def flip(image: Any, seed: int | None = None) -> Tensor:
        with OpBuilder("RandomFlip", None, name) as op:
            tensor = op.tensor(image, "image")
            shape = pictures.one_or_many(tensor)
            is_one = shape is not None and len(shape) == 3
            batch: Any = [] if is_one else arrays.shape(tensor)[:-3]
            op.inputs.append(random_uniform(batch, 0, 1.0, seed=seed))
            return op.output(tensor.dtype, shape, Pure(flipped))

    doc = f"A picture as it is or {how}, with equal odds; of a batch, each by itself."
    return named(flip, name, doc)


random_flip_left_right: Callable[..., Tensor] = _perhaps(
    _WIDTH, "random_flip_left_right", "mirrored"
)
random_flip_up_down: Callable[..., Tensor] = _perhaps(_HEIGHT, "random_flip_up_down", "upside down")
