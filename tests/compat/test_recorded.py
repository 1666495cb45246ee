"""Graphs, sessions, data sets and readers give what TensorFlow gave: by its record, and live."""

from __future__ import annotations

import json
from typing import Any

import pytest

import aioqueue.compat.v1 as ours
from tests.compat import cases_data, cases_files, cases_found, cases_graph, cases_parsing
from tests.compat.recorded import CASES, RECORD, run, tensorflow

assert all((cases_data, cases_files, cases_found, cases_graph, cases_parsing)), (
    "they register their cases"
)

ON_RECORD = json.loads(RECORD.read_text(encoding="utf-8"))
NAMED_OTHERWISE = {
    "initializing": "TensorFlow spells report_uninitialized_variables with many operations",
    "conds": "TensorFlow gives operations in a branch a control dependency of their own",
}
"""Cases in which the names of operations differ, and why."""


NEEDS = {
    **dict.fromkeys(("tf_records", "damaged_tf_records", "files_of_data"), "google_crc32c"),
    **dict.fromkeys(("states_of_readers", "messages", "single_examples"), "google.protobuf"),
    **dict.fromkeys(("batches_of_examples", "sequence_examples"), "google.protobuf"),
}
"""Cases that need an extra, and its module."""


def check(name: str, returned: list[str], names: list[str]) -> None:
    mine, my_names = run(ours, CASES[name])
    assert mine == returned
    assert (my_names == names) == (name not in NAMED_OTHERWISE)


@pytest.mark.parametrize("name", CASES)
def test_is_as_on_record(name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason="the extra `tfrecord` is not installed")
    check(name, *ON_RECORD[name])


@pytest.mark.parametrize("name", CASES)
def test_is_as_tensorflow_does(name: str) -> None:
    pytest.importorskip("tensorflow", reason="compares with TensorFlow: pip install '.[oracle]'")
    tf: Any = tensorflow()
    returned, names = run(tf, CASES[name])
    assert [returned, names] == ON_RECORD[name]
