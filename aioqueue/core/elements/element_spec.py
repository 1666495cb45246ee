"""Typed elements: their components, and the checks of every value that goes in.

An *element* is the tuple of components that you enqueue and dequeue as one. Inside the queue it is
a *row*: a tuple with one value per component, which NumPy can assign to the component's array
without a further check. A *batch* of rows is a list of *columns*: one array of shape
``(n, *shape)`` per component. `ElementSpec` converts between the users' values and rows and
columns.

All checks happen before the queue is touched, so a refused value has changed nothing.

`aioqueue.core.elements.component` defines what a component may hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aioqueue.base.arguments import is_int
from aioqueue.base.public_names import DeferredModule
from aioqueue.core.elements.component import Component, Shape
from aioqueue.core.elements.spec import Columns, PackedRow, Row
from aioqueue.core.elements.structure import (
    Structure,
    Wording,
    flat_structure,
    keys_text,
    structure_of,
)
from aioqueue.core.elements.trees import Kind, Path, branch_of
from aioqueue.core.elements.values import short_repr
from aioqueue.errors import InvalidArgumentError, counted
from aioqueue.system._compiled import make_function

if TYPE_CHECKING:
    from aioqueue.core.elements import ownership
else:
    ownership = DeferredModule("aioqueue.core.elements.ownership")  # only `out=` needs it


class ElementSpec:
    """The components of typed elements, by position or by name.

    Args:
        dtypes: one dtype, or a list of dtypes.
        shapes: one shape per dtype, or one bare shape if there is one dtype; ``None`` lets elements
            have any shape and makes batches impossible.
        names: one name per component; elements and batches are then dicts with these keys.
        ragged: whether a dimension may be ``None``.
        priority: whether component 0 orders the rows.
        labels: how messages call the components; ``None`` for their names or indices.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """

    __slots__ = (
        "_single",
        "_take",
        "_take_each",
        "_tuple_length",
        "arguments",
        "batchable",
        "components",
        "element_is_identity",
        "names",
        "ragged",
        "row_is_identity",
        "rows_private",
        "structure",
    )

    def __init__(
        self,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        *,
        ragged: bool = False,
        priority: bool = False,
        labels: Sequence[str] | None = None,
    ) -> None:
        self.arguments: dict[str, Any] = {
            "dtypes": dtypes,
            "shapes": shapes,
            "names": names,
            "ragged": ragged,
            "priority": priority,
            "labels": labels,
        }
        listed = list(dtypes) if isinstance(dtypes, list | tuple) else [dtypes]
        if not listed:
            raise InvalidArgumentError(f"dtypes: got {dtypes!r}; expected at least one dtype")
        self.names: list[str] = _checked_names(names, len(listed))
        dims = _checked_shapes(shapes, len(listed), ragged)
        labels = labels or self.names or [str(index) for index in range(len(listed))]
        self.components: tuple[Component, ...] = tuple(
            Component(label, dtype, shape)
            for label, dtype, shape in zip(labels, listed, dims, strict=True)
        )
        if priority:
            self.components = (Component(labels[0], np.int64, dims[0]), *self.components[1:])
        self.ragged: bool = ragged
        self.batchable: bool = shapes is not None
        # Rows that fit no fixed array are kept by reference, so copy them on the way in.
        self.rows_private: bool = not all(component.fixed for component in self.components)
        self._single = self.components[0] if len(listed) == 1 and not self.names else None
        kind: Kind = "mapping" if self.names else "leaf" if self._single else "tuple"
        self.structure: Structure = flat_structure(kind, self.names or range(len(listed)))
        self.row_is_identity: bool = False
        self.element_is_identity: bool = self._single is None and not self.names
        self._tuple_length = -1 if self.names else len(listed)
        takes = [c.convert_copy if self.rows_private else c.convert for c in self.components]
        self._take = takes[0]
        self._take_each: Callable[[Sequence[Any]], Row] = make_function(
            "values",
            "return " + "".join(f"take{i}(values[{i}]), " for i in range(len(takes))),
            **{f"take{i}": take for i, take in enumerate(takes)},
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), self.arguments)

    def row_maker(self) -> Callable[[Any], Row]:
        """Return a function that does what `row` does, but faster with usual elements.

        Those are tuples of values that need no conversion. To find that out by a call for each
        value would cost more than the rest.
        """
        tests, names = [], {"row": self.row}
        for i, component in enumerate(self.components):
            test, of_test = component.needs_no_conversion(f"v{i}")
            tests.append(f"({test})")
            names |= of_test
        if self.rows_private or self._tuple_length < 2 or "(False)" in tests:
            return self.row
        values = ", ".join(f"v{i}" for i in range(len(tests)))
        row_of: Callable[[Any], Row] = make_function(
            "element",
            f"if type(element) is tuple and len(element) == {self._tuple_length}:",
            f"  {values} = element",
            f"  if {' and '.join(tests)}:",
            "    return element",
            "return row(element)",
            **names,
        )
        return row_of

    def usual_element_writer(
        self, is_number: Sequence[bool], append: Callable[[PackedRow], object]
    ) -> Callable[[Any], bool]:
        """Return a function that appends a usual element, packed; it returns whether it is one.

        Usual elements are those of `row_maker`, and the values of an only component.

        Args:
            is_number: of each component, whether its values stay numbers, instead of bytes.
            append: receives the packed row.
        """
        values = [f"v{i}" for i in range(len(self.components))]
        tests: list[str] = []
        packed: list[str] = []
        names: dict[str, Any] = {"append": append}
        for value, component, stays in zip(values, self.components, is_number, strict=True):
            test, of_test = component.needs_no_conversion(value)
            names |= of_test
            # Python's own numbers have no bytes, and those of a NumPy scalar are in native order.
            is_exact = component.dtype.kind in "bc" and component.dtype.isnative
            has_bytes = not component.scalar or is_exact
            tests.append(f"({test})" if stays or has_bytes else "(False)")
            packed.append(value if stays else f"{value}.tobytes()")
        if self.names or "(False)" in tests:
            return _write_nothing
        unpack = ["v0 = element"]
        if self._single is None:
            unpack = [
                f"if type(element) is not tuple or len(element) != {len(values)}:",
                "  return False",
                f"{', '.join(values)} = element",
            ]
        write: Callable[[Any], bool] = make_function(
            "element",
            *unpack,
            f"if {' and '.join(tests)}:",
            f"  append(({', '.join(packed)},))",
            "  return True",
            "return False",
            **names,
        )
        return write

    def __repr__(self) -> str:
        return ", ".join(
            f"{component.label}: {component!r}" if self.names else repr(component)
            for component in self.components
        )

    def row(self, element: Any) -> Row:
        if self._single is not None:
            return (self._take(element),)
        take_each = self._take_each
        if type(element) is tuple and len(element) == self._tuple_length:
            return take_each(element)
        return take_each(self._values(element, "element"))

    def columns(self, batch: Any) -> tuple[Columns, int]:
        if self._single is None:
            self._refuse_rows(batch)
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
                    f" and {n} for component {self.components[0].label}; expected equally many"
                )
        if self.rows_private:
            # Transposed once here, because such rows are stored one by one.
            rows = [
                tuple([c.convert_copy(v) for c, v in zip(self.components, row, strict=True)])
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
                f"out: got {short_repr(out)}; this queue's batches have no fixed shape to write to"
            )
        arrays = [out] if self._single is not None else self._values(out, "out")
        checked = [c.output(a, n) for c, a in zip(self.components, arrays, strict=True)]
        _refuse_overlaps(self.components, checked)
        return checked

    def _refuse_rows(self, batch: Any) -> None:
        """Refuse a list of rows: if they are as many as the components, they look like columns."""
        if isinstance(batch, list) and batch and all(isinstance(row, tuple) for row in batch):
            raise InvalidArgumentError(
                f"batch: got a list of {counted(len(batch), 'tuple')}, as if of rows; expected a"
                f" tuple with the values of each component ({self}): tuple(zip(*rows)) makes one"
            )

    def _values(self, given: Any, what: str) -> Sequence[Any]:
        """Return the components' values in order, from a tuple, a list or a dict."""
        if self.names:
            if not isinstance(given, Mapping) or set(given) != set(self.names):
                got = keys_text(given) if isinstance(given, Mapping) else short_repr(given)
                raise InvalidArgumentError(
                    f"{what}: got {got}; expected a dict with the keys {sorted(self.names)}"
                )
            return [given[name] for name in self.names]
        if not isinstance(given, tuple | list) or len(given) != len(self.components):
            got = (
                counted(len(given), "component")
                if isinstance(given, tuple | list)
                else f"{short_repr(given)}, not a tuple"
            )
            raise InvalidArgumentError(
                f"{what}: got {got}; expected a tuple of"
                f" {counted(len(self.components), 'component')} ({self})"
            )
        return given


