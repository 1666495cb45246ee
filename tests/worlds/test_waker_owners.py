"""Who waits: known by name, not kept alive, and whether it has ended can be asked."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from aioqueue.worlds.waker import Owner
from tests.kit.worlds import PATIENCE


def test_a_thread() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait, args=(PATIENCE,), name="first")
    owner = Owner(thread)
    assert owner.has_ended()  # it has not begun
    thread.start()
    assert (owner.name, owner.thing, owner.key) == ("first", thread, id(thread))
    assert not owner.has_ended()
    thread.name = "renamed"
    assert owner.name == "renamed"
    go.set()
    thread.join()
    assert owner.has_ended()
    del thread
    assert (owner.name, owner.thing, owner.key, owner.has_ended()) == ("first", None, 0, True)


def test_a_task_of_asyncio() -> None:
    async def main() -> None:
        go = asyncio.Event()
        task = asyncio.create_task(go.wait(), name="first")
        owner = Owner(task)
        assert (owner.name, owner.thing, owner.key) == ("first", task, id(task))
        assert not owner.has_ended()
        task.set_name("renamed")
        assert owner.name == "renamed"
        go.set()
        await task
        assert owner.has_ended()

    asyncio.run(main())


def test_a_task_of_trio() -> None:
    trio = pytest.importorskip("trio")

    async def main() -> None:
        known: list[tuple[Owner, Any]] = []
        was_seen = trio.Event()

        async def call() -> None:
            task = trio.lowlevel.current_task()
            known.append((Owner(task), task))
            await was_seen.wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, name="first")
            while not known:
                await trio.lowlevel.checkpoint()
            ((owner, task),) = known
            assert (owner.name, owner.thing, owner.key) == ("first", task, id(task))
            assert not owner.has_ended()
            was_seen.set()
        assert owner.has_ended()

    trio.run(main)
