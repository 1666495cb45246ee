"""What is left of an epoch that other ranks have begun, in the common order of all ranks.

It is dealt out like an epoch of its own: first the items that were passed over, then all that come
behind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain, count
from typing import Any, Final, NamedTuple, TypeVar

from aioqueue.inputs.sources.base import Placed, Source, closing_run
from aioqueue.inputs.sources.positions import Place

__all__ = ("WHOLE", "Rest")

T = TypeVar("T")


class Rest(NamedTuple):
    """What is left of an epoch."""

    missing: Sequence[int] = ()
    """The places in the common order of those that were passed over, ascending."""
    upto: int | None = 0
    """From this place on all are left; ``None`` if none is."""
    begin: tuple[int, Place] = (0, None)
    """Where to begin to read: behind so many items of the common order, and the place there."""

    def within(self, items: int) -> Rest:
        """The same of an epoch with so many items, of which the last round may have had copies."""
        missing = self.missing[: bisect_left(self.missing, items)]
        return self._replace(missing=missing, upto=items if self.upto is None else self.upto)

    def count(self, items: int) -> int:
        """How many are left of so many items."""
        behind = 0 if self.upto is None else max(0, items - self.upto)
        return bisect_left(self.missing, items) + behind

    def place_of(self, number: int) -> int | None:
        """The place in the common order of the one with this number among those that are left."""
        behind = number - len(self.missing)
        if behind < 0:
            return self.missing[number]
        return None if self.upto is None else self.upto + behind

    def picked(self, source: Source[Any], epoch: int, done: int) -> Iterator[Placed[Any]]:
        """The items behind so many of them, of a source of which single items can be had."""
        items = source.items_per_epoch()
        assert items is not None  # which all of them say
        rest = self.within(items)
        found = source.picked(epoch, rest.missing[done:])
        assert found is not None
        assert rest.upto is not None
        behind = min(items, rest.upto + max(0, done - len(rest.missing)))
        run = source.placed_epoch(epoch, behind)
        entries = chain(found, (placed.entry for placed in run))
        return map(Placed, entries, count(done + 1))

    def read(self, source: Source[Any], epoch: int, after: Place) -> Iterator[Placed[Any]]:
        """The items behind a place, of any source.

        Args:
            source: of all of them.
            epoch: which.
            after: a place that an earlier one of these came with: behind so many items of the
                common order, and the place there; ``None`` for the beginning of the rest.
        """
        taken, place = self.begin if after is None else after
        missing, upto = frozenset(self.missing), self.upto
        end = None if upto is not None else (self.missing[-1] + 1 if self.missing else 0)
        if end is not None and taken >= end:
            return
        with closing_run(source.placed_epoch(epoch, place)) as run:
            for number, (entry, behind) in enumerate(run, taken):
                if number in missing or (upto is not None and number >= upto):
                    yield Placed(entry, (number + 1, behind))
                if number + 1 == end:
                    return


WHOLE: Final = Rest()
"""All of an epoch is left."""
