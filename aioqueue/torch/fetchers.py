"""Fetchers: each makes the batches of one epoch from a sampler's indices.

A `Fetcher` follows PyTorch's rules for its two kinds of datasets.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from aioqueue.base.arguments import is_int
from aioqueue.inputs import Quarantined
from aioqueue.items.item import Item
from aioqueue.torch.collate import BatchMemory, gathering_for


class Exhausted(Exception):  # noqa: N818  # not an error
    """An iterable dataset has ended. (Not `StopIteration`, which a ``collate_fn`` may raise.)"""


@runtime_checkable
class StatefulDataset(Protocol):
    """A dataset that can save and resume its position."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> None: ...


@dataclass(frozen=True)
class Recipe:
    """How to make batches of a dataset."""

    dataset: Any
    is_iterable: bool
    is_batched: bool
    """Whether the sampler yields lists of indices, each for a batch, or single indices."""
    collate_fn: Callable[[Any], Any]
    drop_last: bool
    skips: bool = False
    """Whether samples that fail are left out of their batches."""


class Empty(Exception):  # noqa: N818  # not an error
    """All samples of a batch have failed, and were skipped."""


@dataclass(frozen=True)
class DatasetStart:
    """Where to begin in an iterable dataset."""

    batches: int = 0
    """How many batches of one worker were returned."""
    state: Any = None
    """State of the dataset or its iterator; ``None`` to reread those batches."""
    has_ended: bool = False
    """Whether the dataset ended within the last of those batches."""


@dataclass(frozen=True)
class DatasetState:
    """The position of an iterable dataset after a batch."""

    state: Any
    """State of the dataset or its iterator; ``None`` if it has none."""
    has_ended: bool
    """Whether it ended within that batch; its state may then be that of a beginning."""


class Fetcher(Protocol):
    """Makes one batch after another."""

    def fetch(self, index: Any) -> Any:
        """Return the batch of a list of indices, or the sample of one.

        Raises:
            Exhausted: the dataset is iterable, and has no more samples.
        """

    def take_skipped(self) -> list[Quarantined]:
        """Return the records of samples that were skipped since the last call."""

    def dataset_state(self) -> DatasetState | None:
        """Return the position of an iterable dataset, as a copy."""

    def close(self) -> None:
        """Stop, and close the generator of an iterable dataset."""


def fetcher_of(recipe: Recipe, start: DatasetStart, memory: BatchMemory) -> Fetcher:
    """Return the object that makes the batches of one epoch.

    Args:
        recipe: how to make them.
        start: where to begin.
        memory: allocates batches of large samples.
    """
    if recipe.is_iterable:
        return _IterableFetcher(recipe, start, memory)
    return _MapFetcher(recipe, memory)


class _MapFetcher:
    def __init__(self, recipe: Recipe, memory: BatchMemory) -> None:
        self._recipe = recipe
        self._memory = memory
        self._skipped: list[Quarantined] = []

    def fetch(self, index: Any) -> Any:
        recipe = self._recipe
        dataset = recipe.dataset
        if recipe.skips:
            return self._fetch_sound(index)
        if not recipe.is_batched:
            return recipe.collate_fn(dataset[index])
        at_once = getattr(dataset, "__getitems__", None)
        if at_once:
            return recipe.collate_fn(at_once(index))
        samples = gathering_for(recipe.collate_fn, index, self._memory)
        for one in index:
            samples.add(dataset[one])
        return samples.batch()

    def take_skipped(self) -> list[Quarantined]:
        skipped, self._skipped = self._skipped, []
        return skipped

    def _fetch_sound(self, index: Any) -> Any:
        """Return a batch of the samples that do not fail.

        Raises:
            Empty: all of them do.
        """
        recipe = self._recipe
        if not recipe.is_batched:
            return recipe.collate_fn(*self._sound([index]))
        at_once = getattr(recipe.dataset, "__getitems__", None)
        if at_once:
            try:
                return recipe.collate_fn(at_once(index))
            except Exception:
                pass  # one by one, to see which ones fail
        # All samples first: a batch is gathered for as many as there are.
        sound = self._sound(index)
        samples = gathering_for(recipe.collate_fn, sound, self._memory)
        for sample in sound:
            samples.add(sample)
        return samples.batch()

    def _sound(self, indices: Any) -> list[Any]:
        sound = []
        for one in indices:
            try:
                sound.append(self._recipe.dataset[one])
            except Exception as error:
                place = int(one) if is_int(one) else 0
                self._skipped.append(Quarantined.of(Item(0, one, 0, place), error, 1, 0))
        if not sound:
            raise Empty
        return sound

    def dataset_state(self) -> None:
        """Return nothing: the sampler has the position."""

    def close(self) -> None:
        """Do nothing: no generator is open."""


