"""The keyword options of `prepare`, for functions that hand them on."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Hashable, Iterable
from os import PathLike
from typing import Any, Literal, Protocol, TypedDict, TypeVar

import numpy as np

from aioqueue.inputs.prepare.policy import OnError

__all__ = ("FunctionWithRng", "Items", "PrepareFunction", "PrepareOptions", "Where")

T = TypeVar("T")
ItemT = TypeVar("ItemT", contravariant=True)

Where = Literal["auto", "task", "thread", "process", "interpreter"]
"""What runs the function: see `prepare`."""

Items = Iterable[T] | AsyncIterable[T]
"""What items are taken from: sources, queues and streams are one or the other."""


class FunctionWithRng(Protocol[ItemT]):
    """A function of an item that has a parameter ``rng``."""

    def __call__(self, item: ItemT, /, *, rng: np.random.Generator) -> object:
        """The example of an item."""


PrepareFunction = Callable[[T], object] | FunctionWithRng[T]
"""What makes an example of an item: plain or async, a generator function or not."""


class PrepareOptions(TypedDict, total=False):
    """What `prepare` takes besides source, function and queue; what each means, it says itself.

    With ``**options: Unpack[PrepareOptions]`` a type checker refuses a misspelt option, and a wrong
    value of one, where the function that hands them on is called.
    """

    workers: int
    where: Where
    ordered: bool
    limit: int | None
    limit_bytes: int | None
    limit_per: Callable[[Any], Hashable] | None
    at_most: int | None
    on_error: OnError
    max_failures: float | None
    quarantine: str | PathLike[str] | None
    skip_none: bool
    seed: int | None
