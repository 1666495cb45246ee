"""The messages of event files: ``tf.Summary``, ``tf.Event`` and what they consist of.

Wire-compatible with TensorFlow's ``summary.proto`` and ``event.proto``. They need protobuf, which
is an extra, so that the classes are made when somebody asks for one of them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from aioqueue.compat.v1.protos.messages import message_classes
from aioqueue.compat.v1.protos.tensors import SCHEMA as TENSOR_SCHEMA

__all__ = ("MESSAGES", "summary_classes")

SCHEMA: dict[str, dict[str, str]] = {
    "HistogramProto": {
        "min": "double",
        "max": "double",
        "num": "double",
        "sum": "double",
        "sum_squares": "double",
        "bucket_limit": "repeated double",
        "bucket": "repeated double",
    },
    **TENSOR_SCHEMA,
    "SummaryMetadata": {
        "plugin_data": "SummaryMetadata.PluginData",
        "display_name": "string",
        "summary_description": "string",
    },
    "SummaryMetadata.PluginData": {"plugin_name": "string", "content": "bytes"},
    "Summary": {"value": "repeated Summary.Value"},
    "Summary.Image": {
        "height": "int32",
        "width": "int32",
        "colorspace": "int32",
        "encoded_image_string": "bytes",
    },
    "Summary.Audio": {
        "sample_rate": "float",
        "num_channels": "int64",
        "length_frames": "int64",
        "encoded_audio_string": "bytes",
        "content_type": "string",
    },
    "Summary.Value": {
        "tag": "string",
        "simple_value": "oneof value float",
        "obsolete_old_style_histogram": "oneof value bytes",
        "image": "oneof value Summary.Image",
        "histo": "oneof value HistogramProto",
        "audio": "oneof value Summary.Audio",
        "node_name": "string",
        "tensor": "oneof value TensorProto",
        "metadata": "SummaryMetadata",
    },
    "Event": {
        "wall_time": "double",
        "step": "int64",
        "file_version": "oneof what string",
        "graph_def": "oneof what bytes",
        "summary": "oneof what Summary",
        "log_message": "oneof what bytes",
        "session_log": "oneof what bytes",
        "tagged_run_metadata": "oneof what bytes",
        "meta_graph_def": "oneof what bytes",
    },
}

MESSAGES = ("Event", "HistogramProto", "Summary", "SummaryMetadata")
"""The names of the classes that are public."""


@cache
def summary_classes() -> dict[str, Any]:
    """The message classes by name, those in `MESSAGES` and those within them.

    Raises:
        ModuleNotFoundError: protobuf is not installed.
    """
    return message_classes("tensorflow/core/util/event.proto", SCHEMA)
