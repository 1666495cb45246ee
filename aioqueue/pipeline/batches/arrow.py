"""Conversion of Arrow columns to private, writable arrays and Python values, and the inverse.

Data is copied only if necessary: what was decoded from a Parquet file has no other owner, so its
memory becomes an array without a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.core.elements.trees import is_array_like
from aioqueue.pipeline.batches.arrow_exact import (
    are_plain_tensors,
    check_cast,
    check_times,
    is_plain,
    is_same,
    kind_of,
    may_become,
    numpy_time,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TEMPORAL: Final = "mM"
_DAY: Final = np.timedelta64(1, "D")
_FLOATS: Final = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""Arrow's names of types; Arrow and NumPy call ints the same."""


def array_of(pa: Any, column: Any, name: str) -> NDArray[Any]:
    """Convert a column to one array.

    Args:
        pa: the module pyarrow.
        column: a ``pyarrow.Array``.
        name: the column's name in messages.

    Returns:
        An array of the column's dtype for numbers, bools and times. Lists of a fixed size of these
        add an axis each. Anything else becomes an array of objects, as from `values_of`.

    Raises:
        InvalidArgumentError: the column has nulls, which an array of this dtype cannot hold.
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
            f"fill_null: got nothing for column {name!r}, which has nulls; expected a value to"
            " replace them, because an array of numbers cannot hold nulls"
        )
    array = _dense(pa, column)
    array[~_valid(column)] = "NaT"
    return array


def values_of(pa: Any, column: Any) -> list[Any]:
    """Convert a column to a list of values, with ``None`` for null.

    Args:
        pa: the module pyarrow.
        column: a ``pyarrow.Array``.

    Returns:
        NumPy scalars for numbers, bools and times; strings and bytes; arrays for lists of numbers
        without nulls, lists for other lists; dicts for structs; Arrow's own values for the rest.
    """
    if isinstance(column, pa.FixedShapeTensorArray):
        rows = values_of(pa, column.storage)
        return [
            None if row is None else _shaped(_row(pa, row, column), column.type)[0] for row in rows
        ]
    column = _plain(pa, column)
    if column.null_count and _is_list(pa, column.type):
        # The hidden elements of null lists must not affect the other lists.
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


def _row(pa: Any, row: Any, column: Any) -> NDArray[Any]:
    """Return the elements of a tensor as an array of shape (1, elements)."""
    if isinstance(row, np.ndarray):
        return row[None]
    dtype = _dtype_of(pa, column.type.value_type)  # some are null
    if dtype is None or dtype.kind not in _TEMPORAL:
        return _objects(row)[None]
    nat = np.array("NaT", dtype)
    return np.array([[nat if one is None else one for one in row]], dtype)


def time_scalar(pa: Any, value: Any, type: Any) -> Any:
    """Convert a time to Arrow, as a ``pyarrow.Scalar`` of a type of times.

    Args:
        pa: the module pyarrow.
        value: a time of NumPy (as from `values_of`), of `datetime`, or of pandas.
        type: the scalar's type.

    Raises:
        ValueError: the type cannot hold the value: it is less precise, or of another kind.
        TypeError: the value is not a time.
    """
    dtype = _dtype_of(pa, type)
    given = numpy_time(value)
    if dtype is None or given.dtype.kind != dtype.kind or np.isnat(given):
        raise ValueError(f"{value!r} is not a value of {type}")
    found = given.astype(dtype)
    is_day = pa.types.is_date64(type) and found != found.astype("M8[D]")
    if found.astype(given.dtype) != given or is_day:
        raise ValueError(f"{value!r} is more precise than {type}, or out of its range")
    if pa.types.is_time(type) and not 0 * _DAY <= given < _DAY:
        raise ValueError(f"{value!r} is not a time of day")
    stored = pa.int32() if type.bit_width == 32 else pa.int64()
    return pa.scalar(int(found.astype(np.int64)), stored).cast(type)


def _plain(pa: Any, column: Any) -> Any:
    """Return the column without storage encodings: dictionaries, runs, extension types."""
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
    """Return the dtype of numbers, bools, times, and lists of a fixed size of them, or ``None``."""
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
    """Return the elements of lists of a fixed size, including those of nulls."""
    size = column.type.list_size
    return column.values.slice(column.offset * size, len(column) * size)


def _is_dense(pa: Any, column: Any, *, below: bool = False) -> bool:
    """Return whether a column has no nulls; with ``below``, whether its elements have none."""
    if column.null_count and not below:
        return False
    while pa.types.is_fixed_size_list(column.type):
        column = _below(pa, column)
        if column.null_count:
            return False
    return True


def _dense(pa: Any, column: Any) -> NDArray[Any]:
    """Return the data of a column of one dtype. Places of nulls hold arbitrary values."""
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
    # Decoded data has no other owner; data that was only read may belong to the file.
    return (array if array.flags.writeable else array.copy()).view(dtype)


def _lists(pa: Any, column: Any) -> list[Any]:
    """Return lists of elements, as arrays if the elements have one dtype and no nulls."""
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
    """Return the fields of structs, if their names differ, so that a dict can hold them all."""
    found = list(names)
    if len(set(found)) < len(found):
        raise InvalidArgumentError(
            f"columns: got one of structs with the fields {found}, which a dict cannot hold all;"
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
    # One by one: NumPy would turn lists of one length into another axis.
    for at, value in enumerate(values):
        found[at] = value
    return found


def _shaped(array: NDArray[Any], type: Any) -> NDArray[Any]:
    """Reshape rows of elements to the tensors that their type describes."""
    if array.dtype == object and array.ndim == 1:  # one list a row: of text, say
        flat = np.empty((len(array), math.prod(type.shape)), object)
        for at, row in enumerate(array):
            flat[at] = row
        array = flat
    shaped = array.reshape(len(array), *type.shape)
    order = type.permutation
    return shaped if order is None else shaped.transpose(0, *(axis + 1 for axis in order))


_MOST_DEEP: Final = 64
"""How deep lists and dicts may be in each other."""
_DIRECT: Final = "biufmM"
"""The kinds of dtypes that Arrow has."""


def array_of_values(
    pa: Any, values: Sequence[Any], type: Any = None, *, rounds: bool = False
) -> Any:
    """Convert values, one of each row, exactly.

    Args:
        pa: the module pyarrow.
        values: NumPy scalars and arrays, or what `pyarrow.array` takes; ``None`` for null.
        type: the type that the array must have; ``None`` to find one.
        rounds: whether the user has asked for this type: then it may round numbers to floats, and
            hold the bytes of text, the text of bytes, and dates as times.

    Returns:
        A ``pyarrow.Array``. NumPy's arrays become lists, and those of more than one axis tensors of
        a fixed shape.

    Raises:
        pyarrow.ArrowException: the values do not have this type, or no type in common.
        ValueError: as before; or arrays differ in shape; or a value would come back as another one.
        TypeError: as before.
    """
    if type is not None and pa.types.is_map(type):
        return _maps(pa, values, type, rounds)
    if is_plain(values):
        return _found(pa, _as_arrow_takes(values), type, rounds)
    if are_plain_tensors(values):
        return typed(pa, _tensors(pa, values), type, rounds=rounds)
    plain = _of_one_unit([_in_plain_units(pa, value, type, is_row=True) for value in values])
    check_times(plain)
    first = next((value for value in plain if value is not None), None)
    is_array = is_array_like(first) and not isinstance(first, np.generic)
    axes = getattr(first, "ndim", 1) if is_array else 0
    if is_array:
        plain = [None if value is None else _unmasked(value) for value in plain]
    if axes > 1:
        found = _tensors(pa, plain)
        _check_same(pa, values, found)
        return typed(pa, found, type, rounds=rounds)
    if is_array and not axes:
        plain = [one if one is None else one[()] for one in plain]
    return _found(pa, _as_arrow_takes(plain), type, rounds, given=values)


def _as_arrow_takes(values: Sequence[Any]) -> Any:
    """Return values as an array of NumPy, which reads its own scalars faster than Arrow does; or
    without unsigned ints of NumPy among others, since Arrow would turn those into floats."""
    classes = set(map(_type_of, values))
    first = next((value for value in values if value is not None), None)
    if len(classes) == 1 and isinstance(first, np.generic) and first.dtype.kind in _DIRECT:
        return np.array(values)
    if np.uint64 in classes and len(classes - {None.__class__}) > 1:
        return [int(one) if isinstance(one, np.uint64) else one for one in values]
    return values


def array_of_column(pa: Any, column: Any, type: Any = None, *, rounds: bool = False) -> Any:
    """Convert a component of a batch, exactly.

    Args:
        pa: the module pyarrow.
        column: an array of shape (n, ...), or a list of n values; a dict of these makes structs.
        type: the type that the array must have; ``None`` to find one.
        rounds: as for `array_of_values`.

    Returns:
        A ``pyarrow.Array`` of length n. It may share the memory of the component.

    Raises:
        pyarrow.ArrowException, ValueError, TypeError: as of `array_of_values`.
    """
    if isinstance(column, Mapping):
        return _structs(pa, column, type, rounds)
    if hasattr(column, "__array__"):
        column = _in_plain_units(pa, _unmasked(column), type)
    if not isinstance(column, np.ndarray) or column.dtype.kind not in _DIRECT:
        return array_of_values(pa, list(column), type, rounds=rounds)
    if column.ndim == 1:
        return typed(pa, pa.array(column), type, rounds=rounds)
    if column.ndim == 2:
        flat = pa.array(np.ascontiguousarray(column).reshape(-1))
        if not column.shape[1]:
            return array_of_values(pa, list(column), type, rounds=rounds)
        found = pa.FixedSizeListArray.from_arrays(flat, column.shape[1])
        return typed(pa, found, type, rounds=rounds)
    return typed(pa, _tensor(pa, column), type, rounds=rounds)


def _type_of(value: Any) -> type:
    return type(value)


def _unmasked(value: Any) -> NDArray[Any]:
    """Return a value as an array, in the byte order of this machine.

    Raises:
        ValueError: it has a mask, which would be lost.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError("a masked array; fill it, as with value.filled(0)")
    found = np.asarray(value)
    native: NDArray[Any] = found.astype(found.dtype.newbyteorder("="), copy=False)
    return native


