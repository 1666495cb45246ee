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
    op_cases_places,
    op_cases_text,
)
from tests.compat.op_cases import CASES, Outcome, agree, message_of

assert op_cases_arrays.OTHERS
assert op_cases_elementwise.OPERATORS
assert op_cases_images.METHODS
assert op_cases_places.PLACES
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
    "x[two ellipses] of (2, 3, 4) none": "refused when the graph is built, not when it runs",
    "x[two ellipses] of (2, 3) none": "refused when the graph is built, not when it runs",
    "saturate big": "saturates, where TensorFlow's limit overflows",
    "slice bad": "refused, where TensorFlow gives what there is",
    "string lower utf-8": "keeps a NUL at the end",
    "string upper utf-8": "keeps a NUL at the end",
    "csv option delimiter": "refused when the graph is built, not when it runs",
    "csv option dtypes": "a dtype stands for a column that must be there, as tf.data has it",
    "repeat": "the static shape is known, where TensorFlow's is not",
}
"""Where we differ on purpose."""

WORDED_OTHERWISE = {
    "div-mismatch",
    "div_no_nan-mismatch",
    "atan2-mismatch",
    "operator int+1.5",
    "operator float&",
    "operator bool",
    "operator iter",
    "operator in",
    "operator array",
    "logical int",
    "less str",
    "sin int",
    "add_n none",
    "matmul bad run",
    "sum bool",
    "squeeze far",
    "pad mode",
    "gather_nd far",
    "one_hot mixed",
    "ones str",
    "string replace bad",
    "string number dtype",
    "csv option columns order",
    "csv option no columns",
    "csv option int8",
    "image png float",
    "sparse sadd bad",
    "sparse sexp bad",
    "sparse sreset small",
    "sparse sreset small run",
    *(name for name in CASES if name.startswith(("x[-7]", "x[float tensor]"))),
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
