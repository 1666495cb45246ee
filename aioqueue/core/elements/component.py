"""One typed component of an element, and the rule for the values that it accepts.

Casting follows NumPy's ``same_kind`` rule for dtypes, but never changes a number. NumPy would wrap
around an int64 that is too large for int32; here it is refused. NumPy would match the fields of
records by position; here records with other field names are refused. Python's own numbers have no
dtype, so their value decides: ``5`` fits a ``uint8`` component and ``300`` does not.

A value that you take out equals the one that you put in, or it was refused. This holds for a single
value, the rows of a batch, and an example of a pipeline alike. So these are refused, too: a number
that the dtype could only hold as infinity, an int that would become NaT, and text whose end NumPy
would cut off. In a component of objects, the rows of an array stay what they are in the array.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from functools import lru_cache
from math import inf, isfinite, nextafter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aioqueue.core.elements.values import is_table, separate_rows, short_repr
from aioqueue.errors import InvalidArgumentError, exception_text, with_article

if TYPE_CHECKING:
    from numpy.typing import NDArray

Shape = tuple[int | None, ...]

_ndarray = np.ndarray
_PLAIN_ARRAYS = (np.ndarray, np.memmap)
"""Array types that can be written to as plain memory. Others have rules of their own for
assignments, such as masks."""


_SMALL: Final = 2**30 - 1
"""The largest int of one digit."""


class _Cast(Enum):
    """Whether arrays of one dtype may be cast to another."""

    NEVER = auto()
    IN_RANGE = auto()
    """Yes, if each value exists in the other dtype; otherwise NumPy would change it."""
    ALWAYS = auto()


class Component:
    """One component of an element: a dtype, a shape, and how to convert a value to them.

    Args:
        label: its name in error messages: its index, or the user's name for it.
        dtype: anything that `numpy.dtype` accepts; ``str`` and ``bytes`` mean strings of any
            length, ``object`` any Python value.
        shape: its dimensions, with ``None`` for one that varies; or ``None`` for any shape.
    """

    __slots__ = (
        "_casts",
        "_high",
        "_is_float",
        "_low",
        "_scalar_type",
        "dtype",
        "fixed",
        "label",
        "scalar",
        "shape",
        "text",
    )

    def __init__(self, label: str, dtype: Any, shape: Shape | None) -> None:
        self.label: str = label
        self.shape = shape
        try:
            if dtype is None:
                raise TypeError("None is not a dtype")  # NumPy would take it for float64
            self.dtype: np.dtype[Any] = np.dtype(dtype)
        except Exception as error:  # even a SyntaxError, which NumPy raises for some strings
            _, of_torch, name = str(dtype).partition("torch.")
            hint = f" (write {name!r})" if of_torch and name in np.sctypeDict else ""
            raise InvalidArgumentError(
                f"dtypes: got {dtype!r} for component {label}; expected what numpy.dtype"
                f" accepts{hint}"
            ) from error
        if self.dtype.subdtype is not None:  # an array takes over a subdtype's dimensions
            self.dtype, inner = self.dtype.subdtype
            self.shape = None if shape is None else (*shape, *inner)
        self.scalar: bool = self.shape == ()
        self.fixed: bool = self.shape is not None and None not in self.shape
        self.text: type[str] | type[bytes] | None = None
        if self.dtype.kind in "US" and self.dtype.itemsize == 0:
            # NumPy's string arrays have one fixed length for all, and here it varies.
            self.text = str if self.dtype.kind == "U" else bytes
            self.dtype = np.dtype(object)
        try:
            np.empty((0, *(size or 0 for size in self.shape or ())), self.dtype)
        except ValueError as error:  # sizes, or a number of dimensions, that no array can have
            raise InvalidArgumentError(
                f"shapes: got {shape!r} for component {label}; expected a shape that an array can"
                f" have: {error}"
            ) from error
        self._casts = {self.dtype: _Cast.ALWAYS}
        is_numpys = not _is_foreign(self.dtype)
        self._is_float = self.dtype.kind in "fc" and is_numpys
        # NumPy scalars of exactly this dtype. Not for dtypes that say more than the scalar's class.
        self._scalar_type = self.dtype.type if self.dtype.kind in "biufc" and is_numpys else None
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
        """The shape, as in ``[3,?]``; empty if any shape is valid."""
        if self.shape is None:
            return ""
        return "[" + ",".join("?" if size is None else str(size) for size in self.shape) + "]"

    def convert(self, value: Any) -> Any:
        """Check one value of this component; return a value that NumPy can assign unchecked.

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
            elif kind is self._scalar_type or kind is self.text:
                return value
        if self.scalar and self.dtype.kind == "O" and not self.text:
            return value
        array = self._array(value, self.scalar)
        self._check_shape(array, value)
        if self.scalar and self.dtype.kind == "O":
            return array[()]
        return array

    def needs_no_conversion(self, value: str) -> tuple[str, dict[str, Any]]:
        """Return the source of a test for usual values, which `convert` returns as they are.

        Args:
            value: the name of the value.

        Returns:
            The test, which is false for some of these values, and what its names refer to.
        """
        names = {
            f"{value}_type": self._scalar_type if self.scalar else _ndarray,
            f"{value}_dtype": self.dtype,
            f"{value}_shape": self.shape,
            f"{value}_low": self._low,
            f"{value}_high": self._high,
        }
        if self.text or names[f"{value}_type"] is None:
            return "False", {}
        if not self.scalar:
            has_shape = f"{value}.shape == {value}_shape"
            if self.fixed and self.shape is not None and len(self.shape) == 1:
                # NumPy makes the shape each time: that takes twice as long.
                has_shape = f"{value}.ndim == 1 and len({value}) == {self.shape[0]}"
            return (
                f"type({value}) is {value}_type and {value}.dtype is {value}_dtype and {has_shape}"
            ), names
        test = f"type({value}) is {value}_type"
        if self.dtype.kind in "iu":
            fits = f"{value}_low <= {value} <= {value}_high"
            if self._high > _SMALL:
                # CPython compares ints of one digit in a fifth of the time.
                fits = f"({max(self._low, -_SMALL)} <= {value} <= {_SMALL} or {fits})"
            test = f"(type({value}) is int and {fits}) or {test}"
        elif self._is_float and self.dtype.kind == "f":
            test = f"(type({value}) is float and {value}_low <= {value} <= {value}_high) or {test}"
        return test, names

    def convert_copy(self, value: Any) -> Any:
        """Do the same as `convert`; the result shares no memory with the value."""
        converted = self.convert(value)
        if self.dtype.kind == "O" and self.scalar:
            return converted
        if self.dtype.kind == "O" and self.shape is None and not self.text:
            return value  # a Python object is kept by reference, even an array
        copy = np.array(converted, dtype=self.dtype)
        return copy[()] if copy.ndim == 0 else copy

    def column(self, values: Any) -> NDArray[Any]:
        """Check the rows of a batch; return them as an array of shape ``(n, *shape)``.

        Raises:
            InvalidArgumentError: the dtype or the shape of a row is wrong, or the value is a scalar
                and has no rows.
        """
        if type(values) is np.ndarray and values.dtype is self.dtype and not self.text:
            array = values
        elif isinstance(values, list | tuple) and not values:
            array = np.empty((0, *(size or 0 for size in self.shape or ())), self.dtype)
        else:
            array = self._array(values, self.shape == (), rows=True)
        if array.ndim == 0:
            raise InvalidArgumentError(
                f"component {self.label}: got the scalar {short_repr(values)}; expected a batch,"
                f" an array of shape (n, ...) with one row per element"
            )
        if self.shape is not None and not _fits(array.shape[1:], self.shape):
            raise InvalidArgumentError(
                f"component {self.label}: got rows of shape {list(array.shape[1:])} in an array of"
                f" shape {list(array.shape)}; expected rows of shape {self.shape_name}"
            )
        return array

    def output(self, array: Any, n: int) -> NDArray[Any]:
        """Check an array that is to receive n rows of this component."""
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
                else with_article(type(array).__name__)
            )
            raise InvalidArgumentError(
                f"out: got {given} for component {self.label};"
                f" expected a writable array {self.dtype}{list(shape)}"
            )
        return array  # type: ignore[no-any-return]

    def array(self, value: Any) -> NDArray[Any]:
        """Return the value as an array of any shape, of this dtype or one that casts to it.

        Raises:
            InvalidArgumentError: its dtype is wrong.
        """
        return self._array(value, scalar=False)

    def takes(self, dtype: np.dtype[Any]) -> bool:
        """Return whether arrays of a dtype may be cast to this one, whatever their values."""
        return dtype is self.dtype or self._cast_from(dtype) is _Cast.ALWAYS

    def keeps(self, array: NDArray[Any]) -> bool:
        """Return whether an array may be cast and each of its numbers fits."""
        return self._cast_from(array.dtype) is not _Cast.NEVER and self._is_in_range(array)

    def _array(self, value: Any, scalar: bool, *, rows: bool = False) -> NDArray[Any]:
        is_object = self.dtype.kind == "O"
        # Objects are kept as they are, masks and all, if NumPy need not look into them.
        is_whole = self.shape is None and not rows
        try:
            if not (is_object and (scalar if type(value) in (list, tuple) else is_whole)):
                refuse_unsupported(self.label, value)
        except RecursionError as error:
            raise self._refused(value, "with lists in lists, too deep or without an end") from error
        if is_object:
            return self._object_array(value, scalar, rows)
        if self.dtype.kind in _TEXT:
            self._check_text(value)
        try:
            # Strings of any length have no dtype here: NumPy's would cut off a NUL at the end.
            given = self.dtype if self.dtype.kind == "T" and _is_python(value) else None
            array = np.asarray(value, given)
        except BaseException as error:
            if isinstance(error, _EXITS):
                raise
            # Even a cancellation: this code awaits nothing, so it is not that of this task.
            why = f"which NumPy cannot convert: {exception_text(error)}{conversion_hint(value)}"
            raise self._refused(value, why) from error
        cast = self._cast_from(array.dtype)
        if cast is not _Cast.NEVER:
            if isinstance(value, list | tuple):
                self._check_same_kind(array.dtype, value)
            if cast is _Cast.IN_RANGE or _is_python(value):
                self._check_range(array, value)
            return array
        if _is_python(value):
            if array.size == 0:
                return array.astype(self.dtype)
            if _has_numpy(value):
                pass  # each value has a dtype, and has kept it
            elif self.dtype.kind in "iufc":
                ints = array if array.dtype.kind in "iu" else self._large_ints(value)
                if ints is not None:
                    self._check_range(ints, value)
                    return ints.astype(self.dtype)
        raise self._refused(value, f"of dtype {array.dtype}")

    def _check_text(self, value: Any, *, is_inside: bool = False) -> None:
        """Refuse to turn anything but text into text, and text that would change."""
        if isinstance(value, list | tuple):
            for item in value:
                self._check_text(item, is_inside=True)
        elif self.dtype.kind == "T":
            is_text = isinstance(value, str) or value is _missing(self.dtype)
            is_text |= isinstance(value, np.ndarray) and value.dtype.kind in "UT"
            # An array alone has a dtype to judge. In a list, NumPy would write it as text.
            is_judged = not (is_inside or _is_python(value) or isinstance(value, np.generic))
            if not (is_text or is_judged):
                raise self._refused(value, with_article(type(value).__name__))
        elif isinstance(value, str | bytes) and value[-1:] in ("\0", b"\0"):
            raise self._refused(value, "whose NUL at the end NumPy would cut off")

    def _large_ints(self, value: Any) -> NDArray[Any] | None:
        """Return Python ints that NumPy made floats, because no int dtype holds all of them."""
        ints = np.array(value, dtype=object)
        return ints if all(type(item) is int for item in ints.flat) else None

    def _cast_from(self, dtype: np.dtype[Any]) -> _Cast:
        known = self._casts.get(dtype)
        if known is None:
            known = self._casts[dtype] = _cast_between(dtype, self.dtype)
        return known

    def _check_range(self, array: NDArray[Any], value: Any) -> None:
        if not self._is_in_range(array):
            span = "what it can hold"
            if self._is_float:
                span = f"{np.finfo(self.dtype).min} to {np.finfo(self.dtype).max}"
            elif self.dtype.kind not in "mM":
                span = f"{self._low} to {self._high}"
            raise self._refused(value, f"outside {span}")

    def _check_same_kind(self, dtype: np.dtype[Any], values: Any) -> None:
        """Refuse values that changed when NumPy chose one dtype for all of them."""
        if isinstance(values, list | tuple):
            if dtype.kind in "USmM":
                for value in values:
                    self._check_same_kind(dtype, value)
        elif dtype.kind in "mM":
            if not _times_fit(dtype, np.asarray(values)):
                raise self._refused(values, f"outside what {dtype} can hold, as NumPy chose")
        elif np.asarray(values).dtype.kind != dtype.kind:
            raise self._refused(values, f"of class {type(values).__name__} among text")

    def _is_in_range(self, array: NDArray[Any]) -> bool:
        """Return whether all numbers fit. Values that are not numbers do."""
        if array.dtype is self.dtype:
            return True
        if self.dtype.kind in "mM":
            return _times_fit(self.dtype, array)
        if self.dtype.kind not in "iufc":
            return True
        if array.dtype.kind == "c":
            return self._is_in_range(array.real) and self._is_in_range(array.imag)
        if array.dtype.kind == "f" and array.size:
            if self._low <= array.min() and array.max() <= self._high:  # False if one is NaN
                return True
            array = array[np.isfinite(array)]  # infinity and NaN exist in every float dtype
        if array.dtype.kind not in "iufO" or not array.size:
            return True
        # As Python numbers, which compare by value; NumPy numbers of different dtypes do not.
        low, high = np.asarray([array.min(), array.max()]).tolist()
        return bool(self._low <= low and high <= self._high)

    def _object_array(self, value: Any, scalar: bool, rows: bool) -> NDArray[Any]:
        """Return Python values as an object array, each stored as it is."""
        if not scalar:
            try:
                array = as_objects(value)
            except BaseException as error:
                if isinstance(error, _EXITS):
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
                    f"component {self.label}: got {short_repr(value)};"
                    " expected a sequence of values"
                )
            if isinstance(value, Mapping) or is_table(value):
                raise self._refused(value, "which iterates over names, not rows")
            try:
                listed = separate_rows(value)
            except TypeError as error:
                raise self._refused(value, "which is not a sequence") from error
            array = np.empty(len(listed), dtype=object)
            for index, item in enumerate(listed):
                array[index] = plain(item) if self.text else item
        return self._checked_text(array, value) if self.text else array

    def _checked_text(self, array: NDArray[Any], value: Any) -> NDArray[Any]:
        assert self.text is not None
        for item in array.flat:
            if not isinstance(item, self.text):
                raise self._refused(value, f"holding {with_article(type(item).__name__)}")
        return array

    def _check_shape(self, array: NDArray[Any], value: Any) -> None:
        if self.shape is not None and not _fits(array.shape, self.shape):
            raise InvalidArgumentError(
                f"component {self.label}: got {short_repr(value)} of shape {list(array.shape)};"
                f" expected shape {self.shape_name}"
            )

    def _refused(self, value: Any, why: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"component {self.label}: got {short_repr(value)}, {why}; expected {self.type_name}"
            " (numbers are cast under NumPy's same_kind rule; use .astype() to force a cast)"
        )


