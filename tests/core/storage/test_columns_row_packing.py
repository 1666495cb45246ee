"""Rows that are packed one by one and joined later: as if they were assigned to an array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aioqueue.core.elements.element_spec import ElementSpec
from aioqueue.core.storage.columns import RowPacking, allocate

SPEC = ElementSpec(["float32", "int64"], [(2, 3), ()])
ARRAY = np.arange(6, dtype="float32").reshape(2, 3)


def joined(spec: ElementSpec, elements: list[Any]) -> list[Any]:
    """Write elements, and join them in two parts."""
    rows: list[Any]
    packing, rows = RowPacking(spec.components, len(elements)), []
    write_usual = spec.usual_element_writer(packing.is_number, rows.append)
    for element in elements:
        if not write_usual(element):
            rows.append(packing.packed(spec.row(element)))
    parts = [packing.joined(rows[:1]), packing.joined(rows[1:])]
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(ARRAY, id="usual"),
        pytest.param(ARRAY.astype("float16"), id="other dtype"),
        pytest.param(ARRAY.astype(">f4"), id="other byte order"),
        pytest.param(np.asfortranarray(ARRAY), id="other layout"),
        pytest.param(ARRAY[::-1, ::-1], id="backwards"),
        pytest.param(ARRAY.tolist(), id="lists"),
        pytest.param(np.broadcast_to(np.float32(1), (2, 3)), id="one value"),
    ],
)
def test_an_array_is_joined_as_it_was_written(array: Any) -> None:
    arrays, numbers = joined(SPEC, [(ARRAY, 1), (array, 2), (ARRAY, 3)])
    assert arrays.dtype == np.float32
    np.testing.assert_array_equal(arrays, [ARRAY, np.asarray(array, "float32"), ARRAY])
    assert numbers.tolist() == [1, 2, 3]


def test_a_value_is_that_of_the_moment_in_which_it_was_written() -> None:
    packing, rows = RowPacking(SPEC.components, 1), []  # type: tuple[RowPacking, list[Any]]
    array = ARRAY.copy()
    assert SPEC.usual_element_writer(packing.is_number, rows.append)((array, 0))
    array[:] = -1
    np.testing.assert_array_equal(packing.joined(rows)[0], [ARRAY])


@pytest.mark.parametrize(
    "element",
    [
        pytest.param((ARRAY[:1], 0), id="shape"),
        pytest.param((ARRAY.ravel(), 0), id="dimensions"),
        pytest.param((ARRAY.astype("float64"), 0), id="dtype"),
        pytest.param((ARRAY, 2**63), id="too large"),
        pytest.param((ARRAY, True), id="bool"),
        pytest.param((ARRAY,), id="too few"),
        pytest.param([ARRAY, 0], id="list"),
        pytest.param(None, id="none"),
    ],
)
def test_what_is_not_usual_is_not_written(element: Any) -> None:
    packing, rows = RowPacking(SPEC.components, 1), []  # type: tuple[RowPacking, list[Any]]
    assert not SPEC.usual_element_writer(packing.is_number, rows.append)(element)
    assert rows == []


NUMBERS = [f"{kind}{size}" for kind, sizes in (("i", 8), ("u", 8)) for size in (1, 2, 4, sizes)]


@pytest.mark.parametrize("dtype", [*NUMBERS, "f4", "f8"])
def test_numbers_are_joined_exactly(dtype: str) -> None:
    spec = ElementSpec([dtype], [()])
    info: Any = np.finfo(dtype) if dtype[0] == "f" else np.iinfo(dtype)
    given = [info.min, info.max, 0, 1, np.dtype(dtype).type(7)]
    values = [value.item() if isinstance(value, np.floating) else value for value in given]
    if dtype[0] == "f":
        values += [float("inf"), float("nan"), 1 / 3, -0.0]
    (found,) = joined(spec, values)
    assert found.dtype == dtype
    expected = np.empty(len(values), dtype)
    for index, value in enumerate(values):
        expected[index] = value
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("bool", ()),
        ("complex64", ()),
        (">c8", ()),
        (">i4", ()),
        ("float16", ()),
        ("datetime64[s]", ()),
        ("U3", ()),
        ("float32", (0, 3)),
        ("float64", (1000,)),
        (">f4", (2,)),
        ("datetime64[s]", (2,)),
        ("U3", (2,)),
        ([("x", "f4"), ("y", "i2")], (2,)),
    ],
    ids=str,
)
def test_values_of_any_dtype_are_joined(dtype: Any, shape: tuple[int, ...]) -> None:
    spec = ElementSpec([dtype, "int64"], [shape, ()])
    exact = np.dtype(dtype)
    value = np.full(shape, "abc") if exact.kind == "U" else np.ones(shape).astype(exact)
    element = (value if shape else value[()], 0)
    values, _ = joined(spec, [element, element])
    np.testing.assert_array_equal(values, np.stack([value, value]))
    assert values.dtype == np.concatenate(allocate(spec.components, 1)[:1]).dtype
