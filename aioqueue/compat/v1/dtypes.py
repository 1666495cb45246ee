"""``tf.dtypes``: the types of tensors' elements."""

from __future__ import annotations

from aioqueue.compat.v1.absent import (
    names_of,
)
from aioqueue.compat.v1.core.dtypes import (
    DType,
    as_dtype,
    bool,
    complex64,
    complex128,
    double,
    float16,
    float32,
    float64,
    half,
    int8,
    int16,
    int32,
    int64,
    resource,
    string,
    uint8,
    uint16,
    uint32,
    uint64,
    variant,
)
from aioqueue.compat.v1.ops.casting import (
    cast,
    saturate_cast,
)
from aioqueue.compat.v1.ops.text import as_string

__all__ = (
    "DType",
    "as_dtype",
    "as_string",
    "bool",
    "cast",
    "complex64",
    "complex128",
    "double",
    "float16",
    "float32",
    "float64",
    "half",
    "int8",
    "int16",
    "int32",
    "int64",
    "resource",
    "saturate_cast",
    "string",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "variant",
)

__getattr__ = names_of(__name__)
