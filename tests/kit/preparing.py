"""What the tests of `prepare` share: how to run one, and how to look at what failed."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.workers.runner import AsyncPrepareRunner, PrepareRunner, prepare
from tests.kit.worlds import PATIENCE, ThreadWorld, World

Runner = AsyncPrepareRunner | PrepareRunner


class Gate:
    """A function that keeps some items until it is opened."""

    def __init__(self, *kept: Any) -> None:
        self.kept = kept
        self.opened = threading.Event()
        self.came: list[Any] = []

    def __call__(self, item: Any) -> Any:
        self.came.append(item)
        if item in self.kept:
            assert self.opened.wait(PATIENCE)
        return item


def fitting(function: Callable[..., Any], where: str) -> Callable[..., Any]:
    """The same for tasks: in another thread, so that it may take its time."""
    if where != "task":
        return function

    async def call(item: Any) -> Any:
        return await anyio.to_thread.run_sync(function, item)

    return call


async def prepared(
    world: World,
    source: Any,
    function: Callable[..., Any],
    queue: Any = None,
    runners: list[Runner] | None = None,
    **options: Any,
) -> list[Any]:
    """Run a pipeline to its end; returns what came out, in order.

    Args:
        world: where the consumer is.
        source: as for `prepare`, and so are the options.
        function: the same.
        queue: one of the world; one of objects if ``None``.
        runners: to which the runner is added.
        options: of `prepare`.
    """
    queue = world.fifo(8) if queue is None else queue
    runners = [] if runners is None else runners
    if isinstance(world, ThreadWorld):
        runners.append(prepare(source, function, into=queue.face, **options))
        with sync.Coordinator() as coord:
            coord.start(runners[-1])  # type: ignore[arg-type]
            return list(queue.face)
    runners.append(prepare(source, function, into=queue, **options))
    async with aioqueue.Coordinator() as async_coord:
        async_coord.start(runners[-1])  # type: ignore[arg-type]
        return [example async for example in queue]
    raise AssertionError


def drained(queue: sync.FIFOQueue, runner: PrepareRunner) -> list[Any]:
    """Run a pipeline of threads to its end; returns what came out, in order."""
    with sync.Coordinator() as coord:
        coord.start(runner)
        return list(queue)
    raise AssertionError


def failures_of(group: BaseExceptionGroup[Any]) -> list[str]:
    """The failures in a group, each with its notes, on one line."""
    return [
        " | ".join([repr(error), *getattr(error, "__notes__", ())]) for error in group.exceptions
    ]


def in_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same as a coroutine function, which lets other tasks run first."""

    async def call(item: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        return function(item)

    return call


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have threads in the place of interpreters, so that what is around them runs on any Python."""
    monkeypatch.setattr(
        "concurrent.futures.InterpreterPoolExecutor",
        concurrent.futures.ThreadPoolExecutor,
        raising=False,
    )
