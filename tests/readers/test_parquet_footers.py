"""Flipped bits in the footers of Parquet files never end the process: `proofs.parquet_footers`."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
pytest.importorskip("resource", reason="the memory of child processes cannot be bounded here")

from proofs import parquet_footers


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "darwin", reason="RLIMIT_AS bounds nothing there")
def test_each_is_read_or_reported() -> None:
    found, ends = parquet_footers.outcomes("rows", 600, seed=52)
    assert ends == []
    assert {outcome for _, outcome in found} <= {
        "read",
        "fine",
        "DataLossError",
        "InvalidArgumentError",
    }
    assert found["rows", "DataLossError"] > 100
    assert found["rows", "read"] > 100


@pytest.mark.slow
def test_it_would_notice() -> None:
    """What ends a child process is counted, with its name, and the next file is read."""
    _, ends = parquet_footers.outcomes("ends", 3)
    assert len(ends) == 3
    assert all("SIGABRT" not in end and "os.abort" in end for end in ends)