_UNITS: Final = {
    "M": dict.fromkeys("YMWD", "D") | dict.fromkeys("hms", "ms"),
    "m": dict.fromkeys("WDhms", "s"),
}
_FINE: Final = dict.fromkeys(("ps", "fs", "as"), "ns") | {"ms": "ms", "us": "us", "ns": "ns"}


def _in_plain_units(
    pa: Any, value: Any, type: Any, *, is_row: bool = False, is_element: bool = False
) -> Any:
    """Return a time of NumPy, an array of them, or a container of these in units that Arrow and
    Parquet have. Arrow would take 25 s for 1 s, and Parquet has no timestamps in seconds.

    Args:
        pa: the module pyarrow.
        value: any value.
        type: the type that it must have; ``None`` for any.
        is_row: whether it is the value of a row, and no column. Arrow makes no lists of days.
        is_element: whether it is in a list or dict, in which Arrow takes none, either.

    Raises:
        ValueError: it has no place in them.
    """
    if isinstance(value, dict):
        return {key: _in_plain_units(pa, one, None, is_element=True) for key, one in value.items()}
    if isinstance(value, list | tuple):
        made = [_in_plain_units(pa, one, None, is_element=True) for one in value]
        return made if isinstance(value, list) else tuple(made)  # pairs of maps must be tuples
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in _TEMPORAL:
        return value
    dtype: Any = value.dtype
    unit, count = np.datetime_data(dtype)
    plain = (_UNITS[dtype.kind] | _FINE).get(unit)
    if unit == "generic":
        if not np.isnat(value).all():
            raise ValueError(f"a time without a unit, {value!r}")
        return value.astype(f"{dtype.kind}8[ms]")
    if plain is None:
        raise ValueError(f"durations in {dtype}, which have no fixed length")
    is_list = is_row and isinstance(value, np.ndarray) and value.ndim
    if plain == "D" and (is_list or is_element or (type is not None and _holds_times(pa, type))):
        plain = "ms"
    if count > 1 or plain != unit:
        found = value.astype(f"{dtype.kind}8[{plain}]")
        if not np.all((found.astype(dtype) == value) | np.isnat(value)):
            raise ValueError(f"times in {dtype} that have no place in units of {plain}")
        value = found
    if plain == "D":
        days = np.asarray(value).astype(np.int64)
        if np.any((abs(days) >= 2**31) & ~np.isnat(value)):
            raise ValueError(f"dates that have no place in 32 bits, such as {value!r}")
    return value


