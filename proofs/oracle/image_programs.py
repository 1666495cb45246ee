"""Programs that change pictures: chains of ops, some of them behind a queue, and single ops."""

from __future__ import annotations

import random
from dataclasses import dataclass

from proofs.oracle.program import Maker
from proofs.oracle.runner_programs import consumed
from proofs.oracle.spelling import Spell, array, tensor, written

__all__ = ("IMAGES",)

MOST_STEPS = 5


@dataclass
class _Kind:
    """What is known of the picture that a chain has come to; its dtype is "" after a resize."""

    dtype: str
    channels: int
    batched: bool


def _numbers(
    draw: random.Random, dtype: str, channels: int, batched: bool
) -> tuple[str, list[int]]:
    """A picture, or a batch, that is neither smooth nor flat, and its shape."""
    shape = [draw.randint(4, 10), draw.randint(4, 10), channels]
    shape = [draw.randint(1, 3), *shape] if batched else shape
    count = 1
    for size in shape:
        count *= size
    made = f"(np.arange({count}) * {draw.choice((1, 7, 37, 113))} % 251).reshape({shape})"
    made += ".astype('uint8')" if dtype == "uint8" else f".astype('{dtype}') / np.float32(256)"
    return f"({made})", shape


def _size(draw: random.Random) -> str:
    height, width = draw.randint(1, 12), draw.randint(1, 12)
    if draw.random() < 0.15:
        height = draw.choice((0, -1, 30))
    return f"{height}, {width}"


def _cut(draw: random.Random, kind: _Kind) -> str:
    # Of two checks that fail in one run, it is chance which one TensorFlow reports.
    top, rows = draw.randint(0, 5), draw.randint(0, 5)
    target = [str(draw.randint(8, 15)), "40"]
    return draw.choice((
        f"resize_image_with_crop_or_pad(X, {_size(draw)})",
        f"resize_image_with_crop_or_pad(X, {_size(draw)})",
        f"central_crop(X, {draw.choice((0.3, 0.5, 0.875, 1.0, 2.0))})",
        f"crop_to_bounding_box(X, {top}, 0, {rows}, 1)",
        f"pad_to_bounding_box(X, 1, 2, {', '.join(draw.sample(target, 2))})",
    ))  # fmt: skip


def _turned(draw: random.Random, kind: _Kind) -> str:
    seed = draw.randint(1, 99)
    ops = ("flip_left_right(X)", "flip_up_down(X)")
    sides = (f"random_flip_{draw.choice(('left_right', 'up_down'))}(X, seed={seed})",) * 3
    return draw.choice((*ops, f"rot90(X, {draw.randint(-3, 4)})", *sides))


def _resized(draw: random.Random, kind: _Kind) -> str:
    method = draw.choice((0, 0, 1, 2, 3))
    # Areas of pictures that have one row are not a number there.
    corners = method != 3 and draw.random() < 0.3
    options = f"method={method}, align_corners={corners}"
    if draw.random() < 0.2:
        options += ", preserve_aspect_ratio=True"
    size = f"{draw.randint(2, 12)}, {draw.randint(2, 12)}"
    kind.dtype = kind.dtype if method == 1 else ""
    return f"resize_images(X, [{size}], {options})"


def _adjusted(draw: random.Random, kind: _Kind) -> str:
    seed = draw.randint(1, 99)
    part, factor = round(draw.uniform(-0.5, 0.5), 3), round(draw.uniform(0, 2.5), 3)
    ops = [
        f"adjust_brightness(X, {part})",
        f"adjust_contrast(X, {factor})",
        f"random_brightness(X, {abs(part)}, seed={seed})",
        f"random_contrast(X, 0.2, 1.8, seed={seed})",
    ]
    if kind.channels == 3:
        ops += [
            f"adjust_hue(X, {part})",
            f"adjust_saturation(X, {factor})",
            f"random_hue(X, {abs(part)}, seed={seed})",
            f"random_saturation(X, 0.5, 1.5, seed={seed})",
        ]
    return draw.choice(ops)


def _converted(draw: random.Random, kind: _Kind) -> str:
    match draw.choice(("dtype", "dtype", "standard", "grey")):
        case "dtype":
            kind.dtype = draw.choice(("float32", "uint8"))
            # Without it, what is beyond the range becomes whatever the CPU makes of it.
            return f"convert_image_dtype(X, tf.{kind.dtype}, saturate=True)"
        case "standard":
            kind.dtype = "float32"
            return "per_image_standardization(X)"
        case _:
            was, kind.channels = kind.channels, 4 - kind.channels
            return "rgb_to_grayscale(X)" if was == 3 else "grayscale_to_rgb(X)"


