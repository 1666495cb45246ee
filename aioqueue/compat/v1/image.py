"""``tf.image``: pictures to arrays, by Pillow."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops.images import (
    decode_bmp,
    decode_gif,
    decode_image,
    decode_jpeg,
    decode_png,
    is_jpeg,
)

__all__ = ("decode_bmp", "decode_gif", "decode_image", "decode_jpeg", "decode_png", "is_jpeg")

__getattr__ = names_of(__name__)
