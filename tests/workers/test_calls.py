"""What a function that was called for an item has made of it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import anyio.lowlevel
import numpy as np
import pytest

from aioqueue import OutOfRangeError
from aioqueue.items.item import EpochEnd, Item
from aioqueue.sources.shuffling import rng
from aioqueue.workers.calls import ItemCall, failure_of, takes_rng
from tests.kit.worlds import TaskWorld

ITEM = Item(3, 5, 1, 7)


def called(function: Any, item: Item = ITEM, *, drop_none: bool = False) -> list[Any]:
    return list(ItemCall(function, 11, drop_none).examples(item))


@pytest.mark.parametrize("made", [4, "text", (1, 2), [1, 2], {"x": 1}, np.int64(3), 2.5, b"b"])
def test_one_example(made: Any) -> None:
    assert called(lambda value: made) == [made]


def test_an_array_is_one_example() -> None:
    (example,) = called(lambda value: np.arange(3))
    assert example.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("made_of", "pixels_of"),
    [
        (lambda pixels: pixels, lambda example: example),
        (lambda pixels: [pixels], lambda example: example[0]),
        (lambda pixels: {"pixels": pixels}, lambda example: example["pixels"]),
        (lambda pixels: SimpleNamespace(pixels=pixels), lambda example: example.pixels),
    ],
    ids=["array", "list", "dict", "object"],
)
def test_memory_that_is_used_again_is_copied(made_of: Any, pixels_of: Any) -> None:
    pixels = np.zeros(1)

    def make(value: int) -> Any:
        pixels[0] += value
        return made_of(pixels)

    call = ItemCall(make, 0, False)
    (first,), (second,) = call.examples(ITEM), call.examples(ITEM)
    assert (pixels_of(first).tolist(), pixels_of(second).tolist()) == ([5.0], [10.0])


def test_a_generator_makes_any_number() -> None:
    def make(value: int) -> Iterator[int | None]:
        yield value
        yield None
        yield value + 1

    assert called(make, drop_none=True) == [5, 6]
    examples = iter(ItemCall(make, 0, False).examples(ITEM))
    assert next(examples) == 5
    with pytest.raises(TypeError, match=r"make returned None; return an example, or pass"):
        next(examples)


def test_nothing() -> None:
    assert called(lambda value: None, drop_none=True) == []
    with pytest.raises(TypeError, match="returned None"):
        called(lambda value: None)


def test_the_end_of_an_epoch_is_forwarded() -> None:
    end = EpochEnd(1, 9)

    def fail(value: Any) -> None:
        raise AssertionError(value)

    assert called(fail, Item(9, end, 1, 9)) == [end]


def test_random_numbers_are_those_of_the_item() -> None:
    def draw(value: int, rng: np.random.Generator) -> tuple[int, float]:
        return value, rng.random()

    assert called(draw) == [(5, rng(11, 1, 7).random())]
    assert takes_rng(draw)
    assert not takes_rng(abs)


def test_what_would_have_to_be_awaited_is_refused() -> None:
    async def wait() -> None:
        await anyio.lowlevel.checkpoint()

    made = wait()
    with pytest.raises(TypeError, match=r"is a plain function but returned a coroutine: make it"):
        called(lambda value: made)
    assert inspect.getcoroutinestate(made) == inspect.CORO_CLOSED

    async def make() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(
        TypeError, match=r"returned an async_generator: make it an async generator function"
    ):
        called(lambda value: make())


def test_a_function_of_several_arguments() -> None:
    def sum_of(one: int, other: int) -> int:
        return one + other

    def sums(pair: tuple[int, int]) -> int:
        return sum_of(pair[0])  # type: ignore[call-arg]

    def notes_of(function: Any, value: Any) -> list[str]:
        item = Item(0, value, 0, 0)
        with pytest.raises(TypeError) as caught:
            called(function, item)
        return failure_of(item, caught.value, "prepare").__notes__

    notes = notes_of(sum_of, (1, 2))
    assert "an item is passed as one argument" in notes[-1]
    assert len(notes_of(sum_of, 1)) == len(notes_of(sums, (1, 2))) == len(notes) - 1


def test_in_tasks(task_world: TaskWorld) -> None:
    async def one(value: int) -> int:
        await anyio.lowlevel.checkpoint()
        return value

    async def none(value: int) -> None:
        await anyio.lowlevel.checkpoint()

    async def many(value: int) -> AsyncIterator[int | None]:
        yield value
        yield None
        yield value + 1

    async def example(function: Any, drop_none: bool = False) -> Any:
        call = ItemCall(function, 0, drop_none)
        return call.single_example(await call.begin_async(ITEM), ITEM)

    async def body() -> None:
        assert await example(one) == (5,)
        assert await example(none, drop_none=True) == ()
        with pytest.raises(TypeError, match="none returned None"):
            await example(none)
        examples = ItemCall(many, 0, True).begin_async(ITEM)
        assert [example async for example in examples] == [5, 6]
        examples = ItemCall(many, 0, False).begin_async(ITEM)
        assert await anext(examples) == 5
        with pytest.raises(TypeError, match="many returned None"):
            await anext(examples)

    task_world.run(body)


def test_a_failure_names_its_item_once() -> None:
    error = ValueError("bad")
    assert failure_of(ITEM, error, "prepare") is error
    assert failure_of(ITEM, error, "prepare") is error
    assert error.__notes__ == ["while preparing item 5 (epoch 1, index 7)"]


@pytest.mark.parametrize("error", [OutOfRangeError("end"), StopIteration(), SystemExit(3)])
def test_what_would_end_others_is_wrapped(error: BaseException) -> None:
    failure = failure_of(ITEM, error, "prepare")
    assert isinstance(failure, RuntimeError)
    assert str(failure).startswith(f"the function raised {type(error).__name__}")
    assert failure.__cause__ is error
    assert failure.__notes__ == ["while preparing item 5 (epoch 1, index 7)"]
