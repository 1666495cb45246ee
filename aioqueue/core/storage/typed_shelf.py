"""The shelf of typed rows: slots in arrays.

An entry is the number of a slot; a row never moves while it is inside. Rows that are held, or that
are being copied in, keep their slots. So a shelf may be larger than the queue's capacity, until it
is empty. It grows by whole blocks, and nothing is moved.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from aioqueue.core.elements.component import Component
from aioqueue.core.elements.spec import Columns, Row
from aioqueue.core.storage.columns import (
    RowReader,
    allocate,
    as_dtypes,
    common_bytes,
    empty_value,
    is_large,
    row_bytes,
    row_writer,
)
from aioqueue.core.storage.protocol import Slot

_SLOTS_PER_GROWTH: Final = 256


_FIRST_SLOTS: Final = 64


_MOST_BYTES: Final = 2**30
"""Arrays up to this size are allocated whole: memory that is never touched costs nothing."""


class _WrappedRow:
    """The entry of a row that stays in the batch with which it was given away."""

    __slots__ = ("columns", "index")

    def __init__(self, columns: Columns, index: int) -> None:
        self.columns = columns
        self.index = index


class TypedShelf:
    """Typed rows in slots of contiguous arrays: one array per component and block.

    Args:
        components: the components of a row, each of one fixed shape.
        capacity: how many rows there will usually be at most; ``None`` for any number.
    """

    __slots__ = (
        "_blocks",
        "_components",
        "_first_unused",
        "_free",
        "_read_row",
        "_references",
        "_row_bytes",
        "_size",
        "_write_row",
        "has_wrapped",
        "row_bytes",
    )
    has_numbers: bool = True

    def __init__(self, components: tuple[Component, ...], capacity: int | None) -> None:
        self._components = components
        self._read_row = RowReader(components).row
        self._write_row = row_writer(len(components))
        self._row_bytes = row_bytes(components)
        self.row_bytes: int | None = common_bytes(components)
        self._references = [
            (index, empty_value(component.dtype))
            for index, component in enumerate(components)
            if component.dtype.hasobject
        ]
        most = max(_FIRST_SLOTS, _MOST_BYTES // max(1, self._row_bytes))
        if self._references or capacity is None:
            most = min(most, 2**12)  # arrays of references are filled with None when allocated
        self._size = most if capacity is None else min(capacity, most)
        self._blocks = [allocate(components, self._size)]
        self._free = array("q")  # free slots, the one that was freed last at the end
        self._first_unused = 0  # slots from here on have never been in the list
        self.has_wrapped: bool = False  # whether entries may be `_WrappedRow`s

    def is_large(self, n: int) -> bool:
        return is_large(n, self._row_bytes)

    def place(self, row: Row) -> Slot:
        if not self._free:
            self._add_free_slots(1)
        slot = self._free[-1]
        block, index = self._blocks[0], slot
        if slot >= self._size:
            block, index = self._locate(slot)
        write_row = self._write_row
        write_row(block, index, row)
        del self._free[-1]  # last: the slot stays free if the row cannot be written
        return slot

    def place_many(self, columns: Columns, start: int, stop: int) -> Sequence[Slot]:
        slots = self.reserve(stop - start)
        try:
            return self.fill(slots, [column[start:stop] for column in columns])
        except BaseException:
            self.forget(slots)
            raise

    def reserve(self, n: int) -> Sequence[Slot]:
        if len(self._free) < n:
            self._add_free_slots(n - len(self._free))
        slots = self._free[: -n - 1 : -1]
        del self._free[len(self._free) - n :]
        return slots

    def fill(self, entries: Sequence[Slot], columns: Columns) -> Sequence[Slot]:
        for block, slots, rows in self._by_block(np.array(entries, np.intp)):
            where = _as_slice(slots)
            for column, values in zip(block, columns, strict=True):
                column[where] = values[rows]
        return entries

    def wrap(self, columns: Columns) -> Sequence[Slot]:
        exact = as_dtypes(self._components, columns)
        self.has_wrapped = True
        return [_WrappedRow(exact, index) for index in range(len(exact[0]))]

    def read_one(self, entry: Slot) -> Row:
        if isinstance(entry, _WrappedRow):
            return self._read_row(entry.columns, entry.index)
        block, index = self._blocks[0], entry
        if entry >= self._size:
            block, index = self._locate(entry)
        return self._read_row(block, index)

    def read(self, entries: Sequence[Slot], into: Columns | None) -> Columns:
        target = allocate(self._components, len(entries)) if into is None else into
        wrapped: list[int] = []
        if self.has_wrapped:
            wrapped = [index for index, entry in enumerate(entries) if type(entry) is _WrappedRow]
        if not wrapped:
            self._read_slots(np.array(entries, np.intp), slice(None), target)
            return target
        for index in wrapped:
            for column, rows in zip(entries[index].columns, target, strict=True):
                rows[index] = column[entries[index].index]
        if len(wrapped) < len(entries):
            is_slot = np.ones(len(entries), np.bool_)
            is_slot[wrapped] = False
            slots = [entry for entry in entries if type(entry) is not _WrappedRow]
            self._read_slots(np.array(slots, np.intp), is_slot.nonzero()[0], target)
        return target

    def forget(self, entries: Sequence[Slot]) -> None:
        # The rows have left the order by now, so nobody reads these slots. References are dropped
        # before a slot is free: the next row may be written as soon as it is.
        slots: Sequence[int] = entries
        if self.has_wrapped:
            slots = [entry for entry in entries if type(entry) is not _WrappedRow]
        if self._references and slots:
            for block, places, _ in self._by_block(np.array(slots, np.intp)):
                for index, empty in self._references:
                    block[index][places] = empty
        if len(slots) == 1:
            self._free.append(slots[0])
        else:
            self._free.extend(slots)
        if len(self._blocks) > 1 and len(self._free) == self._first_unused:  # empty: shrink again
            self._blocks, self._free, self._first_unused = self._blocks[:1], array("q"), 0

    def _read_slots(self, slots: Any, where: Any, target: Columns) -> None:
        """Copy rows to places of columns: to all of them, if ``where`` is a slice."""
        if isinstance(where, slice) and (not len(slots) or slots.max() < self._size):
            for column, rows in zip(self._blocks[0], target, strict=True):
                # With mode="clip" NumPy writes to `out` directly; the default mode buffers it.
                column.take(slots, axis=0, out=rows, mode="clip")
            return
        places = np.arange(len(slots))[where] if isinstance(where, slice) else where
        for block, inner, rows in self._by_block(slots):
            for column, values in zip(block, target, strict=True):
                values[places[rows]] = column[inner]

    def _by_block(self, slots: Any) -> Iterator[tuple[Columns, Any, Any]]:
        """Yield the blocks of some slots, with their places in the block and their positions."""
        if len(self._blocks) == 1 or slots.max() < self._size:
            yield self._blocks[0], slots, slice(None)
            return
        numbers = slots // self._size
        order = numbers.argsort(kind="stable")
        for rows in np.split(order, np.diff(numbers[order]).nonzero()[0] + 1):
            number = int(numbers[rows[0]])
            yield self._blocks[number], slots[rows] - number * self._size, rows

    def _locate(self, slot: int) -> tuple[Columns, int]:
        return self._blocks[slot // self._size], slot % self._size

    def _add_free_slots(self, n: int) -> None:
        """List fresh slots, a few more than needed now: memory grows with what it has held."""
        stop = self._first_unused + max(n, _SLOTS_PER_GROWTH)
        blocks = list(self._blocks)
        while stop > len(blocks) * self._size:
            if self._first_unused + n <= len(blocks) * self._size:
                stop = len(blocks) * self._size
                break
            blocks.append(allocate(self._components, self._size))
        # Only now, since an allocation may fail. Slots are taken from the end of the list, so the
        # fresh ones, at its front, are used last: freed slots are still in the processor's cache.
        self._free[:0] = array("q", range(stop - 1, self._first_unused - 1, -1))
        self._blocks, self._first_unused = blocks, stop


def _as_slice(slots: Any) -> Any:
    """Return consecutive slots, which a fresh shelf gives, as a slice, which is faster."""
    first, last = int(slots[0]), int(slots[-1])
    if last - first == len(slots) - 1 and (np.diff(slots) == 1).all():
        return slice(first, last + 1)
    return slots
