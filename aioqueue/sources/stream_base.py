"""`BaseStream`: what `prepare` and the batchers need of a stream that is their source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any


class BaseStream(ABC):
    """A stream of either face. Workers take from the face that suits them."""

    @abstractmethod
    def _takers(self) -> tuple[Callable[[], Any], Callable[[], Awaitable[Any]]]:
        """The functions that take the next batch, for a thread and for a task.

        Both raise `OutOfRangeError` at the end, with the failure as its cause if there was one.
        """
