"""Cases of pictures: cut, turned, resized, recoloured, with boxes, and encoded and decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.compat.op_cases import case, unknown

METHODS = ("bilinear", "nearest_neighbor", "bicubic", "area")


def picture(name: str, function: Callable[..., Any]) -> None:
    case(f"image {name}", function)


def pixels(dtype: str = "uint8", *shape: int) -> Any:
    """A small picture, or a batch, that is neither smooth nor flat."""
    shape = shape or (4, 5, 3)
    count = int(np.prod(shape))
    numbers = (np.arange(count) * 37 % 101).reshape(shape)
    return (numbers / 101).astype(dtype) if dtype[0] == "f" else numbers.astype(dtype)


def cutting() -> None:
    for height, width in ((2, 3), (6, 2), (3, 7), (4, 5), (5, 6)):
        for rank in (3, 4):
            given = pixels("uint8", *((2, 3, 4, 1) if rank == 4 else (3, 4, 1)))
            picture(
                f"crop_or_pad {rank} {height} {width}",
                lambda tf, g=given, h=height, w=width: tf.image.resize_image_with_crop_or_pad(
                    g, h, w
                ),
            )
    given = pixels("float32", 4, 5, 1)
    for name, block in {
        "inside": (1, 2, 2, 3),
        "all": (0, 0, 4, 5),
        "wide": (0, 3, 2, 3),
        "high": (2, 0, 3, 2),
        "above": (-1, 0, 2, 2),
        "left": (0, -1, 2, 2),
        "empty": (0, 0, 0, 2),
    }.items():
        picture(f"crop {name}", lambda tf, b=block: tf.image.crop_to_bounding_box(given, *b))
        picture(
            f"crop {name} unknown",
            lambda tf, b=block: tf.image.crop_to_bounding_box(
                unknown(tf, given, [None, None, 1]), *b
            ),
        )
    for name, block in {
        "around": (1, 2, 7, 8),
        "none": (0, 0, 4, 5),
        "narrow": (0, 1, 4, 5),
        "low": (1, 0, 4, 5),
        "above": (-1, 0, 8, 8),
    }.items():
        picture(f"pad {name}", lambda tf, b=block: tf.image.pad_to_bounding_box(given, *b))
        picture(
            f"pad {name} unknown",
            lambda tf, b=block: tf.image.pad_to_bounding_box(
                unknown(tf, given, [None, None, 1]), *b
            ),
        )
    picture(
        "crop_or_pad tensors",
        lambda tf: tf.image.resize_image_with_crop_or_pad(
            given, tf.constant(3), unknown(tf, np.int32(7), [])
        ),
    )
    for fraction in (0.1, 0.5, 0.875, 1.0, 1.5, 0.0):
        picture(
            f"central_crop {fraction}",
            lambda tf, f=fraction: tf.image.central_crop(pixels("uint8", 7, 6, 1), f),
        )
        picture(
            f"central_crop {fraction} unknown",
            lambda tf, f=fraction: tf.image.central_crop(
                unknown(tf, pixels("uint8", 7, 6, 1), [None, None, 1]), f
            ),
        )
    picture("crop flat", lambda tf: tf.image.crop_to_bounding_box(given[..., 0], 0, 0, 1, 1))
    picture("crop void", lambda tf: tf.image.crop_to_bounding_box(given[:0], 0, 0, 1, 1))


def turning() -> None:
    for rank, given in ((3, pixels("uint8", 3, 4, 2)), (4, pixels("uint8", 2, 3, 4, 1))):
        for name in ("flip_left_right", "flip_up_down", "transpose_image"):
            picture(f"{name} {rank}", lambda tf, n=name, g=given: getattr(tf.image, n)(g))
        for turns in (-1, 0, 1, 2, 7):
            picture(f"rot90 {rank} {turns}", lambda tf, k=turns, g=given: tf.image.rot90(g, k))
        for name in ("random_flip_left_right", "random_flip_up_down"):
            for seed in (1, 2, 3):
                picture(
                    f"{name} {rank} {seed}",
                    lambda tf, n=name, s=seed, g=given: getattr(tf.image, n)(g, seed=s),
                )
    picture("rot90 square", lambda tf: tf.image.rot90(pixels("uint8", 3, 3, 1)))
    picture("flip flat", lambda tf: tf.image.flip_left_right([[1, 2]]))
    picture("flip unknown", lambda tf: tf.image.flip_up_down(unknown(tf, pixels())))


def resizing() -> None:
    for number, method in enumerate(METHODS):
        for size in ((2, 3), (6, 2), (7, 9), (1, 1), (4, 5)):
            for corners in (False, True):
                name = f"resize {method} {size} {corners}"
                picture(
                    name,
                    lambda tf, m=number, s=size, c=corners: tf.image.resize_images(
                        pixels("uint8", 4, 5, 1), s, method=m, align_corners=c
                    ),
                )
        picture(
            f"resize {method} unknown",
            lambda tf, m=number: tf.image.resize_images(
                unknown(tf, pixels("float32", 2, 3, 2, 3), [None, None, None, 3]), [2, 4], m
            ),
        )
        picture(
            f"resize {method} proportions",
            lambda tf, m=number: tf.image.resize_images(
                pixels("float32", 4, 6, 1), [9, 6], m, preserve_aspect_ratio=True
            ),
        )
        picture(
            f"resize {method} none",
            lambda tf, m=number: getattr(tf.image, f"resize_{METHODS[m]}")(
                pixels("uint8", 1, 4, 5, 1), [0, 3]
            ),
        )
        picture(
            f"resize {method} flat",
            lambda tf, m=number: getattr(tf.image, f"resize_{METHODS[m]}")(pixels(), [2, 3]),
        )
        picture(
            f"resize {method} pad",
            lambda tf, m=number: tf.image.resize_image_with_pad(
                pixels("float32", 4, 6, 1), 7, 8, method=m
            ),
        )
    for method in METHODS[:3]:
        picture(
            f"resize {method} half",
            lambda tf, m=method: getattr(tf.image, f"resize_{m}")(
                pixels("uint8", 1, 4, 5, 1), [7, 3], half_pixel_centers=True
            ),
        )
    picture("resize rank", lambda tf: tf.image.resize_images(pixels()[0], [1, 2]))
    picture("resize three", lambda tf: tf.image.resize_images(pixels(), [1, 2, 3]))
    picture("resize text", lambda tf: tf.image.resize_images(pixels(), "no"))
    picture("resize method", lambda tf: tf.image.resize_images(pixels(), [1, 2], 17))
    picture("resize shapeless", lambda tf: tf.image.resize_images(unknown(tf, pixels()), [1, 2]))


def recolouring() -> None:
    for source in ("uint8", "int32", "uint16", "float32", "float64"):
        for wanted in ("uint8", "int16", "int32", "float32", "float64"):
            for saturate in (False, True):
                picture(
                    f"dtype {source} {wanted} {saturate}",
                    lambda tf, a=source, b=wanted, s=saturate: tf.image.convert_image_dtype(
                        pixels(a, 2, 3, 1), getattr(tf, b), saturate=s
                    ),
                )
    picture("dtype string", lambda tf: tf.image.convert_image_dtype(["a"], tf.float32))
    picture("dtype to string", lambda tf: tf.image.convert_image_dtype([1], tf.string))
    for dtype in ("uint8", "float32"):
        given = pixels(dtype)
        numbers = {
            "brightness": (-0.3, 0.0, 0.7),
            "contrast": (0.0, 0.4, 2.5),
            "hue": (-0.9, -0.2, 0.0, 0.45),
            "saturation": (0.0, 0.5, 3.0),
        }
        for what, values in numbers.items():
            for number in values:
                picture(
                    f"adjust_{what} {dtype} {number}",
                    lambda tf, w=what, n=number, g=given: getattr(tf.image, f"adjust_{w}")(g, n),
                )
        few = pixels(dtype, 2, 5, 3)  # a random op is run twice, and all of it is recorded
        for seed in (1, 7):
            picture(
                f"random_brightness {dtype} {seed}",
                lambda tf, s=seed, g=few: tf.image.random_brightness(g, 0.4, seed=s),
            )
            picture(
                f"random_hue {dtype} {seed}",
                lambda tf, s=seed, g=few: tf.image.random_hue(g, 0.3, seed=s),
            )
            for what in ("contrast", "saturation"):
                picture(
                    f"random_{what} {dtype} {seed}",
                    lambda tf, w=what, s=seed, g=few: getattr(tf.image, f"random_{w}")(
                        g, 0.2, 1.8, seed=s
                    ),
                )
        picture(f"standardize {dtype}", lambda tf, g=given: tf.image.per_image_standardization(g))
        picture(f"grey {dtype}", lambda tf, g=given: tf.image.rgb_to_grayscale(g))
        picture(
            f"from grey {dtype}",
            lambda tf, g=given: tf.image.grayscale_to_rgb(tf.constant(g[..., :1])),
        )
    picture("standardize flat", lambda tf: tf.image.per_image_standardization(np.ones((2, 2, 1))))
    picture("from grey three", lambda tf: tf.image.grayscale_to_rgb(tf.constant(pixels())))
    picture("random_hue far", lambda tf: tf.image.random_hue(pixels(), 0.6))
    picture("random_hue below", lambda tf: tf.image.random_hue(pixels(), -0.1))
    picture("random_contrast order", lambda tf: tf.image.random_contrast(pixels(), 2, 1))
    picture("random_contrast below", lambda tf: tf.image.random_contrast(pixels(), -2, 1))
    picture("random_brightness below", lambda tf: tf.image.random_brightness(pixels(), -1))
    for name in ("rgb_to_hsv", "hsv_to_rgb"):
        picture(f"{name}", lambda tf, n=name: getattr(tf.image, n)(pixels("float32", 3, 4, 3)))
    picture("hsv of greys", lambda tf: tf.image.rgb_to_hsv(np.full((1, 2, 3), 0.5, np.float32)))


def measuring() -> None:
    batch = pixels("float32", 2, 3, 4, 1)
    for method in ("bilinear", "nearest"):
        picture(
            f"crop_and_resize {method}",
            lambda tf, m=method: tf.image.crop_and_resize(
                batch, [[0, 0, 1, 1], [0.9, 0.8, -0.2, 0.1]], [1, 0], [3, 2], m, 0.5
            ),
        )
    picture(
        "crop_and_resize which",
        lambda tf: tf.image.crop_and_resize(batch, [[0.0, 0, 1, 1]], [2], [3, 2]),
    )
    boxes = [[[0.0, 0, 1, 1], [0.4, 0.3, 0.9, 2]], [[0.9, 0, 0.1, 1], [2, 2, 3, 3]]]
    picture("draw", lambda tf: tf.image.draw_bounding_boxes(pixels("float32", 2, 4, 5, 1), boxes))
    picture(
        "draw colours",
        lambda tf: tf.image.draw_bounding_boxes(
            pixels("float32", 2, 4, 5, 1), boxes, colors=[[0.25], [0.5]]
        ),
    )
    for seed in (1, 2, 3):
        picture(
            f"distorted {seed}",
            lambda tf, s=seed: tf.image.sample_distorted_bounding_box(
                [120, 80, 3], [[[0.1, 0.2, 0.8, 0.9]]], seed=s, min_object_covered=0.4
            ),
        )
        picture(
            f"distorted whole {seed}",
            lambda tf, s=seed: tf.image.sample_distorted_bounding_box(
                np.array([37, 61, 3], np.int64),
                np.zeros((1, 0, 4), np.float32),
                seed=s,
                seed2=5,
                aspect_ratio_range=(0.5, 2),
                area_range=(0.3, 0.9),
                max_attempts=10,
                use_image_if_no_bounding_boxes=True,
            ),
        )
    picture(
        "distorted none",
        lambda tf: tf.image.sample_distorted_bounding_box(
            [37, 61, 3], np.zeros((1, 0, 4), np.float32), seed=1
        ),
    )


def encoding() -> None:
    for channels in (1, 3):
        given = pixels("uint8", 4, 5, channels)
        for quality in (95, 30):
            picture(
                f"jpeg bytes {channels} {quality}",
                lambda tf, g=given, q=quality: tf.image.encode_jpeg(g, quality=q),
            )
        kinds: tuple[dict[str, Any], ...] = (
            {"progressive": True},
            {"optimize_size": True},
            {"chroma_downsampling": False},
            {"density_unit": "cm", "x_density": 5, "y_density": 7},
            {"xmp_metadata": "<x/>"},
        )
        for options in kinds:
            picture(
                f"jpeg bytes {channels} {options}",
                lambda tf, g=given, o=options: tf.image.encode_jpeg(g, **o),
            )
        for method in ("", "INTEGER_FAST", "INTEGER_ACCURATE"):
            for fancy in (True, False):
                picture(
                    f"jpeg pixels {channels} {method} {fancy}",
                    lambda tf, g=given, m=method, f=fancy: tf.image.decode_jpeg(
                        tf.image.encode_jpeg(g), dct_method=m, fancy_upscaling=f
                    ),
                )
        large = pixels("uint8", 17, 22, channels)
        for ratio in (2, 4, 8):
            picture(
                f"jpeg ratio {channels} {ratio}",
                lambda tf, g=large, r=ratio: tf.image.decode_jpeg(tf.image.encode_jpeg(g), ratio=r)[
                    :4, :5
                ],
            )
        picture(
            f"jpeg shape {channels}",
            lambda tf, g=given: tf.image.extract_jpeg_shape(tf.image.encode_jpeg(g)),
        )
        picture(
            f"jpeg cropped {channels}",
            lambda tf, g=given: tf.image.decode_and_crop_jpeg(
                tf.image.encode_jpeg(g, chroma_downsampling=False), [1, 2, 2, 3]
            ),
        )
        picture(
            f"jpeg as {channels}",
            lambda tf, g=given, c=channels: tf.image.decode_jpeg(
                tf.image.encode_jpeg(g), channels=4 - c
            ),
        )
    for channels in (1, 2, 3, 4):
        for wanted in (0, 1, 3, 4):
            picture(
                f"png pixels {channels} {wanted}",
                lambda tf, c=channels, w=wanted: tf.image.decode_png(
                    tf.image.encode_png(pixels("uint8", 3, 4, c)), channels=w
                ),
            )
    picture(
        "png deep",
        lambda tf: tf.image.decode_png(
            tf.image.encode_png(pixels("uint16", 3, 4, 1) * 611), dtype=tf.uint16
        ),
    )
    picture("png float", lambda tf: tf.image.encode_png(pixels("float32")))
    picture("is_jpeg", lambda tf: tf.image.is_jpeg(tf.image.encode_jpeg(pixels())))
    picture("no jpeg", lambda tf: tf.image.is_jpeg(tf.image.encode_png(pixels())))
    for decoder in ("decode_image", "decode_jpeg", "decode_png"):
        picture(
            f"decoded {decoder}",
            lambda tf, d=decoder: getattr(tf.image, d)(tf.image.encode_jpeg(pixels())),
        )


cutting()
turning()
resizing()
recolouring()
measuring()
encoding()
