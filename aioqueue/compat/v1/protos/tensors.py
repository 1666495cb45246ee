"""The message of a tensor, ``TensorProto``, wire-compatible with TensorFlow's own.

Its layout is that of TensorFlow's ``tensor.proto`` and ``tensor_shape.proto``. It needs protobuf,
which is an extra, so that the class is made when it is asked for.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from aioqueue.compat.v1.protos.messages import message_classes

__all__ = ("tensor_class",)

SCHEMA: dict[str, dict[str, str]] = {
    "TensorShapeProto": {
        "reserved": "",
        "dim": "repeated TensorShapeProto.Dim",
        "unknown_rank": "bool",
    },
    "TensorShapeProto.Dim": {"size": "int64", "name": "string"},
    "TensorProto": {
        "dtype": "int32",
        "tensor_shape": "TensorShapeProto",
        "version_number": "int32",
        "tensor_content": "bytes",
        "float_val": "repeated float",
        "double_val": "repeated double",
        "int_val": "repeated int32",
        "string_val": "repeated bytes",
        "scomplex_val": "repeated float",
        "int64_val": "repeated int64",
        "bool_val": "repeated bool",
        "dcomplex_val": "repeated double",
        "half_val": "repeated int32",
        "resource_handle_val": "",
        "variant_val": "",
        "uint32_val": "repeated uint32",
        "uint64_val": "repeated uint64",
    },
}


@cache
def tensor_class() -> Any:
    """The class ``TensorProto``.

    Raises:
        ModuleNotFoundError: protobuf is not installed.
    """
    return message_classes("tensorflow/core/framework/tensor.proto", SCHEMA)["TensorProto"]
