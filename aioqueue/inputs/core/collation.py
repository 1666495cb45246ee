"""Stacking: makes one batch of many examples, along a new axis 0, padded if sizes differ.

An example keeps the structure that its function gave it: a tuple (or named tuple) or a mapping has
several components, anything else is one component. The first example that a `Collator` gets decides
the structure, and each component's dtype and shape, for all that follow. A component is one of:

* a string or bytes: kept unchanged, in an array of objects;
* a number, array, list of numbers, or anything else that NumPy converts to an array: ``int64`` for
  Python's ints, ``float64`` for its floats, otherwise the dtype that it has;
* any other object: kept unchanged, in an array of objects.

Later values must fit by the rule of the queues (`aioqueue.components`), NumPy's ``same_kind``: an
int fits a float component, and a float does not fit an int component. Python's own numbers are
judged by value, and masked arrays are refused. Named tuples and mappings fit by the names of their
fields, in any order; other fields are refused. An empty value fits any component. An example with
an empty list, which implies no dtype, leaves the decision to the next example.
"""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from operator import eq
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aioqueue import InvalidArgumentError, components
from aioqueue.arguments import counted
from aioqueue.coordination.classify import exception_text
from aioqueue.inputs.core.example_layout import Kind, Layout, ValueLayout

__all__ = (
    "Collator",
    "Empty",
    "ExampleComponent",
    "Uncollated",
    "components_of",
    "examples_in",
)

Empty: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]
"""Allocates uninitialised arrays of a shape and dtype."""

_PYTHON_NUMBERS: dict[type, Any] = {
    bool: np.bool_,
    int: np.int64,
    float: np.float64,
    complex: np.complex128,
}


@dataclass(frozen=True, slots=True)
class ExampleComponent:
    """What the first example decides for one component."""

    label: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_object: bool
    """Whether to keep values unchanged, as objects."""
    padding: Any
    """The value that pads smaller values to the largest of their batch."""
    rule: components.Component = field(init=False, repr=False, compare=False)
    """The rule that values must fit, except for their shapes, as in a queue."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", components.Component(self.label, self.dtype, None))


@dataclass(frozen=True, slots=True)
class Uncollated:
    """A batch that its consumer still has to make, in memory of the consumer's choice."""

    make: Callable[[Empty], Any]
    """Makes the batch, in arrays that it asks for by shape and dtype."""


