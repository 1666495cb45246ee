"""Numbers that distinguish several monitors with equal labels on one registry, meter or writer.

The first monitor has no number. Each further one gets the smallest that no open monitor has. So a
monitor that begins after another has ended continues under the same labels, and the ended one is no
longer shown (`without_replaced`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from itertools import count
from typing import Any, Final, NamedTuple

from aioqueue.telemetry.verdict.monitored_run import MonitoredRun

LOCK: Final = threading.RLock()
"""Guards what is exported to which meter, registry and writer."""


class Exported(NamedTuple):
    """Something that is exported to a registry, meter or writer."""

    labels: Hashable
    """Its labels. Those with equal ones get different numbers."""
    watched: Any
    """A monitor, or a batcher."""
    has_ended: Callable[[], bool]
    number: int = 1
    """Distinguishes those with equal labels; 1 is not shown."""


def has_ended(watched: MonitoredRun) -> bool:
    """Return whether a monitor has been closed."""
    closed = getattr(watched, "_closed", None)
    return closed is not None and closed.is_set()


def with_number(one: Exported, others: Iterable[Exported]) -> Exported:
    """Return it with the smallest number that no open one with equal labels has."""
    taken = set()
    for other in others:
        if other.labels == one.labels:
            if other.watched == one.watched:  # the same one, exported twice
                return one._replace(number=other.number)
            if not other.has_ended():
                taken.add(other.number)
    return one._replace(number=next(n for n in count(1) if n not in taken))


def without_replaced(one: Exported, others: Iterable[Exported]) -> list[Exported]:
    """Return the others without the ended one whose labels and number this one has now."""
    return [o for o in others if (o.labels, o.number) != (one.labels, one.number)]
