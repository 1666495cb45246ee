"""Messages of protobuf that no other page is about: options of records, nested ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

import aioqueue.compat.v1 as tf
from tests.kit.children import ROOT, environment

pytest.importorskip("google.protobuf")


def test_options_of_records_can_be_of_options() -> None:
    options = tf.python_io.TFRecordOptions(tf.python_io.TFRecordOptions("ZLIB"))
    assert options.get_compression_type_string(options) == "ZLIB"


@pytest.mark.slow
def test_messages_have_those_within_them_in_any_protobuf() -> None:
    """Where it has no compiled code, as without the global lock, it does not see to that."""
    ran = subprocess.run(
        [sys.executable, "-c", "import aioqueue.compat.v1 as tf; print(tf.Summary.Value(tag='a'))"],
        cwd=ROOT,
        env={**environment(), "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.stdout.strip(), ran.returncode) == ('tag: "a"', 0), ran.stderr
