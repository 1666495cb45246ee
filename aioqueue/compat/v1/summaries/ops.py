"""Summary ops: `scalar`, `histogram`, `image`, `audio`, `text`, `merge`, and their old names.

Each run of one gives a serialized ``Summary`` message: an empty one, unless something is installed
that writes event files. Their inputs are computed either way, as in TensorFlow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import default_graph, dtypes
from aioqueue.compat.v1.core.convert import constant, convert_to_tensor
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.scopes import (
    GraphKeys,
    add_to_collection,
    get_collection,
    name_scope,
)
from aioqueue.compat.v1.core.shapes import TensorShape
from aioqueue.compat.v1.summaries.backend import can_write
from aioqueue.compat.v1.summaries.encoding import (
    encoded_audio,
    encoded_histogram,
    encoded_images,
    encoded_scalars,
    encoded_tensor,
)

__all__ = (
    "audio",
    "audio_summary",
    "histogram",
    "histogram_summary",
    "image",
    "image_summary",
    "merge",
    "merge_all",
    "merge_all_summaries",
    "merge_summary",
    "scalar",
    "scalar_summary",
    "tensor_summary",
    "text",
)

_NOT_IN_TAGS = re.compile(r"[^-/\w.]")


def scalar(name: str, tensor: Any, collections: Any = None, family: str | None = None) -> Tensor:
    """A summary of one number."""

    def make(tag: str, value: Any) -> bytes:
        return encoded_scalars(tag.encode(), value)

    return _summary("ScalarSummary", name, [tensor], make, collections, family)


def histogram(name: str, values: Any, collections: Any = None, family: str | None = None) -> Tensor:
    """A summary of how often there are numbers, `values`, of each size; see `scalar`."""
    return _summary("HistogramSummary", name, [values], encoded_histogram, collections, family)


def image(
    name: str,
    tensor: Any,
    max_outputs: int = 3,
    collections: Any = None,
    family: str | None = None,
) -> Tensor:
    """A summary of some pictures."""

    def make(tag: str, value: Any) -> bytes:
        return encoded_images(tag, value, max_outputs)

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

    def make(tag: str, value: Any, rate: Any) -> bytes:
        return encoded_audio(tag, value, float(rate), max_outputs)

    rate = convert_to_tensor(sample_rate, dtypes.float32, name="sample_rate")
    return _summary("AudioSummaryV2", name, [tensor, rate], make, collections, family)


def text(name: str, tensor: Any, collections: Any = None) -> Tensor:
    """A summary of strings of any shape; see `scalar`."""
    found = convert_to_tensor(tensor)
    if found.dtype != dtypes.string:
        raise ValueError(f"Expected tensor {found.name} to have dtype string, got {found.dtype}")

    def make(tag: str, value: Any) -> bytes:
        return encoded_tensor(tag, value, "text")

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
    """A summary of a tensor as it is; see `scalar`."""
    del summary_description, display_name
    plugin = getattr(getattr(summary_metadata, "plugin_data", None), "plugin_name", "")

    def make(tag: str, value: Any) -> bytes:
        return encoded_tensor(tag, value, plugin)

    return _summary("TensorSummaryV2", name, [tensor], make, collections, family)


def merge(inputs: Sequence[Any], collections: Any = None, name: str | None = None) -> Tensor:
    """All of some summaries in one."""
    with name_scope(name, "Merge", inputs) as scope:
        parts = [convert_to_tensor(one, dtypes.string) for one in inputs]
        made = _op("MergeSummary", parts, _merged, scope)
    return _collected(made, () if collections is None else collections)


def _merged(step: Any, *parts: Any) -> bytes:
    """One message of several: their bytes, one after the other."""
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
    """A summary of how often there are numbers of each size; arguments as for `scalar_summary`."""
    return _old("HistogramSummary", tag, [values], encoded_histogram, collections, name)


def image_summary(
    tag: Any, tensor: Any, max_images: int = 3, collections: Any = None, name: Any = None
) -> Tensor:
    """A summary of some pictures; arguments as for `scalar_summary` and `image`."""

    def make(tag: str, value: Any) -> bytes:
        return encoded_images(tag, value, max_images)

    return _old("ImageSummary", tag, [tensor], make, collections, name)


def audio_summary(
    tag: Any,
    tensor: Any,
    sample_rate: Any,
    max_outputs: int = 3,
    collections: Any = None,
    name: Any = None,
) -> Tensor:
    """A summary of some sounds; arguments as for `scalar_summary` and `audio`."""

    def make(tag: str, value: Any, rate: Any) -> bytes:
        return encoded_audio(tag, value, float(rate), max_outputs)

    rate = convert_to_tensor(sample_rate, dtypes.float32)
    return _old("AudioSummaryV2", tag, [tensor, rate], make, collections, name)


def merge_summary(inputs: Sequence[Any], collections: Any = None, name: Any = None) -> Tensor:
    """The old name of `merge`."""
    return merge(inputs, collections, name)


def merge_all_summaries(key: Any = GraphKeys.SUMMARIES) -> Tensor | None:
    """The old name of `merge_all`."""
    return merge_all(key)


# How they are made.


def _summary(
    op_type: str,
    name: str,
    values: Sequence[Any],
    make: Callable[..., bytes],
    collections: Any,
    family: str | None,
) -> Tensor:
    """Add an op whose name is its tag."""
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
    """Add an op whose tag is an input."""
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
    """A name as operations may have it."""
    return _NOT_IN_TAGS.sub("_", name).lstrip("/")
