"""Arrays as messages, and messages as arrays: `make_tensor_proto`, `make_ndarray`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import as_value
from aioqueue.compat.v1.core.shapes import as_shape
from aioqueue.compat.v1.ops.building import array
from aioqueue.compat.v1.ops.tensor_protos import NUMBERS, decode_tensor
from aioqueue.compat.v1.protos.tensors import tensor_class

__all__ = ("make_ndarray", "make_tensor_proto")

FIELDS = {
    "bool": "bool_val",
    "complex128": "dcomplex_val",
    "complex64": "scomplex_val",
    "float16": "half_val",
    "float32": "float_val",
    "float64": "double_val",
    "int64": "int64_val",
    "string": "string_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
}
"""Where single values of a dtype are; those of the others are in ``int_val``."""

CONTENT = frozenset(
    {
        "float16",
        "float32",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint32",
        "uint64",
    }
)
"""The dtypes of which several elements are written as they are in memory."""


def make_tensor_proto(
    values: Any,
    dtype: Any = None,
    shape: Any = None,
    verify_shape: bool = False,
    allow_broadcast: bool = False,
) -> Any:
    """A ``TensorProto`` message of a value, as TensorFlow lays it out. Needs the extra `tfrecord`.

    Args:
        values: a Python or NumPy value.
        dtype: what to make it; that which the value suggests if None.
        shape: what to give it; its own if None. The last element is repeated if there are fewer.
        verify_shape: whether the value must have the shape as it is.
        allow_broadcast: whether a value of one element is repeated with `verify_shape` too.

    Raises:
        ModuleNotFoundError: protobuf is not installed.
        TypeError: the value is not of the dtype's kind, or has not the shape that is to be
            verified.
        ValueError: it has more elements than the shape.
    """
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    given = array(as_value(values, wanted))
    sizes = given.shape if shape is None else tuple(map(int, as_shape(shape)))
    count = math.prod(sizes)
    repeats = allow_broadcast and given.size == 1
    if verify_shape and given.shape != sizes and not repeats:
        raise TypeError(f"Expected Tensor's shape: {sizes}, but got {given.shape}.")
    if given.size > count:
        raise ValueError(
            f"Too many elements provided. Takes at most {count}, but got {given.size}."
        )
    kind = dtypes.dtype_of_value(given)
    made = tensor_class()(dtype=NUMBERS[kind.name])
    made.tensor_shape.SetInParent()
    for size in sizes:
        made.tensor_shape.dim.add(size=size)
    is_whole = given.size == count > 1
    if is_whole and kind.name in CONTENT:
        stored = given.astype(given.dtype.newbyteorder("<"), copy=False)
        made.tensor_content = np.ascontiguousarray(stored).tobytes()
    else:
        getattr(made, FIELDS.get(kind.name, "int_val")).extend(_single(given))
    return made


def _single(given: NDArray[Any]) -> list[Any]:
    """The elements as the fields for single values have them."""
    flat = given.ravel()
    if given.dtype.kind == "c":  # the real part, then the imaginary one
        return flat.view(flat.real.dtype).tolist()
    return (flat.view(np.uint16) if given.dtype == np.float16 else flat).tolist()


def make_ndarray(tensor: Any) -> NDArray[Any]:
    """The array that a ``TensorProto`` message has; of `bytes` objects if it has strings.

    Raises:
        InvalidArgumentError: it is of a dtype that NumPy has not.
    """
    _, found = decode_tensor(tensor.SerializeToString())
    return found
