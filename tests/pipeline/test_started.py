"""`Pipeline.start`: workers in the coordinator of the user, and all epochs in one stream."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import InvalidArgumentError, sync
from aioqueue.inputs import AsyncBatchStream, BatchStream, from_iterable, numbers
from tests.kit.pipelines import coordinated, failures_of, joined, rest, rest_until_failure, take
from tests.kit.resuming import through_json
from tests.kit.worlds import ThreadWorld, World


def noisy(number: int, rng: np.random.Generator) -> float:
    return number + float(rng.random())


def squared(number: float) -> float:
    return number * number


def one_worker_stage() -> Any:
    return numbers(20, shuffle=True, seed=1).prepare(noisy, workers=2).batch(6)


def several_worker_stages() -> Any:
    source = numbers(20, shuffle=True, seed=1).prepare(noisy, workers=2).shuffle(5)
    return source.prepare(squared, workers=2).batch(3).prefetch(2)


def mixed_pipelines() -> Any:
    first, second = numbers(9, seed=1).prepare(noisy), numbers(6, seed=2).prepare(noisy)
    return first.mix(second, seed=3).prefetch(2).batch(4)


def batches_across_epochs() -> Any:
    return numbers(7, shuffle=True, seed=1).prepare(noisy).batch(3, across_epochs=True)


PIPELINES = {
    pipeline.__name__.replace("_", " "): pipeline
    for pipeline in (
        one_worker_stage,
        several_worker_stages,
        mixed_pipelines,
        batches_across_epochs,
    )
}
each_pipeline = pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)


def of_epochs(pipeline: Any, **options: Any) -> list[list[float]]:
    """The batches that a loop over three epochs gets, in a thread that has no event loop."""

    def loop() -> list[list[float]]:
        return [batch.tolist() for epoch in pipeline.epochs(3, **options) for batch in epoch]

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(loop).result()


async def started(world: World, pipeline: Any, **options: Any) -> list[list[float]]:
    """The batches that a stream gives."""
    async with coordinated(world) as coord:
        return [batch.tolist() for batch in await rest(pipeline.start(coord, **options))]


class TestElements:
    @each_pipeline
    async def test_are_those_of_all_epochs(self, world: World, make: Any) -> None:
        assert await started(world, make(), epochs=3) == of_epochs(make())

    async def test_of_one_epoch_unless_more_are_wanted(self, world: World) -> None:
        assert sum(map(len, await started(world, one_worker_stage()))) == 20
        assert await started(world, one_worker_stage(), epochs=0) == []

    async def test_without_end(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = one_worker_stage().start(coord, epochs=None)
            found = [(await take(stream)).tolist() for _ in range(12)]
        assert found == of_epochs(one_worker_stage())

    async def test_several_consumers_share_them(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = numbers(200, seed=1).prepare(squared).start(coord)
            others = [world.spawn(rest, stream) for _ in range(3)]
            found = await rest(stream)
            for other in others:
                found += await other.result()
        assert sorted(found) == [number * number for number in range(200)]

    async def test_of_an_async_iterable(self, world: World) -> None:
        if isinstance(world, ThreadWorld):
            pytest.skip("threads cannot iterate over it")

        async def counting() -> AsyncIterator[int]:
            for number in range(5):
                yield number

        async with coordinated(world) as coord:
            stream = from_iterable(counting).batch(2).start(coord)
            assert [batch.tolist() for batch in await rest(stream)] == [[0, 1], [2, 3], [4]]

    async def test_of_an_iterator_that_has_one_epoch(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = from_iterable(iter(range(3))).prefetch(2).start(coord, epochs=2)
            assert [await take(stream) for _ in range(3)] == [0, 1, 2]
            with pytest.raises(InvalidArgumentError, match="iterated over only once"):
                await take(stream)

    async def test_none_in_any_epoch(self, world: World) -> None:
        async with coordinated(world) as coord:
            nothing = numbers(4, seed=1).filter(lambda _: False).prefetch(1)
            assert await rest(nothing.start(coord, epochs=5)) == []
            stream = nothing.start(coord, epochs=None)
            with pytest.raises(RuntimeError, match="2 epochs in a row were empty"):
                await take(stream)


class TestStream:
    async def test_has_the_face_of_the_coordinator(self, world: World) -> None:
        kind = BatchStream if isinstance(world, ThreadWorld) else AsyncBatchStream
        async with coordinated(world) as coord:
            stream = one_worker_stage().start(coord)
            assert isinstance(stream, kind)
            await rest(stream)

    async def test_is_named_after_its_last_stage_with_workers(self, world: World) -> None:
        async with coordinated(world) as coord:
            assert one_worker_stage().start(coord).name == "noisy"
            assert several_worker_stages().start(coord).name == "prefetch"

    async def test_or_by_the_user(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = several_worker_stages().start(coord, epochs=None, name="train")
            await take(stream)
            names = {thread.name for thread in threading.enumerate()}
            assert stream.name == "train"
            assert {"aioqueue-noisy-0", "aioqueue-squared-0", "aioqueue-train-0"} <= names

    async def test_has_the_statistics_of_its_stages(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = several_worker_stages().start(coord)
            await rest(stream)
            found = [(one.stage, one.prepared) for one in stream.statistics()]
        assert found == [
            ("prepare noisy on 2 threads", 20),
            ("prepare squared on 2 threads", 20),
            ("prefetch 2", 7),
        ]
        assert stream.runner is not None
        assert stream.runner.statistics().prepared == 20
        assert stream.examples is None

    async def test_shows_what_it_is_made_of(self, world: World) -> None:
        async with coordinated(world) as coord:
            assert "of <aioqueue.inputs.Pipeline of" in repr(one_worker_stage().start(coord))


class TestPositions:
    @pytest.mark.slow("several worker stages", "mixed pipelines")
    @each_pipeline
    async def test_are_those_of_epochs(self, world: World, make: Any) -> None:
        whole = of_epochs(make())
        for count in range(len(whole) + 1):
            async with coordinated(world) as coord:
                stream = make().start(coord, epochs=3)
                assert [(await take(stream)).tolist() for _ in range(count)] == whole[:count]
                state = through_json(stream.state_dict())
            assert await started(world, make(), epochs=3, resume=state) == whole[count:]
            assert of_epochs(make(), resume=state) == whole[count:]

    async def test_of_a_loop_over_epochs(self, world: World) -> None:
        def begun() -> tuple[list[list[float]], Any]:
            with several_worker_stages().epochs(3) as epochs:
                first = next(epochs)
                return [next(first).tolist() for _ in range(4)], through_json(epochs.state_dict())

        with ThreadPoolExecutor(1) as pool:
            found, state = pool.submit(begun).result()
        found += await started(world, several_worker_stages(), epochs=3, resume=state)
        assert found == of_epochs(several_worker_stages())

    async def test_behind_the_end(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = one_worker_stage().start(coord, epochs=3)
            await rest(stream)
            state = through_json(stream.state_dict())
        assert await started(world, one_worker_stage(), epochs=3, resume=state) == []
        assert await started(world, one_worker_stage(), epochs=4, resume=state) != []
        async with coordinated(world) as coord:
            with pytest.raises(InvalidArgumentError, match="at most 2, where the stream ends"):
                one_worker_stage().start(coord, epochs=2, resume=state)

    async def test_are_loaded_before_the_first_batch(self, world: World) -> None:
        whole = of_epochs(several_worker_stages())
        async with coordinated(world) as coord:
            stream = several_worker_stages().start(coord, epochs=3)
            for _ in range(5):
                await take(stream)
            state = through_json(stream.state_dict())
            with pytest.raises(RuntimeError, match="after the first batch was taken"):
                stream.load_state_dict(state)
            other = several_worker_stages().start(coord, epochs=3)
            earlier = other.queue
            other.load_state_dict(state)
            assert earlier.is_closed()
            assert [batch.tolist() for batch in await rest(other)] == whole[5:]


class TestEnding:
    async def test_the_failure_of_a_worker_stops_the_coordinator(self, world: World) -> None:
        def fragile(number: int) -> int:
            if number == 9:
                raise ValueError("nine")
            return number

        with pytest.raises(ExceptionGroup) as raised:
            async with coordinated(world) as coord:
                pipeline = numbers(20).prepare(fragile, workers=1).prepare(squared, workers=1)
                stream = pipeline.start(coord)
                found = await rest_until_failure(stream)
                assert found == [number * number for number in range(len(found))]
                assert coord.should_stop()
        assert failures_of(raised.value) == ["ValueError: nine"]

    async def test_the_failure_of_another_worker_ends_the_stream(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = one_worker_stage().start(coord, epochs=None)
            await take(stream)
            coord.request_stop()
            await rest(stream)

    async def test_the_failure_of_a_later_stage_is_raised_where_it_runs(self, world: World) -> None:
        def shapes(number: int) -> Any:
            return np.zeros(number)

        async with coordinated(world) as coord:
            stream = numbers(4).prepare(shapes).batch(2).start(coord)
            with pytest.raises(InvalidArgumentError, match="got a value of shape"):
                await take(stream)

    async def test_after_a_stop_what_is_made_can_be_taken(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = numbers(10**6, seed=1).prepare(squared, buffer_size=6).start(coord)
            await world.until(lambda: stream.queue.size() == 6)
            coord.request_stop()
            assert len(await rest(stream)) >= 6

    @each_pipeline
    async def test_closing_a_stream_ends_its_workers(self, world: World, make: Any) -> None:
        async with coordinated(world) as coord:
            stream = make().start(coord, epochs=None)
            await take(stream)
            stream.close()
            stream.close()
            await joined(coord)  # without a stop, and without a failure
            await rest(stream)

    async def test_a_source_is_closed_where_it_was_left(self, world: World) -> None:
        closed = []

        def endless() -> Iterator[int]:
            try:
                while True:
                    yield 1
            finally:
                closed.append("generator")

        async with coordinated(world) as coord:
            await take(from_iterable(endless).prefetch(2).start(coord))
        assert closed == ["generator"]


class TestRefusing:
    @pytest.mark.parametrize(
        ("pipeline", "reason"),
        [
            (numbers(5), "no stage behind the source has workers"),
            (numbers(5).batch(2), "no stage behind the source has workers"),
            (
                numbers(5).prepare(squared).zip(numbers(5).prepare(squared)),
                "no stage behind zip has workers",
            ),
            (from_iterable(sync.FIFOQueue(3)).prefetch(2), "which takes from a queue"),
        ],
    )
    def test_what_cannot_be_started(self, pipeline: Any, reason: str) -> None:
        with sync.Coordinator() as coord, pytest.raises(InvalidArgumentError, match=reason):
            pipeline.start(coord)

    def test_wrong_arguments(self) -> None:
        with sync.Coordinator() as coord:
            with pytest.raises(InvalidArgumentError, match="coord: got 5"):
                one_worker_stage().start(5)
            with pytest.raises(InvalidArgumentError, match="epochs: got -1"):
                one_worker_stage().start(coord, epochs=-1)
            with pytest.raises(InvalidArgumentError, match="position: got"):
                one_worker_stage().start(coord, resume={})

    def test_a_coordinator_outside_of_its_block(self) -> None:
        with pytest.raises(RuntimeError, match="the coordinator's block has not been entered"):
            one_worker_stage().start(aioqueue.Coordinator())

    async def test_the_other_kind_of_loop(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = one_worker_stage().start(coord)
            await take(stream)
            if isinstance(world, ThreadWorld):
                return  # a thread without an event loop cannot await the other face
            with pytest.raises(TypeError, match="this stream was begun with `async for`"):
                next(stream.sync)
