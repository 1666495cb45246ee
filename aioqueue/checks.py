"""Checks of arguments that all parts of the house have in common, each said once.

What is an int, how many, how many seconds, whether: whoever takes such an argument accepts the same
values, Python's and NumPy's, and refuses the same ones in the same words.
"""

from __future__ import annotations

import threading
from typing import Any, TypeGuard

import numpy as np

from aioqueue.errors import InvalidArgumentError, counted

__all__ = (
    "checked_count",
    "checked_flag",
    "checked_grace",
    "checked_seconds",
    "checked_watchdog",
    "counted",
    "is_int",
)


def is_int(value: Any) -> TypeGuard[int]:
    """Whether it is an int, NumPy's included, and no bool.

    A `numpy.timedelta64` is none, though NumPy derives it from its ints.
    """
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)


def checked_count(value: Any, what: str, *, least: int = 0) -> int:
    """Check how many, or how large: an int that is large enough.

    Args:
        value: what was given.
        what: what the message calls it.
        least: the smallest that is right.

    Raises:
        InvalidArgumentError: it is none.
    """
    if not is_int(value) or value < least:
        raise InvalidArgumentError(f"{what}: got {value!r}; expected an int >= {least}")
    return int(value)


def checked_seconds(value: Any, what: str, *, otherwise: str = "") -> float:
    """Check a duration: a number of seconds >= 0, however large.

    Args:
        value: what was given.
        what: what the message calls it.
        otherwise: what else would have been right: ", or None", say.

    Returns:
        The seconds; of those that no clock can count, the most that a thread can wait.

    Raises:
        InvalidArgumentError: it is none.
    """
    number = _number(value)
    if number is None or not number >= 0:
        raise InvalidArgumentError(
            f"{what}: got {value!r}; expected a number of seconds >= 0{otherwise}"
        )
    return float(min(number, threading.TIMEOUT_MAX))


def checked_grace(value: Any, what: str) -> float:
    """Check a grace period: a number of seconds, where less than none is none.

    Raises:
        InvalidArgumentError: it is none.
    """
    number = _number(value)
    if number is None or number != number:
        raise InvalidArgumentError(f"{what}: got {value!r}; expected a number of seconds")
    return checked_seconds(max(number, 0), what)


def checked_watchdog(seconds: Any) -> float | None:
    """Check a watchdog: more than 0 seconds, or ``None`` for none.

    Raises:
        InvalidArgumentError: it is neither.
    """
    if seconds is None:
        return None
    number = _number(seconds)
    if number is None or not number > 0:
        raise InvalidArgumentError(
            f"watchdog: got {seconds!r}; expected a number of seconds > 0, or None"
        )
    return checked_seconds(seconds, "watchdog")


def checked_flag(value: Any, what: str) -> bool:
    """Check a bool.

    Raises:
        InvalidArgumentError: it is none.
    """
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{what}: got {value!r}; expected a bool")
    return value


def _number(value: Any) -> float | None:
    """A number as Python's own, which are compared by value; ``None`` if it is none."""
    if is_int(value):
        return int(value)
    return float(value) if isinstance(value, float | np.floating) else None
