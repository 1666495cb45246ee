"""The part of a source that one rank reads in one epoch (`EpochEntries`).

Data-parallel ranks divide one common order, place by place: rank r of n has the places r, r + n and
so on. So step k of all ranks together is step k of one larger batch. If the number of items does
not divide evenly, the ranks are made equal: they drop the incomplete last round, or they repeat the
first items of that round.

If the number of ranks changes within an epoch, `RemainingItems` says what the earlier ranks have
left of it. It is dealt out like an epoch of its own: first the items that were passed over, then
all items behind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from itertools import chain, count
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args

from aioqueue import InvalidArgumentError, sync
from aioqueue.base.arguments import checked_count
from aioqueue.items.item import Entry, PlacedEntry, closing_run
from aioqueue.items.positions import Place
from aioqueue.items.provenance import DeliveredParts
from aioqueue.items.quota import ItemQuota, QuotaGate
from aioqueue.sources.base import BaseSource, EntryScan
from aioqueue.sources.file_parts import FileSegment
from aioqueue.sources.read_ahead import ReadAhead

T = TypeVar("T")


class RemainingItems(NamedTuple):
    """What is left of an epoch."""

    missing: Sequence[int] = ()
    """The places of the items that were passed over, in the common order, ascending."""
    upto: int | None = 0
    """All items from this place on are left; ``None`` if none of them are."""
    begin: tuple[int, Place] = (0, None)
    """Where reading can begin: a number of items of the common order, and the place behind them."""

    def within(self, items: int) -> RemainingItems:
        """Restrict it to an epoch's number of items: copies follow in a padded last round."""
        missing = self.missing[: bisect_left(self.missing, items)]
        return self._replace(missing=missing, upto=items if self.upto is None else self.upto)

    def count(self, items: int) -> int:
        behind = 0 if self.upto is None else max(0, items - self.upto)
        return bisect_left(self.missing, items) + behind

    def place_of(self, number: int) -> int | None:
        """Return the place in the common order of an item, given its number among those left."""
        behind = number - len(self.missing)
        if behind < 0:
            return self.missing[number]
        return None if self.upto is None else self.upto + behind

    def picked(self, source: BaseSource[Any], epoch: int, done: int) -> Iterator[PlacedEntry[Any]]:
        """Return the items after the first ``done``, of a source with random access."""
        items = source.items_per_epoch()
        assert items is not None  # which all of them say
        rest = self.within(items)
        found = source._pick(epoch, rest.missing[done:])
        assert found is not None
        assert rest.upto is not None
        behind = min(items, rest.upto + max(0, done - len(rest.missing)))
        entries = chain(found, source._scan(epoch, behind).entries())
        return map(PlacedEntry, entries, count(done + 1))

    def read(self, source: BaseSource[Any], epoch: int, after: Place) -> Iterator[PlacedEntry[Any]]:
        """The items behind a place, of any source.

        Args:
            source: the source of all ranks.
            epoch: the number of the epoch.
            after: the place of an earlier one of these items: a number of items of the common
                order, and the place behind them; ``None`` for the beginning.
        """
        taken, place = self.begin if after is None else after
        missing, upto = frozenset(self.missing), self.upto
        # If nothing is left behind the missing items, reading ends with the last of them, rather
        # than with the epoch.
        end = None if upto is not None else (self.missing[-1] + 1 if self.missing else 0)
        if end is not None and taken >= end:
            return
        with closing_run(source._scan(epoch, place).placed()) as run:
            for number, (entry, behind) in enumerate(run, taken):
                if number in missing or (upto is not None and number >= upto):
                    yield PlacedEntry(entry, (number + 1, behind))
                if number + 1 == end:
                    return


WHOLE: Final = RemainingItems()
"""All of an epoch is left."""


Uneven = Literal["pad", "drop", "allow"]
_UNEVEN: Final = get_args(Uneven)

By = Literal["item", "file"]
"""What ranks divide: items, one by one; or the files of a reader."""


