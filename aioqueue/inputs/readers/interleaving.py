"""The records of several files at a time, one of each in turn.

A place has the place in each open file, and that in the paths behind the last file that was opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Self, TypeVar, cast

from aioqueue.inputs.core.items import Entry, PlacedEntry, closing_run
from aioqueue.inputs.core.positions import Place
from aioqueue.inputs.sources.source import Source

__all__ = ("Interleaved",)

T = TypeVar("T")


class _Slot:
    """A file that is open, one of several.

    Args:
        place: within it; or just before it, where nothing of it was taken.
        runs: what it has behind that.
    """

    __slots__ = ("_runs", "place", "run")

    def __init__(self, place: Place, runs: Iterator[Any]) -> None:
        self.place = place
        self._runs = runs
        self.run = chain.from_iterable(run.placed() for run in runs)
        """Its records."""

    def close(self) -> None:
        """Close the file."""
        cast(Any, self._runs).close()  # a generator


class Interleaved(Source[T]):
    """The source that `Reader.interleave` makes.

    Args:
        reader: a `Reader` of the files.
        files: how many are open at a time.
        block: how many records of a file come in its turn.
    """

    blocking = True

    def __init__(self, reader: Any, files: int, block: int) -> None:
        super().__init__(reader.name, reader.seed)
        self._ahead = reader._ahead
        self._reader = reader
        self._files = files
        self._block = block

    def __repr__(self) -> str:
        return f"<{repr(self._reader).strip('<>')}, {self._files} files at a time>"

    @property
    def _is_shuffled(self) -> bool:
        return bool(self._reader._is_shuffled)

    @property
    def _has_own_order(self) -> bool:
        return bool(self._reader._has_own_order)

    @property
    def _has_drawn_seed(self) -> bool:
        return bool(self._reader._has_drawn_seed)

    @property
    def _inner_sources(self) -> list[Source[Any]]:
        return [self._reader]

    def entries(self) -> Iterator[Entry[T]]:
        return self.epoch_entries(0)

    def epoch_entries(self, epoch: int) -> Iterator[Entry[T]]:
        with closing_run(self._placed_epoch(epoch)) as run:
            for placed in run:
                yield placed.entry

    def placed_after(self, place: Place) -> Iterator[PlacedEntry[T]]:
        return self._placed_epoch(0, place)

    def _placed_epoch(self, epoch: int, after: Place = None) -> Iterator[PlacedEntry[T]]:
        """The records of one epoch behind a place: that in the paths behind the last file which was
        opened, those in the open files, which of these is next, and how much of its block came."""
        before, places, at, taken = after or (None, [None] * self._files, 0, 0)
        paths = self._reader._paths._placed_epoch(epoch, before)
        slots: list[_Slot | None] = []
        try:
            slots += [None if one is None else self._reopened(epoch, one) for one in places]
            empty = 0  # slots in a row for which there is no file
            while empty < len(slots):
                slot = slots[at]
                placed = None if slot is None else next(slot.run, None)
                if slot is not None and placed is not None:
                    empty, taken, slot.place = 0, taken + 1, placed.place
                    if taken == self._block:
                        at, taken = (at + 1) % len(slots), 0
                    places = tuple(one and one.place for one in slots)
                    yield PlacedEntry(placed.entry, (before, places, at, taken))
                    continue
                path = next(paths, None)
                if path is None:
                    slots[at] = None
                    empty, at, taken = empty + 1, (at + 1) % len(slots), 0
                else:
                    slots[at] = self._opened(path, (before, 0, None, 0))
                    before, taken = path.place, 0
        finally:
            for slot in slots:
                if slot is not None:
                    slot.close()

    def _reopened(self, epoch: int, place: Place) -> _Slot:
        """The file that a place is in."""
        return self._opened(next(self._reader._paths._placed_epoch(epoch, place[0])), place)

    def _opened(self, path: PlacedEntry[Any], place: Place) -> _Slot:
        return _Slot(place, self._reader._runs(place, [path]))

    def locate(self, index: int) -> str:
        return str(self._reader.locate(index))

    def fingerprint(self) -> dict[str, Any]:
        return {
            "kind": "interleaved",
            "files": self._files,
            "block": self._block,
            "source": self._reader.fingerprint(),
        }

    def _with_seeds_of(self, fingerprint: Any) -> Self:
        theirs = fingerprint.get("source") if isinstance(fingerprint, Mapping) else None
        return self._of(self._reader._with_seeds_of(theirs))

    def _seeded_by(self, seed: int) -> Self:
        return self._of(self._reader._seeded_by(seed))

    def _of(self, reader: Any) -> Self:
        one = self._with_seed(reader.seed)
        one._reader = reader
        return one
