"""Small rows of typed queues, which go through the socket without a pickle."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aioqueue import sync
from aioqueue.sharing import queues
from aioqueue.sharing.memory import LARGE
from aioqueue.sharing.packed_rows import row_packer
from tests.kit.sharing import Child

Start = Callable[..., Child]

RECORD = np.dtype([("a", "<i4"), ("b", "<f8", (2,))])
COMPONENTS: dict[str, tuple[Any, tuple[int, ...], Any]] = {
    "number": ("int32", (), 3),
    "array": ("float64", (3,), [1.0, 2.0, 3.0]),
    "other byte order": (">i4", (2,), [1, 2]),
    "short string": ("U5", (), "ab"),
    "strings": ("U5", (2,), ["ab", "abcde"]),
    "bytes": ("S3", (), b"x"),
    "moment": ("datetime64[s]", (), np.datetime64(5, "s")),
    "truth": ("bool", (2, 2), [[True, False], [False, True]]),
    "half": ("float16", (), 1.5),
    "complex": ("complex64", (), 1 + 2j),
    "record": (RECORD, (), np.array((1, [2.5, 3.5]), RECORD)[()]),
    "nothing": ("float32", (0,), np.zeros(0)),
}
KINDS: dict[str, Callable[..., Any]] = {
    "FIFOQueue": sync.FIFOQueue,
    "RandomShuffleQueue": lambda *arguments: sync.RandomShuffleQueue(9, 0, *arguments[1:]),
    "PriorityQueue": sync.PriorityQueue,
}


def described(element: Any) -> Any:
    """Return what an element is, to the byte."""
    if isinstance(element, tuple):
        return tuple(described(value) for value in element)
    array = np.asarray(element)
    return type(element), array.dtype.str, array.shape, array.tobytes()


def taken_in_all_ways(queue: Any) -> list[Any]:
    """Take 1, 1, 2 and 2 of six elements that are all the same."""
    one, other = queue.sync.dequeue(), asyncio.run(queue.aio.dequeue())
    batches = queue.sync.dequeue_many(2), queue.sync.dequeue_up_to(9, 0.0)
    return [*map(described, (one, other, *batches))]


def put_in_all_ways(queue: Any, element: Any, batch: Any) -> None:
    queue.sync.enqueue(element)
    asyncio.run(queue.aio.enqueue(element))
    queue.sync.enqueue_many(batch)
    asyncio.run(queue.aio.enqueue_many(batch))


def typed(kind: str, which: str) -> tuple[Any, Any, Any]:
    """Return a queue, an element of it, and a batch of two of them."""
    some = [*COMPONENTS.values()] if which == "all" else [COMPONENTS[which]]
    dtypes, shapes, values = ([*part] for part in zip(*some, strict=True))
    queue = KINDS[kind](9, dtypes, shapes)
    batch = [np.stack([np.asarray(value, dtype)] * 2) for dtype, _, value in some]
    if kind == "PriorityQueue":
        values, batch = [7, *values], [np.array([7, 7]), *batch]
    if len(values) == 1:
        return queue, values[0], batch[0]
    return queue, tuple(values), tuple(batch)


@pytest.mark.parametrize("which", [*COMPONENTS, "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_elements_are_what_they_are_without_a_process(child: Start, kind: str, which: str) -> None:
    """In both directions: values, dtypes, shapes, scalar types."""
    queue, element, batch = typed(kind, which)
    put_in_all_ways(queue, element, batch)
    expected = taken_in_all_ways(queue)
    put_in_all_ways(queue, element, batch)
    assert child(taken_in_all_ways, queue.share()).result() == expected
    child(put_in_all_ways, queue.share(), element, batch).result()
    assert taken_in_all_ways(queue) == expected


def changed_in_place(queue: Any) -> list[float]:
    """Write to what was dequeued, and dequeue into an array of one's own."""
    out = np.zeros((2, 3))
    row, batch = queue.sync.dequeue(), queue.sync.dequeue_many(2)
    assert queue.sync.dequeue_many(2, out=out) is out
    row += 1
    batch += 1
    out += 1
    return [float(one.sum()) for one in (row, batch, out)]


def test_what_is_dequeued_is_the_callers(child: Start) -> None:
    queue = sync.FIFOQueue(9, "float64", (3,))
    queue.enqueue_many(np.ones((5, 3)))
    assert child(changed_in_place, queue.share()).result() == [6.0, 12.0, 12.0]


def put_and_change(queue: Any) -> None:
    row, batch = np.ones(3), np.ones((2, 3))
    queue.sync.enqueue(row)
    queue.sync.enqueue_many(batch)
    row += 1
    batch += 1


def test_what_is_enqueued_does_not_change_any_more(child: Start) -> None:
    queue = sync.FIFOQueue(9, "float64", (3,))
    child(put_and_change, queue.share()).result()
    assert queue.dequeue_many(3).sum() == 9.0


def put_many_rows(queue: Any, n: int) -> None:
    queue.sync.enqueue_many(np.arange(n, dtype="int16"))


@pytest.mark.parametrize("n", [513, LARGE // 2 - 1, LARGE // 2, LARGE])
def test_batches_at_the_limit(child: Start, n: int) -> None:
    """Up to it, rows are in the message; from there on, in memory that is shared."""
    queue = sync.FIFOQueue(LARGE, "int16", ())
    child(put_many_rows, queue.share(), n).result()
    assert (queue.dequeue_many(n) == np.arange(n, dtype="int16")).all()
    put_many_rows(queue, n)
    assert (child(rows_taken, queue.share(), n).result() == np.arange(n, dtype="int16")).all()


def rows_taken(queue: Any, n: int) -> Any:
    return queue.sync.dequeue_many(n)


def test_neither_side_pickles_them(child: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a row of small arrays needs no pickle")

    queue, element, batch = typed("FIFOQueue", "all")
    shared = queue.share()
    monkeypatch.setattr(queues, "parts_of", unexpected)
    monkeypatch.setattr(queues.QueueService, "_loaded", unexpected)
    child(put_in_all_ways, shared, element, batch).result()
    assert len(child(taken_in_all_ways, shared).result()) == 4


def test_specs_that_need_a_pickle() -> None:
    for queue in (
        sync.FIFOQueue(1),
        sync.FIFOQueue(1, ["object", "int32"], [(), ()]),
        sync.PaddingFIFOQueue(1, "int32", (None,)),
        sync.FIFOQueue(1, "int32", (0,)),
    ):
        assert row_packer(queue._core.spec) is None
        pickle.loads(pickle.dumps(queue.share()))
