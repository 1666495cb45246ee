"""A batching service under load: every request is answered exactly once, whatever happens.

Clients ask one request after the other. Some batches fail, some requests fail alone, some callers
give up, some are refused since there is no room. Afterwards the books of the clients, of the model
and of the batcher are compared, request by request.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import aioqueue
from tests.batcher.functions import (
    FileGate,
    UnluckyBatchError,
    UnluckyRequestError,
    noted,
    recorded,
    recorded_results,
)
from tests.batcher.models import WHERES, batcher_of
from tests.kit.processing import start_the_forkserver
from tests.kit.worlds import CancelledError, TaskWorld, World, spin_until

CLIENTS, REQUESTS = 32, 16
CAPACITY, MAX_BATCH, WORKERS = 12, 8, 2
assert CLIENTS > CAPACITY + WORKERS * MAX_BATCH
LUCKY, UNLUCKY = 10**6 + 1, 53 * 10**6  # asked last, of a batcher with room


class RecordingModel:
    """Doubles numbers, and keeps book of them. It is held up until the batcher is overloaded.

    That comes for sure, and stays until it was seen: somebody gives up first
    (`Clients.give_up_one`), and then there are more clients than the workers and the queue have
    room for. Once it was seen, nothing is held up any more: it may not come again.

    Args:
        where: as which kind of function.
        world: where the callers are.
        folder: in which a process keeps its book.
    """

    batcher: aioqueue.Batcher[int, int]

    def __init__(self, where: str, world: World, folder: Path) -> None:
        self._where = where
        self._world = world
        self._folder = folder
        self._batches: list[list[int]] = []
        self._was_overloaded = False

    @property
    def function(self) -> Callable[[list[int]], Any]:
        if self._where == "process":
            return partial(recorded, self._folder)
        return self._coroutine if self._where == "task" else self._plain

    @property
    def batches(self) -> list[list[int]]:
        """Those that it was called with."""
        return list(noted(self._folder)) if self._where == "process" else self._batches

    def was_overloaded(self) -> bool:
        if not self._was_overloaded:
            counts = self.batcher.statistics()
            over = counts.refused + counts.waiting_for_room
            self._was_overloaded = counts.cancelled > 0 and over > 0
        return self._was_overloaded

    async def open_when_overloaded(self, gate: FileGate) -> None:
        """Open the gate of processes; others look themselves, and may be past it already."""
        if self._where == "process":
            await self._world.until(self.was_overloaded)
            gate.open()

    def _plain(self, numbers: list[int]) -> list[Any]:
        self._batches.append(numbers)
        spin_until(self.was_overloaded)
        return recorded_results(numbers)

    async def _coroutine(self, numbers: list[int]) -> list[Any]:
        self._batches.append(numbers)
        await self._world.until(self.was_overloaded)
        return recorded_results(numbers)


class Clients:
    """What clients ask, and what has become of each request."""

    def __init__(self, world: World, batcher: aioqueue.Batcher[int, int]) -> None:
        self.world = world
        self.batcher = batcher
        self.ends: dict[int, list[str]] = {}

    async def run(self, client: int) -> None:
        chance = random.Random(client)
        for number in range(client, CLIENTS * REQUESTS, CLIENTS):
            end = await self._ask(number, gives_up=chance.random() < 0.2)
            self.ends.setdefault(number, []).append(end)

    async def give_up_one(self) -> None:
        """Ask until a request was accepted whose caller has gone."""
        for number in itertools.count(CLIENTS * REQUESTS):
            self.ends[number] = [await self._ask(number, gives_up=True)]
            if self.batcher.statistics().cancelled:
                return

    async def ask_when_idle(self, number: int) -> None:
        """Ask after all others have their answers, so that the batcher has room."""
        self.ends[number] = [await self._ask(number, gives_up=False)]

    async def _ask(self, number: int, *, gives_up: bool) -> str:
        try:
            answer = await self._call(number, gives_up)
        except (CancelledError, TimeoutError):
            return "given up"
        except aioqueue.QueueFull:
            return "refused"
        except UnluckyBatchError:
            return "failed with its batch"
        except UnluckyRequestError as failure:
            return "failed" if failure.args == (number,) else "the failure of another"
        return "answered" if answer == 2 * number else "the answer of another"

    async def _call(self, number: int, gives_up: bool) -> int:
        if not gives_up:
            return await self.batcher(number)
        if isinstance(self.world, TaskWorld):
            answer: int = await self.world.within(0.0005, self.batcher.__call__, number)
            return answer
        return await self.batcher(number, timeout=0.0005)  # type: ignore[call-arg]


@pytest.fixture(autouse=True)
def forkserver() -> None:
    """Before an event loop runs, in which nothing may block."""
    start_the_forkserver()


@pytest.mark.slow(but=("threads", "asyncio-FIFOQueue-refuse-thread"))
@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize("on_full", ["refuse", "wait"])
@pytest.mark.parametrize("kind", [aioqueue.FIFOQueue, aioqueue.PriorityQueue])
async def test_every_request_is_answered_once(
    world: World, where: str, on_full: Any, kind: type[aioqueue.FIFOQueue], tmp_path: Path
) -> None:
    gate = FileGate(tmp_path)
    if where == "process":
        gate.shut()
    model = RecordingModel(where, world, tmp_path)
    async with batcher_of(
        world,
        model.function,
        where=where,
        max_batch=MAX_BATCH,
        max_wait=0.001,
        queue=kind(CAPACITY),
        workers=WORKERS,
        on_full=on_full,
    ) as batcher:
        model.batcher = batcher
        opening = world.spawn(model.open_when_overloaded, gate)
        clients = Clients(world, batcher)
        await clients.give_up_one()
        running = [world.spawn(clients.run, client) for client in range(CLIENTS)]
        for operation in (opening, *running):
            await operation.result()
        for number in (LUCKY, UNLUCKY):  # all of the others may have been refused
            await clients.ask_when_idle(number)
    gate.close()
    seen = Counter(number for batch in model.batches for number in batch)
    failed = {n for batch in model.batches if any(m % 53 == 0 for m in batch) for n in batch}
    ends = {number: end for number, (end,) in clients.ends.items()}  # one each
    of_kind = Counter(ends.values())
    assert set(range(CLIENTS * REQUESTS)) < set(ends)
    assert set(of_kind) <= {"answered", "failed", "failed with its batch", "given up", "refused"}
    assert of_kind["answered"] > 0
    assert of_kind["failed with its batch"] > 0
    assert of_kind["given up"] > 0

    assert set(seen.values()) == {1}, "a request came into two batches"
    for number, end in ends.items():
        if end == "refused":
            assert number not in seen
        elif end != "given up":
            assert number in seen
            assert (number in failed) == (end == "failed with its batch")

    counts = batcher.statistics()
    assert counts.answered >= of_kind["answered"]  # of some, the caller had just gone
    assert counts.requests == counts.answered + counts.failed + counts.cancelled
    assert counts.refused == of_kind["refused"]
    assert counts.requests + counts.refused <= len(ends)
    assert sum(size * count for size, count in counts.batch_sizes.items()) == len(seen)
    assert (counts.waiting, counts.waiting_for_room, counts.in_flight) == (0, 0, 0)
    assert bool(counts.refused) == (on_full == "refuse")
