"""A loop that goes through the first epoch again and again gets a warning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aioqueue.inputs import Pipeline, from_iterable, items, mix, numbers
from tests.kit.going import epochs_of, results
from tests.kit.worlds import World


def noisy(item: int, rng: np.random.Generator) -> float:
    return item + float(rng.random())


RANDOM: dict[str, Callable[[], Pipeline[Any]]] = {
    "shuffled": lambda: numbers(6, shuffle=True, seed=1).batch(2),
    "a buffer": lambda: numbers(6).shuffle(3),
    "generators": lambda: numbers(6).prepare(noisy).batch(2),
    "a mixture": lambda: mix([numbers(6), numbers(2)], seed=1).batch(2),
    "mixed in": lambda: numbers(6).batch(2).mix(numbers(6, shuffle=True, seed=1).batch(2)),
}
SAME: dict[str, Callable[[], Pipeline[Any]]] = {
    "in order": lambda: numbers(6).prepare(abs).batch(2),
    "an iterable": lambda: from_iterable([1, 2, 3]).batch(2),
    "mixed, in order": lambda: items(["a"]).batch(1).mix(items(["b"]).batch(1)),
}


@pytest.mark.parametrize("name", [*RANDOM, *SAME])
async def test_the_second_time_warns(
    world: World, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = (RANDOM | SAME)[name]()
    found = [await results(world, pipeline) for _ in range(3)]
    assert found[0] == found[1] == found[2]
    reported = [one.getMessage() for one in caplog.records]
    assert len(reported) == (name in RANDOM)
    assert all("each time you get epoch 0" in one and ".epochs(n)" in one for one in reported)


async def test_epochs_are_others(world: World, caplog: pytest.LogCaptureFixture) -> None:
    pipeline = RANDOM["shuffled"]()
    await results(world, pipeline)
    for number in range(2):
        await epochs_of(world, pipeline.epochs(1, start=number))
    await results(world, pipeline.unbatch())  # another pipeline
    assert not caplog.records
