"""Going through pipelines in every world: what the tests of pipelines share."""

from __future__ import annotations

import threading
from array import array
from collections import UserList, deque
from collections.abc import Callable, ItemsView, Mapping, ValuesView
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from aioqueue.pipeline.stages.pack import Pack
from tests.kit.worlds import ThreadWorld, World


def packed(
    pipeline: Any,
    length: int,
    open_rows: int,
    *,
    padding_value: Any = 0,
    on_too_long: Any = "fail",
) -> Any:
    """`pack` with another number of open rows, so that few sequences fill them."""
    stage = Pack(length, padding_value, on_too_long, open_rows)
    return pipeline._pipeline()._with(stage)


async def results(world: World, pipeline: Any) -> list[Any]:
    """What one epoch gives, as plain Python values."""
    if isinstance(world, ThreadWorld):
        return [plain(value) for value in pipeline]
    return [plain(value) async for value in pipeline]


async def epochs_of(world: World, epochs: Any) -> list[list[Any]]:
    """What each epoch gives."""
    if isinstance(world, ThreadWorld):
        return [[plain(value) for value in epoch] for epoch in epochs]
    return [[plain(value) async for value in epoch] async for epoch in epochs]


async def first(world: World, epochs: Any, count: int) -> list[list[Any]]:
    """The first of each epoch, each of which is left then."""
    if isinstance(world, ThreadWorld):
        return [[plain(next(epoch)) for _ in range(count)] for epoch in epochs]
    return [[plain(await anext(epoch)) for _ in range(count)] async for epoch in epochs]


def plain(value: Any) -> Any:
    """Arrays as lists, so that they can be compared."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return list(map(plain, value.tolist()))
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, list | UserList):
        return list(map(plain, value))
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, UserList | deque | array | memoryview | ValuesView | ItemsView):
        return list(map(plain, value))
    if is_dataclass(value) or isinstance(value, SimpleNamespace):
        return {name: plain(getattr(value, name)) for name in ("left", "right")}
    return value


class Counting:
    """Calls a function, and counts the calls; thread-safe."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self.calls: list[Any] = []

    def __call__(self, item: Any) -> Any:
        with self._lock:
            self.calls.append(item)
        return self._function(item)
