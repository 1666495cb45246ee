"""Rows that are written one by one and joined later: as if they were assigned to an array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aioqueue import InvalidArgumentError
from aioqueue.core.elements.element_spec import ElementSpec
from aioqueue.core.storage.columns import RowMemory, allocate

SPEC = ElementSpec(["float32", "int64"], [(2, 3), ()])
ARRAY = np.arange(6, dtype="float32").reshape(2, 3)


def joined(spec: ElementSpec, elements: list[Any]) -> list[Any]:
    """Write elements, and join them in two parts."""
    memory = RowMemory(spec.components, len(elements) + 1)
    write = spec.element_writer(memory.write_row, memory.as_bytes)
    for index, element in enumerate(elements):
        write(memory.columns, index, element)
    parts = [
        memory.joined(memory.columns, 0, 1),
        memory.joined(memory.columns, 1, len(elements)),
    ]
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
    memory = RowMemory(SPEC.components, 1)
    array = ARRAY.copy()
    SPEC.element_writer(memory.write_row, memory.as_bytes)(memory.columns, 0, (array, 0))
    array[:] = -1
    np.testing.assert_array_equal(memory.joined(memory.columns, 0, 1)[0], [ARRAY])


def test_a_wrong_value_is_refused_as_always() -> None:
    memory = RowMemory(SPEC.components, 1)
    write = SPEC.element_writer(memory.write_row, memory.as_bytes)
    with pytest.raises(InvalidArgumentError, match="expected"):
        write(memory.columns, 0, (ARRAY[:1], 0))


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("float32", ()),
        ("float32", (0, 3)),
        ("float64", (1000,)),
        ("datetime64[s]", (2,)),
        ("U3", (2,)),
    ],
    ids=str,
)
def test_what_does_not_become_bytes(dtype: str, shape: tuple[int, ...]) -> None:
    spec = ElementSpec([dtype, "int64"], [shape, ()])
    value = np.ones(shape, dtype) if dtype != "U3" else np.full(shape, "abc")
    memory = RowMemory(spec.components, 1)
    assert memory.as_bytes == [False, False]
    element = (value if shape else 1.0, 0)
    values, _ = joined(spec, [element, element])
    np.testing.assert_array_equal(values, np.stack([value, value]))
    assert values.dtype == allocate(spec.components, 1)[0].dtype
