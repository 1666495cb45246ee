"""Boxes in pictures, ``[top, left, bottom, right]`` in parts of the picture's height and width."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import REALS, OpBuilder, Pure, invalid, unless_given
from aioqueue.compat.v1.ops.images.geometry import lerp
from aioqueue.compat.v1.ops.random import Generator, RandomKernel, Words, unit_floats
from aioqueue.compat.v1.ops.static import shape_value

__all__ = ("crop_and_resize", "draw_bounding_boxes", "sample_distorted_bounding_box")


def crop_and_resize(
    image: Any,
    boxes: Any,
    box_ind: Any = None,
    crop_size: Any = None,
    method: str = "bilinear",
    extrapolation_value: float = 0,
    name: str | None = None,
    box_indices: Any = None,
) -> Tensor:
    """Parts of pictures, all resized to one size."""
    chosen = unless_given(box_indices, box_ind, "box_indices", "box_ind")
    if method not in ("bilinear", "nearest"):
        raise ValueError(f"method: got {method!r}; expected 'bilinear' or 'nearest'")
    outside = np.float32(extrapolation_value)

    def crops(pixels: Any, boxes: Any, chosen: Any, size: Any) -> Any:
        _check_boxes(pixels, boxes, chosen, size)
        height, width = map(int, size)
        made = np.empty((len(boxes), height, width, pixels.shape[3]), np.float32)
        for box, number, result in zip(boxes, chosen.tolist(), made, strict=True):
            _crop(pixels[number], box, result, method == "nearest", outside)
        return made

    with OpBuilder("CropAndResize", name) as op:
        shape = op.rank(op.tensor(image, "image", None, REALS), 4)
        number = op.rank(op.tensor(boxes, "boxes", dtypes.float32), 2)
        several = op.rank(op.tensor(chosen, "box_ind", dtypes.int32), 1)
        wanted = op.tensor(crop_size, "crop_size", dtypes.int32)
        op.rank(wanted, 1)
        if number[1] not in (4, None):
            raise op.refuse(f"Dimension must be 4 but is {number[1]}")
        size = shape_value(wanted) or (None, None)
        count = several[0] if number[0] is None else number[0]
        return op.output(dtypes.float32, (count, *size, shape[3]), Pure(crops))


def _check_boxes(pixels: Any, boxes: Any, chosen: Any, size: Any) -> None:
    if not all(pixels.shape[1:3]):
        raise invalid("image dimensions must be positive")
    if len(size) != 2:
        raise invalid(f"crop_size must have two elements[{len(size)}]")
    if min(size.tolist()) <= 0:
        raise invalid("crop dimensions must be positive")
    if len(boxes) != len(chosen):
        raise invalid("box_index has incompatible shape")
    if ((chosen < 0) | (chosen >= len(pixels))).any():
        raise errors.OutOfRangeError(None, None, "box_index has values outside [0, batch_size)")
    if not np.isfinite(boxes).all():
        raise invalid("Boxes contains at least one element that is not finite")


def _crop(
    pixels: NDArray[Any], box: Any, result: NDArray[np.float32], nearest: bool, outside: np.float32
) -> None:
    rows = _places(box[0], box[2], pixels.shape[0], result.shape[0])
    columns = _places(box[1], box[3], pixels.shape[1], result.shape[1])
    high, wide = _inside(rows, pixels.shape[0]), _inside(columns, pixels.shape[1])
    result[:] = outside
    rows, columns = rows[high], columns[wide]
    if nearest:
        part = pixels[np.ix_(_rounded(rows), _rounded(columns))].astype(np.float32)
    else:
        part = _between(pixels, rows, columns)
    result[np.ix_(high, wide)] = part


def _places(first: np.float32, last: np.float32, size: int, wanted: int) -> NDArray[np.float32]:
    """Where on an axis of `size` pixels those of a box lie."""
    most = np.float32(size - 1)
    if wanted == 1:
        return np.array([0.5 * float(first + last) * float(most)], np.float32)
    step = (last - first) * most / np.float32(wanted - 1)
    return first * most + np.arange(wanted, dtype=np.float32) * step


def _inside(places: NDArray[np.float32], size: int) -> NDArray[np.intp]:
    return np.flatnonzero((places >= 0) & (places <= size - 1))


def _rounded(places: NDArray[np.float32]) -> NDArray[np.intp]:
    whole = np.floor(places)
    return (whole + (places - whole >= 0.5)).astype(np.intp)


def _between(
    pixels: NDArray[Any], rows: NDArray[np.float32], columns: NDArray[np.float32]
) -> NDArray[np.float32]:
    above, left = np.floor(rows), np.floor(columns)
    across = (columns - left)[:, None]

    def line(which: NDArray[np.float32]) -> NDArray[np.float32]:
        found = pixels[which.astype(np.intp)].astype(np.float32)
        last = np.ceil(columns).astype(np.intp)
        return lerp(found.take(left.astype(np.intp), 1), found.take(last, 1), across)

    return lerp(line(above), line(np.ceil(rows)), (rows - above)[:, None, None])


_PALETTE: Final = np.array(
    [
        *([1, 1, 0, 1], [0, 0, 1, 1], [1, 0, 0, 1], [0, 1, 0, 1], [0.5, 0, 0.5, 1]),
        *([0.5, 0.5, 0, 1], [0.5, 0, 0, 1], [0, 0, 0.5, 1], [0, 1, 1, 1], [1, 0, 1, 1]),
    ],
    np.float32,
)


def draw_bounding_boxes(
    images: Any, boxes: Any, name: str | None = None, colors: Any = None
) -> Tensor:
    """Pictures with the outlines of boxes on them, a pixel wide."""

    def drawn(pixels: Any, boxes: Any, colours: Any = None) -> Any:
        _check_drawing(pixels, boxes, colours)
        palette = _palette(pixels.shape[3], colours).astype(pixels.dtype)
        made = pixels.copy()
        for canvas, each in zip(made, boxes, strict=True):
            for number, box in enumerate(each):
                _outline(canvas, box, palette[number % len(palette)])
        return made

    with OpBuilder("DrawBoundingBoxes", name) as op:
        tensor = op.tensor(images, "images", None, frozenset(("float16", "float32")))
        shape = op.rank(tensor, 4)
        coordinates = op.rank(op.tensor(boxes, "boxes", dtypes.float32), 3)
        if coordinates[2] not in (4, None):
            raise op.refuse(f"Dimension must be 4 but is {coordinates[2]}")
        if colors is not None:
            op.type = "DrawBoundingBoxesV2"
            op.rank(op.tensor(colors, "colors", dtypes.float32), 2)
        return op.output(tensor.dtype, shape, Pure(drawn))


def _check_drawing(pixels: Any, boxes: Any, colours: Any) -> None:
    if len(pixels) != len(boxes):
        raise invalid("The batch sizes should be the same")
    if pixels.shape[3] not in (1, 3, 4):
        raise invalid("Channel depth should be either 1 (GRY), 3 (RGB), or 4 (RGBA)")
    if colours is not None and colours.shape[1] < pixels.shape[3]:
        raise invalid(
            "colors must have equal or more channels than the image provided:"
            f" [{colours.shape[0]},{colours.shape[1]}]"
        )


def _palette(channels: int, colours: Any) -> NDArray[Any]:
    if colours is not None and colours.size:
        return np.asarray(colours)[:, :channels]
    return np.ones((1, 1), np.float32) if channels == 1 else _PALETTE[:, :channels]


def _outline(canvas: NDArray[Any], box: Any, colour: NDArray[Any]) -> None:
    height, width = canvas.shape[:2]
    top, bottom = (int(box[place] * np.float32(height - 1)) for place in (0, 2))
    left, right = (int(box[place] * np.float32(width - 1)) for place in (1, 3))
    if top > bottom or left > right:
        return
    if top >= height or bottom < 0 or left >= width or right < 0:
        return
    rows = slice(max(top, 0), min(bottom, height - 1) + 1)
    columns = slice(max(left, 0), min(right, width - 1) + 1)
    for row in (top, bottom):
        if 0 <= row < height:
            canvas[row, columns] = colour
    for column in (left, right):
        if 0 <= column < width:
            canvas[rows, column] = colour


_SIZES: Final = frozenset(("uint8", "int8", "int16", "int32", "int64"))
_f: Final = np.float32
Box = tuple[int, int, int, int]
"""Top, left, bottom and right, in pixels; the last two are just outside."""


class SampleDistortedBoundingBoxV2(NamedTuple):
    begin: Tensor
    size: Tensor
    bboxes: Tensor


def sample_distorted_bounding_box(
    image_size: Any,
    bounding_boxes: Any,
    seed: int | None = None,
    seed2: int | None = None,
    min_object_covered: Any = 0.1,
    aspect_ratio_range: Sequence[float] | None = None,
    area_range: Sequence[float] | None = None,
    max_attempts: int | None = None,
    use_image_if_no_bounding_boxes: bool | None = None,
    name: str | None = None,
) -> SampleDistortedBoundingBoxV2:
    """A random part of a picture, as `tf.slice` takes it; the seeds are this op's alone."""
    limits = _Limits(
        _positive_range("aspect_ratio_range", aspect_ratio_range, (0.75, 1.33)),
        _positive_range("area_range", area_range, (0.05, 1.0)),
        100 if max_attempts is None else max_attempts,
    )
    if max(limits.area) > 1:
        raise ValueError(f"area_range: got {area_range!r}; expected numbers of at most 1")
    if limits.attempts <= 0:
        raise ValueError(f"max_attempts: got {max_attempts!r}; expected a positive number")

    def sampled(generator: Generator, size: Any, boxes: Any, covered: Any) -> Any:
        height, width = (int(one) for one in size[:2])
        if not boxes.size and not use_image_if_no_bounding_boxes:
            raise invalid(
                "No bounding boxes provided as input. One must enable"
                " use_image_if_no_bounding_boxes if you wish to not provide any bounding boxes."
            )
        wanted = _in_pixels(boxes, height, width) or [(0, 0, height, width)]
        numbers = _Numbers(generator.reserve(limits.attempts))
        box = limits.sample(numbers, height, width, wanted, _f(covered))
        top, left, bottom, right = box
        kind = size.dtype.type
        edges = np.array(box, _f) / np.array([height, width, height, width], _f)
        return (
            np.array([top, left, 0], kind),
            np.array([bottom - top, right - left, -1], kind),
            edges.reshape(1, 1, 4),
        )

    seeds = (seed or None, seed2 or None)
    given = (None, None) if seeds == (None, None) else (seed or 0, seed2 or 0)
    with OpBuilder("SampleDistortedBoundingBoxV2", name, "sample_distorted_bounding_box") as op:
        size = op.tensor(image_size, "image_size", None, _SIZES)
        op.rank(size, 1)
        coordinates = op.rank(op.tensor(bounding_boxes, "bounding_boxes", dtypes.float32), 3)
        if coordinates[2] not in (4, None):
            raise op.refuse(f"Dimension must be 4 but is {coordinates[2]}")
        op.rank(op.tensor(min_object_covered, "min_object_covered", dtypes.float32), 0)
        return SampleDistortedBoundingBoxV2(
            *op.outputs(
                [(size.dtype, (3,)), (size.dtype, (3,)), (dtypes.float32, (1, 1, 4))],
                RandomKernel(given, sampled),
            )
        )