def _filed(draw: random.Random, kind: _Kind) -> str:
    jpeg = f"decode_jpeg(tf.image.encode_jpeg(X, quality={draw.randint(1, 100)})"
    exact = f"fancy_upscaling={draw.random() < 0.5}, dct_method='INTEGER_ACCURATE'"
    return draw.choice((
        f"{jpeg}, channels={kind.channels})",
        f"{jpeg}, channels={kind.channels}, {exact})",
        f"decode_png(tf.image.encode_png(X), channels={kind.channels})",
    ))  # fmt: skip


def _sampled(draw: random.Random, kind: _Kind) -> str:
    box = sorted(round(draw.random(), 2) for _ in range(4))
    return (
        f"tf.slice(X, *tf.image.sample_distorted_bounding_box(tf.shape(X), [[{box}]],"
        f" seed={draw.randint(1, 99)}, min_object_covered={draw.choice((0.1, 0.5))})[:2])"
    )


def _step(draw: random.Random, kind: _Kind) -> str:
    """A line that adds a picture made of the last one."""
    makers = [_cut, _cut, _turned, _turned, _adjusted, _converted]
    if kind.dtype:
        makers.append(_resized)
    if kind.dtype == "uint8" and not kind.batched:
        makers += [_filed, _sampled]
    op = draw.choice(makers)(draw, kind).replace("X", "pics[-1]")
    if op.startswith("tf.slice"):
        return f"pics.append({op})"
    kind.dtype = kind.dtype or "float32"
    return f"pics.append(tf.image.{op})"


def _chain(draw: random.Random, kind: _Kind) -> list[str]:
    lines = []
    for _ in range(draw.randint(1, MOST_STEPS)):
        lines += [_step(draw, kind), "say(f'{pics[-1].dtype.base_dtype.name} {pics[-1].shape}')"]
    # Floats are TensorFlow's but for their last bits.
    lines.append(
        "pics.append(tf.cast(tf.round(tf.cast(pics[-1], tf.float32) * 512.0 + 0.1), tf.int32))"
    )
    return lines


def chain(draw: random.Random) -> list[str]:
    """A picture, or a batch of them, through some ops, run several times."""
    kind = _Kind(
        draw.choice(("uint8", "uint8", "float32")), draw.choice((1, 3)), draw.random() < 0.3
    )
    pixels, shape = _numbers(draw, kind.dtype, kind.channels, kind.batched)
    unknown = [*[None] * (len(shape) - 1), draw.choice((None, kind.channels))]
    # No constant: TensorFlow runs what is made of constants while it infers shapes.
    known = shape if draw.random() < 0.6 else unknown
    lines = [f"pics = [tf.placeholder_with_default({pixels}, {known})]"]
    lines += [*_chain(draw, kind), "session()"]
    return lines + ["here(pics[-1])"] * draw.randint(1, 3)


def pipeline(draw: random.Random) -> list[str]:
    """Pictures that a producer reads, changed, and put into batches."""
    kind = _Kind("uint8", draw.choice((1, 3)), False)
    pixels, _ = _numbers(draw, "uint8", kind.channels, True)
    shuffles = draw.random() < 0.3
    options = f"num_epochs={draw.randint(1, 3)}, shuffle={shuffles}, seed={draw.randint(1, 9)}"
    lines = [
        f"item = tf.train.slice_input_producer([{pixels}], {options})",
        "pics = [item[0]]",
        *_chain(draw, kind),
        f"pics[-1] = tf.reshape(pics[-1], [-1])[:{draw.randint(1, 9)}]",
        f"b = tf.train.batch([pics[-1]], {draw.randint(1, 3)}, dynamic_pad={draw.random() < 0.6},"
        f" allow_smaller_final_batch={draw.random() < 0.5})",
    ]
    return [*lines, *consumed(draw, ["b"], 6)]


# Single ops.


def _pixels(draw: random.Random, dtype: str = "", rank: int = 3, channels: int = 3) -> str:
    """A picture, or a batch, whose static shape may be unknown."""
    made, shape = _numbers(draw, dtype or draw.choice(("uint8", "float32")), channels, rank == 4)
    known = draw.choice((shape, [None] * (len(shape) - 1) + [channels]))
    return f"tf.placeholder_with_default({made}, {known})"


def resized(draw: random.Random) -> str:
    """Another size."""
    size = f"{draw.randint(2, 12)}, {draw.randint(2, 12)}"
    picture, batch = _pixels(draw, rank=draw.choice((3, 4))), _pixels(draw, rank=4)
    corners = draw.random() < 0.3
    half = not corners and draw.random() < 0.5
    method = draw.choice(("bilinear", "nearest_neighbor", "bicubic"))
    return draw.choice((
        f"tf.image.resize_area({batch}, [{size}])",
        f"tf.image.resize_{method}({batch}, [{size}], align_corners={corners},"
        f" half_pixel_centers={half})",
        f"tf.image.resize_image_with_pad({picture}, {size}, method={draw.choice((0, 1, 2))})",
        f"tf.image.resize_with_crop_or_pad({picture}, {size})",
        f"tf.image.resize({picture}, [{size}], tf.image.ResizeMethod.{method.upper()},"
        f" align_corners={corners})",
    ))  # fmt: skip


