"""Random numbers: the same ones as TensorFlow's for the same seeds.

Every op has a Philox generator of its own in each session, keyed by the graph's and the op's seed,
and each run takes the next part of its numbers. All are TensorFlow 1's on the CPU bit for bit,
`multinomial` as one thread draws it, but for the last bits of normal numbers. What TensorFlow
composes of many ops is mostly one here, so give such an op a seed of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes, scopes
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.dtypes import DType
from aioqueue.compat.v1.core.graph import Tensor, named
from aioqueue.compat.v1.ops import arrays, indexing, math
from aioqueue.compat.v1.ops.building import INDICES, REALS, OpBuilder, Pure, array, invalid
from aioqueue.compat.v1.ops.static import constant_value, shape_value
from aioqueue.core.elements.philox import philox_blocks, resolve_seed

__all__ = (
    "multinomial", "random_crop", "random_normal", "random_shuffle", "random_uniform",
    "truncated_normal",
)  # fmt: skip

RESERVED: Final = 256
"""Blocks of four words that TensorFlow sets aside for each number, whatever it needs."""


class Words(NamedTuple):
    """The words of one generator, of two seeds, from one block on."""

    seeds: tuple[int, int]
    first: int

    def take(self, count: int) -> NDArray[np.uint32]:
        return philox_blocks(*self.seeds, self.first, -(-count // 4))[:count]

    def blocks(self, first: int, count: int, stride: int = 1) -> NDArray[np.uint32]:
        """The words of some later blocks."""
        return philox_blocks(*self.seeds, self.first + first, count, stride=stride)

    def of_groups(self, groups: int, apart: int, blocks: int) -> NDArray[np.uint32]:
        """The words of the first `blocks` of groups that begin `apart` blocks, a group a row."""
        columns = [self.blocks(one, groups, apart).reshape(groups, 4) for one in range(blocks)]
        return np.concatenate(columns, axis=1)


class Generator:
    """An op's generator in one session: where its next numbers begin."""

    def __init__(self, seeds: tuple[int | None, int | None]) -> None:
        graph_seed, op_seed = seeds
        given = None if graph_seed is None or op_seed is None else (graph_seed, op_seed)
        self._seeds = resolve_seed(given)
        self._block = 0
        self._lock = threading.Lock()

    def reserve(self, blocks: int) -> Words:
        # Two runs of one session may draw at the same time: each gets blocks of its own.
        with self._lock:
            first = self._block
            self._block += blocks
        return Words(self._seeds, first)


@dataclass(frozen=True, eq=False)
class RandomKernel:
    """A kernel that draws from its session's generator: ``function(generator, *values)``."""

    seeds: tuple[int | None, int | None]
    function: Callable[..., Any]

    def __call__(self, step: Any, *values: Any) -> Any:
        key = ("random", self)
        generator = step.own_resources.get_or_create(key, lambda: Generator(self.seeds))
        with np.errstate(all="ignore"):
            result = self.function(generator, *values)
        return result[()] if isinstance(result, np.ndarray) else result


def unit_floats(words: NDArray[np.uint32]) -> NDArray[np.float32]:
    """23 bits of each word as a number of [0, 1)."""
    bits = (words & np.uint32(0x7FFFFF)) | np.uint32(127 << 23)
    return bits.view(np.float32) - np.float32(1)


_FLOATS: Final = frozenset(("float16", "float32", "float64"))
_NEARLY_ENOUGH: Final = 2  # blocks in which a group of truncated numbers is nearly always complete

_Draw = Callable[[Words, int], NDArray[Any]]
"""Makes so many numbers from the words that begin at a place."""


def _shape_tensor(shape: Any) -> Tensor:
    if isinstance(shape, list | tuple) and not shape:
        shape = np.zeros(0, np.int32)
    return convert_to_tensor(shape, name="shape")


