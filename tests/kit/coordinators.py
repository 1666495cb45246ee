"""Helpers for tests of coordinators."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import pytest

from aioqueue import sync
from aioqueue.coordination.coordinator_core import CoordinatorCore
from aioqueue.errors import StillRunningError
from tests.kit.worlds import PATIENCE, core_of, waiting_at

Make = Callable[..., Any]


class AwaitedCoordinator:
    """The blocking face of a coordinator, with its waiting methods as coroutine functions."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.face = sync.Coordinator(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.face, name)

    async def join(self, *arguments: Any, **options: Any) -> None:
        self.face.join(*arguments, **options)

    async def wait_for_stop(self, **options: Any) -> bool:
        return self.face.wait_for_stop(**options)

    async def __aenter__(self) -> AwaitedCoordinator:
        self.face.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self.face.__exit__(kind, error, traceback)


class Thread(threading.Thread):
    """A thread that runs until it is released; then it may still do something."""

    def __init__(self, name: str, last: Callable[[], object] = lambda: None) -> None:
        super().__init__(name=name, daemon=True)
        self.go = threading.Event()
        self.last = last

    def run(self) -> None:
        self.go.wait()
        self.last()

    def release(self) -> None:
        self.go.set()


@contextmanager
def threads() -> Iterator[Callable[..., Thread]]:
    """Start threads that run until they are released, or until the block ends."""
    started: list[Thread] = []

    def start(name: str = "worker", last: Callable[[], object] = lambda: None) -> Thread:
        started.append(Thread(name, last))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.release()
        one.join(PATIENCE)
        assert not one.is_alive()


def waiting_for_stop(coord: Any) -> int:
    """Count the callers that wait for the stop, without the coordinator's own task."""
    return waiting_at(core_of(coord).stopped)


def has_begun_to_join(coord: Any) -> Callable[[], bool]:
    return lambda: joins_waiting(coord) > 0


def joins_waiting(coord: Any) -> int:
    """Count the joins that wait for workers."""
    core: CoordinatorCore = core_of(coord)
    return len(core.waits({}))


class StopCallbacks(list[Callable[[], None]]):
    """The callbacks that a coordinator is to call at its stop."""

    def __init__(self, coord: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        core: CoordinatorCore = core_of(coord)
        call, forget = core.call_on_stop, core.forget_on_stop

        def call_on_stop(callback: Callable[[], None]) -> None:
            self.append(callback)
            call(callback)

        def forget_on_stop(callback: Callable[[], None]) -> None:
            if callback in self:
                self.remove(callback)
            forget(callback)

        monkeypatch.setattr(core, "call_on_stop", call_on_stop)
        monkeypatch.setattr(core, "forget_on_stop", forget_on_stop)


async def group_of(call: Awaitable[object]) -> ExceptionGroup[Exception]:
    """Await something that raises an `ExceptionGroup`; return that."""
    with pytest.raises(ExceptionGroup) as caught:
        await call
    group: ExceptionGroup[Exception] = caught.value
    return group


def stragglers(group: BaseExceptionGroup[BaseException]) -> list[tuple[str, ...]]:
    """Return the names in a group that holds only a `StillRunningError`."""
    assert all(isinstance(error, StillRunningError) for error in group.exceptions)
    return [getattr(error, "workers", ()) for error in group.exceptions]


def notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


def throw(error: Exception) -> None:
    """Raise, so that mypy does not take what follows for unreachable."""
    raise error


def same(found: tuple[BaseException, ...], expected: list[BaseException]) -> bool:
    """Whether these are the very same objects, in the same order."""
    return [id(error) for error in found] == [id(error) for error in expected]