class Rank(NamedTuple):
    """The part of a source that one rank reads."""

    rank: int = 0
    ranks: int = 1
    uneven: Uneven = "allow"
    by: By = "item"

    @classmethod
    def checked(cls, rank: Any, ranks: Any, uneven: Any, by: Any = "item") -> Rank:
        """Check the arguments of a user.

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        ranks = checked_count(ranks, "ranks", least=1)
        rank = checked_count(rank, "rank")
        if rank >= ranks:
            raise InvalidArgumentError(f"rank: got {rank}; expected less than ranks={ranks}")
        if uneven not in _UNEVEN:
            raise InvalidArgumentError(f"uneven: got {uneven!r}; expected one of {_UNEVEN}")
        if by not in get_args(By):
            raise InvalidArgumentError(f"by: got {by!r}; expected 'item' or 'file'")
        if by == "file" and uneven != "allow":
            raise InvalidArgumentError(
                f"uneven: got {uneven!r} with by='file'; expected uneven='allow', since nobody"
                " knows how many records a file has before it is read: so ranks have different"
                " numbers of steps, unless you fix them, as in epochs(steps=1000)"
            )
        return cls(rank, ranks, uneven, by)

    def share(self, items: int) -> int:
        """How many of a number of items belong to this rank."""
        if self.uneven == "drop":
            return items // self.ranks
        if self.uneven == "pad":
            return -(-items // self.ranks)
        return len(range(self.rank, items, self.ranks))


class EpochStart(NamedTuple):
    """Where a run through an epoch can begin: behind a number of items of the rank."""

    number: int = 0
    place: Place = None
    """In the common order of the ranks."""


_BEGINNING: Final = EpochStart()

_ENTRY: Final = itemgetter(0)  # of a `PlacedEntry`


class EpochEntries:
    """The entries that one rank has in an epoch.

    Args:
        source: the source of all ranks.
        rank: the rank.
        rests: what is left of epochs that an earlier number of ranks has begun; only that is dealt
            out.
    """

    def __init__(
        self, source: BaseSource[Any], rank: Rank, rests: Mapping[int, RemainingItems] | None = None
    ) -> None:
        if rank.ranks > 1 and source._no_ranks is not None:
            raise InvalidArgumentError(
                f"ranks: got {rank.ranks} for {source!r}, {source._no_ranks}"
            )
        self.source = source
        self.rank = rank
        self.rests: Mapping[int, RemainingItems] | dict[int, RemainingItems] = rests or {}
        self.blocking: bool = source.blocking
        is_whole = rank.ranks == 1 and not rests
        is_sized = is_whole or source.items_per_epoch() is not None
        self.is_addressed: bool = is_sized and source._pick(0, ()) is not None
        """Whether the source has random access: reading can begin at any item."""

    def check_place(self, place: Place) -> None:
        """Check a place of the source, from a position.

        Raises:
            InvalidArgumentError: it is no such place.
        """
        self.source._check_place(place)

    def counted(self, epoch: int, taken: int) -> int:
        """How many items of an epoch this rank has had, in what the ranks divide.

        Args:
            epoch: the number of the epoch, which has ended.
            taken: how many items were taken.
        """
        return taken

    def segments(self, epoch: int) -> list[FileSegment] | None:
        """Where the files of an epoch begin that were read, if ranks divide files."""
        return None

    def keep_segments(self) -> None:
        """Keep them from now on, until they are forgotten."""

    def restore_segments(self, epoch: int, segments: Sequence[FileSegment]) -> None:
        """Continue with those of an earlier run of the same rank."""

    def forget(self, epoch: int) -> None:
        """Forget what is kept of the epochs before this one."""

    def passed_over(self, entry: Entry[Any], epoch: int) -> None:
        """Note that an entry that was read is left out, since it was delivered before."""

    def beginning(self) -> EpochStart:
        return EpochStart(place=self.source._first_place())

    def length(self, epoch: int | None = None) -> int | None:
        """How many items an epoch has on this rank; ``None`` if that is unknown.

        Args:
            epoch: the number of the epoch; ``None`` for any whole one.
        """
        if self.source.items_per_epoch() is None:
            return None
        return self.rank.share(self._items(None if epoch is None else self.rests.get(epoch)))

    def placed(
        self, epoch: int, start: EpochStart = _BEGINNING
    ) -> Iterator[tuple[Entry[Any], EpochStart]]:
        """The entries of an epoch, in its order, each with a start at or before what follows.

        Args:
            epoch: which.
            start: where to begin.
        """
        number, place = start
        found: Iterator[Any]
        if not self.source._is_repeatable:
            found = EntryScan(self.source._scan(epoch, None).entries).placed()
        else:
            found = self._placed(epoch, place)
        with closing_run(found):
            if self.rank.ranks > 1:
                dealing = _Dealing(self.rank, start)
                for item in found:
                    yield from dealing.deal(item)
                yield from dealing.padding()
                return
            for taken, (one, behind) in enumerate(found, number + 1):
                yield one, EpochStart(taken, behind)

    def in_background(
        self, run: Generator[T, None, None], quota: ItemQuota | None
    ) -> AsyncIterator[T]:
        """Return a run through an epoch, read ahead on a thread as far as a quota allows."""
        source = self.source
        scope = sync.CancelScope() if source._waits_in_our_calls else None
        if quota is None:
            bursts = ([one] for one in run)
            return ReadAhead(bursts, ahead=source._ahead, name=source.name, scope=scope)
        gate = QuotaGate(quota)
        return ReadAhead(
            gate.throttle(run), ahead=source._ahead, name=source.name, scope=scope, left=gate.close
        )

    def entries(self, epoch: int, number: int = 0) -> Iterator[Entry[Any]]:
        """The entries of an epoch behind the first ones, of an addressed source."""
        if self.rank.ranks > 1:
            # The last round may not be full.
            done = min(number * self.rank.ranks, self._items(self.rests.get(epoch)))
            return (one for one, _ in self.placed(epoch, EpochStart(number, done)))
        if self.rests.get(epoch) is None:
            return self.source._scan(epoch, number).entries()
        return map(_ENTRY, self._placed(epoch, number))

    def picked(self, epoch: int, numbers: Sequence[int]) -> Iterator[Entry[Any]]:
        """Single entries of an addressed source, by their numbers on this rank, ascending."""
        rest = self.rests.get(epoch)
        if rest is not None and numbers:
            rest = rest.within(self._items(None))
        places: Sequence[Any] = numbers
        if rest is not None or self.rank.ranks > 1:
            places = [self._place_of(number, rest) for number in numbers]
        found = self.source._pick(epoch, places)
        assert found is not None
        return found

    def place_of(self, epoch: int, number: int) -> int | None:
        """The place in the common order of an item of this rank, which is no copy."""
        first = number * self.rank.ranks + self.rank.rank
        rest = self.rests.get(epoch)
        return first if rest is None else rest.place_of(first)

    def _placed(self, epoch: int, after: Place) -> Iterator[PlacedEntry[Any]]:
        """The entries of all ranks behind a place of theirs."""
        rest = self.rests.get(epoch)
        if rest is None:
            return self.source._scan(epoch, after).placed()
        if self.is_addressed:
            return rest.picked(self.source, epoch, after or 0)
        return rest.read(self.source, epoch, after)

    def _items(self, rest: RemainingItems | None) -> int:
        """How many items of the epoch all ranks have left."""
        items = self.source.items_per_epoch()
        assert items is not None
        return items if rest is None else rest.count(items)

    def _place_of(self, number: int, rest: RemainingItems | None) -> int | None:
        rank, ranks, uneven, _ = self.rank
        first = number * ranks
        if uneven == "pad":  # as in `_Dealing.padding`
            rank %= min(ranks, self._items(rest) - first)
        return first + rank if rest is None else rest.place_of(first + rank)

    async def of_task(
        self, epoch: int, start: EpochStart = _BEGINNING
    ) -> AsyncIterator[tuple[Entry[Any], EpochStart]]:
        """`placed` for a source that only ``async for`` iterates over."""
        found = self.source._ascan(epoch, start.place)
        dealing = _Dealing(self.rank, start)
        try:
            async for one in found:
                for entry in dealing.deal(one):
                    yield entry
            for entry in dealing.padding():
                yield entry
        finally:
            await aclosed(found)


def entries_of(
    source: BaseSource[Any],
    rank: Rank,
    rests: Mapping[int, RemainingItems] | None = None,
    parts: Mapping[int, Mapping[int, DeliveredParts]] | None = None,
) -> EpochEntries:
    """Return the entries that a rank has of a source.

    Args:
        source: the source.
        rank: the rank.
        rests: as for `EpochEntries`.
        parts: the parts of items that an earlier number of ranks has delivered, by epoch and by
            place in the common order.
    """
    if rank.by == "file":
        entries: EpochEntries = source._entries_by_file(rank, rests, parts)
        return entries
    return EpochEntries(source, rank, rests)


async def aclosed(entries: AsyncIterator[Any]) -> None:
    """Close an iterator over a source, if it can be closed."""
    close = getattr(entries, "aclose", None)
    if close is not None:
        await close()


class _Dealing:
    """Deals entries to ranks in rounds, and keeps those of one rank.

    Args:
        rank: the rank.
        start: where the first round begins.
    """

    def __init__(self, rank: Rank, start: EpochStart) -> None:
        self._rank = rank
        self._start = start  # of this round
        self._round: list[Entry[Any]] = []

    def deal(self, one: PlacedEntry[Any]) -> tuple[tuple[Entry[Any], EpochStart], ...]:
        """Deal the next entry of all ranks. Returns the entries that this rank surely has now, each
        with a start at or before the following one.
        """
        rank, ranks, uneven, _ = self._rank
        round_, at = self._round, self._start
        round_.append(one.entry)
        # With "drop", only a complete round has items for anybody. Otherwise the item is the rank's
        # as soon as it is its turn.
        is_sure = len(round_) == (ranks if uneven == "drop" else rank + 1)
        entry = round_[rank] if is_sure else None
        if len(round_) == ranks:
            # A start is always between two rounds. So a rank that resumes reads the current round
            # from its first item on, and leaves out what it has had.
            self._start = EpochStart(at.number + 1, one.place)
            round_.clear()
        return () if entry is None else ((entry, self._start),)

    def padding(self) -> tuple[tuple[Entry[Any], EpochStart], ...]:
        """Note that all entries were dealt; return the entries that pad this rank."""
        rank, _, uneven, _ = self._rank
        dealt = len(self._round)
        # Ranks without an item in the last round repeat its first ones, each another as far as
        # there are enough.
        is_short = uneven == "pad" and 0 < dealt <= rank
        return ((self._round[rank % dealt], self._start),) if is_short else ()
