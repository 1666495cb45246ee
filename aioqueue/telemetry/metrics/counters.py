"""Arithmetic on readings: how the numbers of several parts of a run combine, field by field.

A reading is a frozen record, such as `QueueNumbers`, of one part at one moment. Each of its fields
declares a rule, as the metadata of the dataclass field:

* A *counter* only grows. So the difference of two readings says what happened in between, and a
  part that has ended still counts.
* A *gauge* is true of its moment, and of the parts that exist then.
* A field without a rule describes the part. The latest part says what it is.

The functions below are all there is: `concurrent` and `consecutive` combine the readings of several
parts, `difference` subtracts two readings of one part, and `never_less` keeps counters growing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, fields, replace
from functools import cache
from typing import Any, ClassVar, Final, Protocol, TypeVar

from aioqueue.core.meters import Histogram


class CounterRecord(Protocol):
    """A record of numbers: an instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


ReadingT = TypeVar("ReadingT", bound=CounterRecord)


@dataclass(frozen=True, slots=True)
class _Rule:
    """How the values of one field combine.

    Attributes:
        combine: returns the value for two parts; the earlier part comes first.
        is_counter: whether the value of a part that has ended still counts.
        subtract: returns how much a later value exceeds an earlier one; `None` if the difference
            means nothing.
        is_timed: whether the value includes time that still passes; see `never_less`.
    """

    combine: Callable[[Any, Any], Any]
    is_counter: bool = False
    subtract: Callable[[Any, Any], Any] | None = None
    is_timed: bool = False


def _rule(
    combine: Callable[[Any, Any], Any],
    *,
    is_counter: bool = False,
    subtract: Callable[[Any, Any], Any] | None = None,
    is_timed: bool = False,
) -> Mapping[str, _Rule]:
    return {"rule": _Rule(combine, is_counter, subtract, is_timed)}


def _add_each(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    if len(one) != len(other):
        return other  # of a bounded queue and an unbounded one, which has no such counters
    return tuple(map(operator.add, one, other))


def _growth(later: float, earlier: float) -> float:
    return max(0.0, later - earlier)


def _growth_of_each(later: tuple[float, ...], earlier: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(map(_growth, later, earlier)) if len(later) == len(earlier) else later


def _sum_if_all_known(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _sum_of_known(one: int | None, other: int | None) -> int | None:
    return None if one is None and other is None else (one or 0) + (other or 0)


def _longest_first(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sorted((*one, *other), reverse=True))


COUNT: Final = _rule(operator.add, is_counter=True, subtract=operator.sub)
"""A counter of events."""

SECONDS: Final = _rule(operator.add, is_counter=True, subtract=_growth, is_timed=True)
"""A counter of seconds."""

DURATIONS: Final = _rule(Histogram.plus, is_counter=True, subtract=Histogram.since)
"""A counter of durations by their length."""

SECONDS_BY_FILL: Final = _rule(_add_each, is_counter=True, subtract=_growth_of_each)
"""Counters of seconds: one for each tenth of a queue's capacity."""

LATEST_KNOWN: Final = _rule(lambda one, other: other or one, is_counter=True)
"""The last value that is not empty, also that of a part that has ended."""

SUM: Final = _rule(operator.add)
"""A gauge that adds up."""

SUM_IF_ALL_KNOWN: Final = _rule(_sum_if_all_known)
"""A gauge that adds up; `None` (no bound, or not counted) if any is `None`."""

SUM_OF_KNOWN: Final = _rule(_sum_of_known)
"""A gauge that adds up; `None` only if all are `None`."""

ALL_LISTED: Final = _rule(operator.add)
"""A gauge that lists things: those of all parts."""

LONGEST_FIRST: Final = _rule(_longest_first)
"""A gauge that lists durations, longest first."""

IF_ALL: Final = _rule(lambda one, other: one and other)
"""Whether something is true of all parts."""


def _both(one: CounterRecord | None, other: CounterRecord | None) -> CounterRecord | None:
    return other or one if one is None or other is None else concurrent(one, other)


def _change(later: CounterRecord | None, earlier: CounterRecord | None) -> CounterRecord | None:
    return None if later is None else difference(earlier, later)


NESTED: Final = _rule(_both, is_counter=True, subtract=_change)
"""A record of counters and of numbers that describe the latest part; `None` for none."""


@cache
def _rules(kind: type[CounterRecord]) -> tuple[tuple[str, _Rule], ...]:
    found = ((field.name, field.metadata.get("rule")) for field in fields(kind))
    return tuple((name, rule) for name, rule in found if rule is not None)


def _counters(kind: type[CounterRecord]) -> Iterator[tuple[str, _Rule]]:
    return ((name, rule) for name, rule in _rules(kind) if rule.is_counter)


def concurrent(one: ReadingT, other: ReadingT) -> ReadingT:
    """Return the reading of two parts that exist at the same time."""
    combined = {
        name: rule.combine(getattr(one, name), getattr(other, name))
        for name, rule in _rules(type(other))
    }
    return replace(other, **combined)


def consecutive(ended: ReadingT, now: ReadingT) -> ReadingT:
    """Return the reading of a part that continues an ended one, with the counts of both."""
    combined = {
        name: rule.combine(getattr(ended, name), getattr(now, name))
        for name, rule in _counters(type(now))
    }
    return replace(now, **combined)


def difference(earlier: ReadingT | None, later: ReadingT) -> ReadingT:
    """Return a reading whose counters hold what happened in between.

    Args:
        earlier: the first reading; `None` for a part that did not exist then.
        later: the second reading, whose gauges the result has.
    """
    if earlier is None:
        return later
    changes = {
        name: rule.subtract(getattr(later, name), getattr(earlier, name))
        for name, rule in _rules(type(later))
        if rule.subtract is not None
    }
    return replace(later, **changes)


def never_less(earlier: ReadingT, later: ReadingT) -> ReadingT:
    """Return the later reading, in which no counter of seconds is below its earlier value.

    A call in progress counts up to the moment of the reading. When it ends, its worker reads the
    clock first and stores the sum later: a reading between the two counted the call for a little
    longer than it took. So the sum could shrink. A program that subtracts counters, such as
    Prometheus, would take that for a restart.
    """
    raised: dict[str, Any] = {
        name: before
        for name, rule in _rules(type(later))
        if rule.is_timed and getattr(later, name) < (before := getattr(earlier, name))
    }
    return replace(later, **raised) if raised else later
