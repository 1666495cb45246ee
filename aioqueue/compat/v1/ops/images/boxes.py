"""Boxes in pictures: cut out and resized, drawn, and the best of many that overlap.

A box is ``[top, left, bottom, right]``, in parts of the picture's height and width.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import REALS, OpBuilder, Pure, array, invalid, unless_given
from aioqueue.compat.v1.ops.images.resampling import lerp
from aioqueue.compat.v1.ops.static import shape_value

__all__ = ("crop_and_resize", "draw_bounding_boxes", "non_max_suppression")


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
    """Parts of pictures, all resized to one size.

    Args:
        image: ``[batch, height, width, channels]``.
        boxes: ``[boxes, 4]``, float32; may reach beyond the picture, and may be reversed.
        box_ind: which picture each box is of, int32.
        crop_size: height and width of the result, int32.
        method: ``"bilinear"`` or ``"nearest"``.
        extrapolation_value: what is outside the picture.
        name: name of the op.
        box_indices: another name of `box_ind`.

    Returns:
        ``[boxes, crop_height, crop_width, channels]``, float32.

    Raises:
        ValueError: the shapes do not fit, or there is no such method.
        OutOfRangeError: when it runs: there is no such picture.
    """
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
        assert shape is not None
        assert number is not None
        assert several is not None
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
    """Fill `result` with a part of a picture."""
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
        [1, 1, 0, 1],
        [0, 0, 1, 1],
        [1, 0, 0, 1],
        [0, 1, 0, 1],
        [0.5, 0, 0.5, 1],
        [0.5, 0.5, 0, 1],
        [0.5, 0, 0, 1],
        [0, 0, 0.5, 1],
        [0, 1, 1, 1],
        [1, 0, 1, 1],
    ],
    np.float32,
)
"""The colours that boxes are drawn in, in turn."""


def draw_bounding_boxes(
    images: Any, boxes: Any, name: str | None = None, colors: Any = None
) -> Tensor:
    """Pictures with the outlines of boxes on them, a pixel wide.

    Args:
        images: ``[batch, height, width, channels]``, float32 or float16; 1, 3 or 4 channels.
        boxes: ``[batch, boxes, 4]``, float32. Those that are reversed, or outside, are left out.
        name: name of the op.
        colors: ``[colours, channels]``, float32; taken in turn. Ten that differ if left out.

    Raises:
        ValueError: a tensor does not have those dimensions.
        InvalidArgumentError: when it runs: the numbers of pictures or channels do not fit.
    """

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
        if coordinates is not None and coordinates[2] not in (4, None):
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


def non_max_suppression(
    boxes: Any,
    scores: Any,
    max_output_size: Any,
    iou_threshold: Any = 0.5,
    score_threshold: Any = float("-inf"),
    name: str | None = None,
) -> Tensor:
    """The boxes with the best scores that do not overlap much.

    Args:
        boxes: ``[boxes, 4]``: two opposite corners each.
        scores: ``[boxes]``.
        max_output_size: how many to choose at most, int32.
        iou_threshold: a box is left out if it shares more than this with a better one: the area of
            both over the area of either.
        score_threshold: scores must be above it.
        name: name of the op.

    Returns:
        Indices of boxes, int32, the best one first.

    Raises:
        ValueError: the shapes do not fit.
        InvalidArgumentError: when it runs: `iou_threshold` is not between 0 and 1.
    """

    def chosen(boxes: Any, scores: Any, most: Any, overlap: Any, least: Any) -> Any:
        if not 0 <= overlap <= 1:
            raise invalid("iou_threshold must be in [0, 1]")
        if len(boxes) != len(scores):
            raise invalid("scores has incompatible shape")
        good = np.flatnonzero(scores > least)
        order = good[np.argsort(-scores[good], kind="stable")]
        return _not_overlapping(_sorted_corners(boxes), order, int(most), overlap)

    with OpBuilder("NonMaxSuppressionV3", name, "non_max_suppression") as op:
        floats = frozenset(("float16", "float32"))
        lead = op.tensor(boxes, "boxes", None, floats)
        corners = op.rank(lead, 2)
        op.rank(op.tensor(scores, "scores", lead.dtype, like="boxes"), 1)
        if corners is not None and corners[1] not in (4, None):
            raise op.refuse(f"Dimension must be 4 but is {corners[1]}")
        op.rank(op.tensor(max_output_size, "max_output_size", dtypes.int32), 0)
        op.rank(op.tensor(iou_threshold, "iou_threshold", None, floats), 0)
        op.rank(op.tensor(score_threshold, "score_threshold", None, floats), 0)
        return op.output(dtypes.int32, (None,), Pure(chosen))


def _sorted_corners(boxes: NDArray[Any]) -> NDArray[np.float32]:
    """Boxes as top, left, bottom and right, whichever corners were given."""
    first, second = array(boxes)[:, :2], array(boxes)[:, 2:]
    corners = np.concatenate((np.minimum(first, second), np.maximum(first, second)), 1)
    return corners.astype(np.float32)


def _not_overlapping(
    boxes: NDArray[np.float32], order: NDArray[np.intp], most: int, threshold: Any
) -> NDArray[np.int32]:
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    chosen: list[int] = []
    while len(order) and len(chosen) < most:
        best, order = order[0], order[1:]
        chosen.append(int(best))
        sides = np.minimum(boxes[order, 2:], boxes[best, 2:]) - np.maximum(
            boxes[order, :2], boxes[best, :2]
        )
        shared = np.maximum(sides, 0).prod(1)
        either = areas[order] + areas[best] - shared
        is_box = (areas[order] > 0) & (areas[best] > 0)
        order = order[~(np.where(is_box, shared / either, 0) > threshold)]
    return np.array(chosen, np.int32)
