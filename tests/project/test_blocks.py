"""Blocks whose end has to wait: refused where they are entered, if they cannot be left there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import aioqueue
from aioqueue import inputs, sync
from tests.kit.worlds import needs_trio

WAITING: dict[str, Callable[[], Any]] = {
    "aioqueue.sync.Coordinator": sync.Coordinator,
    "aioqueue.sync.Batcher": lambda: sync.Batcher(list),
    "aioqueue.inputs.Epochs": lambda: inputs.numbers(3).prepare(str, workers=1).epochs(1),
}
"""Those of threads that have an ``async with`` beside them: the end waits for workers."""

HARMLESS = {
    "aioqueue.Monitor",
    "aioqueue.inputs.Preemption",
    "aioqueue.inputs.TFRecordWriter",
    "aioqueue.sync.CancelScope",
}
"""Those whose end waits for nobody."""


def public_blocks() -> set[str]:
    """The public classes, outside of wings, whose objects have a plain ``with``."""
    found = set()
    for module in (aioqueue, sync, inputs):
        for name in module.__all__:
            thing = getattr(module, name, None)
            if isinstance(thing, type) and issubclass(thing, contextlib.AbstractContextManager):
                found.add(f"{thing.__module__}.{thing.__qualname__}")
    return found


def test_every_block_is_known() -> None:
    """An author who adds one decides whether a coroutine may enter it."""
    assert public_blocks() == set(WAITING) | HARMLESS


@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=needs_trio)])
@pytest.mark.parametrize("name", WAITING)
def test_a_coroutine_is_refused_at_the_entry(name: str, backend: str) -> None:
    """Nothing has begun by then, and the block can still be entered where it belongs."""
    thing = WAITING[name]()
    before = threading.active_count()

    async def main() -> None:
        refused = pytest.raises(RuntimeError, match="event loop is running: use `async with")
        with refused, thing:
            pytest.fail("it was entered")
        assert threading.active_count() == before

    anyio.run(main, backend=backend)
    with thing:
        pass


def test_where_to_write_async_with() -> None:
    async def main() -> None:
        async with sync.Coordinator().aio, sync.Batcher(list).aio:
            pass
        async with inputs.numbers(3).epochs(1) as epochs:
            async for epoch in epochs:
                assert [int(one) async for one in epoch] == [0, 1, 2]

    anyio.run(main)
