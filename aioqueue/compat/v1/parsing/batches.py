"""Serialized examples of a whole batch, read in lock-step: places in them are vectors.

The examples are laid one behind another, and what stands at one place of each is read with a few
calls of NumPy. That works for what all common writers write: keys first and once, packed numbers.
All else, and all that is damaged, `records` reads, and finds the words for what is wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.parsing.columns import TYPES, Array, Column, Values

Places: TypeAlias = NDArray[np.int64]

FIRST, SECOND = 0x0A, 0x12
"""Tags of the first and the second field of a message, when they have a length."""
TAGS = {"string": 0x0A, "float": 0x12, "int64": 0x1A}  # the tag of each kind of list in a feature
LONGEST = 10  # the bytes of the longest number
_LEAST = 16  # fewer examples than this are read faster one after another
_LARGE = 8192
"""Larger examples than this, in bytes, are too: to lay them one behind another copies them."""
_LONG = 32  # from so many bytes on, slices are faster to copy than their bytes are to pick
_STEPS, _WIDTH = 16, 8
"""After so many steps, lock-step must have read so many fields in each, on average."""


class UnusualError(Exception):
    """The examples must be read one by one."""


class BatchReader:
    """Reads columns of batches of serialized examples."""

    def __init__(self, columns: Sequence[Column], required: Collection[Column]) -> None:
        self._columns = columns
        self._required = [column in required for column in columns]
        self._numbers = {column.key.encode(): number for number, column in enumerate(columns)}
        self._kinds = [column.kind for column in columns]
        self._tags = np.array([TAGS[column.kind] for column in columns], np.uint8)

    def __call__(self, records: Sequence[bytes]) -> list[Values]:
        """The values of every column, which fit it; or `UnusualError`."""
        _require(len(records) >= _LEAST)
        wire = _Wire(records)
        values, ends, table = self._entries(wire)
        # Lists lie column by column, and within each row by row.
        places = (table >= 0).nonzero()[0]
        values, ends = values[table[places]], ends[table[places]]
        # A feature without a list counts as missing.
        has_list = values < ends
        if not _everywhere(has_list):
            places, values, ends = places[has_list], values[has_list], ends[has_list]
        there = np.zeros(len(table), np.bool_)
        there[places] = True
        lists, stops = wire.field(values, self._tags[places // len(records)])
        _require_all(stops == ends)
        # Empty lists have no field; all others begin with one.
        is_filled = lists < stops
        if not _everywhere(is_filled):
            places, lists, ends = places[is_filled], lists[is_filled], ends[is_filled]
        starts, stops = wire.field(lists, FIRST)
        counts = np.zeros(len(table), np.int64)
        rows = [slice(at, at + len(records)) for at in range(0, len(table), len(records))]
        borders = np.searchsorted(places, [*range(0, len(table) + 1, len(records))])
        found = []
        for kind, row, pair in zip(self._kinds, rows, pairwise(borders.tolist()), strict=True):
            part = slice(*pair)
            if kind == "string":
                flat, sizes = wire.texts(lists[part], starts[part], stops[part], ends[part])
            else:
                _require_all(stops[part] == ends[part])
                flat, sizes = wire.numbers(kind, starts[part], stops[part] - starts[part])
            counts[places[part]] = sizes
            found.append(Values(flat, counts[row], there[row]))
        self._check(found)
        return found

    def _entries(self, wire: _Wire) -> tuple[Places, Places, Places]:
        """The bounds of all entries' features; and of each column and row its entry, or -1."""
        starts, ends = wire.field(wire.starts, FIRST)
        _require_all(ends == wire.ends)
        steps, rows, starts, ends = wire.fields(starts, ends)
        keys, key_ends = wire.field(starts, FIRST)
        _require_all(key_ends < ends)
        values, value_ends = wire.field(key_ends, SECOND)
        _require_all(value_ends == ends)
        columns = np.empty(len(rows), np.int64)
        for step in steps:
            # As a rule all rows have the same key at the same step.
            at, end = keys[step], key_ends[step]
            key = wire.data[int(at[0]) : int(end[0])]
            if wire.are(key, at, end):
                columns[step] = self._numbers.get(key, -1)
            else:
                columns[step] = [self._numbers.get(key, -1) for key in wire.slices(at, end)]
        wanted = (columns >= 0).nonzero()[0]
        table = np.full(len(self._columns) * len(wire.starts), -1)
        table[columns[wanted] * len(wire.starts) + rows[wanted]] = wanted
        _require(np.count_nonzero(table >= 0) == len(wanted))  # else a row has a key twice
        return values, ends, table

    def _check(self, found: Sequence[Values]) -> None:
        for column, is_required, values in zip(self._columns, self._required, found, strict=True):
            counts = values.counts
            if np.count_nonzero(values.there) < len(counts):
                _require(not is_required)
                counts = counts[values.there]
            different = counts[:1] if _everywhere(counts == counts[:1]) else set(counts.tolist())
            _require(not any(column.refusal(int(count)) for count in different))