def _holds_times(pa: Any, type: Any) -> bool:
    while hasattr(type, "value_type"):
        type = type.value_type
    return bool(pa.types.is_timestamp(type))


def _of_one_unit(values: list[Any]) -> list[Any]:
    """Return times of NumPy, or arrays of them, in the finest of their units: Arrow would take the
    unit of the first for all.

    Raises:
        ValueError: one has no place in that.
    """
    found = [value for value in values if value is not None]
    dtypes = {getattr(value, "dtype", None) for value in found}
    if len(dtypes) < 2 or {getattr(one, "kind", "") for one in dtypes} not in ({"m"}, {"M"}):
        return values
    dtype = np.result_type(*dtypes)
    made = []
    for value in values:
        one = value if value is None else value.astype(dtype)
        if one is not None and not np.all((one.astype(value.dtype) == value) | np.isnat(value)):
            raise ValueError(f"times in {value.dtype} and {dtype}; {value!r} has no place in that")
        made.append(one)
    return made


class ChangedError(ValueError):
    """A value would come back as another one.

    Args:
        message: says which.
        at: its number among the values.
    """

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


def _check_same(pa: Any, given: Sequence[Any], array: Any) -> None:
    """Check that values come back from an array as they were given.

    Raises:
        ChangedError: one does not.
    """
    for at, (one, found) in enumerate(zip(given, values_of(pa, array), strict=True)):
        if not is_same(pa, one, found, array.type):
            shown = f"{one!r:.200}, which would come back as {found!r:.200}"
            raise ChangedError(f"{shown} of {array.type}", at)


