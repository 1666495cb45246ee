"""Calls that strike in the middle of another call of their thread, as finalizers and handlers do.

Each is exact, or refused: nothing is lost or repeated, and the machine is in order.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.errors import DeadlineExceededError, OutOfRangeError, QueueEmpty, QueueFull
from aioqueue.testing import no_threads_left, wait_until_waiting
from tests.kit.invariants import violations
from tests.kit.worlds import TaskWorld, core_of

MAKERS: dict[str, Callable[[], Any]] = {
    "objects": lambda: sync.FIFOQueue(50),
    "typed": lambda: sync.FIFOQueue(50, "int64", ()),
    "large rows": lambda: sync.FIFOQueue(50, "int64", (2000,)),
    "any shape": lambda: sync.FIFOQueue(50, "int64"),
    "sizes": lambda: sync.FIFOQueue(50, max_bytes=10**6),
    "shuffle": lambda: sync.RandomShuffleQueue(50, 0, "int64", (), seed=1),
    "padding": lambda: sync.PaddingFIFOQueue(50, "int64", [(None,)]),
    "priority": lambda: sync.PriorityQueue(50, "int64", ()),
}


class Striking:
    """Calls of a queue, in the middle of which others come: at calls within aioqueue, at random."""

    def __init__(self, name: str, seed: int) -> None:
        self.queue = MAKERS[name]()
        self.name = name
        self.rng = random.Random(seed)
        self.put: Counter[int] = Counter()
        self.taken: Counter[int] = Counter()
        self.numbers = iter(range(10**9))
        self.refused = self.exact = 0

    def element(self, number: int) -> Any:
        if self.name == "large rows":
            return np.full(2000, number)
        if self.name == "padding":
            return [number]
        return (0, number) if self.name == "priority" else number

    def number(self, element: Any) -> int:
        return int(np.ravel(element[1] if self.name == "priority" else element)[0])

    def batch(self, numbers: list[int]) -> Any:
        elements = list(map(self.element, numbers))
        if self.name == "priority":
            return np.zeros(len(numbers), int), np.array(numbers)
        return elements if self.name in ("objects", "sizes") else np.array(elements)

    def call_for_a_batch(self) -> None:
        """The same, of several rows."""
        if self.rng.random() < 0.5:
            numbers = [next(self.numbers) for _ in range(3)]
            try:
                self.queue.enqueue_many(self.batch(numbers), timeout=0)
            except DeadlineExceededError as error:
                self.put.update(numbers[: error.enqueued])
            else:
                self.put.update(numbers)
        else:
            rows = self.queue.dequeue_up_to(3, 0, timeout=0)
            for row in rows[1] if self.name == "priority" else rows:
                self.taken[int(np.ravel(row)[0])] += 1

    def call(self) -> None:
        """One call that does not wait; what it has done is noted."""
        if self.name != "any shape" and self.rng.random() < 0.4:  # which has no batches
            self.call_for_a_batch()
        elif self.rng.random() < 0.5:
            number = next(self.numbers)
            self.queue.enqueue_nowait(self.element(number))
            self.put[number] += 1
        else:
            self.taken[self.number(self.queue.dequeue_nowait())] += 1

    def profile(self, frame: FrameType, event: str, argument: object) -> None:
        """Called at every call and return in this thread, but for those that it makes itself."""
        if "aioqueue" not in frame.f_code.co_filename or self.rng.random() > 0.05:
            return
        try:
            self.call()
            self.exact += 1
        except RuntimeError as refusal:
            assert "in the middle" in str(refusal) or "interrupted another call" in str(refusal)
            self.refused += 1
        except (QueueFull, QueueEmpty, DeadlineExceededError):
            pass

    def run(self, calls: int) -> None:
        for _ in range(calls):
            sys.setprofile(self.profile)
            try:
                self.call()
            except (QueueFull, QueueEmpty, DeadlineExceededError):
                pass
            finally:
                sys.setprofile(None)
            assert violations(core_of(self.queue).machine) == []
        self.queue.close()
        try:
            while True:
                self.taken[self.number(self.queue.dequeue())] += 1
        except OutOfRangeError:
            pass
        assert self.taken == self.put


@pytest.mark.parametrize("name", MAKERS)
def test_reentrant_calls_anywhere_are_exact_or_refused(name: str) -> None:
    striking = Striking(name, seed=5)
    striking.run(120)
    assert striking.refused or aioqueue.__compiled__  # where few of the calls can be seen
    assert striking.exact


@pytest.mark.parametrize("name", MAKERS)
def test_a_finalizer_that_the_collector_runs_in_a_move(name: str) -> None:
    striking = Striking(name, seed=6)

    class Event:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            try:
                striking.call()
            except (RuntimeError, QueueFull, QueueEmpty, DeadlineExceededError):
                pass

    before = gc.get_threshold()
    try:
        gc.set_threshold(2, 2, 2)
        for _ in range(200):
            Event()
            try:
                striking.call()
            except (QueueFull, QueueEmpty, DeadlineExceededError):
                pass
    finally:
        gc.set_threshold(*before)
    gc.collect()
    striking.run(0)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("does", ["enqueue", "enqueue_many", "enqueue_nowait", "dequeue_nowait"])
@pytest.mark.parametrize("face", ["aio", "sync"])
def test_a_signal_handler_wakes_a_loop_that_is_asleep(
    task_world: TaskWorld, does: str, face: str
) -> None:
    if face == "aio" and not does.endswith("nowait"):
        pytest.skip("a handler cannot await")
    queue = aioqueue.FIFOQueue(1)
    if does == "dequeue_nowait":
        queue.enqueue_nowait(0)
    arguments = {"dequeue_nowait": (), "enqueue_many": ([1],)}.get(does, (1,))

    done = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if not done.is_set():
            with suppress(RuntimeError):  # it has struck in the middle of the call that waits
                getattr(getattr(queue, face), does)(*arguments)
                done.set()

    async def body() -> None:
        # No timer: it would wake the loop, too.
        await (queue.enqueue(2) if does == "dequeue_nowait" else queue.dequeue())

    def inject() -> None:
        wait_until_waiting(
            queue,
            enqueues=int(does == "dequeue_nowait"),
            dequeues=int(does != "dequeue_nowait"),
        )
        # Again, if it struck too early. And if a signal has come just before the loop begins to
        # sleep, CPython calls the handler only after that sleep.
        while not done.is_set():
            os.kill(os.getpid(), signal.SIGUSR1)
            done.wait(0.1)

    before = signal.signal(signal.SIGUSR1, handle)
    killer = threading.Thread(target=inject)
    try:
        killer.start()
        task_world.run(body)
    finally:
        killer.join()
        signal.signal(signal.SIGUSR1, before)


def overriding(base: Any, name: str) -> type:
    return type("Stamped", (base,), {name: lambda self, *arguments: None, "__module__": "users"})


@pytest.mark.parametrize("base", [aioqueue.FIFOQueue, sync.PriorityQueue])
def test_a_subclass_overrides_no_method_of_a_queue(base: Any) -> None:
    """Its other face, and workers that use batches, would pass it by."""
    names = [name for name in dir(base) if not name.startswith("_")]
    for name in (*names, "__iter__", "__len__"):
        if hasattr(base, name):
            with pytest.raises(
                TypeError, match=f"^Stamped overrides {name}: the queue's other face"
            ):
                overriding(base, name)
    stamp = type("Stamp", (), {"close": lambda self: None})
    with pytest.raises(TypeError, match="Stamped overrides close"):
        type("Stamped", (stamp, base), {"__module__": "users"})


@pytest.mark.parametrize(
    ("base", "name", "bypassed_by"),
    [
        (aioqueue.Latest, "publish", "the other face"),
        (sync.Latest, "get", "the other face"),
        (aioqueue.Batcher, "__call__", "the other face"),
        (sync.Batcher, "statistics", "the other face"),
        (aioqueue.Coordinator, "request_stop", "its workers, and the other face,"),
        (sync.Coordinator, "should_stop", "its workers, and the other face,"),
    ],
)
def test_nor_of_others_with_two_faces(base: Any, name: str, bypassed_by: str) -> None:
    assert hasattr(base, name)
    with pytest.raises(TypeError, match=f"^Stamped overrides {name}: {bypassed_by} would bypass"):
        overriding(base, name)


def test_a_subclass_may_add_what_queues_do_not_have() -> None:
    class Pairs(sync.FIFOQueue):
        def __init__(self) -> None:
            super().__init__(10, name="pairs")

        def enqueue_pair(self, one: int, two: int) -> None:
            self.enqueue_many([one, two])

    pairs = Pairs()
    pairs.enqueue_pair(1, 2)
    assert asyncio.run(pairs.aio.dequeue_many(2)) == [1, 2]


def test_nothing_that_iterating_uses_up_is_searched() -> None:
    from aioqueue import inputs

    queue = sync.FIFOQueue(5)
    queue.enqueue_many([1, 2, 3])
    source = inputs.items([1, 2])
    with sync.Coordinator() as coord:
        stream = inputs.batch(range(5), 2, coord=coord)
        with source.epochs(1) as epochs:
            for thing in (
                *(queue, queue.aio, queue.batches(1), queue.aio.batches(1)),
                *(stream, stream.aio, source, source.epoch(0), source.batch(2)),
                *(epochs, next(epochs)),
            ):
                with pytest.raises(TypeError, match=r"cannot be searched by `in`"):
                    1 in thing  # noqa: B015
    assert queue.size() == 3


def test_blocking_helpers_of_tests_are_refused_in_an_event_loop(task_world: TaskWorld) -> None:
    queue = aioqueue.FIFOQueue(1)

    async def body() -> None:
        with pytest.raises(RuntimeError, match=r"use `await until_waiting\(\.\.\.\)` here"):
            wait_until_waiting(queue, dequeues=1)
        assert wait_until_waiting(queue).waiting_dequeues == 0
        message = r"with no_threads_left\(\): asyncio\.run"
        with pytest.raises(RuntimeError, match=message), no_threads_left():
            pytest.fail("it was entered")

    task_world.run(body)
