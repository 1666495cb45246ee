"""`Source`: what users write and hold, which begins a pipeline.

`prepare` and pipelines need the `BaseSource` alone. So this class can stand above them, and have
their stages as its methods.

`QuarantinedItems` is a source of the items in a quarantine file, to prepare them again.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from hashlib import blake2b
from itertools import groupby, islice
from math import fsum
from numbers import Real
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypeVar

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import checked_count
from aioqueue.base.hints import hint_attributes, hint_methods
from aioqueue.base.public_names import public
from aioqueue.items.declared_kinds import KindRegistry
from aioqueue.items.index import derive_index
from aioqueue.items.item import Entry, PlacedEntry, closing_run
from aioqueue.items.positions import (
    Place,
    checked_place,
    fingerprint_in,
    misplaced,
    refusing_wrong_values,
)
from aioqueue.pipeline.pipeline import Pipeline, Stages
from aioqueue.pipeline.stages.base import BaseStage
from aioqueue.sources.base import BaseSource, Determined, Scan
from aioqueue.sources.shuffling import derive_seed, resolved_seed

if TYPE_CHECKING:
    from aioqueue.items.quarantined import Quarantined

T = TypeVar("T")


SOURCES: Final = KindRegistry(
    "source",
    ("_functions", "_extra", "_page", "_resumes", "_no_ranks"),
    ("aioqueue.sources.kinds", "aioqueue.readers"),
)
"""The sources of the package. `SOURCES.kinds()` lists them."""

_FOR_AUTHORS: Final = frozenset(
    {
        "blocking",
        "entries",
        "entries_after",
        "epoch_entries",
        "fingerprint",
        "items_per_epoch",
        "placed_after",
    }
)
"""What somebody who writes a source overrides, and nobody else needs."""


@public("aioqueue.inputs")
@hint_attributes("a source")
class Source(Stages[T], BaseSource[T]):
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

    _functions: ClassVar[Sequence[str]] = ()
    """What makes it: public functions, and methods of public classes."""

    _extra: ClassVar[str | None] = None
    """The extra that it needs; ``None`` if it needs none."""

    _page: ClassVar[str] = "howto/sources.md"
    """The page of the docs that describes it."""

    _resumes: ClassVar[Literal["exactly", "if stateful", "never"]] = "exactly"
    """Whether a run can continue behind any item."""

    def __init_subclass__(cls, *, is_kind: bool = True, **options: Any) -> None:
        super().__init_subclass__(**options)
        if is_kind:
            SOURCES.add(cls, Source)

    def __dir__(self) -> list[str]:
        """What you use of a source, without what you only override to write one."""
        return [name for name in super().__dir__() if name not in _FOR_AUTHORS]

    def _with(self, stage: BaseStage) -> Pipeline[Any]:
        # Here a source becomes a pipeline.
        return Pipeline(self)._with(stage)

    def _pipeline(self) -> Pipeline[Any]:
        from aioqueue.pipeline.stages.chain import checked

        return checked(Pipeline(self))

    @abstractmethod
    def entries(self) -> Iterator[Entry[T]]:
        """One run through the source: its items, each with its epoch and index."""

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

    def entries_after(self, place: Place) -> Iterator[Entry[T]]:
        """The part of a run behind a place, without places."""
        if place is None:
            return self.entries()
        return (placed.entry for placed in self.placed_after(place))

    def _scan(self, epoch: int | None, after: Place) -> Scan[T]:
        return _PublicScan(self, epoch, after)

    def _ending(self, place: Place) -> Source[T]:
        return self

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

    def repeat(self, times: int) -> Source[T]:
        """This source several times in each epoch, so that a small one keeps up with others.

        ``small.repeat(3).mix(large)`` has each item of ``small`` three times in an epoch. Each pass
        is an epoch of this source, with another order and other generators: epoch 1 of
        ``repeat(3)`` has its epochs 3, 4 and 5. To go through a pipeline several times, use its
        `epochs`.

        Args:
            times: how often, >= 1.

        Returns:
            A source.

        Raises:
            InvalidArgumentError: it is no such int, or you can iterate over this source only once.
        """
        times = checked_count(times, "times", least=1)
        if self._is_once or self._first_place() is not None:
            raise InvalidArgumentError(
                f"repeat: got {self!r}, which has one iteration, or an order that only a run shows;"
                " expected a source that can, such as items(...) or a reader of files"
            )
        return _Repeated(self, times)

    def split(self, fractions: Sequence[float], *, seed: int = 0) -> list[Source[T]]:
        """Cut this source into parts that have no item in common: to train and to validate, say.

        Which part an item belongs to depends on the seed and its index alone. So the parts are the
        same on every run and rank, whatever the order of an epoch, and also if the source has no
        seed. Each part shuffles if this source does, and otherwise keeps its order. (A part of more
        than 4,194,304 `items` comes in a random order, because no table is made of it.)

        Parts of `items`, `numbers` and `arrays` have the exact sizes, and know their length. Those
        of readers and other sources have the fractions on average; all parts read all of it, and
        leave out what is not theirs.

        Args:
            fractions: one for each part, > 0, which make 1 together.
            seed: another one cuts otherwise.

        Returns:
            A source for each fraction. An item has the index that it has in the whole.

        Raises:
            InvalidArgumentError: the fractions or the seed are wrong.
        """
        bounds = parts_of(fractions, 2**64)
        seed = checked_split_seed(seed)
        return [_SourcePart(self, bounds, number, seed) for number in range(len(bounds))]

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
        place = checked_place(position, source.fingerprint())
        if place is not None:
            with refusing_wrong_values():
                source._check_place(place)
        return Resumed(source, place)


hint_methods(Source, "inputs", ("after", "epoch", "repeat", "split"))


class _PublicScan(Scan[T]):
    """A scan of a source of the user's, by the public methods, which a subclass may override.

    A place within an epoch is the number of items before it, and the index of the last of them.
    """

    __slots__ = ("_after", "_epoch", "_source")

    def __init__(self, source: Source[T], epoch: int | None, after: Place) -> None:
        self._source = source
        self._epoch = epoch
        self._after = after

    def entries(self) -> Iterator[Entry[T]]:
        if self._epoch is None:
            return self._source.entries_after(self._after)
        if self._after is None:
            return self._source.epoch_entries(self._epoch)
        return (placed.entry for placed in self._placed_in_epoch(self._epoch))

    def placed(self) -> Iterator[PlacedEntry[T]]:
        if self._epoch is None:
            return self._source.placed_after(self._after)
        return self._placed_in_epoch(self._epoch)

    def _placed_in_epoch(self, epoch: int) -> Iterator[PlacedEntry[T]]:
        taken = 0
        with closing_run(self._source.epoch_entries(epoch)) as run:
            if self._after is not None:
                taken, last = self._after
                entry = next(islice(run, taken - 1, None), None)
                if entry is None or entry.index != last:
                    found = "fewer items" if entry is None else entry.index
                    raise misplaced(
                        f"{last} as index of item {taken} of epoch {epoch}",
                        f"{found}, which {self._source.name} has",
                    )
            for number, entry in enumerate(run, taken + 1):
                yield PlacedEntry(entry, (number, entry.index))


class BuiltinSource(Source[T], is_kind=False):
    """A source of this package: `_scan` says what it has, and the public methods follow from it."""

    @abstractmethod
    def _scan(self, epoch: int | None, after: Place) -> Scan[T]:
        """Return the items of an epoch or of a whole run behind a place; see `BaseSource._scan`."""

    # Not those of `Source`, which call the overrides of user-defined sources.

    def entries(self) -> Iterator[Entry[T]]:
        return BaseSource.entries(self)

    def epoch_entries(self, epoch: int) -> Iterator[Entry[T]]:
        return BaseSource.epoch_entries(self, epoch)

    def placed_after(self, place: Place) -> Iterator[PlacedEntry[T]]:
        return BaseSource.placed_after(self, place)

    def entries_after(self, place: Place) -> Iterator[Entry[T]]:
        return BaseSource.entries_after(self, place)


def checked_split_seed(seed: Any) -> int:
    """Check the seed of a split, which is never drawn.

    Raises:
        InvalidArgumentError: it is no int of 64 bits.
    """
    if seed is None:
        raise InvalidArgumentError(
            "seed: got None; expected an int: with a random one, another run would train on items"
            " that this one validates with"
        )
    return resolved_seed(seed)


class Resumed(BuiltinSource[T]):
    """A source whose runs begin at a place of another one. See `Source.after`.

    It has runs and no epochs: the first of them would not be a whole one.
    """

    _functions = ("Source.after",)
    _extra = None
    _page = "howto/sources.md"
    _resumes = "exactly"
    _no_ranks = None

    def __init__(self, source: Source[T], place: Place) -> None:
        super().__init__(source.name, source.seed)
        self.blocking: bool = source.blocking
        self._ahead = source._ahead
        self._source = source
        self._beginning = place
        self._is_endless = source._is_endless

    def __repr__(self) -> str:
        return f"<{repr(self._source).strip('<>')}, after {self._beginning}>"

    def _details(self) -> str:
        return f"{self._source._details()}, after {self._beginning}"

    def __len__(self) -> int:
        """How many items are left: of the run, or of the epoch if the run has no end.

        Raises:
            TypeError: that of the whole source is not known.
        """
        whole: Any = self._source._ending(self._beginning)
        return max(0, len(whole) - self._source._taken_at(self._beginning))

    def _without_epochs(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"source: got {self!r}, which begins behind a position; expected the whole source: a"
            " pipeline has positions of its own, and goes on by .epochs(..., resume=state)"
        )

    def _scan(self, epoch: int | None, after: Place) -> Scan[T]:
        if epoch is not None:
            raise self._without_epochs()
        return self._source._scan(None, self._beginning if after is None else after)

    def epoch(self, number: int) -> Source[T]:
        raise self._without_epochs()

    def _ending(self, place: Place) -> Source[T]:
        if not self._is_endless:
            return self
        place = self._beginning if place is None else place
        return Resumed(self._source._ending(place), place)

    def fingerprint(self) -> dict[str, Any]:
        return self._source.fingerprint()

    def _determined(self) -> Determined:
        return Determined(inner=(self._source,))

    def after(self, position: Mapping[str, Any]) -> Source[T]:
        return self._source.after(position)

    def locate(self, index: int) -> str:
        return self._source.locate(index)

    def _with_seeds_of(self, fingerprint: Any) -> Self:
        return self  # it has those of its own position

    def _taken_at(self, place: Place) -> int:
        return self._source._taken_at(place)


class _Derived(BuiltinSource[T], is_kind=False):
    """Another source, whose epochs are made of those of a source; a run of it is its first epoch.

    Args:
        source: that source.
    """

    _extra = None
    _page = "howto/sources.md"
    _resumes = "exactly"
    _no_ranks = None

    def __init__(self, source: Source[T]) -> None:
        super().__init__(source.name, source.seed)
        self.blocking = source.blocking
        self._is_once = source._is_once
        self._is_async = source._is_async
        self._is_repeatable = source._is_repeatable
        self._ahead = source._ahead
        self._no_ranks = source._no_ranks
        self._source = source

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
    def _stage_seed(self) -> int:
        return self._source._stage_seed

    @property
    def _is_shuffled(self) -> bool:
        return self._source._is_shuffled

    @property
    def _has_own_order(self) -> bool:
        return self._source._has_own_order

    @property
    def _has_drawn_seed(self) -> bool:
        return self._source._has_drawn_seed

    @property
    def _never_waits(self) -> bool:
        return self._source._never_waits

    @property
    def _is_in_memory(self) -> bool:
        return self._source._is_in_memory

    def _first_place(self) -> Place:
        return self._source._first_place()

    def locate(self, index: int) -> str:
        return self._source.locate(index)

    def _damaged_files(self) -> list[Quarantined]:
        return self._source._damaged_files()

    def fingerprint(self) -> dict[str, Any]:
        return {**self._identity(), "source": self._source.fingerprint()}

    def _determined(self) -> Determined:
        return Determined(inner=(self._source,))

    @abstractmethod
    def _identity(self) -> dict[str, Any]:
        """Return what identifies it apart from its source, by field, in plain JSON types."""

    def _with_seeds_of(self, fingerprint: Any) -> Self:
        inner = fingerprint.get("source") if isinstance(fingerprint, Mapping) else None
        return self._of(self._source._with_seeds_of(inner))

    def _seeded_by(self, seed: int) -> Self:
        return self._of(self._source._seeded_by(seed))

    def _of(self, source: Source[T]) -> Self:
        one = self._with_seed(source.seed)
        one._source = source
        return one


class _OneEpoch(_Derived[T]):
    _functions = ("Source.epoch",)

    def __init__(self, source: Source[T], number: int) -> None:
        super().__init__(source)
        self._number = number

    def __repr__(self) -> str:
        return f"{self._source!r}.epoch({self._number})"

    def _details(self) -> str:
        return f"{self._source._details()}.epoch({self._number})"

    @property
    def _stage_seed(self) -> int:
        # A pipeline of it counts epochs from 0, whichever this is; that of another draws otherwise.
        return derive_seed(self._source._stage_seed, self._number)

    def items_per_epoch(self) -> int | None:
        return self._source.items_per_epoch()

    def _scan(self, epoch: int | None, after: Place) -> Scan[T]:
        return self._source._scan(self._number + (epoch or 0), after)

    def _ascan(self, epoch: int | None, after: Place) -> AsyncIterator[PlacedEntry[T]]:
        return self._source._ascan(self._number + (epoch or 0), after)

    def _pick(self, epoch: int | None, places: Sequence[int]) -> Iterator[Entry[T]] | None:
        return self._source._pick(self._number + (epoch or 0), places)

    def _identity(self) -> dict[str, Any]:
        return {"kind": "epoch", "number": self._number}


class _Repeated(_Derived[T]):
    """Several epochs of a source as one."""

    _functions = ("Source.repeat",)

    def __init__(self, source: Source[T], times: int) -> None:
        super().__init__(source)
        self._times = times

    def __repr__(self) -> str:
        return f"{self._source!r}.repeat({self._times})"

    def _details(self) -> str:
        return f"{self._source._details()}.repeat({self._times})"

    @property
    def _inner_sources(self) -> Sequence[BaseSource[Any]]:
        return (self._source,)

    @property
    def _size(self) -> int | None:
        """How many items a pass has, where places are such numbers; otherwise ``None``."""
        size = self._source.items_per_epoch()
        return None if size is None or self._source._pick(0, ()) is None else size

    def items_per_epoch(self) -> int | None:
        size = self._source.items_per_epoch()
        return None if size is None else size * self._times

    def _scan(self, epoch: int | None, after: Place) -> Scan[T]:
        return _RepeatedScan(self, epoch or 0, after)

    async def _ascan(self, epoch: int | None, after: Place) -> AsyncIterator[PlacedEntry[T]]:
        epoch = epoch or 0
        first, place = (0, None) if after is None else after
        for one in range(first, self._times):
            found: Any = self._source._ascan(self._number(epoch, one), place)
            async with aclosing(found) as run:
                async for entry, behind in run:
                    yield PlacedEntry(self._entry(entry, epoch, one), (one, behind))
            place = None

    def _pick(self, epoch: int | None, places: Sequence[int]) -> Iterator[Entry[T]] | None:
        size = self._size
        return None if size is None else self._picked(epoch or 0, places, max(size, 1))

    def _picked(self, epoch: int, places: Sequence[int], size: int) -> Iterator[Entry[T]]:
        for one, group in groupby(places, lambda place: place // size):
            within = [place % size for place in group]
            found = self._source._pick(self._number(epoch, one), within)
            assert found is not None
            for entry in found:
                yield self._entry(entry, epoch, one)

    def locate(self, index: int) -> str:
        return self._source.locate(index // self._times)

    def _identity(self) -> dict[str, Any]:
        return {"kind": "repeated", "times": self._times}

    def _number(self, epoch: int, one: int) -> int:
        return epoch * self._times + one

    def _entry(self, entry: Entry[T], epoch: int, one: int) -> Entry[T]:
        return Entry(entry.value, epoch, derive_index(entry.index, one, self._times))


class _RepeatedScan(Scan[T]):
    __slots__ = ("_after", "_epoch", "_repeated")

    def __init__(self, repeated: _Repeated[T], epoch: int, after: Place) -> None:
        self._repeated = repeated
        self._epoch = epoch
        self._after = after

    def entries(self) -> Iterator[Entry[T]]:
        repeated, epoch = self._repeated, self._epoch
        for one, _, scan in self._scans():
            with closing_run(scan.entries()) as run:
                for entry in run:
                    yield repeated._entry(entry, epoch, one)

    def placed(self) -> Iterator[PlacedEntry[T]]:
        repeated, epoch = self._repeated, self._epoch
        for one, size, scan in self._scans():
            with closing_run(scan.placed()) as run:
                for entry, behind in run:
                    # Where places are numbers, those of all passes are numbers, too: then the
                    # whole has random access.
                    reached = (one, behind) if size is None else one * size + behind
                    yield PlacedEntry(repeated._entry(entry, epoch, one), reached)

    def _scans(self) -> Iterator[tuple[int, int | None, Scan[T]]]:
        """Yield each pass: its number, its number of items if places are numbers, and its scan."""
        repeated, after = self._repeated, self._after
        size, first, place = repeated._size, 0, after
        if after is not None:
            first, place = after if size is None else divmod(after, max(size, 1))
        for one in range(first, repeated._times):
            number = repeated._number(self._epoch, one)
            yield one, size, repeated._source._scan(number, place)
            place = None  # only the first pass begins within


class _SourcePart(_Derived[T]):
    """The items of a source that belong to one part, each by its index.

    Args:
        source: of all parts.
        bounds: where the parts end, of 2**64.
        number: which part.
        seed: that says which items belong to which.
    """

    _functions = ("Source.split",)

    def __init__(self, source: Source[T], bounds: Sequence[int], number: int, seed: int) -> None:
        super().__init__(source)
        self._bounds = bounds
        self._part = number
        self._split_seed = seed

    def __repr__(self) -> str:
        return f"<{repr(self._source).strip('<>')}, part {self._part} of {len(self._bounds)}>"

    def _details(self) -> str:
        return f"{self._source._details()}, part {self._part} of {len(self._bounds)}"

    @property
    def _is_in_memory(self) -> bool:
        return False

    def _scan(self, epoch: int | None, after: Place) -> Scan[T]:
        return _PartScan(self._source._scan(epoch or 0, after), self._has)

    async def _ascan(self, epoch: int | None, after: Place) -> AsyncIterator[PlacedEntry[T]]:
        found: Any = self._source._ascan(epoch or 0, after)
        async with aclosing(found) as run:
            async for placed in run:
                if self._has(placed.entry):
                    yield placed

    def _identity(self) -> dict[str, Any]:
        return {
            "kind": "part",
            "number": self._part,
            "bounds": [str(bound) for bound in self._bounds],
            "seed": self._split_seed,
        }

    def _has(self, entry: Entry[Any]) -> bool:
        identity = f"{self._split_seed}.{entry.index}".encode("ascii")
        word = int.from_bytes(blake2b(identity, digest_size=8).digest(), "little")
        return bisect_right(self._bounds, word) == self._part


class _PartScan(Scan[T]):
    __slots__ = ("_has", "_whole")

    def __init__(self, whole: Scan[T], has: Callable[[Entry[Any]], bool]) -> None:
        self._whole = whole
        self._has = has

    def entries(self) -> Iterator[Entry[T]]:
        with closing_run(self._whole.entries()) as run:
            yield from filter(self._has, run)

    def placed(self) -> Iterator[PlacedEntry[T]]:
        has = self._has
        with closing_run(self._whole.placed()) as run:
            yield from (placed for placed in run if has(placed.entry))


def parts_of(fractions: Sequence[float], total: int) -> list[int]:
    """Where parts end that have these fractions of a total; the last one has what is left.

    Raises:
        InvalidArgumentError: they are no numbers > 0 that make 1 together.
    """
    given: Any = fractions
    found = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []
    are_numbers = all(isinstance(one, Real) and not isinstance(one, bool) for one in found)
    if not found or not are_numbers or min(found) <= 0 or abs(fsum(found) - 1) > 1e-6:
        raise InvalidArgumentError(
            f"fractions: got {fractions!r}; expected numbers > 0 that make 1 together, such as"
            " [0.9, 0.1]"
        )
    return [*(round(fsum(found[:at]) * total) for at in range(1, len(found))), total]


@public("aioqueue.inputs")
class QuarantinedItems(Source[Any]):
    """The items of a quarantine file, as a source to prepare again. See `read_quarantine`.

    Attributes:
        records: all that the file says about them.
    """

    _functions = ("read_quarantine",)
    _extra = None
    _page = "howto/bad-records.md"
    _resumes = "exactly"
    _no_ranks = None

    def __init__(self, records: list[Quarantined], name: str, seed: int | None) -> None:
        super().__init__(name, seed)
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def fingerprint(self) -> dict[str, Any]:
        from aioqueue.fingerprints.contents import digest_of_items

        items = [(one.item, one.epoch, one.index) for one in self.records]
        return {**super().fingerprint(), "length": len(self), "items": digest_of_items(items)}

    def _determined(self) -> Determined:
        return Determined(values={"records": self.records})

    def entries(self) -> Iterator[Entry[Any]]:
        for record in self.records:
            yield Entry(record.item, record.epoch, record.index)


def read_quarantine(path: str | PathLike[str], *, trusted: bool = False) -> QuarantinedItems:
    """Read a file that ``prepare(..., quarantine=path)`` has written, or a reader of files.

    Args:
        path: the file.
        trusted: whether items that were pickled may be unpickled, which can run any code: say so
            only of a file that nobody else could have written.

    Returns:
        A source of the items, with the epoch, index and seed that they had, so that preparing them
        again gives them the same ``rng``; its ``records`` tell the rest. An item that was in the
        file twice is there twice. Of a damaged file, the item is its path.

    Raises:
        OSError: the file cannot be read.
        DataLossError: a line is damaged.
        InvalidArgumentError: an item was pickled and the file is not trusted; an item was neither
            JSON nor could be pickled; or the records of items have several seeds.
    """
    from aioqueue.items.quarantine import lines_of, record_of

    where = str(path)
    with open(path, "rb") as file:
        records = [record_of(line, trusted=trusted, replay=True) for line in lines_of(file, where)]
    # Damaged files are read again, whichever seeds their readers had.
    seeds = {record.seed for record in records if record.offset is None}
    if len(seeds) > 1:
        raise InvalidArgumentError(
            f"path: got {where!r}, which holds records of {len(seeds)} runs with different seeds;"
            " expected one run, or runs with one seed"
        )
    return QuarantinedItems(records, f"quarantine {where}", seeds.pop() if seeds else None)