class Collator:
    """Makes batches from lists of examples; the first example decides the layout of all.

    Args:
        pad: whether to pad every dimension to the largest size in the batch, at the high end.
            Otherwise all examples must have the shapes of the first.
        padding_value: the number to pad with, for all components, or one per component, in a tuple
            or mapping like the example. Strings are always padded with empty strings.
        pad_option: the name of the option ``pad`` in messages.
    """

    def __init__(
        self, *, pad: bool = False, padding_value: Any = 0, pad_option: str = "pad"
    ) -> None:
        self._pad = pad
        self._pad_option = pad_option
        self._padding_value = padding_value
        self._lock = threading.Lock()  # guards the decision about the first example
        self._components: list[ExampleComponent] = []
        self._is_decided = False
        self._earlier: Mapping[str, Any] | None = None  # the decision of an earlier run
        self._layout: Mapping[str, Any] | None = None
        self._split: Callable[[Sequence[Any]], Iterable[tuple[Any, ...]]]
        self._join: Callable[[list[Any]], Any]

    def __call__(
        self,
        examples: Sequence[Any],
        *,
        lengths: Sequence[int] = (),
        to: int | None = None,
        empty: Empty = np.empty,
    ) -> Any:
        """Make a batch.

        Args:
            examples: at least one example.
            lengths: the length of each example, if ``to`` is given.
            to: the least length to pad sequences to. A component is a sequence if its axis 0 has
                the example's length.
            empty: allocates the arrays of the columns.

        Returns:
            A batch with the structure of an example: per component an array of shape
            ``(n, *shape)``.

        Raises:
            InvalidArgumentError: an example does not fit the first one.
        """
        learnt = self._learnt(examples)
        return self._join(
            [
                self._column(component, values, lengths, to, empty)
                for component, values in zip(learnt, self._split(examples), strict=True)
            ]
        )

    def parts(self, example: Any) -> list[tuple[ExampleComponent, NDArray[Any]]]:
        """Return the components of an example, as arrays that can be cast to their dtypes.

        With padding, the sizes may differ from those of the first example.

        Raises:
            InvalidArgumentError: the example does not fit the first one.
        """
        learnt = self._learnt((example,))
        columns = self._split((example,))
        return [
            (component, self._fitting(component, value))
            for component, (value,) in zip(learnt, columns, strict=True)
        ]

    def later(
        self, examples: Sequence[Any], *, lengths: Sequence[int] = (), to: int | None = None
    ) -> Uncollated:
        """Return a batch that its consumer makes; the arguments are those of a call.

        Raises:
            InvalidArgumentError: the first example cannot be in a batch.
        """
        self._learnt(examples)  # now, because only here is it known which example is the first
        return Uncollated(lambda empty: self(examples, lengths=lengths, to=to, empty=empty))

    @property
    def layout(self) -> Mapping[str, Any] | None:
        """Return the decision of the first example in plain JSON types; ``None`` before it."""
        return self._layout

    def go_on(self, layout: Mapping[str, Any] | None) -> None:
        """Use the `layout` of an earlier run for all examples."""
        if layout is not None:
            Layout.of_plain(layout)  # fails at once if it is damaged
        self._earlier = self._layout = layout

    def _learnt(self, examples: Sequence[Any]) -> list[ExampleComponent]:
        """Return the layout of all examples; the first example decides it."""
        with self._lock:
            if not self._is_decided:
                self._decide(examples)
            return self._components

    def _decide(self, examples: Sequence[Any]) -> None:
        if self._earlier is not None:
            self._learn(Layout.of_plain(self._earlier), examples[0])
            self._is_decided = True
            return
        telling = [*islice(filter(_tells_dtypes, examples), 1)]  # may be [None], a valid example
        (example,) = telling or examples[:1]
        layout = _layout_of(example)
        self._learn(layout, example)
        self._is_decided = bool(telling)
        self._layout = layout.plain() if self._is_decided else None

    def _learn(self, layout: Layout, example: Any) -> None:
        kind, labels, looks = layout
        learnt = [
            _component(label, look, padding)
            for label, look, padding in zip(labels, looks, self._paddings(layout), strict=True)
        ]
        if kind == "mapping":
            self._split = _splitting(_of_mapping(labels))
            self._join = lambda columns: dict(zip(labels, columns, strict=True))
        elif kind == "one":
            self._split, self._join = _single, lambda columns: columns[0]
        else:
            of = type(example) if kind == "named tuple" else tuple
            # The decision of an old position has the number of fields, but not their names.
            names = _names_of(example) if kind == "named tuple" else None
            if names is not None and set(names) == set(labels):
                names = labels
            self._split = _splitting_tuples(of, len(labels), names)
            self._join = lambda columns: _joined(of, names, columns)
        self._components = learnt

    def _paddings(self, layout: Layout) -> list[Any]:
        given, labels = self._padding_value, layout.labels
        if isinstance(given, Mapping) and set(given) <= set(labels):
            listed = [given.get(label, 0) for label in labels]
        elif isinstance(given, tuple | list) and layout.kind != "mapping":
            listed = list(given)
        else:
            listed = [given] * len(labels)
        if len(listed) != len(labels) or not all(map(_is_number, listed)):
            raise InvalidArgumentError(
                f"padding_value: got {given!r}; expected a number, or one per component of an"
                f" example ({', '.join(labels)})"
            )
        return listed

    def _column(
        self,
        component: ExampleComponent,
        values: tuple[Any, ...],
        lengths: Sequence[int],
        to: int | None,
        empty: Empty,
    ) -> NDArray[Any]:
        if component.is_object:
            return _objects(component, values)
        if not component.shape or type(values[0]) is list:
            numbers = _at_once(component, values)
            if numbers is not None:
                return numbers if empty is np.empty else _moved(numbers, empty)
        dtype, shape, pad = component.dtype, component.shape, self._pad
        rank = len(shape)
        arrays = [
            value
            if type(value) is np.ndarray
            and value.dtype is dtype
            and (value.shape == shape or (pad and value.ndim == rank))
            else self._fitting(component, value)
            for value in values
        ]
        if self._pad and rank:
            return _padded(component, arrays, lengths, to, empty)
        column = empty((len(arrays), *component.shape), dtype)
        if rank == 0:
            return np.stack(arrays, out=column, casting="same_kind")
        # Concatenating gives the same memory as stacking, and is cheaper.
        rows = column.reshape(len(arrays) * component.shape[0], *component.shape[1:])
        np.concatenate(arrays, out=rows, casting="same_kind")
        return column

    def _fitting(self, component: ExampleComponent, value: Any) -> NDArray[Any]:
        """Return a value as an array that can be cast to its component's dtype.

        Raises:
            InvalidArgumentError: it does not fit.
        """
        rule, shape = component.rule, component.shape
        failure = None
        if rule.dtype.kind == "O":
            array = _as_array(component.label, value)
            if array.dtype.kind in "mMV":  # NumPy would convert these to ints and tuples
                array = components.as_objects(array)
        elif type(value) is np.ndarray and rule.takes(value.dtype):
            array = _as_array(component.label, value)
        else:
            try:
                array = rule.array(value)
            except InvalidArgumentError as error:
                array, failure = _as_array(component.label, value), error
        if array.shape != shape and not (self._pad and array.ndim == len(shape)):
            # Padding is no help if the numbers of dimensions differ, nor for text and objects.
            is_help = not self._pad and array.ndim == len(shape) and bool(shape)
            hint = f"{self._pad_option}=True pads what differs in size" if is_help else ""
            raise _refused(component, f"a value of shape {list(array.shape)}", hint)
        if failure is None:
            return array
        if not array.size:
            return array.astype(rule.dtype)  # an empty list is an array of floats for NumPy
        # Take the fault from the queue's error, but what is expected from the first example.
        got = str(failure).rpartition("; expected")[0].partition(": got ")[2]
        raise _refused(component, got, _conversion(rule.dtype, array.dtype, value)) from failure


