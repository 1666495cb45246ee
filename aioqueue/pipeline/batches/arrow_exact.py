"""Whether a conversion to Arrow has kept what it was given.

Arrow infers one type for the values of a column. On the way it makes ``1.0`` of ``True``, a date of
a time, one instant of a time with a zone and one without, and 1500 s of 1500 ms. So what is not
*plain*, as most columns are, is converted back and compared. Casts from type to type are compared,
too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from importlib import import_module
from itertools import chain
from numbers import Number
from typing import Any, Final

import numpy as np

_PLAIN: Final = frozenset({int, float, str, bool, bytes})
_NUMBERS: Final = frozenset(
    np.dtype(f"{kind}{size}").type
    for kind, sizes in (("f", (2, 4, 8)), ("i", (1, 2, 4, 8)), ("u", (1, 2, 4, 8)))
    for size in sizes
) | {np.bool_}
"""NumPy's types of scalars that Arrow has."""
_MOST_DEEP: Final = 64
_SECONDS: Final = {"W": 604_800, "D": 86_400, "h": 3600, "m": 60, "s": 1}
_PARTS: Final = {"ms": 3, "us": 6, "ns": 9, "ps": 12, "fs": 15, "as": 18}


def is_plain(values: Collection[Any], depth: int = _MOST_DEEP) -> bool:
    """Return whether Arrow converts values exactly or raises: all have one simple type, or are
    containers of these, alike in their names.

    Args:
        values: the values of a column; ``None`` for null.
        depth: how many containers in each other to look into.
    """
    kinds = set(map(type, values))
    kinds.discard(type(None))
    if len(kinds) != 1:
        return not kinds
    (kind,) = kinds
    if kind in _PLAIN or kind in _NUMBERS:
        return True
    found = [value for value in values if value is not None]
    if kind is np.ndarray:
        dtypes = {value.dtype for value in found}
        axes = {value.ndim for value in found}
        (dtype,) = dtypes if len(dtypes) == 1 else (None,)
        return axes == {1} and dtype is not None and dtype.type in _NUMBERS and dtype.isnative
    if not depth:
        return False
    if kind is list:
        return is_plain(list(chain.from_iterable(found)), depth - 1)
    if kind is dict:
        names = found[0].keys()
        return all(value.keys() == names for value in found) and all(
            type(name) is str and is_plain([value[name] for value in found], depth - 1)
            for name in names
        )
    return False


def are_plain_tensors(values: Collection[Any]) -> bool:
    """Return whether values are arrays of NumPy of one dtype that Arrow has, and of one shape with
    several axes."""
    if set(map(type, values)) != {np.ndarray}:
        return False
    layouts = {(value.dtype, value.shape) for value in values}
    if len(layouts) > 1:
        return False
    ((dtype, shape),) = layouts
    return len(shape) > 1 and dtype.type in _NUMBERS and dtype.isnative


def check_times(values: Collection[Any], depth: int = _MOST_DEEP) -> None:
    """Check that times of NumPy are among none but themselves, also in containers: Arrow takes the
    unit of the first for all, and follows a pointer that leads nowhere if another has no unit.

    Args:
        values: the values of a column; ``None`` for null.
        depth: how many containers in each other to look into.

    Raises:
        ValueError: some are among others.
    """
    found = [value for value in values if value is not None]
    arrays = [value for value in found if isinstance(value, np.ndarray)]
    dicts = [value for value in found if isinstance(value, Mapping)]
    lists = [value for value in found if isinstance(value, list | tuple)]
    scalars = [value for value in found if isinstance(value, np.generic)]
    dtypes = {value.dtype for value in scalars}
    count = len(arrays) + len(dicts) + len(lists)
    are_times = any(dtype.kind in "mM" for dtype in dtypes)
    if are_times and (len(dtypes) > 1 or len(scalars) < len(found)):
        raise ValueError("times of NumPy among values of other types or units")
    if not depth or not count:
        return
    elements = list(chain.from_iterable(lists))
    for value in arrays:
        elements.extend(value.flat if value.dtype == object else value.reshape(-1)[:1])
    check_times(elements, depth - 1)
    for name in {name for value in dicts for name in value}:
        check_times([value.get(name) for value in dicts], depth - 1)


def kind_of(pa: Any, type: Any) -> str | None:
    """Return what a type holds, in the words of messages; ``None`` for containers and others."""
    types = pa.types
    if types.is_dictionary(type):
        return kind_of(pa, type.value_type)
    if types.is_boolean(type):
        return "bools"
    if types.is_decimal(type):
        return "decimals"
    if types.is_integer(type) or types.is_floating(type):
        return "numbers"
    if types.is_date(type):
        return "dates"
    if types.is_timestamp(type):
        return "times" if type.tz is None else "times with a zone"
    if types.is_time(type):
        return "times of day"
    if types.is_duration(type):
        return "durations"
    name = str(type)
    if name.startswith(("string", "large_string")):
        return "text"
    return "bytes" if name.startswith(("binary", "large_binary", "fixed_size_binary")) else None


