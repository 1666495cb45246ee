"""Programs that change pictures by chains of ops, alone and on their way through a queue."""

from __future__ import annotations

import random
from dataclasses import dataclass

from proofs.oracle.program import Maker
from proofs.oracle.runner_programs import consumed

__all__ = ("IMAGES",)

MOST_STEPS = 5


@dataclass
class _Kind:
    """What is known of the picture that a chain has come to.

    Attributes:
        dtype: its dtype.
        channels: how many it has.
        batched: whether there are several.
    """

    dtype: str
    channels: int
    batched: bool


def _size(draw: random.Random) -> str:
    height, width = draw.randint(1, 12), draw.randint(1, 12)
    if draw.random() < 0.15:
        height = draw.choice((0, -1, 30))
    return f"{height}, {width}"


def _cut(draw: random.Random, kind: _Kind) -> str:
    # Of two checks that fail in one run, it is chance which one TensorFlow tells of.
    top, rows = draw.randint(0, 5), draw.randint(0, 5)
    target = [str(draw.randint(8, 15)), "40"]
    return draw.choice(
        (
            f"resize_image_with_crop_or_pad(X, {_size(draw)})",
            f"resize_image_with_crop_or_pad(X, {_size(draw)})",
            f"central_crop(X, {draw.choice((0.3, 0.5, 0.875, 1.0, 2.0))})",
            f"crop_to_bounding_box(X, {top}, 0, {rows}, 1)",
            f"pad_to_bounding_box(X, 1, 2, {', '.join(draw.sample(target, 2))})",
        )
    )


def _turned(draw: random.Random, kind: _Kind) -> str:
    seed = draw.randint(1, 99)
    return draw.choice(
        (
            "flip_left_right(X)",
            "flip_up_down(X)",
            "transpose_image(X)",
            f"rot90(X, {draw.randint(-3, 4)})",
            f"random_flip_left_right(X, seed={seed})",
            f"random_flip_left_right(X, seed={seed})",
            f"random_flip_up_down(X, seed={seed})",
        )
    )


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
    quality = draw.randint(1, 100)
    return draw.choice(
        (
            f"decode_jpeg(tf.image.encode_jpeg(X, quality={quality}), channels={kind.channels})",
            f"decode_jpeg(tf.image.encode_jpeg(X, quality={quality}), channels={kind.channels},"
            f" fancy_upscaling={draw.random() < 0.5}, dct_method='INTEGER_ACCURATE')",
            f"decode_png(tf.image.encode_png(X), channels={kind.channels})",
        )
    )


def _sampled(draw: random.Random, kind: _Kind) -> str:
    box = sorted(round(draw.random(), 2) for _ in range(4))
    return (
        "random_part(X, [[[" + ", ".join(map(str, (box[0], box[1], box[2], box[3]))) + "]]],"
        f" seed={draw.randint(1, 99)}, min_object_covered={draw.choice((0.1, 0.5))})"
    )


def _step(draw: random.Random, kind: _Kind) -> str:
    """A line that adds a picture made of the last one."""
    makers = [_cut, _cut, _turned, _turned, _adjusted, _converted]
    if kind.dtype:
        makers.append(_resized)
    if kind.dtype == "uint8" and not kind.batched:
        makers += [_filed, _sampled]
    op = draw.choice(makers)(draw, kind)
    if op.startswith("random_part("):
        rest = op.removeprefix("random_part(X, ")
        return (
            "pics.append(tf.slice(pics[-1], *tf.image.sample_distorted_bounding_box("
            f"tf.shape(pics[-1]), {rest}[:2]))"
        )
    if not kind.dtype:
        kind.dtype = "float32"
    return f"pics.append(tf.image.{op.replace('X', 'pics[-1]')})"


def _pixels(kind: _Kind, draw: random.Random) -> str:
    shape = [draw.randint(4, 10), draw.randint(4, 10), kind.channels]
    shape = [draw.randint(1, 3), *shape] if kind.batched else shape
    count = 1
    for size in shape:
        count *= size
    numbers = f"(np.arange({count}) * {draw.choice((1, 7, 37, 113))} % 251).reshape({shape})"
    if kind.dtype == "uint8":
        return f"{numbers}.astype('uint8')"
    return f"({numbers} / 256).astype('float32')"


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
    kind = _Kind(draw.choice(("uint8", "uint8", "float32")), draw.choice((1, 3)), False)
    kind.batched = draw.random() < 0.3
    lines = [f"pixels = {_pixels(kind, draw)}"]
    if draw.random() < 0.6:
        # No constant: TensorFlow runs what is made of constants while it infers shapes.
        lines.append("pics = [tf.placeholder_with_default(pixels, pixels.shape)]")
    else:
        channels = draw.choice((None, kind.channels))
        unknown = [None] * (3 if kind.batched else 2) + [channels]
        lines.append(f"pics = [tf.placeholder_with_default(pixels, {unknown})]")
    lines += [*_chain(draw, kind), "session()"]
    return lines + ["here(pics[-1])"] * draw.randint(1, 3)


def pipeline(draw: random.Random) -> list[str]:
    """Pictures that a producer reads, changed, and put into batches."""
    kind = _Kind("uint8", draw.choice((1, 3)), True)
    pixels = _pixels(kind, draw)
    kind.batched = False
    shuffles = draw.random() < 0.3
    options = f"num_epochs={draw.randint(1, 3)}, shuffle={shuffles}, seed={draw.randint(1, 9)}"
    lines = [
        f"pixels = {pixels}",
        f"item = tf.train.slice_input_producer([pixels], {options})",
        "pics = [item[0]]",
        *_chain(draw, kind),
        f"pics[-1] = tf.reshape(pics[-1], [-1])[:{draw.randint(1, 9)}]",
    ]
    pads = draw.random() < 0.6
    lines.append(
        f"b = tf.train.batch([pics[-1]], {draw.randint(1, 3)}, dynamic_pad={pads},"
        f" allow_smaller_final_batch={draw.random() < 0.5})"
    )
    return [*lines, *consumed(draw, ["b"], 6)]


IMAGES: dict[str, Maker] = {"image chain": chain, "image pipeline": pipeline}
"""The kinds of programs of this module by name."""
