"""Batchers in every world: results, failures, and how a block ends."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import dataclasses
import gc
import threading
import traceback
import weakref
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import sync
from tests.batcher import functions
from tests.batcher.functions import Value
from tests.batcher.models import NEVER, Model, batcher_of, begun
from tests.kit.worlds import (
    PATIENCE,
    CancelledError,
    Operation,
    TaskOperation,
    TaskWorld,
    ThreadWorld,
    World,
    ctrl_c,
    spin_until,
)


def workers_alive(name: str) -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(f"aioqueue-{name}-")]


class Calls:
    """Calls of a batcher that run beside the test."""

    def __init__(self, world: World, batcher: aioqueue.Batcher[Any, Any]) -> None:
        self.world = world
        self.batcher = batcher

    async def begin(self, *values: Any, **options: Any) -> list[Any]:
        """Begin calls; returns when all have been accepted or wait for room."""
        operations: list[Operation] = []
        for value in values:
            before = begun(self.batcher)
            operations.append(self.world.spawn(self.batcher.__call__, value, **options))
            await self.world.until(lambda before=before: begun(self.batcher) > before)  # type: ignore[misc]
        return operations

    async def begin_running(self, model: Model, *values: Any) -> list[Any]:
        """Begin calls; return when the model has a batch of them and waits in it."""
        model.gate.shut()
        before = len(model.batches)
        operations = await self.begin(*values)
        await self.world.until(lambda: len(model.batches) > before)
        return operations


Pair = namedtuple("Pair", "labels scores")

FORMS: dict[str, Callable[[Any], Any]] = {
    "array": lambda rows: rows,
    "transposed": lambda rows: rows[:, ::-1],
    "list": list,
    "tuple": tuple,
    "iterator": iter,
    "generator": lambda rows: (row for row in rows),
    "broadcast": lambda rows: np.lib.stride_tricks.as_strided(rows, rows.shape, rows.strides),
}
"""Kinds of results that share an array, which the function uses for each batch."""


async def raised_by(operation: Operation) -> BaseException:
    try:
        result = await operation.result()
    except Exception as error:
        return error
    pytest.fail(f"it was answered with {result!r}")


class TestResults:
    async def test_every_caller_gets_its_result(self, world: World, model: Model) -> None:
        async with batcher_of(world, model, max_batch=7, workers=2) as batcher:
            operations = [world.spawn(batcher.__call__, number) for number in range(50)]
            results = [await operation.result() for operation in operations]
        assert results == [2 * number for number in range(50)]
        seen = [number for batch in model.batches for number in batch]
        assert sorted(seen) == list(range(50))
        assert max(map(len, model.batches)) <= 7

    async def test_a_full_batch_does_not_wait(self, world: World, model: Model) -> None:
        async with batcher_of(world, model, max_batch=4, max_wait=NEVER) as batcher:
            operations = await Calls(world, batcher).begin(0, 1, 2, 3)
            assert [await operation.result() for operation in operations] == [0, 2, 4, 6]
        assert model.batches == [[0, 1, 2, 3]]

    async def test_idle_workers_do_not_divide_a_batch(self, world: World, model: Model) -> None:
        function = model.function
        async with batcher_of(world, function, max_batch=4, max_wait=NEVER, workers=4) as batcher:
            operations = await Calls(world, batcher).begin(0, 1, 2, 3)
            assert [await operation.result() for operation in operations] == [0, 2, 4, 6]
        assert model.batches == [[0, 1, 2, 3]]

    @pytest.mark.parametrize("max_wait", [0, 0.001])
    async def test_a_batch_that_is_not_full_begins_after_max_wait(
        self, world: World, model: Model, max_wait: float
    ) -> None:
        async with batcher_of(world, model, max_batch=100, max_wait=max_wait) as batcher:
            assert await batcher(21) == 42
        assert model.batches == [[21]]

    async def test_requests_that_waited_for_a_worker_are_one_batch(
        self, world: World, model: Model
    ) -> None:
        async with batcher_of(world, model, max_wait=0) as batcher:
            calls = Calls(world, batcher)
            operations = await calls.begin_running(model, 0)
            operations += await calls.begin(1, 2, 3)
            model.gate.open()
            assert [await operation.result() for operation in operations] == [0, 2, 4, 6]
        assert model.batches == [[0], [1, 2, 3]]

    async def test_several_workers_work_at_the_same_time(self, world: World, model: Model) -> None:
        async with batcher_of(world, model, max_batch=1, workers=3) as batcher:
            calls = Calls(world, batcher)
            operations = await calls.begin_running(model, 0)
            operations += await calls.begin(1, 2, 3)
            await world.until(lambda: len(model.batches) == 3)
            assert batcher.statistics().in_flight == 3
            model.gate.open()
            assert [await operation.result() for operation in operations] == [0, 2, 4, 6]

    async def test_the_function_may_empty_its_list(self, world: World, model: Model) -> None:
        async def empties(values: list[Any]) -> list[Any]:
            return functions.empties(values)

        function = empties if model.where == "task" else functions.empties
        async with batcher_of(
            world, function, max_batch=3, max_wait=NEVER, where=model.where
        ) as batcher:
            calls = Calls(world, batcher)
            operations = await calls.begin(1, 2, 3)
            assert [await operation.result() for operation in operations] == [2, 4, 6]
            for operation in await calls.begin("boom", 2, 3):
                assert isinstance(await raised_by(operation), FloatingPointError)
            if model.where == "process":  # elsewhere, that is the end of the worker
                for operation in await calls.begin("exit", 2, 3):
                    assert "raised SystemExit" in str(await raised_by(operation))
            operations = await calls.begin(4, 5, 6)
            assert [await operation.result() for operation in operations] == [8, 10, 12]

    async def test_an_array_of_results_is_one_row_each(self, world: World) -> None:
        def totals(rows: list[Any]) -> Any:
            return np.stack(rows).sum(axis=1)

        async with batcher_of(world, totals) as batcher:
            assert await batcher(np.full(3, 2.0)) == 6.0

    async def test_any_iterable_of_results(self, world: World) -> None:
        async with batcher_of(world, lambda values: (value + 1 for value in values)) as batcher:
            assert await batcher(1) == 2

    @pytest.mark.parametrize("form", FORMS)
    async def test_the_function_may_use_its_memory_again(self, world: World, form: str) -> None:
        """Other batches are processed before a caller reads its result."""
        made, out = FORMS[form], np.zeros((2, 3))

        def double(values: list[int]) -> Any:
            out[: len(values)] = np.array([values]).T * 2
            return made(out[: len(values)])

        async with batcher_of(world, double, max_batch=2) as batcher:
            results = [await batcher(number) for number in range(6)]
        assert [np.asarray(one).max() for one in results] == [0, 2, 4, 6, 8, 10]
        results[0][:] = 99  # and no caller's result is another one's
        assert [np.asarray(one).max() for one in results[1:]] == [2, 4, 6, 8, 10]

    async def test_a_caller_cannot_change_what_the_function_keeps(self, world: World) -> None:
        kept = np.zeros(3)
        async with batcher_of(world, lambda values: [kept] * len(values)) as batcher:
            first, second = await batcher(1), await batcher(2)
        first[:] = 1
        assert not second.any()
        assert not kept.any()

    async def test_a_value_that_is_returned_is_a_copy(self, world: World) -> None:
        value, text = [np.zeros(3)], "cannot be written to"
        async with batcher_of(world, lambda values: values) as batcher:
            result = await batcher(value)
            assert await batcher(text) is text
        result[0][:] = 1
        assert not value[0].any()

    @pytest.mark.parametrize(
        "make",
        [
            lambda values: Pair(values, values),
            lambda values: pytest.importorskip("pyarrow").table({"a": values, "b": values}),
        ],
        ids=["a named tuple", "a table"],
    )
    async def test_a_named_tuple_is_no_list_of_results(self, world: World, make: Any) -> None:
        """With two requests, there are as many parts as results."""
        async with batcher_of(world, make, max_batch=2, max_wait=NEVER) as batcher:
            for operation in [world.spawn(batcher.__call__, number) for number in (1, 2)]:
                failure = await raised_by(operation)
                assert isinstance(failure, TypeError)
                assert "expected a list or an array of 2 results" in str(failure)

    async def test_the_function_runs_in_the_context_of_the_block(
        self, world: World, model: Model
    ) -> None:
        variable = contextvars.ContextVar("variable", default="none")
        variable.set("ours")

        async def ask(values: list[Any]) -> list[str]:
            return [variable.get() for _ in values]

        function = ask if model.where == "task" else lambda values: [variable.get()]
        async with batcher_of(world, function) as batcher:
            assert await batcher(0) == "ours"

    async def test_answered_requests_are_freed(self, world: World, model: Model) -> None:
        value = Value()
        withdrawn = weakref.ref(value)
        async with batcher_of(world, model, max_wait=0) as batcher:
            assert await batcher(value) == 2
            del value
            model.forget()
            await world.until(lambda: withdrawn() is None)


class TestFailures:
    async def test_of_the_function_are_raised_in_the_callers_of_that_batch(
        self, world: World, model: Model
    ) -> None:
        async with batcher_of(world, model, max_batch=2, max_wait=NEVER) as batcher:
            calls = Calls(world, batcher)
            good = await calls.begin(1, 2)
            bad = await calls.begin(3, "boom")
            better = await calls.begin(4, 5)
            failures = [await raised_by(operation) for operation in bad]
            assert [await operation.result() for operation in good + better] == [2, 4, 8, 10]
        assert [(type(f), str(f)) for f in failures] == [(FloatingPointError, "boom")] * 2
        counts = batcher.statistics()
        assert (counts.requests, counts.answered, counts.failed) == (6, 4, 2)

    async def test_have_the_traceback_of_the_function(self, world: World, model: Model) -> None:
        """They have no frames of other callers, although these share the exception."""
        async with batcher_of(world, model, max_batch=3, max_wait=NEVER) as batcher:
            operations = await Calls(world, batcher).begin(1, 2, "boom")
            for operation in operations:
                failure = await raised_by(operation)
                names = [frame.name for frame in traceback.extract_tb(failure.__traceback__)]
                if model.where == "process":
                    assert str(failure.__cause__).count("in results") == 1
                else:
                    assert names.count("results") == 1
                assert names.count("__call__") <= 2  # ours, and the test's own

    async def test_of_one_request_are_raised_in_its_caller(
        self, world: World, model: Model
    ) -> None:
        failure = KeyError("who")
        async with batcher_of(world, model, max_batch=3, max_wait=NEVER) as batcher:
            first, bad, last = await Calls(world, batcher).begin(1, failure, 3)
            reported = await raised_by(bad)
            assert repr(reported) == repr(failure)
            assert (await first.result(), await last.result()) == (2, 6)

    @pytest.mark.parametrize(
        ("returned", "kind", "message"),
        [
            ([1], ValueError, "returned 1 results for a batch of 2; expected one per request"),
            ([1, 2, 3], ValueError, "returned 3 results for a batch of 2"),
            ([], ValueError, "returned 0 results for a batch of 2"),
            (None, TypeError, "returned a NoneType; expected a list or an array of 2 results"),
            ("ab", TypeError, "returned a str; expected a list or an array of 2 results"),
            ({1: 2, 3: 4}, TypeError, "returned a dict"),
            ({1, 2}, TypeError, "returned a set"),
            (np.array(3), TypeError, "returned a ndarray"),
        ],
    )
    async def test_a_wrong_number_of_results_is_one(
        self, world: World, returned: Any, kind: type[Exception], message: str
    ) -> None:
        def odd(values: list[Any]) -> Any:
            return values if len(values) == 1 else returned

        async with batcher_of(world, odd, max_batch=2, max_wait=NEVER) as batcher:
            for operation in await Calls(world, batcher).begin(1, 2):
                failure = await raised_by(operation)
                assert type(failure) is kind
                assert str(failure).startswith(f"odd {message}")
            operations = await Calls(world, batcher).begin(5)
        assert await operations[0].result() == 5  # it goes on

    async def test_of_one_request_never_ends_its_caller(self, world: World) -> None:
        """`KeyboardInterrupt` would, if it were raised unchanged."""
        interrupt = KeyboardInterrupt()
        async with batcher_of(world, lambda values: [interrupt for _ in values]) as batcher:
            with pytest.raises(RuntimeError, match="raised KeyboardInterrupt") as raised:
                await batcher(1)
        assert raised.value.__cause__ is interrupt

    async def test_a_plain_function_that_returns_a_coroutine(
        self, world: World, model: Model
    ) -> None:
        other = Model("task")
        async with batcher_of(world, lambda values: other.function(values)) as batcher:
            with pytest.raises(TypeError, match="returned a coroutine: make it a coroutine funct"):
                await batcher(1)

    @pytest.mark.parametrize(
        "failure",
        [
            aioqueue.OutOfRangeError("other queue"),
            aioqueue.QueueClosedError("other queue"),
            aioqueue.CancelledError("other scope"),
            StopIteration(),
            asyncio.CancelledError(),
            GeneratorExit(),
        ],
        ids=lambda failure: type(failure).__name__,
    )
    @pytest.mark.parametrize("how", ["raised", "returned"])
    async def test_cannot_be_mistaken_for_a_clean_stop(
        self, world: World, model: Model, failure: BaseException, how: str
    ) -> None:
        def plain(values: list[Any]) -> list[Any]:
            if how == "raised":
                raise failure
            return [failure for _ in values]

        async def coroutine(values: list[Any]) -> list[Any]:
            return plain(values)

        function: Callable[..., Any] = coroutine if model.where == "task" else plain
        async with batcher_of(world, function) as batcher:
            with pytest.raises(RuntimeError, match=f"raised {type(failure).__name__}") as raised:
                await batcher(1)
            cause = raised.value.__cause__
            while cause is not failure:  # StopIteration comes out of a coroutine as RuntimeError
                assert cause is not None
                cause = cause.__cause__
            counts = batcher.statistics()
        assert (counts.failed, counts.in_flight) == (1, 0)


class TestCopiesOfFailures:
    """Each caller has a copy of the exception, which no other caller can change."""

    async def test_each_copy_has_its_context_notes_and_frames(self, world: World) -> None:
        async def ask(batcher: Any, caller: str) -> tuple[BaseException, str]:
            try:
                raise PermissionError(f"secret of {caller}")
            except PermissionError:
                try:
                    await batcher(caller)
                except FloatingPointError as error:
                    error.add_note(f"request of {caller}")
                    return error, traceback.format_exc()
            raise AssertionError("it was answered")

        async def fail(values: list[Any]) -> list[Any]:
            raise FloatingPointError("boom")

        async with batcher_of(world, fail, max_batch=2, max_wait=NEVER) as batcher:
            before = begun(batcher)
            first = world.spawn(ask, batcher, "A")
            await world.until(lambda: begun(batcher) > before)
            second = world.spawn(ask, batcher, "B")
            (one, of_one), (two, of_two) = await first.result(), await second.result()
        assert one is not two
        assert ("secret of A" in of_one, "request of A" in of_one, "in fail" in of_one) == (
            True,
        ) * 3
        assert "of A" not in of_two
        assert "of B" not in of_one

    @pytest.mark.parametrize("returned", [True, False])
    async def test_a_function_may_raise_one_exception_again_and_again(
        self, world: World, returned: bool
    ) -> None:
        failure = ValueError("the model is not loaded")

        async def fail(values: list[Any]) -> list[Any]:
            if returned:
                return [failure for _ in values]
            raise failure

        async with batcher_of(world, fail, max_wait=0) as batcher:
            reported = []
            for caller in "ab":
                with pytest.raises(ValueError, match="not loaded") as raised:
                    await batcher(caller)
                reported.append(raised.value)
                raised.value.add_note(caller)
        assert len({id(one) for one in (failure, *reported)}) == 3
        assert [one.__notes__ for one in reported] == [["a"], ["b"]]

    @pytest.mark.parametrize("kind", ["ValueError", "CancelledError", "none"])
    async def test_a_failed_batch_is_freed_without_the_collector(
        self, world: World, kind: str
    ) -> None:
        known: list[weakref.ref[Any]] = []

        def function(values: list[Any]) -> list[Any]:
            if kind == "ValueError":
                raise ValueError("of the batch")
            if kind == "CancelledError":
                raise asyncio.CancelledError
            return [None for _ in values]

        async def ask(batcher: Any) -> None:
            value = Value()
            known.append(weakref.ref(value))
            try:
                await batcher(value)
            except (ValueError, RuntimeError):
                pass

        gc.collect()
        gc.disable()
        try:
            async with batcher_of(world, function, max_wait=0) as batcher:
                await world.spawn(ask, batcher).result()
                await world.until(lambda: known[0]() is None)
        finally:
            gc.enable()

    @pytest.mark.parametrize("returned", [True, False])
    async def test_a_frozen_exception_keeps_its_type(self, world: World, returned: bool) -> None:
        @dataclasses.dataclass(frozen=True)
        class TooLongError(Exception):
            tokens: int

        async def fail(values: list[Any]) -> list[Any]:
            if returned:
                return [TooLongError(9) for _ in values]
            raise TooLongError(9)

        async with batcher_of(world, fail, max_wait=0) as batcher:
            with pytest.raises(TooLongError) as raised:
                await batcher(1)
        assert raised.value.tokens == 9


ROOMS: dict[str, Callable[[], aioqueue.FIFOQueue | aioqueue.PriorityQueue]] = {
    "rows": lambda: aioqueue.FIFOQueue(3),
    "bytes": lambda: aioqueue.FIFOQueue(None, max_bytes=3_500),
    "priorities": lambda: aioqueue.PriorityQueue(3),
    "priorities and bytes": lambda: aioqueue.PriorityQueue(None, max_bytes=3_500),
}


class TestCallersThatLeave:
    @pytest.mark.parametrize("room", ROOMS)
    async def test_occupy_no_room(self, task_world: TaskWorld, model: Model, room: str) -> None:
        """The statistics do not count them either, whichever of several leaves."""
        queue = ROOMS[room]()
        async with batcher_of(
            task_world, model, queue=queue, max_batch=1, max_wait=0, on_full="refuse"
        ) as batcher:
            calls = Calls(task_world, batcher)
            operations = await calls.begin_running(model, bytes(1_000))
            for withdrawn in range(3):
                waiting = await calls.begin(*[bytes(1_000)] * 3)
                with pytest.raises(aioqueue.QueueFull):
                    await batcher(bytes(1_000))
                waiting[withdrawn].cancel()
                assert await waiting[withdrawn].was_cancelled()
                counts = batcher.statistics()
                assert (counts.waiting, counts.cancelled, queue.size()) == (2, 4 * withdrawn + 1, 2)
                waiting += await calls.begin(bytes(1_000))
                for operation in waiting[:withdrawn] + waiting[withdrawn + 1 :]:
                    operation.cancel()
                    assert await operation.was_cancelled()
                assert queue.size() == 0
            model.gate.open()
            assert await operations[0].result() == bytes(2_000)
        counts = batcher.statistics()
        assert counts.requests == counts.answered + counts.cancelled

    @pytest.mark.parametrize("room", ROOMS)
    async def test_make_room_for_others(
        self, task_world: TaskWorld, model: Model, room: str
    ) -> None:
        async with batcher_of(
            task_world, model, queue=ROOMS[room](), max_batch=1, max_wait=0
        ) as batcher:
            calls = Calls(task_world, batcher)
            operations = await calls.begin_running(model, bytes(1_000))
            waiting = await calls.begin(*[bytes(1_000)] * 4)
            assert batcher.statistics().waiting_for_room == 1
            waiting[1].cancel()
            assert await waiting[1].was_cancelled()
            await task_world.until(lambda: batcher.statistics().waiting_for_room == 0)
            assert batcher.statistics().waiting == 3
            model.gate.open()
            for operation in (*operations, waiting[0], *waiting[2:]):
                assert await operation.result() == bytes(2_000)

    def test_by_a_timeout_in_threads_occupy_no_room(self) -> None:
        gate, begun_now = threading.Event(), threading.Event()

        def slow(values: list[int]) -> list[int]:
            begun_now.set()
            gate.wait(PATIENCE)
            return values

        queue = sync.FIFOQueue(1)
        with (
            sync.Batcher(slow, max_batch=1, max_wait=0, queue=queue, on_full="refuse") as batcher,
            concurrent.futures.ThreadPoolExecutor(1) as pool,
        ):
            first = pool.submit(batcher, 0)
            assert begun_now.wait(PATIENCE)
            for _ in range(3):
                with pytest.raises(aioqueue.DeadlineExceededError):
                    batcher(1, timeout=0.001)
                assert batcher.statistics().waiting == queue.size() == 0
            gate.set()
            assert first.result() == 0

    async def test_fill_no_batch_that_has_begun(self, task_world: TaskWorld, model: Model) -> None:
        """A worker collects and waits for more."""
        async with batcher_of(task_world, model, max_batch=3, max_wait=NEVER) as batcher:
            calls = Calls(task_world, batcher)
            withdrawn = await calls.begin(1, 2)
            assert batcher.statistics().waiting == 2
            withdrawn[0].cancel()
            assert await withdrawn[0].was_cancelled()
            rest = await calls.begin(3, 4)
            assert [await operation.result() for operation in (withdrawn[1], *rest)] == [4, 6, 8]
        assert model.batches == [[2, 3, 4]]

    async def test_are_left_out_of_later_batches(self, task_world: TaskWorld, model: Model) -> None:
        async with batcher_of(task_world, model, max_wait=0) as batcher:
            calls = Calls(task_world, batcher)
            operations = await calls.begin_running(model, 0)
            operations += await calls.begin(1, 2, 3)
            withdrawn = operations.pop(2)
            withdrawn.cancel()
            assert await withdrawn.was_cancelled()
            model.gate.open()
            assert [await operation.result() for operation in operations] == [0, 2, 6]
        assert model.batches == [[0], [1, 3]]
        counts = batcher.statistics()
        assert (counts.requests, counts.answered, counts.cancelled) == (4, 3, 1)

    async def test_leave_their_place_in_a_batch_to_others(
        self, task_world: TaskWorld, model: Model
    ) -> None:
        """A caller that left makes no batch smaller if others wait."""
        async with batcher_of(task_world, model, max_batch=2, max_wait=NEVER) as batcher:
            calls = Calls(task_world, batcher)
            (withdrawn,) = await calls.begin(1)
            assert batcher.statistics().waiting == 1
            withdrawn.cancel()
            assert await withdrawn.was_cancelled()
            operations = await calls.begin(2)
        assert await operations[0].result() == 4
        assert model.batches == [[2]]

    async def test_do_not_disturb_a_batch_that_runs(
        self, task_world: TaskWorld, model: Model
    ) -> None:
        async with batcher_of(task_world, model, max_batch=3, max_wait=NEVER) as batcher:
            calls = Calls(task_world, batcher)
            first, withdrawn, last = await calls.begin_running(model, 1, 2, 3)
            withdrawn.cancel()
            assert await withdrawn.was_cancelled()
            counts = batcher.statistics()
            assert (counts.in_flight, counts.cancelled) == (2, 1)
            model.gate.open()
            assert (await first.result(), await last.result()) == (2, 6)
        counts = batcher.statistics()
        assert (counts.answered, counts.cancelled, counts.in_flight) == (2, 1, 0)

    @pytest.mark.parametrize("max_wait", [0, 0.001])
    async def test_are_replaced_by_calls_that_wait_behind_them(
        self, task_world: TaskWorld, model: Model, max_wait: float
    ) -> None:
        async with batcher_of(task_world, model, max_batch=2, max_wait=max_wait) as batcher:
            calls = Calls(task_world, batcher)
            operations = await calls.begin_running(model, 0)
            operations += await calls.begin(1, 2, 3, 4)
            withdrawn = operations.pop(1)
            withdrawn.cancel()
            assert await withdrawn.was_cancelled()
            model.gate.open()
            assert [await operation.result() for operation in operations] == [0, 4, 6, 8]
        assert model.batches == [[0], [2, 3], [4]]

    async def test_if_all_have_left_there_is_no_batch(
        self, task_world: TaskWorld, model: Model
    ) -> None:
        async with batcher_of(task_world, model, max_wait=0) as batcher:
            calls = Calls(task_world, batcher)
            (first,) = await calls.begin_running(model, 0)
            for operation in await calls.begin(1, 2, 3):
                operation.cancel()
                assert await operation.was_cancelled()
            model.gate.open()
            assert await first.result() == 0
            assert await batcher(4) == 8
        assert model.batches == [[0], [4]]

    async def test_while_they_wait_for_room_are_not_counted(
        self, task_world: TaskWorld, model: Model
    ) -> None:
        queue = aioqueue.FIFOQueue(1)
        async with batcher_of(task_world, model, queue=queue, max_batch=1, max_wait=0) as batcher:
            calls = Calls(task_world, batcher)
            operations = await calls.begin_running(model, 0)
            operations += await calls.begin(1, 2)
            withdrawn = operations.pop()
            withdrawn.cancel()
            assert await withdrawn.was_cancelled()
            counts = batcher.statistics()
            assert (counts.requests, counts.cancelled, counts.waiting_for_room) == (2, 0, 0)
            model.gate.open()
            assert [await operation.result() for operation in operations] == [0, 2]
        assert model.batches == [[0], [1]]

    async def test_by_a_deadline_of_their_world(self, task_world: TaskWorld, model: Model) -> None:
        async with batcher_of(task_world, model, max_wait=NEVER) as batcher:
            with pytest.raises(CancelledError):
                await task_world.within(0.001, batcher.__call__, 1)
        assert model.batches == []

    def test_by_their_timeout_in_threads(self, model: Model) -> None:
        with sync.Batcher(model.function, where=model.where, max_wait=NEVER) as batcher:
            with pytest.raises(TimeoutError, match=r"waited its timeout of 0.001 s"):
                batcher(1, timeout=0.001)
            message = "has reached the deadline of its CancelScope"
            with (
                pytest.raises(aioqueue.DeadlineExceededError, match=message),
                sync.CancelScope(timeout=0.001),
            ):
                batcher(1)
            with sync.CancelScope() as scope:
                scope.cancel()
                with pytest.raises(aioqueue.CancelledError, match="cancelled by its CancelScope"):
                    batcher(1, timeout=NEVER)
            assert batcher.statistics().cancelled == 3
        assert model.batches == []

    def test_by_ctrl_c(self, model: Model) -> None:
        with (
            sync.Batcher(model.function, where=model.where, max_wait=NEVER) as batcher,
            pytest.raises(KeyboardInterrupt),
            ctrl_c(lambda: batcher.statistics().requests == 1),
        ):
            batcher(1)
        assert model.batches == []


class TestOverload:
    @pytest.mark.parametrize(("room", "reported"), [(1, "1 request"), (2, "2 requests")])
    async def test_is_refused_at_once(
        self, world: World, model: Model, room: int, reported: str
    ) -> None:
        queue = aioqueue.FIFOQueue(room)
        async with batcher_of(
            world,
            model,
            queue=queue,
            on_full="refuse",
            max_batch=room,
            max_wait=0,
            name="scores",
        ) as batcher:
            calls = Calls(world, batcher)
            operations = await calls.begin_running(model, 0)
            operations += await calls.begin(*range(1, room + 1))
            message = rf"^Batcher 'scores' has {reported} waiting already; try again later$"
            with pytest.raises(aioqueue.QueueFull, match=message):
                await batcher(3)
            counts = batcher.statistics()
            assert (counts.refused, counts.requests, counts.capacity) == (1, 1 + room, room)
            model.gate.open()
            answers = [await operation.result() for operation in operations]
            assert answers == [0, 2, 4][: 1 + room]
            assert await batcher(5) == 10
        assert model.batches == [[0], [1, 2][:room], [5]]

    @pytest.mark.parametrize("kind", [aioqueue.FIFOQueue, aioqueue.PriorityQueue])
    async def test_may_be_a_number_of_bytes(
        self, world: World, model: Model, kind: type[aioqueue.FIFOQueue]
    ) -> None:
        """The bytes of the values count, not those of the requests."""
        queue = kind(None, max_bytes=25_000)
        async with batcher_of(
            world, model, queue=queue, on_full="refuse", max_batch=1, max_wait=0
        ) as batcher:
            calls = Calls(world, batcher)
            operations = await calls.begin_running(model, 0)
            operations += await calls.begin(bytes(8_000), bytes(8_000), bytes(8_000))
            with pytest.raises(aioqueue.QueueFull, match="or 25000 bytes of them, waiting already"):
                await batcher(bytes(8_000))
            model.gate.open()
            assert [await operation.result() for operation in operations][1] == bytes(16_000)

    async def test_is_waited_for(self, world: World, model: Model) -> None:
        queue = aioqueue.FIFOQueue(1)
        async with batcher_of(world, model, queue=queue, max_batch=1, max_wait=0) as batcher:
            calls = Calls(world, batcher)
            operations = await calls.begin_running(model, 0)
            operations += await calls.begin(1, 2, 3)
            counts = batcher.statistics()
            assert (counts.waiting, counts.waiting_for_room) == (1, 2)
            model.gate.open()
            assert [await operation.result() for operation in operations] == [0, 2, 4, 6]


class TestCollecting:
    """A worker that collects a batch leaves its requests in the queue, where they count."""

    @pytest.mark.parametrize("kind", [aioqueue.FIFOQueue, aioqueue.PriorityQueue])
    async def test_a_request_that_is_collected_is_waiting(
        self, world: World, model: Model, kind: type[aioqueue.FIFOQueue]
    ) -> None:
        queue = kind(3)
        async with batcher_of(world, model, queue=queue, max_batch=3, max_wait=NEVER) as batcher:
            calls = Calls(world, batcher)
            model.gate.shut()
            operations = await calls.begin(1, 2)
            await world.until(lambda: queue.statistics().waiting_dequeues)
            counts = batcher.statistics()
            assert (counts.requests, counts.waiting, counts.in_flight) == (2, 2, 0)
            assert (queue.size(), counts.batches) == (2, 0)
            assert "running, 2 waiting, 0 in flight" in repr(batcher)
            operations += await calls.begin(3)  # the queue is full: so is the batch
            await world.until(lambda: batcher.statistics().in_flight == 3)
            operations += await calls.begin(4, 5, 6, 7)
            counts = batcher.statistics()
            assert (counts.waiting, counts.waiting_for_room) == (3, 1)
            model.gate.open()
        assert [await operation.result() for operation in operations] == [2, 4, 6, 8, 10, 12, 14]
        assert queue.size() == 0

    @pytest.mark.parametrize("kind", [aioqueue.FIFOQueue, aioqueue.PriorityQueue])
    async def test_a_batch_that_the_bytes_keep_small_begins(
        self, world: World, model: Model, kind: type[aioqueue.FIFOQueue]
    ) -> None:
        """Otherwise it would wait for requests that have no room, and they for it."""
        queue = kind(None, max_bytes=3_500)
        async with batcher_of(world, model, queue=queue, max_batch=8, max_wait=NEVER) as batcher:
            calls = Calls(world, batcher)
            operations = await calls.begin(*[bytes(1_000)] * 3)
            assert batcher.statistics().waiting == 3
            operations += await calls.begin(bytes(1_000))
            for operation in operations[:3]:
                assert await operation.result() == bytes(2_000)
        assert await operations[3].result() == bytes(2_000)
        assert sum(map(len, model.batches)) == 4

    async def test_the_bytes_of_a_batch_that_is_not_full_count(
        self, world: World, model: Model
    ) -> None:
        queue = aioqueue.FIFOQueue(None, max_bytes=3_500)
        async with batcher_of(
            world, model, queue=queue, max_batch=8, max_wait=NEVER, on_full="refuse"
        ) as batcher:
            calls = Calls(world, batcher)
            operations = await calls.begin(*[bytes(1_000)] * 3)
            with pytest.raises(aioqueue.QueueFull, match="has 3 requests, or 3500 bytes of them"):
                await batcher(bytes(1_000))
        assert [await operation.result() for operation in operations] == [bytes(2_000)] * 3

    async def test_a_capacity_made_smaller_makes_batches_smaller(
        self, world: World, model: Model
    ) -> None:
        for queue in (aioqueue.FIFOQueue(8), aioqueue.PriorityQueue(8)):
            model.forget()
            async with batcher_of(
                world, model, queue=queue, max_batch=8, max_wait=NEVER
            ) as batcher:
                calls = Calls(world, batcher)
                operations = await calls.begin_running(model, *range(8))
                queue.capacity = 2
                model.gate.open()
                assert [await one.result() for one in operations] == [*range(0, 16, 2)]
                operations = await calls.begin(1, 2)
                assert [await one.result() for one in operations] == [2, 4]

    async def test_a_batch_that_all_calls_have_left_is_restarted(
        self, task_world: TaskWorld, model: Model
    ) -> None:
        async with batcher_of(task_world, model, max_batch=2, max_wait=0.01) as batcher:
            calls = Calls(task_world, batcher)
            for _ in range(3):
                (withdrawn,) = await calls.begin(1)
                withdrawn.cancel()
                assert await withdrawn.was_cancelled()
                assert batcher.statistics().waiting == 0
            assert await batcher(4) == 8
        assert model.batches == [[4]]
        assert batcher.statistics().cancelled == 3


class TestPriorities:
    async def test_the_smallest_is_first(self, world: World, model: Model) -> None:
        queue = aioqueue.PriorityQueue(8)
        async with batcher_of(world, model, max_batch=2, max_wait=0, queue=queue) as batcher:
            calls = Calls(world, batcher)
            operations = await calls.begin_running(model, 0)
            for value, priority in [(1, 5), (2, 1), (3, None), (4, -1)]:
                operations += await calls.begin(value, priority=priority)
            model.gate.open()
            assert [await operation.result() for operation in operations] == [0, 2, 4, 6, 8]
        assert model.batches == [[0], [4, 3], [2, 1]]

    async def test_a_wrong_one_is_refused(self, world: World, model: Model) -> None:
        queue = aioqueue.PriorityQueue(32)
        async with batcher_of(world, model, queue=queue) as batcher:
            with pytest.raises(aioqueue.InvalidArgumentError, match="priority 'high'"):
                await batcher(1, priority="high")  # type: ignore[arg-type]
            assert batcher.statistics().cancelled == 0

    async def test_a_queue_without_priorities_refuses_one(self, world: World, model: Model) -> None:
        async with batcher_of(world, model) as batcher:
            with pytest.raises(aioqueue.InvalidArgumentError, match=r"^priority: got 3, but Batc"):
                await batcher(1, priority=3)


class TestLeaving:
    async def test_answers_all_calls(self, world: World, model: Model) -> None:
        """Also those that wait for room."""
        queue = aioqueue.FIFOQueue(2)
        operations = []

        async def serve() -> None:
            async with batcher_of(
                world, model, queue=queue, max_batch=2, max_wait=NEVER
            ) as batcher:
                calls = Calls(world, batcher)
                operations.extend(await calls.begin_running(model, 0, 1))
                operations.extend(await calls.begin(2, 3, 4))

        serving = world.spawn(serve)
        await world.until(queue.is_closed)
        assert not serving.done
        model.gate.open()
        assert [await operation.result() for operation in operations] == [0, 2, 4, 6, 8]
        await serving.result()
        assert workers_alive(queue.name) == []

    async def test_does_not_wait_for_a_batch_to_fill(self, world: World, model: Model) -> None:
        async with batcher_of(world, model, max_wait=NEVER) as batcher:
            operations = await Calls(world, batcher).begin(1, 2)
        assert [await operation.result() for operation in operations] == [2, 4]
        assert model.batches == [[1, 2]]

    async def test_ends_the_workers(self, world: World, model: Model) -> None:
        async with batcher_of(world, model, workers=3) as batcher:
            assert await batcher(1) == 2
            assert workers_alive(batcher.name) or (
                model.where == "task" and not isinstance(world, ThreadWorld)
            )
        assert workers_alive(batcher.name) == []

    async def test_later_calls_are_refused(self, world: World, model: Model) -> None:
        async with batcher_of(world, model, name="scores") as batcher:
            pass
        with pytest.raises(aioqueue.QueueClosedError) as raised:
            await batcher(1)
        assert str(raised.value) == "Batcher 'scores' is closed: its block has been left"

    async def test_calls_before_the_block_are_refused(self, world: World, model: Model) -> None:
        batcher = batcher_of(world, model)
        with pytest.raises(RuntimeError, match="does not run yet: call it within its block"):
            await batcher(1)

    async def test_a_block_can_be_entered_once(self, world: World, model: Model) -> None:
        async with batcher_of(world, model) as batcher:
            with pytest.raises(RuntimeError, match="entered already; make a new one"):
                await batcher.__aenter__()
            assert await batcher(1) == 2
        with pytest.raises(RuntimeError, match="entered already; make a new one"):
            await batcher.__aenter__()

    async def test_by_an_exception_answers_and_raises_it_unchanged(
        self, world: World, model: Model
    ) -> None:
        failure = KeyError("the rest of the program")
        operations = []
        with pytest.raises(KeyError) as raised:
            async with batcher_of(world, model, max_wait=NEVER) as batcher:
                operations += await Calls(world, batcher).begin(1, 2)
                raise failure
        assert raised.value is failure
        assert [await operation.result() for operation in operations] == [2, 4]

    async def test_when_other_code_has_closed_the_queue(self, world: World, model: Model) -> None:
        queue = aioqueue.FIFOQueue(32)
        async with batcher_of(world, model, queue=queue) as batcher:
            failure = OSError("the disk")
            queue.close(cause=failure)
            if model.where != "task":
                await world.until(lambda: not workers_alive(batcher.name))
            message = "its queue was closed by other code"
            with pytest.raises(aioqueue.QueueClosedError, match=message) as raised:
                await batcher(1)
            assert raised.value.__cause__ is failure
        assert "closed" in repr(batcher)

    async def test_a_cancellation_refuses_calls_of_batches_not_begun(
        self, task_world: TaskWorld, model: Model
    ) -> None:
        operations: list[TaskOperation] = []

        async def serve() -> None:
            async with batcher_of(task_world, model, max_batch=2, max_wait=NEVER) as batcher:
                batchers.append(batcher)
                calls = Calls(task_world, batcher)
                operations.extend(await calls.begin_running(model, 0, 1))
                operations.extend(await calls.begin(2, 3, 4))
                await task_world.until(lambda: False)

        batchers: list[aioqueue.Batcher[Any, Any]] = []
        await self._cancel_and_check(task_world, model, serve, operations, lambda: True)
        counts = batchers[0].statistics()
        assert (counts.in_flight, counts.waiting) == (0, 0)
        assert counts.answered + counts.failed == 5

    async def test_by_a_cancellation_while_it_waits_for_answers(
        self, task_world: TaskWorld, model: Model
    ) -> None:
        queue = aioqueue.FIFOQueue(10)
        operations: list[TaskOperation] = []

        async def serve() -> None:
            async with batcher_of(
                task_world, model, queue=queue, max_batch=2, max_wait=NEVER
            ) as batcher:
                calls = Calls(task_world, batcher)
                operations.extend(await calls.begin_running(model, 0, 1))
                operations.extend(await calls.begin(2, 3, 4))

        await self._cancel_and_check(task_world, model, serve, operations, queue.is_closed)

    async def _cancel_and_check(
        self,
        world: TaskWorld,
        model: Model,
        serve: Callable[[], Any],
        operations: list[TaskOperation],
        when: Callable[[], object],
    ) -> None:
        serving = world.spawn(serve)
        await world.until(lambda: len(operations) == 5 and when())
        serving.cancel()
        for operation in operations[2:]:
            failure = await raised_by(operation)
            assert isinstance(failure, aioqueue.QueueClosedError)
            assert "was stopped before it came to this request" in str(failure)
        if model.where != "task":  # which cannot be cancelled
            assert not serving.done
            model.gate.open()
            assert [await operation.result() for operation in operations[:2]] == [0, 2]
        else:
            for operation in operations[:2]:
                assert isinstance(await raised_by(operation), aioqueue.QueueClosedError)
        assert await serving.was_cancelled()
        assert len(model.batches) == 1

    async def test_an_exception_is_raised_before_a_later_cancellation(
        self, task_world: TaskWorld, model: Model
    ) -> None:
        queue = aioqueue.FIFOQueue(10)
        operations: list[TaskOperation] = []

        async def serve() -> None:
            async with batcher_of(task_world, model, queue=queue, max_batch=1) as batcher:
                calls = Calls(task_world, batcher)
                operations.extend(await calls.begin_running(model, 0))
                operations.extend(await calls.begin(1))
                raise KeyError("the rest of the program")

        serving = task_world.spawn(serve)
        await task_world.until(queue.is_closed)
        serving.cancel()
        assert isinstance(await raised_by(operations[1]), aioqueue.QueueClosedError)
        model.gate.open()
        if model.where != "task":
            assert await operations[0].result() == 0
        else:
            assert isinstance(await raised_by(operations[0]), aioqueue.QueueClosedError)
        assert isinstance(await raised_by(serving), KeyError)

    def test_by_a_cancel_scope_in_a_thread(self, model: Model) -> None:
        queue, scope = aioqueue.FIFOQueue(10), sync.CancelScope()
        failures: list[BaseException] = []

        def ask() -> None:
            try:
                batcher(1)
            except Exception as error:
                failures.append(error)

        def cancel_when_closed() -> None:
            spin_until(queue.is_closed)
            scope.cancel()

        model.gate.shut()
        caller, canceller = (threading.Thread(target=run) for run in (ask, cancel_when_closed))
        canceller.start()
        with (
            pytest.raises(aioqueue.CancelledError),
            scope,
            sync.Batcher(
                model.function, where=model.where, queue=queue, max_batch=1, max_wait=0
            ) as batcher,
        ):
            first = threading.Thread(target=ask)
            first.start()
            spin_until(lambda: len(model.batches) == 1)
            caller.start()
            spin_until(lambda: batcher.statistics().waiting == 1)
        spin_until(lambda: len(failures) >= 1)
        model.gate.open()
        for thread in (first, caller, canceller):
            thread.join()
        kinds = [type(failure) for failure in failures]
        assert kinds == [aioqueue.QueueClosedError] * (1 if model.where != "task" else 2)

    def test_by_ctrl_c_in_a_thread(self, model: Model) -> None:
        failures: list[BaseException] = []

        def ask(value: int) -> None:
            try:
                batcher(value)
            except Exception as error:
                failures.append(error)

        def open_when_refused() -> None:
            spin_until(lambda: len(failures) >= 2)
            model.gate.open()

        model.gate.shut()
        opener = threading.Thread(target=open_when_refused)
        opener.start()
        callers = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
        with (
            pytest.raises(KeyboardInterrupt),
            sync.Batcher(model.function, where=model.where, max_batch=1) as batcher,
        ):
            for caller in callers:
                caller.start()
            spin_until(lambda: len(model.batches) == 1 and batcher.statistics().waiting == 2)
            with ctrl_c(lambda: batcher.statistics().waiting == 2):
                threading.Event().wait(5)
        for thread in (*callers, opener):
            thread.join()
        assert {type(failure) for failure in failures} == {aioqueue.QueueClosedError}
        assert len(failures) == (2 if model.where != "task" else 3)
