"""The bits of integers: what ``&``, ``|``, ``^`` and ``~`` do with them."""

from __future__ import annotations

from typing import Any

import numpy as np

from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import INTEGERS
from aioqueue.compat.v1.ops.elementwise import binary, unary

__all__ = ("bitwise_and", "bitwise_or", "bitwise_xor", "invert")


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
