"""What an element is: its components, and the checks that every value passes on its way in.

An *element* is the tuple of components that is enqueued and dequeued as one. Inside the queue it
is a *row*: a tuple with one value per component, each of which NumPy can assign to a component's
array without a further check. A *batch* of rows is a list of *columns*, one array of shape
``(n, *shape)`` per component. `ElementSpec` translates between what users pass and rows and
columns; `ObjectSpec` and `PriorityObjectSpec` do the same for queues of plain Python objects,
where a row is the object itself and the columns of a batch are the list of rows.

Everything here happens before a queue is touched: a value that is refused has changed nothing.

Casting follows NumPy's ``same_kind`` rule by dtype. Python's own numbers have no dtype, so they
are judged by value: ``5`` fits a ``uint8`` component and ``300`` does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from aioqueue.checks import is_int
from aioqueue.errors import InvalidArgumentError, counted

__all__ = (
    "Columns",
    "Component",
    "ElementSpec",
    "ObjectSpec",
    "PriorityObjectSpec",
    "Row",
    "Spec",
    "is_iterable",
)

Row = Any
"""One element inside a queue: a tuple of component values, or the object itself."""

Columns = list[Any]
"""The rows of a batch, by component; in a queue of objects, the list of rows."""

Shape = tuple[int | None, ...]

_INT64 = np.iinfo(np.int64)
_ndarray = np.ndarray


class Spec(Protocol):
    """What a queue needs to know about its elements."""

    @property
    def components(self) -> tuple[Component, ...] | None:
        """The components of typed elements; ``None`` in a queue of objects."""

    @property
    def batchable(self) -> bool:
        """Whether rows can be stacked into a batch."""

    @property
    def names(self) -> list[str]:
        """The components' names; empty where they have none."""

    @property
    def rows_are_elements(self) -> tuple[bool, bool]:
        """Whether `row` and `element` return what they are given: nothing to check, or to make."""

    def row(self, element: Any) -> Row:
        """Check one element and make it a row."""

    def columns(self, batch: Any) -> tuple[Columns, int]:
        """Check a batch; return its columns and how many rows it has."""

    def element(self, row: Row) -> Any:
        """Make a row what the user gets."""

    def batch(self, columns: Columns) -> Any:
        """Make columns what the user gets."""

    def outputs(self, out: Any, n: int) -> Columns:
        """Check the arrays that the user wants a batch of n rows written to."""


