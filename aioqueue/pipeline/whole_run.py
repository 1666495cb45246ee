"""`WholeRun`: all epochs of a source as one epoch, for streams that batch across epochs.

In a pipeline every epoch begins anew. `batch` and `shuffle_batch` make batches and draw examples
across the epochs of their source, and a mixture may not even have epochs. So the nodes see the
whole run as epoch 0. The upper bits of an item's index hold the epoch that it has in its source.
They are split again before workers see the item (`WholeRunInput`), because random generators depend
on both numbers, and failures and records of skipped items name them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Self, TypeVar

from aioqueue import AsyncQueue, sync
from aioqueue.items.item import Delivered, Entry, Item, ItemCounts, PlacedEntry, closing_run
from aioqueue.items.positions import Place
from aioqueue.pipeline.nodes.rows import END, LazyRows, State
from aioqueue.pipeline.queue_node import QueueNode
from aioqueue.pipeline.stage_input import StageInput
from aioqueue.sources.base import BaseSource, Scan

T = TypeVar("T")

_INDEX_BITS: Final = 128
"""How many bits the index of an item may have; the bits above hold its epoch."""
_INDEX_MASK: Final = 2**_INDEX_BITS - 1


class WholeRun(BaseSource[T]):
    """A source whose only epoch is a whole run through another source. Made by `whole_run`."""

    def __init__(self, source: BaseSource[T]) -> None:
        super().__init__(source.name, source.seed)
        self.blocking: bool = source.blocking
        self._is_repeatable = source._is_repeatable
        self._ahead = source._ahead
        self._source = source

    def __repr__(self) -> str:
        return repr(self._source)

    @property
    def _is_in_memory(self) -> bool:
        return self._source._is_in_memory

    @property
    def _fed_by(self) -> AsyncQueue | sync.BlockingQueue | None:
        return self._source._fed_by

    def _scan(self, epoch: int | None, after: Place) -> Scan[T]:
        return _WholeRunScan(self._source._scan(None, after))

    def _pick(self, epoch: int | None, places: Sequence[int]) -> Iterator[Entry[T]] | None:
        entries = self._source._pick(None, places)
        return None if entries is None else map(_in_run, entries)

    def may_end_after(self, items: int) -> bool:
        """Whether a run may have ended after a number of items, as far as that is known."""
        return not self._source._is_endless

    def fingerprint(self) -> dict[str, Any]:
        return {"kind": "run", "source": self._source.fingerprint()}

    def _with_seeds_of(self, fingerprint: Any) -> Self:
        theirs = fingerprint.get("source") if isinstance(fingerprint, Mapping) else None
        return type(self)(self._source._with_seeds_of(theirs))


class _WholeRunScan(Scan[T]):
    """A scan of a whole run, as one epoch."""

    __slots__ = ("_run",)

    def __init__(self, run: Scan[T]) -> None:
        self._run = run

    def entries(self) -> Iterator[Entry[T]]:
        return map(_in_run, self._run.entries())

    def placed(self) -> Iterator[PlacedEntry[T]]:
        for entry, place in self._run.placed():
            yield PlacedEntry(_in_run(entry), place)


class _SizedRun(WholeRun[T]):
    """A run whose length is known."""

    def items_per_epoch(self) -> int:
        source: Any = self._source
        return len(source)

    def may_end_after(self, items: int) -> bool:
        return self.items_per_epoch() == items


def whole_run(source: BaseSource[T]) -> WholeRun[T]:
    """Return the run through all epochs of a source as a source of one epoch."""
    given: Any = source
    if source._is_endless:  # its `len` would be that of one epoch
        return WholeRun(source)
    try:
        len(given)
    except TypeError:
        return WholeRun(source)
    return _SizedRun(source)


class WholeRunInput(StageInput):
    """Gives workers the entries as the source itself has them, with its epochs and indices."""

    def entries(self) -> Generator[Entry[Any], None, None]:
        with closing_run(super().entries()) as entries:
            for entry in entries:
                yield _in_source(entry)

    async def _aentries(self) -> AsyncGenerator[Entry[Any], None]:
        async with aclosing(super()._aentries()) as entries:
            async for entry in entries:
                yield _in_source(entry)


class WholeRunNode(QueueNode):
    """Gives the examples of a run, which is epoch 0 to the nodes whatever epochs the source has."""

    def _accept(self, items: list[Delivered], n: int = 0) -> LazyRows | None:
        # Workers deliver items with the source's epochs. `QueueNode` would set those of later
        # epochs aside, and wait for the end of epoch 0 first, which comes at the end of the run.
        return super()._accept([(0, item[1], item[2], item[3], item[4]) for item in items], n)

    def restore_counts(self, tally: State) -> tuple[ItemCounts, Callable[[Item], bool]]:
        counts, is_known = super().restore_counts(tally)
        return counts, lambda item: is_known(item._replace(epoch=0))

    @property
    def length(self) -> int | None:
        """How many items the run has; ``None`` until its end was seen, or if it began there."""
        is_seen = self._epoch or self._expected is not None
        count = self.items_of_epoch if self._epoch else self._count
        return count if is_seen and count < END else None


def _in_run(entry: Entry[T]) -> Entry[T]:
    """Return an entry of the source as one of the run."""
    value, epoch, index = entry
    return Entry(value, 0, epoch << _INDEX_BITS | index)


def _in_source(entry: Entry[T]) -> Entry[T]:
    """Return an entry of the run as one of the source."""
    value, _, index = entry
    return Entry(value, index >> _INDEX_BITS, index & _INDEX_MASK)
