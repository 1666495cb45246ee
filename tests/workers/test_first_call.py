"""What the function of a `prepare` forgets to await is an error, wherever it runs."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.inputs import Retry, from_iterable, numbers, prepare
from aioqueue.items.item import Item
from aioqueue.workers.calls import ItemCall
from tests.kit.worlds import TaskWorld

FORGOTTEN = r"called the coroutine function 'save' and did not await it"


async def save(value: Any) -> None:
    """What is forgotten."""


def plain(value: int) -> int:
    save(value)  # type: ignore[unused-coroutine]
    return value


async def awaited(value: int) -> int:
    save(value)  # type: ignore[unused-coroutine]
    return value


def several(value: int) -> Iterator[int]:
    yield value
    save(value)  # type: ignore[unused-coroutine]
    yield value


async def several_awaited(value: int) -> AsyncIterator[int]:
    yield value
    save(value)  # type: ignore[unused-coroutine]
    yield value


FUNCTIONS = [plain, awaited, several, several_awaited]


def raised(run: Callable[[], Any]) -> BaseException:
    with pytest.raises(ExceptionGroup) as caught:
        run()
    return caught.value.exceptions[0]


@pytest.mark.parametrize("function", FUNCTIONS)
class TestForgotten:
    """Warnings are errors in this suite: Python says nothing of what was dropped."""

    def test_in_a_pipeline(self, function: Any) -> None:
        with pytest.raises(ExceptionGroup) as caught:
            list(numbers(3).prepare(function))
        assert caught.group_contains(TypeError, match=f"^{function.__name__} {FORGOTTEN}")

    def test_into_a_queue_of_threads(self, function: Any) -> None:
        def run() -> None:
            queue = sync.FIFOQueue(9)
            with sync.Coordinator() as coord:
                coord.start(prepare(numbers(3, epochs=1), function, into=queue))
                list(queue)

        assert isinstance(raised(run), TypeError)

    async def test_into_a_queue_of_tasks(self, task_world: TaskWorld, function: Any) -> None:
        queue = aioqueue.FIFOQueue(9)
        with pytest.raises(ExceptionGroup) as caught:
            async with aioqueue.Coordinator() as coord:
                coord.start(prepare(numbers(3, epochs=1), function, into=queue))
                await coord.wait_for_stop()
        assert caught.group_contains(TypeError, match=FORGOTTEN)

    @pytest.mark.parametrize(
        "limits", [{"item_timeout": 60}, {"concurrency_key": abs, "max_per_key": 1}]
    )
    def test_with_limits(self, function: Any, limits: dict[str, Any]) -> None:
        with pytest.raises(ExceptionGroup) as caught:
            list(numbers(3).prepare(function, **limits))
        assert caught.group_contains(TypeError, match=FORGOTTEN)

    def test_an_item_that_is_tried_again_fails_again(self, function: Any) -> None:
        retry = Retry(times=2, on=TypeError)
        with pytest.raises(ExceptionGroup) as caught:
            list(numbers(3).prepare(function, on_error=retry))
        assert caught.group_contains(TypeError, match=FORGOTTEN)

    def test_no_item_passes_by_that_is_skipped(self, function: Any) -> None:
        assert list(numbers(9).prepare(function, on_error="skip")) == []


class TestOthers:
    def test_a_source_that_drops_one_hears_pythons_warning(self) -> None:
        def read() -> Iterator[int]:
            save(1)  # type: ignore[unused-coroutine]
            yield 1

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert list(from_iterable(read).prepare(abs)) == [1]
        assert ["'save' was never awaited" in str(one.message) for one in caught] == [True]

    def test_a_function_that_fails_besides_hears_pythons_warning(self) -> None:
        def fail(value: int) -> None:
            save(value)  # type: ignore[unused-coroutine]
            raise ZeroDivisionError

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with pytest.raises(ExceptionGroup) as failed:
                list(numbers(3).prepare(fail, workers=1))
        assert failed.group_contains(ZeroDivisionError)
        assert ["'save' was never awaited" in str(one.message) for one in caught] == [True]


class TestCost:
    """The function itself is called as soon as one call of it was seen to end well."""

    @staticmethod
    def called(call: ItemCall) -> Any:
        return call._call

    def test_of_a_plain_function(self) -> None:
        call = ItemCall(abs, 0, drop_none=False)
        assert self.called(call) is not abs
        assert list(call.examples(Item(0, -1, 0, 0))) == [1]
        assert self.called(call) is abs

    def test_of_a_generator_function(self) -> None:
        def twice(value: int) -> Iterator[int]:
            yield value
            yield value

        call = ItemCall(twice, 0, drop_none=False)
        examples = iter(call.examples(Item(0, 1, 0, 0)))
        assert next(examples) == 1
        assert self.called(call) is not twice
        assert list(examples) == [1]
        assert self.called(call) is twice

    async def test_of_a_coroutine_function(self, task_world: TaskWorld) -> None:
        async def same(value: int) -> int:
            return value

        call = ItemCall(same, 0, drop_none=False)
        made: Awaitable[Any] = call.examples_async(Item(0, 1, 0, 0))
        assert await made == (1,)
        assert self.called(call) is same

    def test_a_call_that_fails_is_followed_by_another_that_is_watched(self) -> None:
        call = ItemCall(lambda value: 1 // value, 0, drop_none=False)
        with pytest.raises(ZeroDivisionError):
            call.examples(Item(0, 0, 0, 0))
        assert self.called(call) is not call.function
        call.examples(Item(1, 1, 0, 1))
        assert self.called(call) is call.function
