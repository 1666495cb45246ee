"""The options of `prepare`: where the function runs, and what happens to items that fail."""

from __future__ import annotations

from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from math import inf
from os import PathLike
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias, TypedDict, TypeVar

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import (
    Backoff,
    checked_count,
    checked_delay,
    checked_exceptions,
    checked_period,
    checked_positive,
)
from aioqueue.base.public_names import public

T = TypeVar("T")
ItemT = TypeVar("ItemT", contravariant=True)
ExampleT = TypeVar("ExampleT", covariant=True)

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class NamedTupleLike(Protocol[ExampleT]):
    """A named tuple, whose batch is one of the same class, with arrays as its fields."""

    def _asdict(self) -> dict[str, Any]: ...
    @property
    def _replace(self) -> Callable[..., ExampleT]: ...


class TypedDictLike(Protocol[ExampleT]):
    """A dict of known keys, whose batch is one of the same keys, with arrays as its values."""

    __required_keys__: ClassVar[frozenset[str]]

    def copy(self) -> ExampleT: ...


class DataclassLike(Protocol):
    """A dataclass, whose batch is one of the same class, with arrays as its fields."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


DType: TypeAlias = str | type[Any] | np.dtype[Any]
"""One dtype, as users write it."""

Where = Literal["auto", "task", "thread", "process", "interpreter", "ray"]
"""What runs the function: see `prepare`."""

Autotune = bool | tuple[int, int]
"""Whether to tune the number of workers, or the bounds of the tuning."""

Items = Iterable[T] | AsyncIterable[T]
"""The source of the items: sources, queues and streams are one or the other."""


@public("aioqueue.inputs", hints="inputs")
@dataclass(frozen=True)
class Retry:
    """Try an item again when its preparation fails.

    When the retries are used up, the failure stops the pipeline. With ``then="skip"``, or if you
    pass ``max_failures`` or a ``quarantine`` to `prepare`, the item is skipped instead.

    Args:
        times: the number of attempts after the first failure: an int >= 1.
        backoff: seconds to wait before a retry, or a function that takes the number of failures so
            far (1 before the first retry) and returns the seconds. If it has a parameter ``error``,
            it also gets the latest failure: a server may say there when to come back
            (``Retry-After``). A stop ends the wait at once.
        on: the exception class or classes that are worth another try. Other failures are final.
        then: what happens to an item whose retries are used up: ``"stop"`` or ``"skip"``.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """

    times: int
    backoff: float | Backoff = 0.0
    on: type[Exception] | tuple[type[Exception], ...] = (Exception,)
    then: Literal["stop", "skip"] = "stop"

    def __post_init__(self) -> None:
        checked_count(self.times, "times", least=1)
        if not callable(self.backoff):
            checked_delay(self.backoff)
        checked_exceptions(self.on, "on")
        if self.then not in ("stop", "skip"):
            raise InvalidArgumentError(f"then: got {self.then!r}; expected 'stop' or 'skip'")


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


OnError = Literal["stop", "skip"] | Retry


Later: TypeAlias = Awaitable[T] | Iterator[T] | AsyncIterator[T]
"""What coroutine functions and generator functions return."""

OneComponent: TypeAlias = Array | np.generic | complex | str | bytes | list[Any]
"""An example that is neither a tuple nor a mapping."""


class FunctionWithRng(Protocol[ItemT, ExampleT]):
    """A function of an item that has a parameter ``rng``."""

    def __call__(self, item: ItemT, /, *, rng: np.random.Generator) -> ExampleT:
        """Make the example of an item."""


PrepareFunction = Callable[[T], object] | FunctionWithRng[T, object]
"""A function that makes an example from an item: plain or async, a generator function or not."""


class BatchOptions(TypedDict, total=False):
    """The options of `Pipeline.batch` besides ``collate``."""

    drop_remainder: bool
    pad: bool
    padding_value: Any
    across_epochs: bool
    objects: bool | str | Sequence[str]


class _CommonOptions(TypedDict, total=False):
    workers: int
    where: Where
    ordered: bool
    max_in_flight: int | None
    limit_bytes: int | None
    concurrency_key: Callable[[Any], Hashable] | None
    max_per_key: int | None
    rate: Rate | AdaptiveRate | None
    burst: int | None
    item_timeout: float | None
    on_error: OnError
    max_failures: float | None
    quarantine: str | PathLike[str] | None
    ray: Mapping[str, Any] | None
    autotune: Autotune


class DroppingOptions(_CommonOptions, total=False):
    """`PrepareOptions` without ``drop_none``, which decides about the type of examples."""

    seed: int | None


class UnseededOptions(_CommonOptions, total=False):
    """`PrepareOptions` without ``seed``, for functions that have a seed of their own."""

    drop_none: bool


@public("aioqueue.inputs")
class PrepareOptions(UnseededOptions, total=False):
    """The options of `prepare` besides source, function and queue; `prepare` describes each.

    With ``**options: Unpack[PrepareOptions]`` in your own function, a type checker rejects misspelt
    options and wrong values where that function is called.
    """

    seed: int | None