class TreeSpec(ElementSpec):
    """The components of elements that are trees: dicts, tuples and lists in each other.

    A row has the leaves of an element, one after another.

    Args:
        dtypes: a tree of dtypes.
        shapes: a tree of shapes, with the same containers; ``None`` lets elements have any shape.
        ragged: whether a dimension may be ``None``.
        priority: whether component 0 orders the rows.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """

    __slots__ = ()

    def __init__(
        self, dtypes: Any, shapes: Any = None, *, ragged: bool = False, priority: bool = False
    ) -> None:
        structure = structure_of(_as_tuple(dtypes), Wording("dtypes"), _is_numpys)
        listed = structure.leaves(_as_tuple(dtypes), Wording("dtypes"))
        if not listed:
            raise InvalidArgumentError(f"dtypes: got {dtypes!r}; expected at least one dtype")
        super().__init__(
            listed,
            None if shapes is None else _shapes_in(shapes, structure),
            ragged=ragged,
            priority=priority,
            labels=structure.labels(),
        )
        self.arguments: dict[str, Any] = {
            "dtypes": dtypes,
            "shapes": shapes,
            "ragged": ragged,
            "priority": priority,
        }
        self.structure = structure
        self._single = None
        self._tuple_length = len(self.components)
        self.element_is_identity = False

    def __repr__(self) -> str:
        return ", ".join(f"{component.label}: {component!r}" for component in self.components)

    def row(self, element: Any) -> Row:
        return self._take_each(self.structure.leaves(element, _ELEMENT))

    def columns(self, batch: Any) -> tuple[Columns, int]:
        if isinstance(batch, list) and self.structure.kind != "list":
            raise InvalidArgumentError(
                f"batch: got a list of {counted(len(batch), 'row')}; expected one batch with the"
                " containers of an element and an array of rows in each place"
            )
        return super().columns(tuple(self.structure.leaves(batch, _BATCH)))

    def element(self, row: Row) -> Any:
        return self.structure.made(iter(row))

    def batch(self, columns: Columns) -> Any:
        return self.structure.made(iter(columns))

    def outputs(self, out: Any, n: int) -> Columns:
        return super().outputs(tuple(self.structure.leaves(out, _OUT)), n)