def coloured(draw: random.Random) -> str:
    """Another space of colours."""
    shape = draw.choice(((3,), (2, 3), (2, 4, 3), (2, 2, 2, 3)))
    # The rank must be known for some of them, which fail by a TypeError in TensorFlow if it is not.
    picture = f"tf.constant({array(draw, draw.choice(('float32', 'float64')), shape, 0, 1)})"
    adjusted = _pixels(draw)
    return draw.choice((
        f"tf.image.{draw.choice(('rgb_to_hsv', 'hsv_to_rgb'))}({picture})",
        f"tf.image.adjust_hue({adjusted}, {round(draw.uniform(-1, 1), 2)})",
        f"tf.image.adjust_saturation({adjusted}, {round(draw.uniform(0, 3), 2)})",
        f"tf.image.adjust_contrast({adjusted}, {round(draw.uniform(0, 3), 2)})",
        f"tf.image.per_image_standardization({adjusted})",
    ))  # fmt: skip


def boxed(draw: random.Random) -> str:
    """Boxes drawn, and cut out."""
    batch = draw.randint(1, 2)
    pixels = tensor(draw, "float32", (batch, draw.randint(3, 9), draw.randint(3, 9), 3), 0, 1)
    corners = [
        [round(draw.uniform(*limits), 2) for limits in ((-0.2, 0.5),) * 2 + ((0.5, 1.2),) * 2]
        for _ in range(draw.randint(1, 4))
    ]
    which = [draw.randrange(batch) for _ in corners]
    size, method = f"[{draw.randint(1, 6)}, 3]", draw.choice(("bilinear", "nearest"))
    return draw.choice((
        f"tf.image.crop_and_resize({pixels}, {corners}, {which}, {size}, {method!r}, 0.5)",
        f"tf.image.draw_bounding_boxes({pixels}, {[corners] * batch})",
        f"tf.image.sample_distorted_bounding_box([{draw.randint(20, 90)}, 60, 3],"
        f" [[{[abs(round(one / 1.2, 2)) for one in corners[0]]}]], seed={draw.randint(1, 99)},"
        f" min_object_covered=0.3, max_attempts=20)",
    ))  # fmt: skip


def encoded(draw: random.Random) -> str:
    """Pictures to bytes, and back."""
    picture = _pixels(draw, "uint8", channels=draw.choice((1, 3)))
    jpeg = f"tf.image.encode_jpeg({picture}, quality={draw.randint(5, 100)})"
    png = f"tf.image.encode_png({picture})"
    wanted = draw.choice((0, 1, 3))
    exact = f"dct_method={draw.choice(('INTEGER_ACCURATE', 'INTEGER_FAST', ''))!r}"
    # Of colours at half the size, what is cut is of no use: its edges are made up.
    plain = f"tf.image.encode_jpeg({picture}, chroma_downsampling=False)"
    # Of nothing at all TensorFlow 2 says only that it is empty.
    damaged = draw.choice(("b'no picture'", "tf.constant([b'x'])"))
    return draw.choice((
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
    ))  # fmt: skip


def _bitmap(draw: random.Random) -> str:
    """A bitmap of two rows of two pixels, whose rows fill up four bytes."""
    pixels = (draw.randbytes(6) + b"\0\0") + (draw.randbytes(6) + b"\0\0")
    head = (54).to_bytes(4, "little") + (40).to_bytes(4, "little")
    size = (2).to_bytes(4, "little") * 2 + b"\1\0\x18\0" + bytes(24)
    return repr(b"BM" + (70).to_bytes(4, "little") + bytes(4) + head + size + pixels)


def _animation(draw: random.Random) -> str:
    """A GIF of one frame of two by two pixels in four colours."""
    head = b"GIF89a\2\0\2\0\x91\0\0" + draw.randbytes(12)
    frame = b",\0\0\0\0\2\0\2\0\0\2\3" + draw.choice((b"\x44\x34\x05", b"\x84\x11\x05"))
    return repr(head + frame + b"\0;")


def image_ops(draw: random.Random) -> list[str]:
    """Some ops on pictures, each for itself."""
    spells: tuple[Spell, ...] = (resized, coloured, boxed, encoded)
    return written(draw, spells, most=4)


IMAGES: dict[str, Maker] = {
    "image chain": chain,
    "image pipeline": pipeline,
    "image ops": image_ops,
}
"""The kinds of programs of this module by name."""
