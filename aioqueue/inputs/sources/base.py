"""Sources: what goes into a pipeline, in which order, and with which seed.

A `Source` can be iterated again and again, with ``for`` and with ``async for``. Each of its items
has an *index*: its place in the whole sequence, before sharding and shuffling. So (seed, epoch,
index) names an item wherever, whenever and by whichever worker it is prepared, and `rng` makes it
a random generator of its own.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.checks import checked_count, is_int
from aioqueue.inputs.sources.pipeline import Pipeline, Stage, Stages
from aioqueue.inputs.sources.read_ahead import ReadAhead

__all__ = ("Entry", "Shard", "Source", "resolved_seed", "rng")

T = TypeVar("T")

Shard = tuple[int, int]


class Entry(NamedTuple, Generic[T]):
    """An item of a source, and what tells it from every other one.

    Attributes:
        value: the item itself.
        epoch: how often the source has been gone through before, from 0.
        index: its place in the whole sequence, before sharding and shuffling, from 0.
    """

    value: T
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody misses here


def rng(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The random generator of one item: its own, and always the same.

    It is counter-based (Philox 4x64): the seed is the key, and every (epoch, index) has a range of
    2**64 blocks to itself, so that no two items ever draw the same words. The words are the same on
    every platform; what NumPy's distributions make of them may change with NumPy's version.

    Args:
        seed: of the source, 0 <= seed < 2**64.
        epoch: of the entry, 0 <= epoch < 2**64.
        index: of the entry, 0 <= index < 2**128.

    Returns:
        A new generator, at its beginning.

    Raises:
        InvalidArgumentError: one of them is not such an int.
    """
    for argument, value, bits in (("seed", seed, 64), ("epoch", epoch, 64), ("index", index, 128)):
        if not is_int(value) or int(value) >> bits:
            raise InvalidArgumentError(
                f"{argument}: got {value!r}; expected an int >= 0 and < 2**{bits}"
            )
    counter = int(epoch) << 192 | int(index) << 64  # the lowest word is left to count blocks
    return np.random.Generator(np.random.Philox(key=int(seed), counter=counter))


class Source(Stages[T]):
    """Items to go through, again and again.

    To write one, say in `entries` what it has; iteration of both kinds comes from that.

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

    _ahead = 64
    """How many items that thread may be ahead."""

    def __init__(self, name: str, seed: int | None = None) -> None:
        self._name = name
        self._seed = resolved_seed(seed)

    @property
    def name(self) -> str:
        """What messages and worker names call it."""
        return self._name

    @property
    def seed(self) -> int:
        """What its order, and the generators of its items, are made from."""
        return self._seed

    def __repr__(self) -> str:
        return f"<aioqueue.inputs.{self.name}, seed={self.seed}>"

    def __bool__(self) -> bool:
        """A source is always true, also an empty one."""
        return True

    def _with(self, stage: Stage) -> Pipeline[Any]:
        return Pipeline(self)._with(stage)

    @abstractmethod
    def entries(self) -> Iterator[Entry[T]]:
        """One run through the source: its items, each with its epoch and index."""

    def epoch_entries(self, epoch: int) -> Iterator[Entry[T]]:
        """The items of one epoch, in its order.

        A source whose order or items differ from epoch to epoch says so here; else every epoch is
        one run through `entries`.

        Args:
            epoch: which, from 0.
        """
        for value, _, index in self.entries():
            yield Entry(value, epoch, index)

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

    def __iter__(self) -> Iterator[T]:
        for entry in self.entries():
            yield entry.value

    def __aiter__(self) -> AsyncIterator[T]:
        return _asynchronous(self, self.__iter__, self._bursts)

    def aentries(self) -> AsyncIterator[Entry[T]]:
        """One run through the source, for ``async for``, as `entries`."""
        return _asynchronous(self, self.entries, self._entry_bursts)

    def _bursts(self) -> Generator[list[T], None, None]:
        """The items in lists, as they come: for reading ahead."""
        for item in self:
            yield [item]

    def _entry_bursts(self) -> Generator[list[Entry[T]], None, None]:
        """The entries in lists, as they come: for reading ahead."""
        for entry in self.entries():
            yield [entry]


class _OneEpoch(Source[T]):
    """One epoch of a source."""

    def __init__(self, source: Source[T], number: int) -> None:
        super().__init__(source.name, source.seed)
        self.blocking = source.blocking
        self._ahead = source._ahead
        self._source = source
        self._number = number

    def __repr__(self) -> str:
        return f"{self._source!r}.epoch({self._number})"

    def entries(self) -> Iterator[Entry[T]]:
        return self._source.epoch_entries(self._number)

    def epoch_entries(self, epoch: int) -> Iterator[Entry[T]]:
        return self._source.epoch_entries(self._number + epoch)


def _asynchronous(
    source: Source[Any],
    iterate: Callable[[], Iterator[T]],
    bursts: Callable[[], Generator[list[T], None, None]],
) -> AsyncIterator[T]:
    if source.blocking:
        return ReadAhead(bursts(), ahead=source._ahead, name=source.name)
    return _AtHand(iterate())


class _AtHand(Generic[T]):
    """An async iterator over what is in memory. It never suspends its task."""

    __slots__ = ("_iterator",)

    def __init__(self, iterator: Iterator[T]) -> None:
        self._iterator = iterator

    def __aiter__(self) -> _AtHand[T]:
        return self

    async def __anext__(self) -> T:
        try:
            return next(self._iterator)
        except StopIteration:
            raise StopAsyncIteration from None


def resolved_seed(seed: Any) -> int:
    """Check a seed; draw one if it is ``None``.

    Raises:
        InvalidArgumentError: it is neither None nor an int of 64 bits.
    """
    if seed is None:
        return secrets.randbits(53)  # as many bits as survive a way through JSON
    if not is_int(seed) or not 0 <= seed < 2**64:
        raise InvalidArgumentError(f"seed: got {seed!r}; expected None, or an int >= 0 and < 2**64")
    return int(seed)
