"""``tf.image``: pictures decoded, cut, turned, resized, recoloured, and encoded."""

from __future__ import annotations

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.ops.images.boxes import (
    crop_and_resize,
    draw_bounding_boxes,
    sample_distorted_bounding_box,
)
from aioqueue.compat.v1.ops.images.codecs import (
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
from aioqueue.compat.v1.ops.images.colours import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    convert_image_dtype,
    grayscale_to_rgb,
    hsv_to_rgb,
    per_image_standardization,
    random_brightness,
    random_contrast,
    random_hue,
    random_saturation,
    rgb_to_grayscale,
    rgb_to_hsv,
)
from aioqueue.compat.v1.ops.images.geometry import (
    ResizeMethod,
    central_crop,
    crop_to_bounding_box,
    flip_left_right,
    flip_up_down,
    pad_to_bounding_box,
    random_flip_left_right,
    random_flip_up_down,
    resize_area,
    resize_bicubic,
    resize_bilinear,
    resize_image_with_crop_or_pad,
    resize_image_with_pad,
    resize_images,
    resize_nearest_neighbor,
    rot90,
)
from aioqueue.compat.v1.ops.random import random_crop

__all__ = (
    "ResizeMethod",
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
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
    "pad_to_bounding_box",
    "per_image_standardization",
    "per_image_whitening",
    "random_brightness",
    "random_contrast",
    "random_crop",
    "random_flip_left_right",
    "random_flip_up_down",
    "random_hue",
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
    "rot90",
    "sample_distorted_bounding_box",
)

# What TensorFlow 1 called them before, and later.
per_image_whitening = per_image_standardization
resize = resize_images
resize_with_crop_or_pad = resize_image_with_crop_or_pad

__getattr__ = names_of(__name__)
