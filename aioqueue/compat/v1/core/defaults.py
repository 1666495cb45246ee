"""What is used when nothing is named: stacks of defaults, one per thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

__all__ = ("DefaultStack", "default_sessions")

T = TypeVar("T")


class DefaultStack(threading.local, Generic[T]):
    """The things that ``with thing.as_default():`` has made the default in the calling thread.

    A new thread starts with none, whatever the thread that started it had.
    """

    def __init__(self) -> None:
        self._stack: list[T] = []

    def top(self) -> T | None:
        """The innermost default; None if there is none."""
        return self._stack[-1] if self._stack else None

    def __len__(self) -> int:
        return len(self._stack)

    def push(self, thing: T) -> None:
        """Make `thing` the default until it is removed."""
        self._stack.append(thing)

    def remove(self, thing: T) -> None:
        """Take `thing`'s innermost place away, wherever it is."""
        for index in reversed(range(len(self._stack))):
            if self._stack[index] is thing:
                del self._stack[index]
                return

    @contextmanager
    def using(self, thing: T) -> Iterator[T]:
        """`thing` is the default within the block."""
        self.push(thing)
        try:
            yield thing
        finally:
            self.remove(thing)


default_sessions: DefaultStack[Any] = DefaultStack()
"""Sessions: here, so that `Tensor.eval` finds one without knowing what a session is."""
