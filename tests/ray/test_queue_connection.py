"""How a program waits for answers, and releases them after their use."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

import aioqueue
from aioqueue.errors import InvalidArgumentError
from aioqueue.ray.queue_connection import CallFlow, Client
from aioqueue.ray.queues import checked_name
from tests.ray.simulation import Program, Wire

Drive = Callable[[Any, CallFlow[Any]], object]


def in_a_task(client: Any, flow: CallFlow[Any]) -> object:
    async def wait() -> object:
        return await Client.drive_async(client, flow)

    return asyncio.run(wait())


DRIVES = {"threads": Client.drive, "tasks": in_a_task}


class Batch:
    """An object in the store, which is freed with its last reference."""


class Coming(Future[Any]):
    """An answer that arrives as soon as a caller waits for it."""

    def add_done_callback(self, call: Callable[[Future[Any]], object]) -> None:
        super().add_done_callback(call)
        self.set_result(Batch())


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Python looks for no cycles."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("drive", DRIVES.values(), ids=DRIVES)
@pytest.mark.usefixtures("no_collection")
def test_a_batch_is_released_after_its_use(drive: Drive) -> None:
    client = SimpleNamespace(connection=SimpleNamespace(add_pending=lambda ended: None))
    found: list[weakref.ref[Batch]] = []

    def flow() -> CallFlow[None]:
        batch = yield SimpleNamespace(future=Coming)
        found.append(weakref.ref(batch))

    drive(client, flow())
    assert [one() for one in found] == [None]


class Unreadable:
    """It can be pickled, and not unpickled."""

    def __reduce__(self) -> Any:
        return int, ("one",)


@pytest.mark.parametrize("journal", [None, "/journal"])
def test_what_cannot_be_sent_is_reported_of_the_queue_in_plain_words(
    journal: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray says it in many lines, in colours, and not of which queue."""

    async def main() -> None:
        wire = Wire(monkeypatch, {})
        queue = Program(wire, "producer").open(None, journal=journal)
        await queue.enqueue(0)
        with pytest.raises(InvalidArgumentError) as refused:
            await queue.enqueue(threading.Lock())
        with pytest.raises(InvalidArgumentError) as failed:
            await queue.enqueue(Unreadable())
        for reported in (refused, failed):
            assert "queue 'wire'" in str(reported.value)
            assert "\x1b" not in str(reported.value)
            assert "\n" not in str(reported.value)
        assert "cannot pickle" in str(refused.value)
        assert "invalid literal for int()" in str(failed.value)
        assert (await queue.statistics()).enqueued == 1
        await queue.enqueue(1)  # there is no gap at which it waits
        assert [await queue.dequeue() for _ in range(2)] == [0, 1]
        await wire.end()

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("name", ["", None, 5, "half a character: \ud800"])
def test_names_that_ray_cannot_send_are_refused(name: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="name: got"):
        checked_name(name)


@pytest.mark.parametrize("waits", [False, True])
def test_leases_do_not_block_the_actor(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its consumer works on it, somewhere else: the actor's loop is not blocked."""

    async def main() -> None:
        wire = Wire(monkeypatch, {})
        queue = Program(wire, "consumer").open(None)
        if waits:
            taking = asyncio.create_task(queue.dequeue())
            while not (await queue.statistics()).waiting_dequeues:
                await asyncio.sleep(0)
            await queue.enqueue(0)
            assert await taking == 0
        else:
            await queue.enqueue(0)
            assert await queue.dequeue() == 0
        assert (await queue.statistics()).granted == 1
        assert aioqueue.explain().culprits == ()
        await wire.end()

    asyncio.run(asyncio.wait_for(main(), 60))