def _write_nothing(element: Any) -> bool:
    """Return false: no element is usual."""
    return False


def _remade(kind: type[ElementSpec], arguments: Mapping[str, Any]) -> ElementSpec:
    return kind(**arguments)


_ELEMENT: Final = Wording("element", takes_lists=True)
_BATCH: Final = Wording("batch", takes_lists=True)
_OUT: Final = Wording("out", takes_lists=True)


def _shapes_in(shapes: Any, structure: Structure) -> list[Any]:
    """Return the shape of each component.

    Raises:
        InvalidArgumentError: the shapes are not in the same containers, or one is no sequence.
    """
    listed = structure.leaves(_as_tuple(shapes), Wording("shapes", takes_lists=True))
    for label, shape in zip(structure.labels(), listed, strict=True):
        if not isinstance(shape, list | tuple):
            raise InvalidArgumentError(
                f"shapes: got {shape!r} for component {label}; expected a tuple of sizes >= 0"
            )
    return listed


def _as_tuple(given: Any) -> Any:
    """Return a list as a tuple: a list of dtypes makes elements that are tuples."""
    return tuple(given) if type(given) is list else given


def _is_numpys(given: Any, path: Path) -> bool:
    """Return whether NumPy takes a container of dtypes for one dtype: of records, or an array."""
    if not path or not isinstance(given, dict | tuple | list) or not given:
        return not path and isinstance(given, dict) and {"names", "formats"} <= set(given)
    if isinstance(given, tuple) and not (len(given) == 2 and _is_shape(given[1])):
        return False  # of two dtypes as large, NumPy would make one
    try:
        np.dtype(given)  # type: ignore[arg-type]  # to see whether it can
    except Exception:  # even a SyntaxError, which NumPy raises for some strings
        return False
    return True


