"""Stacking: makes one batch of many examples, along a new axis 0, padded if sizes differ.

An example keeps the structure that its function gave it: a tree of tuples, named tuples, mappings,
lists and dataclasses (`aioqueue.core.elements.trees`), whose leaves are its components. Anything
that is no container is an example of one component. The first example that a `Collator` gets
decides the structure, and each component's dtype and shape, for all that follow. A component is one
of:

* a string or bytes: kept unchanged, in an array of objects;
* a number, array, list of numbers, or anything else that NumPy converts to an array: ``int64`` for
  Python's ints, ``float64`` for its floats, otherwise the dtype that it has;
* any other object, if the user has asked for objects: kept unchanged, in an array of objects.

A list of numbers or text, or of such lists, is one array. A list of anything else is a container of
a fixed number of parts. ``None`` is no component: it stays where all examples have it.

Later values must fit by the rule of the queues (`aioqueue.core.elements.component`), NumPy's
``same_kind``: an int fits a float component, and a float does not fit an int component. Python's
own numbers are judged by value, and masked arrays are refused. Named tuples, mappings and
dataclasses fit by the names of their fields, in any order; other fields are refused. An empty value
fits any component. An example with an empty list, which implies no dtype, leaves the decision to
the next example.

`rows_of` is the way back: the examples of a batch. `flattened` makes the examples of a function
that returns several.
"""

from __future__ import annotations

import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from inspect import isasyncgenfunction
from itertools import islice
from operator import eq
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import function_name, is_coroutine_function
from aioqueue.core.elements import component as component_checks
from aioqueue.core.elements.structure import Structure, Wording, structure_of
from aioqueue.core.elements.trees import Path, is_array_like, leaves_of
from aioqueue.core.elements.values import is_table, short_repr
from aioqueue.errors import with_article
from aioqueue.pipeline.batches.layout import (
    PYTHON_NUMBERS,
    SCALARS,
    WORDING,
    ExampleComponent,
    Layout,
    Objects,
    array_of,
    as_array,
    components_of,
    is_one_array,
    layout_of,
    no_array,
    values_of,
)

Empty: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]
"""Allocates uninitialised arrays of a shape and dtype."""


class Uncollated:
    """A batch that its consumer still has to make, in memory of the consumer's choice.

    (It is no dataclass, which would be a tree.)

    Args:
        make: makes the batch, in arrays that it asks for by shape and dtype.
    """

    __slots__ = ("make",)

    def __init__(self, make: Callable[[Empty], Any]) -> None:
        self.make: Callable[[Empty], Any] = make


