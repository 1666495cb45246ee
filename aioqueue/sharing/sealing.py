"""Objects on their way between processes: pickled by the caller that sends them, on its own thread.

In between they stay *sealed*: neither the owner's thread nor a client's runs code of the user, and
the owner need not be able to import their classes. The caller that takes one opens it. What is
plainly built-in data runs no such code in any case, and is left as it is where that saves a pickle.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aioqueue.core.elements.spec import Columns, Row, Spec
from aioqueue.core.storage.sized import size_of
from aioqueue.sharing.memory import LARGE, Parts

if TYPE_CHECKING:
    from aioqueue.core.elements.component import Component
    from aioqueue.core.elements.structure import Structure

_PLAIN: Final = frozenset((int, float, str, bytes, bool, type(None), complex))
_CONTAINERS: Final = frozenset((tuple, list, dict))


class Sealed:
    """A pickled object.

    Attributes:
        data: its pickle.
        buffers: its large arrays, which are not in the pickle.
        nbytes: how many bytes the object takes, as a queue with ``max_bytes`` counts.
        failures: what consumers that could not unpickle it have counted; see `count_failure`.
    """

    __slots__ = ("buffers", "data", "failures", "nbytes")

    def __init__(self, data: bytes, buffers: Sequence[Any] = (), nbytes: int = 0) -> None:
        self.data: bytes = data
        self.buffers: Sequence[Any] = buffers
        self.nbytes: int = nbytes
        self.failures: int = 0

    def __repr__(self) -> str:
        return f"<a pickled object of {self.nbytes} bytes>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Sealed, (self.data, [pickle.PickleBuffer(one) for one in self.buffers], self.nbytes)


_SEALED: Final = _PLAIN | {Sealed}


def described(thing: Any) -> str:
    """Describe a pickled object without unpickling it: its class, as far as the pickle shows it."""
    if type(thing) is not Sealed:
        return f"an object of {type(thing).__name__}"
    strings: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(thing.data):
            if isinstance(argument, str):
                strings.append(argument)
            if opcode.name == "STACK_GLOBAL" and len(strings) >= 2:
                return f"a pickled {strings[-2]}.{strings[-1]} of {len(thing.data)} bytes"
    except Exception:
        pass  # it is no pickle at all
    return f"a pickle of {len(thing.data)} bytes"


def _are_sealed(things: Sequence[Any]) -> bool:
    kinds = set(map(type, things))  # the usual ones need no look at each thing
    return kinds <= _SEALED or all(type(one) in _SEALED or is_plain(one) for one in things)


def _is_sealed_value(value: Any) -> bool:
    if type(value) is np.ndarray and value.dtype == object:
        return _are_sealed(value.reshape(-1).tolist())
    return _are_sealed((value,))


def _values_of(value: Any) -> list[Any]:
    if type(value) is np.ndarray and value.dtype == object:
        values: list[Any] = value.reshape(-1).tolist()
        return values
    return [value]


def _is_large(buffer: pickle.PickleBuffer) -> bool:
    with buffer.raw() as raw:
        return raw.nbytes >= LARGE


def parts_of(thing: Any) -> Parts:
    """Pickle an object, without its large arrays.

    Raises:
        Exception: it cannot be pickled.
    """
    if type(thing) in _PLAIN:
        return pickle.dumps(thing, 5), ()
    buffers: list[pickle.PickleBuffer] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        if not _is_large(buffer):
            return True  # in the pickle
        buffers.append(buffer)
        return False

    return pickle.dumps(thing, 5, buffer_callback=keep), buffers


def is_plain(thing: Any) -> bool:
    """Return whether an object is built-in data: to pickle it runs no code of the user."""
    kind = type(thing)
    if kind in _PLAIN:
        return True
    if kind is np.ndarray:
        return not thing.dtype.hasobject
    if kind in _CONTAINERS:
        values = thing.values() if kind is dict else thing
        return all(_is_plain_leaf(one) for one in values) and (
            kind is not dict or all(type(key) in _PLAIN for key in thing)
        )
    return isinstance(thing, np.generic) and kind.__module__ == "numpy"


def _is_plain_leaf(thing: Any) -> bool:
    kind = type(thing)
    return kind in _PLAIN or (kind is np.ndarray and not thing.dtype.hasobject)


def seal(thing: Any) -> Any:
    """Return an object as it rests in a shared queue.

    Raises:
        Exception: it cannot be pickled.
    """
    if type(thing) in _SEALED or is_plain(thing):
        return thing
    try:
        data, buffers = parts_of(thing)
    except Exception as error:
        error.add_note("the queue is shared, so its elements have to be pickled")
        raise
    return Sealed(data, buffers, size_of((thing,)))


def unseal(thing: Any) -> Any:
    """Return the object that a caller gets.

    Raises:
        Exception: it cannot be unpickled here.
    """
    if type(thing) is not Sealed:
        return thing
    return pickle.loads(thing.data, buffers=thing.buffers)


class SealingSpec:
    """The spec of a shared queue's elements: like another spec, but rows have sealed objects.

    Args:
        spec: the spec of the queue.
    """

    row_is_identity = False
    element_is_identity = False

    def __init__(self, spec: Spec) -> None:
        self.inner = spec
        self.components: tuple[Component, ...] | None = spec.components
        self.batchable: bool = spec.batchable
        self.rows_private: bool = spec.rows_private
        self.ragged: bool = spec.ragged
        self.names: list[str] = spec.names
        self.structure: Structure | None = spec.structure
        objects = object_places(spec)
        if spec.components is None:
            of_objects = spec.row_is_identity
            self._seal_row: Callable[[Row], Row] = seal if of_objects else _seal_pair
            self._unseal_row: Callable[[Row], Row] = unseal if of_objects else _unseal_pair
            self._seal_columns: Callable[[Columns], Columns] = self._each_sealed
            self._unseal_columns: Callable[[Columns], Columns] = self._each_unsealed
        else:
            self._objects = objects
            self._seal_row, self._unseal_row = self._sealed_values, self._unsealed_values
            self._seal_columns, self._unseal_columns = self._sealed_columns, self._unsealed_columns

    def __repr__(self) -> str:
        return repr(self.inner)

    def row(self, element: Any) -> Row:
        return self._seal_row(self.inner.row(element))

    def columns(self, batch: Any) -> tuple[Columns, int]:
        columns, n = self.inner.columns(batch)
        return self._seal_columns(columns), n

    def element(self, row: Row) -> Any:
        return self.inner.element(self._unseal_row(row))

    def batch(self, columns: Columns) -> Any:
        return self.inner.batch(self._unseal_columns(columns))

    def outputs(self, out: Any, n: int) -> Columns:
        return self.inner.outputs(out, n)

    def is_sealed_row(self, row: Row) -> bool:
        """Return whether pickling a row of the queue runs no code of the user."""
        if self.components is None:
            return _are_sealed((row if self.inner.row_is_identity else row[1],))
        return all(_is_sealed_value(row[place]) for place in self._objects)

    def are_sealed_columns(self, columns: Columns) -> bool:
        """Return the same for rows of the queue as columns."""
        if self.components is None:
            rows = columns if self.inner.row_is_identity else [row[1] for row in columns]
            return _are_sealed(rows)
        if self._are_rows(columns):
            return all(map(self.is_sealed_row, columns))
        return all(_is_sealed_value(columns[place]) for place in self._objects)

    def objects_of_row(self, row: Row) -> list[Any]:
        """Return the objects of a row that may be of any class."""
        if self.components is None:
            return [row if self.inner.row_is_identity else row[1]]
        return [thing for place in self._objects for thing in _values_of(row[place])]

    def objects_of_columns(self, columns: Columns) -> list[list[Any]]:
        """Return the same for each row of columns."""
        if self.components is not None and not self._are_rows(columns):
            columns = list(zip(*columns, strict=True))
        return list(map(self.objects_of_row, columns))

    def _are_rows(self, columns: Columns) -> bool:
        """Return whether rows are kept one by one, and their columns are a list of them."""
        is_list = type(columns) is list and bool(columns)
        return self.rows_private and is_list and type(columns[0]) is tuple

    def has_sealed_rows(self, rows: Sequence[Row]) -> bool:
        """Return whether some of the rows of an untyped queue may be pickled objects."""
        return not self.inner.row_is_identity or Sealed in set(map(type, rows))

    def sealed_row(self, row: Row) -> Row:
        return self._seal_row(row)

    def sealed_columns(self, columns: Columns) -> Columns:
        return self._seal_columns(columns)

    def unsealed_row(self, row: Row) -> Row:
        return self._unseal_row(row)

    def unsealed_columns(self, columns: Columns) -> Columns:
        return self._unseal_columns(columns)

    def _each_sealed(self, columns: Columns) -> Columns:
        return list(map(self._seal_row, columns))

    def _each_unsealed(self, columns: Columns) -> Columns:
        return list(map(self._unseal_row, columns))

    def _sealed_values(self, row: Row) -> Row:
        values = list(row)
        for place in self._objects:
            values[place] = _seal_value(values[place])
        return tuple(values)

    def _unsealed_values(self, row: Row) -> Row:
        values = list(row)
        for place in self._objects:
            values[place] = _unseal_value(values[place])
        return tuple(values)

    def _sealed_columns(self, columns: Columns) -> Columns:
        if self._are_rows(columns):
            return [self._sealed_values(row) for row in columns]
        found = list(columns)
        for place in self._objects:
            found[place] = _each_value(_seal_value, found[place])
        return found

    def _unsealed_columns(self, columns: Columns) -> Columns:
        found = list(columns)
        for place in self._objects:
            found[place] = _each_value(_unseal_value, found[place])
        return found


MOST_FAILURES: Final = 4
"""An object whose failures have come to this is set aside, for it would go round for ever."""

_FAILURE: Final = 2
_INTERRUPTION: Final = 1


def weight_of_failure(error: BaseException) -> int:
    """Return what an exception of unpickling counts.

    A `SystemExit` or `KeyboardInterrupt` may be the object's doing, or a signal handler's that has
    nothing to do with it. So it takes more of them to give an object up.
    """
    return _FAILURE if isinstance(error, Exception) else _INTERRUPTION


def count_failure(row: Row, weight: int) -> bool:
    """Count that a row could not be unpickled; return whether it is to be set aside."""
    sealed = sealed_in(row)
    for one in sealed:
        one.failures += weight
    return any(one.failures >= MOST_FAILURES for one in sealed)


def sealed_in(row: Row) -> list[Sealed]:
    """Return the pickled objects of a row."""
    values = row if type(row) is tuple else (row,)
    return [value for value in values if type(value) is Sealed]


def object_places(spec: Spec) -> tuple[int, ...]:
    """Return which components of typed elements may be objects of any class."""
    if spec.components is None:
        return ()
    return tuple(
        place for place, component in enumerate(spec.components) if component.dtype.hasobject
    )


def has_objects(spec: Spec) -> bool:
    return spec.components is None or bool(object_places(spec))


def _seal_pair(row: Row) -> Row:
    return row[0], seal(row[1])


def _unseal_pair(row: Row) -> Row:
    return row[0], unseal(row[1])


def _seal_value(value: Any) -> Any:
    if type(value) is np.ndarray and value.dtype.hasobject:
        return _each_value(seal, value)
    return seal(value)


def _unseal_value(value: Any) -> Any:
    if type(value) is np.ndarray and value.dtype.hasobject:
        return _each_value(unseal, value)
    return unseal(value)


def _each_value(function: Callable[[Any], Any], array: Any) -> Any:
    """Return an array with a function of each value of another one."""
    if not (type(array) is np.ndarray and array.dtype == object):
        return array  # records with objects in them: left as they are
    made = np.empty(array.shape, object)
    flat = made.reshape(-1)
    for index, value in enumerate(array.reshape(-1)):
        flat[index] = function(value)
    return made