class Component:
    """One typed slot of an element: a dtype, a shape, and how to convert a value to them.

    Args:
        label: what error messages call it: its index, or its name.
        dtype: anything `numpy.dtype` accepts; ``str`` and ``bytes`` stand for strings of any
            length, ``object`` for any Python value.
        shape: its dimensions, ``None`` for one that varies; or ``None`` for any shape at all.
    """

    __slots__ = (
        "_castable",
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
        self.scalar = shape == ()
        self.fixed = shape is not None and None not in shape
        try:
            if dtype is None:
                raise TypeError("None is no dtype")  # NumPy would take it for float64
            self.dtype: np.dtype[Any] = np.dtype(dtype)
        except Exception as error:  # NumPy raises a SyntaxError for some strings
            raise InvalidArgumentError(
                f"dtypes: got {dtype!r} for component {label}; expected what numpy.dtype accepts"
            ) from error
        self.text: type[str] | type[bytes] | None = None
        if self.dtype.kind in "US" and self.dtype.itemsize == 0:
            # Strings of any length: NumPy's own string arrays have one fixed length for all.
            self.text = str if self.dtype.kind == "U" else bytes
            self.dtype = np.dtype(object)
        self._castable: dict[np.dtype[Any], bool] = {self.dtype: True}
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
        return self.dtype.str.lstrip("<>|=") if self.dtype.kind in "US" else self.dtype.name

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
                f"component {self.label}: got the scalar {_short(values)}; expected a batch,"
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
            not isinstance(array, np.ndarray)
            or array.dtype != self.dtype
            or array.shape != shape
            or not array.flags.writeable
        ):
            given = (
                f"{array.dtype}{list(array.shape)}{'' if array.flags.writeable else ', read-only'}"
                if isinstance(array, np.ndarray)
                else f"a {type(array).__name__}"
            )
            raise InvalidArgumentError(
                f"out: got {given} for component {self.label};"
                f" expected a writable array {self.dtype}{list(shape)}"
            )
        return array

    def _array(self, value: Any, scalar: bool, *, rows: bool = False) -> NDArray[Any]:
        """The value as an array of this dtype, or of one that may be cast to it."""
        if _is_masked(value):
            raise InvalidArgumentError(
                f"component {self.label}: got a masked array; expected one without a mask,"
                " such as value.filled(0)"
            )
        if self.dtype.kind == "O":
            return self._object_array(value, scalar, rows)
        try:
            array = np.asarray(value)
        except Exception as error:
            raise self._refused(value, f"which NumPy cannot convert: {error}") from error
        if array.dtype is self.dtype or self._may_cast(array.dtype):
            if array.dtype.kind in "iuf" and self.dtype.kind in "iuf" and _is_python(value):
                self._check_range(array, value)
            return array
        if _is_python(value):
            if array.size == 0:
                return array.astype(self.dtype)
            if self.dtype.kind in "iu":
                ints = array if array.dtype.kind in "iu" else self._large_ints(value)
                if ints is not None:
                    self._check_range(ints, value)
                    return ints.astype(self.dtype)
        raise self._refused(value, f"of dtype {array.dtype}")

    def _large_ints(self, value: Any) -> NDArray[Any] | None:
        """Python ints that NumPy has made floats of, because no one dtype of its ints holds all."""
        ints = np.array(value, dtype=object)
        return ints if all(type(item) is int for item in ints.flat) else None

    def _may_cast(self, dtype: np.dtype[Any]) -> bool:
        known = self._castable.get(dtype)
        if known is None:
            # Under same_kind NumPy would silently cut strings to length, which loses data.
            is_text = self.dtype.kind in "USV"
            rule: Any = "safe" if is_text else "same_kind"
            fits = bool(np.can_cast(dtype, self.dtype, rule))
            # Nor are numbers made strings of.
            known = self._castable[dtype] = fits and not (is_text and dtype.kind != self.dtype.kind)
        return known

    def _check_range(self, array: NDArray[Any], value: Any) -> None:
        if array.dtype.kind == "f":
            array = array[np.isfinite(array)]  # what is not finite is so in any dtype
        if array.size and not (self._low <= array.min() and array.max() <= self._high):
            raise self._refused(value, f"outside {self._low} to {self._high}")

    def _object_array(self, value: Any, scalar: bool, rows: bool) -> NDArray[Any]:
        """Python values as an object array, each stored as it is and never taken apart."""
        if not scalar:
            try:
                array = np.array(value, dtype=object)
            except ValueError as error:
                raise self._refused(value, f"which NumPy cannot convert: {error}") from error
            if isinstance(value, np.ndarray) and value.dtype.kind in "US":
                array = np.array(value.tolist(), dtype=object)
        elif not rows:
            array = np.empty((), dtype=object)
            array[()] = value.item() if isinstance(value, np.generic) else value
        else:
            is_scalar = isinstance(value, np.ndarray) and value.ndim == 0
            if is_scalar or isinstance(value, str | bytes):
                raise InvalidArgumentError(
                    f"component {self.label}: got {_short(value)}; expected a sequence of values"
                )
            try:
                listed = value.tolist() if isinstance(value, np.ndarray) else list(value)
            except TypeError as error:
                raise self._refused(value, "which is no sequence") from error
            array = np.empty(len(listed), dtype=object)
            for index, item in enumerate(listed):
                array[index] = item
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
                f"component {self.label}: got {_short(value)} of shape {list(array.shape)};"
                f" expected shape {self.shape_name}"
            )

    def _refused(self, value: Any, why: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"component {self.label}: got {_short(value)}, {why}; expected {self.type_name}"
            " (numbers are cast under NumPy's same_kind rule; use .astype() to force a cast)"
        )