def _drawn(
    op_type: str,
    name: str | None,
    shape: Tensor,
    dtype: DType,
    seeds: Any,
    draw: Callable[..., NDArray[Any]],
    **limits: Tensor,
) -> Tensor:
    """An op that fills a shape with numbers: ``draw(words, count, *limits)``."""

    def fill(generator: Generator, sizes: Any, *limits: Any) -> Any:
        if limits and limits[0] >= limits[1]:
            raise invalid(f"Need minval < maxval, got {limits[0]} >= {limits[1]}")
        wanted = tuple(np.ravel(sizes).tolist())
        if min(wanted, default=0) < 0:
            raise invalid(f"Dimension {min(wanted)} must be >= 0")
        count = prod(wanted)
        numbers = draw(generator.reserve(count * RESERVED), count, *limits)
        return numbers.astype(dtype.numpy, copy=False).reshape(wanted)

    with OpBuilder(op_type, name) as op:
        sizes = op.tensor(shape, "shape", None, INDICES)
        if limits:
            op.alike(INDICES, **limits)
        attrs = {"seed": seeds[0] or 0, "seed2": seeds[1] or 0, "dtype": dtype}
        return op.output(dtype, shape_value(sizes), RandomKernel(seeds, fill), attrs=attrs)


def random_uniform(
    shape: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: Any = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Numbers from `minval` up to `maxval` (1 for floats), without it, all equally likely."""
    wanted = dtypes.as_dtype(dtype)
    if wanted.name not in _FLOATS | INDICES:
        raise ValueError(
            f"Invalid dtype {wanted!r}; expected float16, float32, float64, int32 or int64"
        )
    if maxval is None:
        if wanted.is_integer:
            raise ValueError(f"Must specify maxval for integer dtype {wanted!r}")
        maxval = 1
    with scopes.name_scope(name, "random_uniform") as scope:
        size = _shape_tensor(shape)
        low = convert_to_tensor(minval, dtype=wanted, name="min")
        high = convert_to_tensor(maxval, dtype=wanted, name="max")
        seeds = scopes.get_seed(seed)
        if wanted.is_integer:
            limits = {"minval": low, "maxval": high}
            return _drawn("RandomUniformInt", scope, size, wanted, seeds, _whole, **limits)
        numbers = _drawn("RandomUniform", None, size, wanted, seeds, _UNIFORM[wanted.name])
        return math.add(numbers * (high - low), low, name=scope)


def _whole(words: Words, count: int, low: Any, high: Any) -> NDArray[Any]:
    bits = 8 * low.itemsize
    many: NDArray[Any] = words.take(count) if bits == 32 else _words64(words, count)
    span = many.dtype.type((int(high) - int(low)) % 2**bits)
    numbers: NDArray[Any] = (many % span).view(low.dtype) + low
    return numbers


def _words64(words: Words, count: int) -> NDArray[np.uint64]:
    pairs = words.take(2 * count).astype(np.uint64).reshape(-1, 2)
    return pairs[:, 0] | (pairs[:, 1] << np.uint64(32))


def _as_float64(words: NDArray[np.uint32]) -> NDArray[np.float64]:
    """52 bits of each pair of words as a number of [0, 1)."""
    pairs = words.reshape(-1, 2).astype(np.uint64)
    high = (pairs[:, 0] & np.uint64(0xFFFFF)) << np.uint64(32)
    bits = high | pairs[:, 1] | np.uint64(1023 << 52)
    return bits.view(np.float64) - np.float64(1)


def _as_float16(words: NDArray[np.uint32]) -> NDArray[np.float16]:
    """10 bits of each word as a number of [0, 1)."""
    bits = (words & np.uint32(0x3FF)).astype(np.uint16) | np.uint16(15 << 10)
    return bits.view(np.float16) - np.float16(1)


_UNIFORM: Final[dict[str, _Draw]] = {
    "float16": lambda words, count: _as_float16(words.take(count)),
    "float32": lambda words, count: unit_floats(words.take(count)),
    "float64": lambda words, count: _as_float64(words.take(2 * count)),
}


def _normal(
    name: str, op_type: str, draw: Callable[[Words, int, bool], NDArray[Any]], doc: str
) -> Callable[..., Tensor]:
    default = name

    def normal(
        shape: Any,
        mean: Any = 0.0,
        stddev: Any = 1.0,
        dtype: Any = dtypes.float32,
        seed: int | None = None,
        name: str | None = None,
    ) -> Tensor:
        wanted = dtypes.as_dtype(dtype)
        if wanted.name not in _FLOATS:
            expected = "expected float16, float32 or float64"
            raise TypeError(f"{default}: got dtype {wanted!r}; {expected}")
        with scopes.name_scope(name, default) as scope:
            size = _shape_tensor(shape)
            centre = convert_to_tensor(mean, dtype=wanted, name="mean")
            spread = convert_to_tensor(stddev, dtype=wanted, name="stddev")
            seeds = scopes.get_seed(seed)

            def drawn(words: Words, count: int) -> NDArray[Any]:
                return draw(words, count, wanted == dtypes.float64)

            numbers = _drawn(op_type, None, size, wanted, seeds, drawn)
            return math.add(numbers * spread, centre, name=scope)

    return named(normal, name, doc)


def _box_muller(words: NDArray[np.uint32], is_double: bool) -> NDArray[Any]:
    """Pairs of normal numbers, as many as there are words (half as many if `is_double`)."""
    least = 1e-7
    if is_double:
        uniform = _as_float64(words).reshape(-1, 2)
        radius = np.sqrt(-2.0 * np.log(np.maximum(uniform[:, 0], least)))
        angle = 2.0 * np.pi * uniform[:, 1]
        return np.stack((np.sin(angle) * radius, np.cos(angle) * radius), axis=1).ravel()
    single = unit_floats(words).reshape(-1, 2)
    first = np.maximum(single[:, 0], np.float32(least)).astype(np.float64)
    # In double and rounded, which is what a good C library's float functions give.
    logarithm = np.log(first).astype(np.float32)
    radius32 = np.sqrt(np.float32(-2) * logarithm)
    turn = (2.0 * np.pi * single[:, 1].astype(np.float64)).astype(np.float32).astype(np.float64)
    sines, cosines = np.sin(turn).astype(np.float32), np.cos(turn).astype(np.float32)
    return np.stack((sines * radius32, cosines * radius32), axis=1).ravel()


def _normals(words: Words, count: int, is_double: bool) -> NDArray[Any]:
    per_block = 2 if is_double else 4
    blocks = -(-count // per_block)
    return _box_muller(words.take(4 * blocks), is_double)[:count]


def _truncated(words: Words, count: int, is_double: bool) -> NDArray[Any]:
    """Each group of results has 256 words per result to draw from, until enough are near 0."""
    group = 2 if is_double else 4
    apart = group * RESERVED // 4
    groups = -(-count // group)
    numbers = _first_near(words.of_groups(groups, apart, _NEARLY_ENOUGH), group)
    for short in np.flatnonzero(np.isnan(numbers).any(axis=1)):
        numbers[short] = _first_near(words.blocks(int(short) * apart, apart)[None], group)
    return numbers.ravel()[:count]


def _first_near(rows: NDArray[np.uint32], group: int) -> NDArray[Any]:
    """The first `group` normal numbers of each row of words that are below 2; NaN for lack."""
    width = rows.shape[1] // 2 if group == 2 else rows.shape[1]
    numbers = _box_muller(rows.ravel(), group == 2).reshape(-1, width)
    near = np.abs(numbers) < 2
    order = np.argsort(~near, axis=1, kind="stable")[:, :group]
    chosen = np.take_along_axis(numbers, order, 1)
    return np.where(np.take_along_axis(near, order, 1), chosen, np.nan)


random_normal: Callable[..., Tensor] = _normal(
    "random_normal", "RandomStandardNormal", _normals, "Normally distributed numbers."
)
truncated_normal: Callable[..., Tensor] = _normal(
    *("truncated_normal", "TruncatedNormal", _truncated),
    "Normally distributed numbers within two standard deviations of the mean.",
)


def random_shuffle(value: Any, seed: int | None = None, name: str | None = None) -> Tensor:
    """The rows of a tensor in a random order."""
    seeds = scopes.get_seed(seed)

    def shuffled(generator: Generator, x: Any) -> Any:
        x = array(x)
        if x.size <= 1 or len(x) <= 1:
            return x
        count = len(x)
        words = generator.reserve(-(-(count - 1) // 4)).take(count - 1).tolist()
        order = list(range(count))
        for place, word in enumerate(words):
            other = place + word % (count - place)
            order[place], order[other] = order[other], order[place]
        return x[order]

    with OpBuilder("RandomShuffle", name) as op:
        tensor = op.tensor(value, "value")
        return op.output(tensor.dtype, tensor.shape.as_tuple(), RandomKernel(seeds, shuffled))


def multinomial(
    logits: Any,
    num_samples: Any,
    seed: int | None = None,
    name: str | None = None,
    output_dtype: Any = None,
) -> Tensor:
    """Classes drawn with given odds, as many per row: `logits` are logarithms of the odds."""
    wanted = dtypes.int64 if output_dtype is None else dtypes.as_dtype(output_dtype)

    def drawn(generator: Generator, logits: Any, count: Any) -> Any:
        rows, wide = np.asarray(logits, np.float64), int(count)
        if rows.ndim != 2:
            raise invalid(f"logits should be a matrix, got shape {list(rows.shape)}")
        reserved = len(rows) * 2 * (-(-wide // 4) * 4)
        words = generator.reserve(reserved * RESERVED).take(2 * wide * len(rows))
        uniform = _as_float64(words).reshape(len(rows), wide)
        result = np.empty(uniform.shape, wanted.numpy)
        for row, numbers, places in zip(rows, uniform, result, strict=True):
            finite = np.isfinite(row)
            top = row[finite].max(initial=np.finfo(row.dtype).min)
            heights = np.cumsum(np.where(finite, np.exp(row - top), 0))
            places[:] = np.searchsorted(heights, numbers * heights[-1], side="right")
        return result

    with OpBuilder("Multinomial", name, "multinomial") as op:
        tensor = op.tensor(logits, "logits", None, REALS)
        seeds = scopes.get_seed(seed)
        count = op.tensor(num_samples, "num_samples", dtypes.int32)
        known, rows = constant_value(count), op.rank(tensor, 2)
        shape = (rows[0], None if known is None else int(known))
        return op.output(wanted, shape, RandomKernel(seeds, drawn))


def random_crop(value: Any, size: Any, seed: int | None = None, name: str | None = None) -> Tensor:
    """A block of a given size from a random place."""
    with scopes.name_scope(name, "random_crop") as scope:
        value = convert_to_tensor(value, name="value")
        size = convert_to_tensor(size, dtype=dtypes.int32, name="size")
        shape = arrays.shape(value)
        places = random_uniform(
            arrays.shape(shape), dtype=dtypes.int32, maxval=dtypes.int32.max, seed=seed
        )

        def begin(places: Any, shape: Any, size: Any) -> Any:
            if (shape < size).any():
                raise invalid(f"assertion failed: [Need value.shape >= size, got ] {shape} {size}")
            return places % (shape - size + 1)

        with OpBuilder("CropBegin", None) as op:
            for one in (places, shape, size):
                op.tensor(one, "places")
            start = op.output(dtypes.int32, shape.shape.as_tuple(), Pure(begin))
        return indexing.slice(value, start, size, name=scope)
