"""Columns of Arrow as NumPy arrays, or as values for rows. What leaves is private and writable.

Nothing is copied where it need not be: what has been decoded from a Parquet file belongs to nobody
else, and becomes an array as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aioqueue import InvalidArgumentError

__all__ = ("array_of", "time_scalar", "values_of")

_TEMPORAL: Final = "mM"
_DAY: Final = np.timedelta64(1, "D")
_FLOATS: Final = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""What Arrow calls them; its ints are called as NumPy's are."""


def array_of(pa: Any, column: Any, name: str) -> NDArray[Any]:
    """A column as one array.

    Args:
        pa: the module pyarrow.
        column: a ``pyarrow.Array``.
        name: what messages call it.

    Returns:
        Numbers, bools and times as arrays of their dtype; lists of a fixed size of these with an
        axis more for each; all else as arrays of objects, as `values_of` has them.

    Raises:
        InvalidArgumentError: it has nulls, which an array of this dtype has no place for.
    """
    if isinstance(column, pa.FixedShapeTensorArray):
        return _shaped(array_of(pa, column.storage, name), column.type)
    column = _plain(pa, column)
    dtype = _dtype_of(pa, column.type)
    if dtype is None:
        return _objects(values_of(pa, column))
    if _is_dense(pa, column):
        return _dense(pa, column)
    if dtype.kind not in _TEMPORAL or pa.types.is_fixed_size_list(column.type):
        raise InvalidArgumentError(
            f"fill_null: got nothing for column {name!r}, which has nulls; expected the value to"
            " put there, since an array of numbers has no place for them"
        )
    array = _dense(pa, column)
    array[~_valid(column)] = "NaT"
    return array


def values_of(pa: Any, column: Any) -> list[Any]:
    """The values of a column, one by one; ``None`` for null.

    Args:
        pa: the module pyarrow.
        column: a ``pyarrow.Array``.

    Returns:
        NumPy scalars for numbers, bools and times; strings and bytes; arrays for lists of numbers
        without nulls, lists for others; dicts for structs; what Arrow makes of the rest.
    """
    if isinstance(column, pa.FixedShapeTensorArray):
        rows = values_of(pa, column.storage)
        return [None if row is None else _shaped(row[None], column.type)[0] for row in rows]
    column = _plain(pa, column)
    if column.null_count and _is_list(pa, column.type):
        # What stands where a list is null must not change what the others are.
        there = iter(values_of(pa, column.drop_null()))
        return [next(there) if valid else None for valid in _valid(column).tolist()]
    if _dtype_of(pa, column.type) is not None and _is_dense(pa, column, below=True):
        array = _dense(pa, column)
        found = list(array) if array.ndim == 1 else [row.copy() for row in array]
    elif _is_list(pa, column.type):
        found = _lists(pa, column)
    elif pa.types.is_struct(column.type):
        names = _different(field.name for field in column.type)
        fields = [values_of(pa, field) for field in column.flatten()]
        structs = zip(*fields, strict=True) if fields else [()] * len(column)
        found = [dict(zip(names, struct, strict=True)) for struct in structs]
    else:
        return list(column.to_pylist())
    return _with_nulls(found, column)


def time_scalar(pa: Any, value: Any, type: Any) -> Any:
    """A time as Arrow has it: a ``pyarrow.Scalar`` of a type of times.

    Args:
        pa: the module pyarrow.
        value: of NumPy, as `values_of` gives it, of `datetime`, or of pandas.
        type: that of the scalar.

    Raises:
        ValueError: the type has no such value: it is less exact, or of another kind.
        TypeError: it is no time.
    """
    dtype = _dtype_of(pa, type)
    given = _numpy_time(value)
    if dtype is None or given.dtype.kind != dtype.kind or np.isnat(given):
        raise ValueError(f"{value!r} is none of {type}")
    found = given.astype(dtype)
    is_day = pa.types.is_date64(type) and found != found.astype("M8[D]")
    if found.astype(given.dtype) != given or is_day:
        raise ValueError(f"{value!r} is more exact than {type}, or beyond it")
    if pa.types.is_time(type) and not 0 * _DAY <= given < _DAY:
        raise ValueError(f"{value!r} is no time of day")
    stored = pa.int32() if type.bit_width == 32 else pa.int64()
    return pa.scalar(int(found.astype(np.int64)), stored).cast(type)