class ElementSpec:
    """The components of typed elements, by position or by name.

    Args:
        dtypes: one dtype, or a list of them.
        shapes: one shape per dtype, or one bare shape where there is one dtype; ``None`` lets
            elements have any shape and makes batches impossible.
        names: one per component; elements and batches are then dicts with these keys.
        ragged: whether a dimension may be ``None``.

    Raises:
        InvalidArgumentError: any of them is not as described.
    """

    __slots__ = (
        "_single",
        "_takes",
        "_tuple_length",
        "batchable",
        "components",
        "names",
        "ragged",
        "rows_are_elements",
        "rows_private",
    )

    def __init__(
        self, dtypes: Any, shapes: Any = None, names: Any = None, *, ragged: bool = False
    ) -> None:
        listed = list(dtypes) if isinstance(dtypes, list | tuple) else [dtypes]
        if not listed:
            raise InvalidArgumentError(f"dtypes: got {dtypes!r}; expected at least one dtype")
        self.names = _checked_names(names, len(listed))
        dims = _checked_shapes(shapes, len(listed), ragged)
        labels = self.names or [str(index) for index in range(len(listed))]
        self.components = tuple(
            Component(label, dtype, shape)
            for label, dtype, shape in zip(labels, listed, dims, strict=True)
        )
        self.ragged = ragged
        self.batchable = shapes is not None
        # Rows that no fixed array can hold are kept by reference, so they are copied on the way in.
        self.rows_private = not all(component.fixed for component in self.components)
        self._single = self.components[0] if len(listed) == 1 and not self.names else None
        self.rows_are_elements = (False, self._single is None and not self.names)
        self._tuple_length = -1 if self.names else len(listed)
        self._takes = [c.private if self.rows_private else c.convert for c in self.components]

    def __repr__(self) -> str:
        return ", ".join(
            f"{component.label}: {component!r}" if self.names else repr(component)
            for component in self.components
        )

    def row(self, element: Any) -> Row:
        if self._single is not None:
            return (self._takes[0](element),)
        if type(element) is tuple and len(element) == self._tuple_length:
            values: Sequence[Any] = element
        else:
            values = self._values(element, "element")
        # Not strict: the values have been counted, and this is done for every element.
        return tuple([take(value) for take, value in zip(self._takes, values)])  # noqa: B905

    def columns(self, batch: Any) -> tuple[Columns, int]:
        values = [batch] if self._single is not None else self._values(batch, "batch")
        pairs = zip(self.components, values, strict=True)
        if self.ragged and self.rows_private:
            columns = [_ragged_column(component, value) for component, value in pairs]
        else:
            columns = [component.column(value) for component, value in pairs]
        n = len(columns[0])
        for component, column in zip(self.components, columns, strict=True):
            if len(column) != n:
                raise InvalidArgumentError(
                    f"batch: got {counted(len(column), 'row')} for component {component.label}"
                    f" and {n} for component {self.components[0].label}; expected as many for each"
                )
        if self.rows_private:
            # Transposed once: such rows are stored one by one.
            rows = [
                tuple([c.private(v) for c, v in zip(self.components, row, strict=True)])
                for row in zip(*columns, strict=True)
            ]
            return rows, n
        return columns, n

    def element(self, row: Row) -> Any:
        if self._single is not None:
            return row[0]
        return dict(zip(self.names, row, strict=True)) if self.names else row

    def batch(self, columns: Columns) -> Any:
        if self._single is not None:
            return columns[0]
        return dict(zip(self.names, columns, strict=True)) if self.names else tuple(columns)

    def outputs(self, out: Any, n: int) -> Columns:
        if not all(component.fixed for component in self.components):
            raise InvalidArgumentError(
                f"out: got {_short(out)}; this queue's batches have no fixed shape to write to"
            )
        arrays = [out] if self._single is not None else self._values(out, "out")
        return [c.output(a, n) for c, a in zip(self.components, arrays, strict=True)]

    def _values(self, given: Any, what: str) -> Sequence[Any]:
        """The components' values in order, out of a tuple, a list or a dict."""
        if self.names:
            if not isinstance(given, Mapping) or set(given) != set(self.names):
                got = sorted(map(str, given)) if isinstance(given, Mapping) else _short(given)
                raise InvalidArgumentError(
                    f"{what}: got {got}; expected a dict with the keys {sorted(self.names)}"
                )
            return [given[name] for name in self.names]
        if not isinstance(given, tuple | list) or len(given) != len(self.components):
            got = (
                counted(len(given), "component")
                if isinstance(given, tuple | list)
                else f"{_short(given)}, no tuple"
            )
            raise InvalidArgumentError(
                f"{what}: got {got}; expected a tuple of"
                f" {counted(len(self.components), 'component')} ({self})"
            )
        return given


