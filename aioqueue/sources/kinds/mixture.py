"""Several sources as one: mixtures, in shares given by weights; files interleaved, one record each.

A place in interleaved files has the place in each open file, and that in the paths behind the last
file that was opened.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any, Literal, Self, TypeVar, cast

from aioqueue import InvalidArgumentError
from aioqueue.base.display_text import on_one_line
from aioqueue.core.elements.philox import PhiloxWords, Seed
from aioqueue.items.item import Entry, PlacedEntry
from aioqueue.items.positions import Place, checked_numbers, misplaced
from aioqueue.sources.base import ENTRIES, PLACED, Form, PlacedScan, Scan
from aioqueue.sources.kinds.source import BuiltinSource, Source
from aioqueue.sources.shuffling import bounds_of, checked_weights, derive_seed

T = TypeVar("T")
TakenT = TypeVar("TakenT")


class Mixture(BuiltinSource[T]):
    """Several sources as one. See `mix`, which makes it."""

    _functions = ("mix",)
    _extra = None
    _page = "howto/sources.md"
    _resumes = "exactly"
    _no_ranks = None

    def __init__(
        self,
        sources: Iterable[Source[T]],
        weights: Iterable[float] | None,
        seed: int | None,
        stop: str,
        name: str,
    ) -> None:
        super().__init__(name, seed)
        self._sources = _checked_sources(sources)
        if seed is not None:
            self._sources = _seeded(self._sources, self.seed)
        self._weights = checked_weights(weights, len(self._sources))
        if stop not in ("first", "all"):
            raise InvalidArgumentError(f"stop: got {stop!r}; expected 'first' or 'all'")
        self._stop = stop
        self.blocking: bool = any(source.blocking for source in self._sources)
        self._is_repeatable = all(source._is_repeatable for source in self._sources)
        self._is_once = any(source._is_once for source in self._sources)
        which = all if stop == "first" else any
        self._is_endless = which(source._is_endless for source in self._sources)

    def __repr__(self) -> str:
        details = self._details_of(map(repr, self._sources))
        return on_one_line(f"<aioqueue.inputs.{self.name}{details}>")

    def _details(self) -> str:
        return self._details_of(source._described() for source in self._sources)

    def _details_of(self, described: Iterable[str]) -> str:
        shares = ", ".join(
            f"{weight / sum(self._weights):.3g} of {source}"
            for source, weight in zip(described, self._weights, strict=True)
        )
        return f": {shares}; stop={self._stop!r}, seed={self.seed}"

    def __len__(self) -> int:
        """How many items come, where that is known: if it stops after all of them.

        Raises:
            TypeError: it is not known.
        """
        if self._stop == "first":
            raise TypeError(f"the length of {self!r} is not known: it ends with the first source")
        sources: Any = self._sources
        return sum(map(len, sources))

    def items_per_epoch(self) -> int | None:
        """How many items an epoch has, where all sources say it, and none is left out."""
        counts = [source.items_per_epoch() for source in self._sources]
        known = [count for count in counts if count is not None]
        return sum(known) if self._stop == "all" and len(known) == len(counts) else None

    @property
    def _is_shuffled(self) -> bool:
        return True

    @property
    def _has_own_order(self) -> bool:
        return self._seed_was_drawn or any(source._has_own_order for source in self._sources)

    @property
    def _has_drawn_seed(self) -> bool:
        return self._seed_was_drawn or any(source._has_drawn_seed for source in self._sources)

    @property
    def _inner_sources(self) -> list[Source[Any]]:
        return list(self._sources)

    def _scan(self, epoch: int | None, after: Place) -> Scan[T]:
        return _MixtureScan(self, epoch, after)

    def locate(self, index: int) -> str:
        index, chosen = divmod(index, len(self._sources))
        return self._sources[chosen].locate(index)

    def fingerprint(self) -> dict[str, Any]:
        return {
            "kind": "mixture",
            "seed": self.seed,
            "weights": self._weights,
            "stop": self._stop,
            "sources": [source.fingerprint() for source in self._sources],
        }

    def _with_seeds_of(self, fingerprint: Any) -> Self:
        mixture = copy.copy(super()._with_seeds_of(fingerprint))
        inner = fingerprint.get("sources") if isinstance(fingerprint, Mapping) else None
        if isinstance(inner, Sequence) and len(inner) == len(self._sources):
            pairs = zip(self._sources, inner, strict=True)
            mixture._sources = [source._with_seeds_of(one) for source, one in pairs]
        return mixture

    def _seeded_by(self, seed: int) -> Self:
        mixture = copy.copy(super()._seeded_by(seed))
        mixture._sources = _seeded(self._sources, mixture.seed)
        return mixture

    def _ending(self, place: Place) -> Mixture[T]:
        if not self._is_endless:
            return self
        mixture = copy.copy(self)
        places = self._draws_behind(place)[1]
        pairs = zip(self._sources, places, strict=True)
        mixture._sources = [one._ending(one._beginning if at is None else at) for one, at in pairs]
        mixture._is_endless = False
        return mixture

    def _check_place(self, place: Place) -> None:
        taken, places, ended = place
        checked_numbers(taken)
        for source, one, has_ended in zip(self._sources, places, ended, strict=True):
            if not isinstance(has_ended, bool):
                raise misplaced(f"an end of {has_ended!r}", "bools")
            if one is not None:
                source._check_place(one)

    def _taken_at(self, place: Place) -> int:
        _, places = self._draws_behind(place)
        return sum(source._taken_at(one) for source, one in zip(self._sources, places, strict=True))

    def _draws_behind(self, place: Place) -> tuple[_Draws, list[Place]]:
        """The draws of a run that come behind a place, and the places of the sources there.

        Raises:
            InvalidArgumentError: a source has not ended there, although the place says so.
        """
        if place is None:
            return _Draws(self.seed, self._weights), [one._beginning for one in self._sources]
        taken, places, ended = place
        draws = _Draws(self.seed, self._weights)
        draws.skip(taken)
        for number, (source, one) in enumerate(zip(self._sources, places, strict=True)):
            if ended[number]:
                # With more epochs than the run before had, the source goes on. That run has drawn
                # from the others alone since, so no draws would lead to the same items.
                if next(source.entries_after(one), None) is not None:
                    raise misplaced(
                        f"the end of sources[{number}]", f"{source!r} to have no item there"
                    )
                draws.leave_out(number)
        return draws, list(places)

    def _epoch_draws_behind(self, epoch: int, place: Place) -> tuple[_Draws, list[Place]]:
        """Return the draws behind a place in an epoch, which has draws of its own."""
        taken, places, ended = place or (0, [None] * len(self._sources), ())
        # The seed is the key, and the epoch the upper half of the counter.
        draws = _Draws((self.seed, epoch + 1) if epoch else self.seed, self._weights)
        draws.skip(taken)
        for number, is_over in enumerate(ended):
            if is_over:
                draws.leave_out(number)
        return draws, list(places)


class _MixtureScan(Scan[T]):
    """A scan of a mixture.

    A place has the number of draws, the place in each source, and which of them have ended. An
    index is the one in the source times the number of sources, plus the number of the source: no
    two items share one.
    """

    __slots__ = ("_after", "_epoch", "_mixture")

    def __init__(self, mixture: Mixture[T], epoch: int | None, after: Place) -> None:
        self._mixture = mixture
        self._epoch = epoch
        self._after = after

    def entries(self) -> Iterator[Entry[T]]:
        with ExitStack() as closing:
            draws, places = self._begun()
            runs = self._runs(places, ENTRIES, closing)
            count, epoch = len(runs), self._epoch
            for chosen, (value, own, index) in self._mixed(runs, draws):
                yield Entry(value, own if epoch is None else epoch, index * count + chosen)

    def placed(self) -> Iterator[PlacedEntry[T]]:
        with ExitStack() as closing:
            draws, places = self._begun()
            runs = self._runs(places, PLACED, closing)
            count, epoch = len(runs), self._epoch
            for chosen, ((value, own, index), behind) in self._mixed(runs, draws):
                places[chosen] = behind
                mixed = Entry(value, own if epoch is None else epoch, index * count + chosen)
                yield PlacedEntry(mixed, (draws.taken, tuple(places), draws.ended))

    def _begun(self) -> tuple[_Draws, list[Place]]:
        if self._epoch is None:
            return self._mixture._draws_behind(self._after)
        return self._mixture._epoch_draws_behind(self._epoch, self._after)

    def _runs(self, places: list[Place], form: Form, closing: ExitStack) -> list[Iterator[Any]]:
        runs = []
        for source, place in zip(self._mixture._sources, places, strict=True):
            run: Any = form(source._scan(self._epoch, place))
            closing.callback(getattr(run, "close", bool))
            runs.append(run)
        return runs

    def _mixed(self, runs: list[Iterator[TakenT]], draws: _Draws) -> Iterator[tuple[int, TakenT]]:
        is_first = self._mixture._stop == "first"
        while not draws.are_over:
            chosen = draws.draw()
            taken = next(runs[chosen], None)
            if taken is not None:
                yield chosen, taken
            elif is_first:
                return
            else:
                # The draw is lost, and counts: a place behind it has the same number of draws.
                draws.leave_out(chosen)


class _Draws:
    """Which source is next, again and again."""

    def __init__(self, seed: Seed, weights: list[float]) -> None:
        self._words = PhiloxWords(seed)
        self._weights = list(weights)
        self._bounds = bounds_of(weights)
        self.taken = 0
        """How many there were."""
        self.ended: tuple[bool, ...] = (False,) * len(weights)
        """Which sources are drawn no more."""

    @property
    def are_over(self) -> bool:
        return not self._bounds

    def draw(self) -> int:
        self.taken += 1
        return bisect_right(self._bounds, self._words.take(1)[0])

    def skip(self, count: int) -> None:
        """Skip this many draws, in constant time."""
        self._words.skip(count)
        self.taken += count

    def leave_out(self, number: int) -> None:
        """Stop drawing one of the sources."""
        self._weights[number] = 0
        self._bounds = bounds_of(self._weights)
        self.ended = tuple(not weight for weight in self._weights)


def mix(
    sources: Iterable[Source[T]],
    weights: Iterable[float] | None = None,
    seed: int | None = None,
    *,
    stop: Literal["first", "all"] = "all",
    name: str = "mix",
) -> Mixture[T]:
    """A weighted mixture of sources: each item is the next one of a source drawn at random.

    Args:
        sources: what to mix; each keeps its own order.
        weights: one for each source, > 0, in any unit; ``None`` for equal ones.
        seed: for the draws, and for the generators of the items; ``None`` takes fresh entropy,
            once. The same seed gives the same mixture, on every platform: sources that have no
            seed take theirs from it.
        stop: ``"all"`` continues with the others when one source has ended, in their shares, so
            that nothing is left out. ``"first"`` ends when an item of an ended source would
            be next, so that the shares hold to the end.
        name: what messages and worker names call the mixture.

    Returns:
        A source. If one of its sources reads files, async iteration reads ahead on a thread.

    Raises:
        InvalidArgumentError: an argument is wrong.
    """
    return Mixture(sources, weights, seed, stop, name)


def _seeded(sources: list[Source[Any]], seed: int) -> list[Source[Any]]:
    """Give each source that has no seed a different one, derived from the given seed."""
    return [source._seeded_by(derive_seed(seed, at)) for at, source in enumerate(sources, 1)]


def _checked_sources(sources: Any) -> list[Source[Any]]:
    # One source is iterable too, and may well be endless.
    is_several = isinstance(sources, Iterable) and not isinstance(sources, Source)
    found = list(sources) if is_several else []
    for source in found or [sources]:
        if not found or not isinstance(source, Source):
            raise InvalidArgumentError(
                f"sources: got {source!r}; expected several sources, in a list: items(...) makes"
                " one of anything that has len() and [index]"
            )
    return found


class _OpenFile:
    """A file that is open, one of several.

    Args:
        place: within it; or just before it, where nothing of it was taken.
        blocks: what it has behind that.
    """

    __slots__ = ("_blocks", "place", "run")

    def __init__(self, place: Place, blocks: Iterator[Any]) -> None:
        self.place = place
        self._blocks = blocks
        self.run = chain.from_iterable(map(PLACED, blocks))
        """Its records."""

    def close(self) -> None:
        cast(Any, self._blocks).close()  # a generator


class Interleaved(BuiltinSource[T]):
    """The source that `Reader.interleave` makes.

    Args:
        reader: a `Reader` of the files.
        files: how many are open at a time.
        block: how many records of a file come in its turn.
    """

    _functions = ("Reader.interleave",)
    _extra = None
    _page = "howto/sources.md"
    _resumes = "exactly"
    _no_ranks = None

    blocking = True

    def __init__(self, reader: Any, files: int, block: int) -> None:
        super().__init__(reader.name, reader.seed)
        self._ahead = reader._ahead
        self._reader = reader
        self._files = files
        self._block = block

    def __repr__(self) -> str:
        return f"<{repr(self._reader).strip('<>')}, {self._files} files at a time>"

    def _details(self) -> str:
        return f"{self._reader._details()}, {self._files} files at a time"

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

    def _scan(self, epoch: int | None, after: Place) -> Scan[T]:
        return PlacedScan(partial(self._read, epoch or 0, after))

    def _read(self, epoch: int, after: Place) -> Iterator[PlacedEntry[T]]:
        """The records of one epoch behind a place: that in the paths behind the last file which was
        opened, those in the open files, which of these is next, and how much of its block came."""
        before, places, at, taken = after or (None, [None] * self._files, 0, 0)
        paths = self._reader._paths._scan(epoch, before).placed()
        slots: list[_OpenFile | None] = []
        try:
            slots += [None if one is None else self._reopened(epoch, one) for one in places]
            # A turn takes `block` records of one slot. A file that ends within its turn gives the
            # slot to the next path, which begins a turn of its own. Only when all slots in a row
            # have got no path, all files are read.
            empty = 0
            while empty < len(slots):
                slot = slots[at]
                placed = None if slot is None else next(slot.run, None)
                if slot is not None and placed is not None:
                    empty, taken, slot.place = 0, taken + 1, placed.place
                    if taken == self._block:
                        at, taken = (at + 1) % len(slots), 0
                    # A new tuple each time: the holder of an earlier place may still save it.
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

    def _check_place(self, place: Place) -> None:
        before, places, at, taken = place
        checked_numbers(at, taken)
        if len(places) != self._files or at >= self._files:
            raise misplaced(f"{len(places)} open files, with {at} next", f"{self._files}")
        for one in places:
            if one is not None:
                self._reader._check_place(one)
        if before is not None:
            self._reader._paths._check_place(before)

    def _reopened(self, epoch: int, place: Place) -> _OpenFile:
        """Return the file that contains a place."""
        return self._opened(next(self._reader._paths._scan(epoch, place[0]).placed()), place)

    def _opened(self, path: PlacedEntry[Any], place: Place) -> _OpenFile:
        return _OpenFile(place, self._reader._blocks(place, [path]))

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
        inner = fingerprint.get("source") if isinstance(fingerprint, Mapping) else None
        return self._of(self._reader._with_seeds_of(inner))

    def _seeded_by(self, seed: int) -> Self:
        return self._of(self._reader._seeded_by(seed))

    def _of(self, reader: Any) -> Self:
        one = self._with_seed(reader.seed)
        one._reader = reader
        return one
