"""How often a function may be called: a fixed rate, and one that gives way to refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import checked_exceptions, checked_period, checked_positive
from aioqueue.base.public_names import public

_UNITS: Final = {1.0: "second", 60.0: "minute"}


@public("aioqueue.inputs")
@dataclass(frozen=True)
class Rate:
    """How many calls may begin in how many seconds. `per_second` and `per_minute` make it.

    Attributes:
        count: how many, > 0.
        seconds: in how many seconds, > 0.
    """

    count: float
    seconds: float

    def __post_init__(self) -> None:
        if checked_positive(self.count, "count") == inf:
            raise InvalidArgumentError(
                f"count: got {self.count}; expected a finite number > 0 (leave out the rate for no"
                " limit)"
            )
        checked_period(self.seconds, "seconds")

    @property
    def interval(self) -> float:
        """The seconds from one call to the next."""
        return self.seconds / self.count

    def __repr__(self) -> str:
        unit = _UNITS.get(self.seconds)
        if unit is None:
            return f"Rate(count={self.count}, seconds={self.seconds})"
        return f"per_{unit}({self.count})"

    def __str__(self) -> str:
        return f"{self.count:g} per {_UNITS.get(self.seconds, f'{self.seconds:g} s')}"


def per_second(count: float) -> Rate:
    """Make a rate of so many calls a second, for ``prepare(rate=...)``.

    Args:
        count: how many, > 0; 0.1 is one in ten seconds.

    Raises:
        InvalidArgumentError: it is no such number.
    """
    return Rate(count, 1.0)


def per_minute(count: float) -> Rate:
    """Make a rate of so many calls a minute, for ``prepare(rate=...)``.

    Args:
        count: how many, > 0.

    Raises:
        InvalidArgumentError: it is no such number.
    """
    return Rate(count, 60.0)


@public("aioqueue.inputs", hints="inputs")
@dataclass(frozen=True)
class AdaptiveRate:
    """A rate that gives way when a server refuses calls, for ``prepare(rate=...)``.

    It begins with ``most``. A refusal multiplies the rate by ``cut``. Then the rate grows, by the
    same amount in each second, and is back at ``most`` after ``recovery`` seconds at the latest.
    (Additive increase, multiplicative decrease: Chiu and Jain, 1989.) Refusals of calls that began
    before the rate was last cut do not cut it again. With ``concurrency_key`` each key has a rate
    of its own.

    If the refused item is to be retried after some time (see ``backoff`` of `Retry`), no call of
    its key begins before that.

    Args:
        most: the rate that is never exceeded, such as ``per_second(100)``.
        on: which failures are refusals: an exception class, several of them, or a function that
            takes the failure and returns whether it is one.
        least: the rate that refusals never go below; ``None`` is a hundredth of ``most``.
        cut: what a refusal multiplies the rate by, in (0, 1).
        recovery: seconds in which the rate grows from nothing to ``most``, > 0.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """

    most: Rate
    on: type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]
    least: Rate | None = None
    cut: float = 0.5
    recovery: float = 60.0

    def __post_init__(self) -> None:
        if not isinstance(self.most, Rate):
            raise InvalidArgumentError(
                f"most: got {self.most!r}; expected per_second(100) or per_minute(20)"
            )
        if isinstance(self.on, type | tuple) or not callable(self.on):
            checked_exceptions(self.on, "on")
        if self.least is not None and (
            not isinstance(self.least, Rate) or self.least.interval < self.most.interval
        ):
            raise InvalidArgumentError(
                f"least: got {self.least!r}; expected a rate of at most {self.most!r}, or None"
            )
        if checked_positive(self.cut, "cut") >= 1:
            raise InvalidArgumentError(f"cut: got {self.cut!r}; expected a number in (0, 1)")
        checked_period(self.recovery, "recovery")

    def is_refusal(self, error: Exception) -> bool:
        """Return whether a failure is a refusal."""
        on = self.on
        return isinstance(error, on) if isinstance(on, type | tuple) else bool(on(error))