def _positive_range(
    argument: str, given: Sequence[float] | None, default: tuple[float, float]
) -> tuple[np.float32, np.float32]:
    if given is None:
        given = default
    if len(given) != 2 or min(given) <= 0:
        raise ValueError(f"{argument}: got {given!r}; expected two positive numbers")
    return _f(given[0]), _f(given[1])


def _in_pixels(boxes: NDArray[np.float32], height: int, width: int) -> list[Box]:
    flat = boxes.reshape(-1, 4)
    for one in flat.ravel():
        if not 0 <= one <= 1:
            raise invalid(f"All bounding box coordinates must be in [0.0, 1.0]: {one:g}")
    sizes = np.array([height, width, height, width], _f)
    return [(a, b, c, d) for a, b, c, d in (flat * sizes).astype(np.int64).tolist()]


class _Numbers:
    def __init__(self, words: Words) -> None:
        blocks = (words.blocks(first, 8).tolist() for first in itertools.count(0, 8))
        self._words = itertools.chain.from_iterable(blocks)

    def part(self) -> np.float32:
        return _f(unit_floats(np.array([next(self._words)], np.uint32))[0])

    def below(self, limit: int) -> int:
        """A whole number from 0 up to a limit, without it."""
        if limit & (limit - 1) == 0:
            return int(next(self._words)) & (limit - 1)
        # Words of the last, incomplete round are drawn again, so that all are equally likely.
        rest = (2**32 - 1) % limit + 1
        while (word := next(self._words)) < rest:
            pass
        return int(word) % limit