class Collator:
    """Makes batches from lists of examples; the first example decides the layout of all.

    Args:
        pad: whether to pad every dimension to the largest size in the batch, at the high end.
            Otherwise all examples must have the shapes of the first.
        padding_value: the number to pad with, for all components, or one per component, in a tuple
            or mapping like the example. Strings are always padded with empty strings.
        objects: which values to keep as objects.
        pad_option: the name of the option ``pad`` in messages; ``None`` without one.
    """

    def __init__(
        self,
        *,
        pad: bool = False,
        padding_value: Any = 0,
        objects: Objects = False,
        pad_option: str | None = "pad",
    ) -> None:
        self._pad = pad
        self._pad_option = pad_option
        self._padding_value = padding_value
        self._objects = objects
        self._lock = threading.Lock()  # guards the decision about the first example
        self._components: list[ExampleComponent] = []
        self._is_decided = False
        self._earlier: Mapping[str, Any] | None = None  # the decision of an earlier run
        self._layout: Mapping[str, Any] | None = None
        self._structure: Structure | None = None

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
        structure, learnt = self._learnt(examples)
        columns = structure.columns(examples, WORDING)
        made = [
            self._column(component, values, lengths, to, empty)
            for component, values in zip(learnt, columns, strict=True)
        ]
        return structure.made(iter(made))

    def parts(self, example: Any) -> list[tuple[ExampleComponent, NDArray[Any]]]:
        """Return the components of an example, as arrays that can be cast to their dtypes.

        With padding, the sizes may differ from those of the first example.

        Raises:
            InvalidArgumentError: the example does not fit the first one.
        """
        structure, learnt = self._learnt((example,))
        values = structure.leaves(example, WORDING)
        return [
            (component, self._fitting(component, value))
            for component, value in zip(learnt, values, strict=True)
        ]

    def joined(self, columns: Iterable[Any]) -> Any:
        """Return columns, one per component, in the structure of an example that was here."""
        assert self._structure is not None
        return self._structure.made(iter(columns))

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
    def structure(self) -> Structure | None:
        return self._structure

    @property
    def layout(self) -> Mapping[str, Any] | None:
        """Return the decision of the first example in plain JSON types; ``None`` before it."""
        return self._layout

    def restore_layout(self, layout: Mapping[str, Any] | None) -> None:
        """Use the `layout` of an earlier run for all examples."""
        if layout is not None:
            Layout.of_plain(layout)  # fails at once if it is damaged
        self._earlier = self._layout = layout

    def _learnt(self, examples: Sequence[Any]) -> tuple[Structure, list[ExampleComponent]]:
        """Return the layout of all examples; the first example decides it."""
        with self._lock:
            if not self._is_decided:
                self._decide(examples)
            assert self._structure is not None
            return self._structure, self._components

    def _decide(self, examples: Sequence[Any]) -> None:
        if self._earlier is not None:
            self._learn(Layout.of_plain(self._earlier), examples[0])
            self._is_decided = True
            return
        typed = [*islice(filter(_has_dtypes, examples), 1)]  # may be [None]
        (example,) = typed or examples[:1]
        layout = layout_of(example, self._objects)
        self._learn(layout, example)
        self._is_decided = bool(typed)
        self._layout = layout.plain() if self._is_decided else None

    def _learn(self, layout: Layout, example: Any) -> None:
        structure = layout.structure.like(example, WORDING)
        self._components = components_of(structure, layout.layouts, self._padding_value)
        self._structure = structure

    def _column(
        self,
        component: ExampleComponent,
        values: Sequence[Any],
        lengths: Sequence[int],
        to: int | None,
        empty: Empty,
    ) -> NDArray[Any]:
        if component.is_text:
            _check_text(component, values)
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
            array = as_array(component.label, value)
            if isinstance(value, list | tuple):  # NumPy would make 1 and 2.5 two floats
                array = component_checks.as_objects(value)
            elif array.dtype.kind in "mMV":  # NumPy would convert these to ints and tuples
                array = component_checks.as_objects(array)
        elif type(value) is np.ndarray and rule.takes(value.dtype):
            array = as_array(component.label, value)
        else:
            try:
                array = rule.array(value)
            except InvalidArgumentError as error:
                array, failure = as_array(component.label, value), error
        if array.shape != shape and not (self._pad and array.ndim == len(shape)):
            # Padding is no help if the numbers of dimensions differ, nor for text and objects.
            is_help = not self._pad and array.ndim == len(shape) and bool(shape)
            option = self._pad_option if is_help else None
            hint = "" if option is None else f"{option}=True pads what differs in size"
            raise _refused(component, f"a value of shape {list(array.shape)}", hint)
        if failure is None:
            return array
        if not array.size:
            return array.astype(rule.dtype)  # an empty list is an array of floats for NumPy
        # Take the fault from the queue's error, but what is expected from the first example.
        got = str(failure).rpartition("; expected")[0].partition(": got ")[2]
        raise _refused(component, got, _conversion(rule.dtype, array.dtype, value)) from failure


def _has_dtypes(example: Any) -> bool:
    return not any(map(_is_empty, values_of(example)))


def _is_empty(value: Any) -> bool:
    return isinstance(value, list) and not any(True for _ in leaves_of(value))


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
    if type(value) in PYTHON_NUMBERS and both.kind != first.kind:
        way = f"{type(both.type(0).item()).__name__}(x)"
    elif isinstance(value, np.ndarray):
        way = f"x.astype('{both}')"
    else:
        way = f"np.asarray(x, '{both}')"
    return f"convert all of them, for example with {way}"


def examples_in(batch: Any) -> int:
    return len(next(leaf for leaf in leaves_of(batch) if leaf is not None))


def _objects(component: ExampleComponent, values: Sequence[Any]) -> NDArray[Any]:
    column = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):  # a single assignment would unpack sequences
        column[index] = component_checks.plain(value)
    return column


_TEXTS: Final = frozenset({str, bytes, np.str_, np.bytes_})


def _check_text(component: ExampleComponent, values: Sequence[Any]) -> None:
    """Check that values are text, numbers beside it, or lists or arrays of these.

    Raises:
        InvalidArgumentError: one of them is an object of another type.
    """
    if _TEXTS.issuperset(map(type, values)):
        return
    for value in values:
        if not (
            is_one_array(value)
            if isinstance(value, list)
            else isinstance(value, SCALARS) or is_array_like(value)
        ):
            raise no_array(component.label, value)


_PYTHON_TYPES: Final[Mapping[Any, type]] = {
    np.dtype(np.int64): int,
    np.dtype(np.float64): float,
    np.dtype(np.complex128): complex,
    np.dtype(np.bool_): bool,
}
"""The Python types whose numbers a dtype holds unchanged."""


def _of_one_type(dtype: np.dtype[Any], values: Sequence[Any]) -> NDArray[Any] | None:
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


