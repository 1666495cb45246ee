"""Sources: what goes into a pipeline, in which order, and with which seed.

A `Source` can be iterated again and again, with ``for`` and with ``async for``. Each of its items
has an *index*: its place in the whole sequence, before sharding and shuffling. So (seed, epoch,
index) names an item wherever, whenever and by whichever worker it is prepared, and `rng` makes it
a random generator of its own.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence, Set
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.checks import checked_flag, is_int
from aioqueue.inputs.sources.read_ahead import ReadAhead
from aioqueue.inputs.sources.shuffling import indices

__all__ = (
    "Entry",
    "Sequential",
    "Source",
    "arrays",
    "items",
    "numbers",
    "resolved_seed",
    "rng",
)

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


class Source(ABC, Generic[T]):
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

    @abstractmethod
    def entries(self) -> Iterator[Entry[T]]:
        """One run through the source: its items, each with its epoch and index."""

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


class Sequential(Source[T]):
    """A source over a sequence. See `items`, which makes it."""

    def __init__(
        self,
        sequence: Sequence[T],
        name: str,
        *,
        epochs: int | None,
        shuffle: bool,
        seed: int | None,
        shard: Shard | None,
        drop_remainder: bool,
    ) -> None:
        if epochs is not None and (not is_int(epochs) or epochs < 0):
            raise InvalidArgumentError(
                f"epochs: got {epochs!r}; expected an int >= 0, or None to go on for ever"
            )
        checked_flag(shuffle, "shuffle")
        checked_flag(drop_remainder, "drop_remainder")
        if shard is not None and shuffle and seed is None:
            raise InvalidArgumentError(
                "seed: got None; expected an int, the same for every shard: shards of different"
                " orders would overlap"
            )
        super().__init__(name, seed)
        self._sequence = sequence
        self._epochs = None if epochs is None else int(epochs)
        self._shuffle = shuffle
        self._shard = (0, 1) if shard is None else _checked_shard(shard)
        self._drop_remainder = drop_remainder

    def __repr__(self) -> str:
        index, count = self._shard
        parts = [
            f"{self.name} of {len(self._sequence)}",
            "for ever" if self._epochs is None else f"epochs={self._epochs}",
            *(["shuffled"] if self._shuffle else []),
            f"seed={self.seed}",
            *([f"shard {index} of {count}"] if count > 1 else []),
        ]
        return f"<aioqueue.inputs.{', '.join(parts)}>"

    @property
    def epochs(self) -> int | None:
        """How often it goes through the sequence; ``None`` if for ever."""
        return self._epochs

    def __len__(self) -> int:
        """How many items one run has, in all its epochs.

        Raises:
            TypeError: it goes on for ever.
        """
        if self._epochs is None:
            raise TypeError(f"{self!r} has no length: it has no end (epochs=None)")
        return self._epochs * self._items_per_epoch()

    def entries(self) -> Iterator[Entry[T]]:
        sequence = self._sequence
        seed = self.seed if self._shuffle else None
        for epoch in count() if self._epochs is None else range(self._epochs):
            left = self._items_per_epoch()
            if not left:
                return  # rather than spin for ever
            for index in indices(len(sequence), seed, epoch, self._shard):
                yield Entry(sequence[index], epoch, index)
                left -= 1
                if not left:
                    break

    def _items_per_epoch(self) -> int:
        index, shards = self._shard
        n = len(self._sequence)
        return n // shards if self._drop_remainder else len(range(index, n, shards))


def items(
    sequence: Sequence[T],
    epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard: Shard | None = None,
    *,
    drop_remainder: bool = False,
    name: str = "items",
) -> Sequential[T]:
    """The items of a sequence, epoch after epoch.

    With ``shuffle``, every epoch has an order of its own, made from (seed, epoch) and the length:
    the same on every platform. Up to 4,194,304 items any order is possible, and it is the one in
    which TensorFlow 1's input producers with this seed went; of longer sequences no table is made,
    so ``numbers(10**12, shuffle=True)`` costs no memory.

    Shards cut one common order: shard i of n has its places i, i + n, i + 2n and so on. So they do
    not overlap, together they are the whole, and step k of all shards has the items that step k of
    one larger batch would have had. Their lengths differ by at most one.

    Args:
        sequence: a list, a tuple, a range, an array (whose rows are the items), or anything else
            with ``len`` and ``[index]``. It is not copied: its length is read at each epoch.
        epochs: how often to go through it; ``None`` goes on for ever, as TensorFlow's producers
            did. An empty sequence ends at once.
        shuffle: whether to shuffle each epoch.
        seed: for the order, and for the generators of the items; ``None`` takes fresh entropy,
            once. All shards must be given the same one.
        shard: (index, count): give out only every count-th item, from that index on.
        drop_remainder: leave out the last ``len(sequence) % count`` items of each epoch's order, so
            that all shards have the same number of steps. Shuffled, they are others every time.
        name: what messages and worker names call the source.

    Returns:
        A source; ``len`` of it is known if it ends.

    Raises:
        InvalidArgumentError: an argument is wrong.
    """
    if isinstance(sequence, Mapping | Set | str | bytes) or not (
        hasattr(sequence, "__len__") and hasattr(sequence, "__getitem__")
    ):
        what = "something with len() and [index], like a list: list(...) makes one of any iterable"
        if isinstance(sequence, str | bytes):
            what = "a sequence of items, which a string is not meant to be: [string], if it is"
        raise InvalidArgumentError(f"sequence: got {_shortened(sequence)}; expected {what}")
    return Sequential(
        sequence,
        name,
        epochs=epochs,
        shuffle=shuffle,
        seed=seed,
        shard=shard,
        drop_remainder=drop_remainder,
    )


def numbers(
    limit: int,
    epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard: Shard | None = None,
    *,
    drop_remainder: bool = False,
    name: str = "numbers",
) -> Sequential[int]:
    """The ints from 0 to ``limit - 1``, epoch after epoch. No list of them is ever made.

    Args:
        limit: how many, ``0 <= limit < 2**63``.
        epochs: as for `items`; so are the rest.
        shuffle: whether to shuffle each epoch.
        seed: for the order and the generators of the items.
        shard: (index, count) of the part to give out.
        drop_remainder: leave out what would make shards differ in length.
        name: what messages and worker names call the source.

    Returns:
        A source of ints.

    Raises:
        InvalidArgumentError: an argument is wrong.
    """
    if not is_int(limit) or not 0 <= limit < 2**63:
        raise InvalidArgumentError(f"limit: got {limit!r}; expected an int >= 0 and < 2**63")
    return items(
        range(limit), epochs, shuffle, seed, shard, drop_remainder=drop_remainder, name=name
    )


def arrays(
    tensors: Any,
    epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard: Shard | None = None,
    *,
    drop_remainder: bool = False,
    name: str = "arrays",
) -> Sequential[Any]:
    """The rows of arrays, epoch after epoch.

    A row is a *view*, and read-only: it takes no memory, and no preparation can spoil the data for
    the next epoch. Rows of a one-dimensional array are NumPy scalars.

    Args:
        tensors: one array, whose rows are the items; a tuple or list of arrays of one length, for
            tuples of rows; or a dict of them, for dicts of rows. What is no array is made one.
        epochs: as for `items`; so are the rest.
        shuffle: whether to shuffle each epoch.
        seed: for the order and the generators of the items.
        shard: (index, count) of the part to give out.
        drop_remainder: leave out what would make shards differ in length.
        name: what messages and worker names call the source.

    Returns:
        A source of rows.

    Raises:
        InvalidArgumentError: the arrays differ in length, or have none; or another argument is
            wrong.
    """
    rows: Any
    if isinstance(tensors, Mapping):
        rows = _Rows([_read_only(array, key) for key, array in tensors.items()], list(tensors))
    elif isinstance(tensors, tuple | list):
        rows = _Rows([_read_only(array, number) for number, array in enumerate(tensors)])
    else:
        rows = _read_only(tensors, None)
    return items(rows, epochs, shuffle, seed, shard, drop_remainder=drop_remainder, name=name)


class _Rows(Sequence[Any]):
    """Arrays of one length, as the sequence of their rows."""

    def __init__(self, columns: list[Any], names: list[Any] | None = None) -> None:
        lengths = {
            label: len(column)
            for label, column in zip(names or range(len(columns)), columns, strict=True)
        }
        if len(set(lengths.values())) != 1:
            raise InvalidArgumentError(
                f"tensors: got arrays of lengths {lengths}; expected one or more, of one length"
            )
        self._columns = columns
        self._names = names

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index: Any) -> Any:
        row = tuple([column[index] for column in self._columns])
        return row if self._names is None else dict(zip(self._names, row, strict=True))


def _read_only(array: Any, label: object) -> Any:
    view = np.asarray(array).view()
    which = "" if label is None else f" for component {label!r}"
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidArgumentError(
            f"tensors: got a masked array{which}; expected one without a mask, such as"
            " array.filled(0)"
        )
    if view.ndim == 0:
        raise InvalidArgumentError(
            f"tensors: got {_shortened(array)}{which}; expected an array with rows"
        )
    view.flags.writeable = False
    return view


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


def _checked_shard(shard: Any) -> Shard:
    if not (
        isinstance(shard, tuple | list)
        and len(shard) == 2
        and all(map(is_int, shard))
        and 0 <= shard[0] < shard[1]
    ):
        raise InvalidArgumentError(
            f"shard: got {shard!r}; expected (index, count) with 0 <= index < count"
        )
    return int(shard[0]), int(shard[1])


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"
