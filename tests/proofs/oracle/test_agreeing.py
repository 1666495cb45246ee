"""What counts as the same: each rule takes what it is for, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from proofs.oracle.kinder import agree
from proofs.oracle.stage import Outcome, about, described

ERROR = ("raises", "InvalidArgumentError", "wrong size", "resize/ResizeBilinear")


def same(theirs: Outcome, ours: Outcome) -> bool:
    return agree((3, theirs), (3, ours))


def test_an_op_here_may_be_a_scope_there() -> None:
    """Where several ops there are one here, the one that fails is within its scope."""
    assert same(ERROR, (*ERROR[:3], "resize"))
    assert same(about(ERROR), about((*ERROR[:3], "resize")))


@pytest.mark.parametrize("op", ["resiz", "resize_1", "other", "resize/ResizeBilinear/More", None])
def test_another_op_is_a_difference(op: str | None) -> None:
    assert not same(ERROR, (*ERROR[:3], op))


def test_other_words_are_a_difference() -> None:
    assert not same(ERROR, ("raises", "InvalidArgumentError", "wrong sizes", "resize"))
    assert not same(about(ERROR), about(("raises", "ValueError", "wrong size", "resize")))
    assert not same(about(ERROR), about(described(np.float32(1))))


def test_another_line_is_a_difference() -> None:
    assert not agree((3, about(described(1.5))), (4, about(described(1.5))))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array([0.1, np.nan], "float32"), np.array([0.1000001, np.nan], "float32")),
        (np.float64(1e9), np.float64(1e9 * (1 + 1e-14))),
        ({"a": (np.float32(0.1), 5)}, {"a": (np.float32(0.1000001), 5)}),
    ],
)
def test_last_bits_of_floats_are_of_no_interest(one: Any, other: Any) -> None:
    assert described(one) != described(other)
    assert same(about(described(one)), about(described(other)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array([0.1, 2], "float32"), np.array([0.1001, 2], "float32")),
        (np.float64(1), np.float64(1 + 1e-7)),
        (np.array([np.nan], "float32"), np.array([0], "float32")),
        (np.array([1], "float32"), np.array([1], "float64")),
        (np.array([1], "float32"), np.array([[1]], "float32")),
        (np.array([1], "float32"), np.float32(1)),
        (np.array([100_000], "int32"), np.array([100_001], "int32")),
        (np.int64(2**60), np.int64(2**60 + 1)),
        ({"a": 1}, {"b": 1}),
        ((np.float32(1), np.float32(2)), (np.float32(1),)),
        (np.array([b"1.0"], object), np.array([b"1.00000001"], object)),
    ],
)
def test_anything_else_is_of_interest(one: Any, other: Any) -> None:
    assert not same(about(described(one)), about(described(other)))


def test_last_bits_count_where_they_are_not_excused() -> None:
    assert not same(described(np.float32(0.1)), described(np.float32(0.1000001)))


def form(shape: Any, dtype: str = "int32") -> Outcome:
    return ("form", ("tensor", dtype, ("shape", shape)))


@pytest.mark.parametrize("theirs", [None, (None, 3), (2, None), (2, 3)])
def test_a_shape_may_be_known_better_here(theirs: Any) -> None:
    assert same(form(theirs), form((2, 3)))


@pytest.mark.parametrize("ours", [None, (None, 3), (2,), (2, 4), ()])
def test_a_shape_may_not_be_known_less_or_otherwise(ours: Any) -> None:
    assert not same(form((2, 3)), form(ours))
    assert not same(form((2, 3)), form((2, 3), "int64"))
