"""Checks of arguments, and words for counts, that the parts of a pipeline have in common."""

from __future__ import annotations

from typing import Any

import numpy as np

from aioqueue import InvalidArgumentError

__all__ = ("checked_count", "checked_flag", "counted", "is_int")


def is_int(value: Any) -> bool:
    """Whether it is an int, NumPy's included, and no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def checked_count(value: Any, what: str, *, least: int = 0) -> int:
    """Check how many, or how large: an int that is large enough.

    Raises:
        InvalidArgumentError: it is none.
    """
    if not is_int(value) or value < least:
        raise InvalidArgumentError(f"{what}: got {value!r}; expected an int >= {least}")
    return int(value)


def checked_flag(value: Any, what: str) -> None:
    """Check a bool.

    Raises:
        InvalidArgumentError: it is none.
    """
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{what}: got {value!r}; expected a bool")


def counted(n: int, noun: str) -> str:
    """How many there are, in words: ``1 item``, ``2 items``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
