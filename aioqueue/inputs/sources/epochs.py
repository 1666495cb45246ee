"""The part of a source that one rank goes through in one epoch.

Data-parallel ranks cut one common order, place by place: rank r of n has the places r, r + n and so
on, so step k of all ranks together is step k of one larger batch. Where the number of items does
not divide, the ranks are made equal: by dropping what is left over, or by letting the first items
of the last round come again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, Literal, NamedTuple, get_args

from aioqueue import InvalidArgumentError
from aioqueue.checks import checked_count
from aioqueue.inputs.sources.base import Entry, Source, closing_run

__all__ = ("EpochEntries", "Rank", "Uneven", "aclosed")

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

    def length(self) -> int | None:
        """How many items an epoch has on this rank; ``None`` where that is not known."""
        items_per_epoch = getattr(self.source, "items_per_epoch", None)
        return None if items_per_epoch is None else self.rank.share(items_per_epoch())

    def entries(self, epoch: int) -> Iterator[Entry[Any]]:
        """The entries of an epoch, in its order."""
        entries = self.source.epoch_entries(epoch)
        return entries if self.rank.ranks == 1 else self._share(entries)

    def entries_async(self, epoch: int) -> AsyncIterator[Entry[Any]]:
        """The same for ``async for``: read ahead on a thread, or by a task."""
        if not self.source.is_async:
            return _OfRank(self, epoch).aentries()
        entries = self.source.epoch_aentries(epoch)
        return entries if self.rank.ranks == 1 else self._share_async(entries)

    def _share(self, entries: Iterator[Entry[Any]]) -> Iterator[Entry[Any]]:
        dealing = _Dealing(self.rank)
        with closing_run(entries):
            for entry in entries:
                yield from dealing.deal(entry)
            yield from dealing.rest()

    async def _share_async(self, entries: AsyncIterator[Entry[Any]]) -> AsyncIterator[Entry[Any]]:
        dealing = _Dealing(self.rank)
        try:
            async for entry in entries:
                for own in dealing.deal(entry):
                    yield own
            for own in dealing.rest():
                yield own
        finally:
            await aclosed(entries)


async def aclosed(entries: AsyncIterator[Any]) -> None:
    """Close what goes through a source, if it can be closed."""
    close = getattr(entries, "aclose", None)
    if close is not None:
        await close()


class _Dealing:
    """Deals entries to ranks in rounds, and keeps what is one rank's."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._round: list[Entry[Any]] = []

    def deal(self, entry: Entry[Any]) -> list[Entry[Any]]:
        """The next entry of all ranks; returns what this one is sure to have by it."""
        rank, ranks, uneven = self._rank
        if len(self._round) == ranks:
            self._round.clear()
        self._round.append(entry)
        is_sure = len(self._round) == (ranks if uneven == "drop" else rank + 1)
        return [self._round[rank]] if is_sure else []

    def rest(self) -> list[Entry[Any]]:
        """All have been dealt; returns what makes this rank equal to the others."""
        rank, _, uneven = self._rank
        dealt = len(self._round)
        return [self._round[rank % dealt]] if uneven == "pad" and 0 < dealt <= rank else []


class _OfRank(Source[Any]):
    """The entries of a rank as a source, for the sake of reading ahead."""

    def __init__(self, of: EpochEntries, epoch: int) -> None:
        super().__init__(of.source.name, of.source.seed)
        self.blocking = of.blocking
        self._ahead = of.source._ahead
        self._of = of
        self._epoch = epoch

    def entries(self) -> Iterator[Entry[Any]]:
        return self._of.entries(self._epoch)
