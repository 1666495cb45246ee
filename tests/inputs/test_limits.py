"""How large examples are taken to be: the arrays and strings in them, each container once."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aioqueue import sync
from aioqueue.inputs import prepare
from aioqueue.inputs.limits import size_of
from tests.inputs.preparing import drained

ARRAY = np.zeros(100)


@pytest.mark.parametrize(
    ("example", "size"),
    [
        (ARRAY, 800),
        (b"12345", 5),
        (bytearray(7), 7),
        ("text", 4),
        ((ARRAY, "text"), 804),
        ({"x": [ARRAY, ARRAY[:10]], "y": "text"}, 884),
        (SimpleNamespace(nbytes=9), 9),  # other libraries' arrays say it so
        (5, sys.getsizeof(5)),
        ((), 0),
    ],
)
def test_of_one_example(example: Any, size: int) -> None:
    assert size_of((example,)) == size


def test_of_several() -> None:
    assert size_of([ARRAY, (ARRAY, "text")]) == 1604
    assert size_of([f"{number}", f"{number}"] for number in range(10)) == 20


def test_a_container_counts_once_also_if_it_is_in_itself() -> None:
    knot: list[Any] = [ARRAY]
    knot.append(knot)
    ring: dict[str, Any] = {"text": "text", "knot": knot}
    ring["ring"] = (ring, knot)
    assert size_of((knot,)) == 800
    assert size_of((knot, ring, ring)) == 804


def test_such_an_example_goes_through_a_bounded_pipeline() -> None:
    def make(number: int) -> list[Any]:
        made: list[Any] = [number]
        made.append(made)
        return made

    queue = sync.FIFOQueue(9)
    got = drained(queue, prepare(range(9), make, into=queue, limit_bytes=1000, ordered=True))
    assert [made[0] for made in got] == list(range(9))
