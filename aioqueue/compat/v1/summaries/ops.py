"""Summary ops: empty ``Summary`` messages, unless something is installed that writes them."""

from __future__ import annotations

import io
import re
import wave
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.base import extras
from aioqueue.compat.v1.core import default_graph, dtypes
from aioqueue.compat.v1.core.convert import constant, convert_to_tensor
from aioqueue.compat.v1.core.dtypes import as_dtype
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.scopes import GraphKeys, add_to_collection, get_collection, name_scope
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.ops.building import array, invalid, shape_text
from aioqueue.compat.v1.protos import summary_classes
from aioqueue.compat.v1.summaries.writer import can_write

__all__ = ("audio", "histogram", "image", "merge", "merge_all", "scalar", "tensor_summary", "text")

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
    tags, values = array(tags), array(values)
    if tags.shape != values.shape:
        shown = f"{shape_text(tags.shape)} != {shape_text(values.shape)}"
        tag = f" (tag '{tags.item().decode()}')" if tags.size == 1 else ""
        raise invalid(f"tags and values are not the same shape: {shown}{tag}")
    pairs = zip(tags.ravel().tolist(), values.ravel().tolist(), strict=True)
    return _serialized(*(_value(tag.decode(), simple_value=value) for tag, value in pairs))


def encoded_histogram(tag: str, values: Any) -> bytes:
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
    """Some pictures as PNG files; needs the extra ``images``."""
    if pictures.ndim != 4 or pictures.shape[-1] not in (1, 3, 4):
        raise invalid(
            "Tensor must be 4-D with last dim 1, 3, or 4, not " + shape_text(pictures.shape)
        )
    size = dict(zip(("height", "width", "colorspace"), pictures.shape[1:], strict=True))
    files = ({**size, "encoded_image_string": _png(_visible(one))} for one in pictures[:most])
    return _numbered(tag, "Image", files, most)


def _numbered(tag: str, kind: str, parts: Iterable[dict[str, Any]], most: int) -> bytes:
    make, field = summary_classes()[f"Summary.{kind}"], kind.lower()
    tags = (f"{tag}/{field}" if most == 1 else f"{tag}/{field}/{number}" for number in count())
    pairs = zip(tags, parts, strict=False)
    return _serialized(*(_value(name, **{field: make(**part)}) for name, part in pairs))


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


def encoded_audio(tag: str, sounds: NDArray[Any], rate: Any, most: int) -> bytes:
    rate = float(rate)
    if sounds.ndim not in (2, 3):
        raise invalid(f"Tensor must be 3-D or 2-D, got: {shape_text(sounds.shape)}")
    sounds = sounds if sounds.ndim == 3 else sounds[..., np.newaxis]
    _, frames, channels = sounds.shape
    kind = {"sample_rate": rate, "num_channels": channels, "length_frames": frames}
    kind["content_type"] = "audio/wav"
    files = ({**kind, "encoded_audio_string": _wav(one, rate)} for one in sounds[:most])
    return _numbered(tag, "Audio", files, most)


def _wav(sound: NDArray[Any], rate: float) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(sound.shape[-1])
        writer.setsampwidth(2)
        writer.setframerate(int(rate))
        writer.writeframes(np.clip(sound * 32767.0, -32768, 32767).astype("<i2").tobytes())
    return file.getvalue()


def encoded_tensor(tag: str, value: Any, plugin: str) -> bytes:
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


_NOT_IN_TAGS = re.compile(r"[^-/\w.]")


def scalar(name: str, tensor: Any, collections: Any = None, family: str | None = None) -> Tensor:
    """A summary of one number."""
    return _summary("ScalarSummary", name, [tensor], _encoded_scalar, collections, family)


def _encoded_scalar(tag: str, value: Any) -> bytes:
    return encoded_scalars(tag.encode(), value)


def histogram(name: str, values: Any, collections: Any = None, family: str | None = None) -> Tensor:
    """A summary of how often there are numbers of each size."""
    return _summary("HistogramSummary", name, [values], encoded_histogram, collections, family)


def image(
    name: str, tensor: Any, max_outputs: int = 3, collections: Any = None, family: str | None = None
) -> Tensor:
    """A summary of some pictures."""
    make = partial(encoded_images, most=max_outputs)
    return _summary("ImageSummary", name, [tensor], make, collections, family)


def audio(
    name: str,
    tensor: Any,
    sample_rate: Any,
    max_outputs: int = 3,
    collections: Any = None,
    family: str | None = None,
) -> Tensor:
    """A summary of some sounds."""
    rate = convert_to_tensor(sample_rate, dtypes.float32, name="sample_rate")
    make = partial(encoded_audio, most=max_outputs)
    return _summary("AudioSummaryV2", name, [tensor, rate], make, collections, family)


def text(name: str, tensor: Any, collections: Any = None) -> Tensor:
    """A summary of strings of any shape."""
    found = convert_to_tensor(tensor)
    if found.dtype != dtypes.string:
        raise ValueError(f"Expected tensor {found.name} to have dtype string, got {found.dtype}")
    make = partial(encoded_tensor, plugin="text")
    return _summary("TensorSummaryV2", name, [found], make, collections, None)


