"""`ElementSpec.row_maker`: the quick way gives the same rows, and refuses the same elements."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np
import pytest

from aioqueue import InvalidArgumentError
from aioqueue.core.elements.element_spec import ElementSpec

KINDS = ["int8", "uint64", "float32", "float64", "complex64", "bool", "S3", "str", "object", ">i4"]
VALUES = [
    *(
        0,
        -1,
        127,
        128,
        2**63,
        2**64,
        0.5,
        -0.0,
        inf,
        nan,
        1e39,
        1e308,
        1j,
        True,
        None,
        "a",
        b"abcd",
    ),
    *(np.int8(3), np.uint64(3), np.float32(3), np.float64(3), np.complex64(3), np.bool_(True)),
    *(np.zeros(()), np.zeros((), "int8"), np.zeros(2, "float32"), np.zeros(3, "float32"), [1, 2]),
    *(np.zeros(2, "int8"), np.zeros(2, "bool"), np.zeros(2, ">i4"), np.array(["a", "b"])),
]


def made(make: Any, element: Any) -> Any:
    """The types and values of a row, or the message of its refusal."""
    try:
        return [(type(value), repr(value)) for value in make(element)]
    except InvalidArgumentError as error:
        return str(error)


@pytest.mark.parametrize("shape", [(), (2,)])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_the_same(kind: str, shape: tuple[int, ...]) -> None:
    dtype = str if kind == "str" else kind
    spec = ElementSpec([dtype, "int64"], [shape, ()])
    make = spec.row_maker()
    for value in VALUES:
        assert made(make, (value, 1)) == made(spec.row, (value, 1))
        assert made(make, (value, "1")) == made(spec.row, (value, "1"))
        assert made(make, [value, 1]) == made(spec.row, [value, 1])


@pytest.mark.parametrize("element", [(), (1,), (1, 2, 3), None, {"a": 1}, [1, 2], "ab"])
def test_elements_of_another_form_are_the_same(element: Any) -> None:
    spec = ElementSpec(["int64", "int64"], [(), ()])
    assert made(spec.row_maker(), element) == made(spec.row, element)


@pytest.mark.parametrize(
    "spec",
    [
        ElementSpec("int64", ()),
        ElementSpec(["int64", "int64"], [(), ()], ["a", "b"]),
        ElementSpec(["int64", "int64"]),
    ],
    ids=["single", "names", "any shape"],
)
def test_the_usual_way_where_there_is_no_other(spec: ElementSpec) -> None:
    assert spec.row_maker() == spec.row
