"""How large things are taken to be."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aioqueue.core.storage.sized import rows_within, size_of

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


def test_of_what_is_in_an_array_of_objects() -> None:
    texts = np.array(["ab", "cde"], object)
    assert size_of((texts,)) == texts.nbytes + 5
    ring = np.empty(1, object)
    ring[0] = ring
    assert size_of((ring,)) == 2 * ring.nbytes


def test_rows_of_one_size() -> None:
    assert rows_within(100, 30) == 3
    assert rows_within(29, 30) == 1  # which may always go in
    assert rows_within(1, 0) is None
