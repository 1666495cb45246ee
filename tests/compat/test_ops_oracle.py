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
from tests.compat.op_cases import CASES, Outcome, agree, message_of
from tests.compat.record_ops import ERRORS, KINDER, WORDED_OTHERWISE


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
