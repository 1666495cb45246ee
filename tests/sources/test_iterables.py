"""Sources of whatever can be iterated, and pipelines that begin with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import anyio
import pytest

from aioqueue import InvalidArgumentError, sync
from aioqueue.inputs import Pipeline, from_iterable, mix, rng
from tests.kit.going import epochs_of, first, plain, results
from tests.kit.worlds import ThreadWorld, World


def tenfold(item: int) -> int:
    return 10 * item


class Streams:
    """Makes async generators of five numbers, and counts those that are open."""

    def __init__(self) -> None:
        self.open = 0

    async def __call__(self) -> AsyncIterator[int]:
        self.open += 1
        try:
            for number in range(5):
                await anyio.lowlevel.checkpoint()
                yield number
        finally:
            self.open -= 1


async def numbers_up_to_five() -> AsyncIterator[int]:
    for number in range(5):
        await anyio.lowlevel.checkpoint()
        yield number


class TestIterables:
    async def test_what_restarts_does_so_in_every_epoch(self, world: World) -> None:
        for blocking in (False, True):
            pipeline = from_iterable({3, 1, 2}, blocking=blocking).prepare(tenfold)
            found = await epochs_of(world, pipeline.epochs(2))
            assert [sorted(epoch) for epoch in found] == [[10, 20, 30]] * 2

    async def test_a_function_is_called_for_each_epoch(self, world: World) -> None:
        def counted() -> Iterator[int]:
            yield from range(3)

        def of_epoch(epoch: int) -> Iterator[int]:
            yield from range(epoch, 4)

        assert await epochs_of(world, Pipeline(from_iterable(counted)).epochs(2)) == [[0, 1, 2]] * 2
        shorter = from_iterable(of_epoch).prepare(tenfold)
        assert await epochs_of(world, shorter.epochs(2, start=2)) == [[20, 30], [30]]

    async def test_an_iterator_is_one_epoch(self, world: World) -> None:
        for pipeline in (
            Pipeline(from_iterable(n for n in range(3))),
            from_iterable(iter([0, 1, 2]), blocking=False).filter(lambda _: True),
        ):
            assert await results(world, pipeline) == [0, 1, 2]
            with pytest.raises(ExceptionGroup) as failure:
                await results(world, pipeline)
            (only,) = failure.value.exceptions
            assert isinstance(only, InvalidArgumentError)
            assert "can be iterated over only once, and was" in str(only)

    @pytest.mark.parametrize("as_stages", [0, 1, 2])
    async def test_the_epoch_of_an_iterator_is_whole_whatever_is_asked_for(
        self, world: World, as_stages: int
    ) -> None:
        """The next one is prepared ahead: it is not to fail there."""
        once = from_iterable(iter(range(10)))
        pipeline: Any = [
            Pipeline(once),
            once.prepare(tenfold).prefetch(2),
            from_iterable(()).mix(once.prepare(tenfold), seed=1).batch(100, across_epochs=True),
        ][as_stages]
        epochs = pipeline.epochs(2)
        if isinstance(world, ThreadWorld):
            found = [plain(value) for value in next(epochs)]
            with pytest.raises(InvalidArgumentError, match="only once, and was"):
                next(epochs)
        else:
            found = [plain(value) async for value in await anext(epochs)]
            with pytest.raises(InvalidArgumentError, match="only once, and was"):
                await anext(epochs)
        tens = list(range(0, 100, 10))
        assert found == [list(range(10)), tens, [tens]][as_stages]

    async def test_a_mixture_of_iterators_is_one_epoch(self, world: World) -> None:
        mixture = mix([from_iterable(iter("ab")), from_iterable(iter("cd"))], seed=1)
        epochs: Any = mixture.prepare(str.upper).epochs(None)
        if isinstance(world, ThreadWorld):
            assert sorted(next(epochs)) == ["A", "B", "C", "D"]
            with pytest.raises(InvalidArgumentError, match="iterated over only once"):
                next(epochs)
        else:
            assert sorted([one async for one in await anext(epochs)]) == ["A", "B", "C", "D"]
            with pytest.raises(InvalidArgumentError, match="iterated over only once"):
                await anext(epochs)

    async def test_a_live_queue_can_begin_one(self, world: World) -> None:
        queue = sync.FIFOQueue(10)
        for number in range(5):
            queue.enqueue(number)
        queue.close()
        assert await results(world, from_iterable(queue).prepare(tenfold)) == [0, 10, 20, 30, 40]

    def test_it_is_a_source_like_others(self) -> None:
        source = from_iterable(["a", "b", "c"], seed=5)
        assert list(source) == ["a", "b", "c"]
        assert [entry.index for entry in source.entries()] == [0, 1, 2]
        assert list(source.epoch(3)) == ["a", "b", "c"]
        drawn = list(from_iterable(range(3), seed=5).prepare(lambda n, rng: rng.random()))
        assert drawn == [rng(5, 0, index).random() for index in range(3)]
        assert list(source.shard(1, 2)) == ["b", "c"]
        assert repr(source) == "<aioqueue.inputs.iterable of list, seed=5>"
        with pytest.raises(TypeError, match="is not known"):
            len(Pipeline(source))

    async def test_generators_are_closed(self, world: World) -> None:
        is_open = False

        def watched() -> Iterator[int]:
            nonlocal is_open
            is_open = True
            try:
                yield from range(100)
            finally:
                is_open = False

        await first(world, from_iterable(watched).prepare(tenfold, max_in_flight=2).epochs(2), 1)
        await world.until(lambda: not is_open)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ("text", "got 'text'"),
            ({}, "got {}"),
            (3, "got 3"),
            (from_iterable([]), "expected an iterable, an async iterable, or a function"),
            (anyio.sleep, "the coroutine function sleep"),
        ],
    )
    def test_what_is_wrong_is_refused(self, given: Any, message: str) -> None:
        with pytest.raises(InvalidArgumentError, match=message):
            from_iterable(given)
        with pytest.raises(InvalidArgumentError, match="blocking: got 1"):
            from_iterable([], blocking=1)  # type: ignore[call-overload]

    def test_a_function_that_makes_nothing_of_the_kind(self) -> None:
        with pytest.raises(InvalidArgumentError, match="returned a int; expected an iterable"):
            list(from_iterable(cast(Any, lambda: 3)))


class TestAsyncIterables:
    async def test_any_loop_goes_through_them(self, world: World) -> None:
        for pipeline in (
            Pipeline(from_iterable(numbers_up_to_five)),
            from_iterable(numbers_up_to_five).prepare(int, workers=2),
            from_iterable(numbers_up_to_five).filter(lambda _: True).batch(2).unbatch(),
        ):
            assert await epochs_of(world, pipeline.epochs(2)) == [[0, 1, 2, 3, 4]] * 2
        assert await results(world, Pipeline(from_iterable(numbers_up_to_five()))) == [*range(5)]

    async def test_ranks(self, world: World) -> None:
        source = from_iterable(numbers_up_to_five)
        parts = {
            uneven: [await results(world, source.shard(r, 2, uneven=uneven)) for r in range(2)]
            for uneven in ("pad", "drop", "allow")
        }
        assert parts == {
            "pad": [[0, 2, 4], [1, 3, 4]],
            "drop": [[0, 2], [1, 3]],
            "allow": [[0, 2, 4], [1, 3]],
        }

    async def test_they_are_closed(self, world: World) -> None:
        streams = Streams()
        pipeline = from_iterable(streams.__call__).prepare(tenfold)
        await first(world, pipeline.epochs(3), 1)
        await world.until(lambda: streams.open == 0)

    async def test_a_cancelled_call_does_not_end_them(self, world: World) -> None:
        if isinstance(world, ThreadWorld):
            pytest.skip("threads are not cancelled")
        gate = anyio.Event()

        async def gated() -> AsyncIterator[int]:
            yield 0
            await gate.wait()
            yield 1

        pipeline: Pipeline[int] = Pipeline(from_iterable(gated))
        async with pipeline.epochs(1) as epochs:
            epoch = await anext(aiter(epochs))
            assert await anext(aiter(epoch)) == 0
            operation = world.spawn(epoch.__anext__)
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            operation.cancel()  # type: ignore[attr-defined]
            assert await operation.was_cancelled()  # type: ignore[attr-defined]
            gate.set()
            assert [value async for value in epoch] == [1]

    async def test_the_source_itself(self, world: World) -> None:
        source = from_iterable(numbers_up_to_five)
        if isinstance(world, ThreadWorld):
            with pytest.raises(InvalidArgumentError, match="a pipeline over it supports both"):
                list(source)
        else:
            assert [value async for value in source] == [0, 1, 2, 3, 4]
            assert [entry.index async for entry in source._aentries()] == [0, 1, 2, 3, 4]
