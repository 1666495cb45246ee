"""The generators that random ops draw from: one of its own for each op in each session.

A generator is keyed by the graph's and the op's seed, and each run takes the next part of its
words, as TensorFlow's did.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aioqueue.core.elements.philox import philox_blocks, resolve_seed

__all__ = ("RESERVED", "Generator", "RandomKernel", "Words", "unit_floats")

RESERVED: Final = 256
"""Blocks of four words that TensorFlow sets aside for each number, whatever it needs."""


class Words:
    """The words of one generator from one block on.

    Args:
        seeds: the generator's two seeds.
        first: the block.
    """

    __slots__ = ("_first", "_seeds")

    def __init__(self, seeds: tuple[int, int], first: int) -> None:
        self._seeds = seeds
        self._first = first

    def take(self, count: int) -> NDArray[np.uint32]:
        """The first `count` words."""
        return philox_blocks(*self._seeds, self._first, -(-count // 4))[:count]

    def blocks(self, first: int, count: int, stride: int = 1) -> NDArray[np.uint32]:
        """The words of some later blocks."""
        return philox_blocks(*self._seeds, self._first + first, count, stride=stride)

    def of_groups(self, groups: int, apart: int, blocks: int) -> NDArray[np.uint32]:
        """The words of the first blocks of groups of blocks, one group to a row.

        Args:
            groups: how many.
            apart: the blocks from one group to the next.
            blocks: how many of each are wanted.
        """
        columns = [self.blocks(one, groups, apart).reshape(groups, 4) for one in range(blocks)]
        return np.concatenate(columns, axis=1)


class Generator:
    """An op's generator in one session: where its next numbers begin."""

    __slots__ = ("_block", "_lock", "_seeds")

    def __init__(self, seeds: tuple[int | None, int | None]) -> None:
        graph_seed, op_seed = seeds
        given = None if graph_seed is None or op_seed is None else (graph_seed, op_seed)
        self._seeds = resolve_seed(given)
        self._block = 0
        self._lock = threading.Lock()

    def reserve(self, blocks: int) -> Words:
        """Set blocks aside for one run."""
        with self._lock:
            first = self._block
            self._block += blocks
        return Words(self._seeds, first)


class RandomKernel:
    """A kernel that draws from its session's generator.

    Args:
        seeds: of the op.
        function: ``function(generator, *values)``.
    """

    __slots__ = ("_function", "_seeds")

    def __init__(self, seeds: tuple[int | None, int | None], function: Callable[..., Any]) -> None:
        self._seeds = seeds
        self._function = function

    def __call__(self, step: Any, *values: Any) -> Any:
        """The random numbers of this run."""
        key = ("random", self)
        generator = step.own_resources.get_or_create(key, lambda: Generator(self._seeds))
        with np.errstate(all="ignore"):
            result = self._function(generator, *values)
        return result[()] if isinstance(result, np.ndarray) else result


def unit_floats(words: NDArray[np.uint32]) -> NDArray[np.float32]:
    """23 bits of each word as a number of [0, 1)."""
    bits = (words & np.uint32(0x7FFFFF)) | np.uint32(127 << 23)
    return bits.view(np.float32) - np.float32(1)
