"""Batchers under everything at once: nobody is answered twice, forgotten, or with another's result.

Functions fail in every way that there is, empty their lists, or take their time; callers give up,
with a timeout or at once, in tasks and in threads; and the block is left at a random moment, as it
is, by an exception, or by a cancellation. Then the books are compared. In the meantime a thread and
all tasks look at the statistics: in each record every request is in one count, and no more of them
wait than the capacity says, also while a worker collects a batch.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import aioqueue
from tests.batcher.models import NEVER
from tests.kit.worlds import PATIENCE

SEEDS = 24
BACKENDS = {
    "asyncio": ("asyncio", {}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


class Value:
    """A value of a request: it has no hash, and cannot be compared."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        raise AssertionError("nobody has to compare them")


def interrupted(first: int) -> Any:
    yield first
    raise KeyError("within a generator")


FAILURES: tuple[Callable[[], BaseException], ...] = (
    lambda: ValueError("unlucky"),
    StopIteration,
    asyncio.CancelledError,
    GeneratorExit,
    lambda: aioqueue.OutOfRangeError("another queue"),
    lambda: ExceptionGroup("", [aioqueue.QueueClosedError("another"), StopIteration()]),
    lambda: BaseExceptionGroup("", [asyncio.CancelledError(), ValueError()]),
)
ODD: tuple[Callable[[list[int]], Any], ...] = (
    lambda numbers: numbers[:-1],
    lambda numbers: [*numbers, 1],
    lambda numbers: None,
    lambda numbers: interrupted(numbers[0]),
    lambda numbers: iter(numbers),
    lambda numbers: [KeyboardInterrupt() if n % 2 else n for n in numbers],
    lambda numbers: [StopIteration() if n % 2 else n for n in numbers],
)