class _Wire:
    """Examples one behind another: their bytes, and where each begins and ends."""

    def __init__(self, records: Sequence[bytes]) -> None:
        sizes = np.fromiter(map(len, records), np.int64, len(records))
        self.ends = np.cumsum(sizes)
        _require(self.ends[-1] <= _LARGE * len(records))
        self.data = b"".join(records) or b"\0"
        self.starts = self.ends - sizes
        self._bytes = np.frombuffer(self.data, np.uint8)

    def field(self, places: Places, tags: Any) -> tuple[Places, Places]:
        """Where the contents of the fields at places begin and end, which is unchecked."""
        _require_all(self._at(places) == tags)
        places = places + 1
        byte = self._at(places)
        sizes, starts = byte.astype(np.int64), places + 1
        if _everywhere(byte < 128):
            return starts, starts + sizes
        more = (byte > 127).nonzero()[0]
        sizes[more] &= 127
        for shift in (7, 14, 21):
            byte = self._at(starts[more])
            sizes[more] |= (byte & 127).astype(np.int64) << shift
            starts[more] += 1
            more = more[byte > 127]
        _require(not more.size)
        return starts, starts + sizes

    def fields(self, places: Places, ends: Places) -> tuple[list[slice], Places, Places, Places]:
        """The fields of messages, step by step: a slice for each step, and messages and bounds."""
        messages = np.arange(len(places))
        found = [(messages[:0],) * 3]
        borders = [0]
        while True:
            is_inside = places < ends
            if not _everywhere(is_inside):
                _require_all(places <= ends)
                messages, places, ends = messages[is_inside], places[is_inside], ends[is_inside]
            if not messages.size:
                break
            # A step takes as long for one message as for many: a few long ones are left.
            _require(len(found) <= _STEPS or borders[-1] >= _WIDTH * len(found))
            starts, places = self.field(places, FIRST)
            found.append((messages, starts, places))
            borders.append(borders[-1] + len(messages))
        messages, starts, stops = map(np.concatenate, zip(*found, strict=True))
        return [slice(*pair) for pair in pairwise(borders)], messages, starts, stops

    def texts(
        self, lists: Places, starts: Places, stops: Places, ends: Places
    ) -> tuple[Array, Places]:
        """The texts of lists, whose first texts have known bounds; and how many each has."""
        counts = np.ones(len(lists), np.int64)
        if not _everywhere(stops == ends):
            _, numbers, starts, stops = self.fields(lists, ends)
            order = np.argsort(numbers, kind="stable")
            starts, stops, counts = starts[order], stops[order], np.bincount(numbers)
        flat = np.empty(len(starts), TYPES["string"])
        flat[:] = self.slices(starts, stops)
        return flat, counts

    def numbers(self, kind: str, starts: Places, sizes: Places) -> tuple[Array, Places]:
        """The numbers that are packed in slices; and how many each has."""
        data = self._gathered(starts, sizes)
        if kind == "float":
            _require_all(sizes % 4 == 0)
            return data.view("<f4").astype(TYPES[kind], copy=False), sizes // 4
        is_last = data < 128
        if _everywhere(is_last):
            return data.astype(np.int64), sizes
        # A number in base 128 ends at the first byte below 128, and a slice ends with a number.
        stops = np.cumsum(sizes)
        _require_all(is_last[stops[sizes > 0] - 1])
        lasts = is_last.nonzero()[0]
        starts = np.zeros_like(lasts)
        starts[1:] = lasts[:-1] + 1
        widths = lasts - starts
        widest = int(widths.max())
        _require(widest < LONGEST)
        found = (data[starts] & 127).astype(np.uint64)
        for width in range(1, widest + 1):
            more = (widths >= width).nonzero()[0]
            bits = (data[starts[more] + width] & 127).astype(np.uint64)
            found[more] |= bits << np.uint64(7 * width)
        counts = np.searchsorted(lasts, stops)
        counts[1:] -= counts[:-1].copy()
        return found.view(np.int64), counts

    def are(self, text: bytes, starts: Places, ends: Places) -> bool:
        """Whether all slices are a text."""
        if not _everywhere(ends - starts == len(text)):
            return False
        # Strings of NumPy may end early, at zeros; those of one size are equal nevertheless only
        # if all their bytes are.
        return not text or _everywhere(self._windows("S", len(text))[starts] == text)

    def slices(self, starts: Places, ends: Places) -> list[bytes]:
        data = self.data
        return [data[at:end] for at, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def _at(self, places: Places) -> NDArray[np.uint8]:
        """The bytes at places; beyond the end the last byte, which makes no field that fits."""
        return self._bytes.take(places, mode="clip")

    def _gathered(self, starts: Places, sizes: Places) -> NDArray[np.uint8]:
        """The bytes of slices, one after another."""
        total = int(sizes.sum())
        if not total:
            return np.empty(0, np.uint8)
        if _everywhere(sizes == sizes[0]):
            return self._windows("V", int(sizes[0]))[starts].view(np.uint8)
        if total > _LONG * len(sizes):
            return np.frombuffer(bytearray().join(self.slices(starts, starts + sizes)), np.uint8)
        picked = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
        picked += np.arange(total)
        return self._at(picked)

    def _windows(self, kind: str, size: int) -> Array:
        """All slices of one size, by their beginnings."""
        count = len(self.data) - size + 1
        return np.ndarray((count,), f"{kind}{size}", self.data, strides=(1,))


def _everywhere(condition: NDArray[np.bool_]) -> bool:
    """Whether a condition holds everywhere; ``all`` takes four times as long for a batch."""
    return bool(np.count_nonzero(condition) == condition.size)


def _require(condition: bool | np.bool_) -> None:
    if not condition:
        raise UnusualError


def _require_all(condition: NDArray[np.bool_]) -> None:
    if not _everywhere(condition):
        raise UnusualError
