"""One run through a source, with all of its epochs, as a source of one epoch.

What goes on for several epochs of a `pipeline` begins anew in each. A stream that is made by hand
does not: batches and shuffles know no borders between the epochs of its source, which may even be
those of a mixture, and have none. So to the nodes the whole run is one epoch, and the epoch of an
item is kept in its index, from which it is taken before anybody sees it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, Self, TypeVar

from aioqueue.inputs.sources.base import Entry, Placed, Source
from aioqueue.inputs.sources.positions import Place
from aioqueue.inputs.sources.sequences import Sequential

__all__ = ("WholeRun", "as_in_source", "whole_run")

T = TypeVar("T")

_BITS: Final = 128
"""How large the index of an item may be, as its generator takes it."""
_INDEX: Final = 2**_BITS - 1


class WholeRun(Source[T]):
    """A source whose epoch 0 is a run through another one. See `whole_run`, which makes it."""

    def __init__(self, source: Source[T]) -> None:
        super().__init__(source.name, source.seed)
        self.blocking = source.blocking
        self.is_repeatable = source.is_repeatable
        self._ahead = source._ahead
        self._source = source

    def __repr__(self) -> str:
        return repr(self._source)

    @property
    def is_in_memory(self) -> bool:
        return self._source.is_in_memory

    def entries(self) -> Iterator[Entry[T]]:
        return map(_as_one_epoch, self._source.entries())

    def placed_epoch(self, epoch: int, after: Place = None) -> Iterator[Placed[T]]:
        for entry, place in self._source.placed_after(after):
            yield Placed(_as_one_epoch(entry), place)

    def picked(self, epoch: int, places: Sequence[int]) -> Iterator[Entry[T]] | None:
        source = self._source
        return _picked(source, places) if isinstance(source, Sequential) else None

    def ends_behind(self, items: int) -> bool:
        """Whether a run that has ended after so many items ends there, as far as that is known."""
        return not self._source.is_endless

    def fingerprint(self) -> dict[str, Any]:
        return {"kind": "run", "source": self._source.fingerprint()}

    def _with_seeds_of(self, fingerprint: Any) -> Self:
        theirs = fingerprint.get("source") if isinstance(fingerprint, Mapping) else None
        return type(self)(self._source._with_seeds_of(theirs))


class _SizedRun(WholeRun[T]):
    """One whose length is known."""

    def items_per_epoch(self) -> int:
        """How many items the run has."""
        source: Any = self._source
        return len(source)

    def ends_behind(self, items: int) -> bool:
        return self.items_per_epoch() == items


def whole_run(source: Source[T]) -> WholeRun[T]:
    """One run through a source as a source of one epoch; `as_in_source` undoes it, by entries."""
    given: Any = source
    if source.is_endless:
        return WholeRun(source)
    try:
        len(given)
    except TypeError:
        return WholeRun(source)
    return _SizedRun(source)


def as_in_source(entry: Entry[T]) -> Entry[T]:
    """An entry as the source itself has it."""
    value, _, index = entry
    return Entry(value, index >> _BITS, index & _INDEX)


def _as_one_epoch(entry: Entry[T]) -> Entry[T]:
    value, epoch, index = entry
    return Entry(value, 0, epoch << _BITS | index)


def _picked(source: Sequential[T], places: Sequence[int]) -> Iterator[Entry[T]]:
    size = source.items_per_epoch()
    for epoch, found in groupby(places, lambda place: place // size):
        yield from map(_as_one_epoch, source.picked(epoch, [place % size for place in found]))
