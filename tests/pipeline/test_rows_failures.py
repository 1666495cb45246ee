"""What fails in a stage says in which, and at which examples: also where no worker had them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aioqueue.inputs import Pipeline, items, numbers
from tests.kit.going import results
from tests.kit.worlds import World


def unlucky(number: int) -> int:
    if number == 5:
        raise ValueError("unlucky")
    return number


def all_lucky(examples: list[int]) -> list[int]:
    return list(map(unlucky, examples))


def ragged(number: int) -> np.ndarray:
    return np.zeros(1 + number // 5)


def sequences(*lengths: int) -> Any:
    return items([np.arange(length) for length in lengths])


CASES: dict[str, tuple[Callable[[], Pipeline[Any]], str]] = {
    "filter": (
        lambda: numbers(9).filter(unlucky),
        "in the stage `filter unlucky`, at the example 5 (epoch 0, index 5)",
    ),
    "filter, many at once": (
        lambda: numbers(9).prepare(abs).filter(unlucky).batch(9),
        "in the stage `filter unlucky`, at the example 5 (epoch 0, index 5)",
    ),
    "collate": (
        lambda: numbers(9).batch(2, collate=all_lucky),
        "in the stage `batch 2`, at 2 examples (epoch 0, index 4, 5)",
    ),
    "collate, of which some came before": (
        lambda: numbers(20).prepare(abs).batch(12, collate=all_lucky),
        "in the stage `batch 12`, at 12 examples (epoch 0, index 0, 1, 2, 3, 4, 5, 6, 7, ...)",
    ),
    "what is left at the end": (
        lambda: numbers(6).batch(4, collate=all_lucky),
        "in the stage `batch 4`, at 2 examples (epoch 0, index 4, 5)",
    ),
    "another shape": (
        lambda: numbers(9).prepare(ragged).batch(3),
        "in the stage `batch 3`, at 3 examples (epoch 0, index 3, 4, 5)",
    ),
    "bucket": (
        lambda: sequences(1, 2, 3).bucket(
            [9], batch_size=9, length=lambda example: unlucky(len(example) + 2)
        ),
        "in the stage `bucket 9 rows by length [9]`, at the example array([0, 1, 2])"
        " (epoch 0, index 2)",
    ),
    "pack": (
        lambda: sequences(1, 9, 2).prepare(abs).pack(4),
        "in the stage `pack into rows of 4`, at the example array([0, 1, 2, 3, 4, 5, 6, 7, 8])"
        " (epoch 0, index 1)",
    ),
    "unbatch": (
        lambda: numbers(2).unbatch(),
        "in the stage `unbatch`, at the example 0 (epoch 0, index 0)",
    ),
    "before workers": (
        lambda: numbers(9).filter(unlucky).prepare(abs),
        "in the stage `filter unlucky`, at the example 5 (epoch 0, index 5)",
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_failure_names_its_stage_and_examples(world: World, case: str) -> None:
    pipeline, note = CASES[case]
    with pytest.raises(ExceptionGroup) as failed:
        await results(world, pipeline())
    (failure,) = failed.value.exceptions
    assert failure.__notes__[0] == note


def test_of_another_epoch() -> None:
    pipeline = numbers(9, shuffle=True, seed=7).shuffle(4).filter(unlucky)
    with pytest.raises(ExceptionGroup) as failed:
        for epoch in pipeline.epochs(1, start=3):
            list(epoch)
    (failure,) = failed.value.exceptions
    assert "(epoch 3, index 5)" in failure.__notes__[0]
