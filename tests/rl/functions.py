"""What generates in child processes, which import it from here."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np

from aioqueue.worlds.waker import running_loop

try:
    import fcntl
except ImportError:  # on Windows, where tests of calls that must be held up are left out
    fcntl = None  # type: ignore[assignment]


def note(folder: Path, *words: Any) -> None:
    """Append a line to the notes of a test, in one piece."""
    with open(folder / "notes", "a") as notes:
        notes.write(" ".join(map(str, words)) + "\n")


def wait_at(gate: Path) -> None:
    with open(gate) as file:
        fcntl.flock(file, fcntl.LOCK_SH)


def begin(folder: Path, prompt: Any, rollout: Any) -> Path | None:
    """Note the start of a call, and return the gate that it has to wait at."""
    is_inside = (folder / "publishing").exists()
    note(folder, prompt, rollout.index, rollout.attempt, rollout.version, os.getpid(), is_inside)
    gate = folder / f"gate-{prompt}"
    return gate if gate.exists() else None


def result(prompt: Any, rollout: Any) -> Any:
    if str(prompt).startswith("die") and rollout.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if str(prompt).startswith("boom"):
        raise ConnectionError(f"engine of prompt {prompt}")
    return (prompt, rollout.index, rollout.seed)


async def in_task(folder: Path, prompt: Any, rollout: Any) -> Any:
    gate = begin(folder, prompt, rollout)
    if gate is not None:
        try:
            await anyio.to_thread.run_sync(wait_at, gate, abandon_on_cancel=True)
        except BaseException:
            note(folder, "cancelled", prompt)
            raise
    return result(prompt, rollout)


def on_thread(folder: Path, prompt: Any, rollout: Any) -> Any:
    gate = begin(folder, prompt, rollout)
    if gate is not None:
        wait_at(gate)
    return result(prompt, rollout)


async def blocking_its_loop(folder: Path, prompt: Any, rollout: Any) -> Any:
    return on_thread(folder, prompt, rollout)


def made_slowly(make: Callable[[], Any]) -> Any:
    """Make something, so slowly that an explanation meets the process before it is ready."""
    sleep(0.2)
    return make()


async def until_closed(folder: Path, prompt: Any, rollout: Any) -> Any:
    """Wait until nobody has a pipe open, without a thread."""
    with suppress(FileNotFoundError):
        pipe = os.open(folder / f"pipe-{prompt}", os.O_RDONLY | os.O_NONBLOCK)
        try:
            loop = running_loop()
            if loop is None:
                import trio

                await trio.lowlevel.wait_readable(pipe)
            else:
                is_closed = asyncio.Event()
                loop.add_reader(pipe, is_closed.set)
                await is_closed.wait()
                loop.remove_reader(pipe)
        finally:
            os.close(pipe)
    return prompt


async def with_safe_points(folder: Path, prompt: Any, rollout: Any) -> Any:
    begin(folder, prompt, rollout)
    rollout.mark(1)
    while not (folder / "enough").exists():
        await rollout.safe_point()
        await anyio.sleep(0.001)
    rollout.mark(2)
    return prompt


async def frozen(prompt: Any, rollout: Any) -> Any:
    rollout.frozen()
    return prompt


async def for_ever(prompt: Any, rollout: Any) -> Any:
    await anyio.sleep_forever()


async def quick(prompt: Any, rollout: Any) -> Any:
    await anyio.lowlevel.checkpoint()
    return prompt


async def unpicklable(prompt: Any, rollout: Any) -> Any:
    return lambda: prompt


class Opened:
    """It can be pickled, and not unpickled."""

    def __reduce__(self) -> Any:
        return partial(int, "no number"), ()


async def not_unpicklable(prompt: Any, rollout: Any) -> Any:
    return Opened()


async def large(prompt: Any, rollout: Any) -> Any:
    return np.full((200, 1000), prompt * 10 + rollout.index, np.float64)


async def through(fifo: str, prompt: Any, rollout: Any) -> Any:
    """Report to a pipe that a call has ended, in the middle of whatever the trainer does."""
    await anyio.lowlevel.checkpoint()
    pipe = os.open(fifo, os.O_WRONLY)
    os.write(pipe, b"x")
    os.close(pipe)
    return prompt