def _numpy_time(value: Any) -> Any:
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()  # of pandas, which is more exact than what it is derived from
    if isinstance(value, np.datetime64 | np.timedelta64):
        return value
    if isinstance(value, time) and value.tzinfo is None:
        value = datetime.combine(date.min, value) - datetime.min
    if isinstance(value, timedelta):
        return np.timedelta64(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    if not isinstance(value, date):
        raise TypeError(f"{value!r} is no time")
    return np.datetime64(value)


def _plain(pa: Any, column: Any) -> Any:
    """The same without what is only a way to store it: dictionaries, runs, extensions."""
    while True:
        if isinstance(column, pa.DictionaryArray):
            column = column.dictionary_decode()
        elif isinstance(column, pa.ExtensionArray):
            column = column.storage
        elif isinstance(column, pa.RunEndEncodedArray):
            column = pa.compute.run_end_decode(column)
        else:
            return column


def _dtype_of(pa: Any, type: Any) -> np.dtype[Any] | None:
    """That of numbers, bools, times, and lists of a fixed size of them; ``None`` for others."""
    types = pa.types
    while types.is_fixed_size_list(type):
        type = type.value_type
    if types.is_boolean(type) or types.is_integer(type) or types.is_floating(type):
        return np.dtype(_FLOATS.get(str(type), str(type)))
    if types.is_date32(type):
        return np.dtype("M8[D]")
    if types.is_date64(type):
        return np.dtype("M8[ms]")
    if types.is_timestamp(type):
        return np.dtype(f"M8[{type.unit}]")
    if types.is_time(type) or types.is_duration(type):
        return np.dtype(f"m8[{type.unit}]")
    return None


def _is_list(pa: Any, type: Any) -> bool:
    types = pa.types
    return bool(types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type))


def _below(pa: Any, column: Any) -> Any:
    """The elements of lists of a fixed size, those of nulls too."""
    size = column.type.list_size
    return column.values.slice(column.offset * size, len(column) * size)


def _is_dense(pa: Any, column: Any, *, below: bool = False) -> bool:
    """Whether there are no nulls in it; or if only what is below counts, in its elements."""
    if column.null_count and not below:
        return False
    while pa.types.is_fixed_size_list(column.type):
        column = _below(pa, column)
        if column.null_count:
            return False
    return True


def _dense(pa: Any, column: Any) -> NDArray[Any]:
    """The data of a column of one dtype, whatever stands where there are nulls."""
    if pa.types.is_fixed_size_list(column.type):
        below = _dense(pa, _below(pa, column))
        return below.reshape(len(column), column.type.list_size, *below.shape[1:])
    dtype = _dtype_of(pa, column.type)
    assert dtype is not None
    if dtype.kind == "b":
        found: NDArray[Any] = column.fill_null(False).to_numpy(zero_copy_only=False)
        return found if found.flags.writeable else found.copy()
    stored = dtype
    if dtype.kind in _TEMPORAL:
        stored = np.dtype(f"i{column.type.bit_width // 8}")
    data = column.buffers()[-1]
    if data is None or not len(column):
        return np.zeros(len(column), dtype)
    array = np.frombuffer(data, stored, len(column), column.offset * stored.itemsize)
    if stored.itemsize != dtype.itemsize:
        return array.astype(np.int64).view(dtype)
    # Of what is decoded, nobody else has the memory; of what is only read, the file may.
    return (array if array.flags.writeable else array.copy()).view(dtype)


def _lists(pa: Any, column: Any) -> list[Any]:
    """Lists of elements: arrays where these are of one dtype, and none of them is null."""
    if pa.types.is_fixed_size_list(column.type):
        size = column.type.list_size
        elements = _below(pa, column)
        bounds = range(0, len(elements) + 1, size) if size else [0] * (len(column) + 1)
    else:
        offsets = column.offsets.to_numpy()
        elements = column.values.slice(offsets[0], offsets[-1] - offsets[0])
        bounds = (offsets - offsets[0]).tolist()
    elements = _plain(pa, elements)
    pairs = list(pairwise(bounds))
    if _dtype_of(pa, elements.type) is None or not _is_dense(pa, elements, below=True):
        values = values_of(pa, elements)
        return [values[begin:end] for begin, end in pairs]
    array = _dense(pa, elements)
    if not elements.null_count:
        return [array[begin:end].copy() for begin, end in pairs]
    values, valid = values_of(pa, elements), _valid(elements)
    return [
        array[begin:end].copy() if valid[begin:end].all() else values[begin:end]
        for begin, end in pairs
    ]


def _different(names: Iterable[str]) -> list[str]:
    """The fields of structs, if a dict of them has them all."""
    found = list(names)
    if len(set(found)) < len(found):
        raise InvalidArgumentError(
            f"columns: got one of structs with the fields {found}, of which a dict would lose some;"
            " expected fields of different names, or only columns that have them"
        )
    return found


def _with_nulls(values: list[Any], column: Any) -> list[Any]:
    if not column.null_count:
        return values
    valid = _valid(column).tolist()
    return [value if there else None for value, there in zip(values, valid, strict=True)]


def _valid(column: Any) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def _objects(values: list[Any]) -> NDArray[Any]:
    found = np.empty(len(values), object)
    # One by one: of lists of one length, NumPy would make an axis more.
    for at, value in enumerate(values):
        found[at] = value
    return found


def _shaped(array: NDArray[Any], type: Any) -> NDArray[Any]:
    """Tensors in the shape that their type says, from rows of their elements."""
    shaped = array.reshape(len(array), *type.shape)
    order = type.permutation
    return shaped if order is None else shaped.transpose(0, *(axis + 1 for axis in order))
