"""Serialized messages of a whole batch, read in lock-step: places in them are vectors.

A message is a series of fields, each a tag and a value; a value of variable size begins with its
length, a number in base 128 whose every byte but the last has its highest bit set
(https://protobuf.dev/programming-guides/encoding/). `Wire` lays the messages of a batch behind each
other and reads what stands at one place of each with a few calls of NumPy, whatever their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ("Places", "UnusualError", "Wire", "decoded", "everywhere", "require", "where")

Places = NDArray[np.int64]

_LONG = 32
"""From so many bytes on, copying slices one by one is faster than picking bytes."""
_MOST = 10
"""The bytes of the longest number."""


class UnusualError(Exception):
    """The messages are not as writers of TensorFlow make them: they must be read one by one."""


def require(condition: NDArray[np.bool_]) -> None:
    """Raise `UnusualError` unless a condition holds everywhere."""
    if not everywhere(condition):
        raise UnusualError


def everywhere(condition: NDArray[np.bool_]) -> bool:
    """Whether a condition holds everywhere; ``all`` takes four times as long for a batch."""
    return bool(np.count_nonzero(condition) == condition.size)


def where(condition: NDArray[np.bool_]) -> Places:
    """The numbers of the places at which a condition holds."""
    return condition.nonzero()[0]


class Wire:
    """Messages behind each other.

    Args:
        messages: the serialized messages, at least one.

    Attributes:
        data: their bytes.
        starts: where each begins.
        ends: where each ends.
    """

    __slots__ = ("_bytes", "data", "ends", "starts")

    def __init__(self, messages: Sequence[bytes]) -> None:
        sizes = np.fromiter(map(len, messages), np.int64, len(messages))
        self.data: bytes = b"".join(messages) or b"\0"
        self.ends = np.cumsum(sizes)
        self.starts = self.ends - sizes
        self._bytes = np.frombuffer(self.data, np.uint8)

    def at(self, places: Places) -> NDArray[np.uint8]:
        """The bytes at places; what is beyond the end is the last byte, which fits nowhere."""
        return self._bytes.take(places, mode="clip")

    def lengths(self, places: Places) -> tuple[Places, Places]:
        """The lengths that are written at places, and the places behind them.

        Raises:
            UnusualError: one takes more than four bytes.
        """
        byte = self.at(places)
        found, behind = byte.astype(np.int64), places + 1
        more = where(byte > 127)
        if not more.size:
            return found, behind
        found[more] &= 127
        for shift in (7, 14, 21):
            byte = self.at(behind[more])
            found[more] |= (byte & 127).astype(np.int64) << shift
            behind[more] += 1
            more = more[byte > 127]
            if not more.size:
                return found, behind
        raise UnusualError

    def are(self, text: bytes, places: Places) -> NDArray[np.bool_]:
        """At which places, all within the messages, a text stands."""
        if not text or not places.size:
            return np.ones(len(places), np.bool_)
        # Strings of NumPy may end early, at zeros; those of one size are equal nevertheless only
        # if all their bytes are.
        found: NDArray[np.bool_] = self._windows("S", len(text))[places] == text
        return found

    def gathered(self, places: Places, sizes: Places) -> NDArray[np.uint8]:
        """The bytes of slices, one after another."""
        total = int(sizes.sum())
        if not total:
            return np.empty(0, np.uint8)
        first = int(sizes[0])
        if everywhere(sizes == first):
            alike: NDArray[np.uint8] = self._windows("V", first)[places].view(np.uint8)
            return alike
        if total > _LONG * len(sizes):
            return np.frombuffer(b"".join(self.slices(places, sizes)), np.uint8)
        picked = np.repeat(places - (np.cumsum(sizes) - sizes), sizes)
        picked += np.arange(total)
        return self.at(picked)

    def slices(self, places: Places, sizes: Places) -> list[bytes]:
        """The texts of so many bytes at places."""
        data, ends = self.data, places + sizes
        return [data[start:end] for start, end in zip(places.tolist(), ends.tolist(), strict=True)]

    def _windows(self, kind: str, size: int) -> NDArray[Any]:
        """All slices of one size, by their beginnings."""
        count = len(self.data) - size + 1
        return np.ndarray((count,), f"{kind}{size}", self.data, strides=(1,))


def decoded(data: NDArray[np.uint8], sizes: Places) -> tuple[NDArray[np.int64], Places]:
    """The numbers in base 128 that slices are made of, and how many each slice has.

    Args:
        data: the bytes of the slices, one after another.
        sizes: the length of each slice.

    Raises:
        UnusualError: a number is cut off, or longer than ten bytes.
    """
    is_last = data < 128
    if everywhere(is_last):
        return data.astype(np.int64), sizes
    # How many numbers have ended before each place.
    ended = np.zeros(len(data) + 1, np.int64)
    np.cumsum(is_last, out=ended[1:])
    behind = np.cumsum(sizes)
    before = behind - sizes
    require(is_last[behind[sizes > 0] - 1])
    lasts = where(is_last)
    starts = np.empty_like(lasts)
    starts[0], starts[1:] = 0, lasts[:-1] + 1
    widths = lasts - starts + 1
    widest = int(widths.max())
    if widest > _MOST:
        raise UnusualError
    found = (data[starts] & 127).astype(np.uint64)
    for width in range(1, widest):
        more = where(widths > width)
        bits = (data[starts[more] + width] & 127).astype(np.uint64)
        found[more] |= bits << np.uint64(7 * width)
    return found.view(np.int64), ended[behind] - ended[before]
