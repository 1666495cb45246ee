"""From what a sampler gives to a batch: the rules of PyTorch's two kinds of datasets."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from aioqueue.torch.collate import BatchMemory, gathering_for

__all__ = (
    "DatasetStart",
    "DatasetState",
    "Exhausted",
    "Fetcher",
    "Recipe",
    "StatefulDataset",
    "fetcher_of",
)


class Exhausted(Exception):  # noqa: N818  # it is no error
    """An iterable dataset has ended. (Not `StopIteration`: a ``collate_fn`` may raise that.)"""


@runtime_checkable
class StatefulDataset(Protocol):
    """What can say where it is, and go on from there."""

    def state_dict(self) -> Any:
        """Where it is."""

    def load_state_dict(self, state: Any) -> None:
        """Go on from there."""


@dataclass(frozen=True)
class Recipe:
    """How batches of a dataset are made."""

    dataset: Any
    is_iterable: bool
    is_batched: bool
    """Whether the sampler gives lists of indices, of which a batch is made, or single ones."""
    collate_fn: Callable[[Any], Any]
    drop_last: bool


@dataclass(frozen=True)
class DatasetStart:
    """Where in an iterable dataset to begin."""

    batches: int = 0
    """How many batches were handed out, by one worker."""
    state: Any = None
    """What the dataset, or its iterator, says of itself; ``None`` to read those batches again."""
    has_ended: bool = False
    """Whether the last of those batches was the last there is, as its dataset had ended in it."""


@dataclass(frozen=True)
class DatasetState:
    """Where an iterable dataset is after a batch."""

    state: Any
    """What it, or its iterator, says of itself; ``None`` if it cannot."""
    has_ended: bool
    """Whether it has ended in that batch; its state may then be that of a beginning."""


class Fetcher(Protocol):
    """Makes batches, one after the other."""

    def fetch(self, index: Any) -> Any:
        """The batch of a list of indices, or the sample of one.

        Raises:
            Exhausted: the dataset is iterable, and has no more.
        """

    def standing(self) -> DatasetState | None:
        """Where an iterable dataset is, in an object of its own."""

    def close(self) -> None:
        """Make no more, and close the generator of an iterable dataset."""


def fetcher_of(recipe: Recipe, start: DatasetStart, memory: BatchMemory) -> Fetcher:
    """What makes the batches of one epoch.

    Args:
        recipe: how.
        start: where to begin.
        memory: where those of large samples are made.
    """
    if recipe.is_iterable:
        return _IterableFetcher(recipe, start, memory)
    return _MapFetcher(recipe, memory)


class _MapFetcher:
    def __init__(self, recipe: Recipe, memory: BatchMemory) -> None:
        self._recipe = recipe
        self._memory = memory

    def fetch(self, index: Any) -> Any:
        recipe = self._recipe
        dataset = recipe.dataset
        if not recipe.is_batched:
            return recipe.collate_fn(dataset[index])
        at_once = getattr(dataset, "__getitems__", None)
        if at_once:
            return recipe.collate_fn(at_once(index))
        samples = gathering_for(recipe.collate_fn, index, self._memory)
        for one in index:
            samples.add(dataset[one])
        return samples.batch()

    def standing(self) -> None:
        """The position is the sampler's."""

    def close(self) -> None:
        """Nothing is open."""


class _IterableFetcher:
    def __init__(self, recipe: Recipe, start: DatasetStart, memory: BatchMemory) -> None:
        self._recipe = recipe
        self._memory = memory
        self._has_ended = start.has_ended
        self._stateful: StatefulDataset | None = None
        self._samples = self._begun(start)
        has_state = start.state is not None
        self._behind = 0 if has_state or start.has_ended else start.batches
        if has_state and start.has_ended:
            self._come_to_its_end(start.state)

    def _begun(self, start: DatasetStart) -> Iterator[Any]:
        dataset = self._recipe.dataset
        knows = isinstance(dataset, StatefulDataset)
        if knows and start.state is not None:
            dataset.load_state_dict(start.state)
        samples: Iterator[Any] = iter(dataset)
        if knows:
            self._stateful = dataset
        elif isinstance(samples, StatefulDataset):
            self._stateful = samples
            if start.state is not None:
                samples.load_state_dict(start.state)
        if start.state is not None and self._stateful is None:
            raise TypeError(
                f"dataset: got a {type(dataset).__name__} without state_dict and load_state_dict;"
                " expected one that has both, as when the state of the loader was saved"
            )
        return samples

    def _come_to_its_end(self, state: Any) -> None:
        """Leave the dataset as it was when it had ended, of which the next epoch makes its own.

        Some say that they are at their end, and go back to their start when they are asked for
        more; others have gone there, and would begin.
        """
        try:
            next(self._samples)
        except StopIteration:
            return
        self._samples = iter(())  # a generator that was begun ends here, before the state is set
        if isinstance(self._recipe.dataset, StatefulDataset):
            self._recipe.dataset.load_state_dict(state)

    def fetch(self, index: Any) -> Any:
        while self._behind:  # what was handed out before is read, and nothing is made of it
            self._behind -= 1
            self._read(index, lambda sample: None)
        if not self._recipe.is_batched:
            return self._recipe.collate_fn(self._next())
        samples = gathering_for(self._recipe.collate_fn, index, self._memory)
        self._read(index, samples.add)
        return samples.batch()

    def _read(self, index: Any, take: Callable[[Any], None]) -> None:
        """Read the samples of a batch, or the one there is."""
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
        # A dataset that is its own iterator stays its owner's, unless it is a generator.
        if samples is not dataset or inspect.isgenerator(dataset):
            getattr(samples, "close", bool)()

    def standing(self) -> DatasetState:
        # A dataset may give the very object that it goes on writing to.
        state = None if self._stateful is None else copy.deepcopy(self._stateful.state_dict())
        return DatasetState(state, self._has_ended)
