"""Serialized examples, read exactly as TensorFlow reads them: one after another.

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

TensorFlow parses them with a reader of its own
(``tensorflow/core/util/example_proto_fast_parsing.cc``), not as protobuf does: of a key that comes
twice the last one counts, what nobody asked for is not looked at, of a list only the first packed
field is, and a length that reaches beyond the message around it means its end. So does this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from aioqueue.compat.v1 import errors
from aioqueue.compat.v1.ops.building import invalid
from aioqueue.compat.v1.ops.effects import c_escaped
from aioqueue.compat.v1.parsing import batches
from aioqueue.compat.v1.parsing.columns import (
    Chunk,
    Column,
    DenseColumn,
    PaddedColumn,
    Values,
    count_of,
)

NUMBER, FOUR_BYTES = 0x08, 0x0D
"""Tags of the first field, when it is a number in base 128, and one of four bytes."""
KINDS = {tag: kind for kind, tag in batches.TAGS.items()}
"""The kind of list that each tag in a feature means."""
_FIELDS = {"string": "bytes_list", "float": "float_list", "int64": "int64_list"}
"""The field of a feature that has each kind of list."""


class _DamagedError(Exception):
    """What is here is no message."""


class RecordReader:
    """Reads columns of serialized examples, in lock-step if common writers wrote them all."""

    def __init__(self, columns: Sequence[Column], have_default: Collection[str]) -> None:
        self._columns = {column.key.encode(): column for column in columns}
        self._required = [
            column for column in columns if column.must_be_there and column.key not in have_default
        ]
        self._lock_step = batches.BatchReader(columns, self._required)

    def batch(self, records: Sequence[bytes], names: Sequence[str | None]) -> list[Values]:
        """The values of every column in a batch."""
        try:
            return self._lock_step(records)
        except batches.UnusualError:
            return self.one_by_one(records, names)

    def one_by_one(self, records: Sequence[bytes], names: Sequence[str | None]) -> list[Values]:
        rows = []
        for at, (record, name) in enumerate(zip(records, names, strict=True)):
            try:
                rows.append(self._row(record, _SINGLE))
            except errors.InvalidArgumentError:
                # Words that name a place are made where something is wrong, and nowhere else.
                rows.append(self._row(record, _BatchWords(name, at)))
        return self._values(rows)

    def single(self, record: bytes) -> list[Values]:
        """The same for one example that is parsed without a batch: messages differ."""
        return self._values([self._row(record, _SINGLE)])

    def _values(self, rows: Sequence[dict[bytes, Chunk]]) -> list[Values]:
        return [
            Values.of([row.get(key) for row in rows], column.kind)
            for key, column in self._columns.items()
        ]

    def _row(self, record: bytes, words: _Words) -> dict[bytes, Chunk]:
        """The lists of an example that columns want, by key."""
        try:
            entries = _entries(record)
        except _DamagedError:
            raise words.unreadable(record) from None
        found: dict[bytes, Chunk] = {}
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
) -> Chunk:
    """A list that is of the column's kind, and has as many values as it wants."""
    if kind != column.kind:
        raise words.error(column, column.wrong_kind(kind))
    try:
        values = _LISTS[kind](record, start, end)
    except _DamagedError:
        raise words.damaged(column) from None
    count = count_of(values, kind)
    if column.refusal(count):
        raise words.misfit(column, count)
    return values


class _Words:
    """What messages say of an example that is parsed without a batch."""

    _prefix = _suffix = ""

    def error(self, column: Column, what: str) -> errors.InvalidArgumentError:
        return invalid(f"{self._prefix}Key: {column.key}{self._suffix}.  {what}")

    def missing(self, column: Column) -> errors.InvalidArgumentError:
        return invalid(
            f"{self._prefix}Feature: {column.key} (data type: {column.kind}) is required but could"
            " not be found."
        )

    def unreadable(self, record: bytes) -> errors.InvalidArgumentError:
        try:
            shown = record.decode()
        except UnicodeDecodeError:  # TensorFlow fails to make a message then
            shown = c_escaped(record)
        return invalid(f"Could not parse example input, value: '{shown}'")

    def damaged(self, column: Column) -> errors.InvalidArgumentError:
        field = _FIELDS[column.kind]
        is_counted = column.kind == "string" and not isinstance(column, DenseColumn)
        what = f"Could not get num elements in {field}" if is_counted else f"Parsing {field} failed"
        return self.error(column, f"Can't parse serialized Example: {what}.")

    def misfit(self, column: Column, count: int) -> errors.InvalidArgumentError:
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
    """What messages say of an example in a batch, which has a place in it, and maybe a name."""

    def __init__(self, name: str | None, index: int) -> None:
        self._prefix = f"Name: {name or '<unknown>'}, "
        self._suffix = f", Index: {index}"

    def damaged(self, column: Column) -> errors.InvalidArgumentError:
        return self.error(column, "Can't parse serialized Example.")

    def misfit(self, column: Column, count: int) -> errors.InvalidArgumentError:
        if _is_overfull(column, count):
            return self.damaged(column)
        return self.error(column, column.refusal(count) or "")


