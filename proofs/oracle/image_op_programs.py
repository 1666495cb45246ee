"""Programs of single ops on pictures, each with arguments of its own."""

from __future__ import annotations

import random

from proofs.oracle.program import Maker
from proofs.oracle.spelling import Spell, array, tensor, written

__all__ = ("IMAGE_OPS",)

METHODS = ("bilinear", "nearest_neighbor", "bicubic")
COLOURS = ("rgb_to_hsv", "hsv_to_rgb")


def _pixels(draw: random.Random, dtype: str, rank: int = 3, channels: int = 3) -> str:
    """A picture, or a batch, that is neither smooth nor flat; its static shape may be unknown."""
    shape = [draw.randint(3, 9), draw.randint(3, 9), channels]
    shape = [draw.randint(1, 3), *shape] if rank == 4 else shape
    factor = draw.choice((7, 37, 113))
    count = 1
    for size in shape:
        count *= size
    made = f"(np.arange({count}) * {factor} % 251).reshape({shape})"
    made += ".astype('uint8')" if dtype == "uint8" else f".astype('{dtype}') / 256"
    known = draw.choice((shape, [None] * (len(shape) - 1) + [channels]))
    return f"tf.placeholder_with_default({made}, {known})"


def _dtype(draw: random.Random) -> str:
    return draw.choice(("uint8", "float32"))


def resized(draw: random.Random) -> str:
    """Another size."""
    rank = draw.choice((3, 4))
    height, width = draw.randint(2, 12), draw.randint(2, 12)
    picture = _pixels(draw, _dtype(draw), rank)
    corners = draw.random() < 0.3
    if draw.random() < 0.3:
        batch = _pixels(draw, _dtype(draw), 4)
        if draw.random() < 0.2:
            return f"tf.image.resize_area({batch}, [{height}, {width}])"
        half = not corners and draw.random() < 0.5
        return (
            f"tf.image.resize_{draw.choice(METHODS)}({batch}, [{height}, {width}],"
            f" align_corners={corners}, half_pixel_centers={half})"
        )
    if draw.random() < 0.3:
        return (
            f"tf.image.resize_image_with_pad({picture}, {height}, {width},"
            f" method={draw.choice((0, 1, 2))})"
        )
    if draw.random() < 0.3:
        return f"tf.image.resize_with_crop_or_pad({picture}, {height}, {width})"
    return (
        f"tf.image.resize({picture}, [{height}, {width}],"
        f" tf.image.ResizeMethod.{draw.choice(('BILINEAR', 'NEAREST_NEIGHBOR', 'BICUBIC'))},"
        f" align_corners={corners})"
    )


def coloured(draw: random.Random) -> str:
    """Another space of colours."""
    shape = draw.choice(((3,), (2, 3), (2, 4, 3), (2, 2, 2, 3)))
    # The rank must be known for some of them, which fail by a TypeError in TensorFlow if it is not.
    picture = f"tf.constant({array(draw, draw.choice(('float32', 'float64')), shape, 0, 1)})"
    adjusted = _pixels(draw, _dtype(draw))
    return draw.choice(
        (
            f"tf.image.{draw.choice(COLOURS)}({picture})",
            f"tf.image.{draw.choice(COLOURS)}({picture})",
            f"tf.image.adjust_hue({adjusted}, {round(draw.uniform(-1, 1), 2)})",
            f"tf.image.adjust_saturation({adjusted}, {round(draw.uniform(0, 3), 2)})",
            f"tf.image.adjust_contrast({adjusted}, {round(draw.uniform(0, 3), 2)})",
            f"tf.image.per_image_standardization({adjusted})",
            f"tf.image.transpose({_pixels(draw, _dtype(draw), 4)})",
        )
    )


