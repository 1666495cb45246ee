"""Checks of arguments that the parts of a pipeline have in common."""

from __future__ import annotations

from typing import Any

import numpy as np

from aioqueue import InvalidArgumentError

__all__ = ("checked_count", "checked_flag", "is_int")


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
