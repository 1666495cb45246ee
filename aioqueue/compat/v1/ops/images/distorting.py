"""A random part of a picture that shows enough of what is in its boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import OpBuilder, invalid
from aioqueue.compat.v1.ops.random import Generator, RandomKernel, Words, unit_floats

__all__ = ("SampleDistortedBoundingBoxV2", "sample_distorted_bounding_box")

_SIZES: Final = frozenset(("uint8", "int8", "int16", "int32", "int64"))
_f: Final = np.float32

Box = tuple[int, int, int, int]
"""Top, left, bottom and right, in pixels; the last two are just outside."""


class SampleDistortedBoundingBoxV2(NamedTuple):
    """What `sample_distorted_bounding_box` returns."""

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
    """A random part of a picture, given by what `tf.slice` takes.

    The seeds are the generator's own: without them the parts differ from session to session,
    whatever `set_random_seed` has been given.

    Args:
        image_size: height, width and channels: three integers.
        bounding_boxes: ``[batch, boxes, 4]``, float32, from 0 to 1, or without any box.
        seed: with `seed2`, of the generator.
        seed2: see `seed`.
        min_object_covered: how much of at least one box the part must show.
        aspect_ratio_range: limits of its width over its height; 0.75 to 1.33 if left out.
        area_range: limits of its area over the picture's; 0.05 to 1 if left out.
        max_attempts: after how many parts that will not do to take the whole picture; 100 if left
            out.
        use_image_if_no_bounding_boxes: whether no boxes mean one around the picture; else they are
            an error.
        name: name of the op.

    Returns:
        The tensors `begin`, `size` and `bboxes`, also by these names: two vectors of three for
        `tf.slice`, and a float32 ``[1, 1, 4]`` for `draw_bounding_boxes`.

    Raises:
        ValueError: a range or a shape is not what it may be.
        InvalidArgumentError: when it runs: there are no boxes, or coordinates beyond 0 and 1.
    """
    limits = _Limits(
        _positive_range("aspect_ratio_range", aspect_ratio_range, (0.75, 1.33)),
        _positive_range("area_range", area_range, (0.05, 1.0)),
        100 if max_attempts is None else max_attempts,
        bool(use_image_if_no_bounding_boxes),
    )
    if max(limits.area) > 1:
        raise ValueError(f"area_range: got {area_range!r}; expected numbers of at most 1")
    if limits.attempts <= 0:
        raise ValueError(f"max_attempts: got {max_attempts!r}; expected a positive number")

    def sampled(generator: Generator, size: Any, boxes: Any, covered: Any) -> Any:
        height, width = (int(one) for one in size[:2])
        wanted = _in_pixels(boxes, height, width) or limits.whole(height, width)
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
        if coordinates is not None and coordinates[2] not in (4, None):
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
    """The boxes of all pictures, in pixels.

    Raises:
        InvalidArgumentError: coordinates are not between 0 and 1.
    """
    flat = boxes.reshape(-1, 4)
    for one in flat.ravel():
        if not 0 <= one <= 1:
            raise invalid(f"All bounding box coordinates must be in [0.0, 1.0]: {one:g}")
    sizes = np.array([height, width, height, width], _f)
    return [(a, b, c, d) for a, b, c, d in (flat * sizes).astype(np.int64).tolist()]


class _Numbers:
    """Words of a generator one by one, as numbers."""

    __slots__ = ("_count", "_taken", "_words")

    def __init__(self, words: Words) -> None:
        self._words = words
        self._taken: list[int] = []
        self._count = 0

    def _word(self) -> int:
        if self._count == len(self._taken):
            first = len(self._taken) // 4
            self._taken += self._words.blocks(first, 8).tolist()
        self._count += 1
        return self._taken[self._count - 1]

    def part(self) -> np.float32:
        """A number from 0 up to 1."""
        return _f(unit_floats(np.array([self._word()], np.uint32))[0])

    def below(self, limit: int) -> int:
        """A whole number from 0 up to a limit, without it."""
        if limit & (limit - 1) == 0:
            return self._word() & (limit - 1)
        # Words of the last, incomplete round are drawn again, so that all are equally likely.
        rest = (2**32 - 1) % limit + 1
        while (word := self._word()) < rest:
            pass
        return word % limit


@dataclass(frozen=True)
class _Limits:
    """What parts may be sampled.

    Attributes:
        aspect: the least and the largest width over height.
        area: the least and the largest part of the picture.
        attempts: how many parts are tried.
        may_lack_boxes: whether no boxes mean the whole picture.
    """

    aspect: tuple[np.float32, np.float32]
    area: tuple[np.float32, np.float32]
    attempts: int
    may_lack_boxes: bool

    def whole(self, height: int, width: int) -> list[Box]:
        """The boxes to look for if none was given.

        Raises:
            InvalidArgumentError: there must be some.
        """
        if not self.may_lack_boxes:
            raise invalid(
                "No bounding boxes provided as input. One must enable"
                " use_image_if_no_bounding_boxes if you wish to not provide any bounding boxes."
            )
        return [(0, 0, height, width)]

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
        rows = _rounded(np.sqrt(smallest / aspect))
        highest = _rounded(np.sqrt(largest / aspect))
        if _rounded(_f(highest) * aspect) > width:
            highest = int((width + 0.5 - float(_f(0.0000001))) / float(aspect))
        highest = min(highest, height)
        rows = min(rows, highest)
        if rows < highest:
            rows += numbers.below(highest - rows + 1)
        columns = _rounded(_f(rows) * aspect)
        if columns * rows < smallest:
            rows += 1
            columns = _rounded(_f(rows) * aspect)
        if columns * rows > largest:
            rows -= 1
            columns = _rounded(_f(rows) * aspect)
        if not smallest <= columns * rows <= largest:
            return None
        if not (0 < columns <= width and 0 < rows <= height):
            return None
        top = numbers.below(height - rows) if rows < height else 0
        left = numbers.below(width - columns) if columns < width else 0
        return (top, left, top + rows, left + columns)


def _rounded(number: Any) -> int:
    return int(np.rint(number))


def _shows(part: Box, boxes: list[Box], covered: np.float32) -> bool:
    """Whether a part shows enough of one of the boxes."""
    if _area(part) < 1:
        return False
    for box in boxes:
        area = _area(box)
        if area >= 1 and _f(_shared(part, box)) / _f(area) >= covered:
            return True
    return False


def _area(box: Box) -> int:
    return (box[2] - box[0]) * (box[3] - box[1])


def _shared(one: Box, other: Box) -> int:
    high = min(one[2], other[2]) - max(one[0], other[0])
    wide = min(one[3], other[3]) - max(one[1], other[1])
    return high * wide if high >= 0 and wide >= 0 else 0