def boxed(draw: random.Random) -> str:
    """Boxes drawn, cut out, chosen."""
    batch = draw.randint(1, 2)
    pixels = tensor(draw, "float32", (batch, draw.randint(3, 9), draw.randint(3, 9), 3), 0, 1)
    count = draw.randint(1, 4)
    corners = [
        [round(draw.uniform(*limits), 2) for limits in ((-0.2, 0.5),) * 2 + ((0.5, 1.2),) * 2]
        for _ in range(count)
    ]
    which = [draw.randrange(batch) for _ in range(count)]
    method = draw.choice(("bilinear", "nearest"))
    return draw.choice(
        (
            f"tf.image.crop_and_resize({pixels}, {corners}, {which},"
            f" [{draw.randint(1, 6)}, {draw.randint(1, 6)}], {method!r}, 0.5)",
            f"tf.image.draw_bounding_boxes({pixels}, {[corners] * batch})",
            f"tf.image.sample_distorted_bounding_box([{draw.randint(20, 90)}, 60, 3],"
            f" [[{[abs(round(one / 1.2, 2)) for one in corners[0]]}]], seed={draw.randint(1, 99)},"
            f" min_object_covered=0.3, max_attempts=20)",
        )
    )


def encoded(draw: random.Random) -> str:
    """Pictures to bytes, and back."""
    channels = draw.choice((1, 3))
    picture = _pixels(draw, "uint8", channels=channels)
    quality = draw.randint(5, 100)
    jpeg = f"tf.image.encode_jpeg({picture}, quality={quality})"
    png = f"tf.image.encode_png({picture})"
    wanted = draw.choice((0, 1, 3))
    exact = f"dct_method={draw.choice(('INTEGER_ACCURATE', 'INTEGER_FAST', ''))!r}"
    # Of colours at half the size, what is cut is of no use: its edges are made up.
    plain = f"tf.image.encode_jpeg({picture}, chroma_downsampling=False)"
    # Of nothing at all TensorFlow 2 says only that it is empty.
    damaged = draw.choice(("b'no picture'", "tf.constant([b'x'])"))
    return draw.choice(
        (
            f"tf.image.decode_jpeg({jpeg}, {wanted}, {exact})",
            f"tf.image.decode_image({draw.choice((jpeg, png))}, {wanted})",
            f"tf.image.decode_image({png}, dtype=tf.float32)",
            f"tf.image.decode_png({png}, {draw.choice((0, 1, 3, 4))})",
            f"tf.image.decode_png(tf.image.encode_png(tf.cast({picture}, tf.uint16) * 200),"
            " dtype=tf.uint16)",
            f"tf.image.extract_jpeg_shape({jpeg}{draw.choice(('', ', tf.int64'))})",
            f"tf.image.is_jpeg({draw.choice((jpeg, png, repr(b'abc')))})",
            f"tf.image.decode_and_crop_jpeg({plain}, [0, 1, {draw.randint(1, 3)}, 2])",
            f"tf.image.decode_bmp({_bitmap(draw)})",
            f"tf.image.decode_gif({_animation(draw)})",
            f"tf.image.decode_image({_animation(draw)})",
            f"tf.image.decode_{draw.choice(('png', 'jpeg', 'image', 'bmp'))}({damaged})",
        )
    )


def _bitmap(draw: random.Random) -> str:
    """A bitmap of two rows of two pixels, whose rows fill up four bytes."""
    pixels = bytes(draw.randrange(256) for _ in range(6)) + b"\0\0"
    pixels += bytes(draw.randrange(256) for _ in range(6)) + b"\0\0"
    head = (54).to_bytes(4, "little") + (40).to_bytes(4, "little")
    size = (2).to_bytes(4, "little") * 2 + b"\1\0\x18\0" + bytes(24)
    return repr(b"BM" + (70).to_bytes(4, "little") + bytes(4) + head + size + pixels)


def _animation(draw: random.Random) -> str:
    """A GIF of one frame of two by two pixels in four colours."""
    colours = bytes(draw.randrange(256) for _ in range(12))
    head = b"GIF89a\2\0\2\0\x91\0\0" + colours
    frame = b",\0\0\0\0\2\0\2\0\0\2\3" + draw.choice((b"\x44\x34\x05", b"\x84\x11\x05"))
    return repr(head + frame + b"\0;")


def image_ops(draw: random.Random) -> list[str]:
    """Some ops on pictures, each for itself."""
    spells: tuple[Spell, ...] = (resized, coloured, boxed, encoded)
    return written(draw, spells, most=4)


IMAGE_OPS: dict[str, Maker] = {"image ops": image_ops}
"""The kinds of programs of this module by name."""