def _structs(pa: Any, columns: Mapping[str, Any], type: Any, rounds: bool) -> Any:
    types: dict[str, Any] = {}
    if type is not None and pa.types.is_struct(type):
        types = {field.name: field.type for field in type}
    arrays = [
        array_of_column(pa, one, types.get(name), rounds=rounds) for name, one in columns.items()
    ]
    return typed(pa, pa.StructArray.from_arrays(arrays, list(columns)), type, rounds=rounds)


def _maps(pa: Any, values: Sequence[Any], type: Any, rounds: bool) -> Any:
    """Maps, of lists of pairs, as readers give them: Arrow would take the pairs for lists."""
    offsets: list[int | None] = []
    keys: list[Any] = []
    items: list[Any] = []
    for pairs in values:
        offsets.append(None if pairs is None else len(keys))
        for pair in () if pairs is None else pairs:
            if not isinstance(pairs, list | tuple) or not isinstance(pair, list | tuple):
                raise ValueError(f"{pairs!r:.200} for a map; expected a list of pairs")
            key, item = pair  # a ValueError for other numbers of them
            if key is None:
                raise ValueError("None as a key of a map")
            keys.append(key)
            items.append(item)
    arrays = [
        array_of_values(pa, keys, type.key_type, rounds=rounds),
        array_of_values(pa, items, type.item_type, rounds=rounds),
    ]
    ends = pa.array([*offsets, len(keys)], pa.int32())
    found = pa.MapArray.from_arrays(ends, *arrays)
    return found if found.type == type else found.cast(type)


