"""The part of a source that one rank goes through in one epoch.

Data-parallel ranks cut one common order, place by place: rank r of n has the places r, r + n and so
on, so step k of all ranks together is step k of one larger batch. Where the number of items does
not divide, the ranks are made equal: by dropping what is left over, or by letting the first items
of the last round come again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args

from aioqueue import InvalidArgumentError
from aioqueue.checks import checked_count
from aioqueue.inputs.sources.base import Entry, Placed, Source, closing_run
from aioqueue.inputs.sources.item import Origin, Traced, traced
from aioqueue.inputs.sources.positions import Place
from aioqueue.inputs.sources.read_ahead import ReadAhead

__all__ = ("EpochEntries", "Rank", "Start", "TracedEntries", "Uneven", "aclosed")

T = TypeVar("T")

Uneven = Literal["pad", "drop", "allow"]
_UNEVEN: Final = get_args(Uneven)


class Rank(NamedTuple):
    """Which part of a source is gone through."""

    rank: int = 0
    ranks: int = 1
    uneven: Uneven = "allow"

    @classmethod
    def checked(cls, rank: Any, ranks: Any, uneven: Any) -> Rank:
        """Check what a user has said.

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        ranks = checked_count(ranks, "ranks", least=1)
        rank = checked_count(rank, "rank")
        if rank >= ranks:
            raise InvalidArgumentError(
                f"rank: got {rank}; expected less than the number of ranks, {ranks}"
            )
        if uneven not in _UNEVEN:
            raise InvalidArgumentError(f"uneven: got {uneven!r}; expected one of {_UNEVEN}")
        return cls(rank, ranks, uneven)

    def share(self, items: int) -> int:
        """How many of so many items are this rank's."""
        if self.uneven == "drop":
            return items // self.ranks
        if self.uneven == "pad":
            return -(-items // self.ranks)
        return len(range(self.rank, items, self.ranks))


class Start(NamedTuple):
    """Where a run through an epoch can begin: behind so many items of the rank."""

    number: int = 0
    place: Place = None
    """In the common order of the ranks."""


_BEGINNING: Final = Start()


class EpochEntries:
    """The entries that one rank has in an epoch.

    Args:
        source: of all ranks.
        rank: which part of it.
    """

    def __init__(self, source: Source[Any], rank: Rank) -> None:
        self.source = source
        self.rank = rank
        self.blocking = source.blocking
        is_sized = rank.ranks == 1 or hasattr(source, "items_per_epoch")
        self.is_addressed = is_sized and source.picked(0, ()) is not None
        """Whether single items can be had, and any place be begun at, without reading others."""

    def length(self) -> int | None:
        """How many items an epoch has on this rank; ``None`` where that is not known."""
        items_per_epoch = getattr(self.source, "items_per_epoch", None)
        return None if items_per_epoch is None else self.rank.share(items_per_epoch())

    def placed(self, epoch: int, start: Start = _BEGINNING) -> Iterator[tuple[Entry[Any], Start]]:
        """The entries of an epoch, in its order, each with a start at or before what follows.

        Args:
            epoch: which.
            start: where to begin.
        """
        number, place = start
        found: Iterator[Any]
        if not self.source.is_repeatable:
            found = _without_places(self.source.epoch_entries(epoch))
        else:
            found = self.source.placed_epoch(epoch, place)
        with closing_run(found):
            if self.rank.ranks > 1:
                dealing = _Dealing(self.rank, start)
                for item in found:
                    yield from dealing.deal(item)
                yield from dealing.rest()
                return
            for taken, (one, behind) in enumerate(found, number + 1):
                yield one, Start(taken, behind)

    def in_background(self, run: Generator[T, None, None]) -> AsyncIterator[T]:
        """A run through an epoch, read ahead on a thread."""
        bursts = ([one] for one in run)
        return ReadAhead(bursts, ahead=self.source._ahead, name=self.source.name)

    def entries(self, epoch: int, number: int = 0) -> Iterator[Entry[Any]]:
        """The entries behind so many of an epoch, of an addressed source."""
        if self.rank.ranks > 1:
            return (one for one, _ in self.placed(epoch, self.start(number)))
        return (one for one, _ in self.source.placed_epoch(epoch, number))

    def picked(self, epoch: int, numbers: Sequence[int]) -> Iterator[Entry[Any]]:
        """Single entries of an addressed source, by their numbers on this rank, ascending."""
        places = numbers if self.rank.ranks == 1 else [self._place_of(one) for one in numbers]
        found = self.source.picked(epoch, places)
        assert found is not None
        return found

    def start(self, number: int) -> Start:
        """Where to begin behind so many items of an addressed source."""
        return Start(number, number * self.rank.ranks)

    def _place_of(self, number: int) -> int:
        rank, ranks, uneven = self.rank
        first = number * ranks
        if uneven != "pad":
            return first + rank
        source: Any = self.source
        items: int = source.items_per_epoch()
        return first + rank % min(ranks, items - first)

    async def of_task(
        self, epoch: int, start: Start = _BEGINNING
    ) -> AsyncIterator[tuple[Entry[Any], Start]]:
        """The same as `placed`, of a source that is gone through by ``async for``."""
        found = self.source.placed_aepoch(epoch, start.place)
        dealing = _Dealing(self.rank, start)
        try:
            async for one in found:
                for own in dealing.deal(one):
                    yield own
            for own in dealing.rest():
                yield own
        finally:
            await aclosed(found)


class TracedEntries(EpochEntries):
    """The same where somebody keeps a journal: their indices know what they stand for.

    Args:
        source: of all ranks.
        rank: which part of it.
        number: of the source, among those of the pipeline.
    """

    def __init__(self, source: Source[Any], rank: Rank, number: int) -> None:
        super().__init__(source, rank)
        self._number = number

    def placed(self, epoch: int, start: Start = _BEGINNING) -> Iterator[tuple[Entry[Any], Start]]:
        with closing_run(super().placed(epoch, start)) as found:
            for one, behind in found:
                yield self._traced(one), behind

    def entries(self, epoch: int, number: int = 0) -> Iterator[Entry[Any]]:
        return map(self._traced, super().entries(epoch, number))

    def picked(self, epoch: int, numbers: Sequence[int]) -> Iterator[Entry[Any]]:
        return map(self._traced, super().picked(epoch, numbers))

    async def of_task(
        self, epoch: int, start: Start = _BEGINNING
    ) -> AsyncIterator[tuple[Entry[Any], Start]]:
        found = super().of_task(epoch, start)
        try:
            async for one, behind in found:
                yield self._traced(one), behind
        finally:
            await aclosed(found)

    def _traced(self, entry: Entry[Any]) -> Entry[Any]:
        value, epoch, index = entry
        if type(index) is Traced:  # with ranks `entries` asks `placed`
            return entry
        return Entry(value, epoch, traced(index, [Origin(self._number, epoch, index)]))


def _without_places(entries: Iterator[Entry[Any]]) -> Iterator[Placed[Any]]:
    with closing_run(entries):
        for entry in entries:
            yield Placed(entry, None)


async def aclosed(entries: AsyncIterator[Any]) -> None:
    """Close what goes through a source, if it can be closed."""
    close = getattr(entries, "aclose", None)
    if close is not None:
        await close()


class _Dealing:
    """Deals entries to ranks in rounds, and keeps what is one rank's.

    Args:
        rank: which.
        start: where the first round begins.
    """

    def __init__(self, rank: Rank, start: Start) -> None:
        self._rank = rank
        self._start = start  # of this round
        self._round: list[Entry[Any]] = []

    def deal(self, one: Placed[Any]) -> tuple[tuple[Entry[Any], Start], ...]:
        """The next entry of all ranks; returns what this one is sure to have by it, with a start
        at or before what follows.
        """
        rank, ranks, uneven = self._rank
        round_, at = self._round, self._start
        round_.append(one.entry)
        is_sure = len(round_) == (ranks if uneven == "drop" else rank + 1)
        own = round_[rank] if is_sure else None
        if len(round_) == ranks:
            self._start = Start(at.number + 1, one.place)
            round_.clear()
        return () if own is None else ((own, self._start),)

    def rest(self) -> tuple[tuple[Entry[Any], Start], ...]:
        """All have been dealt; returns what makes this rank equal to the others."""
        rank, _, uneven = self._rank
        dealt = len(self._round)
        is_short = uneven == "pad" and 0 < dealt <= rank
        return ((self._round[rank % dealt], self._start),) if is_short else ()
