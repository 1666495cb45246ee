"""`prepare` calls `task_done` for elements that it skips or that give no example."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.inputs import Retry, from_iterable, prepare

PATIENCE = 30.0


class RefusedError(ValueError):
    """What the functions raise."""


def outcome_of(number: int) -> str:
    """The outcome of an item; fixed, so that other processes agree."""
    return random.Random(number).choice(["given", "skipped", "none"])


def single(number: int) -> int | None:
    """One example, or none, or a failure."""
    outcome = outcome_of(number)
    if outcome == "skipped":
        raise RefusedError(number)
    return number if outcome == "given" else None


def several(number: int) -> Iterator[int]:
    """Some examples, or none, or a failure after some of them."""
    outcome = outcome_of(number)
    if outcome == "none":
        return
    yield number
    if outcome == "skipped":
        raise RefusedError(number)
    yield number


async def single_async(number: int) -> int | None:
    await asyncio.sleep(0)
    return single(number)


async def several_async(number: int) -> Any:
    for example in several(number):
        await asyncio.sleep(0)
        yield example


WAYS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (single, {}),
    (single, {"workers": 1}),
    (single, {"ordered": True}),
    (single, {"limit_bytes": 1000}),
    (single, {"on_error": Retry(1, then="skip")}),
    (single, {"concurrency_key": outcome_of, "max_per_key": 1}),
    (several, {}),
    (several, {"ordered": True}),
    (single, {"where": "process"}),
    (several, {"where": "process", "ordered": True}),
]
TASKS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (single_async, {}),
    (single_async, {"workers": 1, "ordered": True}),
    (single_async, {"on_error": Retry(1, then="skip")}),
    (several_async, {}),
    (several_async, {"ordered": True, "item_timeout": 60}),
]
COUNT = 40
GIVEN = [number for number in range(COUNT) if outcome_of(number) == "given"]


def filled() -> sync.FIFOQueue[int]:
    queue: sync.FIFOQueue[int] = sync.FIFOQueue(None)
    queue.enqueue_many(range(COUNT))
    queue.close()
    return queue


def described(way: Any) -> str:
    function, options = way
    return " ".join([function.__name__, *map(str, options)])


@pytest.mark.slow(but=("single-", "single_async-"))
@pytest.mark.parametrize("way", [pytest.param(way, id=f"{described(way)}-") for way in WAYS])
def test_of_threads_and_processes(way: Any) -> None:
    function, options = way
    queue, into = filled(), sync.FIFOQueue(None)
    with sync.Coordinator() as coord:
        options = {"on_error": "skip", "drop_none": True, **options}
        coord.start(prepare(queue, function, into=into, **options))
        taken = list(into)
    assert set(taken) == set(GIVEN)
    assert queue.statistics().unfinished == len(GIVEN)
    queue.task_done(len(GIVEN))
    queue.join(timeout=PATIENCE)


@pytest.mark.slow(but=("single-", "single_async-"))
@pytest.mark.parametrize("way", [pytest.param(way, id=f"{described(way)}-") for way in TASKS])
def test_of_tasks(way: Any) -> None:
    function, options = way

    async def main() -> None:
        queue, into = filled(), aioqueue.FIFOQueue(None)
        async with aioqueue.Coordinator() as coord:
            options_here = {"on_error": "skip", "drop_none": True, **options}
            coord.start(prepare(queue, function, into=into, **options_here))
            taken = [one async for one in into]
        assert set(taken) == set(GIVEN)
        assert queue.statistics().unfinished == len(GIVEN)

    asyncio.run(main())


PIPELINES: dict[str, Callable[[Any], Any]] = {
    "prepare": lambda source: source.prepare(single, on_error="skip", drop_none=True),
    "twice": lambda source: source.prepare(int).prepare(single, on_error="skip", drop_none=True),
    "unordered": lambda source: source.prepare(
        single, on_error="skip", drop_none=True, ordered=False
    ),
    "flat": lambda source: source.flat(several, on_error="skip"),
    "shuffled": lambda source: source.shuffle(5).prepare(single, on_error="skip", drop_none=True),
    "process": lambda source: source.prepare(
        single, on_error="skip", drop_none=True, where="process"
    ),
}


@pytest.mark.slow("process")
@pytest.mark.parametrize("name", PIPELINES)
def test_of_pipelines(name: str) -> None:
    queue = filled()
    taken = list(PIPELINES[name](from_iterable(queue)))
    assert set(taken) == set(GIVEN)
    assert queue.statistics().unfinished == len(GIVEN)


def test_of_an_async_pipeline() -> None:
    async def main() -> None:
        queue = filled()
        pipeline = from_iterable(queue.aio).prepare(single_async, on_error="skip", drop_none=True)
        assert [one async for one in pipeline] == GIVEN
        assert queue.statistics().unfinished == len(GIVEN)

    asyncio.run(main())


def refused(batch: Any) -> Any:
    raise RefusedError(batch)


MAKES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "behind flat": (
        lambda source: source.flat(lambda number: (number, number)).prepare(
            single, on_error="skip", drop_none=True
        ),
        COUNT,
    ),
    "flat gives nothing": (lambda source: source.flat(lambda number: ()), 0),
    "batches": (lambda source: source.batch(2).prepare(refused, on_error="skip"), COUNT),
    "batches that are given": (lambda source: source.batch(2).prepare(len), COUNT),
    "filter": (lambda source: source.filter(lambda number: outcome_of(number) == "given"), COUNT),
    "take": (lambda source: source.take(5), COUNT),
}


@pytest.mark.parametrize("name", MAKES)
def test_nothing_else_is_marked_done(name: str) -> None:
    """An example that is one of several, or a part of a batch, is no element of the queue."""
    make, unfinished = MAKES[name]
    queue = filled()
    list(make(from_iterable(queue)))
    assert queue.statistics().unfinished == unfinished


def test_a_failure_leaves_the_item_unfinished() -> None:
    queue, into = filled(), sync.FIFOQueue(None)
    with pytest.raises(ExceptionGroup), sync.Coordinator() as coord:
        coord.start(prepare(queue, single, into=into, workers=1, drop_none=True))
        coord.wait_for_stop()
    before = next(number for number in range(COUNT) if outcome_of(number) == "skipped")
    given = [number for number in range(before) if outcome_of(number) == "given"]
    statistics = queue.statistics()
    # Another item may have ended between the failure and the stop of its worker: there is only one.
    assert statistics.unfinished == COUNT - (before - len(given))


def test_an_item_that_is_too_late_is_done() -> None:
    async def never(number: int) -> int:
        await asyncio.Event().wait()
        return number

    async def main() -> None:
        queue: aioqueue.FIFOQueue[int] = aioqueue.FIFOQueue(None)
        into: aioqueue.FIFOQueue[int] = aioqueue.FIFOQueue(None)
        await queue.enqueue(1)
        async with aioqueue.Coordinator() as coord:
            coord.start(prepare(queue, never, into=into, item_timeout=0.01, on_error="skip"))
            async with asyncio.timeout(PATIENCE):
                await queue.join()

    asyncio.run(main())


def test_one_task_done_too_many_is_an_error() -> None:
    """All elements were reported as done, and then an item is skipped."""
    queue, into = sync.FIFOQueue(None), sync.FIFOQueue(None)
    queue.enqueue(1)
    queue.task_done()

    def refuse(number: int) -> int:
        raise RefusedError(number)

    with pytest.raises(ExceptionGroup) as caught, sync.Coordinator() as coord:
        coord.start(prepare(queue, refuse, into=into, on_error="skip"))
        coord.wait_for_stop()
    (error,) = caught.value.exceptions
    assert "task_done: got n=1" in str(error)
