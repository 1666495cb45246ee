"""A cancellation that a user's function raises is a failure, wherever the function runs.

The `result` of a future that was cancelled raises such a one. Nobody has cancelled the task that
asks for a batch, so it must not end as if somebody had: silently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from aioqueue import InvalidArgumentError, sync
from aioqueue.inputs import Retry, batch, bucket_by_sequence_length, from_iterable, items, numbers
from tests.kit.going import results
from tests.kit.pipelines import coordinated, rest
from tests.kit.worlds import World

Raising = Callable[[], BaseException]

WHAT: dict[str, Raising] = {
    "cancelled": asyncio.CancelledError,
    "in a group": lambda: BaseExceptionGroup("of two", [asyncio.CancelledError(), ValueError()]),
    "in a group within a group": lambda: BaseExceptionGroup(
        "outer", [BaseExceptionGroup("inner", [asyncio.CancelledError()])]
    ),
}


class Unlucky:
    """Functions of all kinds that raise at the number 3."""

    def __init__(self, make: Raising) -> None:
        self.make = make

    def __call__(self, number: int) -> int:
        if number == 3:
            raise self.make()
        return number + 1

    def __len__(self) -> int:
        return 6

    def __getitem__(self, number: int) -> int:
        return self(number)

    def each(self) -> Iterator[int]:
        return map(self, range(6))

    def all(self, numbers: list[int]) -> list[int]:
        return [self(number) for number in numbers]


class Lengthy(Unlucky):
    def __len__(self) -> int:
        raise self.make()


class Array:
    def __init__(self, number: int, unlucky: Unlucky) -> None:
        self.number = number
        self.unlucky = unlucky

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.full(2, self.unlucky(self.number))


def arrays(unlucky: Unlucky) -> list[Array]:
    return [Array(number, unlucky) for number in range(6)]


STAGES: dict[str, Callable[[Unlucky], Any]] = {
    "filter": lambda raises: numbers(6).filter(raises),
    "filter before a prepare": lambda raises: numbers(6).filter(raises).prepare(abs, workers=1),
    "collate": lambda raises: numbers(6).batch(2, collate=raises.all),
    "collate of the rest": lambda raises: numbers(4).batch(9, collate=raises.all),
    "__array__": lambda raises: items(arrays(raises)).batch(2),
    "__array__, padded": lambda raises: items(arrays(raises)).batch(2, pad=True),
    "__array__, packed": lambda raises: items(arrays(raises)).pack(4),
    "length": lambda raises: numbers(6).bucket([2, 9], 2, length=raises),
    "unbatch": lambda raises: items([Lengthy(raises.make)]).unbatch(),
    "a dataset": lambda raises: items(raises).batch(2),
    "an iterable": lambda raises: from_iterable(raises.each).batch(2),
    "prepare": lambda raises: numbers(6).prepare(raises, workers=1).batch(2),
    "flat": lambda raises: numbers(6).flat(lambda n: [raises(n)], workers=1).batch(2),
}


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in leaves(part)]
    return [error]


def is_reported(failure: BaseException) -> bool:
    """Whether it is the failure that was raised, and none that somebody takes for a stop."""
    parts = leaves(failure)
    causes = [leaf for part in parts if part.__cause__ for leaf in leaves(part.__cause__)]
    are_failures = all(isinstance(part, Exception) for part in parts)
    return are_failures and any(isinstance(one, asyncio.CancelledError) for one in causes)


@pytest.mark.parametrize("what", WHAT)
async def test_in_a_stage(what: str, world: World) -> None:
    for stage, make in STAGES.items():
        with pytest.raises(BaseException) as caught:  # noqa: PT011  # whichever says it
            await results(world, make(Unlucky(WHAT[what])))
        assert is_reported(caught.value), stage


STREAMS: dict[str, Callable[[Unlucky, Any], Any]] = {
    "the array of an example": lambda raises, coord: batch(arrays(raises), 2, coord=coord),
    "the array of an example, by workers": lambda raises, coord: batch(
        numbers(6, epochs=1), 2, function=lambda n: Array(n, raises), coord=coord
    ),
    "the array of an example, with dtypes": lambda raises, coord: batch(
        arrays(raises), 2, dtypes="int64", shapes=(2,), coord=coord
    ),
    "the same, with positions": lambda raises, coord: batch(
        arrays(raises), 2, dtypes="int64", shapes=(2,), coord=coord, resume=None
    ),
    "a length": lambda raises, coord: bucket_by_sequence_length(
        numbers(6, epochs=1), [2, 9], 2, length=raises, coord=coord
    ),
    "a length, in a task": lambda raises, coord: bucket_by_sequence_length(
        queued(range(6)), [2, 9], 2, length=raises, coord=coord
    ),
    "a key": lambda raises, coord: batch(
        numbers(6, epochs=1), 2, function=abs, concurrency_key=raises, max_per_key=1, coord=coord
    ),
    "a pause": lambda raises, coord: batch(
        numbers(6, epochs=1),
        2,
        function=unlucky,
        workers=1,
        on_error=Retry(3, backoff=lambda failures: 0 * raises(failures)),
        coord=coord,
    ),
}


def unlucky(number: int) -> int:
    raise ValueError(f"unlucky {number}")


def queued(values: Iterable[int]) -> sync.FIFOQueue:
    queue = sync.FIFOQueue(None)
    queue.enqueue_many(list(values))
    queue.close()
    return queue


async def test_in_a_stream(world: World) -> None:
    for stream, make in STREAMS.items():
        with pytest.raises(BaseException) as caught:  # noqa: PT011
            async with coordinated(world) as coord:
                await rest(make(Unlucky(asyncio.CancelledError), coord))
        assert is_reported(caught.value), stream


async def test_of_a_value_that_is_enqueued(world: World) -> None:
    bad = Array(3, Unlucky(asyncio.CancelledError))
    for dtype in ("int64", object):
        for queue in (world.fifo(9, dtype, (2,)), world.padding(9, dtype, (None,))):
            with pytest.raises(InvalidArgumentError, match="component 0"):
                await queue.enqueue(bad)
            assert queue.size() == 0


class FrozenError(Exception):
    """Takes no attributes: no notes, and no traceback that is assigned."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} cannot be assigned")


async def test_a_failure_that_takes_nothing_stays_what_it_is(world: World) -> None:
    for stage, make in STAGES.items():
        with pytest.raises(BaseException) as caught:  # noqa: PT011
            await results(world, make(Unlucky(FrozenError)))
        reported = leaves(caught.value)
        reported += [one.__cause__ for one in reported if one.__cause__ is not None]
        assert any(isinstance(one, FrozenError) for one in reported), stage
