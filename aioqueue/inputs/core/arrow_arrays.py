"""Conversion of NumPy arrays and Python values to Arrow arrays, the inverse of `arrow_columns`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

__all__ = ("array_of_column", "array_of_values")

_DIRECT: Final = "biufmM"
"""The kinds of dtypes that Arrow has."""


def array_of_values(pa: Any, values: Sequence[Any], type: Any = None) -> Any:
    """Convert values, one of each row.

    Args:
        pa: the module pyarrow.
        values: NumPy scalars and arrays, or what `pyarrow.array` takes; ``None`` for null.
        type: the type that the array must have; ``None`` to find one.

    Returns:
        A ``pyarrow.Array``. NumPy's arrays become lists, and those of more than one axis tensors of
        a fixed shape.

    Raises:
        pyarrow.ArrowException: the values do not have this type, or no type in common.
        ValueError: as before; or arrays differ in shape.
        TypeError: as before.
    """
    first = next((value for value in values if value is not None), None)
    if isinstance(first, np.generic) and first.dtype.kind in _DIRECT:
        # NumPy reads its own scalars faster than Arrow does. Among others it has another dtype.
        found = np.array(values)
        if found.ndim == 1 and found.dtype == first.dtype:
            return _typed(pa, pa.array(found), type)
    is_array = hasattr(first, "__array__") and not isinstance(first, np.generic)
    if not is_array:
        return _found(pa, values, type)
    arrays = [None if value is None else np.asarray(value) for value in values]
    axes = getattr(first, "ndim", 1)
    if axes > 1:
        return _typed(pa, _tensors(pa, arrays), type)
    return _found(pa, arrays if axes else [one if one is None else one[()] for one in arrays], type)


def array_of_column(pa: Any, column: Any, type: Any = None) -> Any:
    """Convert a component of a batch.

    Args:
        pa: the module pyarrow.
        column: an array of shape (n, ...), or a list of n values.
        type: the type that the array must have; ``None`` to find one.

    Returns:
        A ``pyarrow.Array`` of length n. It may share the memory of the component.

    Raises:
        pyarrow.ArrowException, ValueError, TypeError: as of `array_of_values`.
    """
    if hasattr(column, "__array__"):
        column = np.asarray(column)
    if not isinstance(column, np.ndarray) or column.dtype.kind not in _DIRECT:
        return array_of_values(pa, list(column), type)
    if column.ndim == 1:
        return _typed(pa, pa.array(column), type)
    if column.ndim == 2:
        flat = pa.array(np.ascontiguousarray(column).reshape(-1))
        if not column.shape[1]:
            return array_of_values(pa, list(column), type)
        return _typed(pa, pa.FixedSizeListArray.from_arrays(flat, column.shape[1]), type)
    return _typed(pa, _tensor(pa, column), type)


def _tensors(pa: Any, arrays: list[Any]) -> Any:
    shapes = {one.shape for one in arrays if one is not None}
    if len(shapes) > 1:
        told = " and ".join(map(str, sorted(shapes)[:2]))
        raise ValueError(f"arrays of the shapes {told}; only those of one axis may differ")
    if any(one is None for one in arrays):
        raise ValueError("arrays of several axes, and None")
    return _tensor(pa, np.stack(arrays))


def _tensor(pa: Any, array: Any) -> Any:
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(array))


def _found(pa: Any, values: Sequence[Any], type: Any) -> Any:
    """An array of a type that is found for the values, and not simply told: told a type, Arrow
    would cut fractions off, and leave fields of structs out."""
    try:
        found = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError):
        if type is None:
            raise
        return pa.array(values, type)  # maps, say, which look like lists
    return _typed(pa, found, type)


def _typed(pa: Any, array: Any, type: Any) -> Any:
    """The array in this type, if it holds all values."""
    if type is None or array.type == type:
        return array
    _check_kept(pa, array.type, type)
    return array.cast(type)


def _check_kept(pa: Any, given: Any, type: Any) -> None:
    """Check that a cast keeps all fields of structs, and makes no bools of numbers.

    Raises:
        ValueError: it does not.
    """
    types = pa.types
    if types.is_struct(given) and types.is_struct(type):
        ours = {field.name: field.type for field in type}
        for field in given:
            if field.name not in ours:
                raise ValueError(f"a field {field.name!r}, which {type} does not have")
            _check_kept(pa, field.type, ours[field.name])
    elif _is_list(pa, given) and _is_list(pa, type):
        _check_kept(pa, given.value_type, type.value_type)
    elif types.is_boolean(type) and not (types.is_boolean(given) or types.is_null(given)):
        raise ValueError(f"{given} for bools")


def _is_list(pa: Any, type: Any) -> bool:
    types = pa.types
    return bool(types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type))
