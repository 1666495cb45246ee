"""The op library beside TensorFlow itself: dtypes, static shapes, values, errors, messages.

Each case is run once with TensorFlow's module and once with ours. Runs where TensorFlow is
installed: ``pip install '.[oracle]'``.
"""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as ours
from tests.compat import (
    op_cases_arrays,
    op_cases_elementwise,
    op_cases_images,
    op_cases_text,
)
from tests.compat.op_cases import CASES, Outcome, agree, message_of

assert op_cases_arrays.CALLS
assert op_cases_elementwise.OPERATORS
assert op_cases_images.METHODS
assert op_cases_text.STRINGS


@pytest.fixture(scope="module")
def theirs() -> Any:
    """TensorFlow, in graph mode."""
    pytest.importorskip("tensorflow", reason="compares with TensorFlow: pip install '.[oracle]'")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = importlib.import_module("tensorflow.compat.v1")
        module.disable_v2_behavior()
        module.logging.set_verbosity(module.logging.ERROR)
    return module


KINDER = {
    **dict.fromkeys(
        (f"unknown(i{shape}, None)[..., 0, ...]" for shape in ((2, 3, 4), (2, 3))),
        "refused when the graph is built, not when it runs",
    ),
    "saturate_cast(np.array([1e+20, -1e+20]), int64)": "saturates, where the limit overflows there",
    "slice([1, 2], [1], [5])": "refused, where TensorFlow gives what there is",
    "string lower utf-8": "keeps a NUL at the end",
    "string upper utf-8": "keeps a NUL at the end",
    "csv option delimiter": "refused when the graph is built, not when it runs",
    "csv option dtypes": "a dtype stands for a column that must be there, as tf.data has it",
}
"""Where we differ on purpose."""

WORDED_OTHERWISE = {
    "div-mismatch",
    "div_no_nan-mismatch",
    "atan2-mismatch",
    "operator constant([1, 2]) + 1.5",
    "operator constant([1.0]) & constant([1.0])",
    "operator 1 if constant(1.0) else 0",
    "operator [*constant([1.0])]",
    "operator 1.0 in constant([1.0])",
    "operator np.asarray(constant([1.0]))",
    "logical_and(constant([1]), constant([0]))",
    "less(constant('a'), constant('b'))",
    "sin(constant([1]))",
    "add_n([])",
    "matmul(u([[1.0]]), u([[1.0], [2.0]]))",
    "reduce_sum(constant([True]))",
    "squeeze(i(2, 1, 3), [7])",
    "pad([1, 2], [[1, 1]], 'wrap')",
    "gather_nd(u([1, 2]), u([[7]]))",
    "one_hot([0, 1], 4, constant(1), constant(1.0))",
    "ones([2], string)",
    "gather(u([1]), [0], axis=3)",
    "where(u([True]), u([1, 2]), u([1, 2, 3]))",
    "scattered('nd_update', [[0]], u([3.0, 5.0]))",
    "random_uniform([1], dtype='bool')",
    "random_normal([1], dtype=int32)",
    "string replace bad",
    "string number dtype",
    "csv option columns order",
    "csv option no columns",
    "csv option int8",
    "image png float",
    *(name for name in CASES if name.endswith(("[-7]", "[constant(1.0)]"))),
}
"""Errors of the same class whose messages are not TensorFlow 2.21's word for word."""


ERRORS = {"OperatorNotAllowedInGraphError": "TypeError"}
"""Names of theirs that are called otherwise here."""


@pytest.mark.parametrize("name", [name for name in CASES if name not in KINDER])
def test_agrees(theirs: Any, name: str) -> None:
    mine, their = Outcome(ours, CASES[name]), Outcome(theirs, CASES[name])
    if their.error is not None:
        expected = ERRORS.get(type(their.error).__name__, type(their.error).__name__)
        assert mine.error is not None, mine.values
        assert type(mine.error).__name__ == expected, (mine.error, str(their.error)[:300])
        assert mine.when == their.when, their.error
        if name not in WORDED_OTHERWISE:
            assert message_of(mine.error) == message_of(their.error)
        return
    if mine.error is not None:
        raise mine.error
    assert mine.kinds == their.kinds
    for one, two in zip(mine.values, their.values, strict=True):
        agree(one, two, name)


@pytest.mark.parametrize("name", KINDER)
def test_still_differs_where_we_are_kinder(theirs: Any, name: str) -> None:
    mine, their = Outcome(ours, CASES[name]), Outcome(theirs, CASES[name])
    same = (mine.kinds, mine.when, type(mine.error)) == (their.kinds, their.when, type(their.error))
    assert not same or not np.array_equal(mine.values, their.values)
