"""The sizes of rows in bytes, for queues with a bound on memory.

`WeighedStorage` is for rows whose sizes differ. The caller that puts a row in measures it, once and
before it takes the machine's lock, because an object may run code of its own to answer, or fail to.
From then on the row and its size are one entry, which a storage of objects keeps in its order. So
the size of every row is known as it leaves, in whatever order, or comes back. If a row grows after
it went in, the size of that moment still counts.

Typed rows are kept one by one here, not in arrays: those whose sizes vary contain strings, other
objects or arrays of different shapes, which do not fit into one array.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

from aioqueue.base.arguments import numpy_class
from aioqueue.base.public_names import DeferredModule
from aioqueue.core.elements.object_spec import PriorityObjectSpec
from aioqueue.core.elements.spec import Columns, Row, Spec
from aioqueue.core.elements.trees import branch_of
from aioqueue.core.storage.protocol import Held, Storage

if TYPE_CHECKING:
    from aioqueue.core.storage import columns as typed_columns
    from aioqueue.core.storage import padded
    from aioqueue.core.storage.heap import HeapStorage
    from aioqueue.core.storage.objects import ObjectStorage
    from aioqueue.core.storage.shuffle import ShuffleStorage
else:
    # Only rows with dtypes need them, and they load NumPy.
    typed_columns = DeferredModule("aioqueue.core.storage.columns")
    padded = DeferredModule("aioqueue.core.storage.padded")


def rows_within(max_bytes: int, row_bytes: int) -> int | None:
    """Return how many rows of one size fit: at least one of any size; ``None``: any number."""
    return max(1, max_bytes // row_bytes) if row_bytes else None


def brings_sizes(spec: Spec) -> bool:
    """Return whether rows must bring their sizes for a bound on bytes: sizes differ."""
    return _row_bytes(spec) is None


def most_rows(spec: Spec, capacity: int | None, max_bytes: int | None) -> int | None:
    """Return how many rows there will usually be at most."""
    size = _row_bytes(spec)
    most = None if max_bytes is None or size is None else rows_within(max_bytes, size)
    return min((rows for rows in (capacity, most) if rows is not None), default=None)


def _row_bytes(spec: Spec) -> int | None:
    return None if spec.components is None else typed_columns.common_bytes(spec.components)


def size_of(examples: Iterable[Any]) -> int:
    """Return roughly how many bytes some examples take: the arrays and strings in them.

    A container that appears again, perhaps in itself, counts once. An object that does not report a
    size in bytes as ``nbytes`` counts only itself, without what it refers to.
    """
    total = 0
    array = numpy_class("ndarray")
    pending = list(examples)
    containers: dict[int, Any] = {}  # the containers seen so far, by identity
    while pending:
        thing = pending.pop()
        if isinstance(thing, array):
            total += thing.nbytes
            if thing.dtype == object and id(thing) not in containers:
                containers[id(thing)] = thing
                pending.extend(thing.flat)
        elif isinstance(thing, str | bytes | bytearray):
            total += len(thing)
        elif isinstance(thing, tuple | list | dict):
            if id(thing) not in containers:
                containers[id(thing)] = thing
                pending.extend(thing.values() if isinstance(thing, dict) else thing)
        elif (branch := branch_of(thing)) is not None:
            if id(thing) not in containers:
                containers[id(thing)] = thing
                pending.extend(branch.parts)
        else:
            size = getattr(thing, "nbytes", None)
            total += size if isinstance(size, int) else sys.getsizeof(thing, 64)
    return total


Entries: TypeAlias = "ObjectStorage | ShuffleStorage | HeapStorage"

_PRIORITY_BYTES = 8


class Weighed:
    __slots__ = ("row", "weight")

    def __init__(self, row: Row, weight: int) -> None:
        self.row: Row = row
        self.weight: int = weight

    def __getitem__(self, index: int) -> Any:
        """Return a component of the row: heaps read the priority."""
        return self.row[index]


class WeighedStorage(Storage):
    """Rows of any size, in the order of another storage, which keeps them as plain objects.

    You put in entries (`weighed`, `fill`, `wrap`) and take out rows.

    The sum of the sizes cannot drift. While it changes it is marked unknown. If a signal handler
    leaves it unknown, the next reader counts it anew.

    Args:
        entries: the storage that keeps the entries.
        spec: the spec of the rows.
    """

    def __init__(self, entries: Entries, spec: Spec) -> None:
        super().__init__()
        self._entries = entries
        self.returned: list[tuple[Any, Any]] = entries.returned
        self.progressive: bool = entries.progressive
        self.eager: bool = entries.eager
        self._components = spec.components
        self._reader: typed_columns.RowReader | None = None
        if spec.components is not None and not spec.rows_private:
            self._reader = typed_columns.RowReader(spec.components)
        self._size = _sizer(spec)
        self._has_priorities = isinstance(spec, PriorityObjectSpec)
        self._weight: int | None = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def weight(self) -> int:
        if self._weight is None:
            back = (entry for _, entry in self.returned)
            self._weight = sum(entry.weight for entry in chain(self._entries, back))
        return self._weight

    def weight_of(self, row: Row) -> int:
        weight: int = row.weight
        return weight

    def weights(self, columns: Columns, start: int, stop: int) -> Iterator[int]:
        return (entry.weight for entry in islice(columns, start, stop))

    def is_large(self, n: int) -> bool:
        return True  # measuring is slow and may fail: never do it under the lock

    # The way in.

    def weighed(self, row: Row) -> Weighed:
        """Make the entry of a row; it shares no memory with the row's source. No lock."""
        if self._reader is not None:
            assert self._components is not None
            pairs = zip(self._components, row, strict=True)
            row = tuple([component.convert_copy(value) for component, value in pairs])
        return Weighed(row, self._size(row))

    # Each move marks the sum as unknown (None), moves, and sets the sum. `self.weight` counts anew
    # if an earlier move was interrupted in between.

    def put(self, row: Weighed, /) -> None:
        weight, self._weight = self.weight, None
        self._entries.put(row)
        self._weight = weight + row.weight

    def put_many(self, columns: Columns, start: int, stop: int) -> None:
        weight, self._weight = self.weight, None
        weight += sum(self.weights(columns, start, stop))
        self._entries.put_many(columns, start, stop)
        self._weight = weight

    def fill(self, reserved: Any, columns: Columns, n: int) -> Columns:
        rows = columns
        if self._reader is not None:
            assert self._components is not None
            rows = self._reader.rows(typed_columns.as_dtypes(self._components, columns))
        return [Weighed(row, self._size(row)) for row in rows]

    def wrap(self, columns: Columns, n: int) -> Columns:
        return self.fill(None, columns, n)

    # The way out.

    def take(self) -> Row:
        weight, self._weight = self.weight, None
        entry = self._entries.take()
        self._weight = weight - entry.weight
        return entry.row

    def pull(self, n: int, into: Columns | None = None) -> Columns:
        held = Held(into)
        self.hold(held, n)
        try:
            columns = self.columns(held)
        except BaseException:
            self.restore(held)
            raise
        self.free(held)
        return columns

    def claim(self, n: int) -> None:
        self._entries.claim(n)

    def hold(self, held: Held, n: int) -> None:
        weight, self._weight = self.weight, None
        self._entries.hold(held, n)
        self._weight = weight - _sum(held)

    def hold_one(self, held: Held) -> None:
        try:
            self.hold(held, 1)
            held.single = held.parts[0].row
        except BaseException:
            self.restore(held)
            raise

    def restore(self, held: Held) -> None:
        weight, self._weight = self.weight, None
        weight += _sum(held)
        self._entries.restore(held)
        self._weight = weight

    def release(self, held: Held) -> None:
        weight, self._weight = self.weight, None
        weight += _sum(held)
        self._entries.release(held)
        self._weight = weight

    def drop(self, value: Any) -> bool:
        back = (entry for _, entry in self.returned)
        for entry in chain(self._entries, back):
            if entry.row is value or (self._has_priorities and entry.row[1] is value):
                break
        else:
            return False
        weight, self._weight = self.weight, None
        self._entries.drop(entry)
        self._weight = weight - entry.weight
        return True

    def columns(self, held: Held) -> Columns:
        rows = [entry.row for entry in held.parts]
        if self._components is None:
            return rows
        columns = padded.padded(self._components, rows)
        if held.out is None:
            return columns
        for target, column in zip(held.out, columns, strict=True):
            target[...] = column
        return held.out

    def empty(self) -> Columns:
        return [] if self._components is None else padded.padded(self._components, ())


def _sum(held: Held) -> int:
    return sum([entry.weight for entry in held.parts])


def _sizer(spec: Spec) -> Callable[[Row], int]:
    """Return a function that measures a row: exactly, except for strings and other objects."""
    if isinstance(spec, PriorityObjectSpec):
        return lambda row: _PRIORITY_BYTES + size_of(row[1:])
    if spec.components is None:
        return lambda row: size_of((row,))
    is_fixed = [c.fixed and not c.dtype.hasobject for c in spec.components]
    fixed = tuple(c for c, known in zip(spec.components, is_fixed, strict=True) if known)
    varying = [index for index, known in enumerate(is_fixed) if not known]
    base = typed_columns.row_bytes(fixed)
    return lambda row: base + size_of([row[index] for index in varying])