def may_become(given: Any, made: Any, is_float: bool, *, rounds: bool) -> bool:
    """Return whether values of one kind may be values of another, as far as they stay the same.

    Args:
        given: the kind that they have; see `kind_of`.
        made: the kind that they get.
        is_float: whether one of the two holds floats.
        rounds: whether the user has asked for just this type.
    """
    if given == made or given is None or made is None:
        return True
    pair = {given, made}
    if pair == {"numbers", "decimals"}:
        return rounds or not is_float
    return rounds and (pair == {"text", "bytes"} or (given, made) == ("dates", "times"))


def numpy_time(value: Any) -> Any:
    """Return a time of NumPy, of `datetime` or of pandas as one of NumPy; with a zone, in UTC.

    Raises:
        TypeError: it is no time.
    """
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()  # pandas' times are more precise than their base classes
    if isinstance(value, np.datetime64 | np.timedelta64):
        return value
    if isinstance(value, time) and value.tzinfo is None:
        value = datetime.combine(date.min, value) - datetime.min
    if isinstance(value, timedelta):
        return np.timedelta64(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        # Not `astimezone`, which has no place for the first and last hours of the calendar.
        offset = value.utcoffset() or timedelta(0)
        return np.datetime64(value.replace(tzinfo=None)) - np.timedelta64(offset)
    if not isinstance(value, date):
        raise TypeError(f"{value!r} is not a time")
    return np.datetime64(value)


def instant_of(value: Any) -> tuple[str, int] | None:
    """Return a time of NumPy as its kind and a number of attoseconds; ``None`` for NaT."""
    if np.isnat(value):
        return None
    unit, count = np.datetime_data(value.dtype)
    kind = value.dtype.kind
    number = int(value.astype(np.int64)) * count
    if unit in "YM":
        if kind == "m":
            return unit, number
        number, unit = int(value.astype("M8[D]").astype(np.int64)), "D"
    seconds = _SECONDS.get(unit)
    return kind, number * (10 ** (18 - _PARTS[unit]) if seconds is None else seconds * 10**18)


def is_same(pa: Any, given: Any, found: Any, type: Any) -> bool:
    """Return whether a value came back as it was given.

    Numbers are the same if they are equal, lists and tuples if their elements are, and times if
    they are the same instant, day, time of day or duration.

    Args:
        pa: the module pyarrow.
        given: the value.
        found: what a reader makes of it.
        type: its type in Arrow.
    """
    if given is None or found is None:
        return given is found or (given is not None and _is_nat(given))
    while pa.types.is_dictionary(type):
        type = type.value_type
    if not hasattr(type, "shape"):  # tensors have one
        type = getattr(type, "storage_type", type)
    if isinstance(given, Mapping):
        return (
            isinstance(found, dict)
            and pa.types.is_struct(type)
            and given.keys() == found.keys()
            and all(
                is_same(pa, one, found[name], type.field(name).type) for name, one in given.items()
            )
        )
    if isinstance(given, np.ndarray) and given.ndim == 0:
        given = given[()]
    if isinstance(given, list | tuple) and pa.types.is_map(type):
        return isinstance(found, list) and _are_same_pairs(pa, given, found, type)
    if isinstance(given, np.ndarray | list | tuple):
        return hasattr(type, "value_type") and _are_same(pa, given, found, type)
    if isinstance(given, str | bytes | bytearray | memoryview):
        same_type = isinstance(found, str) == isinstance(given, str)
        return same_type and (found == given if isinstance(given, str) else found == bytes(given))
    if isinstance(given, date | time | timedelta | np.datetime64 | np.timedelta64) or _is_nat(
        given
    ):
        return _is_same_time(pa, given, found, type)
    if isinstance(given, bool | np.bool_) or isinstance(found, bool | np.bool_):
        both = isinstance(given, bool | np.bool_) and isinstance(found, bool | np.bool_)
        return both and bool(given) == bool(found)
    # A duration of NumPy counts as a number.
    if isinstance(found, np.timedelta64):
        return False
    if isinstance(given, Number | Decimal) and isinstance(found, Number | Decimal):
        given, found = _plain_number(given), _plain_number(found)
        return bool(given == found) or bool(given != given and found != found)
    return bool(given.__class__ is found.__class__ and given == found)


def _are_same_pairs(pa: Any, given: Any, found: Any, type: Any) -> bool:
    inner = (type.key_type, type.item_type)
    return len(given) == len(found) and all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and all(is_same(pa, *ones) for ones in zip(pair, other, inner, strict=True))
        for pair, other in zip(given, found, strict=True)
    )


