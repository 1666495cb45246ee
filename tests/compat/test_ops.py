"""The op library gives what TensorFlow gave, which is on record: no TensorFlow is needed.

`test_ops_oracle` compares with TensorFlow itself, and `record_ops` writes the record.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.ops.images.codecs import simplejpeg
from tests.compat import record_ops
from tests.compat.op_cases import CASES, Outcome, agree, message_of

RECORD = json.loads(record_ops.RECORD.read_text(encoding="utf-8"))


PARTS = 12
"""The default run has one of so many parts of the record, with cases of every kind of op."""


def as_value(dtype: str, shape: list[int], flat: list[Any]) -> Any:
    """What `record_ops` wrote, as an array."""
    if dtype != "bytes":
        return np.array(flat, dtype).reshape(shape)
    strings = np.empty(len(flat), object)
    strings[:] = [one.encode("latin-1") for one in flat]
    return strings.reshape(shape)


def check(name: str) -> None:
    wanted, outcome = RECORD[name], Outcome(tf, CASES[name])
    if "error" in wanted:
        assert outcome.error is not None, f"{name}: {outcome.values}"
        assert (type(outcome.error).__name__, outcome.when) == (wanted["error"], wanted["when"]), (
            name
        )
        if wanted["message"] is not None:
            assert message_of(outcome.error) == wanted["message"], name
        return
    if outcome.error is not None:
        raise AssertionError(name) from outcome.error
    assert [[dtype, shape] for dtype, shape in outcome.kinds] == wanted["kinds"], name
    for value, recorded in zip(outcome.values, wanted["values"], strict=True):
        given = np.asarray(value, object) if isinstance(value, bytes) else value
        agree(given, as_value(*recorded), name)


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))]
)
def test_gives_what_tensorflow_gave(part: int) -> None:
    wrong = []
    for name in list(RECORD)[part::PARTS]:
        if name.startswith(("image jpeg", "image decoded")) and simplejpeg() is None:
            continue  # pixels of JPEG files to the last bit need it: pip install '.[images]'
        if name.startswith(("image ", "several texts decode_")) and find_spec("PIL") is None:
            continue
        try:
            check(name)
        except AssertionError as error:
            wrong.append(f"{name}: {error!r}, {error.__cause__!r}")
    assert wrong == []


def test_every_case_is_on_record_unless_it_is_said_why() -> None:
    """A new case is recorded, or it would never be checked without TensorFlow."""
    left_out = {name for name in CASES if record_ops.is_left_out(name)}
    large = {"random uniform many", "random shuffle many", "zeros([2000])"}
    assert set(RECORD) | left_out | large == set(CASES)
