"""Tests of one file, run once more on other objects: queues of a cluster, or of another process."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any

import pytest

from tests.kit.worlds import AsyncioWorld, Kind, TaskWorld, World

WORLD_NAMES = ("world", "task_world", "loop_world")
_KEPT_MARKS = ("filterwarnings", "skip", "skipif", "timeout")


@dataclass(frozen=True)
class Body:
    """A test of another file, and the values of its parameters.

    Attributes:
        case: its class; None for a function of the module.
        function: the test itself.
        values: what its own marks parametrize it with.
    """

    case: type | None
    function: Callable[..., Any]
    values: Mapping[str, Any]

    @property
    def parameters(self) -> Collection[str]:
        return [name for name in inspect.signature(self.function).parameters if name != "self"]

    @property
    def is_in_world(self) -> bool:
        """Whether a parameter decides where it runs; otherwise the test does."""
        return bool({*self.parameters} & {*WORLD_NAMES})

    def fits(self, world: type[World]) -> bool:
        """Whether the world has what it needs."""
        if "loop_world" in self.parameters:
            return issubclass(world, AsyncioWorld)  # tasks of asyncio
        # Cancellation from outside, which threads do not have.
        return issubclass(world, TaskWorld) or "task_world" not in self.parameters

    def run(self, world: World, **fixtures: Any) -> None:
        """Run it in a world."""
        assert self.fits(type(world))
        values = {**dict.fromkeys(WORLD_NAMES, world), **fixtures, **self.values}
        function = self.function if self.case is None else partial(self.function, self.case())
        call = partial(function, **{name: values[name] for name in self.parameters})
        if inspect.iscoroutinefunction(self.function):
            world.run(call)
        else:
            call()


def bodies_of(
    module: ModuleType,
    left_out: Collection[str],
    fixtures: Collection[str] = (),
    *,
    in_worlds_only: bool = True,
) -> Iterator[Any]:
    """Yield the tests of a module, as parameters of another test.

    Args:
        module: a file of tests.
        left_out: names of tests that do not fit.
        fixtures: names of the fixtures that `Body.run` is given.
        in_worlds_only: whether to leave out those that run in no world.
    """
    cases = [one for one in vars(module).values() if inspect.isclass(one)]
    for case in (module, *(one for one in cases if one.__module__ == module.__name__)):
        name = case.__name__ if inspect.isclass(case) else ""
        for test, function in list(vars(case).items()):
            if not (test.startswith("test_") and inspect.isfunction(function)) or test in left_out:
                continue
            marks = [*getattr(case, "pytestmark", []), *getattr(function, "pytestmark", [])]
            for place, values in enumerate(_parameters(marks)):
                body = Body(case if inspect.isclass(case) else None, function, values)
                missing = {*body.parameters} - {*values, *fixtures, *WORLD_NAMES}
                if missing or (in_worlds_only and not body.is_in_world):
                    continue
                number = f"-{place}" if values else ""
                kept = [mark for mark in marks if mark.name in _KEPT_MARKS]
                yield pytest.param(
                    body, id=f"{f'{name}.' if name else ''}{test}{number}", marks=kept
                )


def _parameters(marks: list[pytest.Mark]) -> Iterator[dict[str, Any]]:
    """Yield the values that a test is run with, as its own marks say them."""
    choices = []
    for mark in marks:
        if mark.name == "parametrize":
            names, values = mark.args[:2]
            names = [one.strip() for one in names.split(",")] if isinstance(names, str) else names
            choices.append(
                [dict(zip(names, _values(value, len(names)), strict=True)) for value in values]
            )
    for chosen in product(*choices):
        yield {name: value for one in chosen for name, value in one.items()}


def _values(value: Any, count: int) -> Any:
    if isinstance(value, type(pytest.param())):
        return value.values
    return value if count > 1 else [value]


def kinds_of(body: Body, kinds: Collection[Kind]) -> Collection[Kind]:
    """Return the kinds of queue that a body is to be run with: one, if it makes its own."""
    return kinds if "kind" in body.parameters else list(kinds)[:1]