def _plain_number(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _is_nat(value: Any) -> bool:
    try:
        return bool(np.isnat(numpy_time(value)))
    except (TypeError, ValueError, OverflowError):
        return False


def _are_same(pa: Any, given: Any, found: Any, type: Any) -> bool:
    if not isinstance(found, np.ndarray | list) or len(given) != len(found):
        return False
    inner = type.value_type
    if isinstance(found, np.ndarray) and found.ndim > 1:
        while not hasattr(type, "shape") and hasattr(inner, "value_type"):
            inner = inner.value_type
        given = np.asarray(given)
        return given.shape == found.shape and _same_elements(
            pa, given.reshape(-1), found.reshape(-1), inner
        )
    return _same_elements(pa, given, found, inner)


def _same_elements(pa: Any, given: Any, found: Any, type: Any) -> bool:
    if (
        isinstance(given, np.ndarray)
        and isinstance(found, np.ndarray)
        and given.dtype == found.dtype
        and given.dtype.type in _NUMBERS
    ):
        return bool(np.array_equal(given, found, equal_nan=given.dtype.kind == "f"))
    pairs = zip(given, found, strict=True)
    return all(is_same(pa, one, other, type) for one, other in pairs)


def _is_same_time(pa: Any, given: Any, found: Any, type: Any) -> bool:
    if not isinstance(found, np.datetime64 | np.timedelta64):
        return False
    kind = kind_of(pa, type)
    if isinstance(given, np.datetime64):
        is_kind = kind in ("dates", "times")
    elif isinstance(given, np.timedelta64):
        is_kind = kind == "durations"
    elif isinstance(given, datetime):
        is_kind = kind == ("times" if given.tzinfo is None else "times with a zone")
    elif isinstance(given, date):
        is_kind = kind == "dates"
    elif isinstance(given, time):
        is_kind = kind == "times of day" and given.tzinfo is None
    else:
        is_kind = kind == "durations"
    return is_kind and instant_of(numpy_time(given)) == instant_of(found)


def check_cast(pa: Any, given: Any, made: Any, *, rounds: bool) -> None:
    """Check that a cast has kept all values, also those in lists and structs.

    Args:
        pa: the module pyarrow.
        given: the array before.
        made: the array after, without storage encodings, as ``given`` is.
        rounds: whether a number may be rounded to a float, but not to infinity.

    Raises:
        ValueError: a value has changed, which the message names.
        pyarrow.ArrowException: it cannot be compared.
    """
    if given.type == made.type:
        return
    compute, types = import_module("pyarrow.compute"), pa.types
    if given.null_count != made.null_count:
        raise ValueError(f"values of {given.type} that would become nulls of {made.type}")
    families = kind_of(pa, given.type), kind_of(pa, made.type)
    if None in families or types.is_null(given.type):
        return  # its elements are compared
    if families[0] != families[1] and not _are_compared(*families):
        return
    if types.is_boolean(made.type) and families[0] == "numbers":
        number = given.cast(pa.float64(), safe=False)
        is_other = [compute.not_equal(number, pa.scalar(float(one))) for one in (False, True)]
        _refuse(given, compute.and_(*is_other), made.type)
        return
    is_rounded = types.is_floating(made.type) and (
        types.is_floating(given.type) or types.is_decimal(given.type)
    )
    if rounds and is_rounded:
        # Arrow has no such test for the smallest floats; a cast to larger ones is exact.
        is_infinite = [compute.is_inf(one.cast(pa.float64())) for one in (given, made)]
        _refuse(given, compute.not_equal(*is_infinite), made.type)
        return
    back = made.cast(given.type, safe=False)
    if types.is_float16(given.type):
        given, back = given.cast(pa.float32()), back.cast(pa.float32())
    changed = compute.not_equal(given, back)
    if types.is_floating(given.type):
        changed = compute.and_not(
            changed, compute.and_(compute.is_nan(given), compute.is_nan(back))
        )
    _refuse(given, changed, made.type)


def _are_compared(given: str | None, made: str | None) -> bool:
    """Return whether a cast between two kinds must keep values: text is parsed as numbers, say."""
    numbers = {"bools", "numbers", "decimals"}
    times = {"dates", "times", "times of day", "times with a zone", "durations"}
    return any(given in family and made in family for family in (numbers, times))


def _refuse(given: Any, changed: Any, type: Any) -> None:
    lost = given.filter(changed)
    if len(lost):
        raise ValueError(f"{lost[0]} does not fit {type}")


def check_stays(pa: Any, array: Any) -> None:
    """Check that a Parquet file keeps an array of the user's own types: it has no dates with a time
    of day, and no tensors of seconds.

    Raises:
        ValueError: it does not.
    """
    types = pa.types
    if isinstance(array, pa.FixedShapeTensorArray):
        if array.type.value_type == pa.timestamp("s"):
            raise ValueError("tensors of timestamp[s], which Parquet does not have; cast to ms")
        return
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if types.is_date64(array.type):
        compute = import_module("pyarrow.compute")
        days = array.cast(pa.date32(), safe=False).cast(pa.date64())
        _refuse(array, compute.not_equal(array, days), "date32, as which Parquet has dates")
    elif types.is_struct(array.type):
        for one in array.flatten():
            check_stays(pa, one)
    elif hasattr(array, "flatten") and hasattr(array.type, "value_type"):
        check_stays(pa, array.flatten())
