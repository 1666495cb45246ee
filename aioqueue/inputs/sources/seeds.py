"""Seeds of sources, and the random generators that come of them."""

from __future__ import annotations

import secrets
from typing import Any, Final, TypeGuard

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.checks import is_int

__all__ = ("apart", "is_seed", "resolved_seed", "rng")

_GOLDEN: Final = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio: seeds that are this far apart have nothing in common."""


def rng(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The random generator of one item: its own, and always the same.

    It is counter-based (Philox 4x64): the seed is the key, and every (epoch, index) has a range of
    2**64 blocks to itself, so that no two items ever draw the same words. The words are the same on
    every platform; what NumPy's distributions make of them may change with NumPy's version.

    Args:
        seed: of the source, 0 <= seed < 2**64.
        epoch: of the entry, 0 <= epoch < 2**64.
        index: of the entry, 0 <= index < 2**128.

    Returns:
        A new generator, at its beginning.

    Raises:
        InvalidArgumentError: one of them is not such an int.
    """
    for argument, value, bits in (("seed", seed, 64), ("epoch", epoch, 64), ("index", index, 128)):
        if not is_int(value) or int(value) >> bits:
            raise InvalidArgumentError(
                f"{argument}: got {value!r}; expected an int >= 0 and < 2**{bits}"
            )
    counter = int(epoch) << 192 | int(index) << 64  # the lowest word is left to count blocks
    return np.random.Generator(np.random.Philox(key=int(seed), counter=counter))


def resolved_seed(seed: Any) -> int:
    """Check a seed; draw one if it is ``None``.

    Raises:
        InvalidArgumentError: it is neither None nor an int of 64 bits.
    """
    if seed is None:
        return secrets.randbits(53)  # as many bits as survive a way through JSON
    if not is_seed(seed):
        raise InvalidArgumentError(f"seed: got {seed!r}; expected None, or an int >= 0 and < 2**64")
    return int(seed)


def apart(seed: int, number: int) -> int:
    """The seed of one of several things that share one; that of the first is the seed itself."""
    return (seed + number * _GOLDEN) % 2**63 if number else seed


def is_seed(value: Any) -> TypeGuard[int]:
    """Whether it is an int of 64 bits."""
    return is_int(value) and 0 <= value < 2**64
