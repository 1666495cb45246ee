"""`epochs(steps=n)`: a run ends after n steps, however many epochs these are."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import Pipeline, from_iterable, merge_positions, numbers
from tests.kit.going import epochs_of
from tests.kit.worlds import World


def odd_or_small(number: int) -> bool:
    return number % 2 == 1 or number < 9


def uneven(rank: int, ranks: int) -> Pipeline[Any]:
    """Batches; each rank has another number of them in an epoch."""
    return numbers(40, seed=2).filter(odd_or_small).batch(3).shard(rank, ranks, uneven="allow")


class TestSteps:
    @pytest.mark.parametrize("steps", [0, 1, 3, 4, 5, 8, 11])
    async def test_epochs_begin_until_all_are_made(self, world: World, steps: int) -> None:
        epochs = numbers(4, shuffle=True, seed=1).prepare(abs, workers=2).epochs(steps=steps)
        found = await epochs_of(world, epochs)
        whole = [list(numbers(4, shuffle=True, seed=1).epoch(number)) for number in range(3)]
        expected = [whole[at // 4][at % 4] for at in range(steps)]
        assert [value for epoch in found for value in epoch] == expected
        assert [len(epoch) for epoch in found] == [4] * (steps // 4) + [steps % 4] * (steps % 4 > 0)

    def test_ranks_stay_in_step(self) -> None:
        alone = [len(list(uneven(rank, 2))) for rank in range(2)]
        assert alone == [2, 7]
        for rank in range(2):
            run = uneven(rank, 2).epochs(steps=6)
            assert len([batch for epoch in run for batch in epoch]) == 6

    @pytest.mark.parametrize("stop", [0, 1, 4, 6, 7])
    def test_a_resumed_run_ends_where_the_other_would_have(self, stop: int) -> None:
        pipeline = numbers(4, shuffle=True, seed=1).prepare(abs, workers=2)
        whole = [value for epoch in pipeline.epochs(steps=7) for value in epoch]
        found: list[int] = []
        with pipeline.epochs(steps=stop) as epochs:
            for epoch in epochs:
                found += epoch
            position = json.loads(json.dumps(epochs.state_dict()))
        with pipeline.epochs(steps=7, resume=position) as epochs:
            for epoch in epochs:
                found += epoch
        assert found == whole

    def test_another_number_of_ranks_ends_there_too(self) -> None:
        positions = []
        for rank in range(2):
            with uneven(rank, 2).epochs(steps=4) as epochs:
                taken = [batch for epoch in epochs for batch in epoch]
                positions.append(epochs.state_dict())
            assert len(taken) == 4
        resume = merge_positions(positions)
        for rank in range(3):
            run = uneven(rank, 3).epochs(steps=9, resume=resume)
            assert len([batch for epoch in run for batch in epoch]) == 5

    def test_lengths(self) -> None:
        with numbers(4).epochs(steps=6) as epochs:
            with pytest.raises(TypeError, match="end after a number of steps"):
                len(epochs)
            assert "6 steps" in repr(epochs)
            first = next(epochs)
            assert (len(first), first.left) == (4, 4)
            list(first)
            second = next(epochs)
            assert (len(second), second.left, second.done) == (2, 2, 0)
            next(second)
            assert (len(second), second.left, second.done) == (2, 1, 1)
            assert list(second) == [1]
            assert (len(second), second.left, second.done) == (2, 0, 2)
            with pytest.raises(StopIteration):
                next(epochs)

    def test_an_epoch_that_is_left_early(self) -> None:
        found = []
        with numbers(4).epochs(steps=5) as epochs:
            for epoch in epochs:
                for value in epoch:
                    found.append(value)
                    if value == 1:
                        break
        assert found == [0, 1, 0, 1, 0]

    def test_several_threads_share_the_steps(self) -> None:
        taken: list[int] = []
        gate = threading.Barrier(4)

        def take(epoch: Any) -> None:
            gate.wait()
            taken.extend(epoch)

        with numbers(1000).prepare(abs).epochs(steps=100) as epochs, ThreadPoolExecutor(4) as pool:
            epoch = next(epochs)
            list(pool.map(take, [epoch] * 4))
        assert sorted(taken) == list(range(100))

    def test_several_tasks_share_the_steps(self) -> None:
        async def main() -> list[int]:
            taken: list[int] = []

            async def take(epoch: Any) -> None:
                taken.extend([value async for value in epoch])

            async with numbers(1000).prepare(abs).epochs(steps=100) as epochs:
                epoch = await anext(epochs)
                await asyncio.gather(*[take(epoch) for _ in range(4)])
            return taken

        assert sorted(asyncio.run(main())) == list(range(100))

    def test_with_a_monitor(self) -> None:
        with numbers(10).prepare(abs).epochs(steps=13) as epochs, epochs.monitor() as monitor:
            assert sum(1 for epoch in epochs for _ in epoch) == 13
        steps = monitor.snapshot().steps
        assert steps is not None
        assert steps.steps == 13


class TestRefusing:
    def test_both_ends(self) -> None:
        with pytest.raises(InvalidArgumentError, match=r"^steps: got 3 together with count=2"):
            numbers(3).epochs(2, steps=3)

    @pytest.mark.parametrize("steps", [-1, 1.5, True])
    def test_what_is_no_number(self, steps: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=r"^steps: got "):
            numbers(3).epochs(steps=steps)

    def test_a_source_that_cannot_begin_again(self) -> None:
        with pytest.raises(InvalidArgumentError, match="only once, and was"):
            for epoch in from_iterable(iter(range(3))).epochs(steps=5):
                list(epoch)

    def test_nothing_but_empty_epochs(self) -> None:
        with pytest.raises(RuntimeError, match="epochs in a row were empty"):
            for epoch in numbers(3).filter(lambda number: False).epochs(steps=5):
                list(epoch)
