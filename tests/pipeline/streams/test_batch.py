"""Batches: what is in them, in which order, who made them, and how it all ends."""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import AsyncIterator, Callable, Iterator
from io import StringIO
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import InvalidArgumentError, OutOfRangeError, QueueClosedError, QueueState, sync
from aioqueue.inputs import items
from aioqueue.pipeline.batches.collation import Collator
from aioqueue.pipeline.stream import AsyncBatchStream, BatchStream
from aioqueue.pipeline.streams.batch import batch, shuffle_batch
from aioqueue.sources.kinds.sequences import numbers
from aioqueue.workers.statistics import BatchStatistics
from tests.kit.pipelines import (
    StreamEndedError,
    coordinated,
    failures_of,
    joined,
    rest,
    rest_until_failure,
    take,
)
from tests.kit.worlds import TaskWorld, ThreadWorld, World

Pair = namedtuple("Pair", ["image", "label"])
NUMERIC = "?bBhHiIqQefdFD"
"""Codes of the numeric dtypes."""


async def counting(n: int) -> AsyncIterator[int]:
    for number in range(n):
        yield number


def filled(queue: Any, n: int) -> Any:
    queue.sync.enqueue_many(range(n))
    queue.close()
    return queue


SOURCES: dict[str, Callable[[int], Any]] = {
    "range": range,
    "iterator": lambda n: iter(range(n)),
    "async generator": counting,
    "source": lambda n: numbers(n, epochs=1),
    "object queue": lambda n: filled(aioqueue.FIFOQueue(n), n),
    "typed queue": lambda n: filled(aioqueue.FIFOQueue(n, "int64", ()), n),
    "queue without shapes": lambda n: filled(aioqueue.FIFOQueue(n, "int64"), n),
    "blocking queue": lambda n: filled(sync.FIFOQueue(n), n),
}


