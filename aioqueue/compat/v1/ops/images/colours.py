"""Colours as functions of arrays: other spaces, hue and saturation.

A. R. Smith, "Color gamut transform pairs", SIGGRAPH 1978, has hue, saturation and value. All of it
is computed in the dtype of the picture and in TensorFlow's order.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = (
    "GREY_WEIGHTS",
    "RGB_TO_YIQ",
    "RGB_TO_YUV",
    "YIQ_TO_RGB",
    "YUV_TO_RGB",
    "grey",
    "hsv_from_rgb",
    "rgb_from_hsv",
    "with_contrast",
    "with_hue_turned",
    "with_saturation",
)

Pixels = NDArray[Any]

GREY_WEIGHTS: Final = (0.2989, 0.587, 0.114)
"""How bright red, green and blue are."""

RGB_TO_YIQ: Final = (
    (0.299, 0.59590059, 0.2115),
    (0.587, -0.27455667, -0.52273617),
    (0.114, -0.32134392, 0.31119955),
)
YIQ_TO_RGB: Final = (
    (1, 1, 1),
    (0.95598634, -0.27201283, -1.10674021),
    (0.6208248, -0.64720424, 1.70423049),
)
RGB_TO_YUV: Final = (
    (0.299, -0.14714119, 0.61497538),
    (0.587, -0.28886916, -0.51496512),
    (0.114, 0.43601035, -0.10001026),
)
YUV_TO_RGB: Final = (
    (1, 1, 1),
    (0, -0.394642334, 2.03206185),
    (1.13988303, -0.58062185, 0),
)
"""Matrices to multiply the channels by, one row for each that comes in."""


def grey(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """How bright pixels are, one channel."""
    red, green, blue = (np.float32(one) for one in GREY_WEIGHTS)
    total: NDArray[np.float32] = pixels[..., 0] * red + pixels[..., 1] * green
    total = total + pixels[..., 2] * blue
    return total[..., None]


def hsv_from_rgb(pixels: Pixels) -> Pixels:
    """Hue, saturation and value, each from 0 to 1."""
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
    """Red, green and blue of hue, saturation and value."""
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


def with_contrast(pixels: NDArray[np.float32], factor: np.float32) -> NDArray[np.float32]:
    """Pixels further from the mean of their channel, or nearer to it."""
    height, width, channels = pixels.shape[-3:]
    flat = pixels.reshape(-1, height * width, channels)
    mean = _folded_sum(flat) * (np.float32(1) / np.float32(height * width))
    made = flat - mean[:, None]
    made *= factor
    made += mean[:, None]
    return made.reshape(pixels.shape)


def _folded_sum(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sums over the second axis, of its halves again and again: so TensorFlow rounds."""
    total = rows
    while total.shape[1] > 1:
        right = total.shape[1] // 2
        left = total.shape[1] - right
        folded = total[:, left:] + total[:, :right]
        total = np.concatenate((folded, total[:, right:left]), axis=1)
    return total[:, 0]


_ORDER: Final = np.array(
    [[2, 1, 0], [1, 2, 0], [0, 2, 1], [0, 1, 2], [1, 0, 2], [2, 0, 1]], np.intp
)
"""For each sixth of the circle of hues, whether red, green and blue are least (0), between or
largest (2)."""


def with_hue_turned(pixels: NDArray[np.float32], delta: np.float32) -> NDArray[np.float32]:
    """Pixels with another hue: `delta` is a part of the whole circle."""
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
    made: NDArray[np.float32] = np.take_along_axis(levels, _ORDER[np.minimum(sixth, 5)], -1)
    return made


def _within_circle(hue: NDArray[np.float32]) -> NDArray[np.float32]:
    """Hues from 0 to 6, by adding or taking away whole circles one at a time."""
    whole = np.float32(6)
    while (low := hue < 0).any():
        hue = np.where(low, hue + whole, hue)
    while (high := hue >= whole).any():
        hue = np.where(high, hue - whole, hue)
    return hue


_SHARES: Final = np.array(
    [[2, 1, 0], [1, 2, 0], [0, 2, 1], [0, 1, 2], [1, 0, 2], [2, 0, 1], [0, 0, 0]], np.intp
)


def with_saturation(pixels: NDArray[np.float32], factor: np.float32) -> NDArray[np.float32]:
    """Pixels with a saturation that many times as large, at most 1."""
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


def _rgb_of(hue: Pixels, saturation: Pixels, value: Pixels) -> NDArray[np.float32]:
    f = np.float32
    chroma = saturation * value
    rest = value - chroma
    turned = hue * f(6)
    sixth = np.clip(np.trunc(turned), 0, 6).astype(np.intp)
    odd = np.fmod(turned, f(2))
    between = chroma * (f(1) - np.abs(odd - f(1)))
    levels = np.stack((np.zeros_like(chroma), between, chroma), axis=-1)
    made: NDArray[np.float32] = np.take_along_axis(levels, _SHARES[sixth], -1) + rest[..., None]
    return made
