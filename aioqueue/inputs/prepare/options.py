"""The keyword options of `prepare`, for functions that hand them on."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from os import PathLike
from typing import Any, Literal, TypedDict

from aioqueue.inputs.prepare.policy import OnError

__all__ = ("PrepareOptions", "Where")

Where = Literal["auto", "task", "thread", "process", "interpreter"]
"""What runs the function: see `prepare`."""


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
