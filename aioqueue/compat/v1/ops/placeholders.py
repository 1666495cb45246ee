"""Tensors whose value a run brings along: `placeholder` and `placeholder_with_default`."""

from __future__ import annotations

from typing import Any

from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.default_graph import op
from aioqueue.compat.v1.core.dtypes import DType, as_dtype
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape
from aioqueue.compat.v1.errors import InvalidArgumentError

__all__ = ("placeholder", "placeholder_with_default")

_C_NAMES = {"float32": "float", "float64": "double", "float16": "half"}


def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> Tensor:
    """A tensor that each run must be fed a value for.

    Args:
        dtype: the type of its elements.
        shape: what the values' shapes have in common; None for any shape.
        name: of the operation.
    """
    kind, static = as_dtype(dtype), as_shape(shape)
    wanted = _described(kind, static)

    def kernel(step: Any) -> Any:
        raise InvalidArgumentError(
            None, None, f"You must feed a value for placeholder tensor '{made.name}' with {wanted}"
        )

    made = op("Placeholder", (), [(kind, static)], kernel, name=name)
    return made.outputs[0]


def _described(dtype: DType, shape: TensorShape) -> str:
    """Dtype and shape as TensorFlow's kernels print them: ``dtype float and shape [2,?]``."""
    text = f"dtype {_C_NAMES.get(dtype.name, dtype.name)}"
    dims = shape.as_tuple()
    if dims:
        text += f" and shape [{','.join('?' if one is None else str(one) for one in dims)}]"
    return text


def placeholder_with_default(input: Any, shape: Any, name: str | None = None) -> Tensor:
    """A tensor that runs may be fed a value for, and that else has the value of `input`.

    Args:
        input: the value when nothing is fed.
        shape: what the values' shapes have in common.
        name: of the operation.

    Raises:
        ValueError: `input` cannot have that shape.
    """
    static = as_shape(shape)
    with name_scope(name, "PlaceholderWithDefault") as scope:
        tensor = convert_to_tensor(input, name="input")
        static.assert_is_compatible_with(tensor.shape)
        outputs = [(tensor.dtype, static)]
        made = op("PlaceholderWithDefault", [tensor], outputs, _default, name=scope)
    return made.outputs[0]


def _default(step: Any, value: Any) -> Any:
    return value
