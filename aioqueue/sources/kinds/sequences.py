"""Sources of items in memory: sequences, numbers, rows of arrays; shuffled and sharded."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import chain, count, groupby, islice, pairwise, repeat, tee
from typing import Any, ClassVar, Final, Protocol, TypeVar, cast, overload

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import checked_count, checked_flag, is_int
from aioqueue.base.hints import hint_methods
from aioqueue.core.elements.ownership import FIXED, copy_if_shared, copy_shared
from aioqueue.core.elements.values import is_table
from aioqueue.items.item import Entry, PlacedEntry
from aioqueue.items.positions import Place, checked_numbers, misplaced
from aioqueue.sources.base import Determined, Scan
from aioqueue.sources.kinds.source import BuiltinSource, checked_split_seed, parts_of
from aioqueue.sources.shuffling import LONGEST_TABLE, indices, indices_at

T = TypeVar("T")
K = TypeVar("K")
T_co = TypeVar("T_co", covariant=True)

Shard = tuple[int, int]

_entry: Final[Callable[[Sequence[Any]], Entry[Any]]] = partial(tuple.__new__, Entry)
_placed: Final[Callable[[Sequence[Any]], PlacedEntry[Any]]] = partial(tuple.__new__, PlacedEntry)


class Indexed(Protocol[T_co]):
    """What `items` goes through: a list, a range, an array, a dataset of PyTorch."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...


