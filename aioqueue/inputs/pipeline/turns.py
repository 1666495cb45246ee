"""Who takes from a run takes turns."""

from __future__ import annotations

import threading
from functools import cached_property

import anyio

__all__ = ("Turns",)


class Turns:
    """Who takes from a run takes turns, whatever part of it that is."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    @cached_property
    def aio(self) -> anyio.Lock:
        """The same for tasks."""
        return anyio.Lock()
