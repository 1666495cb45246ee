"""What has come goes on at once: no stage waits for more than the next batch needs.

The source here has its next items only when the batch before has been seen, as one that is fed by
what the user does. Who would wait for more would wait for ever.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import pytest

from aioqueue.inputs import Pipeline, from_iterable, numbers
from tests.kit.worlds import ThreadWorld, World

ITEMS = 20
PATIENCE = 60  # seconds, after which a test fails that would hang


def same(item: int) -> int:
    return item


def always(item: int) -> bool:
    return True


async def same_in_a_task(item: int) -> int:
    return item


class Seen:
    """How many examples the user has seen."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed = threading.Condition()
        self.examples: list[int] = []

    def add(self, batch: Any) -> None:
        with self._changed:
            self.examples += batch.tolist()
            self._changed.notify_all()

    def wait(self, number: int) -> None:
        """Wait until an item may come: until all batches before its own were seen."""
        before = number // self._size * self._size
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.examples) >= before, PATIENCE)


def of_generator(seen: Seen) -> Pipeline[int]:
    def items() -> Iterator[int]:
        for number in range(ITEMS):
            seen.wait(number)
            yield number

    return Pipeline(from_iterable(items))


def of_async_generator(seen: Seen) -> Pipeline[int]:
    async def items() -> AsyncIterator[int]:
        for number in range(ITEMS):
            await anyio.to_thread.run_sync(seen.wait, number)
            yield number

    return Pipeline(from_iterable(items))


def of_a_stage(seen: Seen, **options: Any) -> Pipeline[int]:
    def function(number: int) -> int:
        seen.wait(number)
        return number

    return numbers(ITEMS).prepare(function, workers=1, **options)


SOURCES: dict[str, Callable[[Seen], Pipeline[int]]] = {
    "generator": of_generator,
    "async generator": of_async_generator,
    "stage": of_a_stage,
    "stage without order": lambda seen: of_a_stage(seen, ordered=False),
    "stage with a time limit": lambda seen: of_a_stage(seen, item_timeout=PATIENCE),
}

STAGES: dict[str, Callable[[Pipeline[int]], Pipeline[int]]] = {
    "none": lambda pipeline: pipeline,
    "prepare": lambda pipeline: pipeline.prepare(same, workers=2),
    "tasks": lambda pipeline: pipeline.prepare(same_in_a_task, workers=2),
    "two": lambda pipeline: pipeline.prepare(same, workers=2).prepare(same, workers=3),
    "filter": lambda pipeline: pipeline.filter(always),
    "filter and prepare": lambda pipeline: pipeline.filter(always).prepare(same, workers=2),
    "take and prepare": lambda pipeline: pipeline.take(ITEMS).prepare(same, workers=2),
    "flat": lambda pipeline: pipeline.flat(lambda item: [item]),
    "prefetch": lambda pipeline: pipeline.prefetch(3),
    "batches": lambda pipeline: pipeline.batch(1).unbatch().prepare(same, workers=2),
}


async def go_through(world: World, pipeline: Any, check: Callable[[Any], object]) -> None:
    """Look at each batch when it comes."""
    if isinstance(world, ThreadWorld):
        for batch in pipeline:
            check(batch)
    else:
        async for batch in pipeline:
            check(batch)


@pytest.mark.slow(every=13)
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("source", SOURCES)
async def test_no_call_waits_for_more(world: World, source: str, stages: str, size: int) -> None:
    seen = Seen(size)
    pipeline = STAGES[stages](SOURCES[source](seen)).batch(size)
    await go_through(world, pipeline, seen.add)
    assert seen.examples == [*range(ITEMS)]


async def test_an_epoch_of_which_some_were_skipped_ends_without_the_next(world: World) -> None:
    """Nobody knows how many of its items come: so nobody waits for as many as there were."""
    has_ended, calls = threading.Event(), itertools.count(1)

    def even(item: int) -> int:
        if item % 2:
            raise ValueError(item)
        return item

    def slow(item: int) -> int:
        if next(calls) > ITEMS // 2:  # of the second epoch
            assert has_ended.wait(PATIENCE)
        return item

    skipping = numbers(ITEMS).prepare(even, on_error="skip", workers=1)
    pipeline = skipping.prepare(slow, workers=1).batch(ITEMS).epochs(2)
    found = []
    if isinstance(world, ThreadWorld):
        for epoch in pipeline:
            found += [batch.tolist() for batch in epoch]
            has_ended.set()
    else:
        async for epoch in pipeline:
            found += [batch.tolist() async for batch in epoch]
            has_ended.set()
    assert found == [list(range(0, ITEMS, 2))] * 2


@pytest.mark.parametrize("ordered", [True, False])
def test_a_failure_is_raised_before_the_rest_has_come(ordered: bool) -> None:
    """Also if what others have made meanwhile waits to be put into the queue together."""
    for _ in range(10):
        has_failed = threading.Event()

        def fails_once(item: int, has_failed: threading.Event = has_failed) -> int:
            if item == 10:
                has_failed.set()
                raise ValueError(item)
            return item

        pipeline = numbers(10**9).prepare(fails_once, workers=4, buffer_size=9, ordered=ordered)
        seen = 0
        with pytest.raises(ExceptionGroup):
            for _ in pipeline:
                if not seen:
                    assert has_failed.wait(PATIENCE)
                seen += 1
                assert seen < 1000