def is_iterable(value: Any) -> bool:
    """Whether it can be iterated over; an array of no dimensions looks so, and refuses."""
    try:
        iter(value)
    except TypeError:
        return False
    return True


class ObjectSpec:
    """Elements that are any one Python object; a batch is a list."""

    __slots__ = ()
    components: tuple[Component, ...] | None = None
    batchable = True
    names: ClassVar[list[str]] = []
    rows_are_elements = (True, True)

    def __repr__(self) -> str:
        return "objects"

    def row(self, element: Any) -> Row:
        return element

    def columns(self, batch: Any) -> tuple[Columns, int]:
        if isinstance(batch, str | bytes | Mapping) or not is_iterable(batch):
            raise InvalidArgumentError(
                f"batch: got {_short(batch)}; expected a list, or another iterable, of elements"
            )
        rows = [self.row(element) for element in batch]
        return rows, len(rows)

    def element(self, row: Row) -> Any:
        return row

    def batch(self, columns: Columns) -> Any:
        return columns

    def outputs(self, out: Any, n: int) -> Columns:
        raise InvalidArgumentError(
            f"out: got {_short(out)}; a queue of objects returns a list and writes to no arrays"
        )


class PriorityObjectSpec(ObjectSpec):
    """Elements that are pairs of an int priority and any one Python object."""

    __slots__ = ()
    rows_are_elements = (False, True)

    def __repr__(self) -> str:
        return "(priority, object)"

    def row(self, element: Any) -> Row:
        if not isinstance(element, tuple | list) or len(element) != 2:
            raise InvalidArgumentError(
                f"element: got {_short(element)}; expected a pair (priority, object)"
            )
        priority, value = element
        if not is_int(priority) or not _INT64.min <= priority <= _INT64.max:
            raise InvalidArgumentError(
                f"element: got the priority {_short(priority)}; expected an int of 64 bits"
            )
        return (int(priority), value)


def _checked_names(names: Any, count: int) -> list[str]:
    if names is None:
        return []
    listed = [names] if isinstance(names, str) else names
    if not isinstance(listed, list | tuple) or not all(isinstance(name, str) for name in listed):
        raise InvalidArgumentError(f"names: got {names!r}; expected a list of strings")
    if len(listed) != count or len(set(listed)) != count:
        raise InvalidArgumentError(
            f"names: got {names!r}; expected {count} different names, one per component"
        )
    return list(listed)


def _checked_shapes(shapes: Any, count: int, ragged: bool) -> list[Shape | None]:
    if shapes is None:
        return [None] * count
    if not isinstance(shapes, list | tuple):
        raise InvalidArgumentError(f"shapes: got {shapes!r}; expected a list of shapes")
    listed = [shapes] if count == 1 and all(map(_is_size, shapes)) else list(shapes)
    if len(listed) != count:
        raise InvalidArgumentError(
            f"shapes: got {shapes!r}, {counted(len(listed), 'shape')};"
            f" expected {count}, one per dtype"
        )
    for shape in listed:
        if not isinstance(shape, list | tuple) or not all(map(_is_size, shape)):
            raise InvalidArgumentError(f"shapes: got {shape!r}; expected a tuple of sizes >= 0")
        if None in shape and not ragged:
            raise InvalidArgumentError(
                f"shapes: got {shape!r}; expected fixed sizes"
                " (only PaddingFIFOQueue takes None for a dimension that varies)"
            )
    return [tuple(None if size is None else int(size) for size in shape) for shape in listed]


def _is_size(value: object) -> bool:
    return value is None or (is_int(value) and value >= 0)


def _ragged_column(component: Component, values: Any) -> Any:
    """The rows of a batch; a list may hold rows of different shapes."""
    if isinstance(values, list | tuple):
        return [component.convert(value) for value in values]
    return component.column(values)


def _is_masked(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_is_masked, value))
    return isinstance(value, np.ma.MaskedArray)


def _fits(shape: tuple[int, ...], wanted: Shape) -> bool:
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


def _short(value: Any, limit: int = 60) -> str:
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype}{list(value.shape)}"
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= limit else text[: limit - 3] + "..."