_SINGLE = _Words()


def _is_overfull(column: Column, count: int) -> bool:
    """Whether there are more texts than there is space for: TensorFlow reads no further then."""
    return isinstance(column, DenseColumn) and column.kind == "string" and count > column.size


def _number(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number in base 128, and the place behind it."""
    value = shift = 0
    for byte in data[at : min(at + batches.LONGEST, end)]:
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
    if at < end and (size := data[at]) < 128:
        at += 1
    else:
        size, at = _length(data, at, end)
    stop = at + size
    return at, min(end, stop)


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
        if data[at] != batches.FIRST:
            at = _behind_unknown(data, at, end)
            continue
        at, inner = _limit(data, at + 1, end)
        while at < inner:
            if data[at] != batches.FIRST:
                raise _DamagedError
            at, stop = _limit(data, at + 1, inner)
            found.append(_entry(data, at, stop))
            at = stop
    return found


def _entry(data: bytes, at: int, end: int) -> tuple[bytes, int, int]:
    """The key of an entry, and where its feature begins and ends: two fields, in any order."""
    # As a rule the key is first, and a byte each is enough for both lengths.
    if end - at > 2 and data[at] == batches.FIRST:
        value = at + 2 + data[at + 1]
        if (
            value + 2 <= end
            and data[value] == batches.SECOND
            and value + 2 + data[value + 1] == end
            and data[at + 1] < 128 > data[value + 1]
        ):
            return data[at + 2 : value], value + 2, end
    key, feature = b"", (0, 0)
    for _ in range(2):
        tag, at = _length(data, at, end)
        if tag == batches.FIRST:
            start, at = _whole(data, at, end)
            key = data[start:at]
        elif tag == batches.SECOND:
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


def _texts(data: bytes, at: int, end: int) -> list[bytes]:
    found = []
    at, end = _limit(data, at, end)
    while at < end:
        if data[at] != batches.FIRST:
            raise _DamagedError
        start, at = _whole(data, at + 1, end)
        found.append(data[start:at])
    return found


def _floats(data: bytes, at: int, end: int) -> bytes:
    at, end = _limit(data, at, end)
    if at < end and data[at] == batches.FIRST:
        size, at = _length(data, at + 1, end)
        if size // 4 * 4 > end - at:
            raise _DamagedError
        return data[at : at + size // 4 * 4]
    found = b""
    while at < end:
        if data[at] != FOUR_BYTES or end - at < 5:
            raise _DamagedError
        found += data[at + 1 : at + 5]
        at += 5
    return found


def _integers(data: bytes, at: int, end: int) -> list[int]:
    at, end = _limit(data, at, end)
    found: list[int] = []
    if at < end and data[at] == batches.FIRST:
        at, end = _limit(data, at + 1, end)
        packed = data[at:end]
        if packed.isascii():  # a byte each
            return list(packed)
        value = shift = 0
        for byte in packed:
            value |= (byte & 127) << shift
            if byte < 128:
                found.append(_signed(value))
                value = shift = 0
            else:
                shift += 7
                if shift == 7 * batches.LONGEST:
                    raise _DamagedError
        if shift:
            raise _DamagedError
        return found
    while at < end:
        if data[at] != NUMBER:
            raise _DamagedError
        value, at = _number(data, at + 1, end)
        found.append(_signed(value))
    return found


def _signed(value: int) -> int:
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >> 63 else value


_LISTS: dict[str, Callable[[bytes, int, int], Chunk]] = {
    "string": _texts,
    "float": _floats,
    "int64": _integers,
}
