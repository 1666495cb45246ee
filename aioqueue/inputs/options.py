"""What users say of how items are prepared: where, and what becomes of those that fail."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, Protocol, TypedDict, TypeVar

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.arguments import checked_count, checked_seconds

__all__ = (
    "Autotune",
    "FunctionWithRng",
    "Items",
    "OnError",
    "PrepareFunction",
    "PrepareOptions",
    "Retry",
    "UnseededOptions",
    "Where",
    "checked_delay",
)

T = TypeVar("T")
ItemT = TypeVar("ItemT", contravariant=True)

Where = Literal["auto", "task", "thread", "process", "interpreter", "ray"]
"""What runs the function: see `prepare`."""

Autotune = bool | tuple[int, int]
"""Whether the number of workers is tuned, or within which bounds."""

Items = Iterable[T] | AsyncIterable[T]
"""What items are taken from: sources, queues and streams are one or the other."""


@dataclass(frozen=True)
class Retry:
    """Try an item again when its preparation fails.

    When the retries are used up, the failure stops the pipeline; or the item is skipped, if
    ``then="skip"``, or if `prepare` is given ``max_failures`` or a ``quarantine``.

    Args:
        times: how often to try again after the first failure: an int >= 1.
        backoff: seconds to wait before a retry, or a function that is given the number of failures
            so far (1 before the first retry) and returns the seconds. A stop ends the wait at once.
        on: the class or classes of failures that are worth another try; others count at once.
        then: what becomes of an item whose retries are used up: ``"stop"`` or ``"skip"``.

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
        kinds = self.on if isinstance(self.on, tuple) else (self.on,)
        if not kinds or not all(isinstance(k, type) and issubclass(k, Exception) for k in kinds):
            raise InvalidArgumentError(
                f"on: got {self.on!r}; expected an exception class or a tuple of them"
            )
        if self.then not in ("stop", "skip"):
            raise InvalidArgumentError(f"then: got {self.then!r}; expected 'stop' or 'skip'")


OnError = Literal["stop", "skip"] | Retry


class FunctionWithRng(Protocol[ItemT]):
    """A function of an item that has a parameter ``rng``."""

    def __call__(self, item: ItemT, /, *, rng: np.random.Generator) -> object:
        """The example of an item."""


PrepareFunction = Callable[[T], object] | FunctionWithRng[T]
"""What makes an example of an item: plain or async, a generator function or not."""


class UnseededOptions(TypedDict, total=False):
    """`PrepareOptions` but for ``seed``, for functions that have a seed of their own."""

    workers: int
    where: Where
    ordered: bool
    max_in_flight: int | None
    limit_bytes: int | None
    concurrency_key: Callable[[Any], Hashable] | None
    max_per_key: int | None
    item_timeout: float | None
    on_error: OnError
    max_failures: float | None
    quarantine: str | PathLike[str] | None
    drop_none: bool
    ray: Mapping[str, Any] | None
    autotune: Autotune


class PrepareOptions(UnseededOptions, total=False):
    """What `prepare` takes besides source, function and queue; what each means, it says itself.

    With ``**options: Unpack[PrepareOptions]`` a type checker refuses a misspelt option, and a wrong
    value of one, where the function that hands them on is called.
    """

    seed: int | None


def checked_delay(seconds: Any) -> float:
    """The seconds to wait before a retry, as ``backoff`` is or has returned them.

    Raises:
        InvalidArgumentError: they are no such number.
    """
    function = ", or a function of the number of failures that returns one"
    return checked_seconds(seconds, "backoff", otherwise=function)
