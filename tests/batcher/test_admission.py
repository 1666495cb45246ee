"""What a batcher asks of each call (is it valid, how heavy, how urgent?); requests tried again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import InvalidArgumentError, sync
from aioqueue.batcher.admission import Admission
from tests.batcher.models import NEVER, Model, batcher_of
from tests.batcher.test_batcher import Calls
from tests.kit.sharing import Child
from tests.kit.worlds import TaskWorld, World


def rows_of(value: Any) -> int:
    """The weight of a value: a number weighs itself."""
    return value if isinstance(value, int) else 1


class TestWeight:
    async def test_a_batch_as_heavy_as_allowed_does_not_wait(
        self, world: World, model: Model
    ) -> None:
        async with batcher_of(
            world, model, max_wait=NEVER, weight=rows_of, max_batch_weight=10
        ) as batcher:
            operations = await Calls(world, batcher).begin(4, 6)
            assert [await one.result() for one in operations] == [8, 12]
        assert model.batches == [[4, 6]]

    async def test_none_is_heavier_and_none_overtakes(self, world: World, model: Model) -> None:
        async with batcher_of(
            world, model, max_wait=0, weight=rows_of, max_batch_weight=10
        ) as batcher:
            calls = Calls(world, batcher)
            operations = await calls.begin_running(model, 1)
            operations += await calls.begin(5, 4, 7, 1, 1, 2, 10, 0)
            model.gate.open()
            assert [await one.result() for one in operations] == [2, 10, 8, 14, 2, 2, 4, 20, 0]
            assert "or a weight of 10" in repr(batcher)
        assert model.batches == [[1], [5, 4], [7, 1, 1], [2], [10, 0]]

    async def test_the_number_is_bounded_too(self, world: World, model: Model) -> None:
        async with batcher_of(
            world, model, max_batch=2, max_wait=NEVER, weight=rows_of, max_batch_weight=10
        ) as batcher:
            operations = await Calls(world, batcher).begin(1, 1)
            assert [await one.result() for one in operations] == [2, 2]
        assert model.batches == [[1, 1]]

    async def test_a_request_that_is_too_heavy_is_refused(self, world: World, model: Model) -> None:
        async with batcher_of(
            world, model, max_wait=0, weight=rows_of, max_batch_weight=10
        ) as batcher:
            with pytest.raises(InvalidArgumentError, match=r"weighs 11; expected at most .* 10"):
                await batcher(11)
            assert await batcher(10) == 20
            record = batcher.statistics()
        assert (record.requests, record.rejected, record.answered) == (1, 1, 1)

    async def test_the_weight_of_callers_that_left_does_not_count(
        self, task_world: TaskWorld, model: Model
    ) -> None:
        async with batcher_of(
            task_world, model, max_batch=3, max_wait=NEVER, weight=rows_of, max_batch_weight=10
        ) as batcher:
            calls = Calls(task_world, batcher)
            (left,) = await calls.begin(9)
            left.cancel()
            assert await left.was_cancelled()
            operations = await calls.begin(4)
            operations += await calls.begin(5)
            assert batcher.statistics().batches == 0  # 9 and 4 would have been a full batch
            operations += await calls.begin(1)
            assert [await one.result() for one in operations] == [8, 10, 2]
        assert model.batches == [[4, 5, 1]]

    async def test_with_priorities(self, world: World, model: Model) -> None:
        line = aioqueue.PriorityQueue(64)
        async with batcher_of(
            world, model, max_wait=0, queue=line, weight=rows_of, max_batch_weight=6
        ) as batcher:
            calls = Calls(world, batcher)
            operations = await calls.begin_running(model, 1)
            operations += await calls.begin(5)
            operations += await calls.begin(4, 3, priority=-1)
            operations += await calls.begin(2, priority=-2)
            model.gate.open()
            assert [await one.result() for one in operations] == [2, 10, 8, 6, 4]
        assert model.batches == [[1], [2, 4], [3], [5]]

    async def test_all_are_answered_when_the_block_is_left(
        self, world: World, model: Model
    ) -> None:
        async with batcher_of(
            world, model, max_wait=NEVER, weight=rows_of, max_batch_weight=5
        ) as batcher:
            operations = await Calls(world, batcher).begin(3, 3, 3)
        assert [await one.result() for one in operations] == [6, 6, 6]
        assert model.batches == [[3], [3], [3]]

    @pytest.mark.parametrize("returned", [-1, float("nan"), float("inf"), "1", True, [1]])
    async def test_a_weight_is_a_number(self, world: World, returned: Any) -> None:
        async with batcher_of(
            world, list, weight=lambda value: returned, max_batch_weight=2
        ) as batcher:
            with pytest.raises(InvalidArgumentError, match=r"^weight: .* expected a number >= 0"):
                await batcher(1)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"weight": len}, "max_batch_weight: got None with weight=; expected both"),
            ({"max_batch_weight": 3}, "weight: got None with max_batch_weight=; expected both"),
            ({"weight": len, "max_batch_weight": 0}, "max_batch_weight: got 0; expected a number"),
            ({"weight": len, "max_batch_weight": True}, "max_batch_weight: got True"),
            ({"ageing": 1}, "ageing: got 1, but the queue has no priorities"),
            (
                {"ageing": 0, "queue": aioqueue.PriorityQueue(64)},
                "ageing: got 0; expected a number of seconds > 0",
            ),
            ({"on_failure": "retry"}, "on_failure: got 'retry'; expected 'fail' or 'one_by_one'"),
            ({"check": asyncio.sleep}, "check: got 'sleep', a coroutine function"),
        ],
    )
    @pytest.mark.parametrize("batcher", [aioqueue.Batcher, sync.Batcher], ids=["aio", "sync"])
    def test_wrong_options(self, batcher: Any, options: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidArgumentError, match=f"^{message}"):
            batcher(list, **options)

    async def test_a_function_that_never_waits_leaves_the_loop_to_others(
        self, task_world: TaskWorld
    ) -> None:
        async def at_once(values: list[int]) -> list[int]:
            return values

        async with aioqueue.Batcher(
            at_once, max_batch=1, max_wait=0, weight=rows_of, max_batch_weight=4
        ) as batcher:
            operations = [task_world.spawn(batcher.__call__, 1) for _ in range(500)]
            assert [await one.result() for one in operations] == [1] * 500


def of_three(row: Any) -> None:
    if np.shape(row) != (3,):
        raise ValueError(f"a row has the shape (3,), not {np.shape(row)}")


class TestCheck:
    async def test_only_its_caller_gets_what_it_raises(self, world: World) -> None:
        def totals(rows: list[Any]) -> Any:
            return np.stack(rows).sum(axis=1)

        async with batcher_of(world, totals, max_batch=2, check=of_three) as batcher:
            bad = world.spawn(batcher.__call__, np.ones(4))
            good = [world.spawn(batcher.__call__, np.ones(3)) for _ in range(2)]
            assert [await one.result() for one in good] == [3.0, 3.0]
            with pytest.raises(ValueError, match="not \\(4,\\)"):
                await bad.result()
            record = batcher.statistics()
        assert (record.requests, record.rejected, record.failed) == (2, 1, 0)

    @pytest.mark.parametrize(
        ("check", "error", "message"),
        [
            (lambda value: value > 3, InvalidArgumentError, "^value: .* refused 2"),
            (lambda value: np.bool_(False), InvalidArgumentError, "^value: .* refused 2"),
            (lambda value: value, TypeError, "returned a int; expected None or True"),
        ],
    )
    async def test_what_it_returns(
        self, world: World, check: Callable[[int], Any], error: type[Exception], message: str
    ) -> None:
        async with batcher_of(world, list, check=check) as batcher:
            with pytest.raises(error, match=message):
                await batcher(2)

    async def test_a_call_after_the_end_is_not_checked(self, world: World) -> None:
        async with batcher_of(world, list, check=lambda value: False) as batcher:
            pass
        with pytest.raises(aioqueue.QueueClosedError):
            await batcher(1)


class TestOneByOne:
    async def test_only_those_fail_that_fail_by_themselves(
        self, world: World, model: Model
    ) -> None:
        async with batcher_of(
            world, model, max_batch=4, max_wait=NEVER, on_failure="one_by_one"
        ) as batcher:
            operations = await Calls(world, batcher).begin(1, "boom", 2, 3)
            results = []
            for operation in operations:
                try:
                    results.append(await operation.result())
                except FloatingPointError as error:
                    results.append(str(error))
            assert results[0::2] == [2, 4]
            assert results[3] == 6
            assert "boom" in results[1]
            record = batcher.statistics()
        assert model.batches == [[1, "boom", 2, 3], [1], ["boom"], [2], [3]]
        assert (record.batches, record.retried, record.failed, record.answered) == (1, 4, 1, 3)

    async def test_a_single_request_is_not_tried_again(self, world: World, model: Model) -> None:
        async with batcher_of(world, model, max_batch=1, on_failure="one_by_one") as batcher:
            with pytest.raises(FloatingPointError, match="boom"):
                await batcher("boom")
        assert model.batches == [["boom"]]

    async def test_failures_that_the_function_returns_are_not_tried_again(
        self, world: World
    ) -> None:
        batches = []

        def refuse_all(values: list[int]) -> list[Exception]:
            batches.append(values)
            return [KeyError("all")] * len(values)

        async with batcher_of(
            world, refuse_all, max_batch=2, max_wait=NEVER, on_failure="one_by_one"
        ) as batcher:
            for operation in await Calls(world, batcher).begin(1, 2):
                with pytest.raises(KeyError):
                    await operation.result()
        assert batches == [[1, 2]]

    async def test_a_wrong_number_of_results(self, world: World) -> None:
        def even(values: list[int]) -> list[int]:
            return [value for value in values if value % 2 == 0]

        async with batcher_of(
            world, even, max_batch=3, max_wait=NEVER, on_failure="one_by_one"
        ) as batcher:
            zero, one, two = await Calls(world, batcher).begin(0, 1, 2)
            assert [await zero.result(), await two.result()] == [0, 2]
            with pytest.raises(ValueError, match="returned 0 results for a batch of 1"):
                await one.result()

    async def test_each_gets_the_contexts_of_its_caller(self, world: World) -> None:
        def with_contexts(values: list[int], *, contexts: Any = None) -> list[int]:
            if len(values) > 1:
                raise ValueError("too many")
            return [len(contexts)]

        async with batcher_of(
            world, with_contexts, max_batch=2, max_wait=NEVER, on_failure="one_by_one"
        ) as batcher:
            for operation in await Calls(world, batcher).begin(1, 2):
                assert await operation.result() == 1

    async def test_a_stop_tries_no_more(self, task_world: TaskWorld) -> None:
        tried: list[list[int]] = []

        async def failing(values: list[int]) -> list[int]:
            tried.append(values)
            if len(values) > 1:
                raise ValueError("together")
            batcher._core.stop()
            return values

        batcher = aioqueue.Batcher(failing, max_batch=3, max_wait=NEVER, on_failure="one_by_one")
        async with batcher:
            operations = await Calls(task_world, batcher).begin(1, 2, 3)
            assert await operations[0].result() == 1
            for operation in operations[1:]:
                with pytest.raises(ValueError, match="together"):
                    await operation.result()
        assert tried == [[1, 2, 3], [1]]


def outcomes_of(batcher: Any) -> list[tuple[int, str]]:
    """What a process gets for several calls of a batcher at once."""

    def outcome(value: int) -> tuple[int, str]:
        try:
            return value, str(batcher(value))
        except Exception as error:
            return value, type(error).__name__

    with ThreadPoolExecutor(6) as callers:
        return list(callers.map(outcome, (1, 2, 7, 3, 99, 11)))


def not_99(value: int) -> None:
    if value == 99:
        raise LookupError("not 99")


def no_seven(values: list[int]) -> list[int]:
    if 7 in values:
        raise KeyError("7")
    return [2 * value for value in values]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no objects are shared there")
def test_all_of_it_holds_for_calls_of_other_processes() -> None:
    with sync.Batcher(
        no_seven,
        max_wait=0.1,
        weight=lambda value: min(value, 11),
        max_batch_weight=10,
        check=not_99,
        on_failure="one_by_one",
    ) as batcher:
        found = Child(outcomes_of, batcher.share()).result()
        record = batcher.statistics()
    refused = {7: "KeyError", 99: "LookupError", 11: "InvalidArgumentError"}
    assert found == [(value, refused.get(value, str(2 * value))) for value in (1, 2, 7, 3, 99, 11)]
    assert (record.requests, record.rejected, record.answered, record.failed) == (4, 2, 3, 1)


class TestAgeing:
    def test_one_that_has_waited_long_goes_first(self) -> None:
        admission = Admission(None, None, None, 0.5, has_priorities=True)
        began = admission._began
        early, late = admission.key(3, began), admission.key(0, began + 1.49)
        assert late < early
        assert admission.key(0, began + 1.51) > early
        assert admission.key(0, began + 1) < admission.key(0, began + 1.1)

    def test_without_it_priorities_are_what_they_are(self) -> None:
        admission = Admission(None, None, None, None, has_priorities=True)
        assert admission.key(3, admission._began + 100) == 3

    async def test_priorities_that_cannot_age(self, world: World) -> None:
        line = aioqueue.PriorityQueue(64)
        async with batcher_of(world, list, queue=line, ageing=60) as batcher:
            with pytest.raises(InvalidArgumentError, match=r"^priority: got 9223372036854775807"):
                await batcher(1, priority=2**63 - 1)
            with pytest.raises(InvalidArgumentError, match="priority"):
                await batcher(1, priority="first")  # type: ignore[arg-type]
            assert await batcher(1, priority=1000) == 1

    async def test_urgent_ones_go_first_all_the_same(self, world: World, model: Model) -> None:
        line = aioqueue.PriorityQueue(64)
        async with batcher_of(
            world, model, max_batch=1, max_wait=0, queue=line, ageing=3600
        ) as batcher:
            calls = Calls(world, batcher)
            operations = await calls.begin_running(model, 0)
            operations += await calls.begin(1, 2, priority=5)
            operations += await calls.begin(3, priority=-5)
            model.gate.open()
            assert [await one.result() for one in operations] == [0, 2, 4, 6]
        assert model.batches == [[0], [3], [1], [2]]
