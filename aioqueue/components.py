"""One typed slot of an element, and the rule for what may be put into it.

Casting follows NumPy's ``same_kind`` rule by dtype, and never makes another number of one: what
NumPy would wrap around, as an int64 that is too large for int32, is refused, and so are records
whose fields have other names, which NumPy would take by their places. Python's own numbers have no
dtype, so they are judged by value: ``5`` fits a ``uint8`` component and ``300`` does not.

A value comes out as the one that went in, or it is refused, and the same by every way in: one
value, the rows of a batch, an example of a pipeline. So a number that the dtype could only hold as
infinity, an int that would be no time (NaT), and text whose end NumPy would cut off are refused;
and where a component holds objects, the rows of an array stay what they are in the array.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from math import isfinite
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aioqueue.errors import InvalidArgumentError, exception_text

__all__ = (
    "Component",
    "Shape",
    "as_objects",
    "is_masked",
    "is_table",
    "own_rows",
    "plain",
    "shortly",
)

Shape = tuple[int | None, ...]

_ndarray = np.ndarray
_PLAIN_ARRAYS = (np.ndarray, np.memmap)
"""What can be written to as memory. Others have rules of their own, such as masks, for what is
assigned to them."""


class _Cast(Enum):
    """Whether arrays of a dtype may be cast to another."""

    NEVER = auto()
    IN_RANGE = auto()
    """If each value is there in the other dtype, too: NumPy would make another one of it."""
    ALWAYS = auto()


class Component:
    """One typed slot of an element: a dtype, a shape, and how to convert a value to them.

    Args:
        label: what error messages call it: its index, or its name.
        dtype: anything `numpy.dtype` accepts; ``str`` and ``bytes`` stand for strings of any
            length, ``object`` for any Python value.
        shape: its dimensions, ``None`` for one that varies; or ``None`` for any shape at all.
    """

    __slots__ = (
        "_casts",
        "_high",
        "_is_float",
        "_low",
        "_own_scalar",
        "dtype",
        "fixed",
        "label",
        "scalar",
        "shape",
        "text",
    )

    def __init__(self, label: str, dtype: Any, shape: Shape | None) -> None:
        self.label = label
        self.shape = shape
        try:
            if dtype is None:
                raise TypeError("None is no dtype")  # NumPy would take it for float64
            self.dtype: np.dtype[Any] = np.dtype(dtype)
        except Exception as error:  # NumPy raises a SyntaxError for some strings
            raise InvalidArgumentError(
                f"dtypes: got {dtype!r} for component {label}; expected what numpy.dtype accepts"
            ) from error
        if self.dtype.subdtype is not None:  # NumPy's arrays have its dimensions as their own
            self.dtype, inner = self.dtype.subdtype
            self.shape = None if shape is None else (*shape, *inner)
        self.scalar = self.shape == ()
        self.fixed = self.shape is not None and None not in self.shape
        self.text: type[str] | type[bytes] | None = None
        if self.dtype.kind in "US" and self.dtype.itemsize == 0:
            # Strings of any length: NumPy's own string arrays have one fixed length for all.
            self.text = str if self.dtype.kind == "U" else bytes
            self.dtype = np.dtype(object)
        try:
            np.empty((0, *(size or 0 for size in self.shape or ())), self.dtype)
        except ValueError as error:  # of sizes, or of a number of them, that no array has
            raise InvalidArgumentError(
                f"shapes: got {shape!r} for component {label}; expected one that an array can have:"
                f" {error}"
            ) from error
        self._casts = {self.dtype: _Cast.ALWAYS}
        self._is_float = self.dtype.kind in "fc"
        # NumPy's scalars of exactly this dtype; not those whose dtype says more than their type.
        self._own_scalar = self.dtype.type if self.dtype.kind in "biufc" else None
        self._low, self._high = _bounds(self.dtype)

    def __repr__(self) -> str:
        return f"{self.type_name}{self.shape_name}"

    @property
    def type_name(self) -> str:
        """The dtype, as users write it."""
        if self.text:
            return self.text.__name__
        if self.dtype.kind in "US":
            return self.dtype.str.lstrip("<>|=")
        return self.dtype.name if self.dtype.names is None else str(self.dtype)

    @property
    def shape_name(self) -> str:
        """The shape as in ``[3,?]``; empty when it may be any."""
        if self.shape is None:
            return ""
        return "[" + ",".join("?" if size is None else str(size) for size in self.shape) + "]"

    def convert(self, value: Any) -> Any:
        """Check one value of this component; return what NumPy can assign as it is.

        Raises:
            InvalidArgumentError: its dtype or its shape is wrong.
        """
        kind = type(value)
        if kind is _ndarray:
            if value.dtype is self.dtype and value.shape == self.shape and not self.text:
                return value
        elif self.scalar:
            if kind is int:
                if self._low <= value <= self._high:
                    return value
            elif kind is float:
                if self._is_float and (self._low <= value <= self._high or not isfinite(value)):
                    return value
            elif kind is self._own_scalar or kind is self.text:
                return value
        if self.scalar and self.dtype.kind == "O" and not self.text:
            return value
        array = self._array(value, self.scalar)
        self._check_shape(array, value)
        if self.scalar and self.dtype.kind == "O":
            return array[()]
        return array

    def private(self, value: Any) -> Any:
        """Like `convert`, and the result shares no memory with the value."""
        converted = self.convert(value)
        if self.dtype.kind == "O" and self.scalar:
            return converted
        if self.dtype.kind == "O" and self.shape is None and not self.text:
            return value  # any Python value, an array among them, is kept as it is
        copy = np.array(converted, dtype=self.dtype)
        return copy[()] if copy.ndim == 0 else copy

    def column(self, values: Any) -> NDArray[Any]:
        """Check the rows of a batch; return them as an array of shape ``(n, *shape)``.

        Raises:
            InvalidArgumentError: the dtype or the shape of a row is wrong, or there are no rows
                to count because the value is a scalar.
        """
        if type(values) is np.ndarray and values.dtype is self.dtype and not self.text:
            array = values
        elif isinstance(values, list | tuple) and not values:
            array = np.empty((0, *(size or 0 for size in self.shape or ())), self.dtype)
        else:
            array = self._array(values, self.shape == (), rows=True)
        if array.ndim == 0:
            raise InvalidArgumentError(
                f"component {self.label}: got the scalar {shortly(values)}; expected a batch,"
                f" an array of shape (n, ...) with one row per element"
            )
        if self.shape is not None and not _fits(array.shape[1:], self.shape):
            raise InvalidArgumentError(
                f"component {self.label}: got rows of shape {list(array.shape[1:])} in an array of"
                f" shape {list(array.shape)}; expected rows of shape {self.shape_name}"
            )
        return array

    def output(self, array: Any, n: int) -> NDArray[Any]:
        """Check an array that the user wants n rows of this component written to."""
        shape = (n, *(self.shape or ()))
        if (
            type(array) not in _PLAIN_ARRAYS
            or array.dtype != self.dtype
            or array.shape != shape
            or not array.flags.writeable
        ):
            given = (
                f"{array.dtype}{list(array.shape)}{'' if array.flags.writeable else ', read-only'}"
                if type(array) in _PLAIN_ARRAYS
                else f"a {type(array).__name__}"
            )
            raise InvalidArgumentError(
                f"out: got {given} for component {self.label};"
                f" expected a writable array {self.dtype}{list(shape)}"
            )
        return array  # type: ignore[no-any-return]

    def array(self, value: Any) -> NDArray[Any]:
        """The value as an array of any shape, of this dtype or of one that may be cast to it.

        Raises:
            InvalidArgumentError: its dtype is wrong.
        """
        return self._array(value, scalar=False)

    def takes(self, dtype: np.dtype[Any]) -> bool:
        """Whether arrays of a dtype may be cast to this one, whatever is in them."""
        return dtype is self.dtype or self._cast_from(dtype) is _Cast.ALWAYS

    def keeps(self, array: NDArray[Any]) -> bool:
        """Whether an array may be cast, and each of its numbers fits, as Python's own must."""
        return self._cast_from(array.dtype) is not _Cast.NEVER and self._is_in_range(array)

    def _array(self, value: Any, scalar: bool, *, rows: bool = False) -> NDArray[Any]:
        if is_masked(value):
            raise InvalidArgumentError(
                f"component {self.label}: got a masked array; expected one without a mask,"
                " such as value.filled(0)"
            )
        if self.dtype.kind == "O":
            return self._object_array(value, scalar, rows)
        if self.dtype.kind in _TEXT:
            self._check_text(value)
        try:
            # Text of any length has no dtype of its own: NumPy's would cut off what ends in NUL.
            given = self.dtype if self.dtype.kind == "T" and _is_python(value) else None
            array = np.asarray(value, given)
        except BaseException as error:
            if isinstance(error, _ENDING):
                raise
            # A cancellation as well: nothing is awaited here, so it is none of this task.
            raise self._refused(
                value, f"which NumPy cannot convert: {exception_text(error)}"
            ) from error
        cast = self._cast_from(array.dtype)
        if cast is not _Cast.NEVER:
            if isinstance(value, list | tuple):
                self._check_alike(array.dtype, value)
            if cast is _Cast.IN_RANGE or _is_python(value):
                self._check_range(array, value)
            return array
        if _is_python(value):
            if array.size == 0:
                return array.astype(self.dtype)
            if _has_numpy(value):
                pass  # each has a dtype, as it would have by itself
            elif self.dtype.kind in "iufc":
                ints = array if array.dtype.kind in "iu" else self._large_ints(value)
                if ints is not None:
                    self._check_range(ints, value)
                    return ints.astype(self.dtype)
        raise self._refused(value, f"of dtype {array.dtype}")

    def _check_text(self, value: Any) -> None:
        """Text is kept as it is, and nothing else is made text of."""
        if isinstance(value, list | tuple):
            for item in value:
                self._check_text(item)
        elif self.dtype.kind == "T":
            is_text = isinstance(value, str) or value is _missing(self.dtype)
            is_text |= isinstance(value, np.ndarray) and value.dtype.kind in "UT"
            if not is_text and (_is_python(value) or isinstance(value, np.generic)):
                raise self._refused(value, f"a {type(value).__name__}")
        elif isinstance(value, str | bytes) and value[-1:] in ("\0", b"\0"):
            raise self._refused(value, "whose NUL at the end NumPy would cut off")

    def _large_ints(self, value: Any) -> NDArray[Any] | None:
        """Python ints that NumPy has made floats of, because no one dtype of its ints holds all."""
        ints = np.array(value, dtype=object)
        return ints if all(type(item) is int for item in ints.flat) else None

    def _cast_from(self, dtype: np.dtype[Any]) -> _Cast:
        known = self._casts.get(dtype)
        if known is None:
            known = self._casts[dtype] = _cast_between(dtype, self.dtype)
        return known

    def _check_range(self, array: NDArray[Any], value: Any) -> None:
        if not self._is_in_range(array):
            is_time = self.dtype.kind in "mM"
            span = "what it can hold" if is_time else f"{self._low} to {self._high}"
            raise self._refused(value, f"outside {span}")

    def _check_alike(self, dtype: np.dtype[Any], values: Any) -> None:
        """NumPy has made a dtype of its own for all values: each must be as it was."""
        if isinstance(values, list | tuple):
            if dtype.kind in "USmM":
                for value in values:
                    self._check_alike(dtype, value)
        elif dtype.kind in "mM":
            if not _are_times_in(dtype, np.asarray(values)):
                raise self._refused(values, f"outside what {dtype} can hold, as others have it")
        elif np.asarray(values).dtype.kind != dtype.kind:
            raise self._refused(values, f"a {type(values).__name__} beside text")

    def _is_in_range(self, array: NDArray[Any]) -> bool:
        """Whether numbers fit; all that are none do."""
        if array.dtype is self.dtype:
            return True
        if self.dtype.kind in "mM":
            return _are_times_in(self.dtype, array)
        if self.dtype.kind not in "iufc":
            return True
        if array.dtype.kind == "c":
            return self._is_in_range(array.real) and self._is_in_range(array.imag)
        if array.dtype.kind == "f" and array.size:
            if self._low <= array.min() and array.max() <= self._high:  # not so if one is no number
                return True
            array = array[np.isfinite(array)]  # what is not finite is so in any dtype
        if array.dtype.kind not in "iufO" or not array.size:
            return True
        # As Python's own, which are compared by value; not so NumPy's, of different dtypes.
        low, high = np.asarray([array.min(), array.max()]).tolist()
        return bool(self._low <= low and high <= self._high)

    def _object_array(self, value: Any, scalar: bool, rows: bool) -> NDArray[Any]:
        """Python values as an object array, each stored as it is and never taken apart."""
        if not scalar:
            try:
                array = as_objects(value)
            except BaseException as error:
                if isinstance(error, _ENDING):
                    raise
                raise self._refused(
                    value, f"which NumPy cannot convert: {exception_text(error)}"
                ) from error
        elif not rows:
            array = np.empty((), dtype=object)
            array[()] = plain(value)
        else:
            is_scalar = isinstance(value, np.ndarray) and value.ndim == 0
            if is_scalar or isinstance(value, str | bytes):
                raise InvalidArgumentError(
                    f"component {self.label}: got {shortly(value)}; expected a sequence of values"
                )
            if isinstance(value, Mapping) or is_table(value):
                raise self._refused(value, "whose iteration gives names and not rows")
            try:
                listed = own_rows(value)
            except TypeError as error:
                raise self._refused(value, "which is no sequence") from error
            array = np.empty(len(listed), dtype=object)
            for index, item in enumerate(listed):
                array[index] = plain(item) if self.text else item
        return self._checked_text(array, value) if self.text else array

    def _checked_text(self, array: NDArray[Any], value: Any) -> NDArray[Any]:
        assert self.text is not None
        for item in array.flat:
            if not isinstance(item, self.text):
                raise self._refused(value, f"holding a {type(item).__name__}")
        return array

    def _check_shape(self, array: NDArray[Any], value: Any) -> None:
        if self.shape is not None and not _fits(array.shape, self.shape):
            raise InvalidArgumentError(
                f"component {self.label}: got {shortly(value)} of shape {list(array.shape)};"
                f" expected shape {self.shape_name}"
            )

    def _refused(self, value: Any, why: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"component {self.label}: got {shortly(value)}, {why}; expected {self.type_name}"
            " (numbers are cast under NumPy's same_kind rule; use .astype() to force a cast)"
        )


