"""Nobody waits for somebody else's copy, and nothing is lost in the middle of one.

A copy is stopped here at a moment when it has begun and not ended. Everybody else goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from aioqueue import sync
from aioqueue.core.attempts import PutMany
from aioqueue.core.storage.blocks import BlockStorage
from aioqueue.core.storage.padded import PaddedStorage
from aioqueue.core.storage.shelf import ShelvedStorage
from aioqueue.worlds.waker import ThreadWaker
from tests.kit.worlds import LARGE, PATIENCE, core_of

STORAGES: dict[str, Any] = {
    "fifo": BlockStorage,
    "shuffle": ShelvedStorage,
    "priority": ShelvedStorage,
    "padding": PaddedStorage,
}


class Halted:
    """A copy that has begun, and continues on request."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_continue = threading.Event()

    def wait(self) -> None:
        self.has_begun.set()
        assert self.may_continue.wait(PATIENCE)


@contextmanager
def halting(kind: str, method: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Halted]:
    """The first copy of a kind of queue stops in its midst."""
    halted, storage = Halted(), STORAGES[kind]
    copy: Callable[..., Any] = getattr(storage, method)
    first = threading.Lock()

    def slowly(*arguments: Any) -> Any:
        if first.acquire(blocking=False):
            halted.wait()
        return copy(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(storage, method, slowly)
        try:
            yield halted
        finally:
            halted.may_continue.set()


def queue_of(kind: str, capacity: int | None = 10) -> Any:
    if kind == "shuffle":
        return sync.RandomShuffleQueue(capacity, 0, "int64", (LARGE,), seed=1)
    if kind == "priority":
        return sync.PriorityQueue(capacity, "int64", [(LARGE,)])
    if kind == "padding":
        return sync.PaddingFIFOQueue(capacity, "int64", [(None,)])
    return sync.FIFOQueue(capacity, "int64", (LARGE,))


def element(kind: str, number: int) -> Any:
    value = np.full(LARGE, number)
    return (number, value) if kind == "priority" else value


def batch(kind: str, *numbers: int) -> Any:
    rows = np.array(numbers)[:, None].repeat(LARGE, axis=1)
    return (np.array(numbers), rows) if kind == "priority" else rows


def numbers_of(kind: str, taken: Any) -> list[int]:
    rows = taken[1] if kind == "priority" else taken
    assert (rows == rows[:, :1]).all()
    return rows[:, 0].tolist()  # type: ignore[no-any-return]


def left_in(kind: str, queue: Any) -> list[int]:
    """What is left, in the order in which it leaves."""
    queue.close()
    return [int((row[1] if kind == "priority" else row)[0]) for row in queue]


def drained(kind: str, queue: Any) -> list[int]:
    return sorted(left_in(kind, queue))


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(call())
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, result


@pytest.mark.parametrize("kind", ["fifo", "shuffle", "priority"])
def test_other_calls_proceed_while_a_batch_is_copied_in(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_of(kind)
    with halting(kind, "fill", monkeypatch) as halted:
        thread, result = in_thread(lambda: queue.enqueue_many(batch(kind, 1, 2, 3)))
        assert halted.has_begun.wait(PATIENCE)
        assert queue.size() == 0
        queue.enqueue(element(kind, 7), timeout=0)
        queue.enqueue_many(batch(kind, 8, 9), timeout=0)
        assert queue.size() == 3
        assert len(numbers_of(kind, queue.dequeue_many(2, timeout=0))) == 2
        assert queue.statistics().waiting_enqueues == 0
    thread.join(PATIENCE)
    assert result == [None]
    assert len(drained(kind, queue)) == 4


@pytest.mark.parametrize("kind", STORAGES)
def test_other_calls_proceed_while_a_batch_is_copied_out(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_of(kind, 5)
    queue.enqueue_many(batch(kind, 1, 2, 3, 4, 5))
    with halting(kind, "columns", monkeypatch) as halted:
        thread, result = in_thread(lambda: queue.dequeue_many(3))
        assert halted.has_begun.wait(PATIENCE)
        assert queue.size() == 2
        queue.enqueue(element(kind, 6), timeout=0)
        queue.enqueue_many(batch(kind, 7, 8), timeout=0)  # there is room, as they have left
        others = numbers_of(kind, queue.dequeue_many(4, timeout=0))
    thread.join(PATIENCE)
    assert sorted(numbers_of(kind, result[0]) + others + drained(kind, queue)) == [*range(1, 9)]


@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize("waits", [True, False])
def test_a_copy_that_fails_leaves_every_element(
    kind: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though others have put in and taken out meanwhile, and the queue was closed."""
    queue = queue_of(kind, 5)

    def fail(*_: Any) -> Any:
        raise MemoryError

    if not waits:
        queue.enqueue_many(batch(kind, 1, 2, 3))
    with halting(kind, "columns", monkeypatch) as halted:
        copy = STORAGES[kind].columns
        monkeypatch.setattr(STORAGES[kind], "columns", lambda *a: (copy(*a), fail())[1])
        thread, result = in_thread(lambda: queue.dequeue_many(3))
        if waits:
            queue.enqueue_many(batch(kind, 1, 2, 3))
        assert halted.has_begun.wait(PATIENCE)
        queue.enqueue(element(kind, 4))
        queue.close()
    thread.join(PATIENCE)
    assert isinstance(result[0], MemoryError)
    monkeypatch.undo()
    left = left_in(kind, queue)
    assert sorted(left) == [1, 2, 3, 4]
    assert kind == "shuffle" or left == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["fifo", "shuffle", "priority"])
def test_a_copy_in_that_fails_changes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = queue_of(kind)
    queue.enqueue(element(kind, 1))
    fill: Callable[..., Any] = STORAGES[kind].fill

    def fail(*arguments: Any) -> Any:
        fill(*arguments)
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(STORAGES[kind], "fill", fail)
        with pytest.raises(MemoryError):
            queue.enqueue_many(batch(kind, 2, 3))
    assert (queue.size(), queue.statistics().enqueued) == (1, 1)
    queue.enqueue_many(batch(kind, 4, 5))
    assert drained(kind, queue) == [1, 4, 5]


@pytest.mark.parametrize("kind", ["fifo", "shuffle", "priority"])
def test_the_queue_is_closed_while_a_batch_is_copied_in(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had not begun to go in, so nothing of it does."""
    queue = queue_of(kind)
    with halting(kind, "fill", monkeypatch) as halted:
        thread, result = in_thread(lambda: queue.enqueue_many(batch(kind, 1, 2)))
        assert halted.has_begun.wait(PATIENCE)
        queue.close()
    thread.join(PATIENCE)
    assert "is closed" in str(result[0])
    assert drained(kind, queue) == []


class Counted(list[Any]):
    """A list that counts how many of its items are looked at."""

    samples = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.samples += 1
            yield item


@pytest.mark.parametrize("kind", ["FIFOQueue", "PriorityQueue", "RandomShuffleQueue"])
def test_rows_inside_are_not_scanned_again(kind: str) -> None:
    """However long a batch is beside the capacity, its rows cost the same."""
    queue = getattr(sync, kind)(4, *((0,) if kind == "RandomShuffleQueue" else ()))
    rows = Counted((i, i) for i in range(1000))
    core_of(queue).machine.begin(PutMany(rows, len(rows)), ThreadWaker())
    for _ in range(250):
        queue.dequeue_many(4, timeout=0)
    assert queue.size() == 0
    assert rows.samples <= 1000
