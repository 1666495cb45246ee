"""How long a processor has worked on a coroutine, without the time in which it waits."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from time import thread_time
from typing import Any, Generic, TypeVar

__all__ = ("Clocked",)

T = TypeVar("T")


class Clocked(Generic[T]):
    """A coroutine, for ``await``, each step of which is measured: what its event loop does between
    them is not counted. Everything else is as if it was awaited itself, in every event loop.

    Args:
        coroutine: what is awaited, once.

    Attributes:
        cpu: processor seconds so far.
    """

    __slots__ = ("_coroutine", "cpu")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine  # which `aioqueue.telemetry.stacks` looks for
        self.cpu = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        return self  # an iterator with all of their methods

    def __iter__(self) -> Clocked[T]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """The next step; its loop sends what it waited for."""
        began = thread_time()
        try:
            return self._coroutine.send(value)
        finally:
            self.cpu += thread_time() - began

    def throw(self, *raised: Any) -> Any:
        """The next step, to which its loop raises something: as for a cancellation."""
        began = thread_time()
        try:
            return self._coroutine.throw(*raised)
        finally:
            self.cpu += thread_time() - began

    def close(self) -> None:
        """It is not going to be awaited to its end."""
        self._coroutine.close()
