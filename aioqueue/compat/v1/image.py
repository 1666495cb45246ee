"""``tf.image``: pictures decoded, cut, turned, resized, recoloured, and encoded."""

# ruff: noqa: F403  # a module that has TensorFlow's names and no others is taken whole

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops.images import adjusting as _adjusting
from aioqueue.compat.v1.ops.images import boxes as _boxes
from aioqueue.compat.v1.ops.images import files as _files
from aioqueue.compat.v1.ops.images import resizing as _resizing
from aioqueue.compat.v1.ops.images import spaces as _spaces
from aioqueue.compat.v1.ops.images import turning as _turning
from aioqueue.compat.v1.ops.images.adjusting import *
from aioqueue.compat.v1.ops.images.boxes import *
from aioqueue.compat.v1.ops.images.converting import convert_image_dtype
from aioqueue.compat.v1.ops.images.cropping import (
    central_crop,
    crop_to_bounding_box,
    pad_to_bounding_box,
    resize_image_with_crop_or_pad,
)
from aioqueue.compat.v1.ops.images.distorting import sample_distorted_bounding_box
from aioqueue.compat.v1.ops.images.files import *
from aioqueue.compat.v1.ops.images.resizing import *
from aioqueue.compat.v1.ops.images.spaces import *
from aioqueue.compat.v1.ops.images.turning import *
from aioqueue.compat.v1.ops.random import random_crop

__all__: tuple[str, ...] = (
    "central_crop",
    "convert_image_dtype",
    "crop_to_bounding_box",
    "pad_to_bounding_box",
    "per_image_whitening",
    "random_crop",
    "resize",
    "resize_image_with_crop_or_pad",
    "resize_with_crop_or_pad",
    "sample_distorted_bounding_box",
    "transpose",
)
__all__ += _adjusting.__all__
__all__ += _boxes.__all__
__all__ += _files.__all__
__all__ += _resizing.__all__
__all__ += _spaces.__all__
__all__ += _turning.__all__

# What TensorFlow 1 called them before, and later.
per_image_whitening = _adjusting.per_image_standardization
resize = _resizing.resize_images
resize_with_crop_or_pad = resize_image_with_crop_or_pad
transpose = _turning.transpose_image

__getattr__ = names_of(__name__)
