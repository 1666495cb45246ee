"""What tests of coordinators share."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

import pytest

from aioqueue import sync
from aioqueue.coordination.core import CoordinatorCore
from aioqueue.errors import (
    StillRunningError,
)

Make = Callable[..., Any]


class AwaitedCoordinator:
    """The thread face of a coordinator; its waiting methods block, but are spelled with await."""

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


def waiting_for_stop(coord: Any) -> int:
    """How many wait for the stop, a coordinator's own task not counted."""
    core: CoordinatorCore = coord._core
    return len(core.stopped._waiting)


def has_begun_to_join(coord: Any) -> Callable[[], bool]:
    core: CoordinatorCore = coord._core
    return lambda: bool(core._on_stop)


async def group_of(call: Awaitable[object]) -> ExceptionGroup[Exception]:
    """Await something that raises an `ExceptionGroup`; return that."""
    with pytest.raises(ExceptionGroup) as caught:
        await call
    group: ExceptionGroup[Exception] = caught.value
    return group


def stragglers(group: BaseExceptionGroup[BaseException]) -> list[tuple[str, ...]]:
    """The names in a group of nothing but `StillRunningError`."""
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