def _tensors(pa: Any, arrays: Sequence[Any]) -> Any:
    shapes = {one.shape for one in arrays if one is not None}
    if len(shapes) > 1:
        shown = " and ".join(map(str, sorted(shapes)[:2]))
        raise ValueError(f"arrays of the shapes {shown}; only those of one axis may differ")
    if any(one is None for one in arrays):
        raise ValueError("arrays of several axes, and None")
    return _tensor(pa, np.stack(arrays))


def _tensor(pa: Any, array: Any) -> Any:
    # NumPy gives axes of length 1 any strides, and Arrow looks at them: `image[None]` has a 0.
    plain = np.ascontiguousarray(array).reshape(-1).reshape(array.shape)
    return pa.FixedShapeTensorArray.from_numpy_ndarray(plain)


def _found(
    pa: Any, values: Any, type: Any, rounds: bool, *, given: Sequence[Any] | None = None
) -> Any:
    """An array of a type that is found for the values, not only given: for a given type, Arrow
    would cut fractions off, and leave fields of structs out.

    Args:
        pa: the module pyarrow.
        values: the values, as Arrow takes them.
        type: the type that the array must have; ``None`` for any.
        rounds: as for `array_of_values`.
        given: the values to which the array must be the same; ``None`` if they are plain.
    """
    try:
        found = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        if type is None:
            raise
        try:
            found = pa.array(values, type)  # maps in lists, say, which look like lists
        except NotImplementedError as error:  # for tensors, not one of Arrow's own errors
            raise ValueError(f"what cannot become {type} ({error})") from error
        _check_same(pa, values if given is None else given, found)
        return found
    if given is not None:
        _check_same(pa, given, found)
    return typed(pa, found, type, rounds=rounds)


def typed(pa: Any, array: Any, type: Any, *, rounds: bool = False) -> Any:
    """Return an array in a type that holds all of its values.

    Args:
        pa: the module pyarrow.
        array: a ``pyarrow.Array``.
        type: the type; ``None`` for its own.
        rounds: as for `array_of_values`.

    Raises:
        pyarrow.ArrowException: the type does not hold all values.
        ValueError: it does not hold all fields of structs, or would change a value.
    """
    if type is None or array.type == type:
        return array
    _check_kept(pa, array.type, type, rounds)
    return cast_kept(pa, array, type, rounds=rounds)


def cast_kept(pa: Any, array: Any, type: Any, *, rounds: bool = True) -> Any:
    """Cast an array to a type that keeps its values.

    Arrow itself would make infinity of a number that is too large for a float, ``True`` of any
    number but 0, and a date of a time.

    Args:
        pa: the module pyarrow.
        array: a ``pyarrow.Array``.
        type: the type.
        rounds: whether it may round numbers to floats.

    Raises:
        pyarrow.ArrowException: the type does not hold all values.
        ValueError: as before.
    """
    made = array.cast(type)
    _check_cast(pa, array, made, rounds)
    return made


def _check_cast(pa: Any, given: Any, made: Any, rounds: bool) -> None:
    """Check that all values, also those in lists and structs, are as before."""
    if given.type == made.type:
        return
    given, made = _plain(pa, given), _plain(pa, made)
    types = pa.types
    if types.is_struct(made.type) and types.is_struct(given.type):
        for field in made.type:
            if given.type.get_field_index(field.name) >= 0:
                _check_cast(pa, given.field(field.name), made.field(field.name), rounds)
    elif _has_elements(pa, made.type) and _has_elements(pa, given.type):
        _check_cast(pa, given.flatten(), made.flatten(), rounds)
    else:
        check_cast(pa, given, made, rounds=rounds)


