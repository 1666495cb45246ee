"""How far workers read ahead of the loop: many examples, but only a few batches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import anyio
import numpy as np
import pytest

from aioqueue.inputs import Pipeline, arrays, items, numbers
from aioqueue.pipeline.nodes.rows import Element
from aioqueue.pipeline.stages.chain import ElementSizes, checked
from aioqueue.workers.flow_control import DefaultInFlight
from tests.kit.worlds import PATIENCE, ThreadWorld, World

SIZE = 10
BATCHES = 40


def same(batch: Any) -> Any:
    return batch


async def same_in_a_task(batch: Any) -> Any:
    await anyio.lowlevel.checkpoint()
    return batch


class Made:
    """Counts the batches that were made, besides the one that the loop has or is receiving."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._made = 0
        self._received = 0
        self.most_ahead = 0

    def collate(self, examples: list[Any]) -> list[Any]:
        with self._changed:
            self._made += 1
            self.most_ahead = max(self.most_ahead, self._made - self._received - 1)
            self._changed.notify_all()
        return examples

    def receive(self, ahead: int) -> None:
        """Receive a batch, and wait until so many are ahead, or all were made."""
        with self._changed:
            count = min(BATCHES, self._received + 1 + ahead)
            assert self._changed.wait_for(lambda: self._made >= count, PATIENCE)
            self._received += 1


Shape = Callable[[Pipeline[Any], int], Pipeline[Any]]

SHAPES: dict[str, Shape] = {
    "prepare": lambda batches, workers: batches.prepare(same, workers=workers),
    "map_batches": lambda batches, workers: batches.map_batches(same, workers=workers),
    "tasks": lambda batches, workers: batches.prepare(same_in_a_task, workers=workers),
    "unordered": lambda batches, workers: batches.prepare(same, workers=workers, ordered=False),
    "flat": lambda batches, workers: batches.flat(lambda batch: [batch], workers=workers),
    "shuffled before": lambda batches, workers: batches.map_batches(same, workers=workers),
    "to rows": lambda batches, workers: (
        batches.map_batches(same, workers=workers).unbatch().batch(SIZE, collate=list)
    ),
}


async def most_ahead(world: World, made: Made, pipeline: Pipeline[Any], ahead: int) -> int:
    """The most batches that were ahead in a run whose loop waits for that many each time."""
    if isinstance(world, ThreadWorld):
        for _ in pipeline:
            made.receive(ahead)
    else:
        async for _ in pipeline:
            await anyio.to_thread.run_sync(made.receive, ahead)
    return made.most_ahead


class TestBatches:
    @pytest.mark.parametrize("workers", [1, 3])
    @pytest.mark.parametrize("shape", SHAPES)
    async def test_each_worker_makes_one_and_two_are_ahead(
        self, world: World, shape: str, workers: int
    ) -> None:
        made = Made()
        source: Any = numbers(SIZE * BATCHES, seed=1)
        if shape == "shuffled before":
            source = source.shuffle(7)
        batches = source.batch(SIZE, collate=made.collate)
        pipeline = SHAPES[shape](batches, workers)
        assert await most_ahead(world, made, pipeline, workers + 1) <= workers + 2

    async def test_one_worker_makes_one_while_another_is_ready(self, world: World) -> None:
        made = Made()
        batches = numbers(SIZE * BATCHES).batch(SIZE, collate=made.collate)
        pipeline = batches.map_batches(same, workers=1)
        assert await most_ahead(world, made, pipeline, 2) <= 2

    @pytest.mark.slow
    def test_one_process_is_at_most_three_ahead(self) -> None:
        made = Made()
        batches = numbers(SIZE * BATCHES).batch(SIZE, collate=made.collate)
        for _ in batches.map_batches(same, workers=1, where="process"):
            made.receive(2)
        assert made.most_ahead <= 3

    @pytest.mark.parametrize("buffer_size", [1, 2, 5])
    async def test_prefetch_has_as_many_ready_as_its_argument(
        self, world: World, buffer_size: int
    ) -> None:
        made = Made()
        batches = numbers(SIZE * BATCHES).batch(SIZE, collate=made.collate)
        pipeline = batches.prefetch(buffer_size)
        assert await most_ahead(world, made, pipeline, buffer_size) <= buffer_size + 1

    async def test_an_option_of_the_user_holds(self, world: World) -> None:
        made = Made()
        batches = numbers(SIZE * BATCHES).batch(SIZE, collate=made.collate)
        pipeline = batches.prepare(same, workers=1, max_in_flight=3, buffer_size=5)
        assert await most_ahead(world, made, pipeline, 5) <= 5 + 3


