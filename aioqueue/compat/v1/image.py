"""``tf.image``: pictures decoded, cut, turned, resized, recoloured, and encoded."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops.images.adjusting import (
    adjust_brightness,
    adjust_contrast,
    adjust_gamma,
    adjust_hue,
    adjust_jpeg_quality,
    adjust_saturation,
    per_image_standardization,
    random_brightness,
    random_contrast,
    random_hue,
    random_jpeg_quality,
    random_saturation,
)
from aioqueue.compat.v1.ops.images.boxes import (
    crop_and_resize,
    draw_bounding_boxes,
    non_max_suppression,
)
from aioqueue.compat.v1.ops.images.converting import (
    convert_image_dtype,
)
from aioqueue.compat.v1.ops.images.cropping import (
    central_crop,
    crop_to_bounding_box,
    pad_to_bounding_box,
    resize_image_with_crop_or_pad,
)
from aioqueue.compat.v1.ops.images.distorting import (
    sample_distorted_bounding_box,
)
from aioqueue.compat.v1.ops.images.files import (
    decode_and_crop_jpeg,
    decode_bmp,
    decode_gif,
    decode_image,
    decode_jpeg,
    decode_png,
    encode_jpeg,
    encode_png,
    extract_jpeg_shape,
    is_jpeg,
)
from aioqueue.compat.v1.ops.images.resizing import (
    ResizeMethod,
    resize_area,
    resize_bicubic,
    resize_bilinear,
    resize_image_with_pad,
    resize_images,
    resize_nearest_neighbor,
)
from aioqueue.compat.v1.ops.images.spaces import (
    grayscale_to_rgb,
    hsv_to_rgb,
    rgb_to_grayscale,
    rgb_to_hsv,
    rgb_to_yiq,
    rgb_to_yuv,
    yiq_to_rgb,
    yuv_to_rgb,
)
from aioqueue.compat.v1.ops.images.turning import (
    flip_left_right,
    flip_up_down,
    random_flip_left_right,
    random_flip_up_down,
    rot90,
    transpose_image,
)
from aioqueue.compat.v1.ops.random import random_crop

__all__ = (
    "ResizeMethod",
    "adjust_brightness",
    "adjust_contrast",
    "adjust_gamma",
    "adjust_hue",
    "adjust_jpeg_quality",
    "adjust_saturation",
    "central_crop",
    "convert_image_dtype",
    "crop_and_resize",
    "crop_to_bounding_box",
    "decode_and_crop_jpeg",
    "decode_bmp",
    "decode_gif",
    "decode_image",
    "decode_jpeg",
    "decode_png",
    "draw_bounding_boxes",
    "encode_jpeg",
    "encode_png",
    "extract_jpeg_shape",
    "flip_left_right",
    "flip_up_down",
    "grayscale_to_rgb",
    "hsv_to_rgb",
    "is_jpeg",
    "non_max_suppression",
    "pad_to_bounding_box",
    "per_image_standardization",
    "per_image_whitening",
    "random_brightness",
    "random_contrast",
    "random_crop",
    "random_flip_left_right",
    "random_flip_up_down",
    "random_hue",
    "random_jpeg_quality",
    "random_saturation",
    "resize",
    "resize_area",
    "resize_bicubic",
    "resize_bilinear",
    "resize_image_with_crop_or_pad",
    "resize_image_with_pad",
    "resize_images",
    "resize_nearest_neighbor",
    "resize_with_crop_or_pad",
    "rgb_to_grayscale",
    "rgb_to_hsv",
    "rgb_to_yiq",
    "rgb_to_yuv",
    "rot90",
    "sample_distorted_bounding_box",
    "transpose",
    "transpose_image",
    "yiq_to_rgb",
    "yuv_to_rgb",
)

# What TensorFlow 1 called them before, and later.
per_image_whitening = per_image_standardization
resize = resize_images
resize_with_crop_or_pad = resize_image_with_crop_or_pad
transpose = transpose_image

__getattr__ = names_of(__name__)
