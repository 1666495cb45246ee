"""One serialized example after another, read exactly as TensorFlow reads them.

TensorFlow parses examples with a reader of its own
(``tensorflow/core/util/example_proto_fast_parsing.cc``), not as protobuf does: of a key that comes
twice the last one counts, what nobody asked for is not looked at, of a list only the first packed
field is, and a length that reaches beyond the message around it means its end. So does this.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence

import numpy as np

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.ops.effects import c_escaped
from aioqueue.compat.v1.parsing.columns import Column, DenseColumn, PaddedColumn
from aioqueue.compat.v1.parsing.values import Array, Values, as_array, invalid

__all__ = ("RecordReader",)

FIRST, SECOND = 0x0A, 0x12
"""Tags of the first and the second field of a message, when they have a length."""
NUMBER, FOUR_BYTES = 0x08, 0x0D
"""Tags of the first field, when it is a number in base 128, and one of four bytes."""
KINDS = {0x0A: "string", 0x12: "float", 0x1A: "int64"}
"""The kind of list that each tag in a feature means."""
_FIELDS = {"string": "bytes_list", "float": "float_list", "int64": "int64_list"}
"""The field of a feature that has each kind of list."""
_MOST = 10
"""The bytes of the longest number."""


class _DamagedError(Exception):
    """What is here is no message."""


class RecordReader:
    """Reads columns of serialized examples, one example after another.

    Args:
        columns: what to read: one feature each, no key twice.
        have_default: the keys of those with a default for rows that lack the feature.
    """

    def __init__(self, columns: Sequence[Column], have_default: Collection[str]) -> None:
        self._columns = {column.key.encode(): column for column in columns}
        self._required = [
            column for column in columns if column.must_be_there and column.key not in have_default
        ]

    def batch(self, records: Sequence[bytes], names: Sequence[str | None]) -> list[Values]:
        """The values of every column in a batch.

        Args:
            records: the serialized examples.
            names: what error messages call each of them.

        Raises:
            InvalidArgumentError: of the first example that is damaged, or does not fit.
        """
        rows = [
            self._row(record, _BatchWords(name, at))
            for at, (record, name) in enumerate(zip(records, names, strict=True))
        ]
        return [
            Values.of([row.get(key) for row in rows], column.kind)
            for key, column in self._columns.items()
        ]

    def single(self, record: bytes) -> list[Values]:
        """The same for one example that is parsed alone."""
        row = self._row(record, _ALONE)
        return [Values.of([row.get(key)], column.kind) for key, column in self._columns.items()]

    def _row(self, record: bytes, words: _Words) -> dict[bytes, Array]:
        """The lists of an example that columns want, by key."""
        try:
            entries = _entries(record)
        except _DamagedError:
            raise words.unreadable(record) from None
        found: dict[bytes, Array] = {}
        for key, start, end in reversed(entries):
            column = self._columns.get(key)
            if column is None or start == end:
                continue
            kind = KINDS.get(record[start])
            if kind is None:
                raise invalid("Unsupported datatype.")
            if key not in found:
                found[key] = _checked(column, kind, record, start + 1, end, words)
        for column in self._required:
            if column.key.encode() not in found:
                raise words.missing(column)
        return found


def _checked(
    column: Column, kind: str, record: bytes, start: int, end: int, words: _Words
) -> Array:
    """A list that is of the column's kind, and has as many values as it wants."""
    if kind != column.kind:
        types = (
            f"Expected type: {column.kind}, Actual type: {kind}"
            if column.is_sparse
            else f"Data type: {kind} but expected type: {column.kind}"
        )
        raise words.error(column, f"Data types don't match. {types}")
    try:
        values = _LISTS[kind](record, start, end)
    except _DamagedError:
        raise words.damaged(column) from None
    if column.refusal(len(values)):
        raise words.misfit(column, len(values))
    return values


class _Words:
    """What messages say of an example that is parsed alone."""

    _prefix = _suffix = ""

    def error(self, column: Column, what: str) -> errors.InvalidArgumentError:
        """Something is wrong with a feature."""
        return invalid(f"{self._prefix}Key: {column.key}{self._suffix}.  {what}")

    def missing(self, column: Column) -> errors.InvalidArgumentError:
        """A feature without a default is not there."""
        return invalid(
            f"{self._prefix}Feature: {column.key} (data type: {column.kind}) is required but could"
            " not be found."
        )

    def unreadable(self, record: bytes) -> errors.InvalidArgumentError:
        """It is no example at all."""
        try:
            shown = record.decode()
        except UnicodeDecodeError:  # TensorFlow fails to make a message then
            shown = c_escaped(record)
        return invalid(f"Could not parse example input, value: '{shown}'")

    def damaged(self, column: Column) -> errors.InvalidArgumentError:
        """A list cannot be read."""
        field = _FIELDS[column.kind]
        is_counted = column.kind == "string" and not isinstance(column, DenseColumn)
        what = f"Could not get num elements in {field}" if is_counted else f"Parsing {field} failed"
        return self.error(column, f"Can't parse serialized Example: {what}.")

    def misfit(self, column: Column, count: int) -> errors.InvalidArgumentError:
        """A list has another number of values than the column wants."""
        if isinstance(column, PaddedColumn):
            return invalid(
                f"Error while parsing feature with key {column.key}: number of elements should be"
                f" divisible by {column.stride}, found {count} instead"
            )
        if _is_overfull(column, count):
            return self.damaged(column)
        slice_name = f"{_FIELDS[column.kind]} slice"
        return self.error(
            column, f"Can't parse serialized Example: Some {slice_name} was not parsed."
        )