def _has_elements(pa: Any, type: Any) -> bool:
    return _is_list(pa, type) or str(type).startswith(("list_view", "large_list_view"))


def check_unmasked(value: Any, depth: int = _MOST_DEEP) -> None:
    """Check that a value, its components and their elements are no masked arrays; nor an unsigned
    int among other numbers of a list, which Arrow would wrap; nor containers without an end, which
    Arrow would follow until the process crashes.

    Raises:
        ValueError: one is.
    """
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        if isinstance(value, np.ma.MaskedArray):
            raise ValueError("a masked array; fill it, as with value.filled(0)")
        return
    kinds = set(map(type, value))
    if np.uint64 in kinds and isinstance(value, list) and len(kinds - {type(None)}) > 1:
        raise ValueError("a list with uint64 among others; expected one dtype, as in an array")
    if not _UNMASKED.issuperset(kinds):
        if not depth:
            raise ValueError(f"lists and dicts in each other, more than {_MOST_DEEP} deep")
        for one in value:
            check_unmasked(one, depth - 1)


_UNMASKED: Final = frozenset(
    {int, float, complex, bool, str, bytes, type(None), *np.sctypeDict.values()}
)


def _check_kept(pa: Any, given: Any, type: Any, rounds: bool) -> None:
    """Check that a cast keeps all fields of structs, and makes no numbers of text, say.

    Raises:
        ValueError: it does not.
    """
    types = pa.types
    shapes = [getattr(one, "shape", None) for one in (given, type)]  # those of tensors
    if shapes[0] != shapes[1] and not types.is_null(given):
        # Arrow would cast the storage, which has one axis.
        lines = [
            str(one) if shape is None else f"arrays of the shape {tuple(shape)}"
            for one, shape in zip((given, type), shapes, strict=True)
        ]
        raise ValueError(" for ".join(lines))
    if types.is_struct(given) and types.is_struct(type):
        ours = {field.name: field.type for field in type}
        theirs = {field.name for field in given}
        for field in given:
            if field.name not in ours:
                raise ValueError(f"a field {field.name!r}, which {type} does not have")
            _check_kept(pa, field.type, ours[field.name], rounds)
        for name in ours:
            if name not in theirs:
                raise ValueError(f"no field {name!r}, which {type} has (None for what a row lacks)")
    elif _is_list(pa, given) and _is_list(pa, type):
        _check_kept(pa, given.value_type, type.value_type, rounds)
    else:
        kinds = kind_of(pa, given), kind_of(pa, type)
        is_float = types.is_floating(given) or types.is_floating(type)
        if not may_become(*kinds, is_float, rounds=rounds):
            raise ValueError(f"{given} for {kinds[1]}")


def name_of_dtype(dtype: np.dtype[Any]) -> str | None:
    """Return the name by which a dtype is found again; ``None`` if a file cannot hold it.

    Dtypes of other packages, such as ``bfloat16`` of ml_dtypes, have names that NumPy knows while
    the package is imported.
    """
    for name in (dtype.str, dtype.name):
        with suppress(TypeError):
            if np.dtype(name) == dtype:
                return name if dtype.isbuiltin == 2 or dtype.kind in "biufcmMSU" else None
    return None


def dtype_by_name(name: str) -> np.dtype[Any]:
    """Return the dtype of a name.

    Raises:
        InvalidArgumentError: the package that defines it is not imported.
    """
    try:
        return np.dtype(name)
    except TypeError:
        raise InvalidArgumentError(
            f"path: got a file with arrays of {name}, which NumPy does not know; expected that"
            " your program imports the package that defines it, such as ml_dtypes, before"
        ) from None


def is_storable(value: Any) -> bool:
    """Return whether Arrow has a place for one of Python's own values: an int needs 64 bits, and
    text no lone surrogates."""
    if type(value) is int:
        return -(2**63) <= value < 2**63
    if type(value) is not str or value.isascii():
        return True
    return value.encode(errors="ignore").decode() == value
