"""Initializers: functions from a shape and a dtype to a tensor, for `get_variable`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.convert import constant
from aioqueue.compat.v1.core.dtypes import as_dtype
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.shapes import as_shape
from aioqueue.compat.v1.ops import random

__all__ = (
    "Constant",
    "GlorotNormal",
    "GlorotUniform",
    "Initializer",
    "Ones",
    "RandomNormal",
    "RandomUniform",
    "TruncatedNormal",
    "VarianceScaling",
    "Zeros",
)


class Initializer:
    """Makes the initial value of a variable.

    Args:
        dtype: of the value, if none is asked for.
    """

    def __init__(self, dtype: Any = dtypes.float32) -> None:
        self.dtype = as_dtype(dtype)

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
        """The initial value.

        Args:
            shape: a fully defined one.
            dtype: of the value; None for the initializer's.
            partition_info: accepted; variables are in one piece.
        """
        dims = [int(one or 0) for one in as_shape(shape).as_list()]
        return self.make(dims, self.dtype if dtype is None else as_dtype(dtype))

    def make(self, shape: list[int], dtype: dtypes.DType) -> Tensor:
        """The initial value, for `__call__`."""
        raise NotImplementedError


class Zeros(Initializer):
    """Zeros.

    Args:
        dtype: of the value, if none is asked for.
    """

    def make(self, shape: list[int], dtype: dtypes.DType) -> Tensor:
        """The initial value."""
        fill = b"" if dtype is dtypes.string else 0
        return constant(np.full(shape, fill, dtype.numpy), dtype, name="zeros")


class Ones(Initializer):
    """Ones.

    Args:
        dtype: of the value, if none is asked for.
    """

    def make(self, shape: list[int], dtype: dtypes.DType) -> Tensor:
        """The initial value."""
        return constant(np.ones(shape, dtype.numpy), dtype, name="ones")


class Constant(Initializer):
    """One value everywhere, or given values in order.

    Args:
        value: a number, or a list or array; if it has too few elements the last one is repeated.
        dtype: of the value, if none is asked for.
        verify_shape: whether `value` must have the shape asked for.
    """

    def __init__(
        self, value: Any = 0, dtype: Any = dtypes.float32, verify_shape: bool = False
    ) -> None:
        super().__init__(dtype)
        self.value = value
        self._verify_shape = verify_shape

    def make(self, shape: list[int], dtype: dtypes.DType) -> Tensor:
        """The initial value."""
        return constant(np.asarray(self.value), dtype, shape=shape, verify_shape=self._verify_shape)


class RandomUniform(Initializer):
    """Uniformly distributed numbers.

    Args:
        minval: the least one.
        maxval: what they stay below; None for 1 (or the integers' full range).
        seed: as for `random_uniform`.
        dtype: of the value, if none is asked for.
    """

    def __init__(
        self,
        minval: Any = 0,
        maxval: Any = None,
        seed: int | None = None,
        dtype: Any = dtypes.float32,
    ) -> None:
        super().__init__(dtype)
        self.minval, self.maxval, self.seed = minval, maxval, seed

    def make(self, shape: list[int], dtype: dtypes.DType) -> Tensor:
        """The initial value."""
        made: Tensor = random.random_uniform(
            shape, self.minval, self.maxval, dtype=dtype, seed=self.seed
        )
        return made


class RandomNormal(Initializer):
    """Normally distributed numbers.

    Args:
        mean: of the distribution.
        stddev: of the distribution.
        seed: as for `random_normal`.
        dtype: of the value, if none is asked for.
    """

    def __init__(
        self,
        mean: Any = 0.0,
        stddev: Any = 1.0,
        seed: int | None = None,
        dtype: Any = dtypes.float32,
    ) -> None:
        super().__init__(dtype)
        self.mean, self.stddev, self.seed = mean, stddev, seed

    def make(self, shape: list[int], dtype: dtypes.DType) -> Tensor:
        """The initial value."""
        made: Tensor = random.random_normal(
            shape, self.mean, self.stddev, dtype=dtype, seed=self.seed
        )
        return made


class TruncatedNormal(RandomNormal):
    """Normally distributed numbers, none further than two deviations from the mean.

    Args:
        mean: of the distribution.
        stddev: of the distribution.
        seed: as for `truncated_normal`.
        dtype: of the value, if none is asked for.
    """

    def make(self, shape: list[int], dtype: dtypes.DType) -> Tensor:
        """The initial value."""
        made: Tensor = random.truncated_normal(
            shape, self.mean, self.stddev, dtype=dtype, seed=self.seed
        )
        return made


class VarianceScaling(Initializer):
    """Random numbers whose variance depends on how many inputs or outputs there are.

    Args:
        scale: the variance times that number.
        mode: which number: ``"fan_in"``, ``"fan_out"`` or ``"fan_avg"``.
        distribution: ``"uniform"``, ``"normal"``, ``"truncated_normal"`` or
            ``"untruncated_normal"``.
        seed: as for `random_uniform`.
        dtype: of the value, if none is asked for.

    Raises:
        ValueError: the scale is not positive, or a name is not one of these.
    """

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: int | None = None,
        dtype: Any = dtypes.float32,
    ) -> None:
        super().__init__(dtype)
        if scale <= 0.0:
            raise ValueError(f"`scale` must be positive float, got {scale}")
        if mode not in ("fan_in", "fan_out", "fan_avg"):
            raise ValueError(f"Invalid `mode` argument: {mode}")
        distribution = distribution.lower()
        if distribution not in ("uniform", "normal", "truncated_normal", "untruncated_normal"):
            raise ValueError(f"Invalid `distribution` argument: {distribution}")
        self.scale, self.mode, self.distribution, self.seed = scale, mode, distribution, seed

    def make(self, shape: list[int], dtype: dtypes.DType) -> Tensor:
        """The initial value."""
        variance = self.scale / max(1.0, _fan(shape, self.mode))
        if self.distribution == "uniform":
            limit = math.sqrt(3.0 * variance)
            return RandomUniform(-limit, limit, self.seed).make(shape, dtype)
        if self.distribution == "untruncated_normal":
            return RandomNormal(0.0, math.sqrt(variance), self.seed).make(shape, dtype)
        # Cutting the tails off leaves this share of the standard deviation.
        stddev = math.sqrt(variance) / 0.87962566103423978
        return TruncatedNormal(0.0, stddev, self.seed).make(shape, dtype)


class GlorotUniform(VarianceScaling):
    """Uniformly distributed numbers between plus and minus ``sqrt(6 / (inputs + outputs))``.

    X. Glorot and Y. Bengio, "Understanding the difficulty of training deep feedforward neural
    networks", AISTATS 2010.

    Args:
        seed: as for `random_uniform`.
        dtype: of the value, if none is asked for.
    """

    def __init__(self, seed: int | None = None, dtype: Any = dtypes.float32) -> None:
        super().__init__(1.0, "fan_avg", "uniform", seed, dtype)


class GlorotNormal(VarianceScaling):
    """Truncated normal numbers of variance ``2 / (inputs + outputs)``.

    X. Glorot and Y. Bengio, "Understanding the difficulty of training deep feedforward neural
    networks", AISTATS 2010.

    Args:
        seed: as for `truncated_normal`.
        dtype: of the value, if none is asked for.
    """

    def __init__(self, seed: int | None = None, dtype: Any = dtypes.float32) -> None:
        super().__init__(1.0, "fan_avg", "truncated_normal", seed, dtype)


def _fan(shape: list[int], mode: str) -> float:
    """How many inputs, outputs, or both on average, weights of this shape connect."""
    if len(shape) < 2:
        fan_in = fan_out = math.prod(shape)
    else:
        field = math.prod(shape[:-2])
        fan_in, fan_out = field * shape[-2], field * shape[-1]
    return {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode]
