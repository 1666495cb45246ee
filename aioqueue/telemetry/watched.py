"""What looks at a run, and what sends its numbers on, asks for this, and for no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from aioqueue.telemetry.numbers import Snapshot
from aioqueue.telemetry.verdicts import Verdict

__all__ = ("Judge", "Watched")

Judge: TypeAlias = Callable[[Snapshot, Snapshot], Verdict]
"""Says what limited a run between two snapshots."""


class Watched(Protocol):
    """A run that is watched: a monitor, or what stands for one."""

    @property
    def history(self) -> Sequence[Snapshot]:
        """Snapshots of the last minutes, one per second, oldest first."""

    def snapshot(self) -> Snapshot:
        """The numbers of now."""

    def verdict(self, seconds: float = ...) -> Verdict:
        """What limited the run in the last seconds."""

    def scalars(self) -> Mapping[str, float]:
        """The same in short, as floats by name."""
