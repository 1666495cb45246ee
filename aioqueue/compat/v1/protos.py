"""TensorFlow's protobuf messages, in a pool of their own, made when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from aioqueue.base import extras

OPTIONAL, REPEATED = 1, 3
SCALARS = {
    "bool": 8, "bytes": 12, "double": 1, "float": 2, "int32": 5, "int64": 3, "string": 9,
    "uint32": 13, "uint64": 4,
}  # fmt: skip
MESSAGE = 11

_EXAMPLES = {
    "BytesList": "value repeated bytes", "FloatList": "value repeated float",
    "Int64List": "value repeated int64",
    "Feature": "bytes_list oneof BytesList, float_list oneof FloatList, int64_list oneof Int64List",
    "Features": "feature map Feature", "FeatureList": "feature repeated Feature",
    "FeatureLists": "feature_list map FeatureList", "Example": "features Features",
    "SequenceExample": "context Features, feature_lists FeatureLists",
}  # fmt: skip
"""TensorFlow's ``example.proto`` and ``feature.proto``."""

_TENSORS = {
    "TensorShapeProto": "reserved, dim repeated TensorShapeProto.Dim, unknown_rank bool",
    "TensorShapeProto.Dim": "size int64, name string",
    "TensorProto": "dtype int32, tensor_shape TensorShapeProto, version_number int32,"
    " tensor_content bytes, float_val repeated float, double_val repeated double,"
    " int_val repeated int32, string_val repeated bytes, scomplex_val repeated float,"
    " int64_val repeated int64, bool_val repeated bool, dcomplex_val repeated double,"
    " half_val repeated int32, resource_handle_val, variant_val, uint32_val repeated uint32,"
    " uint64_val repeated uint64",
}
"""TensorFlow's ``tensor.proto`` and ``tensor_shape.proto``."""

_SUMMARIES = {
    "HistogramProto": "min double, max double, num double, sum double, sum_squares double,"
    " bucket_limit repeated double, bucket repeated double",
    **_TENSORS,
    "SummaryMetadata": "plugin_data SummaryMetadata.PluginData, display_name string,"
    " summary_description string",
    "SummaryMetadata.PluginData": "plugin_name string, content bytes",
    "Summary": "value repeated Summary.Value",
    "Summary.Image": "height int32, width int32, colorspace int32, encoded_image_string bytes",
    "Summary.Audio": "sample_rate float, num_channels int64, length_frames int64,"
    " encoded_audio_string bytes, content_type string",
    "Summary.Value": "tag string, simple_value oneof value float,"
    " obsolete_old_style_histogram oneof value bytes, image oneof value Summary.Image,"
    " histo oneof value HistogramProto, audio oneof value Summary.Audio, node_name string,"
    " tensor oneof value TensorProto, metadata SummaryMetadata",
    "Event": "wall_time double, step int64, file_version oneof what string,"
    " graph_def oneof what bytes, summary oneof what Summary, log_message oneof what bytes,"
    " session_log oneof what bytes, tagged_run_metadata oneof what bytes,"
    " meta_graph_def oneof what bytes",
}
"""TensorFlow's ``summary.proto`` and ``event.proto``."""

EXAMPLE_MESSAGES = tuple(_EXAMPLES)
"""The names of the classes in ``tf.train``."""
SUMMARY_MESSAGES = ("Event", "HistogramProto", "Summary", "SummaryMetadata")
"""The names of the public classes of event files."""

KINDS = {"bytes_list": "string", "float_list": "float", "int64_list": "int64"}
"""The kinds that a feature may have, each with what messages call its dtype."""


@cache
def example_classes() -> dict[str, Any]:
    """The message classes by name, those in `EXAMPLE_MESSAGES`."""
    return message_classes("tensorflow/core/example/example.proto", _EXAMPLES)


@cache
def summary_classes() -> dict[str, Any]:
    """The message classes by name, those in `SUMMARY_MESSAGES` and those within them."""
    return message_classes("tensorflow/core/util/event.proto", _SUMMARIES)


def feature_values(feature: Any) -> tuple[str, Any] | None:
    """The kind of a ``Feature``, as in `KINDS`, and its values; None if it has none."""
    kind = None if feature is None else feature.WhichOneof("kind")
    return None if kind is None else (kind, getattr(feature, kind).value)


def message_classes(file: str, schema: Mapping[str, str]) -> dict[str, Any]:
    """Message classes by name.

    Args:
        file: name of TensorFlow's file that has them.
        schema: by name of a message its fields in the order of their numbers: a name and a type,
            which may have ``"repeated"``, ``"map"`` (from strings), ``"oneof"``, or ``"oneof"`` and
            its name before it. A field without a type is a number that is not used.

    Raises:
        ModuleNotFoundError: protobuf is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the messages {', '.join(schema)} need protobuf: {extras.command_for('tfrecord')}",
            name=error.name,
        ) from error
    described = descriptor_pb2.FileDescriptorProto(name=file, package="tensorflow", syntax="proto3")
    messages: dict[str, Any] = {}
    for name, fields in schema.items():
        outer, _, inner = name.rpartition(".")
        add = messages[outer].nested_type.add if outer else described.message_type.add
        messages[name] = message = add(name=inner)
        for number, text in enumerate(fields.split(", "), 1):
            field, _, kind = text.partition(" ")
            if kind:
                _add_field(message, field, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(described)
    classes = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tensorflow.{name}"))
        for name in schema
    }
    for name in schema:
        outer, _, inner = name.rpartition(".")
        if outer and not hasattr(classes[outer], inner):  # protobuf's own Python lacks it
            setattr(classes[outer], inner, classes[name])
    return classes


def _add_field(message: Any, name: str, number: int, described: str) -> None:
    how, _, kind = described.rpartition(" ")
    is_list = how in ("repeated", "map")
    field = message.field.add(name=name, number=number, label=REPEATED if is_list else OPTIONAL)
    if how == "map":
        # On the wire, a list of messages that have a key and a value.
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string")
        _add_field(entry, "value", 2, kind)
        kind = f"{message.name}.{entry.name}"
    if how.startswith("oneof"):
        if not message.oneof_decl:
            message.oneof_decl.add(name=how.removeprefix("oneof").strip() or "kind")
        field.oneof_index = 0
    if kind in SCALARS:
        field.type = SCALARS[kind]
    else:
        field.type, field.type_name = MESSAGE, f".tensorflow.{kind}"