class _IterableFetcher:
    def __init__(self, recipe: Recipe, start: DatasetStart, memory: BatchMemory) -> None:
        self._recipe = recipe
        self._memory = memory
        self._has_ended = start.has_ended
        self._stateful: StatefulDataset | None = None
        self._samples = self._started(start)
        has_state = start.state is not None
        self._batches_to_skip = 0 if has_state or start.has_ended else start.batches
        if has_state and start.has_ended:
            self._move_to_end(start.state)

    def _started(self, start: DatasetStart) -> Iterator[Any]:
        dataset = self._recipe.dataset
        is_stateful = isinstance(dataset, StatefulDataset)
        if is_stateful and start.state is not None:
            dataset.load_state_dict(start.state)
        samples: Iterator[Any] = iter(dataset)
        if is_stateful:
            self._stateful = dataset
        elif isinstance(samples, StatefulDataset):
            self._stateful = samples
            if start.state is not None:
                samples.load_state_dict(start.state)
        if start.state is not None and self._stateful is None:
            raise TypeError(
                f"dataset: got a {type(dataset).__name__} without state_dict and load_state_dict;"
                " expected a dataset with both, as when the state was saved"
            )
        return samples

    def _move_to_end(self, state: Any) -> None:
        """Put the dataset into the state that it had at its end; the next epoch starts from there.

        Some datasets report that they are at their end, and rewind at the next request; others have
        rewound already, and would begin again.
        """
        try:
            next(self._samples)
        except StopIteration:
            return
        self._samples = iter(())  # closes a running generator before the state is set
        if isinstance(self._recipe.dataset, StatefulDataset):
            self._recipe.dataset.load_state_dict(state)

    def fetch(self, index: Any) -> Any:
        while self._batches_to_skip:  # reread the batches that were returned before
            self._batches_to_skip -= 1
            self._read(index, lambda sample: None)
        if not self._recipe.is_batched:
            return self._recipe.collate_fn(self._next())
        samples = gathering_for(self._recipe.collate_fn, index, self._memory)
        self._read(index, samples.add)
        return samples.batch()

    def take_skipped(self) -> list[Quarantined]:
        """Return none: what has failed cannot continue behind the failure."""
        return []

    def _read(self, index: Any, take: Callable[[Any], None]) -> None:
        """Return the samples of a batch, or a single sample."""
        if not self._recipe.is_batched:
            take(self._next())
            return
        count = 0
        try:
            while count < len(index):
                take(self._next())
                count += 1
        except Exhausted:
            if not count or self._recipe.drop_last:
                raise

    def _next(self) -> Any:
        if not self._has_ended:
            try:
                return next(self._samples)
            except StopIteration:
                self._has_ended = True
        raise Exhausted

    def close(self) -> None:
        samples, self._samples = self._samples, iter(())
        self._has_ended = True
        dataset = self._recipe.dataset
        # Do not close a dataset that is its own iterator, unless it is a generator.
        if samples is not dataset or inspect.isgenerator(dataset):
            getattr(samples, "close", bool)()

    def dataset_state(self) -> DatasetState:
        # A dataset may return the object that it continues to modify.
        state = None if self._stateful is None else copy.deepcopy(self._stateful.state_dict())
        return DatasetState(state, self._has_ended)
