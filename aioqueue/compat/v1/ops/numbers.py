"""Numbers for texts: what they mean, as TensorFlow reads them, and their fingerprints."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.dtypes import DType

NUMERIC = frozenset(("float32", "float64", "int32", "int64"))
"""The dtypes of numbers that texts may mean."""

_LIMITS = {one.name: (one.min, one.max) for one in (dtypes.int32, dtypes.int64)}
_NAN = re.compile(rb"\s*[-+]?nan\(\w*\)\s*", re.IGNORECASE)
_HEXADECIMAL = re.compile(rb"\s*[-+]?0x[0-9a-f.]+(p[-+]?\d+)?\s*", re.IGNORECASE)
_BELOW_FLOAT32 = 0x1FFFFFFF
_HALF = 0x10000000


def c_name(dtype: DType) -> str:
    """A dtype as TensorFlow's messages call it."""
    return {"float16": "half", "float32": "float", "float64": "double"}.get(dtype.name, dtype.name)


def parse_number(text: bytes, dtype: DType) -> Any:
    """The number that a text means; ValueError for no number, or one too large."""
    if b"_" in text:
        raise ValueError(text)  # Python's own way of writing numbers
    limits = _LIMITS.get(dtype.name)
    if limits is None:
        return _float(text, dtype)
    number = int(text)
    if not limits[0] <= number <= limits[1]:
        raise ValueError(text)
    return number


def _float(text: bytes, dtype: DType) -> float:
    try:
        number = float(text)
    except ValueError:
        if _HEXADECIMAL.fullmatch(text):
            return float.fromhex(text.decode())
        if _NAN.fullmatch(text):
            return float("nan")
        raise
    if dtype == dtypes.float32 and _is_between(np.array([number])).any():
        return _rounded_once(text, number)
    return number


def _is_between(numbers: NDArray[np.float64]) -> Any:
    """Which numbers are as far from one float32 as from the next: rounding twice may err there."""
    return (numbers.view(np.int64) & _BELOW_FLOAT32) == _HALF


def _rounded_once(text: bytes, number: float) -> float:
    """The float32 nearest to a text, whose nearest float64 is between two of them."""
    exact, half = Fraction(text.decode().strip()), Fraction(number)
    if exact == half:
        return number
    towards = np.inf if exact > half else -np.inf
    return float(np.nextafter(number, towards))


def parse_column(texts: tuple[bytes, ...], dtype: DType) -> NDArray[Any] | None:
    """The numbers that many texts mean, all at once; None if one of them needs a closer look.

    None of the texts may have an underscore.
    """
    reader: Any = float if dtype.is_floating else int
    try:
        numbers = np.fromiter(
            map(reader, texts), np.float64 if dtype.is_floating else dtype.numpy, len(texts)
        )
    except (ValueError, OverflowError):
        return None
    if dtype != dtypes.float32:
        return numbers
    if _is_between(numbers).any():
        return None
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


# FarmHash's ``Fingerprint64``, whose values never change: see its description by Geoff Pike,
# Google, 2014 (https://github.com/google/farmhash).

_MASK = (1 << 64) - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_SEED = 81


def fingerprint64(text: bytes) -> int:
    """A number of 64 bits for a string."""
    size = len(text)
    if size <= 16:
        return _up_to_16(text, size)
    if size <= 32:
        return _up_to_32(text, size)
    return _up_to_64(text, size) if size <= 64 else _longer(text, size)


def _word(text: bytes, place: int) -> int:
    return int.from_bytes(text[place : place + 8], "little")


def _turned(value: int, bits: int) -> int:
    value &= _MASK
    return (value >> bits | value << 64 - bits) & _MASK


def _mixed(value: int) -> int:
    value &= _MASK
    return value ^ value >> 47


def _of_two(first: int, second: int, factor: int) -> int:
    """A number of 64 bits for two of them."""
    one = _mixed((first ^ second) * factor)
    return _mixed((second ^ one) * factor) * factor & _MASK


