"""``tf.image``: pictures decoded, cut, turned, resized, recoloured, and encoded."""

# ruff: noqa: F403  # a module that has TensorFlow's names and no others is taken whole

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops.images import boxes as _boxes
from aioqueue.compat.v1.ops.images import codecs as _codecs
from aioqueue.compat.v1.ops.images import colours as _colours
from aioqueue.compat.v1.ops.images import geometry as _geometry
from aioqueue.compat.v1.ops.images.boxes import *
from aioqueue.compat.v1.ops.images.codecs import *
from aioqueue.compat.v1.ops.images.colours import *
from aioqueue.compat.v1.ops.images.colours import per_image_standardization as per_image_whitening
from aioqueue.compat.v1.ops.images.geometry import *
from aioqueue.compat.v1.ops.images.geometry import (
    resize_image_with_crop_or_pad as resize_with_crop_or_pad,
)
from aioqueue.compat.v1.ops.images.geometry import resize_images as resize
from aioqueue.compat.v1.ops.random import random_crop

__all__: tuple[str, ...] = (
    "per_image_whitening", "random_crop", "resize", "resize_with_crop_or_pad",
)  # fmt: skip
__all__ += _boxes.__all__
__all__ += _codecs.__all__
__all__ += _colours.__all__
__all__ += _geometry.__all__

__getattr__ = names_of(__name__)
