"""The bits of integers: ``tf.bitwise``, and what ``&``, ``|``, ``^`` and ``~`` do with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import INTEGERS
from aioqueue.compat.v1.ops.elementwise import binary, unary

__all__ = ("bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift")


def bitwise_and(x: Any, y: Any, name: str | None = None) -> Tensor:
    """The bits that are set in both."""
    return binary("BitwiseAnd", np.bitwise_and, x, y, name, INTEGERS)


def bitwise_or(x: Any, y: Any, name: str | None = None) -> Tensor:
    """The bits that are set in either."""
    return binary("BitwiseOr", np.bitwise_or, x, y, name, INTEGERS)


def bitwise_xor(x: Any, y: Any, name: str | None = None) -> Tensor:
    """The bits that are set in just one."""
    return binary("BitwiseXor", np.bitwise_xor, x, y, name, INTEGERS)


def invert(x: Any, name: str | None = None) -> Tensor:
    """Every bit flipped."""
    return unary("Invert", np.invert, x, name, INTEGERS)


def left_shift(x: Any, y: Any, name: str | None = None) -> Tensor:
    """The bits moved up by so many places; by no more than the dtype has."""
    return binary("LeftShift", _shifted(np.left_shift), x, y, name, INTEGERS)


def right_shift(x: Any, y: Any, name: str | None = None) -> Tensor:
    """The bits moved down by so many places, by no more than the dtype has; the sign stays."""
    return binary("RightShift", _shifted(np.right_shift), x, y, name, INTEGERS)


def _shifted(shift: np.ufunc) -> Callable[[Any, Any], Any]:
    def shifted(x: Any, y: Any) -> Any:
        return shift(x, np.clip(y, 0, np.asarray(y).dtype.itemsize * 8 - 1))

    return shifted
