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
from os import PathLike
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
)

import numpy as np

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import (
    Backoff,
    checked_count,
    checked_delay,
    checked_exceptions,
)
from aioqueue.base.public_names import public

if TYPE_CHECKING:  # a program that has no rate does without them
    from aioqueue.workers.rates import AdaptiveRate, Rate

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
