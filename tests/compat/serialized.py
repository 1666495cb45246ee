"""Serialized examples of all sorts: as writers make them, as they might, and damaged."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ("Slot", "damaged", "field", "number", "record")

TEXTS = (b"", b"x", b"two", b"12345", b"w" * 130)
WHOLE = (0, 1, 5, 127, 128, 300, 2**40, 2**63 - 1, -1, -(2**63))
REAL = (0.0, 1.5, -2.0, 1e30, float("inf"))
TAGS = {"string": 0x0A, "float": 0x12, "int64": 0x1A}
UNKNOWN = (b"\x10\x05", b"\x1a\x02ab", b"\x25abcd", b"\x21abcdefgh")


@dataclass(frozen=True)
class Slot:
    """A feature that records have.

    Attributes:
        key: its name.
        kind: ``"string"``, ``"float"`` or ``"int64"``.
        count: how many values it has; None for any number.
    """

    key: str
    kind: str
    count: int | None = None


def number(value: int) -> bytes:
    """An integer in base 128."""
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(tag: int, contents: bytes) -> bytes:
    """A field that has a length."""
    return bytes([tag]) + number(len(contents)) + contents


def _feature(draw: random.Random, kind: str, count: int | None, *, plain: bool) -> bytes:
    count = draw.choice((0, 1, 1, 1, 2, 3, 40)) if count is None else count
    is_packed = plain or draw.random() < 0.7
    if kind == "string":
        values = [field(0x0A, draw.choice(TEXTS)) for _ in range(count)]
        is_packed = False
    elif kind == "float":
        mark = b"" if is_packed else b"\x0d"
        values = [mark + struct.pack("<f", draw.choice(REAL)) for _ in range(count)]
    else:
        mark = b"" if is_packed else b"\x08"
        values = [mark + number(draw.choice(WHOLE)) for _ in range(count)]
    packed = b"".join(values)
    if is_packed and (count or draw.random() < 0.3):
        packed = field(0x0A, packed)
    return field(TAGS[kind], packed)


def record(draw: random.Random, slots: Sequence[Slot], *, plain: bool) -> bytes:
    """A serialized example.

    Args:
        draw: random numbers.
        slots: what it may have.
        plain: whether it is as common writers write it: else fields may come in any order, twice
            or not at all, lists be unpacked, and features be of wrong kinds and numbers.
    """
    entries = []
    for slot in slots:
        if draw.random() < 0.1:
            continue
        is_odd = not plain and draw.random() < 0.1
        kind = draw.choice(list(TAGS)) if is_odd else slot.kind
        count = None if is_odd else slot.count
        feature = _feature(draw, kind, count, plain=plain) if draw.random() < 0.95 else b""
        key = field(0x0A, slot.key.encode())
        value = field(0x12, feature)
        form = 0 if plain else draw.choice((0,) * 12 + (1, 2, 3, 4, 5, 6))
        entry = (key + value, value + key, key, value, value + value, key + value + b"\x12\0", b"")
        entries.append(field(0x0A, entry[form]))
        if not plain and draw.random() < 0.1:
            again = _feature(draw, slot.kind, slot.count, plain=False)
            entries.append(field(0x0A, key + field(0x12, again)))
    if draw.random() < 0.3:
        draw.shuffle(entries)
    if plain or draw.random() < 0.8:
        return field(0x0A, b"".join(entries))
    cut = draw.randint(0, len(entries))
    first, second = (field(0x0A, b"".join(part)) for part in (entries[:cut], entries[cut:]))
    return first + draw.choice((b"", *UNKNOWN)) + second


def damaged(draw: random.Random, data: bytes) -> bytes:
    """A record that is cut off, or has a wrong byte."""
    if not data or draw.random() < 0.5:
        return data[: draw.randint(0, len(data))]
    place = draw.randrange(min(len(data), 60))
    byte = draw.choice((0, 1, 8, 10, 13, 18, 26, 127, draw.randrange(128)))
    return data[:place] + bytes([byte]) + data[place + 1 :]
