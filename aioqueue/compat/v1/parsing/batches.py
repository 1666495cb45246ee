"""Serialized examples of a whole batch to columns, in lock-step over all of them.

An ``Example`` (TensorFlow's ``example.proto`` and ``feature.proto``) has one field, its features:
a map, which is a list of entries of a key and a feature; that has one field, whose tag says which
kind of list it is; and that has its numbers in one packed field, or texts in a field each::

    0A n  features
        0A n  entry
            0A n  key
            12 n  feature
                0A n  texts:    0A n text, 0A n text ...
                12 n  floats:   0A n four bytes each
                1A n  integers: 0A n numbers in base 128

That is how all common writers write it. What is written otherwise (fields in other orders, lists
that are not packed, keys twice), what is damaged and what is of a wrong kind, is left to `records`,
which reads one example after another and finds the words for what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.parsing.columns import Column
from aioqueue.compat.v1.parsing.values import TYPES, Array, Values, as_array
from aioqueue.compat.v1.parsing.wire import (
    Places,
    UnusualError,
    Wire,
    decoded,
    everywhere,
    require,
    where,
)

__all__ = ("BatchReader",)

FIRST, SECOND = 0x0A, 0x12
"""Tags of the first and the second field of a message, when they have a length."""
TAGS = {"string": 0x0A, "float": 0x12, "int64": 0x1A}
"""The tag of each kind of list in a feature."""


class BatchReader:
    """Reads columns of batches of serialized examples.

    Args:
        columns: what to read: one feature each, no key twice.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        # Columns of one kind lie side by side, so that their values are decoded as one.
        kinds = list(TAGS)
        self._order = sorted(range(len(columns)), key=lambda at: kinds.index(columns[at].kind))
        sorted_columns = [columns[at] for at in self._order]
        self._keys = {column.key.encode(): at for at, column in enumerate(sorted_columns)}
        self._kinds = [column.kind for column in sorted_columns]
        self._tags = np.array([TAGS[kind] for kind in self._kinds], np.uint8)

    def __call__(self, records: Sequence[bytes]) -> list[Values] | None:
        """The values of every column; None if the records must be read one by one.

        Args:
            records: the serialized examples, at least one.
        """
        try:
            found = self._columns(Wire(records))
        except UnusualError:
            return None
        return [found[self._order.index(at)] for at in range(len(found))]

    def _columns(self, wire: Wire) -> list[Values]:
        entries = _Entries(wire)
        table = self._table(entries)
        chosen = table.ravel()
        is_there = chosen >= 0
        # A feature without a list counts as missing.
        is_there[is_there] = entries.sizes[chosen[is_there]] > 0
        lists = _Lists(wire, entries, chosen, is_there, np.repeat(self._tags, table.shape[1]))
        found: list[Values] = []
        for kind in dict.fromkeys(self._kinds):
            first, count = self._kinds.index(kind), self._kinds.count(kind)
            part = slice(first * table.shape[1], (first + count) * table.shape[1])
            flat, counts = lists.values(kind, part)
            counts_of = counts.reshape(count, -1)
            there_of = is_there[part].reshape(count, -1)
            borders = [0, *np.cumsum(counts_of.sum(axis=1)).tolist()]
            found += [
                Values(flat[start:end], counts_of[at], there_of[at])
                for at, (start, end) in enumerate(pairwise(borders))
            ]
        return found

    def _table(self, entries: _Entries) -> Places:
        """The number of the entry of each column and row, -1 for none.

        Raises:
            UnusualError: a row has a key twice.
        """
        columns = entries.numbers_of(self._keys)
        wanted = where(columns >= 0)
        table = np.full((len(self._keys), entries.rows_count), -1)
        table[columns[wanted], entries.rows[wanted]] = wanted
        if np.count_nonzero(table >= 0) < len(wanted):
            raise UnusualError
        return table


