"""What is used when nothing is named: stacks of defaults, one per thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

__all__ = ("DefaultStack", "default_graphs", "default_sessions", "session_for")

T = TypeVar("T")


class DefaultStack(threading.local, Generic[T]):
    """The things that ``with thing.as_default():`` has made the default in the calling thread.

    A new thread starts with none, whatever the thread that started it had.
    """

    def __init__(self) -> None:
        self._stack: list[T] = []

    def top(self) -> T | None:
        """The innermost default, or None."""
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


default_graphs: DefaultStack[Any] = DefaultStack()
"""Graphs: here, so that a graph can make itself the default."""

default_sessions: DefaultStack[Any] = DefaultStack()
"""Sessions: here, so that `Tensor.eval` finds one without knowing what a session is."""


def session_for(session: Any, graph: object, doing: str, method: str, whose: str) -> Any:
    """The session given, or else the default one, if it is one of this graph."""
    if session is not None:
        if session.graph is not graph:
            raise ValueError(
                f"Cannot use the given session to {doing}: {whose} is different from the session's "
                "graph."
            )
        return session
    session = default_sessions.top()
    if session is None:
        colon = ":" if method == "run" else ""
        raise ValueError(
            f"Cannot {doing} using `{method}()`: No default session is registered. Use `with "
            f"sess.as_default(){colon}` or pass an explicit session to `{method}(session=sess)`"
        )
    if session.graph is not graph:
        raise ValueError(
            f"Cannot use the default session to {doing}: {whose} is different from the session's "
            f"graph. Pass an explicit session to `{method}(session=sess)`."
        )
    return session