class Read:
    """A sequence that records which of its items were read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, at: int) -> int:
        self.read.append(at)
        return at


class TestResume:
    """A batch that is made again is the work of all its examples, so a resume makes none in vain.

    Marks of batches are as close as those of examples would be.
    """

    SHAPES: ClassVar[dict[str, Callable[[Pipeline[Any]], Pipeline[Any]]]] = {
        "map_batches": lambda batches: batches.map_batches(same, workers=1),
        "several workers": lambda batches: batches.map_batches(same, workers=3),
        "prepare before": lambda batches: batches.map_batches(same, workers=2),
        "prefetch": lambda batches: batches.prefetch(2),
        "twice": lambda batches: batches.map_batches(same, workers=2).map_batches(same, workers=2),
        "unbatch": lambda batches: batches.unbatch().batch(SIZE, collate=list),
        "map_batches, unbatch": lambda batches: (
            batches.map_batches(same, workers=2).unbatch().batch(SIZE, collate=list)
        ),
    }

    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("count", [1, 2, 57, 300])
    def test_nothing_of_earlier_batches_is_read(self, shape: str, count: int) -> None:
        def pipeline(source: Read) -> Pipeline[Any]:
            rows: Any = items(source, seed=1)
            if shape == "prepare before":
                rows = rows.prepare(same, workers=2)
            return self.SHAPES[shape](rows.batch(SIZE, collate=list))

        with pipeline(Read()).epochs(1) as epochs:
            batches = iter(next(epochs))
            for _ in range(count):
                next(batches)
            state = epochs.state_dict()
            expected = next(batches)
        source = Read()
        with pipeline(source).epochs(1, resume=state) as epochs:
            assert next(iter(next(epochs))) == expected
        # `unbatch` takes its next batch only when it needs it, so the last one may come again, and
        # up to 32 examples of those before it: not each tiny batch has a mark there.
        passed = SIZE * count - (SIZE + 32 if "unbatch" in shape else 0)
        assert min(source.read) >= passed


class TestElements:
    """What an element behind each stage is, and how many of them may wait there."""

    def sizes(self, pipeline: Any) -> ElementSizes:
        pipeline = checked(pipeline)
        return ElementSizes(pipeline.source, pipeline.stages)

    @pytest.mark.parametrize(
        ("pipeline", "element", "ahead"),
        [
            (numbers(9).prepare(same), Element(), 64),
            (numbers(9).prepare(same).batch(20), Element(), 64),
            (numbers(9).prepare(same).batch(128), Element(), 256),
            (numbers(9).prepare(same).batch(128).batch(4), Element(), 1024),
            # Overlapping windows share their examples.
            (numbers(9).prepare(same).window(100).batch(50), Element(), 199),
            (numbers(9).prepare(same).window(10, 10).batch(50), Element(), 1000),
            # A stage whose elements a later one takes apart makes batches.
            (numbers(9).prepare(same).unbatch().batch(128), Element(is_batch=True), 1),
            (numbers(9).prepare(same).prefetch(2).unbatch(), Element(is_batch=True), 1),
            (numbers(9).prepare(same).batch(5).unbatch().batch(70), Element(), 140),
        ],
    )
    def test_of_the_first_stage(self, pipeline: Any, element: Element, ahead: int) -> None:
        sizes = self.sizes(pipeline)
        assert (sizes.behind(0), sizes.buffer_size(0)) == (element, ahead)

    @pytest.mark.parametrize(
        ("pipeline", "element", "ahead"),
        [
            (numbers(9).batch(128).prepare(same), Element(128, 128, True), 1),
            (numbers(9).map_batches(same, 128), Element(128, 128, True), 1),
            (numbers(9).batch(128).batch(4).prepare(same), Element(512, 512, True), 1),
            (numbers(9).batch(128).prepare(same).batch(4), Element(128, 128, True), 4),
            # As many as make one batch of the user's.
            (numbers(9).batch(8).prepare(same).unbatch().batch(128), Element(8, 8, True), 16),
            (numbers(9).batch(128).prepare(same).unbatch().batch(8), Element(128, 128, True), 1),
            (numbers(9).batch(128).unbatch().prepare(same), Element(), 64),
            (numbers(9).bucket([4], 32).prepare(same), Element(is_batch=True), 1),
            (arrays(np.arange(9)).window(10).prepare(same), Element(10, 1), 7),
            (arrays(np.arange(9)).window(100, 7).prepare(same), Element(100, 7), 2),
            (numbers(9).batch(4).shuffle(3).skip(1).flat(list), Element(4, 4, True), 1),
        ],
    )
    def test_of_the_last_workers(self, pipeline: Any, element: Element, ahead: int) -> None:
        sizes = self.sizes(pipeline)
        at = max(
            at
            for at, stage in enumerate(checked(pipeline).stages)
            if stage.worker_function() is not None
        )
        assert (sizes.behind(at), sizes.buffer_size(at)) == (element, ahead)

    def test_of_a_source_of_batches(self) -> None:
        cached = numbers(9).batch(3).cache()
        sizes = self.sizes(cached.prepare(same))
        assert sizes.before(0) == sizes.behind(0) == Element(is_batch=True)

    @pytest.mark.parametrize(
        ("item_size", "workers", "expected"),
        [(1, 4, 64), (10, 4, 4), (3, 4, 20), (17, 4, 5), (2**62, 1, 2)],
    )
    def test_in_flight(self, item_size: int, workers: int, expected: int) -> None:
        assert DefaultInFlight.of(16, item_size).items(workers) == expected
