"""Write down what TensorFlow gives: ``python -m tests.compat.record_ops``, where it is installed.

`test_ops` holds the op library to what is written there, without TensorFlow.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np

# Importing these makes all cases.
from tests.compat import op_cases_arrays, op_cases_elementwise, op_cases_images, op_cases_text  # noqa: F401
from tests.compat.op_cases import CASES, Outcome, message_of

RECORD = Path(__file__).with_name("op_record.json")
LARGEST = 64

SKIPPED = ("random normal", "random truncated")
"""What need not be the same to the last bit, on every machine."""

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
    "div-mismatch", "div_no_nan-mismatch", "atan2-mismatch", "operator constant([1, 2]) + 1.5",
    "operator constant([1.0]) & constant([1.0])", "operator 1 if constant(1.0) else 0",
    "operator [*constant([1.0])]", "operator 1.0 in constant([1.0])",
    "operator np.asarray(constant([1.0]))", "logical_and(constant([1]), constant([0]))",
    "less(constant('a'), constant('b'))", "sin(constant([1]))", "add_n([])",
    "matmul(u([[1.0]]), u([[1.0], [2.0]]))", "reduce_sum(constant([True]))",
    "squeeze(i(2, 1, 3), [7])", "pad([1, 2], [[1, 1]], 'wrap')",
    "one_hot([0, 1], 4, constant(1), constant(1.0))", "ones([2], string)",
    "gather(u([1]), [0], axis=3)", "where(u([True]), u([1, 2]), u([1, 2, 3]))",
    "scattered('nd_update', [[0]], u([3.0, 5.0]))", "random_uniform([1], dtype='bool')",
    "random_normal([1], dtype=int32)", "string replace bad", "string number dtype",
    "csv option columns order", "csv option no columns", "csv option int8", "image png float",
    *(name for name in CASES if name.endswith(("[-7]", "[constant(1.0)]"))),
}  # fmt: skip
"""Errors of the same class whose messages are not TensorFlow 2.21's word for word."""


ERRORS = {"OperatorNotAllowedInGraphError": "TypeError"}
"""Names of theirs that are called otherwise here."""


def is_left_out(name: str) -> bool:
    return name in KINDER or name.startswith(SKIPPED)


def plain(value: np.ndarray[Any, Any]) -> list[Any]:
    """An array as JSON has it: dtype, shape, elements; strings as Latin-1, which has all bytes."""
    flat = [
        one.decode("latin-1") if isinstance(one, bytes) else one for one in value.ravel().tolist()
    ]
    return ["bytes" if value.dtype.kind in "OS" else value.dtype.name, list(value.shape), flat]


def recorded(outcome: Outcome, name: str) -> dict[str, Any] | None:
    """A case's outcome; None if it is too large to be worth the room."""
    if outcome.error is not None:
        kind = type(outcome.error).__name__
        message = None if name in WORDED_OTHERWISE else message_of(outcome.error)
        return {"error": ERRORS.get(kind, kind), "when": outcome.when, "message": message}
    values = [np.asarray(one, object if isinstance(one, bytes) else None) for one in outcome.values]
    if sum(one.size for one in values) > LARGEST:
        return None
    return {"kinds": outcome.kinds, "values": [plain(one) for one in values]}


def main() -> None:
    """Record all cases but those that differ on purpose."""
    tf = importlib.import_module("tensorflow.compat.v1")
    tf.disable_v2_behavior()
    rows = {}
    for name, function in CASES.items():
        if not is_left_out(name):
            row = recorded(Outcome(tf, function), name)
            if row is not None:
                rows[name] = row
    lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
