"""Cases of pictures: cut, turned, resized, recoloured, with boxes, and encoded and decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.compat.op_cases import case, unknown

METHODS = ("bilinear", "nearest_neighbor", "bicubic", "area")


def picture(name: str, op: str, *args: Any, **options: Any) -> None:
    """A case of an op of ``tf.image``; arguments that are functions are called with ``tf``."""

    def made(tf: Any) -> Any:
        return getattr(tf.image, op)(
            *(one(tf) if callable(one) else one for one in args), **options
        )

    case(f"image {name}", made)


def pixels(dtype: str = "uint8", *shape: int) -> Any:
    """A small picture, or a batch, that is neither smooth nor flat."""
    shape = shape or (4, 5, 3)
    count = int(np.prod(shape))
    numbers = (np.arange(count) * 37 % 101).reshape(shape)
    return (numbers / 101).astype(dtype) if dtype[0] == "f" else numbers.astype(dtype)


def fed(value: Any, *shape: Any) -> Callable[[Any], Any]:
    """The value with less static shape: that one, or none."""
    return lambda tf: unknown(tf, value, [*shape]) if shape else unknown(tf, value)


def as_jpeg(given: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda tf: tf.image.encode_jpeg(given, **options)


def as_png(given: Any) -> Callable[[Any], Any]:
    return lambda tf: tf.image.encode_png(given)


def cutting() -> None:
    crop_or_pad = "resize_image_with_crop_or_pad"
    for height, width in ((2, 3), (6, 2), (3, 7), (4, 5), (5, 6)):
        for rank in (3, 4):
            given = pixels("uint8", *((2, 3, 4, 1) if rank == 4 else (3, 4, 1)))
            picture(f"crop_or_pad {rank} {height} {width}", crop_or_pad, given, height, width)
    given = pixels("float32", 4, 5, 1)
    part = fed(given, None, None, 1)
    crops = {
        "inside": (1, 2, 2, 3), "all": (0, 0, 4, 5), "wide": (0, 3, 2, 3), "high": (2, 0, 3, 2),
        "above": (-1, 0, 2, 2), "left": (0, -1, 2, 2), "empty": (0, 0, 0, 2),
    }  # fmt: skip
    pads = {
        "around": (1, 2, 7, 8), "none": (0, 0, 4, 5), "narrow": (0, 1, 4, 5), "low": (1, 0, 4, 5),
        "above": (-1, 0, 8, 8),
    }  # fmt: skip
    for what, blocks in {"crop": crops, "pad": pads}.items():
        for name, block in blocks.items():
            picture(f"{what} {name}", f"{what}_to_bounding_box", given, *block)
            picture(f"{what} {name} unknown", f"{what}_to_bounding_box", part, *block)
    picture(
        "crop_or_pad tensors", crop_or_pad, given, lambda tf: tf.constant(3),
        lambda tf: unknown(tf, np.int32(7), []),
    )  # fmt: skip
    small = pixels("uint8", 7, 6, 1)
    for fraction in (0.1, 0.5, 0.875, 1.0, 1.5, 0.0):
        picture(f"central_crop {fraction}", "central_crop", small, fraction)
        picture(
            f"central_crop {fraction} unknown", "central_crop", fed(small, None, None, 1), fraction
        )
    picture("crop flat", "crop_to_bounding_box", given[..., 0], 0, 0, 1, 1)
    picture("crop void", "crop_to_bounding_box", given[:0], 0, 0, 1, 1)


def turning() -> None:
    for rank, given in ((3, pixels("uint8", 3, 4, 2)), (4, pixels("uint8", 2, 3, 4, 1))):
        for name in ("flip_left_right", "flip_up_down"):
            picture(f"{name} {rank}", name, given)
        for turns in (-1, 0, 1, 2, 7):
            picture(f"rot90 {rank} {turns}", "rot90", given, turns)
        for name in ("random_flip_left_right", "random_flip_up_down"):
            for seed in (1, 2, 3):
                picture(f"{name} {rank} {seed}", name, given, seed=seed)
    picture("rot90 square", "rot90", pixels("uint8", 3, 3, 1))
    picture("flip flat", "flip_left_right", [[1, 2]])
    picture("flip unknown", "flip_up_down", fed(pixels()))


def resizing() -> None:
    for number, method in enumerate(METHODS):
        wide = pixels("float32", 4, 6, 1)
        for size in ((2, 3), (6, 2), (7, 9), (1, 1), (4, 5)):
            for corners in (False, True):
                picture(
                    f"resize {method} {size} {corners}", "resize_images",
                    pixels("uint8", 4, 5, 1), size, method=number, align_corners=corners,
                )  # fmt: skip
        batch = fed(pixels("float32", 2, 3, 2, 3), None, None, None, 3)
        picture(f"resize {method} unknown", "resize_images", batch, [2, 4], number)
        picture(
            f"resize {method} proportions", "resize_images", wide, [9, 6], number,
            preserve_aspect_ratio=True,
        )  # fmt: skip
        op = f"resize_{method}"
        picture(f"resize {method} none", op, pixels("uint8", 1, 4, 5, 1), [0, 3])
        picture(f"resize {method} flat", op, pixels(), [2, 3])
        picture(f"resize {method} pad", "resize_image_with_pad", wide, 7, 8, method=number)
    for method in METHODS[:3]:
        picture(
            f"resize {method} half", f"resize_{method}", pixels("uint8", 1, 4, 5, 1), [7, 3],
            half_pixel_centers=True,
        )  # fmt: skip
    picture("resize rank", "resize_images", pixels()[0], [1, 2])
    picture("resize three", "resize_images", pixels(), [1, 2, 3])
    picture("resize text", "resize_images", pixels(), "no")
    picture("resize method", "resize_images", pixels(), [1, 2], 17)
    picture("resize shapeless", "resize_images", fed(pixels()), [1, 2])


def recolouring() -> None:
    for source in ("uint8", "int32", "uint16", "float32", "float64"):
        for wanted in ("uint8", "int16", "int32", "float32", "float64"):
            for saturate in (False, True):
                picture(
                    f"dtype {source} {wanted} {saturate}", "convert_image_dtype",
                    pixels(source, 2, 3, 1), lambda tf, w=wanted: getattr(tf, w), saturate=saturate,
                )  # fmt: skip
    picture("dtype string", "convert_image_dtype", ["a"], lambda tf: tf.float32)
    picture("dtype to string", "convert_image_dtype", [1], lambda tf: tf.string)
    numbers = {
        "brightness": (-0.3, 0.0, 0.7),
        "contrast": (0.0, 0.4, 2.5),
        "hue": (-0.9, -0.2, 0.0, 0.45),
        "saturation": (0.0, 0.5, 3.0),
    }
    for dtype in ("uint8", "float32"):
        given = pixels(dtype)
        for what, values in numbers.items():
            for number in values:
                picture(f"adjust_{what} {dtype} {number}", f"adjust_{what}", given, number)
        few = pixels(dtype, 2, 5, 3)  # a random op is run twice, and all of it is recorded
        limits = {
            "brightness": (0.4,), "hue": (0.3,), "contrast": (0.2, 1.8), "saturation": (0.2, 1.8),
        }  # fmt: skip
        for seed in (1, 7):
            for what, between in limits.items():
                picture(f"random_{what} {dtype} {seed}", f"random_{what}", few, *between, seed=seed)
        picture(f"standardize {dtype}", "per_image_standardization", given)
        picture(f"grey {dtype}", "rgb_to_grayscale", given)
        picture(
            f"from grey {dtype}", "grayscale_to_rgb", lambda tf, g=given: tf.constant(g[..., :1])
        )
    picture("standardize flat", "per_image_standardization", np.ones((2, 2, 1)))
    picture("from grey three", "grayscale_to_rgb", lambda tf: tf.constant(pixels()))
    picture("random_hue far", "random_hue", pixels(), 0.6)
    picture("random_hue below", "random_hue", pixels(), -0.1)
    picture("random_contrast order", "random_contrast", pixels(), 2, 1)
    picture("random_contrast below", "random_contrast", pixels(), -2, 1)
    picture("random_brightness below", "random_brightness", pixels(), -1)
    for name in ("rgb_to_hsv", "hsv_to_rgb"):
        picture(name, name, pixels("float32", 3, 4, 3))
    picture("hsv of greys", "rgb_to_hsv", np.full((1, 2, 3), 0.5, np.float32))


def measuring() -> None:
    batch = pixels("float32", 2, 3, 4, 1)
    corners = [[0, 0, 1, 1], [0.9, 0.8, -0.2, 0.1]]
    for method in ("bilinear", "nearest"):
        name = f"crop_and_resize {method}"
        picture(name, "crop_and_resize", batch, corners, [1, 0], [3, 2], method, 0.5)
    picture("crop_and_resize which", "crop_and_resize", batch, [[0.0, 0, 1, 1]], [2], [3, 2])
    boxes = [[[0.0, 0, 1, 1], [0.4, 0.3, 0.9, 2]], [[0.9, 0, 0.1, 1], [2, 2, 3, 3]]]
    canvas, sample = pixels("float32", 2, 4, 5, 1), "sample_distorted_bounding_box"
    picture("draw", "draw_bounding_boxes", canvas, boxes)
    picture("draw colours", "draw_bounding_boxes", canvas, boxes, colors=[[0.25], [0.5]])
    size, no_box = np.array([37, 61, 3], np.int64), np.zeros((1, 0, 4), np.float32)
    for seed in (1, 2, 3):
        box = [[[0.1, 0.2, 0.8, 0.9]]]
        picture(f"distorted {seed}", sample, [120, 80, 3], box, seed=seed, min_object_covered=0.4)
        picture(
            f"distorted whole {seed}", sample, size, no_box, seed=seed, seed2=5,
            aspect_ratio_range=(0.5, 2), area_range=(0.3, 0.9), max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
    picture("distorted none", sample, [37, 61, 3], no_box, seed=1)


def encoding() -> None:
    for channels in (1, 3):
        given, large = pixels("uint8", 4, 5, channels), pixels("uint8", 17, 22, channels)
        for quality in (95, 30):
            picture(f"jpeg bytes {channels} {quality}", "encode_jpeg", given, quality=quality)
        kinds: tuple[dict[str, Any], ...] = (
            *({"progressive": True}, {"optimize_size": True}, {"chroma_downsampling": False}),
            *({"density_unit": "cm", "x_density": 5, "y_density": 7}, {"xmp_metadata": "<x/>"}),
        )
        for options in kinds:
            picture(f"jpeg bytes {channels} {options}", "encode_jpeg", given, **options)
        for method in ("", "INTEGER_FAST", "INTEGER_ACCURATE"):
            for fancy in (True, False):
                picture(
                    f"jpeg pixels {channels} {method} {fancy}", "decode_jpeg", as_jpeg(given),
                    dct_method=method, fancy_upscaling=fancy,
                )  # fmt: skip
        for ratio in (2, 4, 8):

            def small(tf: Any, given: Any = large, ratio: int = ratio) -> Any:
                return tf.image.decode_jpeg(tf.image.encode_jpeg(given), ratio=ratio)[:4, :5]

            case(f"image jpeg ratio {channels} {ratio}", small)

        def sizes(tf: Any, given: Any = given) -> Any:
            return tf.image.extract_jpeg_shape(tf.image.encode_jpeg(given))

        case(f"image jpeg shape {channels}", sizes)
        plain = as_jpeg(given, chroma_downsampling=False)
        picture(f"jpeg cropped {channels}", "decode_and_crop_jpeg", plain, [1, 2, 2, 3])
        picture(f"jpeg as {channels}", "decode_jpeg", as_jpeg(given), channels=4 - channels)
    for channels in (1, 2, 3, 4):
        for wanted in (0, 1, 3, 4):
            contents = as_png(pixels("uint8", 3, 4, channels))
            picture(f"png pixels {channels} {wanted}", "decode_png", contents, channels=wanted)
    deep = as_png(pixels("uint16", 3, 4, 1) * 611)
    picture("png deep", "decode_png", deep, dtype=np.uint16)
    picture("png float", "encode_png", pixels("float32"))
    case("image is_jpeg", lambda tf: tf.image.is_jpeg(tf.image.encode_jpeg(pixels())))
    picture("no jpeg", "is_jpeg", as_png(pixels()))
    for decoder in ("decode_image", "decode_jpeg", "decode_png"):
        picture(f"decoded {decoder}", decoder, as_jpeg(pixels()))


cutting()
turning()
resizing()
recolouring()
measuring()
encoding()