class _BatchWords(_Words):
    """What messages say of an example in a batch.

    Args:
        name: what the caller calls it.
        index: its place in the batch.
    """

    def __init__(self, name: str | None, index: int) -> None:
        self._prefix = f"Name: {name or '<unknown>'}, "
        self._suffix = f", Index: {index}"

    def damaged(self, column: Column) -> errors.InvalidArgumentError:
        return self.error(column, "Can't parse serialized Example.")

    def misfit(self, column: Column, count: int) -> errors.InvalidArgumentError:
        if _is_overfull(column, count):
            return self.damaged(column)
        return self.error(column, column.refusal(count) or "")


_ALONE = _Words()


def _is_overfull(column: Column, count: int) -> bool:
    """Whether there are more texts than there is space for: TensorFlow reads no further then."""
    return isinstance(column, DenseColumn) and column.kind == "string" and count > column.size


def _number(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number in base 128, and the place behind it."""
    value = shift = 0
    for byte in data[at : min(at + _MOST, end)]:
        at += 1
        if byte < 128:
            return value | byte << shift, at
        value |= (byte & 127) << shift
        shift += 7
    raise _DamagedError


def _length(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A length, and the place behind it."""
    if at < end and data[at] < 128:
        return data[at], at + 1
    value, at = _number(data, at, end)
    return value & 0xFFFFFFFF, at


def _limit(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Where the message that is written here begins and ends, not beyond the one around it."""
    size, at = (data[at], at + 1) if at < end and data[at] < 128 else _length(data, at, end)
    return at, min(at + size, end)


def _whole(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Where the text that is written here begins and ends."""
    size, at = _length(data, at, end)
    if size > end - at:
        raise _DamagedError
    return at, at + size


def _entries(data: bytes) -> list[tuple[bytes, int, int]]:
    """The keys of an example, and where the feature of each begins and ends."""
    found = []
    at, end = 0, len(data)
    while at < end:
        if data[at] != FIRST:
            at = _behind_unknown(data, at, end)
            continue
        at, inner = _limit(data, at + 1, end)
        while at < inner:
            if data[at] != FIRST:
                raise _DamagedError
            at, stop = _limit(data, at + 1, inner)
            found.append(_entry(data, at, stop))
            at = stop
    return found


def _entry(data: bytes, at: int, end: int) -> tuple[bytes, int, int]:
    """The key of an entry, and where its feature begins and ends: two fields, in any order."""
    # As a rule the key is first, and a byte each is enough for both lengths.
    if end - at > 2 and data[at] == FIRST:
        value = at + 2 + data[at + 1]
        if (
            value + 2 <= end
            and data[value] == SECOND
            and value + 2 + data[value + 1] == end
            and data[at + 1] < 128 > data[value + 1]
        ):
            return data[at + 2 : value], value + 2, end
    key, feature = b"", (0, 0)
    for _ in range(2):
        tag, at = _length(data, at, end)
        if tag == FIRST:
            start, at = _whole(data, at, end)
            key = data[start:at]
        elif tag == SECOND:
            feature = _, at = _whole(data, at, end)
        else:
            raise _DamagedError
    if at != end:
        raise _DamagedError
    return key, *feature


def _behind_unknown(data: bytes, at: int, end: int) -> int:
    """The place behind a field that examples do not have."""
    tag, at = _length(data, at, end)
    match tag & 7:
        case 0:
            return _number(data, at, end)[1]
        case 2:
            return _limit(data, at, end)[1]
        case 1 | 5 as kind:
            at += 8 if kind == 1 else 4
            if at <= end:
                return at
    raise _DamagedError


def _texts(data: bytes, at: int, end: int) -> Array:
    found = []
    at, end = _limit(data, at, end)
    while at < end:
        if data[at] != FIRST:
            raise _DamagedError
        start, at = _whole(data, at + 1, end)
        found.append(data[start:at])
    return as_array(found, "string")


def _floats(data: bytes, at: int, end: int) -> Array:
    at, end = _limit(data, at, end)
    found: list[float] = []
    if at < end and data[at] == FIRST:
        size, at = _length(data, at + 1, end)
        if size // 4 * 4 > end - at:
            raise _DamagedError
        return np.frombuffer(data, "<f4", size // 4, at)
    while at < end:
        if data[at] != FOUR_BYTES or end - at < 5:
            raise _DamagedError
        found += struct.unpack_from("<f", data, at + 1)
        at += 5
    return np.array(found, np.float32)


def _integers(data: bytes, at: int, end: int) -> Array:
    at, end = _limit(data, at, end)
    is_packed = at < end and data[at] == FIRST
    if is_packed:
        at, end = _limit(data, at + 1, end)
        packed = data[at:end]
        if packed.isascii():  # a byte each
            return np.frombuffer(packed, np.uint8).astype(np.int64)
    found = []
    while at < end:
        if not is_packed:
            if data[at] != NUMBER:
                raise _DamagedError
            at += 1
        value, at = _number(data, at, end)
        found.append(value & 0xFFFFFFFFFFFFFFFF)
    return np.array(found, np.uint64).view(np.int64)


_LISTS: dict[str, Callable[[bytes, int, int], Array]] = {
    "string": _texts,
    "float": _floats,
    "int64": _integers,
}