@dataclass(frozen=True)
class _Limits:
    aspect: tuple[np.float32, np.float32]
    area: tuple[np.float32, np.float32]
    attempts: int

    def sample(
        self, numbers: _Numbers, height: int, width: int, boxes: list[Box], covered: np.float32
    ) -> Box:
        """The first part that shows enough; the whole picture if none does."""
        for _ in range(self.attempts):
            aspect = numbers.part() * (self.aspect[1] - self.aspect[0]) + self.aspect[0]
            box = self._part(numbers, height, width, aspect)
            if box is not None and _shows(box, boxes, covered):
                return box
        return (0, 0, height, width)

    def _part(self, numbers: _Numbers, height: int, width: int, aspect: np.float32) -> Box | None:
        """A part with a given aspect ratio; None if its size would be beyond the limits."""
        least, most = self.area
        if height <= 0 or width <= 0 or least > most:
            return None
        smallest, largest = (limit * _f(width) * _f(height) for limit in (least, most))
        rows = _whole(np.sqrt(smallest / aspect))
        highest = _whole(np.sqrt(largest / aspect))
        if _whole(_f(highest) * aspect) > width:
            highest = int((width + 0.5 - float(_f(0.0000001))) / float(aspect))
        highest = min(highest, height)
        rows = min(rows, highest)
        if rows < highest:
            rows += numbers.below(highest - rows + 1)
        columns = _whole(_f(rows) * aspect)
        if columns * rows < smallest:
            rows += 1
            columns = _whole(_f(rows) * aspect)
        if columns * rows > largest:
            rows -= 1
            columns = _whole(_f(rows) * aspect)
        if not smallest <= columns * rows <= largest:
            return None
        if not (0 < columns <= width and 0 < rows <= height):
            return None
        top = numbers.below(height - rows) if rows < height else 0
        left = numbers.below(width - columns) if columns < width else 0
        return (top, left, top + rows, left + columns)


def _whole(number: Any) -> int:
    return int(np.rint(number))


def _shows(part: Box, boxes: list[Box], covered: np.float32) -> bool:
    if _area(part) < 1:
        return False
    for box in boxes:
        area = _area(box)
        high = min(part[2], box[2]) - max(part[0], box[0])
        wide = min(part[3], box[3]) - max(part[1], box[1])
        shared = high * wide if high >= 0 and wide >= 0 else 0
        if area >= 1 and _f(shared) / _f(area) >= covered:
            return True
    return False


def _area(box: Box) -> int:
    return (box[2] - box[0]) * (box[3] - box[1])