_TEXT: Final = frozenset("UST")

_EXITS: Final = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""Exceptions that end a program or a generator, rather than just a conversion."""


def plain(value: Any) -> Any:
    """Return a value as an object to keep. NumPy text becomes Python text; the rest stays."""
    return value.item() if isinstance(value, np.str_ | np.bytes_) else value


def conversion_hint(value: Any) -> str:
    """Return what to write where NumPy cannot convert a tensor of PyTorch, as messages say it."""
    if type(value).__module__.partition(".")[0] != "torch":
        return ""
    steps = ""
    if getattr(value, "requires_grad", False):
        steps += ".detach()"
    if getattr(getattr(value, "device", None), "type", "cpu") != "cpu":
        steps += ".cpu()"
    if str(getattr(value, "dtype", "")).startswith(("torch.bfloat16", "torch.float8_")):
        steps += ".float()"
    return f" (write x{steps} for a tensor x)" if steps else ""


def as_objects(value: Any) -> NDArray[Any]:
    """Return an array of objects that holds each part of a value unconverted.

    NumPy alone would turn some times into ints, and records into tuples.

    Raises:
        ValueError: its parts have different lengths.
    """
    array = value if isinstance(value, np.ndarray) else None
    if array is None and not isinstance(value, list | tuple) and hasattr(value, "__array__"):
        array = np.asarray(value)
    if array is None:
        array = np.array(value, dtype=object)
        if array.ndim > 1 and isinstance(value, list | tuple):
            for row, part in enumerate(value):
                if isinstance(part, np.ndarray | list | tuple):
                    array[row] = as_objects(part)
        return array
    if array.dtype.kind not in "mMV":
        return array.astype(object)
    objects = np.empty(array.shape, object)
    for index in np.ndindex(array.shape):
        item = array[index]
        objects[index] = item.copy() if array.dtype.kind == "V" else item
    return objects


_ORDINARY = frozenset({np.ndarray, int, float, complex, bool, str, bytes, *np.sctypeDict.values()})


def is_unsupported(value: Any) -> bool:
    """Return whether NumPy would take a value for another array than it is: a masked one loses its
    mask, and of a mapping other than a dict it takes the keys. In a list or tuple, it looks at what
    is inside."""
    if isinstance(value, list | tuple):
        return not _ORDINARY.issuperset(map(type, value)) and any(map(is_unsupported, value))
    return isinstance(value, np.ma.MaskedArray | Mapping) and not isinstance(value, dict)


def refuse_unsupported(label: str, value: Any) -> None:
    """Refuse a value if `is_unsupported`.

    Raises:
        InvalidArgumentError: it is.
    """
    if type(value) in _ORDINARY or not is_unsupported(value):
        return
    while isinstance(value, list | tuple):
        value = next(filter(is_unsupported, value))
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidArgumentError(
            f"component {label}: got a masked array; expected one without a mask, such as"
            " value.filled(0)"
        )
    raise InvalidArgumentError(
        f"component {label}: got {with_article(type(value).__name__)}, whose keys NumPy would take;"
        " expected an array or numbers, such as list(value.values())"
    )


def _cast_between(dtype: np.dtype[Any], other: np.dtype[Any]) -> _Cast:
    """Return whether arrays of a dtype may be cast to another one."""
    if _is_foreign(other):  # NumPy takes some of these for the same kind, and others for void
        return _Cast.ALWAYS if dtype == other else _Cast.NEVER
    if _is_foreign(dtype):
        fits = other.kind in "biufcO" and np.can_cast(dtype, other, "safe")
        return _Cast.ALWAYS if fits else _Cast.NEVER
    if other.kind in "USV":
        # Under same_kind NumPy would silently cut strings to length, which loses data. And it would
        # turn numbers into strings.
        fits = dtype.kind == other.kind and np.can_cast(dtype, other, "safe")
        return _Cast.ALWAYS if fits and _have_same_fields(dtype, other) else _Cast.NEVER
    if other.kind == "T":
        # NumPy would turn anything into text, even a value that stands for missing text.
        is_text = dtype.kind == "U" or dtype == other
        is_text |= dtype.kind == "T" and _missing(dtype) is _NO_VALUE
        return _Cast.ALWAYS if is_text else _Cast.NEVER
    if dtype.kind == "T" or not np.can_cast(dtype, other, "same_kind"):
        return _Cast.NEVER  # NumPy would take any text for true
    if other.kind in "mM":
        is_same = dtype.kind == "b" or dtype == other
        return _Cast.ALWAYS if is_same else _Cast.IN_RANGE
    # Ints may wrap around, and a number that is too large for a float becomes infinity.
    may_change = dtype.kind in "iufc" and not np.can_cast(dtype, other, "safe")
    return _Cast.IN_RANGE if may_change else _Cast.ALWAYS


def _is_foreign(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is from another library, such as the small floats of ml_dtypes."""
    return dtype.isbuiltin == 2


