"""Values as summaries: serialized ``Summary`` messages, as TensorFlow makes them."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.base import extras
from aioqueue.compat.v1.core.dtypes import as_dtype
from aioqueue.compat.v1.ops.building import array, invalid, shape_text
from aioqueue.compat.v1.protos import summary_classes

__all__ = (
    "encoded_audio",
    "encoded_histogram",
    "encoded_images",
    "encoded_scalars",
    "encoded_tensor",
)

_LARGEST = float(np.finfo(np.float64).max)
_DARKEST = 1e-6
_ENUM = {"float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "string": 7}
_ENUM |= {"int64": 9, "bool": 10, "uint16": 17, "float16": 19, "uint32": 22, "uint64": 23}
"""TensorFlow's numbers of the dtypes."""


def _serialized(*values: Any) -> bytes:
    summary = summary_classes()["Summary"](value=values)
    data: bytes = summary.SerializeToString()
    return data


def _value(tag: str, **content: Any) -> Any:
    return summary_classes()["Summary.Value"](tag=tag, **content)


def encoded_scalars(tags: Any, values: Any) -> bytes:
    """One number per tag.

    Args:
        tags: ``bytes``, or an array of them.
        values: numbers of the same shape.

    Raises:
        InvalidArgumentError: the shapes differ.
    """
    tags, values = array(tags), array(values)
    if tags.shape != values.shape:
        shown = f"{shape_text(tags.shape)} != {shape_text(values.shape)}"
        tag = f" (tag '{tags.item().decode()}')" if tags.size == 1 else ""
        raise invalid(f"tags and values are not the same shape: {shown}{tag}")
    pairs = zip(tags.ravel().tolist(), values.ravel().tolist(), strict=True)
    return _serialized(*(_value(tag.decode(), simple_value=value) for tag, value in pairs))


def encoded_histogram(tag: str, values: Any) -> bytes:
    """How often there are numbers of each size.

    Raises:
        InvalidArgumentError: a value is no number, or infinite.
    """
    flat = np.asarray(values, np.float64).ravel()
    for one in flat[~np.isfinite(flat)]:
        raise invalid(f"{'Nan' if np.isnan(one) else 'Infinity'} in summary histogram for: {tag}")
    limits = _limits()
    counts = np.bincount(np.searchsorted(limits, flat, side="right"), minlength=len(limits))
    ends, filled = _without_gaps(limits, counts)
    histogram = summary_classes()["HistogramProto"](
        min=flat.min(initial=_LARGEST),
        max=flat.max(initial=-_LARGEST),
        num=flat.size,
        sum=flat.sum(),
        sum_squares=np.square(flat).sum(),
        bucket_limit=ends,
        bucket=filled,
    )
    return _serialized(_value(tag, histo=histogram))


@cache
def _limits() -> NDArray[np.float64]:
    """Where buckets end: a tenth further from zero each, on both sides."""
    positive = []
    limit = 1e-12
    while limit < 1e20:
        positive.append(limit)
        limit *= 1.1
    positive.append(_LARGEST)
    return np.array([*(-one for one in reversed(positive)), 0.0, *positive])


def _without_gaps(limits: NDArray[Any], counts: NDArray[Any]) -> tuple[list[float], list[float]]:
    """The ends and counts of buckets, empty ones beside each other taken together."""
    last_of_run = np.flatnonzero((counts > 0) | (np.append(counts[1:], 1) > 0))
    if not counts.any():
        return [_LARGEST], [0.0]
    return limits[last_of_run].tolist(), counts[last_of_run].astype(float).tolist()


