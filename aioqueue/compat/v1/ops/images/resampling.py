"""Batches of pictures in other sizes, as functions of arrays: the four methods of TensorFlow 1.

All compute in float32 and in TensorFlow's order, so that the results are its own bit for bit but
where it contracts a product and a sum into one operation.

R. G. Keys, "Cubic convolution interpolation for digital image processing", IEEE Transactions on
Acoustics, Speech, and Signal Processing, 1981, has the cubic weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ("Grid", "by_area", "by_bicubic", "by_bilinear", "by_nearest", "lerp")

Floats = NDArray[np.float32]
Places = NDArray[np.intp]

_TABLE: Final = 1024
"""Steps between two pixels for which cubic weights are in the table."""


@dataclass(frozen=True)
class Grid:
    """Where the pixels of an axis of the result lie on the axis of the picture.

    Attributes:
        size: how many pixels the picture has along the axis.
        wanted: how many the result has.
        align_corners: whether the outermost pixels' centres lie on one another.
        half_pixel_centers: whether a pixel's centre is at its middle, not at its beginning.
    """

    size: int
    wanted: int
    align_corners: bool = False
    half_pixel_centers: bool = False

    @property
    def scale(self) -> np.float32:
        """Pixels of the picture for each of the result."""
        if self.align_corners and self.wanted > 1:
            return np.float32(self.size - 1) / np.float32(self.wanted - 1)
        return np.float32(self.size) / np.float32(self.wanted)

    def edges(self) -> Floats:
        """Where the pixels of the result begin, and the last one ends."""
        return np.arange(self.wanted + 1, dtype=np.float32) * self.scale

    def places(self) -> Floats:
        """The places on the picture to interpolate at."""
        steps = np.arange(self.wanted, dtype=np.float32)
        if self.half_pixel_centers:
            return (steps + np.float32(0.5)) * self.scale - np.float32(0.5)
        return steps * self.scale

    def nearest(self) -> Places:
        """The nearest pixels of the picture."""
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


def by_nearest(pixels: NDArray[Any], rows: Grid, columns: Grid) -> NDArray[Any]:
    """The nearest pixels; the dtype stays."""
    return pixels.take(rows.nearest(), 1).take(columns.nearest(), 2)


def by_bilinear(pixels: NDArray[Any], rows: Grid, columns: Grid) -> Floats:
    """Linear between four pixels, float32."""
    if (rows.size, columns.size) == (rows.wanted, columns.wanted):
        return pixels.astype(np.float32)
    above, below, down = rows.between()
    left, right, across = columns.between()
    used, where = np.unique(np.concatenate((above, below)), return_inverse=True)
    lines = pixels.take(used, 1).astype(np.float32)
    lines = lerp(lines.take(left, 2), lines.take(right, 2), across[:, None])
    top, bottom = lines.take(where[: len(above)], 1), lines.take(where[len(above) :], 1)
    return lerp(top, bottom, down[:, None, None])


def by_bicubic(pixels: NDArray[Any], rows: Grid, columns: Grid) -> Floats:
    """Cubic between sixteen pixels, float32; may lie outside the range of the picture's values."""
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


def by_area(pixels: NDArray[Any], rows: Grid, columns: Grid) -> Floats:
    """The mean of what each pixel of the result covers, float32."""
    pixels = pixels.astype(np.float32)
    lines = _weighted(pixels, _taps(columns), 2)
    total = _weighted(lines, _taps(rows), 1)
    # TensorFlow takes the reciprocal in double precision.
    total *= np.float32(np.float64(1) / np.float64(rows.scale * columns.scale))
    return total


def _taps(grid: Grid) -> tuple[list[Places], list[Floats]]:
    areas = grid.areas()
    return [places for places, _ in areas], [weights for _, weights in areas]