_NO_VALUE: Final = object()


def _missing(dtype: np.dtype[Any]) -> Any:
    """Return the value that stands for missing text, if a dtype of text has one."""
    return getattr(dtype, "na_object", _NO_VALUE)


def _have_same_fields(dtype: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Return whether two record dtypes have the same field names in the same order, and fields
    whose values stay what they are.

    NumPy matches fields by position. It would exchange x and y, and write numbers as text.
    """
    if dtype.names is None or other.names is None:  # a longer void would be filled with zeros
        return dtype.names == other.names and (dtype.kind != "V" or dtype == other)
    pairs = [(dtype[name], other[name]) for name in dtype.names if name in other.names]
    return dtype.names == other.names and all(
        one.shape == two.shape and _is_same_kind_of_field(one.base, two.base) for one, two in pairs
    )


def _is_same_kind_of_field(dtype: np.dtype[Any], other: np.dtype[Any]) -> bool:
    if other.kind in "mM":
        return dtype.kind == other.kind and np.datetime_data(dtype) == np.datetime_data(other)
    if other.kind == "O":
        return dtype.kind == "O"
    return dtype == other or _cast_between(dtype, other) is _Cast.ALWAYS


def _times_fit(dtype: np.dtype[Any], array: NDArray[Any]) -> bool:
    """Return whether times, or ints, keep their values when cast to a dtype of times."""
    if array.dtype.kind == "u":
        return not array.size or int(array.max()) <= np.iinfo(np.int64).max
    if array.dtype.kind == "i":  # its smallest int means NaT
        return not array.size or int(array.min()) > np.iinfo(np.int64).min
    if array.dtype.kind not in "mM":
        return True
    try:  # a finer unit reaches fewer years, and a coarser one drops fractions
        cast = array.astype(dtype)
    except OverflowError:  # NumPy raises it since 2.5; before, it wraps around
        return False
    return bool(np.all((cast.astype(array.dtype) == array) | np.isnat(array)))


def _fits(shape: tuple[int, ...], wanted: Shape) -> bool:
    if shape == wanted:
        return True
    return len(shape) == len(wanted) and all(
        size is None or size == given for given, size in zip(shape, wanted, strict=True)
    )


@lru_cache(64)
def _bounds(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the range of Python numbers that a component accepts; empty if it accepts none."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return int(info.min), int(info.max)
    if dtype.kind in "fc" and not _is_foreign(dtype):
        largest = min(float(np.finfo(dtype).max), float(np.finfo(float).max))
        # A number above the largest float by less than half its last digit rounds down to it.
        half = largest * float(np.finfo(dtype).epsneg) / 2 / (1 - float(np.finfo(dtype).epsneg))
        if largest < largest + half < inf:
            largest = nextafter(largest + half, 0)
        return -largest, largest
    return 1, 0


def _is_python(value: Any) -> bool:
    """Return whether a value is Python's own, and so has no dtype to respect."""
    return not isinstance(value, np.ndarray | np.generic) and not hasattr(value, "__array__")


def _has_numpy(value: Any) -> bool:
    """Return whether a list or tuple contains NumPy values, each with a dtype."""
    if isinstance(value, list | tuple):
        return any(map(_has_numpy, value))
    return not _is_python(value)
