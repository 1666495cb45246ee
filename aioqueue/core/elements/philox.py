"""The random numbers of shuffling: Philox 4x32-10.

A counter-based generator (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
1, 2, 3", SC 2011). TensorFlow 1 drew its shuffles with it, so the same seeds give the same order
here, on every platform and every NumPy version.

One block turns a 128-bit counter into four 32-bit words. Blocks are independent, so NumPy makes
many at a time. `PhiloxWords` returns them one word at a time.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aioqueue.base.arguments import is_int
from aioqueue.errors import InvalidArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Seed = int | tuple[int, int] | None

DEFAULT_GRAPH_SEED: Final = 87654321
"""TensorFlow 1's default for the graph seed, used if only an op seed is given."""

_SEED_LIMIT: Final = 2**31 - 1
_LOW: Final = np.uint64(0xFFFFFFFF)
_SHIFT: Final = np.uint64(32)
_MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
_ROUNDS: Final = 10
_FEW_BLOCKS: Final = 8
_FIRST_BLOCKS: Final = 16
_MOST_BLOCKS: Final = 1024


def resolve_seed(seed: Seed) -> tuple[int, int]:
    """Turn the public ``seed`` argument into Philox's pair, by TensorFlow 1's rules.

    ``None`` takes fresh entropy. An int is an op seed, with the default graph seed. A pair is
    (graph seed, op seed). Each is taken modulo 2**31 - 1, and (0, 0) becomes (0, 2**31 - 1).

    Raises:
        InvalidArgumentError: it is neither ``None``, nor an int, nor a pair of ints.
    """
    if seed is None:
        return _entropy(), _entropy()
    given: Any = (DEFAULT_GRAPH_SEED, seed) if is_int(seed) else seed
    if not isinstance(given, tuple | list) or len(given) != 2 or not all(map(is_int, given)):
        raise InvalidArgumentError(f"seed: got {seed!r}; expected None, an int or a pair of ints")
    pair = (int(given[0]) % _SEED_LIMIT, int(given[1]) % _SEED_LIMIT)
    return (0, _SEED_LIMIT) if pair == (0, 0) else pair


def _entropy() -> int:
    """Return 63 random bits, as `secrets` would, which takes longer to import than this file."""
    return int.from_bytes(os.urandom(8), "big") >> 1


def philox_blocks(
    seed: int, seed2: int, first: int, count: int, *, stride: int = 1
) -> NDArray[np.uint32]:
    """Return the words of several blocks, as one flat array of ``4 * count``.

    Args:
        seed: the 64-bit key.
        seed2: the upper 64 bits of the counter; the lower 64 bits count blocks.
        first: the number of the first block.
        count: how many blocks.
        stride: the distance from one block's number to the next.
    """
    if count <= _FEW_BLOCKS:
        words: list[int] = []
        for number in range(first, first + count * stride, stride):
            words += _block(seed, seed2, number)
        return np.array(words, np.uint32)
    blocks = np.arange(first, first + count * stride, stride, dtype=np.uint64)
    c0, c1 = blocks & _LOW, blocks >> _SHIFT
    c2 = np.full(count, seed2 & 0xFFFFFFFF, np.uint64)
    c3 = np.full(count, (seed2 >> 32) & 0xFFFFFFFF, np.uint64)
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in range(_ROUNDS):
        # Both factors are below 2**32, so the products are exact in 64 bits.
        p0, p2 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (p2 >> _SHIFT) ^ c1 ^ np.uint64(k0),
            p2 & _LOW,
            (p0 >> _SHIFT) ^ c3 ^ np.uint64(k1),
            p0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack((c0, c1, c2, c3), axis=1).astype(np.uint32).ravel()


def _block(seed: int, seed2: int, number: int) -> tuple[int, int, int, int]:
    """Return the words of one block, made with Python ints: faster than NumPy for a few blocks."""
    c0, c1 = number & 0xFFFFFFFF, (number >> 32) & 0xFFFFFFFF
    c2, c3 = seed2 & 0xFFFFFFFF, (seed2 >> 32) & 0xFFFFFFFF
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in range(_ROUNDS):
        p0, p2 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            (p2 >> 32) ^ c1 ^ k0,
            p2 & 0xFFFFFFFF,
            (p0 >> 32) ^ c3 ^ k1,
            p0 & 0xFFFFFFFF,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


class PhiloxWords:
    """An endless sequence of 32-bit words, as plain ints; not thread-safe.

    It makes words in blocks that grow with use, so a queue that draws little pays little.
    """

    __slots__ = ("_block", "_blocks", "_seed", "_words")

    def __init__(self, seed: Seed) -> None:
        self._seed = resolve_seed(seed)
        self._block = 0
        self._blocks = _FIRST_BLOCKS
        self._words: list[int] = []  # words not yet returned, the next one last

    def take(self, count: int) -> list[int]:
        while len(self._words) < count:
            self._make_more(count)
        taken = self._words[: -count - 1 : -1]
        del self._words[len(self._words) - count :]
        return taken

    def skip(self, count: int) -> None:
        """Skip the next ``count`` words, in constant time."""
        held = min(count, len(self._words))
        del self._words[len(self._words) - held :]
        blocks, words = divmod(count - held, 4)
        self._block += blocks
        self.take(words)

    def _make_more(self, count: int) -> None:
        blocks = max(self._blocks, -(-count // 4))
        made: list[int] = philox_blocks(*self._seed, self._block, blocks)[::-1].tolist()
        self._words = made + self._words
        self._block += blocks
        self._blocks = min(2 * self._blocks, _MOST_BLOCKS)
