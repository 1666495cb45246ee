"""The index of an item: it selects the random generator of its calls."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_INDEX_BITS: Final = 128
"""How many bits the index of a random generator may have."""


def derive_index(index: int, number: int, count: int | None = None) -> int:
    """Derive a distinct index for each of several things that share one index.

    Args:
        index: the index that they share, >= 0 and < 2**128.
        number: the place of the thing among them, >= 0.
        count: how many things share each index, if that number is fixed: then small indices stay
            small. ``None`` leaves the index of thing 0 unchanged.

    Returns:
        An index >= 0 and < 2**128. If no simple one is free, it is a hash (BLAKE2b) with 127 bits,
        so that two things never share one in practice.
    """
    if count is None and not number:
        return index
    if count is not None and index * count + number < 2 ** (_INDEX_BITS - 1):
        return index * count + number
    name = f"{index}.{number}.{count}".encode("ascii")
    hashed = int.from_bytes(blake2b(name, digest_size=_INDEX_BITS // 8).digest(), "little")
    return hashed | 1 << (_INDEX_BITS - 1)  # no simple index is as large
