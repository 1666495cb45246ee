"""A collector for Prometheus that several monitors, or batchers, share in one registry."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final
from weakref import WeakKeyDictionary

from aioqueue.telemetry.export.numbering import LOCK, Exported, with_number


class SharedCollector(ABC):
    """A collector that shares its metrics with others of its class in a registry.

    Prometheus wants all lines of a metric together, and its registries refuse a second collector
    with the same names. So the first of them has the names, and shows what all of them show. Which
    registry asks, only its frame on the stack tells: it passes no argument.
    """

    def __init__(self) -> None:
        self._numbers: WeakKeyDictionary[Any, list[Exported]] = WeakKeyDictionary()

    @abstractmethod
    def _exported(self) -> list[Exported]:
        """Return what it shows, each with its labels."""

    @abstractmethod
    def _families(self, numbers: list[int]) -> Iterator[Any]:
        """Yield the metric families. They are the same ones each time.

        Args:
            numbers: the number of each of `_exported`; 0 for those that are not shown any more.
        """

    def describe(self) -> Iterator[Any]:
        """Return the names of the metrics without reading any; the registry calls this."""
        registry = _calling_registry()
        # A registry refuses a collector that describes names it has. So only the first one does.
        if not any(one is not self for one in self._peers(registry)):
            yield from self._families([0] * len(self._exported()))
        if registry is not None:
            self._with_numbers(registry)

    def collect(self) -> Iterator[Any]:
        """Return the metric families; the registry calls this at every scrape."""
        registry = _calling_registry()
        peers = self._peers(registry)
        if self not in peers:  # called without a registry, which has no others
            yield from self._families([1] * len(self._exported()))
            return
        if peers[0] is not self:
            return  # the first one yields the metrics of all, each name once
        with LOCK:
            shown = [(peer, peer._with_numbers(registry)) for peer in peers]
        keys = [(one.labels, one.number) for _, ones in shown for one in ones]
        merged: list[Any] = []
        position = 0
        for peer, ones in shown:
            numbers = []
            for one in ones:
                position += 1
                # A monitor that began after this one ended has its number: two lines with the same
                # labels would make the whole page invalid, so only the later one is shown.
                numbers.append(0 if (one.labels, one.number) in keys[position:] else one.number)
            families = list(peer._families(numbers))
            if not merged:
                merged = families
            else:
                for family, more in zip(merged, families, strict=True):
                    family.samples += more.samples
        yield from merged

    def _peers(self, registry: Any) -> list[Any]:
        """Return the collectors of this class that are registered there, in that order."""
        registered = list(getattr(registry, "_collector_to_names", ()))
        return [one for one in registered if type(one) is type(self)]

    def _with_numbers(self, registry: Any) -> list[Exported]:
        """Return what it shows with its numbers in a registry; the first call chooses them."""
        with LOCK:
            if registry not in self._numbers:
                others = [
                    shown
                    for peer in self._peers(registry)
                    if peer is not self
                    for shown in peer._numbers.get(registry, ())
                ]
                found: list[Exported] = []
                for one in self._exported():
                    found.append(with_number(one, [*others, *found]))
                self._numbers[registry] = found
            return self._numbers[registry]


def _calling_registry() -> Any:
    """Return the registry of Prometheus that has made the call; ``None`` if none has."""
    from prometheus_client import registry

    restricted = getattr(registry, "RestrictedRegistry", ())
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        caller = frame.f_locals.get("self")
        if isinstance(caller, restricted):
            return caller._registry
        if isinstance(caller, registry.CollectorRegistry):
            return caller
        frame = frame.f_back
    return None


_MOST_FRAMES: Final = 4
"""How many frames above a call to look at."""