def encoded_images(tag: str, pictures: NDArray[Any], most: int) -> bytes:
    """Some pictures as PNG files; needs the extra ``images``.

    Args:
        tag: of the first picture, or the beginning of the tags of several.
        pictures: ``[n, height, width, channels]``, of 1, 3 or 4 channels.
        most: how many of them.

    Raises:
        InvalidArgumentError: they are no pictures.
    """
    if pictures.ndim != 4 or pictures.shape[-1] not in (1, 3, 4):
        raise invalid(
            "Tensor must be 4-D with last dim 1, 3, or 4, not " + shape_text(pictures.shape)
        )
    _, height, width, channels = pictures.shape
    return _serialized(
        *(
            _value(
                name,
                image=summary_classes()["Summary.Image"](
                    height=height,
                    width=width,
                    colorspace=channels,
                    encoded_image_string=_png(_visible(picture)),
                ),
            )
            for name, picture in _numbered(f"{tag}/image", pictures, most)
        )
    )


def _numbered(tag: str, parts: Any, most: int) -> Iterator[tuple[str, Any]]:
    for number, part in enumerate(parts[:most]):
        yield (tag if most == 1 else f"{tag}/{number}"), part


def _visible(picture: NDArray[Any]) -> NDArray[np.uint8]:
    """Numbers as shades: zero is black, or grey if there are negative ones."""
    if picture.dtype == np.uint8:
        return picture
    pixels = picture.astype(np.float32)
    finite = pixels[np.isfinite(pixels)]
    low, high = finite.min(initial=0), finite.max(initial=0)
    largest = max(-low, high)
    shades = 127.0 if low < 0 else 255.0
    scale = 0.0 if largest < _DARKEST else shades / largest
    shown = np.where(np.isfinite(pixels), pixels * scale + (128.0 if low < 0 else 0.0), 0)
    return np.clip(shown, 0, 255).astype(np.uint8)


def _png(pixels: NDArray[np.uint8]) -> bytes:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"summaries of pictures need Pillow: {extras.command_for('images')}", name=error.name
        ) from error
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, "PNG")
    return file.getvalue()


def encoded_audio(tag: str, sounds: NDArray[Any], rate: float, most: int) -> bytes:
    """Some sounds as WAV files of 16 bits.

    Args:
        tag: of the first sound, or the beginning of the tags of several.
        sounds: float ``[n, frames]`` or ``[n, frames, channels]``, from -1 to 1.
        rate: frames per second.
        most: how many of them.

    Raises:
        InvalidArgumentError: they are no sounds.
    """
    if sounds.ndim not in (2, 3):
        raise invalid(f"Tensor must be 3-D or 2-D, got: {shape_text(sounds.shape)}")
    sounds = sounds if sounds.ndim == 3 else sounds[..., np.newaxis]
    _, frames, channels = sounds.shape
    return _serialized(
        *(
            _value(
                name,
                audio=summary_classes()["Summary.Audio"](
                    sample_rate=rate,
                    num_channels=channels,
                    length_frames=frames,
                    encoded_audio_string=_wav(sound, rate),
                    content_type="audio/wav",
                ),
            )
            for name, sound in _numbered(f"{tag}/audio", sounds, most)
        )
    )


def _wav(sound: NDArray[Any], rate: float) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(sound.shape[-1])
        writer.setsampwidth(2)
        writer.setframerate(int(rate))
        writer.writeframes(np.clip(sound * 32767.0, -32768, 32767).astype("<i2").tobytes())
    return file.getvalue()


def encoded_tensor(tag: str, value: Any, plugin: str) -> bytes:
    """A value as it is.

    Args:
        tag: its tag.
        value: an array.
        plugin: what shows it, such as ``"text"``; empty if nothing does.
    """
    given = array(value)
    classes = summary_classes()
    tensor = classes["TensorProto"](dtype=_ENUM[as_dtype(given.dtype).name])
    for size in given.shape:
        tensor.tensor_shape.dim.add(size=size)
    if given.dtype == object:
        tensor.string_val.extend(given.ravel().tolist())
    else:
        tensor.tensor_content = np.ascontiguousarray(given).tobytes()
    metadata = classes["SummaryMetadata"]()
    if plugin:
        metadata.plugin_data.plugin_name = plugin
    return _serialized(_value(tag, tensor=tensor, metadata=metadata))