def _up_to_16(text: bytes, size: int) -> int:
    if size >= 8:
        factor = _K2 + size * 2
        a, b = _word(text, 0) + _K2 & _MASK, _word(text, size - 8)
        c = _turned(b, 37) * factor + a & _MASK
        return _of_two(c, (_turned(a, 25) + b) * factor & _MASK, factor)
    if size >= 4:
        first = int.from_bytes(text[:4], "little")
        return _of_two(size + (first << 3), int.from_bytes(text[-4:], "little"), _K2 + size * 2)
    if size:
        y, z = text[0] + (text[size >> 1] << 8), size + (text[-1] << 2)
        return _mixed(y * _K2 ^ z * _K0) * _K2 & _MASK
    return _K2


def _ends(text: bytes, size: int, first: int) -> tuple[int, int, int]:
    """What the first and the last 16 bytes give: a number of each kind of sum, and the first."""
    factor = _K2 + size * 2
    a, b = _word(text, 0) * first & _MASK, _word(text, 8)
    c, d = _word(text, size - 8) * factor & _MASK, _word(text, size - 16) * _K2 & _MASK
    y = _turned(a + b, 43) + _turned(c, 30) + d & _MASK
    return y, a + _turned(b + _K2, 18) + c & _MASK, a


def _up_to_32(text: bytes, size: int) -> int:
    y, z, _ = _ends(text, size, _K1)
    return _of_two(y, z, _K2 + size * 2)


def _up_to_64(text: bytes, size: int) -> int:
    factor = _K2 + size * 2
    y, other, a = _ends(text, size, _K2)
    z = _of_two(y, other, factor)
    e, f = _word(text, 16) * factor & _MASK, _word(text, 24)
    g = (y + _word(text, size - 32)) * factor & _MASK
    h = (z + _word(text, size - 24)) * factor & _MASK
    return _of_two(
        _turned(e + f, 43) + _turned(g, 30) + h & _MASK,
        e + _turned(f + a, 18) + g & _MASK,
        factor,
    )


def _weak(text: bytes, place: int, a: int, b: int) -> tuple[int, int]:
    """Two numbers of 32 bytes and two numbers."""
    w, x, y, z = (_word(text, place + step) for step in (0, 8, 16, 24))
    a += w
    b = _turned(b + a + z, 21)
    c = a
    a += x + y
    b += _turned(a, 44)
    return a + z & _MASK, b + c & _MASK


State = tuple[int, int, int, tuple[int, int], tuple[int, int]]


def _round(text: bytes, place: int, state: State, factor: int, weight: int) -> State:
    """One round over 64 bytes."""
    x, y, z, v, w = state
    x = _turned(x + y + v[0] + _word(text, place + 8), 37) * factor & _MASK
    y = _turned(y + v[1] + _word(text, place + 48), 42) * factor & _MASK
    x ^= w[1] * weight & _MASK
    y = y + v[0] * weight + _word(text, place + 40) & _MASK
    z = _turned(z + w[0], 33) * factor & _MASK
    v = _weak(text, place, v[1] * factor, x + w[0])
    w = _weak(text, place + 32, z + w[1], y + _word(text, place + 16))
    return z, y, x, v, w


def _longer(text: bytes, size: int) -> int:
    y = _SEED * _K1 + 113 & _MASK
    z = _mixed(y * _K2 + 113) * _K2 & _MASK
    x = _SEED * _K2 + _word(text, 0) & _MASK
    state: State = (x, y, z, (0, 0), (0, 0))
    last = (size - 1) // 64 * 64
    for place in range(0, last, 64):
        state = _round(text, place, state, _K1, 1)
    x, y, z, v, w = state
    factor = _K1 + ((z & 0xFF) << 1)
    w = (w[0] + (size - 1 & 63), w[1])
    v = (v[0] + w[0] & _MASK, v[1])
    w = (w[0] + v[0] & _MASK, w[1])
    x, y, z, v, w = _round(text, size - 64, (x, y, z, v, w), factor, 9)
    return _of_two(
        _of_two(v[0], w[0], factor) + _mixed(y) * _K0 + z & _MASK,
        _of_two(v[1], w[1], factor) + x & _MASK,
        factor,
    )
