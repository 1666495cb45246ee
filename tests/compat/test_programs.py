"""Random programs of queues, runners, inputs and sessions do what TensorFlow has done."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from aioqueue.compat.v1.absent import REASONS
from proofs.oracle.kinder import agree
from proofs.oracle.libraries import ours
from tests.compat.record_programs import KINDS, RECORD, played

ABSENT = re.compile(rf"\btf\.(?:{'|'.join(map(re.escape, REASONS))})(?![\w.])")
PROGRAMS: dict[str, list[Any]] = {kind: [] for kind in KINDS}
for row in json.loads(RECORD.read_text(encoding="utf-8")):
    if not any(map(ABSENT.search, row["lines"])):  # a name that has gone since then
        PROGRAMS[row["kind"]].append(row)


def as_tuples(plain: Any) -> Any:
    return tuple(map(as_tuples, plain)) if isinstance(plain, list) else plain


def is_same(lines: list[str], seen: list[Any]) -> bool:
    """Whether a program does the same again; tried twice more, since a busy machine is late."""
    for _ in range(3):
        both = list(zip(as_tuples(seen), as_tuples(played(ours(), lines)), strict=True))
        if all(len(there) == len(here) and all(map(agree, there, here)) for there, here in both):
            return True
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_programs(kind: str) -> None:
    assert len(PROGRAMS[kind]) > 5
    differ = [one["seed"] for one in PROGRAMS[kind] if not is_same(one["lines"], one["seen"])]
    assert differ == [], f"compare: python -m proofs.oracle --only '{kind}'"
