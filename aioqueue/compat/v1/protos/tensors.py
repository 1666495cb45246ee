"""The message of a tensor, ``TensorProto``, wire-compatible with TensorFlow's own.

Its layout is that of TensorFlow's ``tensor.proto`` and ``tensor_shape.proto``.
"""

from __future__ import annotations

__all__ = ("SCHEMA",)

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
