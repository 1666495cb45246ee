"""Numbers that datasets are made with, checked when they run: sizes of batches, shards."""

from __future__ import annotations

from typing import Any

from aioqueue.compat.v1 import errors

__all__ = ("at_least_one", "check_shard")


def check_shard(count: int, index: int) -> None:
    """Refuse a shard that is not there.

    Raises:
        InvalidArgumentError: there are none, or not so many.
    """
    at_least_one(
        count, f"Number of shards must be greater than zero (currently num_shards = {count})."
    )
    if not 0 <= index < count:
        raise errors.InvalidArgumentError(
            None, None, f"Index must be between 0 and {count - 1} (currently index = {index})."
        )


def at_least_one(value: Any, message: str) -> int:
    """A number that must be positive.

    Raises:
        InvalidArgumentError: it is not; with a message.
    """
    if value < 1:
        raise errors.InvalidArgumentError(None, None, message)
    return int(value)
