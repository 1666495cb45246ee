"""The numbers that texts mean, as TensorFlow reads them."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.dtypes import DType

__all__ = ("NUMERIC", "c_name", "parse_column", "parse_number")

NUMERIC = frozenset(("float32", "float64", "int32", "int64"))
"""The dtypes of numbers that texts may mean."""

_LIMITS = {one.name: (one.min, one.max) for one in (dtypes.int32, dtypes.int64)}
_NAN = re.compile(rb"\s*[-+]?nan\(\w*\)\s*", re.IGNORECASE)
_HEXADECIMAL = re.compile(rb"\s*[-+]?0x[0-9a-f.]+(p[-+]?\d+)?\s*", re.IGNORECASE)
_BELOW_FLOAT32 = 0x1FFFFFFF
_HALF = 0x10000000


def c_name(dtype: DType) -> str:
    """A dtype as TensorFlow's messages call it."""
    return {"float16": "half", "float32": "float", "float64": "double"}.get(dtype.name, dtype.name)


def parse_number(text: bytes, dtype: DType) -> Any:
    """The number that a text means.

    Raises:
        ValueError: it means none, or one that `dtype` cannot hold.
    """
    if b"_" in text:
        raise ValueError(text)  # Python's own way of writing numbers
    limits = _LIMITS.get(dtype.name)
    if limits is None:
        return _float(text, dtype)
    number = int(text)
    if not limits[0] <= number <= limits[1]:
        raise ValueError(text)
    return number


def _float(text: bytes, dtype: DType) -> float:
    try:
        number = float(text)
    except ValueError:
        if _HEXADECIMAL.fullmatch(text):
            return float.fromhex(text.decode())
        if _NAN.fullmatch(text):
            return float("nan")
        raise
    if dtype == dtypes.float32 and _is_between(np.array([number])).any():
        return _rounded_once(text, number)
    return number


def _is_between(numbers: NDArray[np.float64]) -> Any:
    """Which numbers are as far from one float32 as from the next: rounding twice may err there."""
    return (numbers.view(np.int64) & _BELOW_FLOAT32) == _HALF


def _rounded_once(text: bytes, number: float) -> float:
    """The float32 nearest to a text, whose nearest float64 is between two of them."""
    exact, half = Fraction(text.decode().strip()), Fraction(number)
    if exact == half:
        return number
    towards = np.inf if exact > half else -np.inf
    return float(np.nextafter(number, towards))


def parse_column(texts: tuple[bytes, ...], dtype: DType) -> NDArray[Any] | None:
    """The numbers that many texts mean, all at once; None if one of them needs a closer look.

    Args:
        texts: none of them with an underscore.
        dtype: one of `NUMERIC`.
    """
    reader: Any = float if dtype.is_floating else int
    try:
        numbers = np.fromiter(
            map(reader, texts), np.float64 if dtype.is_floating else dtype.numpy, len(texts)
        )
    except (ValueError, OverflowError):
        return None
    if dtype != dtypes.float32:
        return numbers
    if _is_between(numbers).any():
        return None
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)
