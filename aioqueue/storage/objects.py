"""FIFOs of rows kept by reference: plain objects, and rows whose shapes vary.

`PaddedStorage` pads a batch to one shape when the batch leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from aioqueue.elements import Columns, Component
from aioqueue.storage.protocol import Held, Storage

__all__ = ("ObjectStorage", "PaddedStorage", "padded")


class ObjectStorage(deque[Any], Storage):
    """A FIFO of references. The columns of a batch are the list of its rows.

    It *is* a deque, so the fast path in and out runs the deque's C code and nothing else.
    """

    is_atomic = True
    put = deque.append
    take = deque.popleft
    __hash__ = object.__hash__  # type: ignore[assignment]  # compared by identity

    def __init__(self) -> None:
        deque.__init__(self)
        Storage.__init__(self)

    def put_many(self, columns: Columns, start: int, stop: int) -> None:
        self.extend(columns if stop - start == len(columns) else columns[start:stop])

    def pull(self, n: int, into: Columns | None = None) -> Columns:
        removed: list[Any] = []
        self._remove(n, removed)
        return removed

    def hold_one(self, held: Held) -> None:
        if self.returned:
            super().hold_one(held)
            return
        row, before = self[0], len(self)
        try:
            self.popleft()
            ticket = self._next_ticket
            held.parts, held.tickets, held.count = (row,), (ticket,), 1
            held.single = row
            self._next_ticket = ticket + 1
        except BaseException:  # from a signal handler: nothing has moved then
            if len(self) < before:
                self.appendleft(row)
            held.clear()
            raise

    def drop(self, value: Any) -> bool:
        for index, row in enumerate(self):
            if row is value:
                del self[index]
                return True
        return self._drop_returned(value)

    def columns(self, held: Held) -> Columns:
        return list(held.parts)

    def empty(self) -> Columns:
        return []

    def _remove(self, n: int, removed: list[Any]) -> None:
        before = len(self)
        try:
            removed += islice(self, n)
            self._drop_first(n)
        except BaseException:
            del removed[before - len(self) :]  # rows that are still inside
            raise

    def _drop_first(self, n: int) -> None:
        if n == len(self):
            self.clear()
        else:
            for _ in range(n):
                self.popleft()


class PaddedStorage(ObjectStorage):
    """A FIFO of rows whose batches are padded, per component, to the largest size in the batch.

    The padding is at the high end of each varying dimension: zeros, ``False`` or empty strings. The
    caller that takes the batch pads it, without the machine's lock.

    Args:
        components: the components of a row.
    """

    def __init__(self, components: tuple[Component, ...]) -> None:
        super().__init__()
        self._components = components

    def is_large(self, n: int) -> bool:
        return True  # padding is slow and may fail: never do it under the lock

    def columns(self, held: Held) -> Columns:
        return padded(self._components, held.parts)

    def empty(self) -> Columns:
        return padded(self._components, ())


def padded(components: tuple[Component, ...], rows: Sequence[Any]) -> Columns:
    """Make columns of rows; each component is padded to the largest size among them."""
    return [
        _pad(component, [row[index] for row in rows]) for index, component in enumerate(components)
    ]


def _pad(component: Component, values: list[Any]) -> np.ndarray[Any, Any]:
    """Stack values of one component whose shapes differ in the dimensions declared ``None``.

    Returns:
        An array of shape ``(len(values), *sizes)``. A fixed size is the component's; a varying one
        is the largest among the values (0 if there are none).
    """
    assert component.shape is not None
    sizes = [
        max((value.shape[axis] for value in values), default=0) if size is None else size
        for axis, size in enumerate(component.shape)
    ]
    shape = (len(values), *sizes)
    if component.text is not None:
        batch = np.full(shape, component.text(), dtype=object)
    else:
        batch = np.zeros(shape, dtype=component.dtype)
    for index, value in enumerate(values):
        if component.scalar:
            batch[index] = value
        else:
            region: tuple[int | slice, ...] = (index, *(slice(size) for size in value.shape))
            batch[region] = value
    return batch
