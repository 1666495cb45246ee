"""Copiers whose copies end when a test says so, for tests of what goes on until then."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aioqueue.inputs.devices.base import Copied, Copier, mapped
from aioqueue.inputs.devices.ring import HostMemory, Slot

__all__ = ("LateCopier", "LateTarget")


class _Copy:
    """One copy: it reads when it is told to finish."""

    def __init__(self, copier: LateCopier, batch: Any) -> None:
        self._copier = copier
        self._batch = batch
        self._has_ended = threading.Event()
        self.found: Any = None

    def finish(self) -> None:
        self.found = mapped(lambda leaf: np.array(leaf).tolist(), self._batch)
        self._has_ended.set()

    def wait(self) -> None:
        self._copier.waiting.append(self)
        self._has_ended.wait()


class LateCopier(Copier):
    """Copies as a device does that has a mind of its own.

    Attributes:
        copies: those that were begun.
        waiting: those that somebody waits for, or has.
        allocations: how much memory was asked for, each time.
        outside: how many arrays came that were not made in the ring.
    """

    slots = 2

    def __init__(self) -> None:
        self.copies: list[_Copy] = []
        self.waiting: list[_Copy] = []
        self.allocations: list[int] = []
        self.outside = 0

    def memory(self, nbytes: int) -> HostMemory:
        self.allocations.append(nbytes)
        return super().memory(nbytes)

    def copied(self, batch: Any, slot: Slot) -> Copied:
        def look(leaf: Any) -> None:
            self.outside += slot.memory_of(leaf) is None

        mapped(look, batch)
        copy = _Copy(self, batch)
        self.copies.append(copy)
        return Copied(len(self.copies), copy.wait)


@dataclass(frozen=True)
class LateTarget:
    """Where a `LateCopier` copies to."""

    name: str = "late"
    copier: LateCopier = field(default_factory=LateCopier)

    def open(self) -> Copier:
        return self.copier