class TestBatch:
    @pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
    async def test_keeps_the_order_of_any_source(
        self, world: World, source: Callable[[int], Any]
    ) -> None:
        async with coordinated(world) as coord:
            batches = await rest(batch(source(10), 4, coord=coord))
        assert [taken.tolist() for taken in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert all(taken.dtype == np.int64 for taken in batches)

    async def test_a_queue_that_gives_batches_is_read_as_it_is(self, world: World) -> None:
        queue = aioqueue.PaddingFIFOQueue(10, "int64", [(None,)])
        queue.sync.enqueue_many([[1], [2, 3]])
        queue.close()
        async with coordinated(world) as coord:
            stream = batch(queue, 4, coord=coord)
            assert stream.queue.sync is queue.sync
            await joined(coord)  # it has started no worker
            (made,) = await rest(stream)
        assert made.tolist() == [[1, 0], [2, 3]]

    async def test_closing_a_stream_leaves_the_queue_of_others_alone(self, world: World) -> None:
        queue = aioqueue.FIFOQueue(10)
        async with coordinated(world) as coord:
            batch(queue, 4, coord=coord).close()
            batch(queue, 4, coord=coord, capacity=3).close()
        assert queue.state is QueueState.OPEN

    async def test_a_priority_queue_keeps_its_order(self, world: World) -> None:
        queue = aioqueue.PriorityQueue(10, "int64", [()])
        for number in (3, 1, 2):
            queue.enqueue_nowait((number, 10 * number))
        queue.close()
        async with coordinated(world) as coord:
            (priorities, values), last = await rest(batch(queue, 2, coord=coord))
        assert (priorities.tolist(), values.tolist()) == ([1, 2], [10, 20])
        assert last[1].tolist() == [30]

    async def test_a_whole_final_batch_or_none(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = batch(range(10), 4, coord=coord, allow_smaller_final_batch=False)
            assert [len(taken) for taken in await rest(stream)] == [4, 4]
            assert stream.statistics() == BatchStatistics(batches=2, examples=8, waiting=2)

    async def test_without_examples_there_are_no_batches(self, world: World) -> None:
        async with coordinated(world) as coord:
            assert await rest(batch([], 4, coord=coord)) == []

    async def test_every_example_comes_once_from_many_workers(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = batch(range(500), 7, coord=coord, function=lambda n: n * n, workers=5)
            squares = np.concatenate(await rest(stream))
            assert stream.runner.statistics().prepared == 500
        assert sorted(squares.tolist()) == [n * n for n in range(500)]

    async def test_coroutine_functions_and_order(self, world: World) -> None:
        async def square(n: int) -> int:
            return n * n

        async with coordinated(world) as coord:
            stream = batch(range(50), 8, coord=coord, function=square, workers=3, ordered=True)
            squares = np.concatenate(await rest(stream))
        assert squares.tolist() == [n * n for n in range(50)]

    async def test_several_consumers_share_the_batches(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = batch(range(200), 5, coord=coord, capacity=5)
            others = [world.spawn(rest, stream) for _ in range(3)]
            taken = await rest(stream)
            for other in others:
                taken += await other.result()
        assert sorted(np.concatenate(taken).tolist()) == list(range(200))

    async def test_max_wait_takes_what_has_come(self, world: World) -> None:
        queue = aioqueue.FIFOQueue(10)
        async with coordinated(world) as coord:
            stream = batch(queue, 4, coord=coord, max_wait=0)
            queue.sync.enqueue_many([1, 2, 3])
            assert (await take(stream)).tolist() == [1, 2, 3]
            queue.sync.enqueue_many([4, 5, 6, 7, 8])
            assert (await take(stream)).tolist() == [4, 5, 6, 7]
            queue.close()
            assert [taken.tolist() for taken in await rest(stream)] == [[8]]

    async def test_either_face_of_a_stream(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = batch(range(8), 4, coord=coord)
            kind = BatchStream if isinstance(world, ThreadWorld) else AsyncBatchStream
            assert isinstance(stream, kind)
            assert isinstance(stream.sync, BatchStream)
            assert isinstance(stream.aio, AsyncBatchStream)
            await rest(stream)
            with pytest.raises(StopIteration):
                next(stream.sync)

    async def test_streams_feed_streams(self, world: World) -> None:
        async with coordinated(world) as coord:
            pairs = batch(range(12), 2, coord=coord)
            stacked = await rest(batch(pairs, 3, coord=coord))
        assert [taken.tolist() for taken in stacked] == [
            [[0, 1], [2, 3], [4, 5]],
            [[6, 7], [8, 9], [10, 11]],
        ]

    async def test_its_repr_names_size_and_queue(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = batch([], 4, coord=coord, name="digits")
            assert stream.name == "digits"
            assert "BatchStream of 4 examples from <aioqueue." in repr(stream)
            assert "'digits' [objects]" in repr(stream)


class TestExamples:
    """What a batch looks like follows from the first example."""

    async def batched(self, world: World, *examples: Any, **options: Any) -> Any:
        async with coordinated(world) as coord:
            (made,) = await rest(batch(examples, len(examples), coord=coord, **options))
        return made

    async def test_tuples(self, world: World) -> None:
        images, labels = await self.batched(world, (np.zeros((2, 3), "f4"), 1), ([[1] * 3] * 2, 2))
        assert (images.dtype, images.shape) == (np.float32, (2, 2, 3))
        assert (labels.dtype, labels.tolist()) == (np.int64, [1, 2])

    async def test_named_tuples_and_dicts_keep_their_names(self, world: World) -> None:
        made = await self.batched(world, Pair([0.5, 1], 1), Pair(np.ones(2, "f4"), 2))
        assert type(made) is Pair
        assert made.image.dtype == np.float64
        assert made.label.tolist() == [1, 2]
        made = await self.batched(world, {"x": 1.5, "y": "a"}, {"y": "bc", "x": 2})
        assert made["x"].tolist() == [1.5, 2]
        assert (made["y"].dtype, made["y"].tolist()) == (object, ["a", "bc"])

    async def test_lists_are_arrays_and_objects_are_kept_on_request(self, world: World) -> None:
        assert (await self.batched(world, [1, 2], [3, 4])).tolist() == [[1, 2], [3, 4]]
        thing, other = object(), {1: 2}
        made = await self.batched(world, (1, thing), (2, other), objects=["1"])
        assert made[1].tolist() == [thing, other]
        assert (await self.batched(world, np.array(["a", "b"]), ["c", "d"])).tolist() == [
            ["a", "b"],
            ["c", "d"],
        ]

    async def test_scalars_of_any_kind(self, world: World) -> None:
        for first, second, dtype in (
            (True, False, np.bool_),
            (1, np.int8(2), np.int64),
            (1.0, 2, np.float64),
            (np.float32(1), 2.5, np.float32),
            (np.uint8(1), np.uint8(2), np.uint8),
            (1j, 2.0, np.complex128),
            (np.datetime64("2024-01-01"), np.datetime64("2024-01-02"), "datetime64[D]"),
        ):
            made = await self.batched(world, first, second)
            assert made.dtype == dtype
            assert made.tolist() == [first, second]

    async def test_dynamic_padding(self, world: World) -> None:
        made, sizes = await self.batched(
            world, (np.ones((1, 2)), 1), (np.ones((2, 1)), 2), dynamic_pad=True
        )
        assert made.tolist() == [[[1, 1], [0, 0]], [[1, 0], [1, 0]]]
        assert sizes.tolist() == [1, 2]

    async def test_batches_are_private_and_writable(self, world: World) -> None:
        array = np.zeros(2)
        made = await self.batched(world, array)
        made += 1
        assert array.tolist() == [0, 0]

    @pytest.mark.parametrize(
        ("examples", "message"),
        [
            ([np.zeros(2), np.zeros(3)], "got a value of shape [3]; the first example had float64"),
            ([np.zeros(2), 5], "got a value of shape []"),
            ([1, 2.5], "got 2.5, of dtype float64; the first example had int64[]"),
            ([(1, 2), (1, 2, 3)], "got a tuple of 3; the first one was a tuple of 2 components"),
            ([(1, 2), 3], "got an int; the first one was a tuple of 2"),
            ([{"x": 1}, {"y": 1}], "got ['y']; the first one had the keys ['x']"),
            ([{"x": 1}, 1], "got 1; the first one had the keys"),
            ([{1: 2}], "strings as names"),
            ([()], "at least one component"),
            ([np.zeros(1), "a"], "component 0: got a value of shape []"),
            ([np.ma.array([1], mask=True)], "component 0: got a masked array"),
            ([[np.ma.array([1], mask=True)]], "component 0: got a masked array"),
            ([[1, 2], [1, np.ma.masked]], "component 0: got a masked array"),
            ([1.0, np.ma.masked], "component 0: got a masked array"),
            ([np.zeros(1), [np.ma.array(1.0, mask=True)]], "component 0: got a masked array"),
            (
                [np.int8(1), 300],
                "component 0: got 300, outside -128 to 127; the first example had int8[",
            ),
            (
                [np.array([1, 2], "int8"), [300, 1]],
                "got [300, 1], outside -128 to 127; the first example had int8[",
            ),
            (
                [np.uint8(1), -1],
                "component 0: got -1, outside 0 to 255; the first example had uint8[",
            ),
            ([np.float32(1), 1e39], "component 0: got 1e+39, outside -3.4028"),
            ([np.array([1], "float32"), [1e39]], "component 0: got [1e+39], outside -3.4028"),
            ([np.complex64(1), 1e300j], "component 0: got 1e+300j, outside -3.4028"),
            ([[[1], [1, 2]]], "component 0: got [[1], [1, 2]], which NumPy cannot make an"),
        ],
    )
    async def test_what_does_not_fit_is_explained(
        self, world: World, examples: list[Any], message: str
    ) -> None:
        with pytest.raises(ExceptionGroup) as raised:
            await self.batched(world, *examples)
        assert len(raised.value.exceptions) == 1
        assert isinstance(raised.value.exceptions[0], InvalidArgumentError)
        assert message in str(raised.value.exceptions[0])

    @pytest.mark.slow(every=7)
    @pytest.mark.parametrize("pad", [False, True])
    @pytest.mark.parametrize("code", NUMERIC)
    def test_values_fit_or_not_as_in_a_queue(self, code: str, pad: bool) -> None:
        """Whatever the first example says: later ones go by the rule of a queue with its dtype."""
        ones = [np.dtype(each).type(1) for each in NUMERIC]
        first = np.dtype(code).type(1)
        values: list[Any] = [
            *(True, 1, -1, 5, 300, -300, 2**31, 2**63, 2**64, 2**70, 10**39, 10**400),
            *(0.5, 70_000.0, 1e39, float("inf"), -float("inf"), 1e300j, 1 + 1j, complex("inf")),
            *ones,
            *map(np.asarray, ones),
            np.int64(300),
            np.float64(1e39),
            np.uint64(2**63),
            "a",
            b"a",
            None,
            np.datetime64("2024-01-01"),
        ]
        for value in values:
            for scalar, given in ((True, value), (False, [value]), (False, [first, value])):
                start = first if scalar else np.asarray([first] * len(given))
                queue = sync.FIFOQueue(1, start.dtype, np.shape(start))
                with np.errstate(all="ignore"):
                    try:
                        queue.enqueue(given)
                        expected = queue.dequeue()
                    except InvalidArgumentError:
                        expected = None
                    try:
                        made = Collator(pad=pad)([start, given])[1]
                    except InvalidArgumentError:
                        made = None
                assert (made is None) == (expected is None), (start, given)
                assert made is None or np.array_equal(made, expected), (start, given)

    @pytest.mark.parametrize("code", NUMERIC)
    def test_numbers_of_one_type_keep_every_bit(self, code: str) -> None:
        """They take a shorter way; beside an array of no dimension, they take that of all."""
        dtype = np.dtype(code)
        random = np.random.default_rng(7)
        given = np.frombuffer(random.bytes(50 * dtype.itemsize), dtype)
        if code == "?":
            given = random.random(50) < 0.5
        values = list(given)  # scalars: not-a-numbers with payloads, and subnormal ones, among them
        made, expected = Collator()(values), Collator()([values[0], np.array(values[1]), *values])
        assert made.dtype == expected.dtype == dtype
        assert np.array_equal(made[2:], expected[4:], equal_nan=True)
        assert [value.tobytes() for value in made] == [value.tobytes() for value in values]

    @pytest.mark.parametrize(
        ("values", "dtype"),
        [
            ([1, -(2**63), 2**63 - 1], np.int64),
            ([0.5, float("nan"), -0.0], np.float64),
            ([1j, complex("nan+1j")], np.complex128),
            ([True, False], np.bool_),
        ],
    )
    def test_numbers_of_python_are_kept(self, values: list[Any], dtype: Any) -> None:
        made = Collator()(values)
        assert made.dtype == dtype
        assert list(map(repr, made.tolist())) == list(map(repr, values))

    def test_numbers_too_large_are_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="18446744073709551616"):
            Collator()([1, 2**64])

    async def test_typed_examples_are_refused_where_they_are_made(self, world: World) -> None:
        with pytest.raises(ExceptionGroup) as raised:
            async with coordinated(world) as coord:
                stream = batch(
                    [[1, 2], [3]], 1, coord=coord, dtypes="int64", shapes=(2,), name="pairs"
                )
                assert (await take(stream)).tolist() == [[1, 2]]
                assert await rest(stream) == []
        (failure,) = raised.value.exceptions
        assert "of shape [1]; expected shape [2]" in str(failure)
        assert any("worker aioqueue-pairs" in note for note in failure.__notes__), failure.__notes__

    async def test_typed_examples_have_names_and_padding(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = batch(
                ({"x": [1] * n} for n in (1, 3)),
                2,
                coord=coord,
                dtypes="int32",
                shapes=[(None,)],
                names=["x"],
            )
            assert isinstance(stream.queue.sync, sync.PaddingFIFOQueue)
            (made,) = await rest(stream)
        assert made["x"].dtype == np.int32
        assert made["x"].tolist() == [[1, 0, 0], [1, 1, 1]]


class TestEnding:
    async def test_a_failing_source_ends_the_stream_and_is_reported(self, world: World) -> None:
        def broken() -> Iterator[int]:
            yield from range(5)
            raise ValueError("the disk is gone")

        with pytest.raises(ExceptionGroup) as raised:
            async with coordinated(world) as coord:
                stream = batch(broken(), 2, coord=coord)
                taken = np.concatenate(await rest_until_failure(stream))
                assert taken.tolist() == [0, 1, 2, 3, 4]
                with pytest.raises(OutOfRangeError) as end:
                    stream.queue.dequeue_nowait()
        assert failures_of(raised.value) == ["ValueError: the disk is gone"]
        assert end.value.__cause__ is raised.value.exceptions[0]

    async def test_a_source_that_fails_at_a_queue_of_its_own_is_no_exception(
        self, world: World
    ) -> None:
        log = aioqueue.FIFOQueue(5, name="log")
        log.close()

        def logging() -> Iterator[int]:
            yield 1
            log.enqueue_nowait("one has gone")

        with pytest.raises(ExceptionGroup) as raised:
            async with coordinated(world) as coord:
                await rest(batch(logging(), 2, coord=coord))
        assert isinstance(raised.value.exceptions[0], QueueClosedError)

    async def test_a_failing_function_is_reported(self, world: World) -> None:
        def prepare(number: int) -> int:
            if number == 5:
                raise ValueError("cannot be decoded")
            return number

        with pytest.raises(ExceptionGroup) as raised:
            async with coordinated(world) as coord:
                await rest(batch(range(100), 2, coord=coord, function=prepare, workers=1))
        assert failures_of(raised.value) == ["ValueError: cannot be decoded"]

    async def test_the_failure_that_closed_a_queue_is_passed_on(self, world: World) -> None:
        failure = ValueError("the producer gave up")
        queue = aioqueue.FIFOQueue(10)
        queue.enqueue_nowait(1)
        queue.close(cause=failure)
        async with coordinated(world) as coord:
            stream = batch(queue, 2, coord=coord, capacity=4)
            assert [taken.tolist() for taken in await rest_until_failure(stream)] == [[1]]
            await joined(coord)
            with pytest.raises(OutOfRangeError) as end:
                stream.queue.dequeue_nowait()
            assert end.value.__cause__ is failure

    @pytest.mark.parametrize("function", [None, lambda number: number], ids=["plain", "prepared"])
    async def test_closing_a_stream_ends_its_workers(
        self, world: World, function: Callable[[int], int] | None
    ) -> None:
        async with coordinated(world) as coord:
            stream = batch(iter(int, 1), 2, coord=coord, function=function)
            await take(stream)
            stream.close()
            stream.close()
            await joined(coord)  # without a stop

    async def test_an_open_file_stays_its_owners(self, world: World) -> None:
        with StringIO("1\n2\n3\n") as file:
            async with coordinated(world) as coord:
                (lines,) = await rest(batch(file, 3, coord=coord))
            assert list(lines) == ["1\n", "2\n", "3\n"]
            assert not file.closed

    async def test_a_generator_is_closed_where_it_was_left(self, world: World) -> None:
        closed = []

        def endless() -> Iterator[int]:
            try:
                while True:
                    yield 1
            finally:
                closed.append("generator")

        async def endless_async() -> AsyncIterator[int]:
            try:
                while True:
                    yield 1
            finally:
                closed.append("async generator")

        async with coordinated(world) as coord:
            await take(batch(endless(), 2, coord=coord))
            await take(batch(endless(), 2, coord=coord, function=lambda number: number))
            await take(batch(endless_async(), 2, coord=coord))
        assert sorted(closed) == ["async generator", "generator", "generator"]

    async def test_aclose_is_close(self, task_world: TaskWorld) -> None:
        async with aioqueue.Coordinator() as coord:
            stream = batch(iter(int, 1), 2, coord=coord)
            await stream.aclose()
            await coord.join()
            assert stream.queue.is_closed()

    @pytest.mark.parametrize("capacity", [None, 4], ids=["direct", "moved"])
    async def test_a_stop_waits_for_no_element_that_never_comes(
        self, world: World, capacity: int | None
    ) -> None:
        async with coordinated(world, stop_grace_period=5) as coord:
            batch(aioqueue.FIFOQueue(10), 2, coord=coord, capacity=capacity)
            shuffle_batch(aioqueue.FIFOQueue(10), 2, coord=coord, min_after_dequeue=0)
            batch(iter(int, 1), 2, coord=coord)

    async def test_after_a_stop_what_is_inside_can_be_taken(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = batch(iter(int, 1), 2, coord=coord, capacity=6)
            await world.until(lambda: stream.queue.size() == 6)
            coord.request_stop()
            assert [len(taken) for taken in await rest(stream)] == [2, 2, 2]

    async def test_a_cancelled_wait_loses_nothing(self, task_world: TaskWorld) -> None:
        queue = aioqueue.FIFOQueue(10)
        async with aioqueue.Coordinator() as coord:
            stream = batch(queue, 3, coord=coord)
            waiting = task_world.spawn(take, stream)
            await task_world.in_line(waiting, queue.dequeue)
            await queue.enqueue_many([1, 2])
            waiting.cancel()
            assert await waiting.was_cancelled()
            queue.close()
            assert [taken.tolist() for taken in await rest(stream)] == [[1, 2]]

    async def test_the_end_stays_the_end(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = batch([1], 1, coord=coord)
            await rest(stream)
            for _ in range(2):
                with pytest.raises(StreamEndedError):
                    await take(stream)


class TestShuffleBatch:
    async def shuffled(self, world: World, source: Any = None, **options: Any) -> list[int]:
        async with coordinated(world) as coord:
            stream = shuffle_batch(
                range(100) if source is None else source,
                8,
                coord=coord,
                **{"min_after_dequeue": 20, **options},
            )
            return list(map(int, np.concatenate(await rest(stream))))

    async def test_every_example_comes_once_and_not_in_order(self, world: World) -> None:
        taken = await self.shuffled(world)
        assert taken != sorted(taken)
        assert sorted(taken) == list(range(100))

    async def test_the_first_ones_come_from_those_that_must_be_there(self, world: World) -> None:
        taken = await self.shuffled(world, range(500), min_after_dequeue=300, capacity=310)
        assert all(number <= 300 + place for place, number in enumerate(taken))
        # That all eight are among the first 20 of 301 happens once in a billion runs.
        assert any(number >= 20 for number in taken[:8])

    async def test_a_queue_is_moved_over(self, world: World) -> None:
        for queue in (
            aioqueue.FIFOQueue(100, "int32", ()),
            aioqueue.FIFOQueue(100),
            aioqueue.FIFOQueue(100, "int32"),
        ):
            taken = await self.shuffled(world, filled(queue, 100))
            assert sorted(taken) == list(range(100))

    @pytest.mark.slow(every=3)
    async def test_the_same_seed_gives_the_same_batches_at_any_speed(self, world: World) -> None:
        pause = threading.Event()

        def augment(number: int, rng: np.random.Generator) -> int:
            pause.wait(rng.random() / 1000)  # so that workers overtake each other
            return number + 1000 * int(rng.integers(1000))

        runs = [
            await self.shuffled(
                world,
                numbers(100, epochs=1, seed=3),
                function=augment,
                workers=workers,
                ordered=True,
                seed=7,
            )
            for workers in (1, 2, 7)
        ]
        assert runs[0] == runs[1] == runs[2]
        assert {number % 1000 for number in runs[0]} == set(range(100))

    @pytest.mark.parametrize("seed", range(5))
    async def test_the_last_batch_does_not_depend_on_when_the_end_comes(
        self, world: World, seed: int
    ) -> None:
        """Its worker waits for it already, or makes it of what is left of a closed queue."""
        runs: list[list[list[int]]] = []
        for end_comes_late in (True, False):
            may_end = threading.Event()

            def source(may_end: threading.Event = may_end) -> Iterator[int]:
                yield from range(23)
                may_end.wait(60)

            async with coordinated(world) as coord:
                stream = shuffle_batch(
                    source(), 10, coord=coord, min_after_dequeue=2, capacity=3, seed=seed
                )
                examples: Any = stream.examples
                if end_comes_late:
                    taken = [await take(stream), await take(stream)]
                    await world.until(lambda: examples.statistics().waiting_dequeues == 1)  # noqa: B023
                    may_end.set()
                else:
                    may_end.set()
                    await world.until(examples.is_closed)
                    taken = []
                taken += await rest(stream)
                runs.append([batch.tolist() for batch in taken])
        assert runs[0] == runs[1]
        assert [len(batch) for batch in runs[0]] == [10, 10, 3]

    async def test_batches_are_made_ahead(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = shuffle_batch(
                range(1000), 5, coord=coord, min_after_dequeue=10, capacity=30, seed=1
            )
            await world.until(lambda: stream.queue.statistics().waiting_enqueues == 1)
            assert stream.queue.size() == stream.queue.capacity == 4
            await take(stream)
            counts = stream.statistics()
            assert (counts.batches, counts.examples) == (1, 5)
            assert stream.examples.capacity == 11
            assert "of 5 examples from <aioqueue.RandomShuffleQueue" in repr(stream)
            stream.close()
            await joined(coord)

    async def test_a_whole_final_batch_or_none(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = shuffle_batch(
                range(10), 4, coord=coord, min_after_dequeue=3, allow_smaller_final_batch=False
            )
            assert [len(taken) for taken in await rest(stream)] == [4, 4]
            assert stream.statistics() == BatchStatistics(batches=2, examples=8, waiting=2)

    async def test_a_failing_source_is_the_cause(self, world: World) -> None:
        def broken() -> Iterator[int]:
            yield from range(30)
            raise ValueError("the disk is gone")

        with pytest.raises(ExceptionGroup) as raised:
            async with coordinated(world) as coord:
                stream = shuffle_batch(broken(), 10, coord=coord, min_after_dequeue=5)
                await rest_until_failure(stream)
                with pytest.raises(OutOfRangeError) as end:
                    stream.queue.dequeue_nowait()
        assert failures_of(raised.value) == ["ValueError: the disk is gone"]
        assert end.value.__cause__ is raised.value.exceptions[0]

    async def test_typed(self, world: World) -> None:
        async with coordinated(world) as coord:
            stream = shuffle_batch(
                range(10), 5, coord=coord, min_after_dequeue=2, dtypes="int16", shapes=()
            )
            taken = await rest(stream)
        assert [made.dtype for made in taken] == [np.int16, np.int16]
        assert sorted(np.concatenate(taken).tolist()) == list(range(10))


COORD = object()


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (batch, {"batch_size": 0}, "batch_size: got 0; expected an int >= 1"),
        (batch, {"batch_size": True}, "batch_size: got True"),
        (batch, {"coord": None}, "coord: got None; expected an aioqueue.Coordinator"),
        (batch, {"source": 5}, "source: got 5; expected an iterable"),
        (batch, {"source": "abc"}, "source: got 'abc'"),
        (batch, {"capacity": 0}, "capacity: got 0"),
        (batch, {"max_wait": -1}, "max_wait: got -1"),
        (batch, {"max_wait": "1"}, "max_wait: got '1'"),
        (batch, {"max_wait": 1, "allow_smaller_final_batch": False}, "max_wait: got 1 with"),
        (batch, {"allow_smaller_final_batch": 1}, "allow_smaller_final_batch: got 1"),
        (batch, {"dynamic_pad": "yes"}, "dynamic_pad: got 'yes'"),
        (batch, {"dtypes": "int64"}, "shapes: got None, with dtypes"),
        (batch, {"shapes": ()}, "dtypes: got None, with shapes"),
        (batch, {"names": ["x"]}, "dtypes: got None, with shapes or names"),
        (
            batch,
            {"dtypes": "int64", "shapes": (2,), "dynamic_pad": True},
            "dynamic_pad: got True with the shapes (2,)",
        ),
        (batch, {"workers": 3}, "workers: got without a function"),
        (batch, {"function": 5}, "function: got 5"),
        (shuffle_batch, {"min_after_dequeue": -1}, "min_after_dequeue: got -1"),
        (
            shuffle_batch,
            {"capacity": 5, "min_after_dequeue": 5},
            "capacity: got 5; expected an int >= 6",
        ),
        (shuffle_batch, {"seed": "x"}, "seed: got 'x'"),
        (shuffle_batch, {"dtypes": "int64"}, "shapes: got None, with dtypes"),
        (shuffle_batch, {"dtypes": "int64", "shapes": [(None,)]}, "expected fixed sizes"),
    ],
)
def test_wrong_arguments_are_named(
    make: Callable[..., Any], options: dict[str, Any], message: str
) -> None:
    with sync.Coordinator() as coord:
        given: dict[str, Any] = {"source": range(3), "batch_size": 2, "coord": coord}
        if make is shuffle_batch:
            given["min_after_dequeue"] = 0
        with pytest.raises(InvalidArgumentError) as raised:
            make(**{**given, **options})
    assert message in str(raised.value)


async def test_outside_of_the_block_nothing_is_started(task_world: TaskWorld) -> None:
    with pytest.raises(RuntimeError, match="the coordinator's block has not been entered"):
        batch(range(3), 2, coord=aioqueue.Coordinator())


@pytest.mark.parametrize("method", ["batch", "window"])
def test_the_objects_of_a_batch_are_those_of_its_description(method: str) -> None:
    wanted = ["meta"]
    pipeline = getattr(items([{"meta": (1, 2)}]), method)(1, objects=wanted)
    wanted.clear()  # a description does not change
    (batch,) = pipeline
    assert batch["meta"].dtype == object
    assert batch["meta"][0] == (1, 2)
