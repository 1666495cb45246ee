"""The part of a source that `prepare` and pipelines use: items, their order and their seed.

You can iterate over a source again and again, with ``for`` and with ``async for``. Each item has an
*index*: its place in the whole sequence, before sharding and shuffling. So (seed, epoch, index)
identifies an item, whenever and on whichever worker it is prepared, and `rng` makes it a random
generator of its own.

A run can also say behind which item it is (`BaseSource.placed`, `BaseSource.position`); the module
`positions` explains places and positions. Users have a `sources.source.Source`, which adds the
stages of a pipeline. The code that runs pipelines is below that class in the layers, and imports
only this one.

**A source implements one method**, `_scan(epoch, after)`. Everything else is derived from it:

* It returns a `Scan` of the items of one epoch, or of a whole run if ``epoch`` is ``None``.
* The scan begins behind the place ``after``, or at the beginning if that is ``None``. Places of a
  run and of an epoch differ: each belongs to scans of its own scope.
* `_scan` itself reads nothing. The first item opens files and finds the place, and raises
  `InvalidArgumentError` if there is no such place.
* A caller asks a scan once, for one form: values, entries, or entries with places. All forms have
  the same items in the same order. Only `Scan.placed` pays for places.
* Closing the iterator closes the files. No scan shares state with another one.
* A source that can only be read in a task implements `_ascan` as well, and its `_scan` raises.
* A source that finds any item without reading others also implements `_pick`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Self, TypeAlias, TypeVar

from aioqueue import AsyncQueue, InvalidArgumentError, sync
from aioqueue.base.display_text import on_one_line
from aioqueue.items.item import Entry, PlacedEntry, closing_run
from aioqueue.items.positions import Place, position_of
from aioqueue.sources.shuffling import is_seed, resolved_seed
from aioqueue.system.forks import in_one_process, in_one_process_async

if TYPE_CHECKING:
    from aioqueue.items.quarantined import Quarantined

T = TypeVar("T")
FormT = TypeVar("FormT")


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


Form: TypeAlias = Callable[[Any], Iterable[Any]]
"""Gets one form of the items of a scan, or of a block of them: `VALUES`, `ENTRIES` or `PLACED`."""

VALUES: Final[Form] = methodcaller("values")
ENTRIES: Final[Form] = methodcaller("entries")
PLACED: Final[Form] = methodcaller("placed")


class Scan(ABC, Generic[T]):
    """The items of a source behind a place. A caller asks for one form of them, once.

    Each form is an iterator that is closed with its files.
    """

    __slots__ = ()

    @abstractmethod
    def entries(self) -> Iterator[Entry[T]]:
        """The items, each with its epoch and index."""

    @abstractmethod
    def placed(self) -> Iterator[PlacedEntry[T]]:
        """The entries, each with the place behind it."""

    def values(self) -> Iterator[T]:
        for entry in self.entries():
            yield entry.value

    def numbered(self) -> Iterator[tuple[int, T, int, int]] | None:
        """Plain tuples ``(number, value, epoch, index)``, if the source makes them faster than
        entries. The number counts the items from 0. Otherwise ``None``."""
        return None

    def bursts(self, form: Form) -> Generator[list[Any], None, None]:
        """One form of the items in lists, as they become available, for reading ahead."""
        # The form is asked for here, and not by the caller: a method of the user's that opens
        # files belongs on the reading thread.
        with closing_run(iter(form(self))) as run:
            for item in run:
                yield [item]


class EntryScan(Scan[T]):
    """A scan without places.

    Args:
        entries: makes the entries.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Callable[[], Iterator[Entry[T]]]) -> None:
        self._entries = entries

    def entries(self) -> Iterator[Entry[T]]:
        return self._entries()

    def placed(self) -> Iterator[PlacedEntry[T]]:
        with closing_run(self._entries()) as run:
            for entry in run:
                yield PlacedEntry(entry, None)


