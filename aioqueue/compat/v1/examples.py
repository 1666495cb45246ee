"""The messages of ``tf.train.Example``, wire-compatible with TensorFlow's own.

`messages` makes the classes from a description of their fields when they are first asked for, in a
descriptor pool of their own: no generated code, no TensorFlow, and no quarrel with a TensorFlow in
the same process that registers the same names. They need protobuf, which is an extra; asking this
module for one of them, as for ``tf.train.Example``, makes them.

The layout is that of TensorFlow's ``example.proto`` and ``feature.proto``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

__all__ = ("MESSAGES", "feature_values", "messages")

MESSAGES = (
    "BytesList",
    "Example",
    "Feature",
    "FeatureList",
    "FeatureLists",
    "Features",
    "FloatList",
    "Int64List",
    "SequenceExample",
)

LABEL_OPTIONAL, LABEL_REPEATED = 1, 3
TYPE_FLOAT, TYPE_INT64, TYPE_STRING, TYPE_MESSAGE, TYPE_BYTES = 2, 3, 9, 11, 12

KINDS = {"bytes_list": "string", "float_list": "float", "int64_list": "int64"}
"""The kinds that a feature may have, each with the name that messages call its dtype."""


def __getattr__(name: str) -> Any:
    if name in MESSAGES:
        return messages()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def messages() -> dict[str, Any]:
    """The message classes by name, those in `MESSAGES`.

    Raises:
        ImportError: protobuf is not installed; the message says the command that installs it.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise ImportError(
            "tf.train.Example and its like need protobuf: pip install 'aioqueue[tfrecord]'"
        ) from error
    file = descriptor_pb2.FileDescriptorProto(
        name="tensorflow/core/example/example.proto", package="tensorflow", syntax="proto3"
    )
    lists = {"BytesList": TYPE_BYTES, "FloatList": TYPE_FLOAT, "Int64List": TYPE_INT64}
    for name, scalar in lists.items():
        _add_field(file.message_type.add(name=name), "value", 1, scalar, repeated=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (field, message) in enumerate(zip(KINDS, lists, strict=True), 1):
        _add_field(feature, field, number, message).oneof_index = 0
    _add_map(file.message_type.add(name="Features"), "feature", "Feature")
    feature_list = file.message_type.add(name="FeatureList")
    _add_field(feature_list, "feature", 1, "Feature", repeated=True)
    _add_map(file.message_type.add(name="FeatureLists"), "feature_list", "FeatureList")
    _add_field(file.message_type.add(name="Example"), "features", 1, "Features")
    sequence = file.message_type.add(name="SequenceExample")
    _add_field(sequence, "context", 1, "Features")
    _add_field(sequence, "feature_lists", 2, "FeatureLists")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tensorflow.{name}"))
        for name in MESSAGES
    }


def _add_field(
    message: Any, name: str, number: int, kind: int | str, *, repeated: bool = False
) -> Any:
    """Add a field of a scalar type, or of the message type that `kind` names."""
    field = message.field.add(
        name=name, number=number, label=LABEL_REPEATED if repeated else LABEL_OPTIONAL
    )
    if isinstance(kind, str):
        field.type, field.type_name = TYPE_MESSAGE, f".tensorflow.{kind}"
    else:
        field.type = kind
    return field


def _add_map(message: Any, name: str, kind: str) -> None:
    """Add a map from strings to messages, which on the wire is a list of entries."""
    entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
    entry.options.map_entry = True
    _add_field(entry, "key", 1, TYPE_STRING)
    _add_field(entry, "value", 2, kind)
    _add_field(message, name, 1, f"{message.name}.{entry.name}", repeated=True)


def feature_values(feature: Any) -> tuple[str, Any] | None:
    """The kind of a feature, as in `KINDS`, and its values; None if it has none.

    Args:
        feature: a ``Feature``, or None.
    """
    kind = None if feature is None else feature.WhichOneof("kind")
    return None if kind is None else (kind, getattr(feature, kind).value)
