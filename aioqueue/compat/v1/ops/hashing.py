"""Strings to numbers by their fingerprints, for the buckets of tables.

The function is FarmHash's ``Fingerprint64``, whose values never change: see its description by
Geoff Pike, Google, 2014 (https://github.com/google/farmhash).
"""

from __future__ import annotations

__all__ = ("fingerprint64",)

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
