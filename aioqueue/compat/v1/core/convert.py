"""Values to tensors: `constant` and `convert_to_tensor`, by TensorFlow 1's rules.

Python numbers become float32 and int32 (int64 if they need it), text ``bytes``; with a dtype,
Python values must be of its kind, and NumPy values are cast without a word.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.default_graph import get_default_graph, op
from aioqueue.compat.v1.core.dtypes import DType, as_dtype
from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import TensorShape, as_shape

__all__ = ("constant", "convert_to_tensor", "register_tensor_conversion_function")

Converter = Callable[..., Any]


def as_bytes(text: str | bytes) -> bytes:
    """A string as TensorFlow holds it: text in UTF-8."""
    return text.encode() if isinstance(text, str) else text


def plain_value(array: Any) -> Any:
    """What a user sees of an array: itself, or for rank 0 a NumPy scalar or ``bytes``."""
    return array[()] if isinstance(array, np.ndarray) and array.ndim == 0 else array


def freeze(value: Any) -> Any:
    """The value; an array as a read-only view: a fetch gives copies of it."""
    if isinstance(value, np.ndarray) and value.flags.writeable:
        value = value.view()
        value.flags.writeable = False
    return value


def as_value(value: Any, dtype: DType | None = None, *, check: bool = True) -> Any:
    """A Python or NumPy value as kernels get them: array, NumPy scalar, or ``bytes``."""
    return plain_value(_as_array(value, dtype, check))


def _as_array(value: Any, dtype: DType | None, check: bool) -> np.ndarray[Any, Any]:
    if value is None:
        raise ValueError("None values not supported.")
    if isinstance(value, np.ndarray | np.generic):
        given = np.asarray(value)
        if dtype is not None and dtype is not dtypes.string and given.dtype.kind not in "OSU":
            return given.astype(dtype.numpy, copy=False)
        if dtype is None and given.dtype.kind not in "OSU":
            as_dtype(given.dtype)  # raises for types that TensorFlow had not
            return given
    elif dtype is not None and check:
        _check_kind(value, dtype)
    if dtype is None:
        return _suggested(value)
    if dtype is dtypes.string:
        return _as_strings(np.asarray(value, dtype=object))
    return np.asarray(value, dtype=dtype.numpy)


def _suggested(value: Any) -> np.ndarray[Any, Any]:
    """A Python value (or NumPy strings) as the array that TensorFlow would make of it."""
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        texts = np.asarray(value, dtype=object)
        if not all(isinstance(one, str | bytes) for one in texts.flat):
            raise TypeError(
                f"Failed to convert elements of {value!r} to Tensor. Consider casting elements to a"
                " supported type. See https://www.tensorflow.org/api_docs/python/tf/dtypes for"
                " supported TF dtypes."
            )
        return _as_strings(texts)
    if array.dtype == np.float64:
        return array.astype(np.float32)
    if array.dtype == np.int64:
        smaller = array.astype(np.int32)
        return smaller if np.array_equal(smaller, array) else array
    as_dtype(array.dtype)
    return array


def _as_strings(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype == object and set(map(type, array.ravel().tolist())) == {bytes}:
        return array.copy()
    result = np.empty(array.shape, dtype=object)
    for index, one in enumerate(array.flat):
        if not isinstance(one, str | bytes):
            given = one.item() if isinstance(one, np.generic) else one
            raise TypeError(f"Expected binary or unicode string, got {given!r}")
        result.flat[index] = as_bytes(one)
    return result


def _is_real(one: Any) -> bool:
    return isinstance(one, numbers.Real | np.floating | np.integer | np.bool_)


_KINDS: dict[str, Callable[[Any], bool]] = {
    "i": lambda one: isinstance(one, numbers.Integral | np.bool_),
    "u": lambda one: isinstance(one, numbers.Integral | np.bool_),
    "f": _is_real,
    "c": lambda one: isinstance(one, numbers.Complex) or _is_real(one),
    "b": lambda one: isinstance(one, bool | np.bool_),
    "O": lambda one: isinstance(one, str | bytes),
}

_PLAIN: dict[str, set[type]] = {
    "i": {int, bool}, "u": {int, bool}, "f": {float, int, bool}, "c": {complex, float, int, bool},
    "b": {bool}, "O": {str, bytes},
}  # fmt: skip
"""Of each kind the types that need no closer look: lists of them are checked all at once."""


def _check_kind(value: Any, dtype: DType) -> None:
    """Raise TypeError for the first Python value that `dtype` cannot hold."""
    if isinstance(value, list | tuple):
        if _PLAIN[dtype.numpy.kind].issuperset(map(type, value)):
            return
        for one in value:
            _check_kind(one, dtype)
    elif hasattr(value, "__array__") and not isinstance(value, np.generic):
        return
    elif not _KINDS[dtype.numpy.kind](value) and not isinstance(value, np.ndarray):
        # np.asarray may still know it (an array-like of another library), Python values not.
        raise TypeError(f"Expected {dtype.name}, but got {value} of type '{type(value).__name__}'.")


def constant(
    value: Any,
    dtype: Any = None,
    shape: Any = None,
    name: str = "Const",
    verify_shape: bool = False,
) -> Tensor:
    """A tensor that always has this value."""
    if isinstance(value, Tensor | Operation):
        raise TypeError("Expected any non-tensor type, but got a tensor instead.")
    array = _as_array(value, None if dtype is None else as_dtype(dtype), check=True)
    if isinstance(value, np.ndarray) and array.base is None and array is value:
        array = array.copy()  # the caller's to change
    elif isinstance(value, np.ndarray):
        array = np.array(array)
    if shape is not None:
        array = _filled(array, as_shape(shape), verify_shape)
    return _constant_op(array, as_dtype(array.dtype), name)


def _filled(array: np.ndarray[Any, Any], shape: TensorShape, verify: bool) -> Any:
    dims = [int(one) for one in shape.as_list() if one is not None]
    if len(dims) != len(shape):
        raise ValueError(f"Shape {shape} is not fully defined")
    if verify and dims != list(array.shape):
        raise TypeError(f"Expected Tensor's shape: {tuple(dims)}, got {array.shape}.")
    wanted = int(np.prod(dims, dtype=np.int64))
    if array.size > wanted:
        raise ValueError(
            f"Too many elements provided. Takes at most {wanted:d}, but got {array.size:d}."
        )
    if array.size == wanted:
        return array.reshape(dims)
    flat = np.empty(wanted, array.dtype)
    flat[: array.size] = array.flat
    if array.size == 0:
        raise ValueError(f"Cannot fill shape {shape} from a value with no elements.")
    flat[array.size :] = array.flat[array.size - 1]
    return flat.reshape(dims)


def _constant_op(array: np.ndarray[Any, Any], dtype: DType, name: str) -> Tensor:
    value = plain_value(freeze(array))

    def kernel(step: Any) -> Any:
        return value

    made = get_default_graph().create_op(
        "Const",
        (),
        [(dtype, TensorShape(array.shape))],
        kernel,
        name=name,
        attrs={"value": value, "dtype": dtype},
    )
    return made.outputs[0]


# Conversion.

_converters: list[tuple[int, tuple[type, ...], Converter]] = []


def register_tensor_conversion_function(
    base_type: type | tuple[type, ...], conversion_func: Converter, priority: int = 100
) -> None:
    """Let `convert_to_tensor` take another type; smaller ``priority`` is asked first."""
    types = base_type if isinstance(base_type, tuple) else (base_type,)
    if not types or not all(isinstance(one, type) for one in types):
        raise TypeError("base_type must be a type or a tuple of types.")
    if not callable(conversion_func):
        raise TypeError("conversion_func must be callable.")
    # A new list: another thread may be going through the old one.
    global _converters
    entry = (priority, types, conversion_func)
    _converters = sorted([*_converters, entry], key=lambda one: one[0])


def convert_to_tensor(
    value: Any, dtype: Any = None, name: str | None = None, preferred_dtype: Any = None
) -> Tensor:
    """A tensor for `value`: itself if it is one, else whatever stands for it, else a constant."""
    wanted = None if dtype is None else as_dtype(dtype)
    if isinstance(value, Tensor):
        return _checked(value, wanted, f"{name}: " if name else "")
    if wanted is None and preferred_dtype is not None:
        try:
            return convert_to_tensor(value, preferred_dtype, name)
        except (TypeError, ValueError):
            pass  # preferred, not required
    for _, types, converter in _converters:
        if isinstance(value, types):
            made = converter(value, dtype=wanted, name=name, as_ref=False)
            if made is not NotImplemented:
                return _checked(made, wanted)
    if isinstance(value, list | tuple) and _has_tensors(value):
        return _packed(value, wanted, name)
    return constant(value, wanted, name=name or "Const")


def _checked(tensor: Tensor, dtype: DType | None, whose: str = "") -> Tensor:
    if dtype is not None and tensor.dtype is not dtype:
        raise ValueError(
            f"{whose}Tensor conversion requested dtype {dtype.name} for Tensor with dtype "
            f"{tensor.dtype.name}: {tensor!r}"
        )
    return tensor


def _has_tensors(value: Sequence[Any]) -> bool:
    kinds: tuple[type, ...] = (Tensor, *(kind for _, types, _ in _converters for kind in types))
    return any(
        _has_tensors(one) if isinstance(one, list | tuple) else isinstance(one, kinds)
        for one in value
    )


def _first_dtype(value: Any) -> DType | None:
    """The dtype of the first tensor, or of what stands for one, in nested lists."""
    if isinstance(value, list | tuple):
        return next(filter(None, map(_first_dtype, value)), None)
    return getattr(value, "dtype", None) if _has_tensors((value,)) else None


def _packed(value: Sequence[Any], dtype: DType | None, name: str | None) -> Tensor:
    """Rows of tensors and values as one tensor."""
    dtype = dtype or _first_dtype(value)
    with name_scope(name or "packed") as scope:
        rows = [_row(one, dtype, str(i)) for i, one in enumerate(value)]
        shape = rows[0].shape
        for row in rows[1:]:
            shape = shape.merge_with(row.shape)
        outputs = [(rows[0].dtype, TensorShape([len(rows)]).concatenate(shape))]
        return op("Pack", rows, outputs, _pack, name=scope).outputs[0]


def _row(value: Any, dtype: DType | None, name: str) -> Tensor:
    """A row of a packed tensor; a tensor of numbers of another dtype is cast."""
    if isinstance(value, list | tuple) and _has_tensors(value):
        return _packed(value, dtype, name)
    given = getattr(value, "dtype", None) if _has_tensors((value,)) else None
    if dtype is None or given is None or given == dtype or dtypes.string in (given, dtype):
        return convert_to_tensor(value, dtype, name=name)
    tensor = convert_to_tensor(value)
    wanted = dtype.numpy

    def kernel(step: Any, number: Any) -> Any:
        return number.astype(wanted)

    return op("Cast", [tensor], [(dtype, tensor.shape)], kernel).outputs[0]


def _pack(step: Any, *rows: Any) -> Any:
    if isinstance(rows[0], bytes):
        packed = np.empty(len(rows), dtype=object)
        packed[:] = rows
        return packed
    return np.stack(rows)