def _of_mapping(labels: list[str]) -> Callable[[Any], Sequence[Any]]:
    wanted = set(labels)

    def split(example: Any) -> Sequence[Any]:
        if not isinstance(example, Mapping) or set(map(str, example)) != wanted:
            got = sorted(map(str, example)) if isinstance(example, Mapping) else example
            raise InvalidArgumentError(
                f"example: got {got!r}; the first one had the keys {sorted(wanted)}"
            )
        return [example[label] for label in labels]

    return split


def _names_of(example: Any) -> list[str] | None:
    """Return the field names of a named tuple; ``None`` for anything else."""
    is_named = isinstance(example, tuple) and hasattr(type(example), "_make")
    return list(type(example)._fields) if is_named else None


def _joined(of: Any, names: Sequence[str] | None, columns: list[Any]) -> Any:
    """Return the columns as a tuple of this type: a named tuple stays one."""
    if names is None or list(of._fields) == names:
        return getattr(of, "_make", tuple)(columns)
    return of(**dict(zip(names, columns, strict=True)))


def _of_tuple(count: int, names: Sequence[str] | None) -> Callable[[Any], Sequence[Any]]:
    known = names  # a plain tuple fits any names; the first names decide for all

    def split(example: Any) -> Sequence[Any]:
        nonlocal known
        own = _names_of(example)
        if known is None and own is not None and len(own) == count:
            known = own
        if own is not None and known is not None and own != known:
            if set(own) != set(known):
                raise InvalidArgumentError(
                    f"example: got a {type(example).__name__} with the fields {own}; the first one"
                    f" had the fields {list(known)}, and all must have them"
                )
            return [getattr(example, name) for name in known]
        if not isinstance(example, tuple) or len(example) != count:
            got = (
                f"a tuple of {len(example)}"
                if isinstance(example, tuple)
                else f"a {type(example).__name__}"
            )
            raise InvalidArgumentError(
                f"example: got {got}; the first one was a tuple of {counted(count, 'component')}"
            )
        return example

    return split


def _splitting(
    split: Callable[[Any], Sequence[Any]],
) -> Callable[[Sequence[Any]], Iterable[tuple[Any, ...]]]:
    """Return a function that converts examples to columns."""
    return lambda examples: zip(*map(split, examples), strict=True)


def _splitting_tuples(
    kind: Any, count: int, names: Sequence[str] | None
) -> Callable[[Sequence[Any]], Iterable[tuple[Any, ...]]]:
    """Return the same, checking all examples at once, because most often all fit."""
    one_by_one = _splitting(_of_tuple(count, names))
    is_in_place = kind is tuple or names is None or list(kind._fields) == names

    def split(examples: Sequence[Any]) -> Iterable[tuple[Any, ...]]:
        if is_in_place and {*map(type, examples)} == {kind} and len(examples[0]) == count:
            with suppress(ValueError):  # of different lengths
                return list(zip(*examples, strict=True))
        return one_by_one(examples)

    return split


