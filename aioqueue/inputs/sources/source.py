"""Sources: what goes into a pipeline, in which order, and with which seed.

A `Source` can be iterated again and again, with ``for`` and with ``async for``. Each of its items
has an *index*: its place in the whole sequence, before sharding and shuffling. So (seed, epoch,
index) names an item wherever, whenever and by whichever worker it is prepared, and `rng` makes it
a random generator of its own.

A run can also say behind which item it stands (`Source.placed`, `Source.position`), and another one
begin there (`Source.after`). `positions` has the words.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Any, Self, TypeVar

from aioqueue import InvalidArgumentError
from aioqueue.arguments import checked_count
from aioqueue.forks import in_one_process, in_one_process_async
from aioqueue.inputs.sources.engine import Stage, engine
from aioqueue.inputs.sources.items import Entry, PlacedEntry, closing_run
from aioqueue.inputs.sources.iteration import AtHand, ReadAhead
from aioqueue.inputs.sources.pipeline import Pipeline, Stages
from aioqueue.inputs.sources.positions import (
    Place,
    checked_place,
    fingerprint_in,
    misplaced,
    position_of,
)
from aioqueue.inputs.sources.shuffling import derive_seed, is_seed, resolved_seed

__all__ = ("Entry", "PlacedEntry", "Resumed", "Shard", "Source", "closing_run")

T = TypeVar("T")

Shard = tuple[int, int]


class Source(Stages[T]):
    """Items to go through, again and again.

    To write one, say in `entries` what it has; iteration of both kinds comes from that, and so do
    positions: a run that begins behind an item takes those before it again, and leaves them out. If
    yours can do better, override `placed_after`, `entries_after` and `fingerprint`.

    Args:
        name: what messages and worker names call it.
        seed: for the order, and for the generators of its items: ``0 <= seed < 2**64``. ``None``
            takes fresh entropy, once: look at `seed`, or at the repr, to repeat a run.

    Raises:
        InvalidArgumentError: the seed is neither None nor such an int.
    """

    blocking: bool = False
    """Whether one may have to wait for an item, as for a file to be read. If so, async iteration
    reads ahead, on one thread."""

    is_repeatable: bool = True
    """Whether it can be gone through again, and so has positions."""

    is_once: bool = False
    """Whether it can be gone through once only, as an iterator."""

    is_async: bool = False
    """Whether it can be gone through by ``async for`` alone: by `epoch_aentries`."""

    is_endless: bool = False
    """Whether a run, as a `prepare` goes through it, begins a new epoch behind each, and never
    ends. Who iterates over the source itself has one epoch of it."""

    _ahead = 64
    """How many items that thread may be ahead."""

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
    def is_at_hand(self) -> bool:
        """Whether ``async for`` gives what ``for`` does, and waits for nothing."""
        return not self.blocking and type(self).aentries is Source.aentries

    @property
    def is_in_memory(self) -> bool:
        """Whether its items lie ready in memory, so that to take one is to look it up."""
        return False

    @property
    def seed(self) -> int:
        """What its order, and the generators of its items, are made from."""
        return self._seed

    @property
    def is_shuffled(self) -> bool:
        """Whether its order depends on a seed."""
        return False

    @property
    def has_own_order(self) -> bool:
        """Whether another source that is made alike has another order, for want of a seed."""
        return self.is_shuffled and self._seed_was_drawn

    @property
    def has_drawn_seed(self) -> bool:
        """Whether a seed was drawn, for want of one: a source that is made alike has another."""
        return self._seed_was_drawn

    @property
    def parts(self) -> Sequence[Source[Any]]:
        """The sources that this one goes through: those of a mixture, that of a reader's paths."""
        return ()

    @property
    def repeats(self) -> int | None:
        """How often a run goes through what it has; ``None`` if that was not said."""
        return None

    @property
    def stage_seed(self) -> int:
        """What the draws of the stages of a pipeline are made from, and the number of its epoch."""
        return self.seed

    def __repr__(self) -> str:
        return f"<aioqueue.inputs.{self.name}, seed={self.seed}>"

    def __bool__(self) -> bool:
        """A source is always true, also an empty one."""
        return True

    def _with(self, stage: Stage) -> Pipeline[Any]:
        return Pipeline(self)._with(stage)

    def _pipeline(self) -> Pipeline[Any]:
        pipeline: Pipeline[Any] = engine().checked(Pipeline(self))
        return pipeline

    @abstractmethod
    def entries(self) -> Iterator[Entry[T]]:
        """One run through the source: its items, each with its epoch and index."""

    def items_per_epoch(self) -> int | None:
        """How many items each epoch has; ``None`` where that is not known before it has ended.

        A source that knows says so here: then pipelines of it have a length.
        """
        return None

    def epoch_entries(self, epoch: int) -> Iterator[Entry[T]]:
        """The items of one epoch, in its order.

        A source whose order or items differ from epoch to epoch says so here; else every epoch is
        one run through `entries`.

        Args:
            epoch: which, from 0.
        """
        with closing_run(self.entries()) as run:
            for value, _, index in run:
                yield Entry(value, epoch, index)

    def epoch_aentries(self, epoch: int) -> AsyncIterator[Entry[T]]:
        """The same for ``async for``. It may have to wait.

        Args:
            epoch: which, from 0.
        """
        return self.epoch(epoch).aentries()

    def placed_epoch(self, epoch: int, after: Place = None) -> Iterator[PlacedEntry[T]]:
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

    def first_place(self) -> Place:
        """Where an epoch begins that nobody has gone through yet.

        A source whose order is known only when a run has gone through it gives a list, which the
        run fills in: then another run that begins there, too, goes through the same order.
        """
        return None

    async def placed_aepoch(self, epoch: int, after: Place = None) -> AsyncIterator[PlacedEntry[T]]:
        """The same for ``async for``, of a source that is gone through by that alone.

        Args:
            epoch: which, from 0.
            after: of this epoch; ``None`` for its beginning.

        Raises:
            InvalidArgumentError: there is no such place, or the source has none.
        """
        if after is not None:
            raise misplaced("a place", f"none, which {self.name} has not")
        run = self.epoch_aentries(epoch)
        try:
            async for entry in run:
                yield PlacedEntry(entry, None)
        finally:
            close = getattr(run, "aclose", None)
            if close is not None:
                await close()

    def picked(self, epoch: int, places: Sequence[int]) -> Iterator[Entry[T]] | None:
        """Single items of an epoch, by their places in its order: where that takes no reading.

        Args:
            epoch: which, from 0.
            places: from 0, ascending.

        Returns:
            Their entries; ``None`` for a source that has to be gone through.
        """
        return None

    def epoch(self, number: int) -> Source[T]:
        """One epoch of this source, as a source of its own.

        So ``for epoch in range(3): for item in source.epoch(epoch): ...`` goes through three orders
        and not three times through one; and a later run of a program may begin with another number.

        Args:
            number: which epoch, from 0.

        Raises:
            InvalidArgumentError: it is no int >= 0.
        """
        return _OneEpoch(self, checked_count(number, "number"))

    def locate(self, index: int) -> str:
        """What the index of an entry leads to, in words: as far as the source knows.

        Args:
            index: of an `Entry`.

        Raises:
            InvalidArgumentError: there is no such item.
        """
        return f"item {index} of {self.name}"

    def __iter__(self) -> Iterator[T]:
        """Its items: those of a run, or of one epoch if a run has no end."""
        return in_one_process(self._ending(self._beginning)._run(), self)

    def __aiter__(self) -> AsyncIterator[T]:
        ending = self._ending(self._beginning)
        iterate = self.__iter__ if ending is self else ending.run
        return _asynchronous(ending, iterate, ending._bursts)

    def run(self) -> Iterator[T]:
        """The items of one run, with all its epochs: without an end, if it has none."""
        return in_one_process(self._run(), self)

    def _run(self) -> Iterator[T]:
        return self._values_after(self._beginning)

    def aentries(self) -> AsyncIterator[Entry[T]]:
        """One run through the source, for ``async for``, as `entries`."""
        return _asynchronous(self, self.entries, self._entry_bursts)

    def placed(self) -> Iterator[PlacedEntry[T]]:
        """One run through the source: its entries, each with the place behind it.

        Places cost nothing where they are not asked for, and little where they are; `position`
        makes of one what can be kept.

        Raises:
            InvalidArgumentError: the source cannot be gone through again, as a reader of paths that
                come from a queue; when the first item is asked for.
        """
        return in_one_process(self.placed_after(self._beginning), self)

    def aplaced(self) -> AsyncIterator[PlacedEntry[T]]:
        """The same for ``async for``."""
        return _asynchronous(self, self.placed, self._placed_bursts)

    def placed_after(self, place: Place) -> Iterator[PlacedEntry[T]]:
        """The part of a run that comes behind a place.

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

    def entries_after(self, place: Place) -> Iterator[Entry[T]]:
        """The same, without places."""
        if place is None:
            return self.entries()
        return (placed.entry for placed in self.placed_after(place))

    def fingerprint(self) -> dict[str, Any]:
        """What a position must have in common with this source: plain JSON types by field."""
        return {"kind": type(self).__name__, "seed": self.seed}

    def position(self, place: Place = None) -> dict[str, Any]:
        """The position that a place is: what can be kept, and gone on from by `after`.

        Args:
            place: behind the last item that was taken, as `placed` has it; ``None`` for the
                beginning of a run.

        Returns:
            A dict of plain JSON types, with the fingerprint of the source, a version and a
            checksum. A source of files looks up their sizes once for it.
        """
        return position_of(self.fingerprint(), self._beginning if place is None else place)

    def after(self, position: Mapping[str, Any]) -> Source[T]:
        """The same source, each of whose runs begins at a position.

        It gives the items that come behind it, with the epochs and indices that they have in a
        whole run, and its own positions are those of a whole run too. Where the seed of this source
        was drawn, the position brings its own. It is for loops, `prepare` and batchers; a pipeline,
        which goes through whole epochs, goes on by ``epochs(resume=...)``.

        Args:
            position: what `position` gave, of this source or of one that was made alike, in this
                process or another.

        Returns:
            A source.

        Raises:
            InvalidArgumentError: it is no position, is damaged, or belongs to another source: the
                message names the field that differs, and both values.
        """
        source = self._with_seeds_of(fingerprint_in(position))
        return Resumed(source, checked_place(position, source.fingerprint()))

    def used_up(self) -> InvalidArgumentError:
        """What to raise where a source that can be gone through once is wanted again."""
        return InvalidArgumentError(
            f"source: got {self!r}, which can be gone through once; expected one epoch"
        )

    def _with_seeds_of(self, fingerprint: Any) -> Self:
        """This source, with the seed of a fingerprint wherever its own was drawn."""
        seed = fingerprint.get("seed") if isinstance(fingerprint, Mapping) else None
        if not self._seed_was_drawn or not is_seed(seed):
            return self
        return self._with_seed(seed)

    def _seeded_by(self, seed: int) -> Self:
        """This source, with a seed wherever its own was drawn, for want of one.

        What can be gone through once stays what it is: that it has been gone through is known
        there.
        """
        return self._with_seed(seed) if self._seed_was_drawn and not self.is_once else self

    def _with_seed(self, seed: int) -> Self:
        source = copy.copy(self)
        source._seed = seed
        source._seed_was_drawn = False
        return source

    def _taken_at(self, place: Place) -> int:
        """How many items come before a place."""
        return 0 if place is None else int(place[0])

    def _ending(self, place: Place) -> Source[T]:
        """This source with an end: where its runs have none, that of the epoch that a place is in.

        Args:
            place: of a run; ``None`` for its beginning.
        """
        return self

    def _values_after(self, place: Place) -> Iterator[T]:
        """The items alone."""
        for entry in self.entries_after(place):
            yield entry.value

    def _bursts(self, place: Place) -> Generator[list[T], None, None]:
        """The items in lists, as they come: for reading ahead."""
        for item in self if place is None else self._values_after(place):
            yield [item]

    def _entry_bursts(self, place: Place) -> Generator[list[Entry[T]], None, None]:
        """The entries in lists, as they come: for reading ahead."""
        with closing_run(self.entries_after(place)) as run:
            for entry in run:
                yield [entry]

    def _placed_bursts(self, place: Place) -> Generator[list[PlacedEntry[T]], None, None]:
        """The entries with their places in lists, as they come: for reading ahead."""
        for placed in self.placed_after(place):
            yield [placed]


class Resumed(Source[T]):
    """A source whose runs begin at a place of another one. See `Source.after`.

    It has runs and no epochs: the first of them would not be a whole one.
    """

    def __init__(self, source: Source[T], place: Place) -> None:
        super().__init__(source.name, source.seed)
        self.blocking = source.blocking
        self._ahead = source._ahead
        self._source = source
        self._beginning = place
        self.is_endless = source.is_endless

    @property
    def source(self) -> Source[T]:
        """The whole of it."""
        return self._source

    def __repr__(self) -> str:
        return f"<{repr(self._source).strip('<>')}, after {self._beginning}>"

    def __len__(self) -> int:
        """How many items are left: of the run, or of the epoch if the run has no end.

        Raises:
            TypeError: that of the whole source is not known.
        """
        whole: Any = self._source._ending(self._beginning)
        return max(0, len(whole) - self._source._taken_at(self._beginning))

    def without_epochs(self) -> InvalidArgumentError:
        """What to raise where an epoch of it is wanted."""
        return InvalidArgumentError(
            f"source: got {self!r}, which begins behind a position; expected the whole source: a"
            " pipeline has positions of its own, and goes on by .epochs(..., resume=state)"
        )

    def entries(self) -> Iterator[Entry[T]]:
        return self._source.entries_after(self._beginning)

    def epoch_entries(self, epoch: int) -> Iterator[Entry[T]]:
        raise self.without_epochs()

    def placed_epoch(self, epoch: int, after: Place = None) -> Iterator[PlacedEntry[T]]:
        raise self.without_epochs()

    def epoch(self, number: int) -> Source[T]:
        raise self.without_epochs()

    def entries_after(self, place: Place) -> Iterator[Entry[T]]:
        return self._source.entries_after(self._beginning if place is None else place)

    def placed_after(self, place: Place) -> Iterator[PlacedEntry[T]]:
        return self._source.placed_after(self._beginning if place is None else place)

    def _ending(self, place: Place) -> Source[T]:
        if not self.is_endless:
            return self
        place = self._beginning if place is None else place
        return Resumed(self._source._ending(place), place)

    def _values_after(self, place: Place) -> Iterator[T]:
        return self._source._values_after(place)

    def _bursts(self, place: Place) -> Generator[list[T], None, None]:
        return self._source._bursts(place)

    def _entry_bursts(self, place: Place) -> Generator[list[Entry[T]], None, None]:
        return self._source._entry_bursts(place)

    def _placed_bursts(self, place: Place) -> Generator[list[PlacedEntry[T]], None, None]:
        return self._source._placed_bursts(place)

    def fingerprint(self) -> dict[str, Any]:
        return self._source.fingerprint()

    def after(self, position: Mapping[str, Any]) -> Source[T]:
        return self._source.after(position)

    def locate(self, index: int) -> str:
        return self._source.locate(index)

    def _with_seeds_of(self, fingerprint: Any) -> Self:
        return self  # it has those of its own position

    def _taken_at(self, place: Place) -> int:
        return self._source._taken_at(place)


class _OneEpoch(Source[T]):
    """One epoch of a source."""

    def __init__(self, source: Source[T], number: int) -> None:
        super().__init__(source.name, source.seed)
        self.blocking = source.blocking
        self.is_once = source.is_once
        self.is_async = source.is_async
        self.is_repeatable = source.is_repeatable
        self._ahead = source._ahead
        self._source = source
        self._number = number

    def __repr__(self) -> str:
        return f"{self._source!r}.epoch({self._number})"

    def __len__(self) -> int:
        """How many items come.

        Raises:
            TypeError: that is not known.
        """
        length = self.items_per_epoch()
        if length is None:
            raise TypeError(f"the length of {self!r} is not known: its source does not say it")
        return length

    @property
    def stage_seed(self) -> int:
        # A pipeline of it counts epochs from 0, whichever this is; that of another draws otherwise.
        return derive_seed(self._source.stage_seed, self._number)

    @property
    def is_shuffled(self) -> bool:
        return self._source.is_shuffled

    @property
    def has_own_order(self) -> bool:
        return self._source.has_own_order

    @property
    def has_drawn_seed(self) -> bool:
        return self._source.has_drawn_seed

    @property
    def is_at_hand(self) -> bool:
        return self._source.is_at_hand

    @property
    def is_in_memory(self) -> bool:
        return self._source.is_in_memory

    def items_per_epoch(self) -> int | None:
        return self._source.items_per_epoch()

    def entries(self) -> Iterator[Entry[T]]:
        return self._source.epoch_entries(self._number)

    def epoch_entries(self, epoch: int) -> Iterator[Entry[T]]:
        return self._source.epoch_entries(self._number + epoch)

    def aentries(self) -> AsyncIterator[Entry[T]]:
        return self.epoch_aentries(0) if self.is_async else super().aentries()

    def epoch_aentries(self, epoch: int) -> AsyncIterator[Entry[T]]:
        return self._source.epoch_aentries(self._number + epoch)

    def __aiter__(self) -> AsyncIterator[T]:
        return self._avalues() if self.is_async else super().__aiter__()

    async def _avalues(self) -> AsyncIterator[T]:
        run = in_one_process_async(self.aentries(), self)
        async with aclosing(run) as entries:  # type: ignore[type-var]
            async for entry in entries:
                yield entry.value

    def first_place(self) -> Place:
        return self._source.first_place()

    def placed_epoch(self, epoch: int, after: Place = None) -> Iterator[PlacedEntry[T]]:
        return self._source.placed_epoch(self._number + epoch, after)

    def placed_aepoch(self, epoch: int, after: Place = None) -> AsyncIterator[PlacedEntry[T]]:
        return self._source.placed_aepoch(self._number + epoch, after)

    def picked(self, epoch: int, places: Sequence[int]) -> Iterator[Entry[T]] | None:
        return self._source.picked(self._number + epoch, places)

    def locate(self, index: int) -> str:
        return self._source.locate(index)

    def fingerprint(self) -> dict[str, Any]:
        return {"kind": "epoch", "number": self._number, "source": self._source.fingerprint()}

    def _with_seeds_of(self, fingerprint: Any) -> Self:
        theirs = fingerprint.get("source") if isinstance(fingerprint, Mapping) else None
        return self._of(self._source._with_seeds_of(theirs))

    def _seeded_by(self, seed: int) -> Self:
        return self._of(self._source._seeded_by(seed))

    def _of(self, source: Source[T]) -> Self:
        one = self._with_seed(source.seed)
        one._source = source
        return one


def _asynchronous(
    source: Source[Any],
    iterate: Callable[[], Iterator[T]],
    bursts: Callable[[Place], Generator[list[T], None, None]],
) -> AsyncIterator[T]:
    if source.blocking:
        return ReadAhead(bursts(source._beginning), ahead=source._ahead, name=source.name)
    return AtHand(iterate())