class Sequential(BuiltinSource[T]):
    """A source over a sequence. See `items`, which makes it."""

    _functions: ClassVar[Sequence[str]] = ("items", "numbers", "arrays")
    _extra: ClassVar[str | None] = None
    _page = "howto/sources.md"
    _resumes = "exactly"
    _no_ranks = None

    def __init__(
        self,
        sequence: Indexed[T],
        name: str,
        *,
        epochs: int | None,
        shuffle: bool,
        seed: int | None,
        shard: Shard | None,
        drop_remainder: bool,
    ) -> None:
        if epochs is not None and (not is_int(epochs) or epochs < 0):
            raise InvalidArgumentError(f"epochs: got {epochs!r}; expected an int >= 0, or None")
        checked_flag(shuffle, "shuffle")
        checked_flag(drop_remainder, "drop_remainder")
        if shard is not None and shuffle and seed is None:
            raise InvalidArgumentError(
                "seed: got None with shuffle and shard; expected an int, the same for every shard:"
                " otherwise the shards overlap"
            )
        super().__init__(name, seed)
        if isinstance(sequence, np.ndarray):
            view: Any = sequence.view()
            view.flags.writeable = False  # so that no function can write into its item
            sequence = view
        self._sequence = sequence
        self._epochs = None if epochs is None else int(epochs)
        self._is_endless = epochs is None
        self._shuffle = shuffle
        self._shard = (0, 1) if shard is None else _checked_shard(shard)
        self._drop_remainder = drop_remainder
        self._items_identity: dict[str, str] | None = None

    def _details(self) -> str:
        index, count = self._shard
        parts = [
            f" of {len(self._sequence)}",
            *([] if self._epochs is None else [f"epochs={self._epochs}"]),
            *(["shuffled"] if self._shuffle else []),
            f"seed={self.seed}",
            *([f"shard {index} of {count}"] if count > 1 else []),
        ]
        return ", ".join(parts)

    @property
    def _epochs_per_run(self) -> int | None:
        """How often a run goes through the sequence; ``None`` for an endless run."""
        return self._epochs

    def __len__(self) -> int:
        """How many items come, iterated over: those of all its epochs, or of one (`epochs=None`).

        The sequence is asked for its length each time.
        """
        return (1 if self._epochs is None else self._epochs) * self.items_per_epoch()

    @property
    def _is_shuffled(self) -> bool:
        return self._shuffle

    @property
    def _is_in_memory(self) -> bool:
        return type(self._sequence) in (list, tuple, range, np.ndarray, _ColumnRows)

    def _scan(self, epoch: int | None, after: Place) -> Scan[T]:
        return _SequenceScan(self, epoch, after)

    def _places_in(self, epoch: int, done: int = 0) -> Iterator[int]:
        """Return the places in the sequence of an epoch's items, in the order of the epoch."""
        seed = self.seed if self._shuffle else None
        places = indices(len(self._sequence), seed, epoch, self._shard, done)
        return islice(places, self.items_per_epoch() - done)

    def _entries_at(self, epoch: int, places: Iterable[int]) -> Iterator[Entry[T]]:
        """Return the items at some places of an epoch, without a step in Python for each."""
        if not self._is_in_memory:
            return self._copied_entries(epoch, places)
        values, found = self._values_at(places)
        return map(_entry, zip(values, repeat(epoch), found))

    def _values_at(self, places: Iterable[int]) -> tuple[Iterator[T], Iterator[int]]:
        """Return in-memory items at some places, and their indices, both in this order."""
        found, copies = tee(places)
        sequence: Any = self._sequence
        if _is_range(sequence) and sequence == range(len(sequence)):
            return cast(Iterator[T], found), copies  # each item is its own index
        values = map(self._sequence.__getitem__, found)
        return (map(_copied_if_shared, values) if self._has_mutable_items() else values), copies

    def _has_mutable_items(self) -> bool:
        """Whether an item may be such that who is given one could change the caller's data by it;
        those of an array are read-only views."""
        sequence: Any = self._sequence
        if isinstance(sequence, np.ndarray):
            return bool(sequence.dtype.hasobject)
        return not isinstance(sequence, range | _ColumnRows)

    def _copied_entries(self, epoch: int, places: Iterable[int]) -> Iterator[Entry[T]]:
        """Yield items that share no memory with what the sequence keeps, or returns again."""
        sequence = self._sequence
        for index in places:
            value = sequence[index]
            yield Entry(copy_if_shared(value), epoch, index)

    def _pick(self, epoch: int | None, places: Sequence[int]) -> Iterator[Entry[T]]:
        if epoch is None:
            return self._pick_from_run(places)
        seed = self.seed if self._shuffle else None
        return self._entries_at(
            epoch, indices_at(len(self._sequence), seed, epoch, self._shard, places)
        )

    def _pick_from_run(self, places: Sequence[int]) -> Iterator[Entry[T]]:
        size = self.items_per_epoch()
        for epoch, found in groupby(places, lambda place: place // size):
            yield from self._pick(epoch, [place % size for place in found])

    def split(  # type: ignore[override]  # nobody puts another source into the list
        self, fractions: Sequence[float], *, seed: int = 0
    ) -> list[Sequential[T]]:
        count, seed = len(self._sequence), checked_split_seed(seed)
        bounds = [0, *parts_of(fractions, count)]
        return [
            _SequencePart(
                self,
                _places_of(count, seed, start, stop),
                {"of": count, "start": start, "stop": stop, "seed": seed},
            )
            for start, stop in pairwise(bounds)
        ]

    def locate(self, index: int) -> str:
        if not 0 <= index < len(self._sequence):
            raise InvalidArgumentError(
                f"index: got {index}; expected one of {len(self._sequence)} items of {self.name}"
            )
        return f"{self.name}[{index}]"

    def fingerprint(self) -> dict[str, Any]:
        return {
            "kind": "sequence",
            "length": len(self._sequence),
            "seed": self.seed,
            "shuffle": self._shuffle,
            "shard": list(self._shard),
            "drop_remainder": self._drop_remainder,
            **self._identity_of_items(),
        }

    def _identity_of_items(self) -> dict[str, str]:
        """Return what identifies the items among sequences of equal length; computed once."""
        if self._items_identity is None:
            self._items_identity = self._compare_items()
        return self._items_identity

    def _compare_items(self) -> dict[str, str]:
        """Compute what identifies the items, under the name that positions use for it."""
        sequence: Any = self._sequence
        if isinstance(sequence, range):
            found = None if sequence == range(len(sequence)) else repr(sequence)
        elif isinstance(sequence, _ColumnRows):
            found = sequence.digest()
        else:
            from aioqueue.fingerprints.contents import digest_of_items

            found = digest_of_items(sequence)
        return {} if found is None else {"items": found}

    def _determined(self) -> Determined:
        return Determined(values={} if _is_range(self._sequence) else {"items": self._sequence})

    def _ending(self, place: Place) -> Sequential[T]:
        if not self._is_endless:
            return self
        source = copy.copy(self)
        epoch, done = self._epoch_at(place)
        source._epochs = epoch if epoch and not done else epoch + 1  # that of the last item taken
        source._is_endless = False
        return source

    def _check_place(self, place: Place) -> None:
        checked_numbers(place)

    def _taken_at(self, place: Place) -> int:
        return 0 if place is None else checked_count(place, "place")

    def _epoch_at(self, place: Place) -> tuple[int, int]:
        """Return the epoch that a place is in, and how many of its items come before."""
        taken = self._taken_at(place)
        if not taken:
            return 0, 0
        size = self.items_per_epoch()
        if not size or (self._epochs is not None and taken > self._epochs * size):
            raise misplaced(
                f"{taken} items taken", f"{(self._epochs or 0) * size} at most, of {self!r}"
            )
        return divmod(taken, size)

    def items_per_epoch(self) -> int:
        """How many items one epoch has."""
        index, shards = self._shard
        n = len(self._sequence)
        return n // shards if self._drop_remainder else len(range(index, n, shards))


hint_methods(Sequential, "inputs", ("split",))


class _SequenceScan(Scan[T]):
    """A scan of a sequence. A place is the number of items before it.

    Each form is made of whole columns, so that an item costs no step of Python's own.
    """

    __slots__ = ("_after", "_epoch", "_source")

    def __init__(self, source: Sequential[T], epoch: int | None, after: Place) -> None:
        self._source = source
        self._epoch = epoch
        self._after = after

    def entries(self) -> Iterator[Entry[T]]:
        source = self._source
        for epoch, done in self._epochs():
            yield from source._entries_at(epoch, source._places_in(epoch, done))

    def placed(self) -> Iterator[PlacedEntry[T]]:
        first = self._checked_done() if self._epoch is not None else self._taken()
        return map(_placed, zip(self.entries(), count(first + 1)))

    def values(self) -> Iterator[T]:
        source = self._source
        for epoch, done in self._epochs():
            places = source._places_in(epoch, done)
            if source._is_in_memory:
                yield from source._values_at(places)[0]
            else:
                for entry in source._entries_at(epoch, places):
                    yield entry.value

    def numbered(self) -> Iterator[tuple[int, T, int, int]] | None:
        # A chain, since a generator would cost a step of Python's own for each item.
        return chain.from_iterable(self._numbered()) if self._source._is_in_memory else None

    def _numbered(self) -> Iterator[Iterator[tuple[int, T, int, int]]]:
        """Yield the items of one epoch after the other."""
        first = 0
        for epoch, done in self._epochs():
            behind = first + self._source.items_per_epoch() - done
            values, found = self._source._values_at(self._source._places_in(epoch, done))
            yield zip(range(first, behind), values, repeat(epoch), found)
            first = behind

    def _epochs(self) -> Iterator[tuple[int, int]]:
        """Yield the epochs to go through, each with the number of its items to skip."""
        source = self._source
        if self._epoch is not None:
            yield self._epoch, self._checked_done()
            return
        first, done = source._epoch_at(self._after)
        for epoch in count(first) if source._epochs is None else range(first, source._epochs):
            if not source.items_per_epoch():
                return  # rather than spin for ever
            yield epoch, done
            done = 0

    def _taken(self) -> int:
        return self._source._taken_at(self._after)

    def _checked_done(self) -> int:
        """How many items of the epoch come before the place.

        Raises:
            InvalidArgumentError: it has fewer.
        """
        done = 0 if self._after is None else checked_count(self._after, "after")
        size = self._source.items_per_epoch()
        if done > size:
            raise misplaced(f"{done} items taken of epoch {self._epoch}", f"{size} at most")
        return done


class _SequencePart(Sequential[T]):
    """The items of a sequence that belong to one part of a `Source.split`.

    Args:
        whole: the source of all parts.
        places: the indices of its items.
        identity: which part it is, in plain JSON types.
    """

    _functions = ("Source.split",)

    def __init__(
        self, whole: Sequential[T], places: Sequence[int], identity: dict[str, Any]
    ) -> None:
        shard = whole._shard if whole._shard[1] > 1 else None
        super().__init__(
            _Selection(whole._sequence, places),
            whole.name,
            epochs=whole._epochs,
            shuffle=whole._shuffle,
            seed=whole.seed,
            shard=shard,
            drop_remainder=whole._drop_remainder,
        )
        self._seed_was_drawn = whole._seed_was_drawn
        self._whole = whole
        self._places = places
        self._identity = identity

    @property
    def _is_in_memory(self) -> bool:
        return self._whole._is_in_memory

    def _entries_at(self, epoch: int, places: Iterable[int]) -> Iterator[Entry[T]]:
        return self._whole._entries_at(epoch, map(self._places.__getitem__, places))

    def _values_at(self, places: Iterable[int]) -> tuple[Iterator[T], Iterator[int]]:
        return self._whole._values_at(map(self._places.__getitem__, places))

    def locate(self, index: int) -> str:
        return self._whole.locate(index)

    def fingerprint(self) -> dict[str, Any]:
        return {**super().fingerprint(), "part": self._identity}

    def _compare_items(self) -> dict[str, str]:
        return self._whole._identity_of_items()

    def _determined(self) -> Determined:
        return Determined(inner=(self._whole,))


def _is_range(sequence: object) -> bool:
    """Return whether a position identifies all items of a sequence."""
    return type(sequence) is range


class _Selection(Sequence[Any]):
    """The items of a sequence at some places of it."""

    def __init__(self, sequence: Any, places: Sequence[int]) -> None:
        self._sequence = sequence
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:
        return self._sequence[self._places[index]]


class _RandomPart(Sequence[int]):
    """A part of one random order of so many items: a table, or computed where that is long."""

    def __init__(self, count: int, seed: int, start: int, stop: int) -> None:
        self._count, self._seed = count, seed
        self._start, self._stop = start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, index: Any) -> Any:
        return next(indices_at(self._count, self._seed, 0, (0, 1), (self._start + index,)))