_TEXT: Final = frozenset("UST")

_ENDING: Final = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What ends a program, or a generator, and is no failure of a conversion."""


def plain(value: Any) -> Any:
    """A value as an object to be kept: NumPy's text is Python's, and everything else as it is."""
    return value.item() if isinstance(value, np.str_ | np.bytes_) else value


def as_objects(value: Any) -> NDArray[Any]:
    """An array of objects of a value, each as it was: NumPy would make ints of some times, and
    tuples of records.

    Raises:
        ValueError: its parts are of different lengths.
    """
    array = value if isinstance(value, np.ndarray) else None
    if array is None and not isinstance(value, list | tuple) and hasattr(value, "__array__"):
        array = np.asarray(value)
    if array is None:
        return np.array(value, dtype=object)
    if array.dtype.kind not in "mMV":
        return array.astype(object)
    objects = np.empty(array.shape, object)
    for at in np.ndindex(array.shape):
        item = array[at]
        objects[at] = item.copy() if array.dtype.kind == "V" else item
    return objects


def own_rows(batch: Any) -> list[Any]:
    """The rows of a batch of objects. Those of an array are copies: nobody else's memory is kept.

    Raises:
        TypeError: it cannot be iterated.
    """
    rows = list(batch)
    has_views = isinstance(batch, np.ndarray) and (batch.ndim > 1 or batch.dtype.kind == "V")
    return [row.copy() for row in rows] if has_views else rows


def is_table(given: Any) -> bool:
    """Whether it is a data frame or a table, whose iteration gives columns or their names."""
    return (
        hasattr(given, "columns")
        and any(hasattr(given, name) for name in _TABLES)
        and not isinstance(given, type)
    )


_TABLES: Final = ("iloc", "__dataframe__", "__arrow_c_stream__", "__arrow_c_array__")


_UNMASKED = frozenset({int, float, complex, bool, str, bytes, *np.sctypeDict.values()})


def is_masked(value: Any) -> bool:
    """Whether it is a masked array, or a list or tuple that has one in it."""
    if isinstance(value, list | tuple):
        return not _UNMASKED.issuperset(map(type, value)) and any(map(is_masked, value))
    return isinstance(value, np.ma.MaskedArray)


def _cast_between(dtype: np.dtype[Any], other: np.dtype[Any]) -> _Cast:
    """Whether arrays of a dtype may be cast to another one."""
    if other.kind in "USV":
        # Under same_kind NumPy would silently cut strings to length, which loses data. Nor are
        # numbers made strings of.
        fits = dtype.kind == other.kind and np.can_cast(dtype, other, "safe")
        return _Cast.ALWAYS if fits and _have_same_fields(dtype, other) else _Cast.NEVER
    if other.kind == "T":
        # NumPy makes text of all there is, also of what is said to be missing.
        is_text = dtype.kind == "U" or dtype == other
        is_text |= dtype.kind == "T" and _missing(dtype) is _NOTHING
        return _Cast.ALWAYS if is_text else _Cast.NEVER
    if not np.can_cast(dtype, other, "same_kind"):
        return _Cast.NEVER
    if other.kind in "mM":
        is_same = dtype.kind == "b" or dtype == other
        return _Cast.ALWAYS if is_same else _Cast.IN_RANGE
    # Ints may wrap around, and what is too large for a float becomes infinity.
    may_change = dtype.kind in "iufc" and not np.can_cast(dtype, other, "safe")
    return _Cast.IN_RANGE if may_change else _Cast.ALWAYS


_NOTHING: Final = object()


def _missing(dtype: np.dtype[Any]) -> Any:
    """What stands for a text that is missing, if a dtype of text has that."""
    return getattr(dtype, "na_object", _NOTHING)


def _have_same_fields(dtype: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Whether the fields of records have the same names in the same order, and the same units.

    NumPy takes them by their places, and would exchange x and y.
    """
    if dtype.names is None or other.names is None:
        return dtype.kind not in "mM" or np.datetime_data(dtype) == np.datetime_data(other)
    return dtype.names == other.names and all(
        _have_same_fields(dtype[name].base, other[name].base) for name in dtype.names
    )


