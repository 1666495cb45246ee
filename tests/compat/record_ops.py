"""Write down what TensorFlow gives: ``python -m tests.compat.record_ops``, where it is installed.

`test_ops` holds the op library to what is written there, without TensorFlow.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.compat.op_cases import CASES, Outcome, message_of
from tests.compat.test_ops_oracle import ERRORS, KINDER, WORDED_OTHERWISE

RECORD = Path(__file__).with_name("op_record.json")
LARGEST = 64


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
        if name not in KINDER and not name.startswith(SKIPPED):
            row = recorded(Outcome(tf, function), name)
            if row is not None:
                rows[name] = row
    lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


SKIPPED = ("random normal", "random truncated")
"""What need not be the same to the last bit, on every machine."""

if __name__ == "__main__":
    main()
