"""Simulates reading a collection without the global interpreter lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TypeVar

__all__ = ("Growing",)

T = TypeVar("T")


class Growing(deque[T]):
    """A deque that grows whenever it is iterated over, as if another thread appended to it.

    To go through it therefore raises `RuntimeError`. A copy by its own method is one step.
    """

    def __iter__(self) -> Iterator[T]:
        for one in super().__iter__():
            yield one
            self.append(one)

    def copy(self) -> deque[T]:  # type: ignore[override]  # what is copied grows no more
        return deque(super().__iter__(), self.maxlen)