def _are_times_in(dtype: np.dtype[Any], array: NDArray[Any]) -> bool:
    """Whether times, or ints, are the same ones when they are cast to a dtype of times."""
    if array.dtype.kind == "u":
        return not array.size or int(array.max()) <= np.iinfo(np.int64).max
    if array.dtype.kind == "i":  # of which the smallest means that there is no time (NaT)
        return not array.size or int(array.min()) > np.iinfo(np.int64).min
    if array.dtype.kind not in "mM":
        return True
    try:  # a finer unit has fewer years, and a coarser one leaves out what is between
        cast = array.astype(dtype)
    except OverflowError:  # as NumPy tells it since 2.5; before, they wrap around
        return False
    return bool(np.all((cast.astype(array.dtype) == array) | np.isnat(array)))


def _fits(shape: tuple[int, ...], wanted: Shape) -> bool:
    if shape == wanted:
        return True
    return len(shape) == len(wanted) and all(
        size is None or size == given for given, size in zip(shape, wanted, strict=True)
    )


def _bounds(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Which Python numbers a component takes; none at all, where it holds none."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return int(info.min), int(info.max)
    if dtype.kind in "fc":
        return -float(np.finfo(dtype).max), float(np.finfo(dtype).max)
    return 1, 0


def _is_python(value: Any) -> bool:
    """Whether a value is Python's own, and so without a dtype that it could be held to."""
    return not isinstance(value, np.ndarray | np.generic) and not hasattr(value, "__array__")


def _has_numpy(value: Any) -> bool:
    """Whether there are values of NumPy's, each with a dtype, in a list or tuple."""
    if isinstance(value, list | tuple):
        return any(map(_has_numpy, value))
    return not _is_python(value)


def shortly(value: Any, limit: int = 60) -> str:
    """A value as messages show it."""
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype}{list(value.shape)}"
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= limit else text[: limit - 3] + "..."