class PlacedScan(Scan[T]):
    """A scan whose places cost nothing.

    Args:
        placed: makes the entries with their places.
    """

    __slots__ = ("_placed",)

    def __init__(self, placed: Callable[[], Iterator[PlacedEntry[T]]]) -> None:
        self._placed = placed

    def entries(self) -> Iterator[Entry[T]]:
        with closing_run(self._placed()) as run:
            for placed in run:
                yield placed.entry

    def placed(self) -> Iterator[PlacedEntry[T]]:
        return self._placed()


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
    """Whether it reads one of our queues: threads through `_scan`, tasks through `_ascan`, and
    pipelines on lease through `_leases`."""

    _is_async: bool = False
    """Whether only ``async for`` iterates over the source, through `_ascan`."""

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

    _no_ranks: str | None = None
    """Why ranks cannot divide it among them, as a message says it behind the source; ``None`` if
    they can."""

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
    def _never_waits(self) -> bool:
        """Whether ``async for`` gives the same items as ``for``, and never waits for one."""
        return not self.blocking and type(self)._aentries is BaseSource._aentries

    @property
    def _is_in_memory(self) -> bool:
        """Whether the items are in memory, so that taking one is a look-up."""
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
        """Whether the order depends on a seed."""
        return False

    @property
    def _has_own_order(self) -> bool:
        """Whether the order depends on a seed that the source has drawn itself."""
        return self._is_shuffled and self._seed_was_drawn

    @property
    def _has_drawn_seed(self) -> bool:
        """Whether the source has drawn its seed itself, because the user passed none."""
        return self._seed_was_drawn

    @property
    def _inner_sources(self) -> Sequence[BaseSource[Any]]:
        """The sources inside this one, as in a mixture or for the paths of a reader."""
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
        """The seed of a pipeline's stages, to be combined with the epoch's number."""
        return self.seed

    def __repr__(self) -> str:
        return on_one_line(f"<aioqueue.inputs.{self._described()}>")

    def _described(self) -> str:
        """Return its name and its most important arguments."""
        return f"{self.name}{self._details()}"

    def _details(self) -> str:
        """Return the most important arguments in few words, to stand behind the name."""
        return f", seed={self.seed}"

    def __bool__(self) -> bool:
        """Always true, also for an empty source: otherwise ``len`` would decide."""
        return True

    @abstractmethod
    def _scan(self, epoch: int | None, after: Place) -> Scan[T]:
        """The items of an epoch, or of a whole run, behind a place. The module says what holds.

        Args:
            epoch: the number of the epoch, from 0; ``None`` for a whole run, over all its epochs.
            after: a place of such a scan; ``None`` for its beginning.
        """

    def _ascan(self, epoch: int | None, after: Place) -> AsyncIterator[PlacedEntry[T]]:
        """The same for tasks, of a source that is read in them: its entries with their places.

        Cancellation:
            A cancelled step ends the scan, and takes nothing that is behind the last place.
        """
        raise NotImplementedError(f"{self!r} is read by threads")

    def _pick(self, epoch: int | None, places: Sequence[int]) -> Iterator[Entry[T]] | None:
        """Single items by their places, which are numbers, if finding them needs no reading.

        Args:
            epoch: the number of the epoch; ``None`` for a whole run.
            places: from 0, ascending.

        Returns:
            Their entries; ``None`` for a source without random access.
        """
        return None

    def _entries_by_file(self, rank: Any, rests: Any, parts: Any) -> Any:
        """The `EpochEntries` of a rank that reads whole files.

        Raises:
            InvalidArgumentError: the source reads no files, or cannot divide them.
        """
        raise InvalidArgumentError(
            f"by: got 'file' for {self!r}, which does not read records from files; expected"
            " by='item', or a reader such as read_lines(paths)"
        )

    def entries(self) -> Iterator[Entry[T]]:
        """One run through the source: its items, each with its epoch and index."""
        return self._scan(None, None).entries()

    def items_per_epoch(self) -> int | None:
        """How many items each epoch has; ``None`` if that is unknown before its end.

        Override it if your source knows the number: then pipelines over it have a length.
        """
        return None

    def epoch_entries(self, epoch: int) -> Iterator[Entry[T]]:
        """The items of one epoch, in its order.

        Args:
            epoch: the number of the epoch, from 0.
        """
        return self._scan(epoch, None).entries()

    def _first_place(self) -> Place:
        """The place where a new epoch begins.

        A source that learns its order only from a run returns a list, which that run fills in. A
        later run that begins at this place follows the same order.
        """
        return None

    def _leases(self) -> Any:
        """For a run over a queue: takes elements on lease (`aioqueue.queues.leases`); otherwise
        ``None``."""
        return None

    def _placing_in(self, place: Place) -> Any:
        """Return what tracks the places of such a run from this one on; ``None`` if it has none."""
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
        return in_one_process(ending._scan(None, ending._beginning).values(), self)

    def __aiter__(self) -> AsyncIterator[T]:
        if self._is_read_by_tasks:
            return self._values_of_task()
        ending = self._ending(self._beginning)
        return ending._for_tasks(self.__iter__ if ending is self else ending.run, VALUES)

    def run(self) -> Iterator[T]:
        """The items of one run, with all its epochs: without an end, if it has none."""
        return in_one_process(self._scan(None, self._beginning).values(), self)

    def _aentries(self) -> AsyncIterator[Entry[T]]:
        """One run through the source, for ``async for``, as `entries`."""
        if self._is_read_by_tasks:
            return self._entries_of_task()
        return self._for_tasks(self.entries, ENTRIES)

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
        return self._for_tasks(self.placed, PLACED)

    def placed_after(self, place: Place) -> Iterator[PlacedEntry[T]]:
        """The part of a run behind a place.

        Args:
            place: of this source; ``None`` for its beginning.

        Raises:
            InvalidArgumentError: there is no such place; when the first item is asked for.
        """
        return self._scan(None, place).placed()

    def entries_after(self, place: Place) -> Iterator[Entry[T]]:
        """The part of a run behind a place, without places."""
        return self._scan(None, place).entries()

    @property
    def _is_read_by_tasks(self) -> bool:
        """Whether ``async for`` reads the source in the caller's own task (`_ascan`)."""
        return self._is_async or self._reads_queue

    async def _entries_of_task(self) -> AsyncIterator[Entry[T]]:
        async with aclosing(self._ascan(None, None)) as run:  # type: ignore[type-var]
            async for entry, _ in run:
                yield entry

    async def _values_of_task(self) -> AsyncIterator[T]:
        entries = in_one_process_async(self._ascan(None, None), self)
        async with aclosing(entries) as run:  # type: ignore[type-var]
            async for entry, _ in run:
                yield entry.value

    def _for_tasks(
        self, iterate: Callable[[], Iterator[FormT]], form: Form
    ) -> AsyncIterator[FormT]:
        """One form of a run, for ``async for``.

        Args:
            iterate: makes an iterator over that form.
            form: the form.
        """
        from aioqueue.sources.read_ahead import InMemoryIterator, ReadAhead

        if not self.blocking:
            return InMemoryIterator(iterate())
        bursts = self._scan(None, self._beginning).bursts(form)
        return ReadAhead(bursts, ahead=self._ahead, name=self.name)

    def _check_place(self, place: Place) -> None:
        """Check the types of what a place consists of. It may come from a stranger's position.

        Raises:
            InvalidArgumentError: no place of this source is like that.
        """

    def fingerprint(self) -> dict[str, Any]:
        """The fields by which a position recognises this source, in plain JSON types."""
        return {"kind": type(self).__name__, "seed": self.seed}

    def _determined(self) -> Determined:
        """Return what determines the items of the source, in addition to `fingerprint`."""
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
        """Return the error for a request of an epoch from a source that has only whole runs."""
        return None

    def _used_up(self) -> InvalidArgumentError:
        """Return the error for a second iteration over a source that allows only one."""
        return InvalidArgumentError(
            f"source: got {self!r}, which can be iterated over only once; expected one epoch"
        )

    def _with_seeds_of(self, fingerprint: Any) -> Self:
        """Return this source, with the seeds of a fingerprint in place of its own drawn ones."""
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
        """Return how many items come before a place."""
        return 0 if place is None else int(place[0])

    def _ending(self, place: Place) -> BaseSource[T]:
        """This source with an end. If its runs have none, it is the end of the epoch of a place.

        Args:
            place: of a run; ``None`` for its beginning.
        """
        return self