def tensor_summary(
    name: str,
    tensor: Any,
    summary_description: Any = None,
    collections: Any = None,
    summary_metadata: Any = None,
    family: str | None = None,
    display_name: str | None = None,
) -> Tensor:
    """A summary of a tensor as it is."""
    plugin = getattr(getattr(summary_metadata, "plugin_data", None), "plugin_name", "")
    make = partial(encoded_tensor, plugin=plugin)
    return _summary("TensorSummaryV2", name, [tensor], make, collections, family)


def merge(inputs: Sequence[Any], collections: Any = None, name: str | None = None) -> Tensor:
    """All of some summaries in one."""
    with name_scope(name, "Merge", inputs) as scope:
        parts = [convert_to_tensor(one, dtypes.string) for one in inputs]
        made = _op("MergeSummary", parts, _merged, scope)
    return _collected(made, () if collections is None else collections)


def _merged(step: Any, *parts: Any) -> bytes:
    return b"".join(
        one if isinstance(one, bytes) else b"".join(one.ravel().tolist()) for one in parts
    )


def merge_all(
    key: Any = GraphKeys.SUMMARIES, scope: str | None = None, name: str | None = None
) -> Tensor | None:
    """All summaries of a collection in one; None if there are none."""
    found = get_collection(key, scope)
    return merge(found, name=name) if found else None


# Old names.


def scalar_summary(tags: Any, values: Any, collections: Any = None, name: Any = None) -> Tensor:
    """Summaries of numbers, as before TensorFlow 1.0."""
    with name_scope(name, "ScalarSummary", [tags, values]) as scope:
        inputs = [convert_to_tensor(tags, dtypes.string), convert_to_tensor(values)]

        def kernel(step: Any, tags: Any, values: Any) -> bytes:
            return encoded_scalars(tags, values) if can_write() else b""

        made = _op("ScalarSummary", inputs, kernel, scope)
    return _collected(made, collections)


def histogram_summary(tag: Any, values: Any, collections: Any = None, name: Any = None) -> Tensor:
    """A summary of how often there are numbers of each size, as before TensorFlow 1.0."""
    return _old("HistogramSummary", tag, [values], encoded_histogram, collections, name)


def image_summary(
    tag: Any, tensor: Any, max_images: int = 3, collections: Any = None, name: Any = None
) -> Tensor:
    """A summary of some pictures, as before TensorFlow 1.0."""
    make = partial(encoded_images, most=max_images)
    return _old("ImageSummary", tag, [tensor], make, collections, name)


def audio_summary(
    tag: Any,
    tensor: Any,
    sample_rate: Any,
    max_outputs: int = 3,
    collections: Any = None,
    name: Any = None,
) -> Tensor:
    """A summary of some sounds, as before TensorFlow 1.0."""
    rate = convert_to_tensor(sample_rate, dtypes.float32)
    make = partial(encoded_audio, most=max_outputs)
    return _old("AudioSummaryV2", tag, [tensor, rate], make, collections, name)


merge_summary = merge
merge_all_summaries = merge_all


# How they are made.


def _summary(
    op_type: str,
    name: str,
    values: Sequence[Any],
    make: Callable[..., bytes],
    collections: Any,
    family: str | None,
) -> Tensor:
    clean, prefix = _cleaned(name), "" if family is None else _cleaned(family)
    with name_scope(f"{prefix}/{clean}" if prefix else clean, None, values) as scope:
        tag = scope.rstrip("/")
        tag = f"{prefix}/{tag}" if prefix else tag
        inputs = [
            constant(tag, name="tags"),
            *(convert_to_tensor(one, name="values") for one in values),
        ]
        made = _op(op_type, inputs, _kernel(make), scope)
    return _collected(made, collections)


def _old(
    op_type: str, tag: Any, values: Sequence[Any], make: Any, collections: Any, name: Any
) -> Tensor:
    with name_scope(name, op_type, [tag, *values]) as scope:
        inputs = [convert_to_tensor(tag, dtypes.string), *map(convert_to_tensor, values)]
        made = _op(op_type, inputs, _kernel(make), scope)
    return _collected(made, collections)


def _kernel(make: Callable[..., bytes]) -> Callable[..., bytes]:
    def kernel(step: Any, tag: Any, *values: Any) -> bytes:
        if not can_write():
            return b""
        name = tag if isinstance(tag, bytes) else np.ravel(tag)[0]
        return make(name.decode(), *values)

    return kernel


def _op(op_type: str, inputs: Sequence[Tensor], kernel: Any, name: str) -> Tensor:
    outputs = [(dtypes.string, TensorShape([]))]
    return default_graph.op(op_type, inputs, outputs, kernel, name=name).outputs[0]


def _collected(summary: Tensor, collections: Any) -> Tensor:
    for key in [GraphKeys.SUMMARIES] if collections is None else collections:
        add_to_collection(key, summary)
    return summary


def _cleaned(name: str) -> str:
    return _NOT_IN_TAGS.sub("_", name).lstrip("/")
