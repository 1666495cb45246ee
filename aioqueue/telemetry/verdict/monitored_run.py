"""What views and exporters read of a run: the interface of a monitor, or of a stand-in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from aioqueue.telemetry.metrics.snapshots import Snapshot
from aioqueue.telemetry.verdict.bottleneck import Verdict

Judge: TypeAlias = Callable[[Snapshot, Snapshot], Verdict]
"""Returns the verdict on a run between two snapshots."""


class MonitoredRun(Protocol):
    """A watched run: a monitor, or a stand-in."""

    @property
    def history(self) -> Sequence[Snapshot]:
        """Snapshots of the last minutes, one per second, oldest first."""

    def snapshot(self) -> Snapshot: ...

    def verdict(self, seconds: float = ...) -> Verdict:
        """Return the bottleneck of the last seconds."""

    def scalars(self) -> Mapping[str, float]: ...
