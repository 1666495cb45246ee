"""What a batcher asks of each call before it becomes a request: is it valid, how heavy, how urgent.

It runs in the caller, so whatever it raises is raised there, and no other caller is concerned.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import numpy as np

from aioqueue.base.arguments import checked_period, function_name, is_coroutine_function
from aioqueue.errors import InvalidArgumentError

_TICKS: Final = 1_000_000
"""Steps of time in a second."""


class Admission:
    """The options of a batcher that concern single requests. Its arguments are those of the faces.

    Args:
        has_priorities: whether the queue orders requests by priority.

    Raises:
        InvalidArgumentError: an argument is wrong, or lacks another one.
    """

    def __init__(
        self,
        weight: Callable[[Any], float] | None,
        max_batch_weight: float | None,
        check: Callable[[Any], bool | None] | None,
        ageing: float | None,
        *,
        has_priorities: bool,
    ) -> None:
        self._weight = _checked_function(weight, "weight", "the weight of a value, a number")
        self.max_weight: float | None = _checked_weight_limit(max_batch_weight)
        self._check = _checked_function(
            check, "check", "None, or raises what is wrong with a value"
        )
        if (self._weight is None) != (self.max_weight is None):
            given, missing = (
                ("max_batch_weight", "weight") if weight is None else ("weight", "max_batch_weight")
            )
            raise InvalidArgumentError(
                f"{missing}: got None with {given}=; expected both, for example"
                " `weight=len, max_batch_weight=4096`"
            )
        # With a constant rate, the order of two requests never changes while they wait: the one
        # that came later is as much behind as the time between them is worth. So the key is
        # computed at the call, and the heap need not be sorted again.
        self._ticks_per_step: int | None = _checked_ageing(ageing, has_priorities)
        self._began = perf_counter()
        self.examines: bool = self._weight is not None or self._check is not None

    def examine(self, value: Any) -> float:
        """Check a value, and return its weight; 0 if values have none.

        Raises:
            InvalidArgumentError: it was refused, or is heavier than a batch may be.
            Exception: ``check`` or ``weight`` has raised it.
        """
        if self._check is not None:
            verdict = self._check(value)
            if verdict is False or (isinstance(verdict, np.bool_) and not verdict):
                raise InvalidArgumentError(
                    f"value: {function_name(self._check)} refused {_shortened(value)}"
                )
            if not (verdict is None or isinstance(verdict, bool | np.bool_)):
                raise TypeError(
                    f"check: {function_name(self._check)} returned a {type(verdict).__name__};"
                    " expected None or True for a valid value, and False or an exception for others"
                )
        if self._weight is None:
            return 0
        assert self.max_weight is not None
        weight: float = self._weight(value)
        if not _is_number(weight) or not 0 <= weight < math.inf:
            raise InvalidArgumentError(
                f"weight: {function_name(self._weight)} returned {weight!r}; expected a number >= 0"
            )
        if weight > self.max_weight:
            raise InvalidArgumentError(
                f"value: got one that weighs {weight:g}; expected at most max_batch_weight,"
                f" {self.max_weight:g}, which a whole batch may weigh"
            )
        return weight

    def key(self, priority: Any, began: float) -> Any:
        """Return the priority in the queue of a request, from its own and the time of the call.

        Raises:
            InvalidArgumentError: ageing makes it larger than the queue can hold.
        """
        per_step = self._ticks_per_step
        if per_step is None:
            return priority
        try:
            given = operator.index(priority)
        except TypeError:
            return priority  # the queue refuses it
        key = given * per_step + int((began - self._began) * _TICKS)
        if not -(2**63) <= key < 2**63:
            most = 2**63 // per_step
            raise InvalidArgumentError(
                f"priority: got {priority!r}; expected one between about {-most:.2g} and"
                f" {most:.2g}, as far as they can age (ageing={per_step / _TICKS:g})"
            )
        return key


def _shortened(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array with the shape {value.shape} and the dtype {value.dtype}"
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _is_number(value: Any) -> bool:
    if isinstance(value, np.generic | np.ndarray):
        return bool(value.ndim == 0 and value.dtype.kind in "iuf")
    return isinstance(value, int | float) and not isinstance(value, bool)


def _checked_function(function: Any, name: str, returns: str) -> Callable[[Any], Any] | None:
    if function is None:
        return None
    if not callable(function):
        raise InvalidArgumentError(
            f"{name}: got {function!r}; expected a function that gets one value and returns"
            f" {returns}; or None"
        )
    if is_coroutine_function(function):
        raise InvalidArgumentError(
            f"{name}: got {function_name(function)!r}, a coroutine function; expected a plain one:"
            " await what it needs before you call the batcher"
        )
    return function  # type: ignore[no-any-return]


def _checked_weight_limit(limit: Any) -> float | None:
    if limit is None:
        return None
    if not _is_number(limit) or not 0 < limit < math.inf:
        raise InvalidArgumentError(
            f"max_batch_weight: got {limit!r}; expected a number > 0, or None"
        )
    return limit  # type: ignore[no-any-return]


def _checked_ageing(ageing: Any, has_priorities: bool) -> int | None:
    if ageing is None:
        return None
    seconds = checked_period(ageing, "ageing", otherwise=", or None")
    if not has_priorities:
        raise InvalidArgumentError(
            f"ageing: got {ageing!r}, but the queue has no priorities; expected it with"
            " `queue=PriorityQueue(capacity)`"
        )
    return max(1, int(seconds * _TICKS))