def _is_shape(given: Any) -> bool:
    return is_int(given) or (isinstance(given, tuple) and all(map(is_int, given)))


def _is_tree(dtypes: Any) -> bool:
    """Return whether dtypes are in containers in each other, or in a dict or a named tuple."""
    branch = branch_of(dtypes)
    if branch is None or _is_numpys(dtypes, ()):
        return False
    if branch.kind not in ("tuple", "list"):
        return True
    return any(
        branch_of(part) is not None and not _is_numpys(part, (place,))
        for place, part in enumerate(branch.parts)
    )


def element_spec(dtypes: Any, shapes: Any, names: Any, *, ragged: bool = False) -> ElementSpec:
    """Make the spec of typed elements, of one kind or the other.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """
    if not _is_tree(dtypes):
        return ElementSpec(dtypes, shapes, names, ragged=ragged)
    _refuse_names(names)
    if not _is_flat_mapping(dtypes):
        return TreeSpec(dtypes, shapes, ragged=ragged)
    structure = structure_of(dtypes, Wording("dtypes"), _is_numpys)
    listed = None if shapes is None else _shapes_in(shapes, structure)
    return ElementSpec(list(dtypes.values()), listed, list(dtypes), ragged=ragged)


def priority_element_spec(dtypes: Any, shapes: Any, names: Any) -> ElementSpec:
    """Make the spec of typed elements whose component 0 is a priority, which the caller does not
    list.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """
    if _is_tree(dtypes):
        element_spec(dtypes, shapes, names)  # its messages show what the caller wrote
        is_listed = type(dtypes) in (tuple, list)
        all_dtypes = ("int64", *dtypes) if is_listed else ("int64", dtypes)
        if shapes is None:
            return TreeSpec(all_dtypes, priority=True)
        return TreeSpec(all_dtypes, ((), *shapes) if is_listed else ((), shapes), priority=True)
    # Check the arguments on their own first, so that messages show what the caller wrote.
    payload = ElementSpec(dtypes, shapes)
    listed = list(dtypes) if isinstance(dtypes, list | tuple) else [dtypes]
    all_shapes = None
    if payload.batchable:
        all_shapes = [(), *(component.shape for component in payload.components)]
    return ElementSpec(["int64", *listed], all_shapes, names, priority=True)


def _is_flat_mapping(dtypes: Any) -> bool:
    """Return whether dtypes are a dict whose values are dtypes: its keys are names."""
    if not isinstance(dtypes, dict) or not dtypes:
        return False
    return all(
        part is not None and (branch_of(part) is None or _is_numpys(part, (key,)))
        for key, part in dtypes.items()
    )


def _refuse_names(names: Any) -> None:
    if names is not None:
        raise InvalidArgumentError(
            f"names: got {names!r} with dtypes in containers; expected None, because these have"
            " names already"
        )


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
    """Return the rows of a batch. In a list, they may have different shapes."""
    if isinstance(values, list | tuple):
        return [component.convert(value) for value in values]
    return component.column(values)


def _refuse_overlaps(components: Sequence[Component], arrays: Sequence[Any]) -> None:
    """Refuse arrays with a place that would receive two values: one of these would be lost.

    Raises:
        InvalidArgumentError: an array is there twice, or shares memory with another or itself.
    """
    for at, (component, array) in enumerate(zip(components, arrays, strict=True)):
        if ownership.overlaps_itself(array) or any(
            ownership.overlap(array, arrays[other]) for other in range(at)
        ):
            raise InvalidArgumentError(
                f"out: got an array for component {component.label} that shares memory with itself"
                " or with that of another component; expected memory of its own for each value"
            )
