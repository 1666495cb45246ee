"""How a program waits for answers: what it was given goes when it has been used."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from aioqueue.ray.client import Asking, Client

Drive = Callable[[Any, Asking[Any]], object]


def in_a_task(client: Any, asking: Asking[Any]) -> object:
    async def wait() -> object:
        return await Client.drive_async(client, asking)

    return asyncio.run(wait())


DRIVES = {"threads": Client.drive, "tasks": in_a_task}


class Batch:
    """Something that lies in the object store for as long as it is there."""


class Coming(Future[Any]):
    """An answer that comes as soon as somebody waits for it."""

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
def test_a_batch_goes_when_it_has_been_used(drive: Drive) -> None:
    client = SimpleNamespace(connection=SimpleNamespace(expect=lambda ended: None))
    found: list[weakref.ref[Batch]] = []

    def asking() -> Asking[None]:
        batch = yield SimpleNamespace(future=Coming)
        found.append(weakref.ref(batch))

    drive(client, asking())
    assert [one() for one in found] == [None]
