"""Which functions run in an event loop, and what messages call them."""

from __future__ import annotations

import functools
import operator
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from aioqueue.base.arguments import function_name, is_async, is_coroutine_function


async def coroutine_function() -> None:
    pass


async def async_generator() -> AsyncIterator[int]:
    yield 1


def plain() -> None:
    pass


def generator() -> Any:
    yield 1


class Awaited:
    async def __call__(self) -> None:
        pass

    async def method(self) -> None:
        pass


class Generating:
    async def __call__(self) -> AsyncIterator[int]:
        yield 1


class Called:
    def __call__(self) -> None:
        pass


def twice_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.partial(functools.partial(function), 1)


COROUTINES = [coroutine_function, Awaited(), Awaited().method, Awaited().__call__]
ASYNC_GENERATORS = [async_generator, Generating(), Generating().__call__]
PLAIN = [plain, generator, Called(), Called().__call__, Called, Awaited, print, operator.neg]


@pytest.mark.parametrize("wrap", [lambda function: function, twice_partial])
class TestWhereAFunctionRuns:
    @pytest.mark.parametrize("function", COROUTINES)
    def test_coroutine_functions(self, wrap: Any, function: Any) -> None:
        assert is_coroutine_function(wrap(function))
        assert is_async(wrap(function))

    @pytest.mark.parametrize("function", ASYNC_GENERATORS)
    def test_async_generators_run_in_a_loop_and_are_not_awaited(
        self, wrap: Any, function: Any
    ) -> None:
        assert not is_coroutine_function(wrap(function))
        assert is_async(wrap(function))

    @pytest.mark.parametrize("function", PLAIN)
    def test_all_others(self, wrap: Any, function: Any) -> None:
        assert not is_coroutine_function(wrap(function))
        assert not is_async(wrap(function))


def test_what_is_no_function_is_not_async() -> None:
    assert not is_async(functools)
    assert not is_coroutine_function(None)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (plain, "plain"),
        (twice_partial(plain), "plain"),
        (Awaited().method, "method"),
        (Called(), "Called"),
        (Called, "Called"),
        (len, "len"),
    ],
)
def test_names(function: Any, name: str) -> None:
    assert function_name(function) == name