def _places_of(count: int, seed: int, start: int, stop: int) -> Sequence[int]:
    """What is drawn between two places of a random order: ascending, unless a table is too long."""
    if count > LONGEST_TABLE:
        return _RandomPart(count, seed, start, stop)
    drawn = islice(indices(count, seed, 0, (0, 1), start), stop - start)
    return array("q", np.sort(np.fromiter(drawn, np.int64, stop - start)).tobytes())


def items(
    sequence: Indexed[T],
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
            with ``len`` and ``[index]``. It is not copied: its length is read at each epoch. A
            pandas series is read by position, whatever its labels are.
        epochs: the number of epochs. ``None`` leaves it to the consumer: a pipeline has its
            `epochs`, a loop over the source itself has one epoch, and workers, such as those of
            `aioqueue.inputs.prepare`, repeat the source without end, as TensorFlow's producers
            did. An empty sequence ends at once.
        shuffle: whether to shuffle each epoch.
        seed: for the order, and for the generators of the items; ``None`` takes fresh entropy,
            once. All shards must be given the same one.
        shard: (index, count): give out only every count-th item, from that index on.
        drop_remainder: leave out the last ``len(sequence) % count`` items of each epoch's order, so
            that all shards have the same number of steps. Shuffled, they are others every time.
        name: what messages and worker names call the source.

    Returns:
        A source; its ``len`` is that of iterating over it.

    Raises:
        InvalidArgumentError: an argument is wrong.
    """
    given: object = sequence
    if isinstance(given, Mapping | Set | str | bytes) or not (
        hasattr(given, "__len__") and hasattr(given, "__getitem__")
    ):
        what = "something with len() and [index], like a list; list(...) converts any iterable"
        if isinstance(given, str | bytes):
            what = "a sequence of items; for a single string pass [string]"
        raise InvalidArgumentError(f"sequence: got {_abbreviated(sequence)}; expected {what}")
    if isinstance(given, type):
        raise InvalidArgumentError(
            f"sequence: got the class {given.__name__}; expected an object of it:"
            f" items({given.__name__}(...))"
        )
    if is_table(given):
        raise InvalidArgumentError(
            f"sequence: got a {type(given).__name__}, whose [...] gives columns; expected a"
            f" sequence of rows: {rows_of_table(given)}"
        )
    return Sequential(
        _SeriesByPosition(sequence) if hasattr(given, "iloc") else sequence,
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


@overload
def arrays(
    tensors: tuple[object, object],
    epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard: Shard | None = None,
    *,
    drop_remainder: bool = False,
    name: str = "arrays",
) -> Sequential[tuple[Any, Any]]: ...
@overload
def arrays(
    tensors: tuple[object, object, object],
    epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard: Shard | None = None,
    *,
    drop_remainder: bool = False,
    name: str = "arrays",
) -> Sequential[tuple[Any, Any, Any]]: ...
@overload
def arrays(
    tensors: tuple[object, ...] | list[Any],
    epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard: Shard | None = None,
    *,
    drop_remainder: bool = False,
    name: str = "arrays",
) -> Sequential[tuple[Any, ...]]: ...
@overload
def arrays(
    tensors: Mapping[K, object],
    epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard: Shard | None = None,
    *,
    drop_remainder: bool = False,
    name: str = "arrays",
) -> Sequential[dict[K, Any]]: ...
@overload
def arrays(
    tensors: object,
    epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard: Shard | None = None,
    *,
    drop_remainder: bool = False,
    name: str = "arrays",
) -> Sequential[Any]: ...
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
            tuples of rows; or a dict of them, a data frame or a table of Arrow, for dicts of
            rows. What is no array is made one.
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
    if epochs is not None and hasattr(epochs, "__len__"):
        raise InvalidArgumentError(
            f"epochs: got {_abbreviated(epochs)}; expected an int or None. Several arrays are given"
            " as one argument: arrays((x, y)), or arrays({'x': x, 'y': y})"
        )
    rows: Any
    if isinstance(tensors, Mapping) or is_table(tensors):
        rows = _columns_of(tensors)
    elif isinstance(tensors, tuple | list):
        rows = _ColumnRows([_read_only(array, number) for number, array in enumerate(tensors)])
    else:
        rows = _read_only(tensors, None)
    return items(rows, epochs, shuffle, seed, shard, drop_remainder=drop_remainder, name=name)


def rows_of_table(table: Any) -> str:
    """Return what to write for the rows of a data frame or an Arrow table, for messages."""
    ways = {"to_pylist": "to_pylist()", "to_dicts": "to_dicts()"}
    found = (way for name, way in ways.items() if hasattr(table, name))
    way = next(found, 'to_dict("records")')
    return f"arrays(frame), or items(frame.{way})"


class _SeriesByPosition(Sequence[Any]):
    """A series of pandas, whose ``[index]`` goes by labels: they may be in any order."""

    def __init__(self, series: Any) -> None:
        self._series = series

    def __len__(self) -> int:
        return len(self._series)

    def __getitem__(self, index: Any) -> Any:
        return self._series.iloc[index]


def _columns_of(table: Any) -> _ColumnRows:
    """Return the rows of a mapping or data frame of columns, as a sequence of dicts."""
    names = list(getattr(table, "column_names", table))  # iterated over, Arrow's gives columns
    if len(set(names)) < len(names):
        raise InvalidArgumentError(
            f"tensors: got a {type(table).__name__} with the columns {names}; expected different"
            " names: a dict of its rows would lose a column"
        )
    return _ColumnRows([_read_only(table[name], name) for name in names], names)


class _ColumnRows(Sequence[Any]):
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
        self._columns = [_CopyingColumn(one) if one.dtype.hasobject else one for one in columns]
        self._names = names

    def __len__(self) -> int:
        return len(self._columns[0])

    def digest(self) -> str | None:
        from aioqueue.fingerprints.contents import digest_of_arrays

        columns = [one._array if isinstance(one, _CopyingColumn) else one for one in self._columns]
        return digest_of_arrays(columns, self._names)

    def __getitem__(self, index: Any) -> Any:
        row = tuple([column[index] for column in self._columns])
        return row if self._names is None else dict(zip(self._names, row, strict=True))


def _copied_if_shared(value: Any) -> Any:
    return value if type(value) in FIXED else copy_shared(value)  # most are numbers or text


class _CopyingColumn:
    """An array of objects, or of records with objects. Who is given one gets a copy."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Any:
        return _copied_if_shared(self._array[index])


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
            f"tensors: got {_abbreviated(array)}{which}; expected an array with rows"
        )
    view.flags.writeable = False
    return view


def _abbreviated(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"


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