class Run:
    """One batcher, its callers, and what became of each."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.seen: Counter[int] = Counter()
        self.ends: dict[int, str] = {}
        self.threads: list[threading.Thread] = []
        self.is_over = threading.Event()
        self.wrong: list[str] = []
        self.records = 0
        self.leaving = self.chance.choice(["", "exception", "cancelled", "cancelled in the end"])
        max_batch = self.chance.choice([1, 2, 5])
        capacity = max_batch + self.chance.choice([0, 3, 40])
        self.batcher: aioqueue.Batcher[Value, int] = aioqueue.Batcher(
            self.chance.choice([self.plain, self.coroutine]),
            max_batch,
            self.chance.choice([0, 0.0005, 0.002, NEVER]),
            queue=self.chance.choice([aioqueue.FIFOQueue, aioqueue.PriorityQueue])(capacity),
            workers=self.chance.choice([1, 2, 3]),
            on_full=self.chance.choice(["wait", "refuse"]),
        )

    # The function.

    def plain(self, values: list[Value]) -> Any:
        if self.chance.random() < 0.3:
            threading.Event().wait(self.chance.random() / 500)
        return self._made(values)

    async def coroutine(self, values: list[Value]) -> Any:
        await self._dawdle(0, 0, 1, 3)
        if self.chance.random() < 0.3:
            await anyio.sleep(self.chance.random() / 500)
        return self._made(values)

    def _made(self, values: list[Value]) -> Any:
        numbers = [value.number for value in values]
        self.seen.update(numbers)
        if self.chance.random() < 0.3:
            values.clear()
        if self.chance.random() < 0.2:
            raise self.chance.choice(FAILURES)()
        return self.chance.choice(ODD)(numbers) if self.chance.random() < 0.3 else numbers

    # Its callers.

    async def ask(self, number: int) -> None:
        await self._dawdle(0, 0, 1, 5)
        with anyio.CancelScope() as scope:
            how = self.chance.random()
            if how < 0.1:
                scope.cancel()
            elif how < 0.4:
                scope.deadline = anyio.current_time() + self.chance.random() / 300
            self.ends[number] = "given up"
            self.ends[number] = await self._end_of(number, self.batcher)
        if number % 10 < 3:
            await self.ask(number + 1)

    async def _end_of(self, number: int, ask: Callable[..., Awaitable[int]]) -> str:
        try:
            answer = await ask(Value(number))
        except Exception as error:
            return reported(error)
        return "answered" if answer == number else "the answer of another"

    def ask_in_a_thread(self, number: int) -> None:
        try:
            answer = self.batcher.sync(Value(number), timeout=self.chance.choice([None, 0.001]))
        except Exception as error:
            self.ends[number] = reported(error)
        else:
            self.ends[number] = "answered" if answer == number else "the answer of another"

    # Who looks at it.

    def sample(self) -> None:
        record = self.batcher.statistics()
        assert record.capacity is not None
        here = record.waiting + record.in_flight
        ended = record.answered + record.failed + record.cancelled
        is_right = record.requests == here + ended and min(record.waiting, record.in_flight) >= 0
        if not is_right or record.waiting > record.capacity:
            self.wrong.append(repr(record))
        self.records += 1

    def watch(self) -> None:
        while not self.is_over.wait(0.0001):
            self.sample()

    # All of it.

    async def main(self) -> None:
        with anyio.fail_after(6 * PATIENCE):
            async with anyio.create_task_group() as tasks:
                try:
                    with anyio.CancelScope() as scope:
                        await self._serve(tasks, scope)
                except KeyError:
                    assert self.leaving == "exception"

    async def _serve(self, tasks: Any, scope: anyio.CancelScope) -> None:
        async with self.batcher:
            for caller in range(self.chance.choice([3, 20, 40])):
                tasks.start_soon(self.ask, 10 * caller)
            for caller in range(self.chance.choice([0, 3])):
                asking = threading.Thread(target=self.ask_in_a_thread, args=(1000 + caller,))
                self.threads.append(asking)
                asking.start()
            await self._dawdle(0, 1, 5, 50)
            if self.chance.random() < 0.7:
                await anyio.sleep(self.chance.random() / 50)
            if self.leaving == "exception":
                raise KeyError
            if self.leaving == "cancelled":
                scope.cancel()
                await anyio.lowlevel.checkpoint()
            if self.leaving == "cancelled in the end":
                tasks.start_soon(self._cancel_later, scope)

    async def _cancel_later(self, scope: anyio.CancelScope) -> None:
        await self._dawdle(0, 1, 3)
        scope.cancel()

    async def _dawdle(self, *steps: int) -> None:
        for _ in range(self.chance.choice(steps)):
            await anyio.lowlevel.checkpoint()
            self.sample()


def reported(error: Exception) -> str:
    """How a call has ended that has raised something."""
    if isinstance(error, aioqueue.QueueFull):
        return "refused"
    if isinstance(error, aioqueue.WorkerDiedError):
        return "its worker died"
    return "failed"


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", BACKENDS)
def test_every_call_ends_once(name: str, seed: int) -> None:
    backend, options = BACKENDS[name]
    if name != "asyncio":
        pytest.importorskip(name)
    run = Run(seed)
    watching = threading.Thread(target=run.watch)
    watching.start()
    try:
        anyio.run(run.main, backend=backend, backend_options=options)
    finally:
        run.is_over.set()
        watching.join(PATIENCE)
    assert not run.wrong, f"{len(run.wrong)} of {run.records}: {run.wrong[:3]}"
    for thread in run.threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    ends = Counter(run.ends.values())
    assert set(ends) <= {"answered", "failed", "given up", "refused"}
    assert set(run.seen.values()) <= {1}, "a request came into two batches"
    counts = run.batcher.statistics()
    assert (counts.waiting, counts.waiting_for_room, counts.in_flight) == (0, 0, 0)
    assert counts.requests == counts.answered + counts.failed + counts.cancelled
    assert counts.refused == ends["refused"]
    assert ends["answered"] <= counts.answered
    for number, end in run.ends.items():
        if end == "answered":
            assert number in run.seen
        elif end == "refused":
            assert number not in run.seen
    assert not [one for one in threading.enumerate() if run.batcher.name in one.name]
