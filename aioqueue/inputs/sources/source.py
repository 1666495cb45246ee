"""`Source`: what users write and hold, which begins a pipeline.

`prepare` and pipelines need the `BaseSource` alone. So this class can stand above them, and have
their stages as its methods.

`QuarantinedItems` is a source of the items in a quarantine file, to prepare them again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing
from os import PathLike
from typing import Any, Self, TypeVar

from aioqueue import InvalidArgumentError
from aioqueue.arguments import checked_count
from aioqueue.forks import in_one_process_async
from aioqueue.inputs.core.base_source import BaseSource
from aioqueue.inputs.core.items import Entry, PlacedEntry, Quarantined
from aioqueue.inputs.core.positions import Place, checked_place, fingerprint_in
from aioqueue.inputs.core.shuffling import derive_seed
from aioqueue.inputs.pipeline.description import BaseStage
from aioqueue.inputs.pipeline.pipeline import Pipeline, Stages
from aioqueue.public_names import public

__all__ = ("QuarantinedItems", "Resumed", "Source", "read_quarantine")


T = TypeVar("T")


@public("aioqueue.inputs")
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

    def _with(self, stage: BaseStage) -> Pipeline[Any]:
        return Pipeline(self)._with(stage)

    def _pipeline(self) -> Pipeline[Any]:
        from aioqueue.inputs.pipeline.build import checked

        return checked(Pipeline(self))

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


class Resumed(Source[T]):
    """A source whose runs begin at a place of another one. See `Source.after`.

    It has runs and no epochs: the first of them would not be a whole one.
    """

    def __init__(self, source: Source[T], place: Place) -> None:
        super().__init__(source.name, source.seed)
        self.blocking: bool = source.blocking
        self._ahead = source._ahead
        self._source = source
        self._beginning = place
        self._is_endless = source._is_endless

    def __repr__(self) -> str:
        return f"<{repr(self._source).strip('<>')}, after {self._beginning}>"

    def __len__(self) -> int:
        """How many items are left: of the run, or of the epoch if the run has no end.

        Raises:
            TypeError: that of the whole source is not known.
        """
        whole: Any = self._source._ending(self._beginning)
        return max(0, len(whole) - self._source._taken_at(self._beginning))

    def _without_epochs(self) -> InvalidArgumentError:
        """What to raise where an epoch of it is wanted."""
        return InvalidArgumentError(
            f"source: got {self!r}, which begins behind a position; expected the whole source: a"
            " pipeline has positions of its own, and goes on by .epochs(..., resume=state)"
        )

    def entries(self) -> Iterator[Entry[T]]:
        return self._source.entries_after(self._beginning)

    def epoch_entries(self, epoch: int) -> Iterator[Entry[T]]:
        raise self._without_epochs()

    def _placed_epoch(self, epoch: int, after: Place = None) -> Iterator[PlacedEntry[T]]:
        raise self._without_epochs()

    def epoch(self, number: int) -> Source[T]:
        raise self._without_epochs()

    def entries_after(self, place: Place) -> Iterator[Entry[T]]:
        return self._source.entries_after(self._beginning if place is None else place)

    def placed_after(self, place: Place) -> Iterator[PlacedEntry[T]]:
        return self._source.placed_after(self._beginning if place is None else place)

    def _ending(self, place: Place) -> Source[T]:
        if not self._is_endless:
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
        self._is_once = source._is_once
        self._is_async = source._is_async
        self._is_repeatable = source._is_repeatable
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
    def _stage_seed(self) -> int:
        # A pipeline of it counts epochs from 0, whichever this is; that of another draws otherwise.
        return derive_seed(self._source._stage_seed, self._number)

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
    def _is_at_hand(self) -> bool:
        return self._source._is_at_hand

    @property
    def _is_in_memory(self) -> bool:
        return self._source._is_in_memory

    def items_per_epoch(self) -> int | None:
        return self._source.items_per_epoch()

    def entries(self) -> Iterator[Entry[T]]:
        return self._source.epoch_entries(self._number)

    def epoch_entries(self, epoch: int) -> Iterator[Entry[T]]:
        return self._source.epoch_entries(self._number + epoch)

    def _aentries(self) -> AsyncIterator[Entry[T]]:
        return self._epoch_aentries(0) if self._is_async else super()._aentries()

    def _epoch_aentries(self, epoch: int) -> AsyncIterator[Entry[T]]:
        return self._source._epoch_aentries(self._number + epoch)

    def __aiter__(self) -> AsyncIterator[T]:
        return self._avalues() if self._is_async else super().__aiter__()

    async def _avalues(self) -> AsyncIterator[T]:
        run = in_one_process_async(self._aentries(), self)
        async with aclosing(run) as entries:  # type: ignore[type-var]
            async for entry in entries:
                yield entry.value

    def _first_place(self) -> Place:
        return self._source._first_place()

    def _placed_epoch(self, epoch: int, after: Place = None) -> Iterator[PlacedEntry[T]]:
        return self._source._placed_epoch(self._number + epoch, after)

    def _placed_aepoch(self, epoch: int, after: Place = None) -> AsyncIterator[PlacedEntry[T]]:
        return self._source._placed_aepoch(self._number + epoch, after)

    def _picked(self, epoch: int, places: Sequence[int]) -> Iterator[Entry[T]] | None:
        return self._source._picked(self._number + epoch, places)

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


@public("aioqueue.inputs")
class QuarantinedItems(Source[Any]):
    """The items of a quarantine file, as a source to prepare again. See `read_quarantine`.

    Attributes:
        records: all that the file says about them.
    """

    def __init__(self, records: list[Quarantined], name: str, seed: int | None) -> None:
        super().__init__(name, seed)
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def entries(self) -> Iterator[Entry[Any]]:
        for record in self.records:
            yield Entry(record.item, record.epoch, record.index)


def read_quarantine(path: str | PathLike[str], *, trusted: bool = False) -> QuarantinedItems:
    """Read a file that ``prepare(..., quarantine=path)`` has written.

    Args:
        path: the file.
        trusted: whether items that were pickled may be unpickled, which can run any code: say so
            only of a file that nobody else could have written.

    Returns:
        A source of the items, with the epoch, index and seed that they had, so that preparing them
        again gives them the same ``rng``; its ``records`` tell the rest. An item that was in the
        file twice is there twice.

    Raises:
        OSError: the file cannot be read.
        DataLossError: a line is damaged.
        InvalidArgumentError: an item was pickled and the file is not trusted; an item was neither
            JSON nor could be pickled; or the records have several seeds.
    """
    from aioqueue.inputs.prepare.quarantine import lines_of, record_of

    where = str(path)
    with open(path, "rb") as file:
        records = [record_of(line, trusted=trusted, replay=True) for line in lines_of(file, where)]
    seeds = {record.seed for record in records}
    if len(seeds) > 1:
        raise InvalidArgumentError(
            f"path: got {where!r}, which holds records of {len(seeds)} runs with different seeds;"
            " expected one run, or runs with one seed"
        )
    return QuarantinedItems(records, f"quarantine {where}", seeds.pop() if seeds else None)