def _tells_dtypes(example: Any) -> bool:
    return not any(map(_is_empty, components_of(example)[1]))


def _is_empty(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_empty, value))


def _refused(component: ExampleComponent, what: str, hint: str = "") -> InvalidArgumentError:
    return InvalidArgumentError(
        f"component {component.label}: got {what}; the first example had"
        f" {component.dtype}{list(component.shape)}, and all must fit it"
        + (f" ({hint})" if hint else "")
    )


def _conversion(first: np.dtype[Any], later: np.dtype[Any], value: Any) -> str:
    """Return a hint how to make numbers of two dtypes fit each other."""
    if first.kind not in "biufc" or later.kind not in "biufc" or first == later:
        return ""
    both = np.result_type(first, later)
    if type(value) in _PYTHON_NUMBERS and both.kind != first.kind:
        way = f"{type(both.type(0).item()).__name__}(x)"
    elif isinstance(value, np.ndarray):
        way = f"x.astype('{both}')"
    else:
        way = f"np.asarray(x, '{both}')"
    return f"convert all of them, for example with {way}"


def components_of(example: Any) -> tuple[list[str], list[Any]]:
    """Return the components of an example, and their names.

    Raises:
        InvalidArgumentError: it has none, or a mapping has keys that are not strings.
    """
    if isinstance(example, Mapping):
        labels, values = list(example), list(example.values())
    elif isinstance(example, tuple):
        labels, values = [str(index) for index in range(len(example))], list(example)
    else:
        return ["0"], [example]
    if not labels or not all(isinstance(label, str) for label in labels):
        raise InvalidArgumentError(
            f"example: got {example!r}; expected at least one component, and strings as names"
        )
    return labels, values


def examples_in(batch: Any) -> int:
    """Return the number of examples in a batch, or in a list that is to become one."""
    if isinstance(batch, tuple):
        return len(batch[0])
    return len(next(iter(batch.values())) if isinstance(batch, dict) else batch)


def _layout_of(example: Any) -> Layout:
    """Return the layout of an example.

    Raises:
        InvalidArgumentError: it cannot be in a batch.
    """
    labels, values = components_of(example)
    kind: Kind = "one"
    if isinstance(example, Mapping):
        kind = "mapping"
    elif isinstance(example, tuple):
        names = _names_of(example)
        kind = "tuple" if names is None else "named tuple"
        labels = labels if names is None else names
    return Layout(kind, labels, list(map(_look_of, labels, values)))


def _look_of(label: str, value: Any) -> ValueLayout:
    """Return the dtype and shape of one value."""
    kind = type(value)
    if kind in _PYTHON_NUMBERS:
        return ValueLayout(np.dtype(_PYTHON_NUMBERS[kind]), ())
    is_array = isinstance(value, np.ndarray | np.generic | list) or hasattr(value, "__array__")
    if not is_array:
        return ValueLayout(None, ())
    array = _as_array(label, value)
    text = _text_in(array) if kind is list else array.dtype.kind
    return ValueLayout(
        np.dtype(text) if text in ("U", "S") else array.dtype, array.shape
    )  # of any length


def _text_in(array: NDArray[Any]) -> str:
    """Return the kind of text that all objects are; otherwise the kind of the array."""
    for kind, of in (("U", str), ("S", bytes)):
        if array.dtype.kind == "O" and array.size and all(isinstance(x, of) for x in array.flat):
            return kind
    return array.dtype.kind


def _component(label: str, look: ValueLayout, padding: Any) -> ExampleComponent:
    """Return how to handle the values of a component."""
    dtype, shape = look
    if dtype is None:
        return ExampleComponent(label, np.dtype(object), (), True, None)
    if dtype.kind in "US":
        blank = "" if dtype.kind == "U" else b""
        return ExampleComponent(label, np.dtype(object), shape, not shape, blank)
    fills = _padding_of(label, dtype, padding) if shape else padding  # scalars need no padding
    return ExampleComponent(label, dtype, shape, False, fills)