def _at_once(component: ExampleComponent, values: Sequence[Any]) -> NDArray[Any] | None:
    """Return numbers, or lists of them, as a column if they certainly all fit."""
    if not component.shape and (column := _of_one_type(component.dtype, values)) is not None:
        return column
    if component_checks.is_unsupported(values) or component.dtype.kind in "mM":
        return None  # NumPy would merge several units into one, which may not hold every value
    try:
        is_object = component.dtype.kind == "O"
        column = component_checks.as_objects(values) if is_object else array_of(values)
    except (ValueError, TypeError, OverflowError, RuntimeError):  # PyTorch's, for one
        return None
    if column.shape[1:] != component.shape or not component.rule.keeps(column):
        return None
    return column.astype(component.dtype, copy=False)


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


def flattened(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that returns an iterable, so that it gives the examples one by one.

    You can pickle the result if you can pickle the function.

    Raises:
        TypeError: (when it is called) the function has returned something that is not iterable.
    """
    if isasyncgenfunction(function):
        return function
    return _FlattenedAsync(function) if is_coroutine_function(function) else _Flattened(function)


class _Flattened:
    def __init__(self, function: Callable[..., Any]) -> None:
        # `inspect` follows `__wrapped__`, so that a parameter `rng` of the function is found.
        self.__wrapped__ = function
        self.__name__ = function_name(function)

    def __call__(self, item: Any, **options: Any) -> Iterator[Any]:
        return _each(self.__wrapped__(item, **options), self.__name__)


class _FlattenedAsync(_Flattened):
    async def __call__(self, item: Any, **options: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        for example in _each(await self.__wrapped__(item, **options), self.__name__):
            yield example


def _each(made: Any, name: str) -> Iterator[Any]:
    # Iterating over a mapping or a table gives names, not examples.
    is_named = isinstance(made, str | bytes | Mapping) or is_table(made)
    if not isinstance(made, Iterable) or is_named:
        raise TypeError(
            f"{name} returned {with_article(type(made).__name__)}; expected an iterable of"
            " examples, because you passed it to `flat` (for one example per item use `prepare`)"
        )
    yield from made


def rows_of(batch: Any, lists: Collection[Path] = ()) -> Iterable[Any]:
    """The examples of a batch. They share no memory with the batch, and do not keep it alive.

    Args:
        batch: a tree of arrays, or of lists with one row per example.
        lists: the paths of lists that are containers; any other has one row per example.

    Raises:
        InvalidArgumentError: the value is not a batch: its components differ in length, or have no
            length.
    """
    structure = structure_of_batch(batch, lists)
    labels, columns = structure.labels(), structure.leaves(batch, _WORDING)
    rows = [_rows(column) for column in columns]
    if len({len(column) for column in columns}) > 1:
        lengths = {label: len(column) for label, column in zip(labels, columns, strict=True)}
        raise InvalidArgumentError(
            f"batch: got components of different lengths, {lengths}; expected as many rows in each"
        )
    if structure.is_leaf:
        return rows[0]
    if not rows:
        raise InvalidArgumentError(
            f"batch: got {short_repr(batch)}; expected at least one component"
        )
    make = structure.make if structure.is_flat else _made_by(structure)
    return map(make, zip(*rows, strict=True))


def structure_of_batch(batch: Any, lists: Collection[Path] = ()) -> Structure:
    return structure_of(batch, _WORDING, _is_column if not lists else _columns_beside(lists))


def _made_by(structure: Structure) -> Callable[[Sequence[Any]], Any]:
    return lambda row: structure.made(iter(row))


def _is_column(value: Any, path: Path) -> bool:
    return isinstance(value, list)


def _columns_beside(lists: Collection[Path]) -> Callable[[Any, Path], bool]:
    return lambda value, path: isinstance(value, list) and path not in lists


_WORDING: Final = Wording("batch")


def _rows(column: Any) -> Iterable[Any]:
    has_rows = hasattr(column, "__len__") and _has_axes(column)
    # Iterating over a mapping or a table gives names, not rows.
    if not has_rows or isinstance(column, str | bytes | Mapping) or is_table(column):
        raise InvalidArgumentError(
            f"batch: got {type(column).__name__}; expected arrays or lists, one row per example"
        )
    if isinstance(column, np.ndarray):
        has_views = column.ndim > 1 or column.dtype.kind == "V"  # else rows are scalars, or objects
        return (row.copy() for row in column) if has_views else column
    if hasattr(column, "__dlpack__"):  # an array of another library, such as a tensor of PyTorch
        return map(_copied, column)  # its scalars, such as those of Arrow, may have no way to copy
    rows: Iterable[Any] = column
    return rows


def _copied(row: Any) -> Any:
    copy = getattr(row, "clone", None) or getattr(row, "copy", None)
    return row if copy is None else copy()


def _has_axes(column: Any) -> bool:
    return getattr(column, "ndim", 1) != 0
