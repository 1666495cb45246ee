"""``tf.nn``'s plain arithmetic: `relu` and `softmax`."""

from __future__ import annotations

from typing import Any

import numpy as np

from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import REALS
from aioqueue.compat.v1.ops.elementwise import unary

__all__ = ("relu", "softmax")


def relu(features: Any, name: str | None = None) -> Tensor:
    """``max(features, 0)``."""
    return unary("Relu", lambda x: np.maximum(x, x.dtype.type(0)), features, name, REALS)


def softmax(logits: Any, axis: int = -1, name: str | None = None) -> Tensor:
    """``exp(logits)`` divided by its sum along `axis`."""

    def normalised(x: Any) -> Any:
        powers = np.exp(np.subtract(x, np.max(x, axis=axis, keepdims=True)))
        return np.true_divide(powers, np.sum(powers, axis=axis, keepdims=True))

    return unary("Softmax", normalised, logits, name)