def _padding_of(label: str, dtype: np.dtype[Any], padding: Any) -> Any:
    """Return the padding for arrays of a dtype: the number, or an empty value if it has none.

    Raises:
        InvalidArgumentError: the number does not fit the dtype.
    """
    if dtype.kind == "T":
        return ""
    is_record = issubclass(dtype.type, np.void)  # a number would become text in some fields
    if is_record and not padding:
        return np.zeros((), dtype)
    if is_record or (padding and dtype.kind not in "OmM" and not _fits(padding, dtype)):
        raise InvalidArgumentError(
            f"padding_value: got {padding!r} for component {label}; expected a value that fits its"
            f" dtype, {dtype}"
        )
    return padding


def _objects(component: ExampleComponent, values: tuple[Any, ...]) -> NDArray[Any]:
    column = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):  # a single assignment would unpack sequences
        column[index] = components.plain(value)
    return column


_PYTHON_TYPES: Final[Mapping[Any, type]] = {
    np.dtype(np.int64): int,
    np.dtype(np.float64): float,
    np.dtype(np.complex128): complex,
    np.dtype(np.bool_): bool,
}
"""The Python types whose numbers a dtype holds unchanged."""


def _of_one_type(dtype: np.dtype[Any], values: tuple[Any, ...]) -> NDArray[Any] | None:
    """Return numbers as a column if each has exactly the dtype's type: none can change."""
    type_ = type(values[0])
    if not (type_ is dtype.type or type_ is _PYTHON_TYPES.get(dtype)) or dtype.kind not in "biufc":
        return None
    if not {type_}.issuperset(map(type, values)):
        return None
    try:
        return np.fromiter(values, dtype, len(values))
    except OverflowError:
        return None


def _at_once(component: ExampleComponent, values: tuple[Any, ...]) -> NDArray[Any] | None:
    """Return numbers, or lists of them, as a column if they certainly all fit."""
    if not component.shape and (column := _of_one_type(component.dtype, values)) is not None:
        return column
    if components.is_masked(values) or component.dtype.kind in "mM":
        return None  # NumPy would merge several units into one, which may not hold every value
    try:
        column = _array_of(values)
    except (ValueError, TypeError, OverflowError):
        return None
    if column.shape[1:] != component.shape or not component.rule.keeps(column):
        return None
    return column.astype(component.dtype, copy=False)


def _as_array(label: str, value: Any) -> NDArray[Any]:
    if type(value) is np.ndarray:
        return value
    if components.is_masked(value):
        raise InvalidArgumentError(
            f"component {label}: got a masked array; expected one without a mask, such as"
            " value.filled(0)"
        )
    try:
        if type(value) is int:
            return np.asarray(value, np.int64)  # also where NumPy's own default has 32 bits
        return _array_of(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidArgumentError(
            f"component {label}: got {reprlib.repr(value)}, which NumPy cannot make an array of:"
            f" {exception_text(error)}"
        ) from error


def _array_of(value: Any) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except UnicodeDecodeError:  # a mixture of bytes and text
        return np.array(value, object)
    if array.dtype.kind in "US" and isinstance(value, list | tuple):
        # NumPy has converted other values beside text to text, and cut off trailing zeros.
        array = np.array(value, object)
    return array


def _moved(column: NDArray[Any], empty: Empty) -> NDArray[Any]:
    moved = empty(column.shape, column.dtype)
    np.copyto(moved, column)
    return moved


def _padded(
    component: ExampleComponent,
    arrays: list[NDArray[Any]],
    lengths: Sequence[int],
    to: int | None,
    empty: Empty,
) -> NDArray[Any]:
    sizes = [max(lengths) for lengths in zip(*(array.shape for array in arrays), strict=True)]
    if to is not None and all(map(eq, map(len, arrays), lengths)):
        sizes[0] = max(sizes[0], to)
    column = empty((len(arrays), *sizes), component.dtype)
    np.copyto(column, component.padding, casting="unsafe")
    for row, array in zip(column, arrays, strict=True):
        np.copyto(row[tuple(map(slice, array.shape))], array, casting="same_kind")
    return column


def _single(examples: Sequence[Any]) -> Iterable[tuple[Any, ...]]:
    return (tuple(examples),)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | complex | np.number | np.bool_)


def _fits(number: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether a cast leaves a number unchanged."""
    try:
        with np.errstate(all="ignore"):
            cast = np.asarray(number).astype(dtype)
    except (OverflowError, ValueError, TypeError):
        return False
    return bool(cast == number) or bool(number != number and cast != cast)
