"""Copiers whose copies end when a test says so, for tests of what goes on until then."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from aioqueue.core.elements.trees import mapped
from aioqueue.pipeline.batches.devices import Copied, DeviceCopier, HostMemory, Slot, numbers_of

__all__ = ("LateCopier", "LateTarget")


class _Copy:
    """One copy: it reads when it is to finish."""

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


class LateCopier(DeviceCopier):
    """Copies as a device does that has a mind of its own.

    Args:
        is_prompt: whether copies end at once all the same.
        slots: how many batches it holds on the host.

    Attributes:
        copies: those that were begun.
        waiting: those that somebody waits for, or has.
        allocations: how much memory was asked for, each time.
        outside: how many arrays came that were not made in the ring.
    """

    def __init__(self, is_prompt: bool = False, slots: int = 2) -> None:
        self.slots = slots  # type: ignore[misc]  # of the class, where it is always the same
        self.is_prompt = is_prompt
        self.copies: list[_Copy] = []
        self.waiting: list[_Copy] = []
        self.allocations: list[int] = []
        self.outside = 0

    def memory(self, nbytes: int) -> HostMemory:
        self.allocations.append(nbytes)
        return super().memory(nbytes)

    def copied(self, batch: Any, slot: Slot) -> Copied:
        def sample(leaf: Any) -> None:
            numbers = numbers_of(leaf)
            self.outside += numbers is None or slot.memory_of(numbers) is None

        mapped(sample, batch)
        copy = _Copy(self, batch)
        self.copies.append(copy)
        if self.is_prompt:
            copy.finish()
        return Copied(len(self.copies), copy.wait)


@dataclass(frozen=True)
class LateTarget:
    """Where a `LateCopier` copies to."""

    copier: LateCopier
    name: str = "late"

    def open(self) -> DeviceCopier:
        return self.copier
