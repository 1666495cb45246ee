"""The part of a source that `prepare` and pipelines use: items, their order and their seed.

You can iterate over a source again and again, with ``for`` and with ``async for``. Each item has an
*index*: its place in the whole sequence, before sharding and shuffling. So (seed, epoch, index)
identifies an item, whenever and on whichever worker it is prepared, and `rng` makes it a random
generator of its own.

A run can also say behind which item it stands (`BaseSource.placed`, `BaseSource.position`); the
module `positions` explains places and positions. Users have a `sources.source.Source`, which adds
the stages of a pipeline. The code that runs pipelines is below that class in the layers, and
imports only this one.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, NamedTuple, Self, TypeVar

from aioqueue import AsyncQueue, InvalidArgumentError, sync
from aioqueue.base.display_text import on_one_line
from aioqueue.items.item import Entry, PlacedEntry, closing_run
from aioqueue.items.positions import Place, misplaced, position_of
from aioqueue.items.quarantined import Quarantined
from aioqueue.sources.shuffling import is_seed, resolved_seed
from aioqueue.system.forks import in_one_process

T = TypeVar("T")


class Determined(NamedTuple):
    """What decides which items a source has, beside what its positions name."""

    options: Mapping[str, Any] = {}
    """Arguments, for caches and for runs that write on."""
    values: Mapping[str, Any] = {}
    """Functions and other objects, for caches."""
    times: Callable[[], str] | None = None
    """Gives a digest of when the files were changed, and of their sizes, for caches."""
    inner: Sequence[BaseSource[Any]] = ()
    """Sources that are inside it."""
    pipeline: Any = None
    """The pipeline whose examples it has, if it is a cache."""
    key: str | None = None
    """What stands for the code of that pipeline."""


class BaseSource(ABC, Generic[T]):
    """Items that you can iterate over again and again: a `Source` without the stages.

    Args:
        name: what messages and worker names call it.
        seed: for the order, and for the generators of its items: ``0 <= seed < 2**64``; ``None``
            for fresh entropy.

    Raises:
        InvalidArgumentError: the seed is neither None nor such an int.
    """

    blocking: bool = False
    """Whether reading an item may block, as reading a file does. If so, async iteration reads
    ahead, on one thread."""

    _is_repeatable: bool = True
    """Whether you can iterate over the source again. Only then does it have positions."""

    _is_once: bool = False
    """Whether you can iterate over the source only once, as over an iterator."""

    _is_consumed: bool = False
    """Whether an iteration takes what it gives from somebody, as from a queue of paths."""

    _reads_queue: bool = False
    """Whether it reads one of our queues itself, through `_lent`."""

    _is_async: bool = False
    """Whether only ``async for`` iterates over the source, through `_epoch_aentries`."""

    _batch_shape: Any = None
    """What is known of its items, if these are batches: a `BatchShape`."""

    _quota: Any = None
    """How many of its items may be read, where that is limited, and changes while it is read: an
    `ItemQuota`."""

    _gives_batches: bool = False
    """Whether its items are batches of rows, as a reader with a ``batch_size`` gives them."""

    _is_endless: bool = False
    """Whether a run, such as that of a `prepare`, starts the next epoch after each one and never
    ends. A plain loop over the source has one epoch."""

    _ahead = 64
    """How many items that thread may read ahead."""

    _waits_in_our_calls: bool = False
    """Whether an item may be long in coming, and what waits for it there is a call of ours."""

    _beginning: Place = None
    """Where a run begins."""

    def __init__(self, name: str, seed: int | None = None) -> None:
        self._name = name
        self._seed = resolved_seed(seed)
        self._seed_was_drawn = seed is None

    @property
    def name(self) -> str:
        """What messages and worker names call it."""
        return self._name

    @property
    def _is_at_hand(self) -> bool:
        """Whether ``async for`` gives the same items as ``for``, and never waits."""
        return not self.blocking and type(self)._aentries is BaseSource._aentries

    @property
    def _is_in_memory(self) -> bool:
        """Whether its items are in memory, so that taking one is a look-up."""
        return False

    @property
    def _fed_by(self) -> AsyncQueue | sync.BlockingQueue | None:
        """The queue whose elements are the items, one for one; ``None`` without a queue."""
        return None

    @property
    def seed(self) -> int:
        """The seed of its order, and of the generators of its items."""
        return self._seed

    @property
    def _is_shuffled(self) -> bool:
        """Whether its order depends on a seed."""
        return False

    @property
    def _has_own_order(self) -> bool:
        """Whether the order depends on a seed that the source has drawn itself."""
        return self._is_shuffled and self._seed_was_drawn

    @property
    def _has_drawn_seed(self) -> bool:
        """Whether the source has drawn its seed itself, because the user has passed none."""
        return self._seed_was_drawn

    @property
    def _inner_sources(self) -> Sequence[BaseSource[Any]]:
        """The sources inside this one: those of a mixture, or the source of a reader's paths."""
        return ()

    def _damaged_files(self) -> list[Quarantined]:
        """The damaged files that this source, or a source inside it, has left out so far."""
        return [record for one in self._inner_sources for record in one._damaged_files()]

    @property
    def _epochs_per_run(self) -> int | None:
        """How many epochs a run has; ``None`` if the user has not said so."""
        return None

    @property
    def _stage_seed(self) -> int:
        """The seed of the stages of a pipeline, together with the number of the epoch."""
        return self.seed

    def __repr__(self) -> str:
        return on_one_line(f"<aioqueue.inputs.{self.name}, seed={self.seed}>")

    def __bool__(self) -> bool:
        """Always true, also for an empty source: otherwise ``len`` would decide."""
        return True

    @abstractmethod
    def entries(self) -> Iterator[Entry[T]]:
        """One run through the source: its items, each with its epoch and index."""

    def _numbered(self) -> Iterator[tuple[int, T, int, int]] | None:
        """The same run, as plain tuples ``(number, value, epoch, index)``, if the source can make
        these faster than entries; the number counts all items from 0. Otherwise ``None``."""
        return None

    def items_per_epoch(self) -> int | None:
        """How many items each epoch has; ``None`` if that is unknown before its end.

        Override it if your source knows the number: then pipelines over it have a length.
        """
        return None

    def epoch_entries(self, epoch: int) -> Iterator[Entry[T]]:
        """The items of one epoch, in its order.

        Override it if the order or the items differ between epochs. By default every epoch is one
        run through `entries`.

        Args:
            epoch: the number of the epoch, from 0.
        """
        with closing_run(self.entries()) as run:
            for value, _, index in run:
                yield Entry(value, epoch, index)

    def _epoch_aentries(self, epoch: int) -> AsyncIterator[Entry[T]]:
        """The items of one epoch for ``async for``. It may have to wait.

        Args:
            epoch: the number of the epoch, from 0.
        """
        return asynchronous(
            self,
            lambda: self.epoch_entries(epoch),
            lambda _: _one_by_one(self.epoch_entries(epoch)),
        )

    def _placed_epoch(self, epoch: int, after: Place = None) -> Iterator[PlacedEntry[T]]:
        """The items of one epoch behind a place, as `epoch_entries`, each with the place behind it.

        These places are within an epoch: those of `placed` go over all of a run.

        Args:
            epoch: which, from 0.
            after: of this epoch; ``None`` for its beginning.

        Raises:
            InvalidArgumentError: there is no such place, or the source has none; when the first
                item is asked for.
        """
        taken = 0
        with closing_run(self.epoch_entries(epoch)) as run:
            if after is not None:
                taken, last = after
                entry = next(islice(run, taken - 1, None), None)
                if entry is None or entry.index != last:
                    found = "fewer items" if entry is None else entry.index
                    raise misplaced(
                        f"{last} as index of item {taken} of epoch {epoch}",
                        f"{found}, which {self.name} has",
                    )
            for number, entry in enumerate(run, taken + 1):
                yield PlacedEntry(entry, (number, entry.index))

    def _first_place(self) -> Place:
        """The place where a new epoch begins.

        A source that learns its order only from a run returns a list, which that run fills in. A
        later run that begins at this place follows the same order.
        """
        return None

    async def _placed_aepoch(
        self, epoch: int, after: Place = None
    ) -> AsyncIterator[PlacedEntry[T]]:
        """`placed_after` for ``async for``, of a source that has no other iteration.

        Args:
            epoch: which, from 0.
            after: of this epoch; ``None`` for its beginning.

        Raises:
            InvalidArgumentError: there is no such place, or the source has none.
        """
        if after is not None:
            raise misplaced("a place", f"none, which {self.name} has not")
        run = self._epoch_aentries(epoch)
        try:
            async for entry in run:
                yield PlacedEntry(entry, None)
        finally:
            close = getattr(run, "aclose", None)
            if close is not None:
                await close()

    def _picked(self, epoch: int, places: Sequence[int]) -> Iterator[Entry[T]] | None:
        """Single items of an epoch by their places in its order, if that needs no reading.

        Args:
            epoch: which, from 0.
            places: from 0, ascending.

        Returns:
            Their entries; ``None`` for a source without random access.
        """
        return None

    def _picked_from_run(self, places: Sequence[int]) -> Iterator[Entry[T]] | None:
        """Single items of a run by their places. The places of the run are numbers then.

        Args:
            places: from 0, over all epochs, ascending.
        """
        return None

    def _lent(self) -> Any:
        """For a run over a queue: takes elements on lease (`aioqueue.queues.leases`); otherwise
        ``None``."""
        return None

    def _placing_in(self, place: Place) -> Any:
        """What follows the places of such a run, from one of them on; ``None`` without places."""
        return None

    def locate(self, index: int) -> str:
        """Describe the item with an index, in words, as precisely as the source can.

        Args:
            index: of an `Entry`.

        Raises:
            InvalidArgumentError: there is no such item.
        """
        return f"item {index} of {self.name}"

    def __iter__(self) -> Iterator[T]:
        """Its items: those of a run, or of one epoch if a run has no end."""
        ending = self._ending(self._beginning)
        return in_one_process(ending._values_after(ending._beginning), self)

    def __aiter__(self) -> AsyncIterator[T]:
        ending = self._ending(self._beginning)
        iterate = self.__iter__ if ending is self else ending.run
        return asynchronous(ending, iterate, ending._bursts)

    def run(self) -> Iterator[T]:
        """The items of one run, with all its epochs: without an end, if it has none."""
        return in_one_process(self._values_after(self._beginning), self)

    def _aentries(self) -> AsyncIterator[Entry[T]]:
        """One run through the source, for ``async for``, as `entries`."""
        return asynchronous(self, self.entries, self._entry_bursts)

    def placed(self) -> Iterator[PlacedEntry[T]]:
        """One run through the source: its entries, each with the place behind it.

        Places cost little, and nothing if you do not use them. `position` turns a place into a
        position that you can save.

        Raises:
            InvalidArgumentError: you cannot iterate over the source again, such as over a reader
                of paths from a queue. The error comes with the first item.
        """
        return in_one_process(self.placed_after(self._beginning), self)

    def aplaced(self) -> AsyncIterator[PlacedEntry[T]]:
        """The entries of one run with their places, for ``async for``."""
        return asynchronous(self, self.placed, self._placed_bursts)

    def placed_after(self, place: Place) -> Iterator[PlacedEntry[T]]:
        """The part of a run behind a place.

        Args:
            place: of this source; ``None`` for its beginning.

        Raises:
            InvalidArgumentError: there is no such place; when the first item is asked for.
        """
        run = self.entries()
        taken = 0
        if place is not None:
            taken, *last = place
            entry = next(islice(run, taken - 1, None), None)
            found = None if entry is None else [entry.epoch, entry.index]
            if found != last:
                raise misplaced(
                    f"{last} as epoch and index of item {taken}",
                    f"{found or 'fewer items'}, which this run through {self.name} has",
                )
        for number, entry in enumerate(run, taken + 1):
            yield PlacedEntry(entry, (number, entry.epoch, entry.index))

    def _check_place(self, place: Place) -> None:
        """Check the types of what a place consists of. It may come from a stranger's position.

        Raises:
            InvalidArgumentError: no place of this source is like that.
        """

    def entries_after(self, place: Place) -> Iterator[Entry[T]]:
        """The part of a run behind a place, without places."""
        if place is None:
            return self.entries()
        return (placed.entry for placed in self.placed_after(place))

    def fingerprint(self) -> dict[str, Any]:
        """The fields by which a position recognises this source, in plain JSON types."""
        return {"kind": type(self).__name__, "seed": self.seed}

    def _determined(self) -> Determined:
        """What decides which items there are, beside what `fingerprint` has."""
        return Determined(inner=self._inner_sources)

    def position(self, place: Place = None) -> dict[str, Any]:
        """Turn a place into a position, which you can save, and from which `after` continues.

        Args:
            place: behind the last item that was taken, as `placed` has it; ``None`` for the
                beginning of a run.

        Returns:
            A dict of plain JSON types, with the fingerprint of the source, a version and a
            checksum. A source of files looks up their sizes once for it.
        """
        return position_of(self.fingerprint(), self._beginning if place is None else place)

    def _without_epochs(self) -> InvalidArgumentError | None:
        """The error if an epoch is wanted of a source that has only whole runs."""
        return None

    def _used_up(self) -> InvalidArgumentError:
        """The error for a second iteration over a source that allows one."""
        return InvalidArgumentError(
            f"source: got {self!r}, which can be iterated over only once; expected one epoch"
        )

    def _with_seeds_of(self, fingerprint: Any) -> Self:
        """This source, with the seeds of a fingerprint in place of those that it has drawn."""
        seed = fingerprint.get("seed") if isinstance(fingerprint, Mapping) else None
        if not self._seed_was_drawn or not is_seed(seed):
            return self
        return self._with_seed(seed)

    def _seeded_by(self, seed: int) -> Self:
        """This source, with a seed in place of seeds that it has drawn itself.

        A source for one iteration stays the same object, because it knows whether that iteration
        has begun.
        """
        return self._with_seed(seed) if self._seed_was_drawn and not self._is_once else self

    def _with_seed(self, seed: int) -> Self:
        source = copy.copy(self)
        source._seed = seed
        source._seed_was_drawn = False
        return source

    def _taken_at(self, place: Place) -> int:
        """How many items come before a place."""
        return 0 if place is None else int(place[0])

    def _ending(self, place: Place) -> BaseSource[T]:
        """This source with an end. If its runs have none, it is the end of the epoch of a place.

        Args:
            place: of a run; ``None`` for its beginning.
        """
        return self

    def _values_after(self, place: Place) -> Iterator[T]:
        """The items behind a place, without epochs and indices."""
        for entry in self.entries_after(place):
            yield entry.value

    def _bursts(self, place: Place) -> Generator[list[T], None, None]:
        """The items in lists, as they come: for reading ahead."""
        for item in self if place is None else self._values_after(place):
            yield [item]

    def _entry_bursts(self, place: Place) -> Generator[list[Entry[T]], None, None]:
        """The entries in lists, as they come: for reading ahead."""
        return _one_by_one(self.entries_after(place))

    def _placed_bursts(self, place: Place) -> Generator[list[PlacedEntry[T]], None, None]:
        """The entries with their places in lists, as they come: for reading ahead."""
        for placed in self.placed_after(place):
            yield [placed]


def _one_by_one(entries: Iterator[T]) -> Generator[list[T], None, None]:
    with closing_run(entries) as run:
        for entry in run:
            yield [entry]


def asynchronous(
    source: BaseSource[Any],
    iterate: Callable[[], Iterator[T]],
    bursts: Callable[[Place], Generator[list[T], None, None]],
) -> AsyncIterator[T]:
    from aioqueue.sources.read_ahead import AtHand, ReadAhead

    if source.blocking:
        return ReadAhead(bursts(source._beginning), ahead=source._ahead, name=source.name)
    return AtHand(iterate())
