"""What leaves a queue is private and writable, whatever its dtype, way in, way out and way back.

NumPy gives *views* of an array where one might expect values of their own: for structured and other
void scalars, and for whatever is an array itself. So every kind of value goes every way here, and
is looked at again after its memory was used for other rows and after its neighbours were changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from aioqueue import InvalidArgumentError, sync
from aioqueue.core.elements.component import Component
from aioqueue.core.elements.element_spec import ElementSpec
from aioqueue.core.elements.spec import Columns
from aioqueue.core.storage.heap import HeapStorage
from aioqueue.core.storage.protocol import Held, Storage
from aioqueue.core.storage.shelf import shelf_for
from aioqueue.core.storage.shuffle import ShuffleStorage
from aioqueue.queues.fifo import fifo_storage

RECORD = np.dtype([("id", "i8"), ("w", "f4")])
NESTED = np.dtype([("inner", RECORD), ("tail", "u1", (3,))])
WITH_OBJECT = np.dtype([("id", "i8"), ("what", object)])

VALUES: dict[str, tuple[Any, tuple[int, ...], Callable[[int], Any]]] = {
    "int": ("int64", (), lambda i: i),
    "big-endian": (">i4", (2,), lambda i: np.array([i, -i], ">i4")),
    "float16": ("float16", (), lambda i: np.float16(i)),
    "complex": ("complex64", (), lambda i: complex(i, -i)),
    "bool": ("bool", (2,), lambda i: [bool(i % 2), not i % 2]),
    "row": ("float32", (3,), lambda i: np.full(3, i, "float32")),
    "structured": (RECORD, (), lambda i: np.array((i, i / 2), RECORD)),
    "structured-row": (RECORD, (2,), lambda i: np.array([(i, 0), (0, i)], RECORD)),
    "nested": (NESTED, (), lambda i: np.array(((i, i), (i, 1, 2)), NESTED)),
    "with-object": (WITH_OBJECT, (), lambda i: np.array((i, [i]), WITH_OBJECT)),
    "void": ("V4", (), lambda i: np.void(bytes([i, 1, 2, 3]))),
    "sub-array": (("f4", (2,)), (), lambda i: np.full(2, i, "f4")),
    "sub-array-row": (("f4", (2,)), (3,), lambda i: np.full((3, 2), i, "f4")),
    "zero-size": ("f4", (0,), lambda i: np.empty(0, "f4")),
    "date": ("M8[s]", (), lambda i: np.datetime64(i, "s") if i % 3 else np.datetime64("NaT", "s")),
    "duration": ("m8[ms]", (2,), lambda i: np.array([i, 1], "m8[ms]")),
    "fixed-text": ("U4", (), lambda i: f"t{i}"),
    "fixed-bytes": ("S4", (2,), lambda i: [b"a", f"b{i}".encode()]),
    "text": (str, (), lambda i: "x" * i),
    "texts": (str, (2,), lambda i: ["x" * i, "y"]),
    "bytes": (bytes, (), lambda i: b"x" * i),
    "object": (object, (), lambda i: [i]),
    "objects": (object, (2,), lambda i: [(i,), None]),
}
DISCIPLINES = ("fifo", "shuffle", "heap", "padding")
N = 6


def spec_of(name: str, discipline: str) -> ElementSpec:
    dtype, shape, _ = VALUES[name]
    dtypes: list[Any] = [dtype]
    shapes: list[Any] = [shape]
    if discipline == "heap":
        dtypes, shapes = ["int64", *dtypes], [(), *shapes]
    if discipline == "padding":
        dtypes, shapes = ["int64", *dtypes], [(None,), *shapes]
    return ElementSpec(dtypes, shapes, ragged=discipline == "padding")


def storage_of(spec: ElementSpec, discipline: str) -> Storage:
    if discipline == "shuffle":
        return ShuffleStorage(shelf_for(spec, N), (1, 2))
    if discipline == "heap":
        return HeapStorage(shelf_for(spec, N), typed=True)
    return fifo_storage(spec, N)


def reported(value: Any) -> Any:
    """What a value is, in plain Python."""
    if isinstance(value, Part):
        return reported(value.rows[0])
    if isinstance(value, np.ndarray):
        return [reported(item) for item in value] if value.ndim else reported(value[()])
    if isinstance(value, np.void):
        names = value.dtype.names
        return value.tobytes() if names is None else tuple(reported(value[name]) for name in names)
    return value.item() if isinstance(value, np.generic) else value


class Part(NamedTuple):
    """One row of a batch, as a part of its memory."""

    rows: Any


def overwritten(value: Any) -> None:
    """Change a value in place, if it can be changed."""
    if isinstance(value, Part):
        value = value.rows
    if isinstance(value, np.ndarray):
        assert value.flags.writeable
        value[...] = np.zeros((), value.dtype) if value.dtype.kind != "O" else None
    elif isinstance(value, np.void):
        assert value.flags.writeable
        names = value.dtype.names
        if names:
            for field in names:
                value[field] = np.zeros((), value.dtype[field])


class Rows:
    """Rows of one kind, put into one storage in one way and taken out in another."""

    def __init__(self, name: str, discipline: str) -> None:
        self.make = VALUES[name][2]
        self.lead = {"heap": 1, "padding": 1}.get(discipline, 0)
        self.discipline = discipline
        self.spec = spec_of(name, discipline)
        self.storage = storage_of(self.spec, discipline)

    def element(self, i: int) -> Any:
        value = self.make(i)
        if self.discipline == "heap":
            return i, value
        return ([1] * (1 + i % 2), value) if self.discipline == "padding" else value

    def columns(self, start: int, *, readonly: bool) -> Columns:
        numbers = range(start, start + N)
        component = self.spec.components[-1]
        shape: Any = component.shape or ()
        column = np.empty((N, *shape), component.dtype)
        for place, i in enumerate(numbers):
            column[place] = self.spec.row(self.element(i))[-1]
        column.flags.writeable = not readonly
        leads: list[Any] = [np.array(numbers)] if self.discipline == "heap" else []
        if self.discipline == "padding":
            leads = [np.ones((N, 1), "int64")]
        batch = (*leads, column) if leads else column
        return self.spec.columns(batch)[0]

    def put(self, way: str, start: int) -> None:
        if way == "singly":
            for i in range(start, start + N):
                self.storage.put(self.spec.row(self.element(i)))
            return
        columns = self.columns(start, readonly=way.startswith("readonly"))
        if way.endswith("filled"):
            columns = self.storage.fill(self.storage.reserve(N), columns, N)
        elif way.endswith("wrapped"):
            columns = self.storage.wrap(columns, N)
        self.storage.put_many(columns, 0, N)

    def take(self, way: str) -> list[Any]:
        """All values inside, in the order in which they leave."""
        if way == "take":
            return [self.storage.take()[self.lead] for _ in range(N)]
        if way == "pull":
            return self.of_batch(self.storage.pull(N))
        singles: list[Any] = []
        held = Held()
        if way == "one":
            for _ in range(N):
                one = Held()
                self.storage.hold_one(one)
                singles.append(one.single[self.lead])
                self.storage.free(one)
            return singles
        if way == "back":
            early, late = Held(), Held()
            self.storage.hold_one(early)
            self.storage.hold(late, 2)
            self.storage.restore(late)
            self.storage.restore(early)
        self.storage.hold(held, N)
        columns = self.storage.columns(held)
        self.storage.free(held)
        return self.of_batch(columns)

    def of_batch(self, columns: Columns) -> list[Any]:
        """The values of a batch: each as a part of its memory."""
        if self.discipline == "padding" and isinstance(columns[0], tuple):
            return [row[self.lead] for row in columns]
        column = columns[self.lead]
        return [Part(column[place : place + 1]) for place in range(N)]


@pytest.mark.slow(every=9)
@pytest.mark.parametrize(
    "way_in",
    ["singly", "copied", "filled", "wrapped", "readonly", "readonly-filled", "readonly-wrapped"],
)
@pytest.mark.parametrize("discipline", DISCIPLINES)
@pytest.mark.parametrize("name", VALUES)
def test_what_leaves_is_private(name: str, discipline: str, way_in: str) -> None:
    for way_out in ("take", "pull", "hold", "one", "back"):
        check(name, discipline, way_in, way_out)


def check(name: str, discipline: str, way_in: str, way_out: str) -> None:
    rows = Rows(name, discipline)
    expected = [reported(rows.spec.row(rows.element(i))[-1]) for i in range(1, 1 + 2 * N)]
    rows.put(way_in, 1)
    first = rows.take(way_out)
    seen = list(map(reported, first))
    # The same memory is used for others, and those are changed by whoever has them.
    rows.put(way_in, 1 + N)
    second = rows.take(way_out)
    later = list(map(reported, second))
    for value in second:
        overwritten(value)
    assert list(map(reported, first)) == seen
    for value in first:
        overwritten(value)
    assert len(rows.storage) == 0
    assert same(seen, expected[:N], in_order=discipline != "shuffle")
    assert same(later, expected[N:], in_order=discipline != "shuffle")


def same(seen: list[Any], expected: list[Any], *, in_order: bool) -> bool:
    if in_order:
        return seen == expected
    return sorted(map(repr, seen)) == sorted(map(repr, expected))


def test_sub_arrays_are_dimensions() -> None:
    component = Component("0", ("f4", (2, 3)), (4,))
    assert (component.dtype, component.shape) == (np.dtype("f4"), (4, 2, 3))
    queue = sync.FIFOQueue(2, np.dtype(("f4", (2,))), ())
    queue.enqueue([1, 2])
    assert queue.shapes == [(2,)]
    out = np.zeros((1, 2), "f4")
    assert queue.dequeue_many(1, out=out) is out
    assert out.tolist() == [[1, 2]]


@pytest.mark.parametrize("discipline", ["FIFOQueue", "RandomShuffleQueue", "PriorityQueue"])
def test_arrays_of_the_caller_s_are_the_caller_s_again(discipline: str) -> None:
    """What a cancelled batch had does not come back from the arrays that it was to go to."""
    kind = getattr(sync, discipline)
    keep = (0,) if discipline == "RandomShuffleQueue" else ()
    queue = kind(8, *keep, "int64", (2**13,))
    lead = discipline == "PriorityQueue"
    out: Any = np.zeros((8, 2**13), "int64")
    if lead:
        out = (np.zeros(8, "int64"), out)

    async def main() -> None:
        task = asyncio.create_task(queue.aio.dequeue_many(8, out=out))
        await asyncio.sleep(0)
        for i in range(5):
            value = np.full(2**13, i)
            await queue.aio.enqueue((i, value) if lead else value)
        task.cancel()
        await asyncio.wait([task])
        for array in out if lead else (out,):
            array[...] = -1

    asyncio.run(main())
    queue.close()
    got = [int((row[1] if lead else row)[0]) for row in queue]
    assert sorted(got) == [0, 1, 2, 3, 4]


def test_masked_values_are_refused() -> None:
    queue = sync.FIFOQueue(2, "int64", (2,))
    masked = np.ma.array([1, 2], mask=[False, True])
    with pytest.raises(InvalidArgumentError, match="masked"):
        queue.enqueue(masked)
    with pytest.raises(InvalidArgumentError, match="masked"):
        queue.enqueue_many(np.ma.array([[1, 2]], mask=[[False, True]]))
    assert len(queue) == 0
