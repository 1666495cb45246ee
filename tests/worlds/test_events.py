"""`task_event`: what one task waits for, in asyncio and in trio."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from aioqueue.worlds.events import task_event


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
class TestTaskEvent:
    def run(self, backend: str, main: Any) -> None:
        if backend == "trio":
            pytest.importorskip("trio")
        anyio.run(main, backend=backend)

    def test_it_wakes_the_task(self, backend: str) -> None:
        async def main() -> None:
            event = task_event()

            async def wait() -> None:
                await event.wait()

            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await anyio.lowlevel.checkpoint()
                event.set()
                event.set()

        self.run(backend, main)

    def test_set_before_the_wait(self, backend: str) -> None:
        async def main() -> None:
            event = task_event()
            event.set()
            await event.wait()

        self.run(backend, main)

    def test_a_cancelled_task_need_not_be_woken(self, backend: str) -> None:
        async def main() -> None:
            event = task_event()
            with anyio.move_on_after(0) as scope:
                await event.wait()
            assert scope.cancelled_caught
            event.set()

        self.run(backend, main)
