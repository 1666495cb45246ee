"""A healthy service has no culprit: it is idle, collects a batch, or is fed by hand.

The generator puts services together at random and asks for an explanation while all of them wait
for their next request. No culprit may be named. Then one of them is stuck, and it alone is.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.inputs import prepare
from tests.batcher.models import NEVER
from tests.kit.worlds import PATIENCE, spin_until


class Services:
    """Services of one program. At the end all are closed, and then their threads are joined.

    Args:
        joins: joins their threads at its end.
        stack: closes them at its end, which comes first.
        chance: decides what they are.
    """

    def __init__(self, joins: ExitStack, stack: ExitStack, chance: random.Random) -> None:
        self.joins = joins
        self.stack = stack
        self.chance = chance
        self.ready: list[Callable[[], object]] = []

    def thread(self, call: Callable[[], object]) -> None:
        thread = threading.Thread(target=call, name=f"service-{len(self.ready)}")
        thread.start()
        self.joins.callback(thread.join, PATIENCE)

    def idle_batcher(self) -> None:
        self.stack.enter_context(self._batcher(NEVER))

    def used_batcher(self) -> None:
        batcher = self.stack.enter_context(self._batcher(0))
        assert batcher(1) == 1

    def collecting_batcher(self) -> None:
        batcher = self.stack.enter_context(self._batcher(NEVER))
        for _ in range(self.chance.choice([1, 3])):
            self.thread(lambda: batcher(1))
        self.ready.append(lambda: batcher.statistics().waiting)

    def _batcher(self, max_wait: float) -> sync.Batcher[Any, Any]:
        async def later(rows: list[Any]) -> list[Any]:
            return rows

        function: Any = self.chance.choice([list, later])
        kind = self.chance.choice([sync.FIFOQueue, sync.PriorityQueue])
        workers = self.chance.choice([1, 3])
        batcher: sync.Batcher[Any, Any] = sync.Batcher(
            function, 8, max_wait, workers=workers, queue=kind(64), name=f"batcher-{id(function)}"
        )
        return batcher

    def fed_directly(self) -> None:
        queue = self._queue()
        if self.chance.random() < 0.5:
            queue.enqueue(1)
        self.thread(lambda: list(queue))
        self.ready.append(lambda: queue.statistics().waiting_dequeues)

    def batches_directly(self) -> None:
        queue = self._queue()
        self.thread(lambda: list(queue.batches(4)))
        queue.enqueue(1)
        self.ready.append(lambda: queue.statistics().waiting_dequeues and queue.size() == 0)

    def prepared_directly(self) -> None:
        requests, made = self._queue(), self._queue()
        coord = self.stack.enter_context(sync.Coordinator())
        coord.start(prepare(requests, str, into=made, workers=self.chance.choice([1, 2])))
        self.stack.callback(requests.close)
        self.thread(lambda: list(made))
        self.ready.append(
            lambda: made.statistics().waiting_dequeues and requests.statistics().waiting_dequeues
        )

    def in_an_event_loop(self) -> None:
        queue: Any = aioqueue.FIFOQueue(8, name=f"tasks-{len(self.ready)}")

        async def main() -> None:
            async with aioqueue.Batcher(_kept, 4, NEVER) as batcher, asyncio.TaskGroup() as tasks:
                call = tasks.create_task(batcher(1))
                async for _ in queue:
                    pass
                tasks.create_task(batcher(3))
                tasks.create_task(batcher(4))
                assert await batcher(2) == 2
                assert await call == 1

        self.stack.callback(queue.close)
        self.thread(lambda: asyncio.run(main()))
        self.ready.append(lambda: queue.statistics().waiting_dequeues)

    def reader_of_versions(self) -> None:
        latest = sync.Latest[int](1)
        self.stack.callback(latest.close)

        def read() -> None:
            with pytest.raises(aioqueue.OutOfRangeError):
                latest.wait_newer(1)

        self.thread(read)

    def _queue(self) -> Any:
        queue: Any = sync.FIFOQueue(8, name=f"requests-{len(self.ready)}")
        self.stack.callback(queue.close)
        return queue


async def _kept(rows: list[Any]) -> list[Any]:
    return rows


KINDS = [name for name in vars(Services) if not name.startswith("_") and name != "thread"]


def check(kinds: list[str], chance: random.Random) -> None:
    with ExitStack() as joins, ExitStack() as stack:
        services = Services(joins, stack, chance)
        for kind in kinds:
            getattr(services, kind)()
        spin_until(lambda: all(is_ready() for is_ready in services.ready))
        explanation = aioqueue.explain()
        assert not explanation.culprits, f"{kinds}: {explanation}"
        assert "close() missing" not in str(explanation)

        go = threading.Event()

        def hangs(rows: list[Any]) -> list[Any]:
            assert go.wait(PATIENCE)
            return rows

        stuck = stack.enter_context(sync.Batcher(hangs, 1, name="stuck"))
        stack.callback(go.set)
        for number in range(3):
            services.thread(lambda number=number: stuck(number))  # type: ignore[misc]
        spin_until(lambda: stuck.statistics().in_flight)
        (culprit,) = aioqueue.explain().culprits
        assert (culprit.kind, culprit.queue) == ("worker", "stuck"), f"{kinds}: {culprit}"


@pytest.mark.parametrize("kind", KINDS)
def test_one_service(kind: str) -> None:
    check([kind], random.Random(kind))


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("seed", range(40))
def test_several_services(seed: int) -> None:
    chance = random.Random(seed)
    check(chance.choices(KINDS, k=chance.randint(2, 5)), chance)


def test_a_caller_that_waits_for_room_in_a_batcher_waits_for_its_batch() -> None:
    go = threading.Event()

    def function(rows: list[Any]) -> list[Any]:
        assert go.wait(PATIENCE)
        return rows

    with ExitStack() as joins, ExitStack() as stack:
        services = Services(joins, stack, random.Random(1))
        batcher = stack.enter_context(
            sync.Batcher(function, 1, queue=sync.FIFOQueue(1), name="scores")
        )
        stack.callback(go.set)
        for number in range(4):
            services.thread(lambda number=number: batcher(number))  # type: ignore[misc]
        spin_until(lambda: batcher.statistics().waiting_for_room == 2)
        explanation = aioqueue.explain()
        (culprit,) = explanation.culprits
        assert culprit.kind == "worker"
        assert culprit.sentence.startswith(
            "Batcher 'scores': aioqueue-scores-0 has been at a batch"
        )


def test_a_queue_that_no_thread_could_fill_is_a_root_cause() -> None:
    """A thread that joins another one fills nothing until that one has ended."""
    queue: sync.FIFOQueue[int] = sync.FIFOQueue(8, name="examples")
    found: list[Any] = []

    def watch() -> None:
        try:
            spin_until(lambda: queue.statistics().waiting_dequeues)
            spin_until(lambda: aioqueue.explain().culprits)  # once this thread is joined
            found.append(aioqueue.explain())
        finally:
            queue.close()

    trainer = threading.Thread(target=lambda: list(queue), name="trainer")
    watcher = threading.Thread(target=watch, name="aioqueue-of-a-test")  # as a watchdog would
    others = [
        thread
        for thread in threading.enumerate()
        if thread is not threading.current_thread() and not thread.name.startswith("aioqueue-")
    ]
    if others:
        pytest.skip(f"other threads run: {others}")
    trainer.start()
    watcher.start()
    watcher.join(PATIENCE)
    trainer.join(PATIENCE)
    (explanation,) = found
    assert [(one.kind, one.queue) for one in explanation.culprits] == [("nobody fills", "examples")]
    assert not explanation.hints
