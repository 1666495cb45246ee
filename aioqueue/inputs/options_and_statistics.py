"""The options of `prepare`, and the counts of a pipeline's parts: records that users see.

Options say where the function runs, and what happens to items that fail. Statistics are frozen
records, each a snapshot of one moment.
"""

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
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.arguments import checked_count, checked_delay, checked_exceptions
from aioqueue.public_names import public

__all__ = (
    "Array",
    "Autotune",
    "BatchOptions",
    "BatchStatistics",
    "BucketStatistics",
    "ConsumerStatistics",
    "DType",
    "FunctionWithRng",
    "Items",
    "Later",
    "NamedTupleLike",
    "OnError",
    "OneComponent",
    "PrepareFunction",
    "PrepareOptions",
    "PrepareStatistics",
    "Rate",
    "Retry",
    "StageStatistics",
    "UnseededOptions",
    "Where",
    "checked_delay",
    "per_minute",
    "per_second",
)


T = TypeVar("T")
ItemT = TypeVar("ItemT", contravariant=True)
ExampleT = TypeVar("ExampleT", covariant=True)

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class NamedTupleLike(Protocol):
    """A named tuple, whose batch is one of the same class, with arrays as its fields."""

    def _asdict(self) -> dict[str, Any]: ...


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
            far (1 before the first retry) and returns the seconds. A stop ends the wait at once.
        on: the exception class or classes that are worth another try. Other failures are final.
        then: what happens to an item whose retries are used up: ``"stop"`` or ``"skip"``.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """

    times: int
    backoff: float | Callable[[int], float] = 0.0
    on: type[Exception] | tuple[type[Exception], ...] = (Exception,)
    then: Literal["stop", "skip"] = "stop"

    def __post_init__(self) -> None:
        checked_count(self.times, "times", least=1)
        if not callable(self.backoff):
            checked_delay(self.backoff)
        checked_exceptions(self.on, "on")
        if self.then not in ("stop", "skip"):
            raise InvalidArgumentError(f"then: got {self.then!r}; expected 'stop' or 'skip'")


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
        for name in ("count", "seconds"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 < value < inf:
                raise InvalidArgumentError(f"{name}: got {value!r}; expected a number > 0")


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


class UnseededOptions(TypedDict, total=False):
    """`PrepareOptions` without ``seed``, for functions that have a seed of their own."""

    workers: int
    where: Where
    ordered: bool
    max_in_flight: int | None
    limit_bytes: int | None
    concurrency_key: Callable[[Any], Hashable] | None
    max_per_key: int | None
    rate: Rate | None
    burst: int | None
    item_timeout: float | None
    on_error: OnError
    max_failures: float | None
    quarantine: str | PathLike[str] | None
    drop_none: bool
    ray: Mapping[str, Any] | None
    autotune: Autotune


@public("aioqueue.inputs")
class PrepareOptions(UnseededOptions, total=False):
    """The options of `prepare` besides source, function and queue; `prepare` describes each.

    With ``**options: Unpack[PrepareOptions]`` in your own function, a type checker rejects misspelt
    options and wrong values where that function is called.
    """

    seed: int | None


@public("aioqueue.inputs")
@dataclass(frozen=True)
class PrepareStatistics:
    """Counts of a `prepare`.

    Every item taken from the source is in exactly one of ``prepared``, ``left_out``, ``skipped``
    and ``in_flight``, except for an item that is just moving from one to another.

    Attributes:
        prepared: items whose examples are in the queue.
        examples: examples in the queue. A generator function makes several per item; some may be
            there although the item failed or a stop came in between.
        left_out: items for which the function returned nothing, as ``drop_none`` allows.
        skipped: items that failed and were given up.
        retried: retries after failures.
        workers_died: processes that died and were replaced.
        in_flight: items taken from the source that are not done. After a stop, these are the items
            that the stop dropped.
        timed_out: items cut short by ``item_timeout``, counted per attempt.
        left_behind: threads abandoned after a timeout that were still running when last checked.
    """

    prepared: int = 0
    examples: int = 0
    left_out: int = 0
    skipped: int = 0
    retried: int = 0
    workers_died: int = 0
    in_flight: int = 0
    timed_out: int = 0
    left_behind: int = 0


@dataclass(frozen=True)
class _Stage:
    """The stage that the counts belong to; see `StageStatistics`."""

    stage: str
    ready: int


@public("aioqueue.inputs")
@dataclass(frozen=True)
class StageStatistics(PrepareStatistics, _Stage):
    """Counts of a pipeline stage that has workers, over all epochs of a run.

    These are the counts of a `prepare`, plus details of the stage. An item counts when it is
    prepared, which may be an epoch before you use it. A resumed run continues the counts of the run
    before, which its state contains as far as you used the items: so over all runs each item counts
    once. Only ``workers_died`` and ``in_flight`` concern this process alone.

    Attributes:
        stage: the stage's name and details, as drawings of the pipeline show them.
        ready: items whose examples wait to be used.
    """


@public("aioqueue.inputs")
@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Counts of a stream of batches, at one moment."""

    batches: int
    """Batches taken so far."""
    examples: int
    """Examples in them."""
    waiting: int
    """Examples that wait, in queues and in finished batches."""


@public("aioqueue.inputs")
@dataclass(frozen=True, slots=True)
class BucketStatistics:
    """Counts of bucketing, at one moment. Lengths are in elements along axis 0."""

    examples: int
    """Examples received, without the skipped ones."""
    skipped: int
    """Examples left out because they were too long."""
    batches: int
    """Batches made; some may still wait to be taken."""
    waiting: tuple[int, ...]
    """Examples that wait in each bucket."""
    elements: int
    """The total length of the examples in the batches made."""
    padding: int
    """The padding in those batches, in elements."""
    plain_elements: int
    """The total length of all examples, in batches or still in buckets."""
    plain_padding: int
    """The padding that batches of the same size would hold without bucketing, with all examples in
    the order of arrival."""

    @property
    def padding_share(self) -> float:
        """The share of padding in the batches made, from 0 to 1."""
        return _share(self.padding, self.elements)

    @property
    def plain_padding_share(self) -> float:
        """The share of padding that there would be without bucketing."""
        return _share(self.plain_padding, self.plain_elements)


@public("aioqueue.inputs")
@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """Counts of one consumer of a broadcast, at one moment. Every batch is either taken, dropped or
    waiting."""

    taken: int
    """Batches taken out."""
    dropped: int
    """Batches that the consumer never gets: newer ones replaced them, or there was no room."""
    waiting: int
    """Batches that wait for the consumer."""


def _share(padding: int, elements: int) -> float:
    return padding / (padding + elements) if padding else 0.0