class _Entries:
    """The entries of all maps: the first of every row, then the second, and so on.

    Attributes:
        rows: which row each is of.
        values: where the feature of each begins.
        sizes: how many bytes it has.
        rows_count: how many rows there are.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.rows_count = len(wire.starts)
        require(wire.at(wire.starts) == FIRST)
        sizes, places = wire.lengths(wire.starts + 1)
        require(places + sizes == wire.ends)
        self._steps: list[int] = [0]
        rows, starts, bodies, ends = self._walked(places)
        require(wire.at(starts) == FIRST)
        require(wire.at(bodies) == FIRST)
        self._key_sizes, self._keys = wire.lengths(bodies + 1)
        values = self._keys + self._key_sizes
        require(values < ends)
        require(wire.at(values) == SECOND)
        self.sizes, self.values = wire.lengths(values + 1)
        require(self.values + self.sizes == ends)
        self.rows = rows

    def _walked(self, places: Places) -> tuple[Places, Places, Places, Places]:
        """Of each entry its row, where it begins, where what it has begins, and where it ends."""
        wire, ends = self._wire, self._wire.ends
        rows = np.arange(self.rows_count)
        found = [(rows[:0],) * 4]
        while True:
            is_inside = places < ends
            if not everywhere(is_inside):
                require(places <= ends)
                rows, places, ends = rows[is_inside], places[is_inside], ends[is_inside]
            if not rows.size:
                break
            sizes, bodies = wire.lengths(places + 1)
            found.append((rows, places, bodies, bodies + sizes))
            self._steps.append(self._steps[-1] + len(rows))
            places = bodies + sizes
        rows, starts, bodies, stops = map(np.concatenate, zip(*found, strict=True))
        return rows, starts, bodies, stops

    def numbers_of(self, keys: dict[bytes, int]) -> Places:
        """The number in `keys` of each entry's key; -1 for those that are not among them."""
        found = np.full(len(self.rows), -1)
        is_other = np.zeros(len(self.rows), np.bool_)
        # As a rule all rows have the same key at the same step.
        for start, end in pairwise(self._steps):
            key_start = int(self._keys[start])
            key = self._wire.data[key_start : key_start + int(self._key_sizes[start])]
            found[start:end] = keys.get(key, -1)
            step = slice(start, end)
            if everywhere(self._key_sizes[step] == len(key)):
                is_other[step] = ~self._wire.are(key, self._keys[step])
            else:
                is_other[step] = True
        rest = where(is_other)
        texts = self._wire.slices(self._keys[rest], self._key_sizes[rest])
        found[rest] = [keys.get(text, -1) for text in texts]
        return found


class _Lists:
    """The lists of the wanted features, column by column, and within each row by row.

    Args:
        wire: the records.
        entries: their entries.
        chosen: the entry of each column and row.
        is_there: whether it has a list; False where there is no such entry.
        tags: the tag that its list must have.
    """

    def __init__(
        self,
        wire: Wire,
        entries: _Entries,
        chosen: Places,
        is_there: NDArray[np.bool_],
        tags: NDArray[np.uint8],
    ) -> None:
        self._wire = wire
        there = chosen[is_there]
        places = entries.values[there]
        ends = places + entries.sizes[there]
        require(wire.at(places) == tags[is_there])
        sizes, places = wire.lengths(places + 1)
        require(places + sizes == ends)
        # Empty lists have no field; all others begin with one.
        is_filled = sizes > 0
        numbers = where(is_there)
        if not everywhere(is_filled):
            numbers, places, ends = numbers[is_filled], places[is_filled], ends[is_filled]
        require(wire.at(places) == FIRST)
        self._numbers, self._ends = numbers, ends
        self._sizes, self._places = wire.lengths(places + 1)

    def values(self, kind: str, part: slice) -> tuple[Array, Places]:
        """The values of a part of the lists, which are of one kind; and how many each has."""
        first, last = np.searchsorted(self._numbers, (part.start, part.stop))
        places, sizes = self._places[first:last], self._sizes[first:last]
        ends = self._ends[first:last]
        if kind == "string":
            flat, found = self._texts(places, sizes, ends)
        else:
            require(places + sizes == ends)
            data = self._wire.gathered(places, sizes)
            if kind == "float":
                require(sizes % 4 == 0)
                flat, found = data.view("<f4").astype(TYPES[kind], copy=False), sizes // 4
            else:
                flat, found = decoded(data, sizes)
        counts = np.zeros(part.stop - part.start, np.int64)
        counts[self._numbers[first:last] - part.start] = found
        return flat, counts

    def _texts(self, places: Places, sizes: Places, ends: Places) -> tuple[Array, Places]:
        """The texts of lists, and how many each list has. No list is empty."""
        lists = np.arange(len(places))
        steps = [(lists, places, sizes)]
        while True:
            behind = places + sizes
            require(behind <= ends)
            has_more = where(behind < ends)
            if not has_more.size:
                break
            lists, places, ends = lists[has_more], behind[has_more], ends[has_more]
            require(self._wire.at(places) == FIRST)
            sizes, places = self._wire.lengths(places + 1)
            steps.append((lists, places, sizes))
        counts = np.ones(len(steps[0][0]), np.int64)
        if len(steps) > 1:
            lists, places, sizes = map(np.concatenate, zip(*steps, strict=True))
            order = np.argsort(lists, kind="stable")
            places, sizes = places[order], sizes[order]
            counts = np.bincount(lists)
        return as_array(self._wire.slices(places, sizes), "string"), counts
