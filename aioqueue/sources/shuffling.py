"""The order of a source's items: any part of any epoch's shuffle, without the rest of it.

Two ways to shuffle, chosen by the length alone. Both depend on nothing but (seed, epoch, length),
and are exact integer arithmetic, so the order is the same on every platform.

Up to `LONGEST_TABLE` items, the forward Fisher-Yates shuffle: every order is equally likely, up to
the bias of a 32-bit word taken modulo the length. Words come from Philox as they did in
TensorFlow 1, so the order is that of its input producers with the same seed. It needs a table of 8
bytes per item.

For more items there is no table: each place is mapped by itself. The mapping is a generalised
Feistel network on two digits with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite
domains", CT-RSA 2002, method 3); its round function is the finaliser of SplitMix64 (Steele, Lea and
Flood, OOPSLA 2014). It reaches far fewer orders than there are permutations, but shows no pattern,
and a trillion items take no memory.

The seeds of sources, and the random generators of items (`rng`), are here, too.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from math import inf, isqrt
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import is_int
from aioqueue.core.elements.philox import philox_blocks, resolve_seed
from aioqueue.errors import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONGEST_TABLE: Final = 2**22
"""The most items that are shuffled by means of a table (of 32 MiB then)."""

_CHUNK: Final = 4096
_BLOCKS: Final = _CHUNK // 4
_ROUNDS: Final = 8
_KEY_BLOCKS: Final = 2 * _ROUNDS // 4
_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))


def indices(
    n: int, seed: int | None, epoch: int, shard: tuple[int, int], skip: int = 0
) -> Iterator[int]:
    """The indices that one shard goes through in one epoch, in order.

    Args:
        n: how many items there are, in all shards together.
        seed: what they are shuffled with; ``None`` leaves them in order.
        epoch: number of the epoch, from 0.
        shard: (index, count): every count-th place of the common order, from place index on.
        skip: how many of them to leave out at the start. They cost nothing, but for the swaps of
            the table, which are made in order.
    """
    first, count = shard[0] + skip * shard[1], shard[1]
    if seed is None:
        return iter(range(first, n, count))
    if n <= LONGEST_TABLE:
        return _from_table(n, seed, epoch, first, count)
    return _computed(n, seed, epoch, first, count)


def indices_at(
    n: int, seed: int | None, epoch: int, shard: tuple[int, int], places: Sequence[int]
) -> Iterator[int]:
    """The indices at some places of what `indices` gives, without computing those between them.

    Args:
        n: as for `indices`.
        seed: the same.
        epoch: the same.
        shard: the same.
        places: from 0, ascending.
    """
    first, count = shard
    if seed is None:
        return (first + place * count for place in places)
    if n <= LONGEST_TABLE:
        return _picked_of(indices(n, seed, epoch, shard, places[0] if places else 0), places)
    keys = _keys(seed, epoch)
    common = first + np.array(places, np.int64) * count
    moved: list[int] = feistel(common.astype(np.uint64), n, keys).tolist()
    return iter(moved)


def _picked_of(found: Iterator[int], places: Sequence[int]) -> Iterator[int]:
    """Yield the indices at some places, given the indices from the first of these places on."""
    at = places[0] if places else 0
    for place in places:
        yield next(islice(found, place - at, None))
        at = place + 1


def _from_table(n: int, seed: int, epoch: int, first: int, count: int) -> Iterator[int]:
    key, upper = resolve_seed(seed)
    block = epoch * -(-(n - 1) // 4)  # where TensorFlow 1's generator stood after earlier epochs
    table = array("q", np.arange(n, dtype=np.int64).tobytes())
    for start in range(0, n, _CHUNK):
        stop = min(start + _CHUNK, n)
        words = philox_blocks(key, upper, block + start // 4, _BLOCKS)[: stop - start]
        places = np.arange(start, stop)
        # What stands at a place is settled once that place has been swapped with a later one.
        swaps: list[int] = (places + words % (n - places)).tolist()
        for place, other in enumerate(swaps, start):
            table[place], table[other] = table[other], table[place]
        yield from table[max(first, start + (first - start) % count) : stop : count]


def _computed(n: int, seed: int, epoch: int, first: int, count: int) -> Iterator[int]:
    keys = _keys(seed, epoch)
    for start in range(first, n, count * _CHUNK):
        places = np.arange(start, min(start + count * _CHUNK, n), count, dtype=np.uint64)
        yield from feistel(places, n, keys).tolist()


def _keys(seed: int, epoch: int) -> NDArray[np.uint64]:
    """Return the keys that determine the permutation of an epoch."""
    words = philox_blocks(*resolve_seed(seed), epoch * _KEY_BLOCKS, _KEY_BLOCKS).astype(np.uint64)
    return words[0::2] | words[1::2] << np.uint64(32)


def feistel(places: NDArray[np.uint64], n: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Where each place goes in a permutation of ``range(n)``.

    Args:
        places: numbers below n.
        n: how many places there are, 1 to 2**63 - 1.
        keys: one word per round, an even number of them; they choose the permutation.
    """
    low = isqrt(n - 1) + 1
    high = -(-n // low)  # low * high is n or little more: walking is short
    moved = _network(places, low, high, keys)
    while (outside := moved >= n).any():
        # A walk along a cycle comes back inside, as it began inside.
        moved[outside] = _network(moved[outside], low, high, keys)
    return moved


def _network(
    values: NDArray[np.uint64], low: int, high: int, keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Apply the network once: it is a permutation of ``range(low * high)``."""
    sizes: Any = np.uint64(low), np.uint64(high)
    right, left = values // sizes[0], values % sizes[0]
    for number, key in enumerate(keys):
        left, right = right, (left + _mixed(right + key)) % sizes[number % 2]
    joined: NDArray[np.uint64] = left + sizes[0] * right
    return joined


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply SplitMix64's finaliser without its lowest bit, so that additions cannot overflow."""
    values = (values ^ (values >> _SHIFTS[0])) * _MIX[0]
    values = (values ^ (values >> _SHIFTS[1])) * _MIX[1]
    return (values ^ (values >> _SHIFTS[2])) >> np.uint64(1)


_ALL_WORDS: Final = 2**32
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
        # 53 bits: as many as survive a way through JSON.
        return int.from_bytes(os.urandom(7), "big") >> 3
    if not is_seed(seed):
        raise InvalidArgumentError(f"seed: got {seed!r}; expected None, or an int >= 0 and < 2**64")
    return int(seed)


def derive_seed(seed: int, number: int) -> int:
    """Derive the seed of one of several users of a seed; the first one gets the seed itself."""
    return (seed + number * _GOLDEN) % 2**63 if number else seed


def is_seed(value: Any) -> TypeGuard[int]:
    """Return whether a value is an int of 64 bits."""
    return is_int(value) and 0 <= value < 2**64


def checked_weights(weights: Any, count: int) -> list[float]:
    """One weight a source, in any unit: equal ones for `None`.

    Raises:
        InvalidArgumentError: they are no such numbers.
    """
    if weights is None:
        return [1.0] * count
    found: list[Any] = list(weights) if isinstance(weights, Iterable) else []
    numbers = all(isinstance(weight, Real) and 0 < float(weight) < inf for weight in found)
    if len(found) != count or not numbers or not sum(found) < inf:
        raise InvalidArgumentError(
            f"weights: got {weights!r}; expected a number > 0 for each of"
            f" {counted(count, 'source')}, with a finite sum"
        )
    return [float(weight) for weight in found]


def bounds_of(weights: Sequence[float]) -> list[int]:
    """Return for each source the smallest 32-bit word beyond its share of them."""
    total = sum(weights)
    if not total:
        return []
    bounds = [round(upto / total * _ALL_WORDS) for upto in accumulate(weights)]
    last = max(at for at, weight in enumerate(weights) if weight)
    return [*bounds[:last], *[_ALL_WORDS] * (len(bounds) - last)]  # whatever rounding has done
