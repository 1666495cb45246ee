"""The messages of ``tf.train.Example``, wire-compatible with TensorFlow's own.

They need protobuf, which is an extra, so that the classes are made when somebody asks ``tf.train``
for one of them. Their layout is that of TensorFlow's ``example.proto`` and
``feature.proto``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from aioqueue.compat.v1.protos.messages import message_classes

__all__ = ("KINDS", "MESSAGES", "example_classes", "feature_values")

KINDS = {"bytes_list": "string", "float_list": "float", "int64_list": "int64"}
"""The kinds that a feature may have, each with what messages call its dtype."""

SCHEMA: dict[str, dict[str, str]] = {
    "BytesList": {"value": "repeated bytes"},
    "FloatList": {"value": "repeated float"},
    "Int64List": {"value": "repeated int64"},
    "Feature": {
        "bytes_list": "oneof BytesList",
        "float_list": "oneof FloatList",
        "int64_list": "oneof Int64List",
    },
    "Features": {"feature": "map Feature"},
    "FeatureList": {"feature": "repeated Feature"},
    "FeatureLists": {"feature_list": "map FeatureList"},
    "Example": {"features": "Features"},
    "SequenceExample": {"context": "Features", "feature_lists": "FeatureLists"},
}

MESSAGES = tuple(SCHEMA)
"""The names of the classes."""


@cache
def example_classes() -> dict[str, Any]:
    """The message classes by name, those in `MESSAGES`.

    Raises:
        ModuleNotFoundError: protobuf is not installed.
    """
    return message_classes("tensorflow/core/example/example.proto", SCHEMA)


def feature_values(feature: Any) -> tuple[str, Any] | None:
    """The kind of a feature, as in `KINDS`, and its values; None if it has none.

    Args:
        feature: a ``Feature``, or None.
    """
    kind = None if feature is None else feature.WhichOneof("kind")
    return None if kind is None else (kind, getattr(feature, kind).value)
