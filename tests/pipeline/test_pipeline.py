"""Pipelines: what each stage makes, in every world, and that nothing else depends on the world."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain
from typing import Any

import anyio
import numpy as np
import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import (
    Pipeline,
    Retry,
    Source,
    arrays,
    from_iterable,
    items,
    numbers,
    per_minute,
    per_second,
    read_lines,
)
from tests.kit.going import Counting, epochs_of, first, packed, plain, results
from tests.kit.worlds import PATIENCE, ThreadWorld, World, spin_until, threads_of_work


def tenfold(item: int) -> int:
    return 10 * item


async def tenfold_in_a_task(item: int) -> int:
    await anyio.lowlevel.checkpoint()
    return 10 * item


def with_noise(item: int, rng: np.random.Generator) -> tuple[int, float]:
    return item, rng.random()


def as_often(item: int) -> Iterator[tuple[int, int]]:
    for number in range(item % 3):
        yield item, number


awaited: Any = tenfold_in_a_task  # a type checker would say it

AWAITED_LATER: dict[str, Pipeline[Any]] = {
    "predicate": numbers(9).filter(lambda n: n > 3 and awaited(n)),
    "collate": numbers(9).batch(2, collate=lambda rows: rows[0] and awaited(rows[0])),
    "concurrency_key": numbers(9).prepare(
        tenfold, concurrency_key=lambda n: n > 3 and awaited(n), max_per_key=1
    ),
}


@pytest.mark.parametrize("argument", AWAITED_LATER)
async def test_plain_functions_that_return_a_coroutine(world: World, argument: str) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await results(world, AWAITED_LATER[argument])
    reported = rf"^{argument}: <lambda> is a plain function but returned a coroutine: "
    assert caught.group_contains(TypeError, match=reported)


class TestStages:
    async def test_prepare_keeps_the_order(self, world: World) -> None:
        assert await results(world, numbers(50).prepare(tenfold, workers=3)) == [
            10 * n for n in range(50)
        ]

    async def test_coroutine_functions_run_on_tasks(self, world: World) -> None:
        assert await results(world, numbers(9).prepare(tenfold_in_a_task)) == [
            10 * n for n in range(9)
        ]

    @pytest.mark.slow("asyncio")
    @pytest.mark.usefixtures("nothing_is_left")
    async def test_processes(self, world: World) -> None:
        pipeline = numbers(9).prepare(tenfold, where="process", workers=2).batch(4)
        assert await results(world, pipeline) == [[0, 10, 20, 30], [40, 50, 60, 70], [80]]

    async def test_unordered_has_all_of_them(self, world: World) -> None:
        found = await results(world, numbers(50).prepare(tenfold, ordered=False))
        assert sorted(found) == [10 * n for n in range(50)]

    async def test_a_source_alone(self, world: World) -> None:
        assert await results(world, Pipeline(items(["abc", "d"]))) == ["abc", "d"]

    async def test_flat_takes_what_is_returned_apart(self, world: World) -> None:
        found = await results(world, numbers(6).flat(lambda n: [n] * (n % 3)))
        assert found == [1, 2, 2, 4, 5, 5]

    async def test_generator_functions_make_several(self, world: World) -> None:
        expected = [(1, 0), (2, 0), (2, 1), (4, 0), (5, 0), (5, 1)]
        assert await results(world, numbers(6).prepare(as_often)) == expected
        assert await results(world, numbers(6).flat(as_often)) == expected

    async def test_flat_of_coroutine_functions(self, world: World) -> None:
        async def several(item: int) -> list[int]:
            return [item, item]

        async def one_by_one(item: int) -> AsyncIterator[int]:
            yield item
            yield item

        for function in (several, one_by_one):
            assert await results(world, numbers(3).flat(function)) == [0, 0, 1, 1, 2, 2]

    async def test_flat_refuses_what_cannot_be_taken_apart(self, world: World) -> None:
        of_no_iterable: Any = tenfold  # a type checker would refuse it
        with pytest.raises(ExceptionGroup) as failure:
            await results(world, numbers(3).flat(of_no_iterable))
        assert "tenfold returned an int; expected an iterable" in str(failure.value.exceptions[0])

    async def test_flat_takes_a_generator_too(self, world: World) -> None:
        def noisy(item: int, rng: np.random.Generator) -> list[float]:
            return [item + rng.random()]

        assert await results(world, numbers(4, seed=1).flat(noisy)) == await results(
            world, numbers(4, seed=1).prepare(lambda item, rng: item + rng.random())
        )

    async def test_filter(self, world: World) -> None:
        assert await results(world, numbers(7).filter(lambda n: n % 2)) == [1, 3, 5]

    async def test_shuffle_gives_each_once_and_repeats_itself(self, world: World) -> None:
        pipeline = numbers(100, seed=3).shuffle(10)
        found = await results(world, pipeline)
        assert sorted(found) == list(range(100))
        assert found != list(range(100))
        assert await results(world, pipeline) == found
        assert await results(world, numbers(100, seed=4).shuffle(10)) != found
        assert await results(world, numbers(100, seed=3).shuffle(10, seed=5)) != found

    async def test_shuffle_draws_from_its_buffer_only(self, world: World) -> None:
        found = await results(world, numbers(100, seed=3).shuffle(4))
        assert all(number <= place + 4 for place, number in enumerate(found))

    async def test_batches(self, world: World) -> None:
        assert await results(world, numbers(7).batch(3)) == [[0, 1, 2], [3, 4, 5], [6]]
        assert await results(world, numbers(7).batch(3, drop_remainder=True)) == [
            [0, 1, 2],
            [3, 4, 5],
        ]

    async def test_batches_have_the_structure_of_the_examples(self, world: World) -> None:
        pipeline = arrays({"x": np.arange(8).reshape(4, 2), "y": np.arange(4.0)}).batch(2)
        assert await results(world, pipeline) == [
            {"x": [[0, 1], [2, 3]], "y": [0.0, 1.0]},
            {"x": [[4, 5], [6, 7]], "y": [2.0, 3.0]},
        ]

    async def test_batches_are_padded_if_that_is_asked_for(self, world: World) -> None:
        pipeline = items([[1], [2, 3], [4, 5, 6]]).batch(3, pad=True, padding_value=-1)
        assert await results(world, pipeline) == [[[1, -1, -1], [2, 3, -1], [4, 5, 6]]]

    async def test_a_collate_function_makes_the_batches(self, world: World) -> None:
        pipeline = items(["a", "b", "c"]).batch(2, collate="-".join)
        assert await results(world, pipeline) == ["a-b", "c"]

    async def test_unbatch_undoes_batch(self, world: World) -> None:
        pairs = items([(1, "a"), (2, "b"), (3, "c")])
        assert await results(world, pairs.batch(2).unbatch()) == [(1, "a"), (2, "b"), (3, "c")]

    async def test_batches_can_be_prepared_too(self, world: World) -> None:
        pipeline = numbers(10).prepare(tenfold).batch(4).prepare(np.sum).prefetch(2)
        assert await results(world, pipeline) == [60, 220, 170]

    async def test_buckets(self, world: World) -> None:
        sequences = [np.arange(n) for n in (3, 5, 2, 7, 1)]
        found = await results(world, items(sequences).bucket([4], 2))
        assert [lengths for lengths, _ in found] == [[3, 2], [5, 7], [1]]
        assert found[0][1] == [[0, 1, 2], [0, 1, 0]]
        whole = await results(world, items(sequences).bucket([4], 2, drop_remainder=True))
        assert whole == found[:2]

    async def test_packing_is_first_fit(self, world: World) -> None:
        sequences = [np.arange(10, 10 + n) for n in (3, 5, 2, 4)]
        found = await results(world, packed(items(sequences), 8, 2))
        assert found == [
            ([10, 11, 12, 10, 11, 12, 13, 14], [1] * 3 + [2] * 5, [0, 1, 2, 0, 1, 2, 3, 4]),
            ([10, 11, 10, 11, 12, 13, 0, 0], [1] * 2 + [2] * 4 + [0] * 2, [0, 1, 0, 1, 2, 3, 0, 0]),
        ]

    async def test_packing_keeps_components_together(self, world: World) -> None:
        example = {"tokens": np.array([1, 2]), "weights": np.array([0.5, 1.5])}
        (row,) = await results(world, items([example, example]).pack(5, padding_value=-1))
        assert row == {
            "tokens": [1, 2, 1, 2, -1],
            "weights": [0.5, 1.5, 0.5, 1.5, -1.0],
            "segment_ids": [1, 1, 2, 2, 0],
            "positions": [0, 1, 0, 1, 0],
        }

    @pytest.mark.parametrize(("on_too_long", "tokens"), [("skip", 3), ("split", 13)])
    async def test_sequences_longer_than_a_row(
        self, world: World, on_too_long: Any, tokens: int
    ) -> None:
        sequences = items([np.ones(10, int), np.ones(3, int)])
        rows = await results(world, sequences.pack(4, on_too_long=on_too_long))
        assert sum(sum(row[0]) for row in rows) == tokens
        with pytest.raises(ExceptionGroup, match="pack into rows of 4 failed on item"):
            await results(world, sequences.pack(4))

    async def test_take_does_not_prepare_the_rest(self, world: World) -> None:
        function = Counting(tenfold)
        pipeline = (
            numbers(10_000).prepare(function, workers=2, buffer_size=4, max_in_flight=8).take(5)
        )
        assert await results(world, pipeline) == [0, 10, 20, 30, 40]
        assert len(function.calls) < 200

    async def test_take_more_than_there_is(self, world: World) -> None:
        assert await results(world, numbers(3).take(5).batch(2)) == [[0, 1], [2]]
        assert await results(world, numbers(3).take(0)) == []

    async def test_mixtures(self, world: World) -> None:
        letters = items(list("abcdefghij")).prepare(str.upper)
        pipeline = numbers(10, seed=1).prepare(tenfold).mix(letters, weights=[1, 3])
        found = await results(world, pipeline)
        assert [x for x in found if isinstance(x, int)] == [10 * n for n in range(10)]
        assert "".join(x for x in found if isinstance(x, str)) == "ABCDEFGHIJ"
        assert await results(world, pipeline) == found

    async def test_a_mixture_that_ends_with_the_first(self, world: World) -> None:
        short, long = items(["x"] * 3), numbers(1000, seed=1)
        epochs = await epochs_of(world, long.mix(short, stop="first").epochs(2))
        for found in epochs:
            assert found.count("x") == 3
            assert len(found) < 100
        assert epochs[0] != epochs[1]

    async def test_readers_begin_pipelines(self, world: World, tmp_path: Any) -> None:
        (tmp_path / "a.txt").write_text("1\n2\n3\n")
        pipeline = read_lines(str(tmp_path / "a.txt")).prepare(int).batch(2)
        assert await epochs_of(world, pipeline.epochs(2)) == [[[1, 2], [3]]] * 2


class TestEpochs:
    async def test_each_has_another_order_and_other_generators(self, world: World) -> None:
        pipeline = numbers(20, shuffle=True, seed=7).prepare(with_noise, workers=3).shuffle(4)
        found = await epochs_of(world, pipeline.epochs(3))
        for epoch in found:
            assert sorted(number for number, _ in epoch) == list(range(20))
        assert len({tuple(number for number, _ in epoch) for epoch in found}) == 3
        assert len({noise for epoch in found for _, noise in epoch}) == 60

    async def test_they_depend_on_seed_and_number_alone(self, world: World) -> None:
        one = numbers(20, shuffle=True, seed=7).prepare(with_noise, workers=3).shuffle(4).batch(8)
        other = numbers(20, shuffle=True, seed=7).prepare(with_noise, workers=1).shuffle(4).batch(8)
        found = await epochs_of(world, one.epochs(3))
        assert await epochs_of(world, other.epochs(2, start=1)) == found[1:]
        assert await results(world, other) == found[0]

    async def test_batches_do_not_mix_epochs_unless_asked(self, world: World) -> None:
        assert await epochs_of(world, numbers(5).batch(2).epochs(2)) == [[[0, 1], [2, 3], [4]]] * 2
        assert await epochs_of(world, numbers(5).batch(2, across_epochs=True).epochs(2)) == [
            [[0, 1], [2, 3]],
            [[4, 0], [1, 2], [3, 4]],
        ]

    async def test_an_epoch_can_be_left(self, world: World) -> None:
        pipeline = numbers(10_000).prepare(
            Counting(tenfold), workers=2, buffer_size=4, max_in_flight=8
        )
        assert await first(world, pipeline.batch(2).epochs(3), 2) == [[[0, 10], [20, 30]]] * 3

    async def test_an_unordered_epoch_can_be_left(self, world: World) -> None:
        pipeline = numbers(30).prepare(tenfold, ordered=False).epochs(2)
        found = await first(world, pipeline, 30)
        assert [sorted(epoch) for epoch in found] == [[10 * n for n in range(30)]] * 2

    async def test_what_was_skipped_belongs_to_its_epoch(self, world: World) -> None:
        def picky(item: int) -> int:
            if item % 4 == 1:
                raise ValueError(item)
            return item

        for ordered in (True, False):
            pipeline = numbers(9).prepare(picky, on_error="skip", ordered=ordered).epochs(2)
            found = await epochs_of(world, pipeline)
            assert [sorted(epoch) for epoch in found] == [[0, 2, 3, 4, 6, 7, 8]] * 2

    async def test_workers_live_on(self, world: World) -> None:
        threads = Counting(lambda item: threading.get_ident())
        found = await epochs_of(world, numbers(8).prepare(threads, workers=2).epochs(3))
        assert len({ident for epoch in found for ident in epoch}) <= 2

    async def test_of_a_source_that_no_stage_follows(self, world: World) -> None:
        source = numbers(4, shuffle=True, seed=3)
        epochs = await epochs_of(world, source.epochs(2))
        assert epochs == await epochs_of(world, source.prepare(lambda n: n).epochs(2))
        assert epochs[0] != epochs[1]
        with pytest.raises(InvalidArgumentError, match="epochs: got 2 for numbers"):
            numbers(4, epochs=2).epochs(3)

    async def test_no_epochs_and_empty_ones(self, world: World) -> None:
        assert await epochs_of(world, numbers(5).batch(2).epochs(0)) == []
        assert await epochs_of(world, numbers(0).prepare(tenfold).batch(2).epochs(2)) == [[], []]

    def test_lengths(self) -> None:
        pipeline = numbers(10).prepare(tenfold).batch(4)
        epochs = pipeline.epochs(3)
        assert len(epochs) == 3
        assert [len(epoch) for epoch in epochs] == [3, 3, 3]
        assert len(numbers(10).take(3)) == 3
        with pytest.raises(TypeError, match="depends on the data"):
            len(numbers(10).filter(bool))
        with pytest.raises(TypeError, match="no end"):
            len(pipeline.epochs())

    def test_a_forgotten_epochs_is_one_epoch(self) -> None:
        assert list(Pipeline(numbers(3))) == [0, 1, 2]

    def test_an_epoch_that_was_left_raises_an_error(self) -> None:
        epochs = iter(numbers(10).prepare(tenfold).epochs(2))
        before = next(epochs)
        next(before)
        next(epochs)
        with pytest.raises(RuntimeError, match="epoch 0 was left"):
            next(before)

    async def test_one_that_has_ended_gives_nothing_of_the_next(self, world: World) -> None:
        """Also where items of that one came before its end."""
        calls, is_ahead = itertools.count(1), threading.Event()

        def function(item: int) -> int:
            number = next(calls)
            if number == 1:
                assert is_ahead.wait(PATIENCE)
            elif number == 8:  # some of the second epoch have been made
                is_ahead.set()
            return item

        pipeline = numbers(4).prepare(function, workers=2, ordered=False)
        if isinstance(world, ThreadWorld):
            with pipeline.epochs(2) as blocking:
                found = [[*epoch, None, *epoch] for epoch in blocking]
        else:
            async with pipeline.epochs(2) as epochs:
                found = [
                    [*[one async for one in epoch], None, *[one async for one in epoch]]
                    async for epoch in epochs
                ]
        for epoch in found:
            assert (sorted(epoch[:4]), epoch[4:]) == ([0, 1, 2, 3], [None])

    def test_epochs_of_a_source_that_was_given_some_are_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match=r"epochs: got 3 .*expected no epochs="):
            numbers(10, epochs=3).batch(2)

    def test_sources_have_epochs_too(self) -> None:
        source = numbers(5, epochs=1, shuffle=True, seed=7)
        orders = [list(source.epoch(number)) for number in range(2)]
        assert orders[0] == list(source)
        assert orders[0] != orders[1]


class TestShards:
    @pytest.mark.parametrize("count", [0, 1, 7, 8, 9])
    @pytest.mark.parametrize("ranks", [1, 2, 3, 4])
    def test_ranks_are_equal_and_have_all(self, count: int, ranks: int) -> None:
        whole = Counter(range(count))
        for uneven, most in (("pad", ranks + 1), ("allow", 1)):
            parts = [
                list(numbers(count, shuffle=True, seed=1).shard(r, ranks, uneven=uneven))  # type: ignore[arg-type]
                for r in range(ranks)
            ]
            found = Counter(item for part in parts for item in part)
            assert set(found) == set(whole)
            assert max(found.values(), default=0) <= most
            assert uneven == "allow" or len({len(part) for part in parts}) == 1
        parts = [list(numbers(count).shard(r, ranks, uneven="drop")) for r in range(ranks)]
        assert {len(part) for part in parts} == {count // ranks}

    def test_step_k_of_all_ranks_is_step_k_of_one(self) -> None:
        source = numbers(24, shuffle=True, seed=1)
        whole = [set(batch.tolist()) for batch in source.batch(12)]
        parts = [[batch.tolist() for batch in source.shard(r, 3).batch(4)] for r in range(3)]
        assert [{*chain(*step)} for step in zip(*parts, strict=True)] == whole

    async def test_what_was_skipped_is_made_up_for(self, world: World) -> None:
        def picky(item: int) -> int:
            if item % 2 or item == 4:
                raise ValueError(item)
            return item

        for ordered in (True, False):
            pipeline = numbers(12).prepare(picky, on_error="skip", ordered=ordered)
            even = await epochs_of(world, pipeline.shard(0, 2).batch(2).epochs(2))
            assert [len(epoch) for epoch in even] == [3, 3]
            assert {n for epoch in even for batch in epoch for n in batch} == {0, 2, 6, 8, 10}
            with pytest.raises(ExceptionGroup) as failure:
                await results(world, pipeline.shard(1, 2).batch(2))
            assert "all 6 items of epoch 0 were skipped" in str(failure.value.exceptions[0])

    def test_stages_that_depend_on_the_data_are_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="`filter`"):
            numbers(10).filter(bool).shard(0, 2)
        with pytest.raises(InvalidArgumentError, match="`flat`"):
            numbers(10).shard(0, 2).flat(as_often)
        assert list(numbers(4).shard(0, 2, uneven="allow").filter(bool)) == [2]
        assert list(numbers(4).shard(0, 1).filter(bool)) == [1, 2, 3]


class TestLeaving:
    def test_break_stops_and_joins_everything(self) -> None:
        before = threads_of_work()
        for _ in numbers(1000).prepare(tenfold, workers=4).batch(8).prefetch(1):
            break
        assert threads_of_work() <= before

    def test_the_exception_of_the_body_is_its_own(self) -> None:
        before = threads_of_work()
        with pytest.raises(KeyError, match="mine"):
            for _ in numbers(1000).prepare(tenfold, workers=4):
                raise KeyError("mine")
        assert threads_of_work() <= before

    def test_a_block_around_epochs(self) -> None:
        before = threads_of_work()
        with numbers(1000).prepare(tenfold).epochs(2) as epochs:
            next(iter(next(iter(epochs))))
        assert threads_of_work() <= before
        with pytest.raises(KeyError), numbers(1000).prepare(tenfold).epochs(2) as epochs:
            next(iter(next(iter(epochs))))
            raise KeyError
        assert threads_of_work() <= before

    async def test_leaving_an_async_loop(self, world: World) -> None:
        if isinstance(world, ThreadWorld):
            pytest.skip("threads leave by `for`")
        before = threads_of_work()
        function = Counting(tenfold)
        async for value in numbers(10_000).prepare(
            function, workers=2, max_in_flight=8, buffer_size=4
        ):
            assert value == 0
            break
        while not threads_of_work() <= before:
            await anyio.lowlevel.checkpoint()
        assert len(function.calls) < 200

    async def test_a_cancelled_loop_loses_nothing(self, world: World) -> None:
        if isinstance(world, ThreadWorld):
            pytest.skip("threads are not cancelled")
        gate = threading.Event()

        def slow(item: int) -> int:
            if item == 3:
                gate.wait()
            return item

        async with numbers(6).prepare(slow, workers=1).epochs(1) as epochs:
            epoch = await anext(aiter(epochs))
            taken = [await anext(aiter(epoch)) for _ in range(3)]
            with anyio.move_on_after(0.01) as scope:
                await anext(aiter(epoch))
            assert scope.cancelled_caught
            gate.set()
            taken += [value async for value in epoch]
        assert taken == list(range(6))

    async def test_a_failure_is_raised_where_the_next_is_asked_for(self, world: World) -> None:
        def bad(item: int) -> int:
            if item == 5:
                raise ValueError("five")
            return item

        for pipeline in (
            numbers(50).prepare(bad).batch(2),
            numbers(50).prepare(bad, where="thread", ordered=False),
            numbers(50).filter(bad),
            numbers(50).batch(2, collate=lambda rows: bad(rows[0] + 1)),
            numbers(50).prepare(bad).batch(2).prepare(lambda batch: batch * 10),
            numbers(50).batch(5).prefetch(1).unbatch().filter(bad),
        ):
            with pytest.raises(ExceptionGroup) as failure:
                await results(world, pipeline)
            assert failure.group_contains(ValueError, match="five", depth=1)

    async def test_it_can_be_iterated_again_after_a_failure(self, world: World) -> None:
        calls = Counter[int]()

        def bad_once(item: int) -> int:
            calls[item] += 1
            if item == 5 and calls[item] == 1:
                raise ValueError("five")
            return item

        pipeline = numbers(10).prepare(bad_once)
        with pytest.raises(ExceptionGroup):
            await results(world, pipeline)
        assert await results(world, pipeline) == list(range(10))

    async def test_retries(self, world: World) -> None:
        calls = Counter[int]()

        def shaky(item: int) -> int:
            calls[item] += 1
            if calls[item] < 3:
                raise OSError(item)
            return item

        assert await results(world, numbers(5).prepare(shaky, on_error=Retry(2))) == list(range(5))

    def test_several_threads_share_an_epoch(self) -> None:
        found: list[int] = []
        with numbers(500).prepare(tenfold).epochs(1) as epochs:
            epoch = next(iter(epochs))
            threads = [threading.Thread(target=lambda: found.extend(epoch)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sorted(found) == [10 * n for n in range(500)]


class TestErrors:
    def test_pipelines_never_change(self) -> None:
        source = numbers(10)
        pipeline = source.batch(2)
        pipeline.take(1)
        assert len(pipeline) == 5
        assert pipeline.source is source

    def test_drawings(self) -> None:
        pipeline = numbers(20, shuffle=True, seed=7).prepare(tenfold, workers=3).batch(6)
        assert str(pipeline).splitlines() == [
            "Pipeline, 4 per epoch",
            "  numbers  of 20, shuffled, seed=7",
            "  prepare  tenfold on 3 threads",
            "  batch    6",
        ]
        assert repr(pipeline).endswith("| prepare tenfold on 3 threads | batch 6>")
        drawing = pipeline._repr_svg_()
        assert drawing.startswith("<svg ")
        assert "tenfold on 3 threads" in drawing
        rated = numbers(2).prepare(tenfold, rate=per_second(0.5))
        assert str(rated).endswith("tenfold on 4 threads (at most 0.5 per second)")
        rated = numbers(2).prepare(tenfold, rate=per_minute(30), concurrency_key=str)
        assert str(rated).endswith("(at most 30 per minute for each key)")
        escaped = numbers(2).prepare(lambda n: n)._repr_svg_()
        assert "&lt;lambda&gt;" in escaped

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: numbers(3).batch(0), r"size: got 0; expected an int >= 1"),
            (lambda: numbers(3).batch(2, pad=1), r"pad: got 1"),  # type: ignore[call-overload]
            (lambda: numbers(3).batch(2, collate=3), r"collate: got 3"),  # type: ignore[call-overload]
            (
                lambda: numbers(3).batch(2, collate=sum, pad=True),
                r"pad: got True beside collate=sum",
            ),
            (
                lambda: numbers(3).batch(2, collate=sum, padding_value=(0, 1)),
                r"padding_value: got \(0, 1\) beside collate=sum",
            ),
            (
                lambda: numbers(3).epochs(3, start=1, resume=numbers(3).epochs(3).state_dict()),
                r"start: got 1 together with resume; .* number of all epochs from 0 on",
            ),
            (
                lambda: numbers(3).batch(2, collate=awaited),
                r"collate: got <function tenfold_in_a_task .*expected a plain function or None",
            ),
            (lambda: numbers(3).shuffle(-1), r"size: got -1"),
            (lambda: numbers(3).shuffle(1, seed=1.5), r"seed: got 1.5"),  # type: ignore[arg-type]
            (lambda: numbers(3).filter(None), r"predicate: got None"),  # type: ignore[arg-type]
            (lambda: numbers(3).filter(tenfold_in_a_task), r"predicate: .*plain function"),
            (lambda: numbers(3).take(-1), r"count: got -1"),
            (lambda: numbers(3).pack(0), r"length: got 0"),
            (lambda: numbers(3).pack(4, on_too_long="x"), r"on_too_long: got 'x'"),  # type: ignore[arg-type]
            (lambda: numbers(3).bucket([2, 1], 2), r"boundaries"),
            (lambda: numbers(3).mix(), r"others: got none"),
            (lambda: numbers(3).mix([1, 2]), r"others: got \[1, 2\]"),  # type: ignore[arg-type]
            (lambda: numbers(3).mix(numbers(2), weights=[1]), r"weights"),
            (lambda: numbers(3).shard(2, 2), r"rank: got 2"),
            (lambda: numbers(3).shard(0, 2).shard(0, 2), r"shard: got it twice"),
            (lambda: numbers(3).prefetch(0), r"buffer_size: got 0"),
            (lambda: numbers(3).batch(1).epochs(-1), r"count: got -1"),
            (lambda: numbers(3).prepare(tenfold, buffer_size=0), r"buffer_size: got 0"),
            (lambda: numbers(3).prepare(tenfold, workers=0), r"workers: got 0"),
            (lambda: numbers(3).prepare(tenfold, where="moon"), r"where: got 'moon'"),  # type: ignore[call-overload]
            (lambda: Pipeline([1, 2]), r"source: got \[1, 2\]"),  # type: ignore[arg-type]
            (lambda: Pipeline(numbers(3).batch(2)), r"source: got <aioqueue"),  # type: ignore[arg-type]
        ],
    )
    def test_what_is_wrong_is_refused_at_once(self, make: Any, message: str) -> None:
        with pytest.raises(InvalidArgumentError, match=message):
            make()


def test_a_misspelt_option_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="worker"):
        numbers(3).prepare(tenfold, worker=2)  # type: ignore[call-overload]


def test_rows_do_not_share_memory() -> None:
    batches = list(arrays(np.zeros((4, 2))).batch(2))
    batches[0][:] = 1
    assert plain(batches[1]) == [[0.0, 0.0], [0.0, 0.0]]


def test_the_next_epoch_is_prepared_while_this_one_is_used() -> None:
    function = Counting(tenfold)
    epochs = iter(numbers(4).prepare(function, workers=1, buffer_size=64).epochs(2))
    epoch = next(epochs)
    assert list(epoch) == [0, 10, 20, 30]
    spin_until(lambda: len(function.calls) == 8)
    assert list(next(epochs)) == [0, 10, 20, 30]


@pytest.mark.parametrize("made", [numbers(3), numbers(3).batch(2)], ids=["source", "pipeline"])
def test_names_of_other_libraries_get_a_hint(made: Any) -> None:
    with pytest.raises(AttributeError, match=r"has no 'map'; here that is \.prepare\(function\)"):
        made.map(tenfold)
    with pytest.raises(AttributeError, match=r"has no attribute 'wrong'$"):
        made.wrong()
    assert not hasattr(made, "cycle")


def test_a_property_that_fails_raises_its_own_error() -> None:
    class Failing(Source[int]):
        def entries(self) -> Iterator[Any]:
            yield from ()

        @property
        def _is_in_memory(self) -> bool:
            return bool(self.missing)  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        _ = Failing("failing")._is_in_memory


@pytest.mark.parametrize("batches", [0, 2, 7])
def test_what_is_done_and_left_of_an_epoch(batches: int) -> None:
    """Also in one that is resumed: of the whole epoch, wherever it was begun."""
    pipeline = numbers(20, seed=1).batch(3)  # 7 batches
    epochs = pipeline.epochs(2)
    epoch = next(epochs)
    for _ in range(batches):
        next(epoch)
    assert (epoch.done, epoch.left) == (batches, 7 - batches)
    resumed = pipeline.epochs(2, resume=epochs.state_dict())
    assert len(resumed) == 2
    for number, epoch in enumerate(resumed):
        done = batches if number == 0 else 0
        assert (len(epoch), epoch.done, epoch.left) == (7 - done, done, 7 - done)
        assert len(list(epoch)) == 7 - done
        assert (epoch.done, epoch.left) == (7, 0)


EMPTY: dict[str, Callable[[], Any]] = {
    "no items": lambda: items([]),
    "no items of an iterable": lambda: from_iterable(lambda: iter(())),
    "all left out": lambda: numbers(5).filter(lambda _: False),
    "all skipped": lambda: numbers(2).prepare(lambda _: None, drop_none=True, workers=1),
    "too few for a batch": lambda: numbers(2).batch(3, drop_remainder=True),
    "none wanted": lambda: numbers(5).take(0),
}


@pytest.mark.parametrize("kind", EMPTY)
async def test_epochs_without_an_end_of_nothing_are_refused(kind: str, world: World) -> None:
    epochs = EMPTY[kind]().epochs(None)
    with pytest.raises(RuntimeError, match="epochs in a row were empty"):
        await _iterated(world, epochs, 20)


async def _iterated(world: World, epochs: Any, most: int) -> None:
    """Go through so many epochs, which is more than there are to be."""
    if isinstance(world, ThreadWorld):
        for number, epoch in enumerate(epochs):
            assert not list(epoch)
            assert number < most
    else:
        number = 0
        async for epoch in epochs:
            assert not [one async for one in epoch]
            number += 1
            assert number < most
