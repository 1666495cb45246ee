"""The ``with`` blocks that a thread is in while it builds a graph, name scopes left out."""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

__all__ = ("Blocks",)

OpT = TypeVar("OpT", bound=Hashable)
BodyT = TypeVar("BodyT")


class _Controller(Generic[OpT]):
    """One ``with control_dependencies(...)``: its operations, and who depends on them already."""

    __slots__ = ("clears", "operations", "seen")

    def __init__(self, operations: Collection[OpT] | None) -> None:
        self.clears = operations is None
        self.operations = tuple(operations or ())
        self.seen: set[OpT] = set()


class Blocks(threading.local, Generic[OpT, BodyT]):
    """What applies to new operations: their control dependencies, function body and container.

    Each thread has blocks of its own.
    """

    def __init__(self, beginning: list[_Controller[OpT]]) -> None:
        self.body: BodyT | None = None
        self.container = ""
        self.controllers = list(beginning)

    @contextmanager
    def after(self, operations: Collection[OpT] | None) -> Iterator[None]:
        """Operations made within the block run after these; None frees them of those around."""
        controller = _Controller(operations)
        around = [] if controller.clears else self.controllers
        with self._replaced("controllers", [*around, controller]):
            yield

    @contextmanager
    def inside(self, body: BodyT | None) -> Iterator[None]:
        """Operations made within the block are part of `body`, free of order from outside."""
        with self._replaced("body", body), self._replaced("controllers", []):
            yield

    @contextmanager
    def within(self, container: str) -> Iterator[None]:
        """Operations made within the block keep what outlives a run in this container."""
        with self._replaced("container", container):
            yield

    def controls(self, makers: Collection[OpT]) -> list[OpT]:
        """What must come before a new operation, less what its inputs imply."""
        found: dict[OpT, None] = {}
        for controller in self.controllers:
            if controller.seen.isdisjoint(makers):
                found.update(
                    dict.fromkeys(one for one in controller.operations if one not in makers)
                )
        return list(found)

    def note(self, made: OpT) -> None:
        """A new operation comes after all that it has to come after."""
        for controller in self.controllers:
            controller.seen.add(made)

    @contextmanager
    def _replaced(self, attribute: str, value: Any) -> Iterator[None]:
        before = getattr(self, attribute)
        setattr(self, attribute, value)
        try:
            yield
        finally:
            setattr(self, attribute, before)
